"""Helpers that programs use from PyTorch's internals (`torch._prims_common`); the rest is left out."""

from . import _core
from ._left_out import rest as _rest


def dtype_to_type(dtype):
    """Returns the Python number type that values of a dtype are read as."""
    if dtype is _core.bool:
        return bool
    if dtype.is_complex:
        return complex
    return float if dtype.is_floating_point else int


def type_to_dtype(typ):
    """Returns the dtype that values of a Python number type have in tensors."""
    kinds = {bool: _core.bool, int: _core.int64, float: _core.get_default_dtype()}
    if typ is complex:
        return _core.complex128 if kinds[float] is _core.float64 else _core.complex64
    if typ not in kinds:
        raise ValueError(f"Invalid type {typ}!")
    return kinds[typ]


__getattr__ = _rest(__name__)
