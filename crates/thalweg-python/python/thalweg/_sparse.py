"""Sparse tensors (`torch.sparse_coo_tensor`, `torch.sparse_csr_tensor`): the places and the values of elements that are not 0.

They are made of operators on dense tensors, through which gradients flow to the values. They have the functions that networks on
graphs and solvers call: products with dense tensors, sums, factors, transposition and conversions. Others raise an error.
"""

from . import _core, _names, _torch_functions

Tensor = _core.Tensor
_Off = _torch_functions.DisableTorchFunction


class SparseTensor(Tensor):
    """A tensor that is given by the indices and the values of its elements. The first dimensions are sparse, those of
    the values dense."""

    def _take(self, other):
        return _write(self, other)

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            memo[id(self)] = _made(self._places.clone(), self._elements.detach().clone(), self.shape, self._coalesced, self.__dict__["layout"])
        return memo[id(self)]

    def __reduce_ex__(self, protocol):
        return _rebuilt, (self._places, self._elements, tuple(self.shape), self._coalesced, str(self.__dict__["layout"]))

    is_sparse = property(lambda self: self.__dict__["layout"] is _names.sparse_coo)
    is_sparse_csr = property(lambda self: self.__dict__["layout"] is _names.sparse_csr)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return _called(func, args, kwargs or {})


def _made(indices, values, size, is_coalesced=False, layout=None):
    with _Off():
        made = Tensor.as_subclass(_core.empty(list(size), dtype=values.dtype, device="meta"), SparseTensor)
    made.__dict__.update(_places=indices, _elements=values, _coalesced=is_coalesced, layout=layout or _names.sparse_coo)
    return made


def _rebuilt(places, values, shape, is_coalesced, layout):
    return _made(places, values, shape, is_coalesced, _names.sparse_csr if layout == "torch.sparse_csr" else None)


def joined(first, second):
    """Returns the sum of two sparse tensors with the values of both, which are added where they are read."""
    if first._places.shape[0] != second._places.shape[0]:
        return _add(first, second)
    made = _made(_core.cat([first._places, second._places], 1), _core.cat([first._elements, second._elements]), first.shape)
    return _coalesce(made) if made._places.shape[1] > made.shape.numel() else made


def _write(x, other):
    """Gives a sparse tensor the values of another one, in place."""
    x.__dict__.update(_places=other._places, _elements=other._elements, _coalesced=other._coalesced)
    return x


def _numbers(value, dtype=None, device=None, requires_grad=False):
    """Returns numbers as a tensor of its own, which requires a gradient if that is asked for, or if the given tensor does."""
    value = value if isinstance(value, Tensor) else _core.tensor(value)
    value = value.to(device=device or value.device, dtype=dtype or value.dtype)
    return value if value.requires_grad and not requires_grad else value.detach().requires_grad_(requires_grad)


def sparse_coo_tensor(indices, values=None, size=None, *, dtype=None, device=None, pin_memory=False, requires_grad=False, check_invariants=None,
                      is_coalesced=None):
    """Returns a sparse tensor from the indices of its values, with one row of `indices` per dimension."""
    if values is None:
        size, dense = indices, _core.zeros([0], dtype=dtype, device=device)
        return _made(_core.zeros([len(size), 0], dtype=_core.int64, device=device), dense, size, True)
    values = _numbers(values, dtype, device, requires_grad)
    indices = _numbers(indices, _core.int64, values.device)
    if indices.dim() != 2 or values.dim() == 0 or indices.shape[1] != values.shape[0]:
        raise RuntimeError(f"sparse_coo_tensor: indices has to be a matrix with a column for each value, but indices has the shape {tuple(indices.shape)} and "
                           f"values {tuple(values.shape)}")
    if size is None:
        extents = (indices.max(1)[0] + 1).tolist() if indices.shape[1] else [0] * indices.shape[0]
        size = [*extents, *values.shape[1:]]
    if len(size) != indices.shape[0] + values.dim() - 1:
        raise RuntimeError(f"number of dimensions must be sparse_dim ({indices.shape[0]}) + dense_dim ({values.dim() - 1}), but got {len(size)}")
    return _made(indices, values, size, bool(is_coalesced) or indices.shape[1] < 2)


