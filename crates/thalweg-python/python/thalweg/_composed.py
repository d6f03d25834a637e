"""Functions that are composed of operators: histograms of several dimensions, and the extreme eigenvalues of large matrices."""

import math

from . import _core
from ._functions import finfo
from ._results import results_class
from .autograd import no_grad

__all__ = [
    "col_indices_copy", "crow_indices_copy", "histogramdd", "indices_copy", "lobpcg", "smm", "values_copy", "view_as_complex_copy", "view_as_real_copy"]

_Histogram = results_class("histogramdd", ("hist", "bin_edges"))


def _edges(column, bins, limits):
    """Returns the edges of the bins of a dimension."""
    if isinstance(bins, _core.Tensor):
        return bins
    if limits is None:
        low, high = (column.amin().item(), column.amax().item()) if column.numel() else (0.0, 1.0)
    else:
        low, high = limits
    if low == high:
        low, high = low - 0.5, high + 0.5
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"histogramdd: range [{low}, {high}] is not finite")
    if low > high:
        raise RuntimeError("histogramdd: min should not exceed max")
    return _core.linspace(low, high, bins + 1, dtype=column.dtype, device=column.device)


def histogramdd(input, bins, range=None, weight=None, density=False):
    """Returns the counts of points in boxes, and the edges of the boxes in each dimension. `bins` are numbers of bins or edges."""
    if input.dim() < 2:
        raise RuntimeError("torch.histogramdd: input tensor should have at least 2 dimensions")
    count = input.shape[-1]
    points = input.reshape(-1, count)
    bins = [bins] * count if isinstance(bins, int) else list(bins)
    if len(bins) != count:
        raise RuntimeError("histogramdd: The size of bins must be equal to the innermost dimension of the input.")
    limits = [None] * count if range is None else list(zip(range[::2], range[1::2]))
    edges = [_edges(points[:, place], one, limit) for place, (one, limit) in enumerate(zip(bins, limits))]
    is_inside = _core.ones([points.shape[0]], dtype=getattr(_core, "bool"), device=input.device)
    flat = _core.zeros([points.shape[0]], dtype=_core.int64, device=input.device)
    for column, one in zip(points.unbind(1), edges):
        column = column.contiguous()
        last = one.numel() - 2
        place = _core.searchsorted(one, column, right=True) - 1
        # The last bin has its upper edge.
        place = _core.where(column == one[-1], last, place)
        is_inside = is_inside & (place >= 0) & (place <= last)
        flat = flat * (last + 1) + place.clamp(0, max(last, 0))
    shape = [one.numel() - 1 for one in edges]
    given = _core.ones_like(flat, dtype=input.dtype) if weight is None else weight.reshape(-1)
    counts = _core.zeros([math.prod(shape)], dtype=input.dtype, device=input.device).index_add(0, flat, _core.where(is_inside, given, 0.0).to(input.dtype))
    counts = counts.reshape(shape)
    if density:
        counts = counts / counts.sum()
        for place, one in enumerate(edges):
            counts = counts / one.diff().reshape([-1 if at == place else 1 for at, _ in enumerate(edges)])
    return _Histogram(counts, tuple(edges))


def _ritz(a, b, basis, count, largest):
    """Returns the extreme eigenvalues of a matrix in the space of a basis, and the coefficients of their vectors."""
    gram = basis.mT @ (basis if b is None else b @ basis)
    sizes, vectors = _core.linalg_eigh(gram)
    kept = sizes > sizes[-1] * finfo(gram.dtype).eps * gram.shape[-1]
    to_normal = vectors[:, kept] / sizes[kept].sqrt()
    values, mixed = _core.linalg_eigh(to_normal.mT @ (basis.mT @ (a @ basis)) @ to_normal)
    order = values.argsort(descending=largest)[:count]
    return values[order], to_normal @ mixed[:, order]


