"""Nested tensors (`torch.nested`): batches whose samples differ in the extent of one dimension.

A nested tensor has the elements of all samples one after another (`values`), and where each sample begins (`offsets`). Functions of single
elements, products with matrices and functions along the other dimensions are those of the values; attention goes through padded tensors.
Gradients are those of the values. A function that needs something else is refused by its name.
"""

import itertools

from . import _core, _external, _kinds, _names, _torch_functions

__all__ = ["as_nested_tensor", "masked_select", "narrow", "nested_tensor", "nested_tensor_from_jagged", "to_padded_tensor"]
Tensor = _core.Tensor
_Off = _torch_functions.DisableTorchFunction
_numbers = itertools.count(1)


class RaggedSize:
    """The extent of the dimension that differs among samples."""

    def __init__(self):
        self._number = next(_numbers)

    def __repr__(self):
        return f"j{self._number}"


class NestedSize(tuple):
    """A shape with a dimension that differs among samples."""

    def __repr__(self):
        return f"torch.Size([{', '.join(map(str, self))}])"

    def numel(self):
        """Raises: the number of elements is that of the tensor."""
        raise NotImplementedError("the number of elements of a nested tensor is `tensor.numel()`")


class Rows:
    """Where the samples are among the values: shared by all nested tensors that are made from one."""

    def __init__(self, offsets, lengths=None):
        self.offsets, self._lengths, self.size = offsets, lengths, RaggedSize()

    def lengths(self):
        """Returns the extents of the samples. The host waits for them once."""
        if self._lengths is None:
            starts = self.offsets.tolist()
            self._lengths = [end - start for start, end in zip(starts, starts[1:])]
        return self._lengths

    def places(self):
        """Returns the position of each row in a padded tensor, for samples that are stored one after another."""
        longest = max(self.lengths(), default=0)
        found = [sample * longest + row for sample, length in enumerate(self.lengths()) for row in range(length)]
        return _core.tensor(found, dtype=_core.int64, device=self.offsets.device), longest

    def samples(self):
        """Returns the number of the sample of each row."""
        extents = self.offsets[1:] - self.offsets[:-1]
        return _core.repeat_interleave(_core.arange(extents.numel(), device=extents.device), extents, 0)


class NestedTensor(Tensor):
    """A batch of samples that differ in the extent of one dimension."""

    is_nested = True

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return _called(func, args, kwargs or {})

    def _with_gradient(self, gradient):
        return _like(self, gradient)

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            memo[id(self)] = _made(self._values.detach().clone().requires_grad_(self._values.requires_grad), self._rows, self._ragged_idx, self._layout)
        return memo[id(self)]


def _made(values, rows, ragged=1, layout=None):
    _external.expected()
    with _Off():
        made = Tensor.as_subclass(_core.empty([0], dtype=values.dtype, device="meta"), NestedTensor)
    # The tensor in the graph is that of the values.
    made.__dict__.update(_values=values, _local=values, _rows=rows, _ragged_idx=ragged, _layout=layout or _names.jagged)
    made.__dict__["layout"] = made._layout
    return made


def _like(x, values, ragged=None):
    return _made(values, x._rows, x._ragged_idx if ragged is None else ragged, x._layout)


def _of(tensors, layout):
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if any(len(shape) == 0 or shape[1:] != shapes[0][1:] for shape in shapes):
        raise NotImplementedError(f"nested_tensor: samples of the shapes {shapes} differ in another dimension than the first, which is left out")
    lengths = [shape[0] for shape in shapes]
    offsets = _core.tensor(list(itertools.accumulate(lengths, initial=0)), dtype=_core.int64, device=tensors[0].device)
    return _made(_core.cat(list(tensors), 0), Rows(offsets, lengths), 1, layout)


def as_nested_tensor(ts, dtype=None, device=None, layout=None):
    """Returns samples as a nested tensor, through which gradients flow to them."""
    if isinstance(ts, NestedTensor):
        return ts.to(dtype=dtype or ts.dtype, device=device or ts.device)
    tensors = list(ts.unbind(0)) if isinstance(ts, Tensor) else [one if isinstance(one, Tensor) else _core.tensor(one) for one in ts]
    if not tensors:
        raise RuntimeError("Cannot construct a nested tensor from an empty tensor list")
    return _of([one.to(dtype=dtype or one.dtype, device=device or one.device) for one in tensors], layout or _core.strided)


