"""Reductions and normalizations of the elements selected by a mask (`torch.masked`), for ordinary tensors.
There are no masked tensors.

Elements that the mask leaves out are replaced by the identity of the operation, a value that does not change the result.
"""

import math

from . import _core
from ._functions import iinfo
from ._left_out import attributes

__all__ = ["amax", "amin", "argmax", "argmin", "cumprod", "cumsum", "log_softmax", "logaddexp", "logsumexp", "mean", "median", "norm", "normalize",
           "prod", "softmax", "softmin", "std", "sum", "var"]

__getattr__ = attributes(__name__)

_REAL = {_core.complex64: _core.float32, _core.complex128: _core.float64}
_WIDENED = (_core.bool, _core.uint8, _core.int8, _core.int16, _core.int32)


def _extreme(dtype, sign):
    """Returns the greatest (`sign` 1) or the least (`sign` -1) value of a dtype, which may be infinite."""
    if dtype.is_floating_point:
        return sign * math.inf
    if dtype.is_complex or dtype is _core.bool:
        return None
    limits = iinfo(dtype)
    return limits.max if sign > 0 else limits.min


def _identity(name, dtype, order=2.0):
    """Returns the identity of an operation, or None if it has none."""
    if name in ("sum", "cumsum"):
        return 0
    if name in ("prod", "cumprod"):
        return 1
    if name == "norm":
        return math.inf if order == -math.inf else 0
    if name == "median":
        return math.nan
    if name == "logsumexp" and dtype.is_complex:
        return complex(-math.inf, 0)
    if name in ("mean", "var", "std"):
        return None
    value = _extreme(dtype, 1 if name in ("amin", "argmin") else -1)
    if value is None:
        raise NotImplementedError(f"identity of {name} on {dtype} input")
    return value


def _reduction_identity(op_name, input, *args):
    """Returns the identity of an operation as a tensor without dimensions, or None if it has none."""
    name = op_name.rpartition(".")[2]
    value = _identity(name, input.dtype, *args[:1])
    dtype = _core.float32 if name == "median" and not input.dtype.is_floating_point else input.dtype
    return None if value is None else _core.full([], value, dtype=dtype, device=input.device)


def _canonical_dim(dim, ndim):
    """Returns dimensions in ascending order, as non-negative numbers. None and () mean all dimensions."""
    if dim is None or dim == ():
        return tuple(range(ndim))
    ndim = max(ndim, 1)
    found = []
    for one in (dim,) if isinstance(dim, int) else dim:
        if not -ndim <= one < ndim:
            raise IndexError(f"Dimension out of range (expected to be in range of [{-ndim}, {ndim - 1}], but got {one})")
        if one % ndim in found:
            raise RuntimeError(f"dim={one} appears multiple times in the list of dims")
        found.append(one % ndim)
    return tuple(sorted(found))


def _input_mask(input, *args, mask=None, **kwargs):
    """Returns the mask as bools in the shape of the input."""
    if mask is None:
        raise ValueError("_input_mask requires explicit mask")
    if mask.ndim > input.ndim:
        raise IndexError("_input_mask expected broadcastable mask (got mask dimensionality higher than of the input)")
    return mask.to(_core.bool).expand(input.shape)


def _output_mask(op, input, *args, **kwargs):
    """Returns a mask of the results of an operation that have at least one element selected by the mask."""
    name = op.__name__
    mask = _input_mask(input, mask=kwargs.get("mask"))
    if name in ("softmax", "log_softmax", "softmin", "normalize", "cumsum", "cumprod"):
        return mask
    args = args[1:] if name == "norm" else args
    dims = _canonical_dim(args[0] if args else kwargs.get("dim"), input.ndim)
    return mask.any(dims, keepdim=bool(kwargs.get("keepdim"))) if input.ndim else mask


def _filled(name, input, mask, *args):
    """Returns the input with the elements that the mask leaves out replaced by the identity of an operation."""
    if mask is None:
        return input
    return _core.where(_input_mask(input, mask=mask), input, _reduction_identity(name, input, *args))


