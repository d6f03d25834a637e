"""Functions of the standard that rearrange elements."""

import math

from .. import _core
from .._core import Tensor
from ._dtypes import COMPLEX, result_type
from ._object import array


def axes_of(axis, ndim):
    """Returns the dimensions that an `axis` argument names, as non-negative numbers."""
    axes = range(ndim) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    for one in axes:
        if not -ndim <= one < ndim:
            raise IndexError(f"axis {one} is out of range for an array of {ndim} dimensions")
    return [one % ndim for one in axes]


def astype(x, dtype, /, *, copy=True, device=None):
    """Returns the array in another dtype, or the array itself if it has that dtype and `copy` is false."""
    if x.dtype in COMPLEX and dtype not in COMPLEX and dtype != getattr(_core, "bool"):
        raise TypeError(f"astype: {x.dtype} is not converted to {dtype}; say real(x) or imag(x)")
    made = x.to(dtype) if device is None else x.to(device=device, dtype=dtype)
    return array(_core.clone(made) if made is x and copy else made)


def broadcast_arrays(*arrays):
    """Returns arrays broadcast against each other."""
    return list(array(_core.broadcast_tensors(list(arrays)))) if arrays else []


def broadcast_to(x, /, shape):
    """Returns an array broadcast to a shape."""
    return array(_core.broadcast_to(x, list(shape)))


def _promoted(arrays):
    dtype = result_type(*arrays)
    return [one.to(dtype) for one in arrays]


def concat(arrays, /, *, axis=0):
    """Returns arrays joined along a dimension, or all their elements."""
    arrays = _promoted(list(arrays))
    if axis is None:
        arrays, axis = [one.reshape([-1]) for one in arrays], 0
    return array(_core.cat(arrays, axis))


def stack(arrays, /, *, axis=0):
    """Returns arrays joined along a new dimension."""
    return array(_core.stack(_promoted(list(arrays)), axis))


def unstack(x, /, *, axis=0):
    """Returns the parts of an array along a dimension."""
    return array(_core.unbind(x, axis))


def expand_dims(x, /, axis):
    """Returns the array with a new dimension of extent 1."""
    if not -x.ndim - 1 <= axis <= x.ndim:
        raise IndexError(f"axis {axis} is out of range for a new dimension of an array of {x.ndim} dimensions")
    return array(_core.unsqueeze(x, axis))


def squeeze(x, /, axis):
    """Returns the array without dimensions of extent 1."""
    axes = axes_of(axis, x.ndim)
    for one in axes:
        if x.shape[one] != 1:
            raise ValueError(f"squeeze: dimension {one} has extent {x.shape[one]}, not 1")
    return array(_core.reshape(x, [extent for place, extent in enumerate(x.shape) if place not in axes]))


def flip(x, /, *, axis=None):
    """Returns the array with the elements along dimensions in reverse order."""
    return array(_core.flip(x, axes_of(axis, x.ndim)))


def moveaxis(x, source, destination, /):
    """Returns the array with dimensions moved to other positions."""
    source, destination = axes_of(source, x.ndim), axes_of(destination, x.ndim)
    order = [place for place in range(x.ndim) if place not in source]
    for to, place in sorted(zip(destination, source)):
        order.insert(to, place)
    return array(_core.permute(x, order))


def permute_dims(x, /, axes):
    """Returns the array with its dimensions in another order."""
    return array(_core.permute(x, list(axes)))


def reshape(x, /, shape, *, copy=None):
    """Returns the elements in another shape."""
    shape = list(shape)
    if copy is False:
        return array(_core.Tensor.view(x, shape))
    made = _core.reshape(x, shape)
    return array(_core.clone(made) if copy else made)


def roll(x, /, shift, *, axis=None):
    """Returns the array with elements shifted along dimensions. Elements that leave at one end enter at the other."""
    if axis is None:
        return array(_core.reshape(_core.roll(_core.reshape(x, [-1]), [shift], [0]), list(x.shape)))
    axes = [axis] if isinstance(axis, int) else list(axis)
    shifts = [shift] * len(axes) if isinstance(shift, int) else list(shift)
    return array(_core.roll(x, shifts, axes))


def repeat(x, repeats, /, *, axis=None):
    """Returns each element repeated the given number of times."""
    if axis is None:
        x, axis = _core.reshape(x, [-1]), 0
    if isinstance(repeats, Tensor):
        repeats = repeats.to(_core.int64)
        if repeats.ndim == 0 or repeats.shape[0] == 1 != x.shape[axis]:
            repeats = int(repeats)
    return array(_core.repeat_interleave(x, repeats, axis))


def tile(x, repetitions, /):
    """Returns the array repeated the given number of times along each dimension."""
    return array(_core.tile(x, list(repetitions)))


def count_of(x, axes):
    """Returns the number of elements in the given dimensions."""
    return math.prod(x.shape[one] for one in axes)