def _rows(counts, device):
    """Returns the row of each value from the places where rows begin."""
    extents = counts[1:] - counts[:-1]
    return _core.repeat_interleave(_core.arange(extents.numel(), device=device), extents, 0)


def sparse_csr_tensor(crow_indices, col_indices, values, size=None, *, dtype=None, device=None, pin_memory=False, requires_grad=False,
                      check_invariants=None):
    """Returns a sparse matrix from the positions at which its rows begin, and the columns of its values."""
    values = _numbers(values, dtype, device, requires_grad)
    crow, columns = (_numbers(value, _core.int64, values.device) for value in (crow_indices, col_indices))
    size = [crow.numel() - 1, int(columns.max().item()) + 1 if columns.numel() else 0] if size is None else size
    return _made(_core.stack([_rows(crow, values.device), columns]), values, size, True, _names.sparse_csr)


def sparse_csc_tensor(ccol_indices, row_indices, values, size=None, **options):
    """Returns a sparse matrix from the positions at which its columns begin, and the rows of its values."""
    turned = sparse_csr_tensor(ccol_indices, row_indices, values, None if size is None else list(size)[::-1], **options)
    return _made(turned._places.flip(0), turned._elements, list(turned.shape)[::-1], False)


def to_sparse(x, *args, layout=None, blocksize=None, dense_dim=None):
    """Returns a tensor as a sparse one."""
    made = _as_coo(x) if isinstance(x, SparseTensor) else from_dense(x, args[0] if args and isinstance(args[0], int) else None)
    return _as_csr(made) if layout is _names.sparse_csr else made


def part(x, name):
    """Returns a part of a sparse tensor by the name of a method."""
    if not isinstance(x, SparseTensor):
        raise RuntimeError(f"{name} expected sparse tensor layout but got Strided")
    return _FUNCTIONS[name](x)


def from_dense(x, sparse_dim=None):
    """Returns a dense tensor as a sparse one."""
    sparse_dim = x.dim() if sparse_dim is None else sparse_dim
    filled = x if sparse_dim == x.dim() else x.abs().sum(list(range(sparse_dim, x.dim())))
    places = filled.detach().nonzero().t()
    return _made(places, x[tuple(places.unbind(0))], x.shape, True)


# ---- Functions -----------------------------------------------------------------------------------------------------


def _flat(x):
    """Returns the index of each value among all sparse elements, as one number."""
    flat = _core.zeros([x._places.shape[1]], dtype=_core.int64, device=x._elements.device)
    for place, extent in zip(x._places.unbind(0), x.shape):
        flat = flat * extent + place
    return flat


def _coalesce(x, is_sum=True):
    """Returns the tensor with one value per index, sorted by index: the sum of those of the index, or, if all of them are the same, one of them."""
    if x._coalesced:
        return x
    from ._functions import unique
    flat, inverse = unique(_flat(x), return_inverse=True) if x._places.shape[1] else (_flat(x), _flat(x))
    values = x._elements.new_zeros((flat.numel(), *x._elements.shape[1:]))
    values = values.index_add(0, inverse, x._elements) if is_sum else values.index_put([inverse], x._elements)
    places = []
    for extent in reversed(x.shape[:x._places.shape[0]]):
        places.append(flat % extent)
        flat = flat.div(extent, rounding_mode="floor")
    return _made(_core.stack(places[::-1]), values, x.shape, True, x.layout)


def _to_dense(x, *args, **kwargs):
    return x._elements.new_zeros(list(x.shape)).index_put(list(x._places.unbind(0)), x._elements, accumulate=True)


def _mm(x, other):
    """Returns the product of a sparse matrix and a dense matrix or vector."""
    if isinstance(other, SparseTensor):
        return from_dense(_to_dense(x) @ _to_dense(other))
    if x.dim() != 2 or x.shape[1] != other.shape[0]:
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({'x'.join(map(str, x.shape))} and {'x'.join(map(str, other.shape))})")
    rows, columns = x._places.unbind(0)
    terms = other[columns] * (x._elements if other.dim() == 1 else x._elements.unsqueeze(-1))
    return terms.new_zeros((x.shape[0], *other.shape[1:])).index_add(0, rows, terms)