def nested_tensor(tensor_list, *, dtype=None, layout=None, device=None, requires_grad=False, pin_memory=False):
    """Returns a nested tensor of samples, which are copied."""
    tensors = [one.detach() if isinstance(one, Tensor) else _core.tensor(one, dtype=dtype, device=device) for one in tensor_list]
    made = as_nested_tensor(tensors, dtype, device, layout)
    return _like(made, made._values.detach().requires_grad_(requires_grad))


def nested_tensor_from_jagged(values, offsets=None, lengths=None, jagged_dim=None, min_seqlen=None, max_seqlen=None):
    """Returns a nested tensor of values, from the positions where samples begin or from their lengths."""
    if offsets is None and lengths is None:
        raise RuntimeError("nested_tensor_from_jagged(): At least one of offsets or lengths is required.")
    if offsets is not None and lengths is not None:
        raise NotImplementedError("nested_tensor_from_jagged: samples with gaps between them (offsets and lengths) are left out")
    if offsets is None:
        offsets = _core.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return _made(values, Rows(offsets), jagged_dim or 1)


def narrow(tensor, dim, start, length, layout=None):
    """Returns a part of each sample of a dense tensor."""
    if dim != 1 or layout is not _names.jagged:
        raise RuntimeError("Expected dim == 1 and layout torch.jagged for nested narrow")
    count = tensor.shape[0]
    starts, lengths = ([value] * count if isinstance(value, int) else value.tolist() for value in (start, length))
    return _of([tensor[sample].narrow(0, first, extent) for sample, (first, extent) in enumerate(zip(starts, lengths))], layout)


def masked_select(tensor, mask):
    """Returns the elements of each sample where a mask is true."""
    mask = mask.expand_as(tensor)
    return _of([sample[own] for sample, own in zip(tensor.unbind(0), mask.unbind(0))], _names.jagged)


def to_padded_tensor(input, padding, output_size=None):
    """Returns a dense tensor, with a number after the end of shorter samples."""
    return input.to_padded_tensor(padding, output_size)


# ---- Padded tensors ------------------------------------------------------------------------------------------------


def _packed(x):
    """Returns the values with the rows of all samples as the first dimension."""
    return x._values.movedim(x._ragged_idx - 1, 0)


def _padded(x, padding=0.0, output_size=None):
    (places, longest), rows, count = x._rows.places(), _packed(x), len(x._rows.lengths())
    whole = rows.new_full((count * longest, *rows.shape[1:]), padding).index_copy(0, places, rows)
    whole = whole.reshape(count, longest, *rows.shape[1:]).movedim(1, x._ragged_idx)
    if output_size is None:
        return whole
    if len(output_size) != whole.dim() or any(want < own for want, own in zip(output_size, whole.shape)):
        raise RuntimeError(f"Value in output_size is less than NestedTensor padded size. Truncation is not supported: {tuple(output_size)} for {tuple(whole.shape)}")
    more = [extent for want, own in reversed(list(zip(output_size, whole.shape))) for extent in (0, want - own)]
    return _core.constant_pad_nd(whole, more, padding)


def _unpadded(whole, x, ragged=None):
    """Returns the rows of a padded tensor that the samples of a nested one have."""
    ragged = x._ragged_idx if ragged is None else ragged
    places, _ = x._rows.places()
    rows = whole.movedim(ragged, 1).flatten(0, 1).index_select(0, places)
    return _like(x, rows.movedim(0, ragged - 1), ragged)


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    if attn_mask is not None:
        raise NotImplementedError("scaled_dot_product_attention of nested tensors with a mask is left out: use is_causal")
    if not all(isinstance(one, NestedTensor) and one._ragged_idx == 2 and one._values.dim() == 3 for one in (query, key, value)):
        raise RuntimeError("scaled_dot_product_attention(): query, key and value must be nested tensors of the shape (B, heads, j, D)")
    from .nn.functional import scaled_dot_product_attention
    lengths = _core.tensor(key._rows.lengths(), device=key._values.device)
    queries, keys, values = (_padded(one) for one in (query, key, value))
    places = _core.arange(keys.shape[2], device=lengths.device)
    mask = (places < lengths[:, None])[:, None, None, :]
    if is_causal:
        mask = mask & (places <= _core.arange(queries.shape[2], device=lengths.device)[:, None])
    return _unpadded(scaled_dot_product_attention(queries, keys, values, mask, dropout_p, False, scale=scale, enable_gqa=enable_gqa), query)


