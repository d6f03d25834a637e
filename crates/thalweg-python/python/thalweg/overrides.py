"""Questions of libraries (`torch.overrides`): whether objects are like tensors. Objects do not take over functions of this package."""

import contextlib
import functools

from ._core import Tensor


def is_tensor_like(inp):
    """Returns whether an object is a tensor, or has the method that makes it like one."""
    return isinstance(inp, Tensor) or hasattr(type(inp), "__torch_function__")


def has_torch_function(args):
    """Returns whether an argument that is not a tensor takes functions over."""
    return any(hasattr(type(arg), "__torch_function__") for arg in args if not isinstance(arg, Tensor))


def has_torch_function_unary(arg):
    """Returns whether an argument takes functions over."""
    return has_torch_function((arg,))


has_torch_function_variadic = lambda *args: has_torch_function(args)  # noqa: E731


def handle_torch_function(public_api, relevant_args, *args, **kwargs):
    """Calls the first argument's method that takes the function over."""
    for arg in relevant_args:
        if not isinstance(arg, Tensor) and hasattr(type(arg), "__torch_function__"):
            kinds = tuple({type(value) for value in relevant_args if hasattr(type(value), "__torch_function__")})
            result = arg.__torch_function__(public_api, kinds, args, kwargs)
            if result is not NotImplemented:
                return result
    raise TypeError(f"no implementation found for '{getattr(public_api, '__name__', public_api)}' on types that implement __torch_function__")


def wrap_torch_function(dispatcher):
    """Returns a decorator: the function is then taken over by the arguments that `dispatcher` gives."""
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
    """Returns the empty set: no function is taken over."""
    return set()


def get_overridable_functions():
    """Returns the empty dictionary: no function is taken over."""
    return {}


def get_testing_overrides():
    """Returns the empty dictionary: no function is taken over."""
    return {}


class TorchFunctionMode:
    """A region in which calls would be taken over, which is left out: entering it raises."""

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
