"""Methods and attributes of PyTorch tensors that libraries use.
They concern kinds of tensors that do not exist here, older spellings, and subclasses."""

import types

from . import _core
from ._results import Size
from ._storage import tensor_over

Tensor = _core.Tensor

_SPARSE = "it is left out for sparse tensors"
_QUANTIZED = "there are no quantized tensors"
_NAMED = "dimensions have no names"
_LEFT_OUT = {
    **dict.fromkeys((
        "ccol_indices", "resize_as_sparse_", "row_indices",
        "sparse_resize_", "sparse_resize_and_clear_", "sspaddmm", "to_sparse_bsc", "to_sparse_bsr",
        "to_sparse_csc"), _SPARSE),
    **dict.fromkeys((
        "dequantize", "int_repr", "q_per_channel_axis", "q_per_channel_scales", "q_per_channel_zero_points", "q_scale", "q_zero_point", "qscheme"),
        _QUANTIZED),
    **dict.fromkeys(("align_as", "align_to", "refine_names", "rename", "rename_"), _NAMED),
    **dict.fromkeys(("eig", "lstsq", "solve", "symeig", "reinforce"), "PyTorch has removed it as well, and refuses calls"),
    **dict.fromkeys(("chalf",), "complex numbers of 16 bits are a name alone"), "hash_tensor": "there is no reduction by exclusive or",
    "slice_inverse": "it is internal to PyTorch, and Thalweg has none of it",
    **dict.fromkeys(("resize", "resize_as"), "say `resize_` and `resize_as_`, or `reshape`"),
    **dict.fromkeys(("to_mkldnn", "ipu", "xpu", "mtia", "to_padded_tensor"), "there is no backend of it"),
}


def _left_out(name, reason):
    def refuse(self, *args, **kwargs):
        raise NotImplementedError(f"Tensor.{name} is left out: {reason}")
    refuse.__name__, refuse.__qualname__, refuse.__doc__ = name, f"Tensor.{name}", f"Left out: {reason}."
    return refuse


def _new(self, *data, device=None, size=None):
    """Returns a tensor with this tensor's dtype: from data, or from sizes with uninitialised elements."""
    device = device or self.device
    if size is not None:
        data = (Size(size),)
    if len(data) == 1 and hasattr(data[0], "untyped"):
        return tensor_over(data[0], self.dtype)
    if len(data) == 1 and isinstance(data[0], Tensor):
        if data[0].dtype != self.dtype:
            raise TypeError(f"expected a tensor of {self.dtype} (got {data[0].dtype})")
        return data[0].detach()
    if len(data) == 1 and not isinstance(data[0], (int, Size)):
        return _core.tensor(data[0], dtype=self.dtype, device=device)
    sizes = data[0] if len(data) == 1 and isinstance(data[0], Size) else data or (0,)
    return _core.empty(list(sizes), dtype=self.dtype, device=device)


def _as_subclass(self, cls):
    """Returns the tensor as an instance of a subclass."""
    if not issubclass(cls, Tensor):
        raise RuntimeError(
            "Creating a Tensor subclass from a class that does not inherit from Tensor is not possible. Make sure your class inherits from Tensor.")
    made = Tensor.__new__(cls, self)
    made._share(self)
    return made


def _make_subclass(cls, data, require_grad=False, **options):
    """Returns data as an instance of a subclass."""
    return Tensor.__new__(cls, data.detach(), requires_grad=require_grad)


def _reversed(self):
    """Returns the tensor with its first dimension reversed."""
    return self if self.dim() == 0 else self.flip(0)


def _rdiv(self, other):
    """Returns another value divided by the tensor."""
    return other / self


def _idiv(self, other):
    """Divides the tensor in place."""
    return self.div_(other)


def _array_wrap(self, array, context=None, return_scalar=False):
    """Returns a NumPy array, the result of a NumPy function of this tensor, as a tensor."""
    return _core.tensor(array, device=self.device)