# ---- Functions -----------------------------------------------------------------------------------------------------


def _dim(x, dim, name):
    """Returns the dimension of the values that is a dimension of the tensor, which must not be that of samples or rows."""
    own = dim % (x._values.dim() + 1)
    if own == 0:
        raise RuntimeError(f"{name}(): not supported for NestedTensor on dim=0")
    if own == x._ragged_idx:
        raise RuntimeError(f"{name}(): not supported for NestedTensor on ragged dim")
    return own - 1


def _beside(x, other):
    """Returns a dense tensor in a form that goes with the values."""
    if other.dim() <= x._values.dim() - x._ragged_idx or other.numel() == 1:
        return other
    extra = x._values.dim() + 1 - other.dim()
    full = other.reshape((1,) * extra + tuple(other.shape))
    if full.shape[x._ragged_idx] != 1:
        raise RuntimeError(f"cannot call a binary pointwise function with inputs of shapes {tuple(_sizes(x))} and {tuple(other.shape)}")
    full = full.squeeze(x._ragged_idx)
    if full.shape[0] == 1:
        return full.squeeze(0).unsqueeze(x._ragged_idx - 1)
    return full.index_select(0, x._rows.samples()).movedim(0, x._ragged_idx - 1)


def _have_same_rows(x, other):
    """Returns whether samples begin at the same places: those of one object, or, if both are strided, of the same extents."""
    if other._rows is x._rows or other._rows.offsets is x._rows.offsets:
        return True
    return x._layout is other._layout is _core.strided and x._rows.lengths() == other._rows.lengths()


def _of_elements(func, args, kwargs):
    from .func._batching import replaced
    nested = []
    replaced((args, kwargs), lambda value: nested.append(value) if isinstance(value, NestedTensor) else None)
    first = nested[0]
    for other in nested[1:]:
        if other._ragged_idx != first._ragged_idx or not _have_same_rows(first, other):
            raise RuntimeError(f"cannot call binary pointwise function {getattr(func, '__name__', '')} with inputs of shapes {tuple(_sizes(first))} and "
                               f"{tuple(_sizes(other))}")

    def own(value):
        return value._values if isinstance(value, NestedTensor) else _beside(first, value)
    return _like(first, func(*replaced(args, own), **replaced(kwargs, own)))


def _shape(x):
    if x._layout is _core.strided:
        raise RuntimeError("Internal error: NestedTensorImpl doesn't support sizes. Please file an issue.")
    return _sizes(x)


def _sizes(x):
    extents = list(x._values.shape)
    extents[x._ragged_idx - 1] = x._rows.size
    return NestedSize((x._rows.offsets.numel() - 1, *extents))


def _size(x, dim=None):
    if dim is None:
        return _shape(x)
    found = _sizes(x)[dim]
    if isinstance(found, RaggedSize) and x._layout is _core.strided:
        raise RuntimeError(f"Given dimension {dim} is irregular and does not have a size.")
    return found


def _reduced(name):
    def reduce(x, dim=None, keepdim=False, *, dtype=None):
        function = getattr(_core, name)
        if dim is None or dim in ([], ()):
            return function(x._values) if dtype is None else function(x._values, dtype=dtype)
        dims = [one % (x._values.dim() + 1) for one in ([dim] if isinstance(dim, int) else dim)]
        if dims == [x._ragged_idx]:
            rows = _packed(x)
            total = rows.new_zeros((len(x._rows.lengths()), *rows.shape[1:])).index_add(0, x._rows.samples(), rows)
            if name == "mean":
                total = total / _core.tensor(x._rows.lengths(), device=rows.device).reshape(-1, *[1] * (rows.dim() - 1))
            return total.unsqueeze(x._ragged_idx) if keepdim else total
        if x._ragged_idx in dims or 0 in dims:
            raise RuntimeError(f"{name}(): reducing along a ragged and non-batch dimension is not supported for nested tensors")
        own = function(x._values, [one - 1 for one in dims], keepdim)
        return _like(x, own, x._ragged_idx if keepdim else x._ragged_idx - sum(one < x._ragged_idx for one in dims))
    return reduce


