"""Queries of libraries (`torch.overrides`): whether objects behave like tensors.
Objects cannot override functions of this package."""

import contextlib
import functools

from ._core import Tensor


def is_tensor_like(inp):
    """Returns whether an object is a tensor, or has the method `__torch_function__`."""
    return isinstance(inp, Tensor) or hasattr(type(inp), "__torch_function__")


def has_torch_function(args):
    """Returns whether an argument that is not a tensor overrides functions."""
    return any(hasattr(type(arg), "__torch_function__") for arg in args if not isinstance(arg, Tensor))


def has_torch_function_unary(arg):
    """Returns whether an argument overrides functions."""
    return has_torch_function((arg,))


has_torch_function_variadic = lambda *args: has_torch_function(args)  # noqa: E731


def handle_torch_function(public_api, relevant_args, *args, **kwargs):
    """Calls the first argument's method that overrides the function."""
    for arg in relevant_args:
        if not isinstance(arg, Tensor) and hasattr(type(arg), "__torch_function__"):
            kinds = tuple({type(value) for value in relevant_args if hasattr(type(value), "__torch_function__")})
            result = arg.__torch_function__(public_api, kinds, args, kwargs)
            if result is not NotImplemented:
                return result
    raise TypeError(f"no implementation found for '{getattr(public_api, '__name__', public_api)}' on types that implement __torch_function__")


def wrap_torch_function(dispatcher):
    """Returns a decorator. The arguments that `dispatcher` returns can then override the function."""
    def wrapper(func):
        @functools.wraps(func)
        def wrapped(*args, **kwargs):
            relevant = dispatcher(*args, **kwargs)
            return handle_torch_function(wrapped, relevant, *args, **kwargs) if has_torch_function(relevant) else func(*args, **kwargs)
        return wrapped
    return wrapper


def is_tensor_method_or_property(func):
    """Returns whether a function is a method of tensors."""
    return func in vars(Tensor).values()


def resolve_name(f):
    """Returns the name of a function with its module."""
    module = getattr(f, "__module__", None)
    return f"{module}.{f.__name__}" if module and hasattr(f, "__name__") else None


def get_ignored_functions():
    """Returns an empty set: no function can be overridden."""
    return set()


def get_overridable_functions():
    """Returns an empty dictionary: no function can be overridden."""
    return {}


def get_testing_overrides():
    """Returns an empty dictionary: no function can be overridden."""
    return {}


class TorchFunctionMode:
    """A region in which calls would be overridden, which is left out: entering it raises."""

    def __enter__(self):
        raise NotImplementedError("overrides.TorchFunctionMode is left out: calls are not taken over")

    def __exit__(self, *_):
        pass


BaseTorchFunctionMode = TorchFunctionMode


@contextlib.contextmanager
def enable_reentrant_dispatch():
    """Returns a region that changes nothing."""
    yield


_disable_user_warnings = lambda func, **_: func  # noqa: E731
