"""Names from PyTorch's internals by which libraries query whether a call is made inside of a recorded graph, a map or a
mode. Nothing here records or replaces operators, so that most answers are constants. Also marks and settings without
effect, which programs call at their start."""

import contextlib
import types

from . import _core, _transform_levels
from .__config__ import show


def _none(*args, **kwargs):
    """Returns None."""


def _false(*args, **kwargs):
    """Returns False."""
    return False


def _true(*args, **kwargs):
    """Returns True."""
    return True


def _same(value, *args, **kwargs):
    """Returns the value."""
    return value


def _unchanged(function=None, *args, **kwargs):
    """Returns the function unchanged, or a decorator that does so."""
    return function if function is not None else lambda given: given


def _as_bool(condition, *args, **kwargs):
    """Returns a condition as a Python value: extents are numbers."""
    return bool(condition)


def _no_symbols(value):
    """Returns the symbols in an extent: there are none."""
    return set()


def _all_of(*conditions):
    return all(conditions)


def _any_of(*conditions):
    return any(conditions)


def _equal(first, second):
    """Returns whether two extents, or two shapes, are equal."""
    return first == second


def _bounded(value, *, min=None, max=None):
    """Raises if an extent is outside of its bounds."""
    if (min is not None and value < min) or (max is not None and value > max):
        raise ValueError(f"Invalid value {value} for range [{min}:{max}]")


class _NoContext:
    """The context of a recording, which is never there."""

    try_get = staticmethod(_none)

    @staticmethod
    def get():
        """Raises: there is no recording."""
        raise AssertionError("get() can only be called within a context, and there is none")


def _is_mapped(tensor):
    """Returns whether a tensor is one slice inside of a map."""
    return isinstance(tensor, _core.Tensor) and type(tensor).__name__ == "Batched"


def _level(*tensor):
    """Returns the number of transforms around a call, or −1 for a tensor that no map has made."""
    if tensor:
        return tensor[0]._level if _is_mapped(tensor[0]) else -1
    count = len(_transform_levels.local.maps or ()) + len(_transform_levels.local.derivatives or ())
    return count or None


def _inner(tensor):
    """Returns the tensor of all slices inside of a map, or the tensor itself."""
    return tensor._value if _is_mapped(tensor) else tensor


def _modes():
    """Returns the number of modes that see operators on this thread."""
    from .utils import _python_dispatch
    return len(getattr(_python_dispatch, "_get_current_dispatch_mode_stack", list)())


def _function_modes():
    """Returns the number of modes that see functions on this thread."""
    from . import overrides
    return len(overrides._get_current_function_mode_stack())


def _stream_number(index=None):
    """Returns the number of a device's current stream."""
    from . import cuda
    return cuda.current_stream(index).cuda_stream


def _recorded(step):
    """Returns what a profiler without a schedule does in a step: it records it."""
    from .profiler import ProfilerAction
    return ProfilerAction.RECORD


class _VariableFunctions:
    """The operators by their names, without the classes and dtypes that the extension module has beside them."""

    def __dir__(self):
        return [name for name, value in vars(_core).items() if isinstance(value, types.BuiltinFunctionType) and not name.startswith("_") and name != "copy"]

    def __getattr__(self, name):
        return getattr(_core, name)


_SHAPES = {
    **dict.fromkeys(("guard_size_oblivious", "guard_or_false", "guard_or_true", "statically_known_true", "statically_known_false", "definitely_true",
                     "expect_true", "guard_bool", "guarding_hint_or_throw"), _as_bool),
    **dict.fromkeys(("is_symbolic", "is_nested_int", "has_free_symbols", "has_free_unbacked_symbols", "has_symbolic_sizes_strides", "is_symbol_binding_fx_node"), _false),
    **dict.fromkeys(("is_concrete_int", "is_concrete_bool", "is_concrete_float", "has_hint", "has_guarding_hint"), _true),
    **dict.fromkeys(("free_symbols", "free_unbacked_symbols"), _no_symbols), **dict.fromkeys(("hint_int", "guard_int", "guard_float", "guard_scalar"), _same),
    "sym_eq": _equal, "sym_and": _all_of, "sym_or": _any_of, "constrain_range": _bounded, "_constrain_range_for_size": _bounded}
# The names of each module under `thalweg`.
NAMES = {
    "fx.experimental.symbolic_shapes": _SHAPES,
    "fx.experimental.proxy_tensor": {
        "get_proxy_mode": _none, "is_sym_node": _false, "py_sym_types": (), **dict.fromkeys((
            "maybe_disable_fake_tensor_mode", "disable_proxy_modes_tracing", "maybe_enable_thunkify", "maybe_disable_thunkify",
            "disable_autocast_cache"), contextlib.nullcontext)},
    "_guards": {"detect_fake_mode": _none, "active_fake_mode": _none, "TracingContext": _NoContext, "CompileContext": _NoContext},
    "_subclasses.fake_tensor": {"is_fake": _false, "unset_fake_temporarily": contextlib.nullcontext},
    "_dynamo.external_utils": {"is_compiling": _false}, "_dynamo": {"is_dynamo_supported": _true},
    "_dynamo.utils": {"disable_cache_limit": contextlib.nullcontext, "is_compile_supported": _true}, "onnx.utils": {"is_in_onnx_export": _false},
    "_utils": {"is_compiling": _false}, "utils.data._utils.signal_handling": dict.fromkeys((
        "_set_worker_signal_handlers", "_set_worker_pids", "_remove_worker_pids", "_set_SIGCHLD_handler", "_error_if_any_worker_fails"), _none),
    "jit._builtins": {"_builtin_table": {}}, "_jit_internal": {"boolean_dispatched": {}},
    "profiler.profiler": {"_default_schedule_fn": _recorded},
    "_C._functorch": {
        "peek_interpreter_stack": _none, "is_functorch_wrapped_tensor": _is_mapped, "is_gradtrackingtensor": _false, "is_functionaltensor": _false,
        "maybe_get_level": _level, "maybe_current_level": _level, "get_value": _inner, "get_unwrapped": _inner,
        "maybe_get_bdim": lambda tensor: 0 if _is_mapped(tensor) else -1},
    "_C": {
        "_is_functional_tensor": _false, "_len_torch_dispatch_stack": _modes, "_len_torch_function_stack": _function_modes,
        "_is_torch_function_mode_enabled": lambda: _function_modes() > 0, "_is_autocast_available": _true, "_get_cudnn_benchmark": _false,
        "_get_default_device": lambda: _core.get_default_device().type, "_cuda_getCurrentRawStream": _stream_number,
        "_accelerator_getAccelerator": _core.get_default_device, "_has_cuda": False, "_DisableTorchDispatch": contextlib.nullcontext,
        "_AutoDispatchBelowAutograd": contextlib.nullcontext, "Generator": _core.Generator, "_VariableFunctions": _VariableFunctions(), "_show_config": show,
        **dict.fromkeys(("_set_print_stack_traces_on_fatal_signal", "_jit_override_can_fuse_on_cpu", "_jit_override_can_fuse_on_gpu",
                         "_jit_set_texpr_fuser_enabled", "_jit_set_nvfuser_enabled", "_jit_set_bailout_depth", "_jit_set_fusion_strategy"), _none)},
    "distributed.elastic.multiprocessing.errors": {"record": _unchanged},
}