def _extreme(name, padding):
    def reduce(x, dim=None, keepdim=False):
        if dim is None:
            return getattr(_core, name)(x._values)
        if dim % (x._values.dim() + 1) == x._ragged_idx:
            return getattr(_core, name)(_padded(x, padding), x._ragged_idx, keepdim)
        own = getattr(_core, name)(x._values, _dim(x, dim, name), keepdim)
        return _like(x, own, x._ragged_idx if keepdim or dim % (x._values.dim() + 1) > x._ragged_idx else x._ragged_idx - 1)
    return reduce


def _softmax(name):
    def along(x, dim, dtype=None, **_):
        x = x if dtype is None else x.to(dtype)
        if dim % (x._values.dim() + 1) == x._ragged_idx:
            return _unpadded(getattr(_padded(x, float("-inf")), name)(x._ragged_idx), x)
        return _like(x, getattr(x._values, name)(_dim(x, dim, name)))
    return along


def _transposed(x, dim0, dim1):
    first, second = (dim % (x._values.dim() + 1) for dim in (dim0, dim1))
    if 0 in (first, second):
        raise RuntimeError("transpose(): not supported for NestedTensor on dim=0")
    return _like(x, x._values.transpose(first - 1, second - 1), {first: second, second: first}.get(x._ragged_idx))


def _permuted(x, *dims):
    dims = dims[0] if dims and not isinstance(dims[0], int) else dims
    order = [dim % (x._values.dim() + 1) for dim in dims]
    if order[0] != 0:
        raise RuntimeError("permute(): not supported for NestedTensor on dim=0")
    return _like(x, x._values.permute([dim - 1 for dim in order[1:]]), order.index(x._ragged_idx))


def _viewed(x, *sizes):
    sizes = list(sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (list, tuple)) else sizes)
    ragged = next((place for place, one in enumerate(sizes) if isinstance(one, RaggedSize)), x._ragged_idx)
    if len(sizes) <= ragged or ragged == 0 or sizes[0] not in (-1, len(x._rows.lengths())) or not (isinstance(sizes[ragged], RaggedSize) or sizes[ragged] == -1):
        raise RuntimeError(f"view(): cannot view shape {_shape(x)} as {sizes}")
    extents = [x._values.shape[x._ragged_idx - 1] if place == ragged else one for place, one in enumerate(sizes)][1:]
    return _like(x, x._values.reshape(extents), ragged)


def _unflattened(x, dim, sizes):
    own = _dim(x, dim, "unflatten")
    return _like(x, x._values.unflatten(own, sizes), x._ragged_idx + (len(sizes) - 1 if own + 1 < x._ragged_idx else 0))


def _flattened(x, start_dim=0, end_dim=-1):
    first, last = _dim(x, start_dim, "flatten"), _dim(x, end_dim, "flatten")
    if first + 1 < x._ragged_idx < last + 1:
        raise RuntimeError("flatten(): not supported for NestedTensor on ragged dim")
    return _like(x, x._values.flatten(first, last), x._ragged_idx - (last - first if last + 1 < x._ragged_idx else 0))


def _unsqueezed(x, dim):
    own = dim % (x._values.dim() + 2)
    if own == 0:
        raise RuntimeError("unsqueeze(): not supported for NestedTensor on dim=0")
    return _like(x, x._values.unsqueeze(own - 1), x._ragged_idx + (own <= x._ragged_idx))


def _squeezed(x, dim):
    own = _dim(x, dim, "squeeze")
    return x if x._values.shape[own] != 1 else _like(x, x._values.squeeze(own), x._ragged_idx - (own + 1 < x._ragged_idx))


