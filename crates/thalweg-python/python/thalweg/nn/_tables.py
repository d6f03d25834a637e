"""Rows of tables whose gradients are sparse (`nn.Embedding(sparse=True)`, `nn.EmbeddingBag(sparse=True)`)."""

from .. import _core, _external
from .._sparse import sparse_coo_tensor
from ..autograd.function import Function


class Rows(Function):
    """The rows of a table at indices. The gradient of the table has the indices as its places."""

    @staticmethod
    def forward(ctx, weight, indices, padding_idx):
        ctx.save_for_backward(indices)
        ctx.padding_idx, ctx.shape = padding_idx, weight.shape
        _external.expected()
        return _core.embedding(weight, indices, padding_idx, False)

    @staticmethod
    def backward(ctx, gradient):
        places, = ctx.saved_tensors
        places = places.reshape(-1)
        values = gradient.reshape(places.numel(), *ctx.shape[1:])
        if ctx.padding_idx >= 0:
            kept = (places != ctx.padding_idx).nonzero().reshape(-1)
            places, values = places[kept], values[kept]
        # The places are a copy: a program may write the indices later.
        return sparse_coo_tensor(places.unsqueeze(0).to(_core.int64, copy=True), values, ctx.shape), None, None


def rows(weight, indices, padding_idx, scale_grad_by_freq):
    """Returns the rows of a table at indices."""
    if scale_grad_by_freq:
        raise RuntimeError("embedding_backward: scale_grad_by_freq not supported with sparse gradients")
    return Rows.apply(weight, indices, padding_idx)


def bags(weight, indices, offsets, mode, scale_grad_by_freq, per_sample_weights, include_last_offset, padding):
    """Returns the sum or the mean of the rows of each bag, from an offset to the next."""
    if mode == "max":
        raise ValueError("max mode does not support sparse weights")
    starts = offsets[:-1] if include_last_offset else offsets
    found = rows(weight, indices, padding[0] if padding else -1, scale_grad_by_freq)
    if per_sample_weights is not None:
        found = found * per_sample_weights.unsqueeze(-1)
    counted = _core.ones_like(indices, dtype=found.dtype)
    if padding:
        counted = (indices != padding[0]).to(found.dtype)
        found = found * counted.unsqueeze(-1)
    bag = _core.searchsorted(starts.to(_core.int64), _core.arange(indices.numel(), device=indices.device), right=True) - 1
    sums = found.new_zeros((starts.numel(), weight.shape[1])).index_add(0, bag, found)
    if mode == "sum":
        return sums
    return sums / counted.new_zeros(starts.numel()).index_add(0, bag, counted).clamp_min(1).unsqueeze(-1)
