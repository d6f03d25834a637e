"""Layouts and switches of `torch` that are only names here: programs compare with them, and they have no effect."""

import enum
import sys

from . import _core
from ._torch_functions import DisableTorchFunction, DisableTorchFunctionSubclass
from .compiler import disable as _disable_dynamo

__all__ = [
    "AcceleratorError", "Tag", "legacy_contiguous_format", "set_anomaly_enabled",
    "chalf", "compiled_with_cxx11_abi", "get_device_module", "is_vulkan_available", "is_warn_always_enabled", "jagged", "layout",
    "set_warn_always", "set_vital", "vitals_enabled", "read_vitals",
    "sparse_bsc", "sparse_bsr", "sparse_coo", "sparse_csc", "sparse_csr", "_assert", "_assert_async", "_int_mm", "_has_compatible_shallow_copy_type",
    "_disable_dynamo", "clear_autocast_cache", "get_autocast_cpu_dtype", "get_autocast_gpu_dtype", "has_lapack", "has_mkl", "has_openmp", "has_spectral",
    "is_autocast_cpu_enabled", "set_autocast_cache_enabled", "sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sqrt", "sym_sum",
    "to_dlpack", "DisableTorchFunction", "DisableTorchFunctionSubclass",
]


class AcceleratorError(RuntimeError):
    """An error of a device, for programs that catch it. Errors of commands are raised as `RuntimeError`."""


Tag = enum.Enum("Tag", (
    "core", "cudagraph_unsafe", "data_dependent_output", "dynamic_output_shape", "flexible_layout", "generated", "inplace_view",
    "maybe_aliasing_or_mutating", "needs_contiguous_strides", "needs_exact_strides", "needs_fixed_stride_order", "nondeterministic_bitwise",
    "nondeterministic_seeded", "out_variant", "pointwise", "pt2_compliant_tag", "reduction", "view_copy"))
Tag.__doc__ = "The properties that a definition of an operator may name (`library.define(tags=...)`). They are kept with it."
legacy_contiguous_format = _core.contiguous_format


def set_anomaly_enabled(mode, check_nan=True):
    """Sets whether backward passes look for NaN and show where the call was made."""
    from .autograd import set_detect_anomaly
    set_detect_anomaly(mode, check_nan)


class _Named:
    """An object that is identified by its name, and keeps its identity when it is pickled."""

    __slots__ = ("_name",)

    def __init__(self, name):
        self._name = name

    def __repr__(self):
        return f"torch.{self._name}"

    def __reduce__(self):
        return self._name


class _IsLayout(type):
    def __instancecheck__(cls, instance):
        return instance is _core.strided or type(instance) is cls


class layout(_Named, metaclass=_IsLayout):
    """A layout of tensors in memory; all tensors are `strided`."""

    __slots__ = ()


chalf = _core.complex32
for _name in ("sparse_bsc", "sparse_bsr", "sparse_coo", "sparse_csc", "sparse_csr", "jagged"):
    globals()[_name] = layout(_name)

_warns_always = False


def set_vital(vital, attr, value):
    """Returns False: no facts about a program are collected."""
    return False


def vitals_enabled():
    """Returns False: no facts about a program are collected."""
    return False


def read_vitals():
    """Returns the facts about a program that were collected: none."""
    return ""


def set_warn_always(b, /):
    """Sets whether warnings that are shown once are shown always. The setting is stored and has no effect."""
    global _warns_always
    if not isinstance(b, bool):
        raise TypeError(f"setWarnOnlyOnce expects a bool, but got {type(b).__name__}")
    _warns_always = b


def is_warn_always_enabled():
    """Returns the value that `set_warn_always` has set."""
    return _warns_always


def get_device_module(device=None):
    """Returns the module of a kind of device: `torch.cuda` for a GPU, `torch.cpu` for the host."""
    kind = _core.device(device).type if device is not None else _core.get_default_device().type
    name = {"sim": "cuda"}.get(kind, kind)
    module = sys.modules.get(f"{__package__}.{name}")
    if module is None:
        raise RuntimeError(f"Device '{device}' does not have a corresponding module registered as 'torch.{device}'.")
    return module


def _has_compatible_shallow_copy_type(input, from_):
    """Returns whether a tensor can take the memory of another one (`x.data = y`)."""
    return type(input).__torch_function__ is type(from_).__torch_function__ and input.is_sparse == from_.is_sparse


def _int_mm(self, mat2, *, out=None):
    """Returns the product of two matrices of 8-bit integers, in 32 bits."""
    if self.dtype is not _core.int8 or mat2.dtype is not _core.int8 or self.dim() != 2 or mat2.dim() != 2:
        raise RuntimeError(f"_int_mm takes matrices of int8, not {self.dtype} of the shape {tuple(self.shape)} and {mat2.dtype} of {tuple(mat2.shape)}")
    result = self.to(_core.int32) @ mat2.to(_core.int32)
    return result if out is None else out.copy_(result)


def _assert_async(input, assert_msg=None):
    """Raises a `RuntimeError` if a number is 0. The host waits for it, except in a capture, where nothing is checked."""
    if not _core._cuda.is_current_stream_capturing() and not input.item():
        raise RuntimeError(assert_msg or "Expected Tensor with single nonzero value, but got zero")


def _assert(condition, message):
    """Raises an `AssertionError` with a message unless a condition holds."""
    if not isinstance(condition, bool) and _core._is_overridden((condition,), {}):
        from ._torch_functions import take
        return take(_assert, _core._overriding((condition,), {}), (condition, message), {})
    if not condition:
        raise AssertionError(message)


def sym_not(a):
    """Returns whether a value is false."""
    return not a


def sym_ite(b, t, f):
    """Returns one of two values."""
    return t if b else f


def sym_sqrt(a):
    """Returns the root of a number."""
    return a ** 0.5


# Extents of shapes are numbers.
sym_int, sym_float, sym_max, sym_min, sym_sum = int, float, max, min, sum
has_lapack, has_spectral, has_openmp, has_mkl = True, True, False, False


def get_autocast_gpu_dtype():
    """Returns the dtype of regions of autocast on a GPU."""
    from .amp import get_autocast_dtype
    return get_autocast_dtype("cuda")


def get_autocast_cpu_dtype():
    """Returns the dtype of regions of autocast on the CPU."""
    from .amp import get_autocast_dtype
    return get_autocast_dtype("cpu")


def is_autocast_cpu_enabled():
    """Returns whether this thread is in a region of autocast on the CPU."""
    from . import is_autocast_enabled
    return is_autocast_enabled("cpu")


def clear_autocast_cache():
    """Does nothing: each tensor keeps its own conversions."""


def set_autocast_cache_enabled(enabled):
    """Does nothing: each tensor keeps its own conversions."""


def to_dlpack(tensor):
    """Returns a tensor for exchange with other libraries."""
    return tensor.__dlpack__()


def is_vulkan_available():
    """Returns False."""
    return False


def compiled_with_cxx11_abi():
    """Returns True."""
    return True
