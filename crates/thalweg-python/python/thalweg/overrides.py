"""Overrides of functions (`torch.overrides`): by subclasses, by other classes with `__torch_function__`, and by modes."""

import contextlib
import functools
import types

from . import _core, _torch_functions
from ._core import Tensor
from ._torch_functions import _disabled_torch_function_impl  # noqa: F401

__all__ = [
    "TorchFunctionMode", "get_default_nowrap_functions", "get_ignored_functions", "get_overridable_functions", "get_testing_overrides",
    "handle_torch_function", "has_torch_function", "is_tensor_like", "is_tensor_method_or_property", "resolve_name", "wrap_torch_function"]


def is_tensor_like(inp):
    """Returns whether an object is a tensor, or has the method `__torch_function__`."""
    return type(inp) is Tensor or hasattr(inp, "__torch_function__")


def has_torch_function(args):
    """Returns whether a mode or an argument takes over functions."""
    return _core._is_overridden(tuple(args), {})


def has_torch_function_unary(arg):
    """Returns whether a mode or the argument takes over functions."""
    return _core._is_overridden((arg,), {})


def has_torch_function_variadic(*args):
    """Returns whether a mode or an argument takes over functions."""
    return _core._is_overridden(args, {})


def handle_torch_function(public_api, relevant_args, *args, **kwargs):
    """Returns the result of a function that a mode or an argument takes over."""
    return _torch_functions.take(public_api, _core._overriding(tuple(relevant_args), {}), args, kwargs)


def _get_overloaded_args(relevant_args, get_type_fn=None):
    """Returns the arguments that override functions, in the order in which their overrides are called."""
    return _torch_functions._ordered(_core._overriding(tuple(relevant_args), {}))


def wrap_torch_function(dispatcher):
    """Returns a decorator. The arguments that `dispatcher` returns can then take over the function."""
    def wrapper(func):
        @functools.wraps(func)
        def wrapped(*args, **kwargs):
            relevant = dispatcher(*args, **kwargs)
            return handle_torch_function(wrapped, relevant, *args, **kwargs) if has_torch_function(relevant) else func(*args, **kwargs)
        return wrapped
    return wrapper


def is_tensor_method_or_property(func):
    """Returns whether a function is a method of tensors, or reads or writes a property."""
    return func in _methods() or getattr(func, "__name__", None) == "__get__"


@functools.lru_cache(None)
def _methods():
    return {value for value in vars(Tensor).values() if callable(value) and isinstance(value, types.FunctionType | types.MethodDescriptorType
                                                                                      | types.WrapperDescriptorType)}


def resolve_name(f):
    """Returns the name of a function with its module."""
    if isinstance(f, (types.MethodDescriptorType, types.WrapperDescriptorType)) or f in _methods():
        return f"torch.Tensor.{f.__name__}"
    from .fx._names import qualified
    try:
        return qualified(f)
    except (RuntimeError, AttributeError):
        return None


def get_default_nowrap_functions():
    """Returns the functions whose results keep their class."""
    return set(_torch_functions._plain_results())


# How the names of settings and of queries begin and end.
_OF_SETTINGS = ("get_", "set_", "are_", "use_", "clear_"), ("_enabled", "_available", "_warn_only_enabled", "_window")


def get_ignored_functions():
    """Returns functions that cannot be overridden, because they have no tensors among their arguments."""
    import sys
    from .ops import table
    package = sys.modules[__package__]
    starts, ends = _OF_SETTINGS
    names = {
        "typename", "is_tensor", "is_storage", "manual_seed", "initial_seed", "seed", "save", "load", "no_grad", "enable_grad", "inference_mode",
        "from_dlpack", "from_numpy", "frombuffer", "from_file", "finfo", "iinfo", "promote_types", "result_type", "can_cast", "compile", "vmap", "cond",
        "range", "tensor", "as_tensor", "asarray", "broadcast_shapes", "device", "dtype", "layout", "memory_format", "vander", "rand_like", "randn_like",
        "randint_like", "sparse_coo_tensor", "sparse_csr_tensor", "sparse_csc_tensor"}
    names |= {name for name in vars(package) if (name.startswith(starts) or name.endswith(ends)) and name != "get_device"}
    names |= {entry["function"] for entry in table() if not any(one["kind"] == "Tensor" for one in entry["parameters"])}
    return {value for value in (vars(package).get(name) for name in names) if callable(value)}


def get_overridable_functions():
    """Returns the functions that can be overridden, by namespace."""
    import sys
    from .nn import functional
    package, ignored = sys.modules[__package__], get_ignored_functions()
    found = {}
    for namespace in (package, functional, package.linalg, package.fft, package.special):
        found[namespace] = [
            value for name, value in vars(namespace).items() if not name.startswith("_") and isinstance(
                value, types.FunctionType | types.BuiltinFunctionType) and not (value.__hash__ and value in ignored)]
    found[Tensor] = [value for name, value in vars(Tensor).items() if not name.startswith("_") and value in _methods()]
    return found


def get_testing_overrides():
    """Returns, for each function that can be overridden, a function that accepts any arguments and returns -1."""
    return {function: lambda *args, **kwargs: -1 for functions in get_overridable_functions().values() for function in functions}


class TorchFunctionMode:
    """A region in which `__torch_function__` receives each call of a function of this package, also of those that make tensors."""

    inner = None

    def __init__(self):
        pass

    def __torch_function__(self, func, types, args=(), kwargs=None):
        raise NotImplementedError("a mode needs a method __torch_function__")

    def __enter__(self):
        _torch_functions.opened()
        stack = _torch_functions.modes()
        stack.append(self)
        _core._set_function_modes(len(stack))
        return self

    def __exit__(self, exc_type, exc_val, exc_tb):
        stack = _torch_functions.modes()
        stack.pop()
        _core._set_function_modes(len(stack))
        _torch_functions.closed()

    @classmethod
    def push(cls, *args, **kwargs):
        """Returns a new mode."""
        return cls(*args, **kwargs)


class BaseTorchFunctionMode(TorchFunctionMode):
    """A mode that calls each function."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def _get_current_function_mode():
    """Returns the innermost mode of this thread, or None."""
    stack = _torch_functions.modes()
    return stack[-1] if stack else None


def _get_current_function_mode_stack():
    """Returns the modes of this thread, the innermost last."""
    return list(_torch_functions.modes())


@contextlib.contextmanager
def enable_reentrant_dispatch():
    """Returns a region that changes nothing: a mode already receives the calls that its own functions make."""
    yield


def _disable_user_warnings(func, **_):
    """Returns the function."""
    return func