def _matmul(first, second):
    if isinstance(first, SparseTensor):
        return _mm(first, second)
    return _mm(_transpose(second), first if first.dim() == 1 else first.t()).t() if first.dim() > 1 else _mm(_transpose(second), first)


def _transpose(x, dim0=0, dim1=1):
    order = list(range(x.dim()))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return _permute(x, order)


def _permute(x, *dims):
    order, count = [dim % x.dim() for dim in (dims[0] if dims and not isinstance(dims[0], int) else dims)], x._places.shape[0]
    if sorted(order) != list(range(x.dim())):
        raise RuntimeError(f"permute(sparse_coo): {tuple(order)} are not the dimensions of a tensor with {x.dim()} of them")
    if any(dim >= count for dim in order[:count]):
        raise RuntimeError("permute(sparse_coo): transpositions between sparse and dense dimensions are not allowed")
    values = x._elements.permute(0, *(dim - count + 1 for dim in order[count:]))
    return _made(x._places[order[:count]], values, [x.shape[dim] for dim in order])


def _values(function):
    """Returns a function of the values alone, which keeps zeros."""
    def call(x, *args, **kwargs):
        own = _coalesce(x)
        return _made(own._places, function(own._elements, *args, **kwargs), x.shape, True, x.layout)
    return call


def _with_values(function):
    """Returns a function that applies another to the values of a sparse tensor, even if several values have the same
    index."""
    def call(x, *args, **kwargs):
        return _made(x._places, function(x._elements, *args, **kwargs), x.shape, x._coalesced, x.__dict__["layout"])
    return call


def _mul(x, other, *args, **kwargs):
    if not isinstance(x, SparseTensor):
        x, other = other, x
    if isinstance(other, SparseTensor):
        other = _to_dense(other)
    own = _coalesce(x)
    factor = other if not isinstance(other, Tensor) or other.dim() == 0 else other.expand(x.shape)[tuple(own._places.unbind(0))]
    return _made(own._places, own._elements * factor, x.shape, True, x.layout)


def _div(x, other, *args, **kwargs):
    own = _coalesce(x)
    factor = other if not isinstance(other, Tensor) or other.dim() == 0 else other.expand(x.shape)[tuple(own._places.unbind(0))]
    return _made(own._places, own._elements / factor, x.shape, True, x.layout)


def _add(x, other, *, alpha=1):
    if not (isinstance(x, SparseTensor) and isinstance(other, SparseTensor)):
        dense = [_to_dense(value) if isinstance(value, SparseTensor) else value for value in (x, other)]
        return dense[0] + dense[1] * alpha
    if x.shape != other.shape:
        raise RuntimeError(f"add: expected 'self' and 'other' to have same size, but self has size {list(x.shape)} while other has size {list(other.shape)}")
    layout = x.layout if x.layout is other.layout else None
    return _coalesce(_made(_core.cat([x._places, other._places], 1), _core.cat([x._elements, other._elements * alpha]), x.shape, layout=layout))


def _add_(x, other, *, alpha=1):
    if isinstance(x, SparseTensor):
        if not isinstance(other, SparseTensor):
            raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
        return _write(x, _add(x, other, alpha=alpha))
    return x.index_put_(list(other._places.unbind(0)), (other._elements * alpha).to(x.dtype), accumulate=True)


def masked(x, mask):
    """Returns the elements of a tensor at the indices of a sparse one, as a sparse tensor."""
    if not isinstance(mask, SparseTensor):
        raise NotImplementedError("sparse_mask(): expected mask to be a sparse tensor")
    if x.shape != mask.shape:
        raise RuntimeError(f"sparse_mask(): operands have incompatible sizes; self has size {list(x.shape)} but mask has size {list(mask.shape)}")
    if isinstance(x, SparseTensor):
        x = _to_dense(x)
    return _made(mask._places, x[tuple(mask._places.unbind(0))], mask.shape, mask._coalesced)