def _dim_order(self, *, ambiguity_check=False):
    """Returns the dimensions in order of decreasing stride."""
    strides = self.stride()
    return tuple(sorted(range(self.dim()), key=lambda dim: -strides[dim]))


def _fill_diagonal_(self, fill_value, wrap=False):
    """Fills the diagonal, in place. With `wrap`, the diagonal of a tall matrix continues below."""
    if self.dim() < 2:
        raise RuntimeError("dimensions must larger than 1")
    if self.dim() > 2 and len(set(self.shape)) != 1:
        raise RuntimeError("all dimensions of input must be of equal length")
    if wrap and self.dim() == 2 and self.shape[0] > self.shape[1] + 1:
        rows, columns = self.shape
        for first in range(0, rows, columns + 1):
            self[first:first + columns].diagonal().fill_(fill_value)
    else:
        self.as_strided([min(self.shape)], [sum(self.stride())]).fill_(fill_value)
    return self


def _module_load(self, other, assign=False):
    """Returns the new value of a module's parameter when a state is loaded: the other tensor, or this tensor with the other's
    values."""
    return other.detach() if assign else self.copy_(other).detach()


def _to_sparse(self, *args, layout=None, blocksize=None, dense_dim=None):
    """Returns the tensor as a sparse one."""
    from ._sparse import to_sparse
    return to_sparse(self, *args, layout=layout)


def _to_sparse_csr(self, dense_dim=None):
    """Returns the matrix as a sparse one by its rows."""
    from ._names import sparse_csr
    return _to_sparse(self, layout=sparse_csr)


def _sparse_mask(self, mask):
    """Returns the elements at the indices of a sparse tensor, as a sparse tensor."""
    from ._sparse import masked
    return masked(self, mask)


def _of_sparse(name):
    def method(self):
        from ._sparse import part
        return part(self, name)
    method.__name__, method.__qualname__, method.__doc__ = name, f"Tensor.{name}", "Returns a part of a sparse tensor. Raises for others."
    return method


def add():
    """Adds the names to `Tensor`, except for those that it already has."""
    made = {name: _left_out(name, reason) for name, reason in _LEFT_OUT.items()}
    made |= {name: _of_sparse(name) for name in (
        "coalesce", "indices", "values", "_indices", "_values", "_nnz", "is_coalesced", "crow_indices", "col_indices")}
    made |= {"to_sparse": _to_sparse, "to_sparse_coo": _to_sparse, "to_sparse_csr": _to_sparse_csr, "smm": lambda self, mat: self @ mat,
             "sparse_mask": _sparse_mask}
    made |= dict.fromkeys((
        "is_ipu", "is_maia", "is_mkldnn", "is_mps", "is_mtia", "is_nested", "is_sparse_csr", "is_vulkan", "is_xla", "is_xpu"), False)
    made |= {
        "new": _new, "as_subclass": _as_subclass, "_make_subclass": staticmethod(_make_subclass),
        "__reversed__": _reversed, "__div__": Tensor.__truediv__, "__rdiv__": _rdiv, "__idiv__": _idiv, "__array_wrap__": _array_wrap,
        "dim_order": _dim_order, "module_load": _module_load, "fill_diagonal_": _fill_diagonal_, "has_names": lambda self: False, "dense_dim": lambda self: self.dim(),
        "sparse_dim": lambda self: 0, "to_dense": lambda self, *args, **kwargs: self, "name": None, "volatile": False,
        "grad_dtype": property(lambda self: self.dtype),
        "names": property(lambda self: (None,) * self.dim()), "_is_zerotensor": lambda self: False,
        "_is_all_true": lambda self: self.all(), "_is_any_true": lambda self: self.any(),
    }
    for name, value in made.items():
        if name not in vars(Tensor):
            setattr(Tensor, name, value)
            if isinstance(value, types.FunctionType) and value.__name__.startswith(("<", "_")):
                value.__name__ = name
