"""Methods and attributes of `Tensor` that are neither operators nor conversions of their own: `new`, `type`, `fill_diagonal_`, flags."""

from . import _core
from ._results import Size
from ._typed import NAMES

Tensor = _core.Tensor


def _new(self, *data, device=None):
    """Returns a tensor of this one's dtype, on its device or another: of sizes, with elements that are not written, or of data."""
    device = self.device if device is None else device
    if len(data) == 1 and not isinstance(data[0], (int, Size)):
        return _core.tensor(data[0], dtype=self.dtype, device=device)
    sizes = data[0] if data and isinstance(data[0], Size) else data or (0,)
    return _core.empty(list(sizes), dtype=self.dtype, device=device)


def _type(self, dtype=None, non_blocking=False):
    """Returns the name of the dtype; or the tensor in another dtype, which is one, a class of tensors, or its name (`"torch.FloatTensor"`)."""
    from ._typed import KINDS
    if dtype is None:
        name = KINDS.get(self.dtype._name, self.dtype._name)
        return f"torch.{'cuda.' if self.is_cuda else ''}{name}Tensor"
    if isinstance(dtype, type) and hasattr(dtype, "_on_gpu"):
        dtype = f"torch.{'cuda.' if dtype._on_gpu else ''}{dtype.__name__}"
    if not isinstance(dtype, str):
        return self.to(dtype)
    place, _, name = dtype.rpartition(".")
    if place not in ("torch", "torch.cuda", "thalweg", "thalweg.cuda") or name not in NAMES:
        raise ValueError(f"invalid type: '{dtype}'")
    converted = self.to(getattr(_core, NAMES[name]))
    if place.endswith("cuda"):
        return converted if converted.is_cuda else converted.to("cuda")
    return converted.cpu() if converted.is_cuda else converted


def _fill_diagonal(self, fill_value, wrap=False):
    """Fills the main diagonal in place; of a tall matrix every diagonal after a free row, where `wrap` is true."""
    if self.dim() < 2:
        raise RuntimeError("dimensions must larger than 1")
    height, width = self.shape[0], self.shape[1]
    if self.dim() > 2 and len(set(self.shape)) > 1:
        raise RuntimeError("all dimensions of input must be of equal length")
    starts = range(0, height, width + 1) if wrap and self.dim() == 2 and width else (0,)
    for start in starts:
        count = min(height - start, *self.shape[1:])
        places = _core.arange(count, device=self.device)
        self[(places + start, *[places] * (self.dim() - 1))] = fill_value
    return self


def _polygamma_(self, n):
    """Replaces each element with the n-th derivative of digamma."""
    return self.copy_(_core.polygamma(n, self))


def _map_(self, other, callable):
    """Replaces each element with what a function of Python makes of it and of another tensor's. Blocks."""
    pairs = zip(self.flatten().tolist(), other.expand_as(self).flatten().tolist())
    return self.copy_(_core.tensor([callable(one, other) for one, other in pairs], dtype=self.dtype, device=self.device).view(self.shape))


def _apply_(self, callable):
    """Replaces each element with what a function of Python makes of it. Blocks."""
    values = [callable(value) for value in self.flatten().tolist()]
    return self.copy_(_core.tensor(values, dtype=self.dtype, device=self.device).view(self.shape))


def _dim_order(self, ambiguity_check=False):
    """Returns the dimensions from the one with the greatest stride to that with the least."""
    return tuple(sorted(range(self.dim()), key=lambda dim: -self.stride(dim)))


def _is_set_to(self, tensor):
    """Returns whether two tensors are the same elements of one memory, in one shape."""
    return self.data_ptr() == tensor.data_ptr() and self.shape == tensor.shape and self.stride() == tensor.stride()


def _array_wrap(self, array, context=None, return_scalar=False):
    """Returns an array that NumPy has computed with this tensor as a tensor on its device."""
    return _core.tensor(array, device=self.device)


def add():
    """Adds the methods to the class."""
    own = {"new": _new, "type": _type, "fill_diagonal_": _fill_diagonal, "polygamma_": _polygamma_, "map_": _map_, "apply_": _apply_,
           "dim_order": _dim_order, "is_set_to": _is_set_to, "__array_wrap__": _array_wrap}
    for name, function in own.items():
        function.__name__, function.__qualname__ = name, f"Tensor.{name}"
        setattr(Tensor, name, function)
    Tensor.is_shared = lambda self: False
    # Kinds of tensors and devices that there are none of.
    for name in ("is_xpu", "is_mps", "is_xla", "is_ipu", "is_hpu", "is_mtia", "is_maia", "is_vulkan", "is_mkldnn", "is_nested",
                 "is_sparse", "is_sparse_csr", "is_quantized"):
        setattr(Tensor, name, False)


add()