def _zeros(x, *, dtype=None, device=None, **_):
    """Returns a sparse tensor without values."""
    return _made(x._places[:, :0], x._elements[:0].detach().to(dtype=dtype or x.dtype, device=device or x.device), x.shape, True, x.layout)


def _sub(x, other, *, alpha=1):
    return _add(x, other, alpha=-alpha)


def _sparse_place(x, dim, name):
    """Returns a sparse dimension as a number from 0 on."""
    if not -x.dim() <= dim < x.dim():
        raise IndexError(f"Dimension out of range (expected to be in range of [{-x.dim()}, {x.dim() - 1}], but got {dim})")
    if dim % x.dim() >= x._places.shape[0]:
        raise NotImplementedError(f"{name} along a dense dimension of a sparse tensor is left out: call it with `to_dense()`")
    return dim % x.dim()


def _cat(tensors, dim=0):
    """Returns sparse tensors one after the other along a sparse dimension."""
    for place, one in enumerate(tensors):
        if not isinstance(one, SparseTensor):
            raise RuntimeError(f"Concatenating sparse tensors, but a dense tensor was found at position {place}.")
    first = tensors[0]
    dim = _sparse_place(first, dim, "cat")
    starts, places = 0, []
    for one in tensors:
        if [*one.shape[:dim], *one.shape[dim + 1:]] != [*first.shape[:dim], *first.shape[dim + 1:]]:
            raise RuntimeError(f"All tensors must have the same shape except in the concatenating dimension: {list(first.shape)} and {list(one.shape)}")
        shift = _core.tensor([starts if at == dim else 0 for at in range(one._places.shape[0])], device=one._places.device)
        places.append(one._places + shift.unsqueeze(1))
        starts += one.shape[dim]
    shape = [starts if at == dim else extent for at, extent in enumerate(first.shape)]
    return _made(_core.cat(places, 1), _core.cat([one._elements for one in tensors]), shape)


def _unsqueeze(x, dim):
    if not -x.dim() - 1 <= dim <= x.dim():
        raise IndexError(f"Dimension out of range (expected to be in range of [{-x.dim() - 1}, {x.dim()}], but got {dim})")
    dim %= x.dim() + 1
    shape = [*x.shape[:dim], 1, *x.shape[dim:]]
    if dim > x._places.shape[0]:
        return _made(x._places, x._elements.unsqueeze(dim - x._places.shape[0] + 1), shape, x._coalesced)
    zeros = x._places.new_zeros((1, x._places.shape[1]))
    return _made(_core.cat([x._places[:dim], zeros, x._places[dim:]]), x._elements, shape, x._coalesced)


def _stack(tensors, dim=0):
    return _cat([_unsqueeze(one, dim) for one in tensors], dim)


def _index_select(x, dim, index):
    """Returns slices at indices. An index that occurs several times takes its slice several times."""
    dim = _sparse_place(x, dim, "index_select")
    index = index.reshape(-1).long()
    if index.numel() and not bool(((index >= 0) & (index < x.shape[dim])).all()):
        raise IndexError(f"index_select(): index out of range for dimension {dim} with size {x.shape[dim]}")
    order = x._places[dim].argsort(stable=True)
    ordered = x._places[dim][order].contiguous()
    starts, ends = _core.searchsorted(ordered, index), _core.searchsorted(ordered, index, right=True)
    counts = ends - starts
    slots = _core.arange(index.numel(), device=index.device).repeat_interleave(counts)
    before = (counts.cumsum(0) - counts)[slots]
    taken = order[starts[slots] + _core.arange(slots.numel(), device=index.device) - before]
    places = _core.stack([slots if at == dim else place for at, place in enumerate(x._places[:, taken].unbind(0))])
    return _made(places, x._elements[taken], [index.numel() if at == dim else extent for at, extent in enumerate(x.shape)])


def _narrow(x, dim, start, length):
    dim = _sparse_place(x, dim, "narrow")
    return _index_select(x, dim, _core.arange(start, start + length, device=x._places.device))


