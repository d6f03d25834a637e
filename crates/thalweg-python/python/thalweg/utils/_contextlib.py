"""Regions that are decorators as well (`torch.utils._contextlib`)."""

import functools
import inspect


def context_decorator(ctx, func):
    """Returns a function that runs in a region: one made by a function for each call, or an object that is entered again."""
    make = ctx if callable(ctx) and not hasattr(ctx, "__enter__") else lambda: ctx
    if inspect.isclass(func):
        raise RuntimeError("Cannot decorate classes; it is ambiguous whether or not only the constructor or all methods should have the context manager applied; "
                           "additionally, decorating a class at definition-site will prevent use of the identifier as a conventional type. To specify which "
                           "methods to decorate, decorate each of them individually.")
    if inspect.isgeneratorfunction(func):
        return _in_steps(make, func)

    @functools.wraps(func)
    def decorated(*args, **kwargs):
        with make():
            return func(*args, **kwargs)
    return decorated


def _in_steps(make, func):
    """Returns a generator function each of whose steps runs in a region."""
    @functools.wraps(func)
    def decorated(*args, **kwargs):
        generator = func(*args, **kwargs)
        step, value = generator.send, None
        while True:
            try:
                with make():
                    found = step(value)
            except StopIteration as end:
                return end.value
            try:
                value, step = (yield found), generator.send
            except GeneratorExit:
                with make():
                    generator.close()
                raise
            except BaseException as error:
                value, step = error, generator.throw
    return decorated


class _DecoratorContextManager:
    """The base class of regions that are decorators as well."""

    def __call__(self, orig_func):
        return context_decorator(self.clone, orig_func)

    def __enter__(self):
        raise NotImplementedError

    def __exit__(self, exc_type, exc_value, traceback):
        raise NotImplementedError

    def clone(self):
        """Returns another region like this one."""
        return self.__class__()


class _NoParamDecoratorContextManager(_DecoratorContextManager):
    """The base class of regions without arguments, which may decorate by the class itself."""

    def __new__(cls, orig_func=None):
        return super().__new__(cls) if orig_func is None else cls()(orig_func)