def _unbound(x, dim=0):
    if dim != 0:
        raise RuntimeError("unbind(): only supported for NestedTensor on dim=0")
    return tuple(x._values.split(x._rows.lengths(), x._ragged_idx - 1))


def _item(x, index):
    if isinstance(index, int):
        return _unbound(x)[index]
    parts = index if isinstance(index, tuple) else (index,)
    if parts[0] is Ellipsis:
        return _like(x, x._values[index])
    everything = slice(None)
    if parts[0] == everything and len(parts) > x._ragged_idx and all(one == everything for one in parts[:x._ragged_idx + 1]) and not any(
            isinstance(one, Tensor) or one is None for one in parts):
        return _like(x, x._values[parts[1:]])
    if parts == (everything,):
        return x
    raise RuntimeError(f"slice(): not supported for NestedTensor on dim={0 if parts[0] != everything else x._ragged_idx}")


def _linear(input, weight, bias=None):
    if input._ragged_idx == input._values.dim():
        raise RuntimeError("linear(): not supported for NestedTensor on ragged dim")
    return _like(input, _core.linear(input._values, weight, bias))


def _product(x, other):
    if not isinstance(x, NestedTensor) or isinstance(other, NestedTensor):
        raise NotImplementedError("matmul of two nested tensors, or of a dense and a nested one, is left out: use `to_padded_tensor`")
    if x._ragged_idx == x._values.dim():
        raise RuntimeError("matmul(): not supported for NestedTensor on ragged dim")
    return _like(x, x._values @ other) if other.dim() == 2 else _unpadded(_padded(x) @ other, x)


def _along(name, place=1):
    """Returns a function of the values along a dimension, which is an argument."""
    def along(x, *args, **kwargs):
        args = list(args)
        dim = args[place - 1] if len(args) >= place else kwargs.pop("dim", -1 if name != "chunk" else 0)
        args[place - 1:place] = [_dim(x, dim, name)]
        found = getattr(x._values, name)(*args, **kwargs)
        return tuple(_like(x, one) for one in found) if isinstance(found, (tuple, list)) else _like(x, found)
    return along


def _joined(tensors, dim=0):
    first, own = tensors[0], _dim(tensors[0], dim, "cat")
    return _like(first, _core.cat([one._values for one in tensors], own))


def _normalized(name):
    def normalize(input, normalized_shape, *args, **kwargs):
        if len(normalized_shape) > input._values.dim() - input._ragged_idx:
            raise RuntimeError(f"{name}(): normalizing over ragged dim not supported for nested tensors")
        return _like(input, getattr(_core, name)(input._values, list(normalized_shape), *args, **kwargs))
    return normalize


def _written(name):
    def write(x, *args, **kwargs):
        getattr(x._values, name)(*args, **kwargs)
        return x
    return write


def _shown(x, *_, **__):
    if x._layout is _core.strided:
        lines = ",\n".join("  " + repr(one.detach()).replace("\n", "\n  ") for one in _unbound(x))
        return f"nested_tensor([\n{lines}\n])"
    return f"NestedTensor(size={tuple(_sizes(x))}, offsets={x._rows.offsets}, contiguous=True)"


def _refused(name):
    def refuse(x, *_, **__):
        raise RuntimeError(f".{name}() is not supported for tensor subclasses, got NestedTensor")
    return refuse