def _sum(x, dim=None, *args, **kwargs):
    if dim is None:
        return x._elements.sum()
    dims = [one % x.dim() for one in ([dim] if isinstance(dim, int) else dim)]
    count = x._places.shape[0]
    kept, within = [place for place in range(count) if place not in dims], [one - count + 1 for one in dims if one >= count]
    if not kept:
        return _to_dense(x).sum(dims)
    values = x._elements.sum(within) if within else x._elements
    return _coalesce(_made(x._places[kept], values, [extent for place, extent in enumerate(x.shape) if place not in dims]))


def _select(x, dim, index):
    """Returns a slice, which is sparse if there is another sparse dimension."""
    if not -x.dim() <= dim < x.dim() or not -x.shape[dim] <= index < x.shape[dim]:
        raise IndexError(f"select(): index {index} out of range for tensor of size {list(x.shape)} at dimension {dim}")
    dim, index, count = dim % x.dim(), index % x.shape[dim], x._places.shape[0]
    shape = [extent for place, extent in enumerate(x.shape) if place != dim]
    if dim >= count:
        return _made(x._places, x._elements.select(dim - count + 1, index), shape, x._coalesced)
    if count == 1:
        return _to_dense(x)[index]
    taken = (x._places[dim] == index).nonzero().squeeze(1)
    return _made(x._places[[place for place in range(count) if place != dim]][:, taken], x._elements[taken], shape, x._coalesced)


def _item(x, index):
    return _select(x, 0, index) if isinstance(index, int) and not x.is_sparse_csr else _to_dense(x)[index]


def _crow(x):
    own = _coalesce(x)
    counts = _core.bincount(own._places[0], minlength=x.shape[0])
    return _core.cat([counts.new_zeros(1), counts.cumsum(0)])


def _converted(x, *args, **kwargs):
    values = x._elements.to(*args, **kwargs)
    return _made(x._places.to(values.device), values, x.shape, x._coalesced, x.layout)


def _as_csr(x, *_, **__):
    if x._places.shape[0] != 2:
        raise RuntimeError("conversion from Sparse to SparseCsr for input tensors with sparse_dim()!=2 is not supported")
    own = _coalesce(x)
    return _made(own._places, own._elements, x.shape, True, _names.sparse_csr)


def _as_coo(x, *_, **__):
    return _made(x._places, x._elements, x.shape, x._coalesced)


def _checked_indices(x):
    if not x._coalesced:
        raise RuntimeError("Cannot get indices on an uncoalesced tensor, please call .coalesce() first")
    return x._places


def _printed(x, *_, **__):
    def shown(name, value):
        """Returns an attribute as `name=value`, with the later lines of the value indented."""
        return f"{name}={value!r}".replace("\n", "\n" + " " * (len(name) + 1))
    parts = [("indices", x._places), ("values", x._elements)] if not x.is_sparse_csr else [
        ("crow_indices", _crow(x)), ("col_indices", _coalesce(x)._places[1]), ("values", _coalesce(x)._elements)]
    text = ",\n".join(shown(name, value) for name, value in parts).replace("\n", "\n" + " " * 7)
    return f"tensor({text},\n       size={tuple(x.shape)}, nnz={x._places.shape[1]}, layout={x.layout!r})"


