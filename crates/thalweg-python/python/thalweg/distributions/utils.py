"""Helpers of distributions (`torch.distributions.utils`)."""

import functools
import numbers

from .. import _core
from .._functions import broadcast_tensors, finfo
from ..autograd import enable_grad

euler_constant = 0.57721566490153286060


def broadcast_all(*values):
    """Returns numbers and tensors as tensors, broadcast to one shape."""
    if not all(isinstance(value, (_core.Tensor, numbers.Number)) for value in values):
        raise ValueError("Input arguments must all be instances of Number, torch.Tensor or objects implementing __torch_function__.")
    tensors = [value for value in values if isinstance(value, _core.Tensor)]
    options = dict(dtype=tensors[0].dtype, device=tensors[0].device) if tensors else dict(dtype=_core.get_default_dtype())
    return tuple(broadcast_tensors(*(value if isinstance(value, _core.Tensor) else _core.tensor(value, **options) for value in values)))


def _standard_normal(shape, dtype, device):
    return _core.randn(list(shape), dtype=dtype, device=device)


def _sum_rightmost(value, dim):
    """Returns sums over the last dimensions."""
    return value if dim == 0 else value.flatten(-dim).sum(-1)


def logits_to_probs(logits, is_binary=False):
    """Returns the probabilities for logits: of two outcomes, or of the categories in the last dimension."""
    return logits.sigmoid() if is_binary else logits.softmax(-1)


def clamp_probs(probs):
    """Returns probabilities, clamped so that none is 0 or 1."""
    eps = finfo(probs.dtype).eps
    return probs.clamp(min=eps, max=1 - eps)


def probs_to_logits(probs, is_binary=False):
    """Returns the logits of probabilities."""
    clamped = clamp_probs(probs)
    return clamped.log() - (-clamped).log1p() if is_binary else clamped.log()


class lazy_property:
    """An attribute that is computed when it is first read."""

    def __init__(self, wrapped):
        self.wrapped = wrapped
        functools.update_wrapper(self, wrapped)

    def __get__(self, instance, owner=None):
        if instance is None:
            return _lazy_property_and_property(self.wrapped)
        with enable_grad():
            value = self.wrapped(instance)
        setattr(instance, self.wrapped.__name__, value)
        return value




class _lazy_property_and_property(lazy_property, property):
    """A lazy attribute as it is read from the class."""

    def __init__(self, wrapped):
        property.__init__(self, wrapped)


def tril_matrix_to_vec(mat, diag=0):
    """Returns the elements of lower triangles as vectors."""
    size = mat.shape[-1]
    if diag < -size or diag >= size:
        raise ValueError(f"diag ({diag}) provided is outside [{-size}, {size - 1}].")
    rows, columns = _core.tril_indices(size, size, diag, device=mat.device)
    return mat[..., rows, columns]


def vec_to_tril_matrix(vec, diag=0):
    """Returns the matrices whose lower triangles have the elements of vectors."""
    count = vec.shape[-1]
    size = (-(1 + 2 * diag) + ((1 + 2 * diag) ** 2 + 8 * count + 4 * abs(diag) * (diag + 1)) ** 0.5) / 2
    if not round(size) == size:
        raise ValueError(f"The size of last dimension is {count} which cannot be expressed as the lower triangular part of a square D x D matrix.")
    size = int(size)
    rows, columns = _core.tril_indices(size, size, diag, device=vec.device)
    mat = _core.zeros(list(vec.shape[:-1]) + [size, size], dtype=vec.dtype, device=vec.device)
    mat[..., rows, columns] = vec
    return mat
