"""TorchScript (`torch.jit`): scripted functions run eagerly and are unchanged; traced ones are graphs (`torch.export`)."""

import contextlib
import functools
import typing
import warnings

from ._left_out import rest
from .futures import Future
from .nn.module import Module
from .nn.parameter import is_lazy

T = typing.TypeVar("T")
Final = typing.Final
_is_warned = False


class TracerWarning(Warning):
    """The category of PyTorch's warnings about traces. Filters name it; nothing here warns so."""


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
    if _is_module(obj) and not hasattr(obj, "save"):
        obj.save = functools.partial(save, obj)
    return obj


def trace(func=None, example_inputs=None, *, strict=True, check_trace=True, example_kwarg_inputs=None, **options):
    """Returns a module that computes the graph of one call: the branches that this call takes, for arguments of all
    sizes. It shares the parameters and buffers of the traced module."""
    from ._jit_traces import traced
    if func is None:
        return lambda function: trace(function, example_inputs, example_kwarg_inputs=example_kwarg_inputs)
    return traced(func, example_inputs, example_kwarg_inputs)


def trace_module(mod, inputs, **options):
    """Returns the graph of a module's `forward`: see `trace`."""
    if set(inputs) != {"forward"}:
        raise NotImplementedError(f"trace_module of {sorted(set(inputs) - {'forward'})} is left out: trace `forward`")
    return trace(mod, inputs["forward"])


def save(m, f, _extra_files=None):
    """Writes a module to a path or a binary file: a traced one as its graph, any other as `torch.save` does."""
    from ._jit_traces import save as write
    write(m, f, _extra_files)


def load(f, map_location=None, _extra_files=None, _restore_shapes=False):
    """Reads a module that `save` has written. One that was not traced is loaded with the classes of the program."""
    from ._jit_traces import load as read
    return read(f, map_location, _extra_files)


def freeze(mod, preserved_attrs=None, optimize_numerics=True):
    """Returns the module, which must be in evaluation mode."""
    if mod.training:
        raise RuntimeError("Freezing is currently only implemented for modules in eval mode. Please call .eval() on your module before freezing.")
    return mod


def optimize_for_inference(mod, other_methods=None):
    """Returns the module."""
    return mod.eval()


def script_if_tracing(fn):
    """Returns the function unchanged."""
    return fn


def ignore(drop=False, **kwargs):
    """Returns the function unchanged, or a decorator that does so."""
    return drop if callable(drop) else lambda function: function


def _unchanged(fn):
    """Returns the function unchanged."""
    return fn


unused = export = interface = _script_if_tracing = _overload = _overload_method = _unchanged


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


_rest = rest(__name__)


def enable_onednn_fusion(enabled):
    """Does nothing: compiled functions are fused without another library."""


def onednn_fusion_enabled():
    """Returns False."""
    return False


def fork(func, *args, **kwargs):
    """Calls a function immediately, and returns its result as a future. In a script, another thread would call it."""
    made = Future()
    made.set_result(func(*args, **kwargs))
    return made


def wait(future):
    """Returns the result of a future."""
    return future.wait()


def __getattr__(name):
    if name == "TopLevelTracedModule":
        from ._jit_traces import TopLevelTracedModule
        return TopLevelTracedModule
    return _rest(name)


# Submodules, such as `torch.jit.annotations`, can be imported as if they existed.
__path__ = []