_FUNCTIONS = {
    "coalesce": _coalesce, "to_dense": _to_dense, "mm": _matmul, "matmul": _matmul, "mv": _matmul, "spmm": _matmul, "smm": _matmul, "dsmm": _matmul,
    "t": lambda x: _transpose(x) if x.dim() > 1 else x, "transpose": _transpose, "mul": _mul, "multiply": _mul, "div": _div, "add": _add, "sub": _sub, "sum": _sum,
    "is_coalesced": lambda x: x._coalesced, "indices": _checked_indices, "_indices": lambda x: x._places, "values": lambda x: _coalesce(x)._elements,
    "_values": lambda x: x._elements, "_nnz": lambda x: x._places.shape[1], "sparse_dim": lambda x: x._places.shape[0],
    "dense_dim": lambda x: x._elements.dim() - 1, "crow_indices": _crow, "col_indices": lambda x: _coalesce(x)._places[1], "to": _converted,
    "float": lambda x: _converted(x, _core.float32), "double": lambda x: _converted(x, _core.float64), "half": lambda x: _converted(x, _core.float16),
    "cuda": lambda x, *args: _converted(x, "cuda"), "cpu": lambda x: _converted(x, "cpu"), "to_sparse_csr": _as_csr, "to_sparse": _as_coo,
    "to_sparse_coo": _as_coo, "permute": _permute, "zeros_like": _zeros, "empty_like": _zeros,
    "detach": _with_values(lambda values: values.detach()),
    "clone": _with_values(lambda values, **_: values.clone()), "__getitem__": _item, "select": _select, "__repr__": _printed, "_repr": _printed, "__str__": _printed, "__format__": _printed,
    "requires_grad_": lambda x, on=True: (x._elements.requires_grad_(on), x)[1], "is_sparse": lambda x: True,
    "add_": _add_, "__iadd__": _add_, "sub_": lambda x, other, *, alpha=1: _add_(x, other, alpha=-alpha), "zero_": lambda x: _write(x, _zeros(x)), "copy_": lambda x, other: _write(x, _converted(_FUNCTIONS["clone"](other), dtype=x.dtype, device=x.device)), "sparse_mask": masked,
    "mul_": lambda x, other: _write(x, _mul(x, other)), "__imul__": lambda x, other: _write(x, _mul(x, other)),
    "div_": lambda x, other: _write(x, _div(x, other)), "detach_": lambda x: _write(x, _FUNCTIONS["detach"](x)),
    "cat": _cat, "concat": _cat, "concatenate": _cat, "stack": _stack, "vstack": _cat, "hstack": lambda tensors: _cat(tensors, min(1, tensors[0].dim() - 1)),
    "unsqueeze": _unsqueeze, "index_select": _index_select, "narrow": _narrow,
    "_method_norm": lambda x, *args, **kwargs: _coalesce(x)._elements.norm(*args, **kwargs),
    "norm": lambda x, *args, **kwargs: _coalesce(x)._elements.norm(*args, **kwargs),
    "numpy": lambda x: _to_dense(x).numpy(), "tolist": lambda x: _to_dense(x).tolist(), "__rmul__": _mul, "__rmatmul__": lambda x, other: _matmul(other, x)}
# Functions of single elements that leave zeros as they are.
_FUNCTIONS.update((_name, _values(getattr(_core, _name))) for _name in (
    "abs asin asinh atan atanh ceil deg2rad erf erfinv expm1 floor frac isinf isnan log1p nan_to_num neg pow rad2deg relu round sgn sign signbit sin sinh sqrt "
    "square tan tanh trunc").split())
_OWN = frozenset(("shape", "dtype", "ndim", "size", "dim", "numel", "nelement", "__len__", "__hash__", "is_floating_point", "is_complex", "is_leaf", "layout",
                  "is_sparse", "is_sparse_csr"))
_OF_VALUES = frozenset(("device", "requires_grad", "is_cuda", "grad_fn", "is_meta", "get_device", "is_cpu"))


def _called(func, args, kwargs):
    """Returns the result of a function of sparse tensors."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        name = _torch_functions.property_name(func)
        if name in ("T", "mT"):
            return _transpose(args[0])
        if name == "grad":
            gradient = args[0]._elements.grad
            # The gradient of an element is that of each of its values, which count once.
            return None if gradient is None else _coalesce(_made(args[0]._places, gradient, args[0].shape, args[0]._coalesced), is_sum=False)
        if name == "data":
            return _made(args[0]._places, args[0]._elements.data, args[0].shape, args[0]._coalesced, args[0].__dict__["layout"])
        if name in _OF_VALUES:
            return getattr(args[0]._elements, name)
    if name in _OWN:
        with _Off():
            return func(*args, **kwargs)
    if name in _OF_VALUES:
        return func(args[0]._elements, *args[1:], **kwargs)
    if name not in _FUNCTIONS:
        raise NotImplementedError(f"{name} of sparse tensors is left out: call it with `to_dense()`")
    return _FUNCTIONS[name](*args, **kwargs)