def sum(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """Returns the sums over dimensions. Integers are summed in int64."""
    dtype = dtype or (_core.int64 if input.dtype in _WIDENED else input.dtype)
    return _core.sum(_filled("sum", input, mask), _canonical_dim(dim, input.ndim), bool(keepdim), dtype=dtype)


def prod(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """Returns the products over dimensions. Integers are multiplied in int64."""
    dtype = dtype or (_core.int64 if input.dtype in _WIDENED else input.dtype)
    result = _filled("prod", input, mask)
    for one in reversed(_canonical_dim(dim, input.ndim)):
        result = result.prod(one, keepdim=bool(keepdim))
    return result.to(dtype)


def cumsum(input, dim, *, dtype=None, mask=None):
    """Returns the cumulative sums along a dimension."""
    return _core.cumsum(_filled("cumsum", input, mask), _canonical_dim(dim, input.ndim)[0], dtype=dtype or input.dtype)


def cumprod(input, dim, *, dtype=None, mask=None):
    """Returns the cumulative products along a dimension."""
    return _core.cumprod(_filled("cumprod", input, mask), _canonical_dim(dim, input.ndim)[0], dtype=dtype or input.dtype)


def amax(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """Returns the greatest elements over dimensions."""
    return _core.amax(_filled("amax", input, mask), _canonical_dim(dim, input.ndim), bool(keepdim)).to(dtype or input.dtype)


def amin(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """Returns the least elements over dimensions."""
    return _core.amin(_filled("amin", input, mask), _canonical_dim(dim, input.ndim), bool(keepdim)).to(dtype or input.dtype)


def argmax(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """Returns the indices of the greatest elements along a dimension. The default `dtype` is that of the input."""
    return _core.argmax(_filled("argmax", input, mask), dim, bool(keepdim)).to(dtype or input.dtype)


def argmin(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """Returns the indices of the least elements along a dimension. The default `dtype` is that of the input."""
    return _core.argmin(_filled("argmin", input, mask), dim, bool(keepdim)).to(dtype or input.dtype)


def _count(input, dim, keepdim, mask):
    """Returns how many elements each reduction covers."""
    if mask is None:
        mask = _core.ones(input.shape, dtype=_core.bool, device=input.device)
    return sum(_input_mask(input, mask=mask), dim, keepdim=keepdim)


def mean(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """Returns the means over dimensions. A mean without elements is NaN."""
    source = "Input" if dtype is None else "Optional"
    dtype = dtype or input.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        raise ValueError(f"mean(): Could not infer output dtype. {source} dtype must be either a floating point or complex dtype. Got: {dtype}")
    return sum(input, dim, keepdim=keepdim, dtype=dtype, mask=mask) / _count(input, dim, keepdim, mask)


def median(input, dim=-1, *, keepdim=False, dtype=None, mask=None):
    """Returns the medians along a dimension. A median without elements is NaN and requires a floating-point dtype."""
    is_float, dtype = input.dtype.is_floating_point, dtype or input.dtype
    filled = _filled("median", input if is_float else input.float(), mask)
    result = _core.nanmedian(filled, _canonical_dim(dim, input.ndim)[0], keepdim)[0]
    if is_float:
        return result
    if result.isnan().any():
        raise ValueError("masked median expects no fully masked out rows if dtype is not floating point")
    return result.to(dtype)


def logsumexp(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """Returns the logarithms of the sums of exponentials over dimensions."""
    filled = _filled("logsumexp", input, mask)
    return _core.logsumexp(filled, _canonical_dim(dim, input.ndim), bool(keepdim)).to(dtype or input.dtype)


def logaddexp(input, other, *, dtype=None, input_mask=None, other_mask=None):
    """Returns the logarithms of the sums of the exponentials of two tensors."""
    one, two = _filled("logaddexp", input, input_mask), _filled("logaddexp", other, other_mask)
    return _core.logaddexp(one, two).to(dtype or input.dtype)


def norm(input, ord=2.0, dim=None, *, keepdim=False, dtype=None, mask=None):
    """Returns the norms of vectors over dimensions."""
    filled, dtype = _filled("norm", input, mask, ord), dtype or input.dtype
    return _core.linalg_vector_norm(filled, ord, _canonical_dim(dim, input.ndim), bool(keepdim), dtype=_REAL.get(dtype, dtype))


def _variance(input, dim, unbiased, correction, keepdim, dtype, mask):
    if unbiased is not None and correction is not None:
        raise AssertionError("Only one of unbiased and correction may be given")
    if correction is None:
        correction = 1.0 if unbiased is None or unbiased else 0.0
    dtype = dtype or input.dtype
    if input.dtype.is_floating_point or input.dtype.is_complex:
        wide = dtype if dtype.is_floating_point or dtype.is_complex else _core.float32
    else:
        wide = _core.float32
        dtype = dtype if dtype.is_floating_point or dtype.is_complex else _core.float32
    count = _count(input, dim, True, mask)
    distance = input - sum(input, dim, keepdim=True, dtype=dtype, mask=mask) / count
    total = sum(distance * distance.conj(), dim, keepdim=keepdim, dtype=wide, mask=mask)
    count = count if keepdim else count.reshape(total.shape)
    if correction:
        count = (count.to(_REAL.get(wide, wide)) - correction).clamp_min(0)
    return (total / count).to(dtype)


def var(input, dim=None, unbiased=None, *, correction=None, keepdim=False, dtype=None, mask=None):
    """Returns the variances over dimensions. A variance without elements is NaN."""
    return _variance(input, dim, unbiased, correction, keepdim, dtype, mask)


def std(input, dim=None, unbiased=None, *, correction=None, keepdim=False, dtype=None, mask=None):
    """Returns the standard deviations over dimensions. A deviation without elements is NaN."""
    return _variance(input, dim, unbiased, correction, keepdim, dtype, mask).sqrt()


def softmax(input, dim, *, dtype=None, mask=None):
    """Returns exponentials divided by their sums along a dimension. The result without elements is NaN."""
    return _core.softmax(_filled("amax", input, mask), _canonical_dim(dim, input.ndim)[0], dtype=dtype or input.dtype)


def log_softmax(input, dim, *, dtype=None, mask=None):
    """Returns the logarithms of exponentials divided by their sums along a dimension."""
    return _core.log_softmax(_filled("amax", input, mask), _canonical_dim(dim, input.ndim)[0], dtype=dtype or input.dtype)


def softmin(input, dim, *, dtype=None, mask=None):
    """Returns exponentials of the negated elements divided by their sums along a dimension."""
    return _core.softmax(-_filled("amin", input, mask), _canonical_dim(dim, input.ndim)[0], dtype=dtype or input.dtype)


def normalize(input, ord, dim, *, eps=1e-12, dtype=None, mask=None):
    """Returns vectors along a dimension divided by their norms, or by `eps` if that is greater."""
    length = norm(input, ord, dim, keepdim=True, dtype=dtype, mask=mask)
    return _filled("sum", input, mask) / _core.maximum(length, length.new_full([], eps))