_FUNCTIONS = {
    "size": _size, "dim": lambda x: x._values.dim() + 1, "ndimension": lambda x: x._values.dim() + 1, "numel": lambda x: x._values.numel(),
    "nelement": lambda x: x._values.numel(), "__len__": lambda x: x._rows.offsets.numel() - 1, "values": lambda x: x._values.flatten() if x._layout is _core.strided else x._values, "__iter__": lambda x: iter(_unbound(x)),
    "offsets": lambda x: x._rows.offsets, "lengths": lambda x: None, "unbind": _unbound, "to_padded_tensor": _padded, "is_contiguous": lambda x, *_, **__: True,
    "sum": _reduced("sum"), "mean": _reduced("mean"), "amax": _extreme("amax", float("-inf")), "amin": _extreme("amin", float("inf")),
    "max": _extreme("amax", float("-inf")), "min": _extreme("amin", float("inf")), "any": lambda x: x._values.any(), "all": lambda x: x._values.all(),
    "softmax": _softmax("softmax"), "log_softmax": _softmax("log_softmax"), "transpose": _transposed, "permute": _permuted, "view": _viewed, "reshape": _viewed,
    "unflatten": _unflattened, "flatten": _flattened, "unsqueeze": _unsqueezed, "squeeze": _squeezed, "__getitem__": _item, "select": lambda x, dim, index: (
        _unbound(x)[index] if dim == 0 else _along("select")(x, dim, index)), "linear": _linear, "matmul": _product, "__matmul__": _product, "mm": _product,
    "bmm": _product, "__rmatmul__": lambda x, other: _product(other, x), "chunk": _along("chunk", 2), "split": _along("split", 2), "narrow": _along("narrow"),
    "argmax": _along("argmax"), "argmin": _along("argmin"), "cat": _joined, "layer_norm": _normalized("layer_norm"), "rms_norm": _normalized("rms_norm"),
    "scaled_dot_product_attention": _attention, "embedding": lambda input, weight, *args, **kwargs: _like(input, _embedded(input, weight, args, kwargs)),
    "is_floating_point": lambda x: x._values.is_floating_point(), "is_complex": lambda x: x._values.is_complex(), "get_device": lambda x: x._values.get_device(),
    "element_size": lambda x: x._values.element_size(), "tolist": _refused("tolist"), "_numpy": _refused("numpy"), "numpy": _refused("numpy"), "item": _refused("item"),
    "requires_grad_": _written("requires_grad_"), "zero_": _written("zero_"), "detach_": _written("detach_"), "retain_grad": _written("retain_grad"),
    "register_hook": lambda x, hook: x._values.register_hook(lambda gradient: _external.in_graph(hook(_like(x, gradient)))),
    "expand": lambda x, *sizes: x, "__repr__": _shown, "_repr": _shown, "__str__": _shown, "__format__": _shown, "record_stream": _written("record_stream"),
    "backward": lambda x, gradient=None, *args, **kwargs: x._values.backward(gradient if gradient is None else gradient._values, *args, **kwargs)}
# These are not functions of dense tensors.
for _name in ("values", "offsets", "lengths", "to_padded_tensor"):
    setattr(NestedTensor, _name, _FUNCTIONS[_name])
_OF_VALUES = frozenset("dtype device requires_grad is_leaf grad_fn is_cuda is_meta is_cpu itemsize _version retains_grad".split())
_ELEMENTS = _kinds.LINEAR | _kinds.LIKE | _kinds.OF_ELEMENTS


def _embedded(input, weight, *args, **kwargs):
    from .nn.functional import embedding
    return _like(input, embedding(input._values, weight, *args, **kwargs))


_FUNCTIONS["embedding"] = _embedded


def _called(func, args, kwargs):
    """Returns the result of a function of nested tensors."""
    name, owner = _kinds.name_of(func), _torch_functions.property_name(func)
    x = args[0] if args else None
    if owner is not None and getattr(func, "__name__", "") == "__set__":
        return setattr(x._values, owner, _external.in_graph(args[1]))
    if owner in _OF_VALUES:
        return getattr(x._values, owner)
    if owner == "grad":
        return None if x._values.grad is None else _like(x, x._values.grad)
    if owner in ("shape", "layout", "data", "ndim"):
        return {"shape": lambda: _shape(x), "layout": lambda: x._layout, "data": lambda: _like(x, x._values.data), "ndim": lambda: x._values.dim() + 1}[owner]()
    if owner in ("is_nested", "is_sparse"):
        return owner == "is_nested"
    if owner in ("__hash__",) or name == "__hash__":
        return id(x)
    if name in _FUNCTIONS:
        return _FUNCTIONS[name](*args, **kwargs)
    if name in _ELEMENTS or name.rstrip("_") in _ELEMENTS:
        made = _of_elements(func, args, kwargs)
        return x if name.endswith("_") and not name.endswith("__") else made
    raise NotImplementedError(f"{name or owner} of nested tensors is left out: call it for the samples (`unbind`) or with `to_padded_tensor`")
