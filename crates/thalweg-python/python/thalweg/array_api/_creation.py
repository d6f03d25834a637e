"""Functions of the standard that create arrays."""

import math

from .. import _core, _dlpack
from .._core import Tensor
from ._dtypes import BOOL, COMPLEX, complex64, float32, int64
from ._object import array


def _shape(shape):
    return [shape] if isinstance(shape, int) else list(shape)


def _default(value):
    """Returns the default dtype of a number."""
    if isinstance(value, bool):
        return BOOL
    return int64 if isinstance(value, int) else float32 if isinstance(value, float) else complex64


def asarray(obj, /, *, dtype=None, device=None, copy=None):
    """Returns an object as an array. One that fits shares its memory, unless `copy` is true."""
    if isinstance(obj, Tensor):
        made = obj.to(device=device, dtype=dtype) if device is not None or dtype is not None else obj
        if copy and made is obj:
            made = _core.clone(made)
        elif copy is False and made is not obj and (made.dtype != obj.dtype or made.device != obj.device):
            raise ValueError(f"asarray(copy=False): an array of {obj.dtype} on {obj.device} has to be copied")
        return array(made)
    if copy is False:
        raise ValueError(f"asarray(copy=False): the elements of a {type(obj).__name__} have to be copied to a device")
    return array(_core.tensor(_numbers(obj), dtype=dtype, device=device))


def _numbers(obj):
    """Returns nested lists in which arrays are replaced by nested lists of numbers."""
    if isinstance(obj, Tensor):
        return obj.tolist()
    return [_numbers(part) for part in obj] if isinstance(obj, (list, tuple)) else obj


def arange(start, /, stop=None, step=1, *, dtype=None, device=None):
    """Returns evenly spaced numbers of a half-open interval."""
    if stop is None:
        start, stop = 0, start
    if dtype is None:
        dtype = int64 if all(isinstance(one, int) for one in (start, stop, step)) else float32
    if step == 0:
        raise ValueError("arange: step must not be 0")
    count = max(0, math.ceil((stop - start) / step))
    if count == 0:
        return empty((0,), dtype=dtype, device=device)
    made = _core.arange(start, stop, step, dtype=dtype, device=device)
    if made.shape[0] != count:
        made = _core.arange(count, dtype=int64, device=device).to(dtype) * step + start
    return array(made)


def _filled(name):
    def function(shape, *, dtype=None, device=None):
        return array(getattr(_core, name)(_shape(shape), dtype=float32 if dtype is None else dtype, device=device))

    def like(x, /, *, dtype=None, device=None):
        return function(tuple(x.shape), dtype=x.dtype if dtype is None else dtype, device=x.device if device is None else device)
    function.__name__ = function.__qualname__ = name
    like.__name__ = like.__qualname__ = f"{name}_like"
    function.__doc__ = f"Returns an array of a shape: {name}."
    like.__doc__ = f"Returns an array of another's shape: {name}."
    return function, like


empty, empty_like = _filled("empty")
zeros, zeros_like = _filled("zeros")
ones, ones_like = _filled("ones")


def full(shape, fill_value, *, dtype=None, device=None):
    """Returns an array of a shape, filled with one value."""
    dtype = _default(fill_value) if dtype is None else dtype
    return array(_core.full(_shape(shape), fill_value, dtype=dtype, device=device))


def full_like(x, /, fill_value, *, dtype=None, device=None):
    """Returns an array with the shape of another, filled with one value."""
    return full(tuple(x.shape), fill_value, dtype=x.dtype if dtype is None else dtype, device=x.device if device is None else device)


def eye(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None):
    """Returns a matrix with ones on a diagonal."""
    n_cols = n_rows if n_cols is None else n_cols
    # The offset of a diagonal outside of the matrix may be any Python integer.
    k = max(-n_rows, min(n_cols, k))
    rows = _core.arange(n_rows, device=device).unsqueeze(1)
    columns = _core.arange(n_cols, device=device).unsqueeze(0)
    return array(_core.eq(rows + k, columns).to(float32 if dtype is None else dtype))


def linspace(start, stop, /, num, *, dtype=None, device=None, endpoint=True):
    """Returns `num` evenly spaced numbers of an interval."""
    if dtype is None:
        dtype = complex64 if isinstance(start, complex) or isinstance(stop, complex) else float32
    if not endpoint:
        return array(_core.linspace(start, stop, num + 1, dtype=dtype, device=device)[:num])
    if dtype in COMPLEX:
        parts = [_core.linspace(complex(start).real, complex(stop).real, num, device=device),
                 _core.linspace(complex(start).imag, complex(stop).imag, num, device=device)]
        return array(_core.complex(*parts).to(dtype))
    return array(_core.linspace(start, stop, num, dtype=dtype, device=device))


def meshgrid(*arrays, indexing="xy"):
    """Returns the coordinates of a grid."""
    return list(array(_core.meshgrid(list(arrays), indexing=indexing))) if arrays else []


def tril(x, /, *, k=0):
    """Returns the lower triangle of matrices, zeros elsewhere."""
    return array(_core.tril(x, k))


def triu(x, /, *, k=0):
    """Returns the upper triangle of matrices, zeros elsewhere."""
    return array(_core.triu(x, k))


def from_dlpack(x, /, *, device=None, copy=None):
    """Returns a copy of another library's array."""
    if isinstance(x, Tensor):
        return asarray(x, device=device, copy=copy)
    return array(_dlpack.from_dlpack(x, device=device, copy=copy))
