"""Methods of `Tensor` that call Python for each element, or that concern memory and class: `map_`, `is_set_to`, `type`."""

import numbers

from . import _core
from ._typed import NAMES

Tensor = _core.Tensor


def _type(self, dtype=None, non_blocking=False):
    """Returns the name of the dtype, or with `dtype` the tensor in that dtype. `dtype` may be a tensor class or its name
    (`"torch.FloatTensor"`)."""
    if dtype is Tensor:
        dtype = _core.get_default_dtype()
    if dtype is None:
        return f"torch.{'cuda.' if self.is_cuda else ''}{self.dtype._scalar_type}Tensor"
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


def _polygamma_(self, n):
    """Replaces each element with the n-th derivative of digamma."""
    return self.copy_(_core.polygamma(n, self))


def _map_(self, other, callable):
    """Replaces each element with the result of a Python function of it and of the element of another tensor. Blocks."""
    _check_called("map_", callable, self, other)
    pairs = zip(self.flatten().tolist(), other.expand_as(self).flatten().tolist())
    return self.copy_(_core.tensor([_number(callable(one, other)) for one, other in pairs], dtype=self.dtype, device=self.device).view(self.shape))


def _map2_(self, x, y, callable):
    """Replaces each element with the result of a Python function of it and of the elements of two other tensors. Blocks."""
    _check_called("map2_", callable, self, x, y)
    rows = zip(self.flatten().tolist(), *(other.expand_as(self).flatten().tolist() for other in (x, y)))
    values = [_number(callable(*row)) for row in rows]
    return self.copy_(_core.tensor(values, dtype=self.dtype, device=self.device).view(self.shape))


def _check_called(name, function, *tensors):
    """Refuses tensors on which a Python function cannot be called for each element."""
    if not callable(function):
        raise TypeError(f"'{type(function).__name__}' object is not callable")
    if any(tensor.requires_grad for tensor in tensors):
        raise RuntimeError(f"Can't call {name}() on Variable that requires grad. Use var.detach().{name}() instead.")


def _number(value):
    """Returns the number that a Python function returned."""
    if isinstance(value, (str, bytes)) or not isinstance(value, (numbers.Number, Tensor)):
        raise TypeError(f"must be real number, not {type(value).__name__}")
    return value


def _apply_(self, callable):
    """Replaces each element with the result of a Python function of it. Blocks."""
    _check_called("apply_", callable, self)
    values = [_number(callable(value)) for value in self.flatten().tolist()]
    return self.copy_(_core.tensor(values, dtype=self.dtype, device=self.device).view(self.shape))


def _is_set_to(self, tensor):
    """Returns whether two tensors have the same elements of the same storage, with the same shape."""
    def seen(one):
        return one._storage_identity(), one.storage_offset(), one.shape, one.stride(), one.dtype
    return seen(self) == seen(tensor)


def _tensordot(self, other, dims=2):
    """Returns sums of products over dimensions: the last `dims` of one and the first `dims` of the other, or two lists of
    dimensions."""
    from ._functions import tensordot
    return tensordot(self, other, dims)


def add():
    """Adds the methods to the class."""
    for name, function in {"type": _type, "polygamma_": _polygamma_, "map_": _map_, "map2_": _map2_, "apply_": _apply_, "is_set_to": _is_set_to,
                           "tensordot": _tensordot}.items():
        function.__name__, function.__qualname__ = name, f"Tensor.{name}"
        setattr(Tensor, name, function)


add()
