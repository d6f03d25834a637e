"""Functions of the standard that reduce dimensions."""

from .. import _core
from ._dtypes import BOOL, INTEGERS, int64
from ._manipulation import axes_of, count_of
from ._object import array


def _upcast(x, dtype):
    """Returns the array in the dtype of its sums."""
    if dtype is None:
        dtype = int64 if x.dtype in INTEGERS or x.dtype == BOOL else x.dtype
    return x.to(dtype)


def sum(x, /, *, axis=None, dtype=None, keepdims=False):
    """Returns sums over dimensions."""
    x, axes = _upcast(x, dtype), axes_of(axis, x.ndim)
    return array(_core.sum(x, axes, keepdims).to(x.dtype) if axes else _core.clone(x))


def _one_by_one(x, axes, keepdims, operator):
    """Reduces dimensions, one after the other."""
    for one in sorted(axes, reverse=True):
        x = operator(x, one, keepdims)
    return array(x)


def prod(x, /, *, axis=None, dtype=None, keepdims=False):
    """Returns products over dimensions."""
    axes = axes_of(axis, x.ndim)
    x = _upcast(x, dtype)
    if not axes:
        return array(_core.clone(x))
    return _one_by_one(x, axes, keepdims, lambda x, axis, keeps: _core.prod(x, axis, keeps).to(x.dtype))


def _extreme(name, full):
    operator = getattr(_core, full)

    def function(x, /, *, axis=None, keepdims=False):
        axes = axes_of(axis, x.ndim)
        if axes and count_of(x, axes) == 0:
            raise ValueError(f"{name}: there is none of no elements")
        return array(operator(x, axes, keepdims) if axes else _core.clone(x))
    function.__name__ = function.__qualname__ = name
    function.__doc__ = operator.__doc__
    return function


max, min = _extreme("max", "amax"), _extreme("min", "amin")


def mean(x, /, *, axis=None, keepdims=False):
    """Returns means over dimensions."""
    axes = axes_of(axis, x.ndim)
    return array(_core.mean(x, axes, keepdims) if axes else _core.clone(x))


def var(x, /, *, axis=None, correction=0.0, keepdims=False):
    """Returns variances over dimensions."""
    axes = axes_of(axis, x.ndim)
    return array(_core.var(x, axes, correction=correction, keepdim=keepdims) if axes else _core.sub(x, x))


def std(x, /, *, axis=None, correction=0.0, keepdims=False):
    """Returns standard deviations over dimensions."""
    return array(_core.sqrt(var(x, axis=axis, correction=correction, keepdims=keepdims)))


def all(x, /, *, axis=None, keepdims=False):
    """Returns whether all elements along dimensions are true."""
    axes = axes_of(axis, x.ndim)
    return _one_by_one(x.to(BOOL), axes, keepdims, _core.all)


def any(x, /, *, axis=None, keepdims=False):
    """Returns whether any element along dimensions is true."""
    axes = axes_of(axis, x.ndim)
    return _one_by_one(x.to(BOOL), axes, keepdims, _core.any)


def _cumulative(name, full, first):
    operator = getattr(_core, full)

    def function(x, /, *, axis=None, dtype=None, include_initial=False):
        if axis is None:
            if x.ndim != 1:
                raise ValueError(f"{name}: axis has to be given for an array of {x.ndim} dimensions")
            axis = 0
        axis = axes_of(axis, x.ndim)[0]
        x = _upcast(x, dtype)
        found = operator(x, axis).to(x.dtype)
        if include_initial:
            shape = [*x.shape[:axis], 1, *x.shape[axis + 1:]]
            found = _core.cat([_core.full(shape, first, dtype=found.dtype, device=found.device), found], axis)
        return array(found)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = operator.__doc__
    return function


cumulative_sum, cumulative_prod = _cumulative("cumulative_sum", "cumsum", 0), _cumulative("cumulative_prod", "cumprod", 1)


def diff(x, /, *, axis=-1, n=1, prepend=None, append=None):
    """Returns differences of neighbours along a dimension, `n` times."""
    axis = axes_of(axis, x.ndim)[0]
    parts = [part for part in (prepend, x, append) if part is not None]
    if len(parts) > 1:
        x = _core.cat([part.to(x.dtype) for part in parts], axis)
    for _ in range(n):
        extent = x.shape[axis]
        if extent == 0:
            break
        after, before = _core.narrow(x, axis, 1, extent - 1), _core.narrow(x, axis, 0, extent - 1)
        x = _core.bitwise_xor(after, before) if x.dtype == BOOL else _core.sub(after, before)
    return array(x)
