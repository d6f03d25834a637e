"""Helpers that programs use from PyTorch's internals (`torch._utils`); the rest is left out."""

from . import _core
from ._left_out import rest as _rest


def _flatten_dense_tensors(tensors):
    """Returns the elements of tensors of one dtype, concatenated."""
    return _core.cat([tensor.reshape(-1) for tensor in tensors])


def _unflatten_dense_tensors(flat, tensors):
    """Returns views of concatenated elements, in the shapes of tensors."""
    parts = flat.split([tensor.numel() for tensor in tensors]) if tensors else ()
    return tuple(part.view(tensor.shape) for part, tensor in zip(parts, tensors))


def _element_size(dtype):
    """Returns the bytes per element."""
    return dtype.itemsize




def _set_obj_state(obj, state):
    """Gives an object its attributes, from a dictionary or from that and one of slots."""
    parts = state if isinstance(state, tuple) else (state,)
    for part in parts:
        for name, value in (part or {}).items():
            setattr(obj, name, value)
    return obj


def _get_obj_state(obj):
    """Returns the attributes of an object."""
    return obj.__dict__


__getattr__ = _rest(__name__)
