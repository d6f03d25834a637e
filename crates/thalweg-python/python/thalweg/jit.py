"""Decorators of TorchScript (`torch.jit`): programs run eagerly, so functions and modules are unchanged."""

import contextlib
import typing
import warnings

from ._left_out import rest
from .nn.module import Module
from .nn.parameter import is_lazy

T = typing.TypeVar("T")
Final = typing.Final
_is_warned = False


def _warn(name):
    global _is_warned
    if not _is_warned:
        _is_warned = True
        warnings.warn(f"jit.{name} compiles nothing: what it is given runs eagerly", stacklevel=3)


def _is_module(obj):
    return Module in type(obj).__mro__


def script(obj=None, optimize=None, _frames_up=0, _rcb=None, example_inputs=None):
    """Returns the function, class or module unchanged, with a warning on the first call."""
    if obj is None:
        return script
    for name, module in obj.named_modules() if _is_module(obj) else ():
        if any(is_lazy(tensor) for members in (module._parameters, module._buffers) for tensor in members.values()):
            raise RuntimeError(f"'{name}' of {type(obj).__name__} has uninitialized parameters. Did you forget to run a forward pass?")
    _warn("script")
    return obj


def trace(func=None, example_inputs=None, **options):
    """Returns the function or module unchanged, with a warning on the first call."""
    if func is None:
        return lambda function: trace(function)
    _warn("trace")
    return func


def script_if_tracing(fn):
    """Returns the function unchanged."""
    return fn


def ignore(drop=False, **kwargs):
    """Returns the function unchanged, or a decorator that does so."""
    return drop if callable(drop) else lambda function: function


def _kept(fn):
    """Returns the function unchanged."""
    return fn


unused = export = interface = _script_if_tracing = _overload = _overload_method = _kept


def annotate(the_type, the_value):
    """Returns the value."""
    return the_value


def isinstance(obj, target_type):
    """Returns whether an object is of a type."""
    import builtins
    return builtins.isinstance(obj, typing.get_origin(target_type) or target_type)


class Attribute(typing.NamedTuple):
    """A value with its type."""

    value: typing.Any
    type: typing.Any


class Error(RuntimeError):
    """The exception of scripted programs."""


class ScriptModule(Module):
    """A module that is not compiled."""


class _IsNever(type):
    def __instancecheck__(cls, instance):
        return False


class RecursiveScriptModule(metaclass=_IsNever):
    """The class of compiled modules, which has no instances."""


class ScriptFunction(metaclass=_IsNever):
    """The class of compiled functions, which has no instances."""


class TopLevelTracedModule(metaclass=_IsNever):
    """The class of traced modules, which has no instances."""


def script_method(fn):
    """Returns the method unchanged."""
    return fn


def is_scripting():
    """Returns False."""
    return False


is_tracing = is_scripting


@contextlib.contextmanager
def optimized_execution(should_optimize):
    """Returns a region that changes nothing."""
    yield


@contextlib.contextmanager
def fuser(name):
    """Returns a region that changes nothing."""
    yield


def set_fusion_strategy(strategy):
    """Returns the strategy: nothing is fused."""
    return strategy


class strict_fusion(contextlib.ContextDecorator):
    """A region that changes nothing."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


# Submodules, such as `torch.jit.annotations`, can be imported as if they existed.
__path__ = []

__getattr__ = rest(__name__)