def _extreme(a, b, x, inverse, count, steps, tolerance, largest):
    """Returns the extreme eigenvalues of a matrix and their vectors, by A. V. Knyazev's method (2001): each step searches the space of the
    vectors, their residuals and the former directions."""
    size = a.norm() / math.sqrt(a.shape[-1])
    values, coefficients = _ritz(a, b, x, x.shape[-1], largest)
    x, direction = x @ coefficients, None
    for _ in range(steps):
        identity = x if b is None else b @ x
        residual = a @ x - identity * values
        norms = residual[:, :count].norm(dim=0) / (x[:, :count].norm(dim=0) * (size + identity.norm() * values[:count].abs()))
        if bool((norms < tolerance).all()):
            break
        search = residual if inverse is None else inverse @ residual
        parts = [x, *(part / part.norm(dim=0).clamp_min(finfo(x.dtype).tiny) for part in (search, direction) if part is not None)]
        basis = _core.cat(parts, 1)
        values, coefficients = _ritz(a, b, basis, x.shape[-1], largest)
        direction = basis[:, x.shape[-1]:] @ coefficients[x.shape[-1]:]
        x = basis @ coefficients
    return values[:count], x[:, :count]


def lobpcg(A, k=None, B=None, X=None, n=None, iK=None, niter=None, tol=None, largest=None, method=None, tracker=None,
           ortho_iparams=None, ortho_fparams=None, ortho_bparams=None):
    """Returns the `k` largest (or smallest) eigenvalues of symmetric matrices, for the generalized problem A x = λ B x if `B` is given, and
    their vectors. Without gradients: `linalg.eigh` has them."""
    if _core.is_grad_enabled() and any(one is not None and one.requires_grad for one in (A, B)):
        raise NotImplementedError("lobpcg: it has no gradient here; `linalg.eigh` has one")
    A, B, iK = (one.to_dense() if one is not None and one.layout is not _core.strided else one for one in (A, B, iK))
    size = A.shape[-1]
    count = k if k is not None else 1 if X is None else X.shape[-1]
    width = n if n is not None else count if X is None else X.shape[-1]
    if size < 3 * width:
        raise ValueError(f"LPBPCG algorithm is not applicable when the number of A rows (={size}) is smaller than 3 x the number of requested "
                         f"eigenpairs (={width})")
    tol = finfo(A.dtype).eps ** 0.75 if tol is None else tol
    steps = 1000 if niter is None or niter < 0 else niter
    with no_grad():
        found = []
        batch = A.reshape(-1, size, size)
        others = [None if one is None else one.expand(*A.shape[:-2], *one.shape[-2:]).reshape(-1, *one.shape[-2:]) for one in (B, X, iK)]
        for place, matrix in enumerate(batch):
            b, x, inverse = (None if one is None else one[place] for one in others)
            x = _core.randn([size, width], dtype=A.dtype, device=A.device) if x is None else x
            found.append(_extreme(matrix, b, x, inverse, count, steps, tol, largest is None or largest))
        return (_core.stack([values for values, _ in found]).reshape(*A.shape[:-2], count),
                _core.stack([vectors for _, vectors in found]).reshape(*A.shape[:-2], size, count))


def view_as_complex_copy(input, *, out=None):
    """Returns pairs of real numbers as complex numbers of their own memory."""
    copied = _core.view_as_complex(input).clone()
    return copied if out is None else out.copy_(copied)


def view_as_real_copy(input, *, out=None):
    """Returns the parts of complex numbers as numbers of their own memory."""
    copied = _core.view_as_real(input).clone()
    return copied if out is None else out.copy_(copied)


def _part_copy(name):
    def call(input, *, out=None):
        copied = getattr(input, name)().clone()
        return copied if out is None else out.copy_(copied)
    call.__name__, call.__qualname__ = f"{name}_copy", f"{name}_copy"
    call.__doc__ = f"Returns a copy of the part `{name}` of a sparse tensor."
    return call


indices_copy, values_copy, crow_indices_copy, col_indices_copy = (
    _part_copy(_name) for _name in ("indices", "values", "crow_indices", "col_indices"))


def smm(input, mat):
    """Returns the product of a sparse matrix and a dense one, as a sparse matrix."""
    return (input @ mat).to_sparse()
