"""The extension `linalg` of the standard, and its products of the main namespace."""

from collections import namedtuple

from .. import _core, _functions
from ._dtypes import BOOL, COMPLEX, FLOATS, INTEGERS, int64
from ._manipulation import axes_of
from ._object import array, pair
from ._statistics import sum as _sum

EighResult = namedtuple("EighResult", "eigenvalues eigenvectors")
QRResult = namedtuple("QRResult", "Q R")
SlogdetResult = namedtuple("SlogdetResult", "sign logabsdet")
SVDResult = namedtuple("SVDResult", "U S Vh")


def matmul(x1, x2, /):
    """Returns matrix products."""
    x1, x2 = pair(x1, x2)
    if not x1.ndim or not x2.ndim:
        raise ValueError(f"matmul: operands have {x1.ndim} and {x2.ndim} dimensions, and at least 1 is expected")
    if x1.dtype in FLOATS + COMPLEX:
        return array(_core.matmul(x1, x2))
    left = x1.unsqueeze(0) if x1.ndim == 1 else x1
    right = x2.unsqueeze(1) if x2.ndim == 1 else x2
    if left.shape[-1] != right.shape[-2]:
        raise ValueError(f"matmul: shapes {tuple(x1.shape)} and {tuple(x2.shape)} do not fit")
    # Integers: the libraries have no such product.
    found = _core.sum(_core.mul(left.unsqueeze(-1), right.unsqueeze(-3)), [-2]).to(x1.dtype)
    found = found.squeeze(-2) if x1.ndim == 1 else found
    return array(found.squeeze(-1) if x2.ndim == 1 else found)


def matrix_transpose(x, /):
    """Returns the transposed matrices."""
    if x.ndim < 2:
        raise ValueError(f"matrix_transpose: expected an array of at least 2 dimensions, got {x.ndim}")
    return array(_core.transpose(x, -2, -1))


def tensordot(x1, x2, /, *, axes=2):
    """Returns sums of products over dimensions."""
    x1, x2 = pair(x1, x2)
    if isinstance(axes, int):
        first, second = list(range(x1.ndim - axes, x1.ndim)), list(range(axes))
    else:
        first, second = axes_of(tuple(axes[0]), x1.ndim), axes_of(tuple(axes[1]), x2.ndim)
    free1 = [place for place in range(x1.ndim) if place not in first]
    free2 = [place for place in range(x2.ndim) if place not in second]
    shape = [x1.shape[place] for place in free1] + [x2.shape[place] for place in free2]
    summed = 1
    for place in first:
        summed *= x1.shape[place]
    rows = x1.permute(free1 + first).reshape([-1 if x1.numel() else _extent(x1, free1), summed])
    columns = x2.permute(second + free2).reshape([summed, -1 if x2.numel() else _extent(x2, free2)])
    return array(matmul(rows, columns).reshape(shape))


def _extent(x, places):
    found = 1
    for place in places:
        found *= x.shape[place]
    return found


def vecdot(x1, x2, /, *, axis=-1):
    """Returns inner products along a dimension; the first operand is conjugated."""
    x1, x2 = pair(x1, x2)
    if not -min(x1.ndim, x2.ndim) <= axis < 0:
        raise ValueError(f"vecdot: axis {axis} is not a dimension, from the back, of operands of {x1.ndim} and {x2.ndim} dimensions")
    if x1.shape[axis] != x2.shape[axis]:
        raise ValueError(f"vecdot: extents {x1.shape[axis]} and {x2.shape[axis]} along axis {axis} differ")
    first = _core.conj(x1) if x1.dtype in COMPLEX else x1
    return array(_core.sum(_core.mul(first, x2), [axis]).to(x1.dtype))


def outer(x1, x2, /):
    """Returns the product of each element of one vector with each element of the other."""
    x1, x2 = pair(x1, x2)
    if x1.ndim != 1 or x2.ndim != 1:
        raise ValueError(f"outer: expected two vectors, got {x1.ndim} and {x2.ndim} dimensions")
    return array(_core.mul(x1.unsqueeze(1), x2.unsqueeze(0)))


def cross(x1, x2, /, *, axis=-1):
    """Returns the cross products of vectors of three elements."""
    x1, x2 = pair(x1, x2)
    if not -min(x1.ndim, x2.ndim) <= axis < 0:
        raise ValueError(f"cross: axis {axis} is not a dimension, from the back, of operands of {x1.ndim} and {x2.ndim} dimensions")
    if x1.shape[axis] != 3 or x2.shape[axis] != 3:
        raise ValueError(f"cross: extents {x1.shape[axis]} and {x2.shape[axis]} along axis {axis}, and 3 is expected")
    return array(_core.linalg_cross(*_core.broadcast_tensors([x1, x2]), dim=axis))


def diagonal(x, /, *, offset=0):
    """Returns a diagonal of each matrix."""
    return array(_core.diagonal(x, offset, -2, -1))


def trace(x, /, *, offset=0, dtype=None):
    """Returns the sum of a diagonal of each matrix."""
    return _sum(_core.diagonal(x, offset, -2, -1), axis=-1, dtype=dtype)


def _unary(name):
    operator = getattr(_core, f"linalg_{name}")

    def function(x, /):
        return array(operator(x))
    function.__name__ = function.__qualname__ = name
    function.__doc__ = operator.__doc__
    return function


det, inv, svdvals, eigvalsh = (_unary(name) for name in ("det", "inv", "svdvals", "eigvalsh"))


def cholesky(x, /, *, upper=False):
    """Returns the triangular factors of positive definite matrices."""
    found = _core.linalg_cholesky(x)
    if upper:
        found = _core.transpose(found, -2, -1)
        found = _core.conj(found) if x.dtype in COMPLEX else found
    return array(found)


def eigh(x, /):
    """Returns eigenvalues and eigenvectors of symmetric matrices."""
    return EighResult(*array(_core.linalg_eigh(x)))


def qr(x, /, *, mode="reduced"):
    """Returns orthogonal and triangular factors."""
    return QRResult(*array(_core.linalg_qr(x, mode)))


def slogdet(x, /):
    """Returns signs of determinants, and the logarithms of their magnitudes."""
    return SlogdetResult(*array(_core.linalg_slogdet(x)))


def svd(x, /, *, full_matrices=True):
    """Returns the singular value decomposition of matrices."""
    return SVDResult(*array(_core.linalg_svd(x, full_matrices)))


def solve(x1, x2, /):
    """Returns the solutions of systems of linear equations."""
    x1, x2 = pair(x1, x2)
    if x2.ndim == 1:
        return array(_core.linalg_solve(x1, x2.unsqueeze(1)).squeeze(-1))
    return array(_core.linalg_solve(*_stacks(x1, x2)))


def _stacks(x1, x2):
    """Returns stacks of matrices broadcast against each other."""
    batch = list(_core.broadcast_tensors([_core.ones(list(x.shape[:-2]), device=x.device) for x in (x1, x2)])[0].shape)
    return [_core.broadcast_to(x, [*batch, *x.shape[-2:]]) for x in (x1, x2)]


def pinv(x, /, *, rtol=None):
    """Returns pseudo-inverses."""
    if x.dtype not in COMPLEX:
        return array(_core.linalg_pinv(x) if rtol is None else _core.linalg_pinv(x, rtol=rtol))
    left, values, right = _core.linalg_svd(x, False)
    rtol = max(x.shape[-2:]) * _functions.finfo(values.dtype).eps if rtol is None else rtol
    rtol = rtol.to(values.dtype).unsqueeze(-1) if hasattr(rtol, "dtype") else rtol
    if not values.shape[-1]:
        return array(_core.zeros([*x.shape[:-2], x.shape[-1], x.shape[-2]], dtype=x.dtype, device=x.device))
    is_kept = _core.gt(values, _core.mul(_core.amax(values, [-1], True), rtol))
    inverse = _core.where(is_kept, _core.reciprocal(values), _core.zeros_like(values)).to(x.dtype)
    scaled = _core.mul(_core.conj(_core.transpose(right, -2, -1)), inverse.unsqueeze(-2))
    return array(_core.matmul(scaled, _core.conj(_core.transpose(left, -2, -1))))


def matrix_rank(x, /, *, rtol=None):
    """Returns how many singular values exceed a tolerance, for each matrix."""
    values = _core.linalg_svdvals(x)
    if rtol is None:
        rtol = max(x.shape[-2:]) * _functions.finfo(values.dtype).eps
    elif hasattr(rtol, "dtype"):
        rtol = rtol.to(values.dtype).unsqueeze(-1)
    if not values.shape[-1]:
        return array(_core.zeros(list(values.shape[:-1]), dtype=int64, device=x.device))
    bound = _core.mul(_core.amax(values, [-1], True), rtol)
    return array(_core.sum(_core.gt(values, bound).to(int64), [-1]))


def matrix_power(x, n, /):
    """Returns powers of matrices."""
    return array(_core.linalg_matrix_power(x, n))


def matrix_norm(x, /, *, keepdims=False, ord="fro"):
    """Returns norms of matrices."""
    return array(_core.linalg_matrix_norm(x, ord, [-2, -1], keepdims))


def vector_norm(x, /, *, axis=None, keepdims=False, ord=2):
    """Returns norms of vectors along dimensions."""
    axes = axes_of(axis, x.ndim)
    if not axes:
        found = _core.abs(x)
        return array(_core.ne(found, 0).to(found.dtype) if ord == 0 else found)
    return array(_core.linalg_vector_norm(x, ord, axes, keepdims))


__all__ = ["cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose",
           "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm"]
