"""Attention with a function of the scores (`torch.nn.attention.flex_attention`).
It is computed by operators over the full score matrix."""

import math

from ... import _core
from ..._left_out import placeholder

_DEFAULT_SPARSE_BLOCK_SIZE = 128
_mask_mod_signature = _score_mod_signature = "Callable"
AuxOutput, AuxRequest, FlexKernelOptions = (
    placeholder(f"{__name__}.{name}", "kernels have no options") for name in ("AuxOutput", "AuxRequest", "FlexKernelOptions"))


def noop_mask(batch, head, token_q, token_kv):
    """Returns the mask that hides nothing."""
    return _core.ones([], dtype=getattr(_core, "bool"), device=getattr(token_q, "device", None))


def _places(batch, heads, queries, keys, device):
    """Returns the indices of batches, heads, queries and keys, as tensors of four dimensions."""
    sizes = (batch, heads, queries, keys)
    return [_core.arange(size, device=device).view([-1 if place == dim else 1 for dim in range(4)]) for place, size in enumerate(sizes)]


def _block_table(counts, indices):
    """Returns which blocks are among the first `counts` of each row of indices, as bools."""
    is_listed = _core.arange(indices.shape[-1], device=indices.device) < counts.unsqueeze(-1)
    table = _core.zeros(indices.shape, dtype=_core.int64, device=indices.device)
    return table.scatter_add(-1, indices.long(), is_listed.long()) > 0


class BlockMask:
    """A mask that is defined by a function of batch, head, query and key."""

    def __init__(self, mask_mod, sizes, block_size):
        self.mask_mod, self.seq_lengths, self.BLOCK_SIZE = mask_mod, sizes[2:], block_size
        self._sizes = sizes

    @classmethod
    def from_kv_blocks(cls, kv_num_blocks, kv_indices, full_kv_num_blocks=None, full_kv_indices=None, BLOCK_SIZE=_DEFAULT_SPARSE_BLOCK_SIZE,
                       mask_mod=None, seq_lengths=None, compute_q_blocks=True):
        """Returns a mask of blocks: for each block of queries, its function holds in the first `kv_num_blocks` of the blocks of keys in
        `kv_indices`, and in those of `full_kv_indices` everything is seen."""
        if kv_indices.dim() < 2:
            raise RuntimeError("BlockMask must have at least 2 dimensions")
        if (full_kv_num_blocks is None) != (full_kv_indices is None):
            raise AssertionError("full_kv_num_blocks and full_kv_indices must be both provided or omitted")
        size = BLOCK_SIZE if isinstance(BLOCK_SIZE, tuple) else (BLOCK_SIZE, BLOCK_SIZE)
        partial = _block_table(kv_num_blocks, kv_indices)
        full = None if full_kv_indices is None else _block_table(full_kv_num_blocks, full_kv_indices)
        function = mask_mod or noop_mask

        def in_blocks(batch, head, query, key):
            at = (batch, head, query // size[0], key // size[1])[4 - partial.dim():]
            seen = partial[at] & function(batch, head, query, key)
            return seen if full is None else seen | full[at]
        lengths = seq_lengths or tuple(count * width for count, width in zip(partial.shape[-2:], size))
        mask = cls(in_blocks, (*(partial.shape[:-2] if partial.dim() == 4 else (1, 1)), *lengths), size)
        mask.kv_num_blocks, mask.kv_indices = kv_num_blocks, kv_indices
        mask.full_kv_num_blocks, mask.full_kv_indices = full_kv_num_blocks, full_kv_indices
        return mask

    @property
    def shape(self):
        """The sizes of the mask."""
        return self._sizes

    def to(self, device):
        """Returns the mask itself: its function takes tensors of any device."""
        return self

    def to_dense(self, device=None):
        """Returns the mask as bools."""
        batch, heads, queries, keys = self._sizes
        return self.mask_mod(*_places(batch or 1, heads or 1, queries, keys, device)).expand(batch or 1, heads or 1, queries, keys)


def create_mask(mod_fn, B, H, Q_LEN, KV_LEN, device=None):
    """Returns the mask of a function, as bools."""
    return BlockMask(mod_fn, (B, H, Q_LEN, KV_LEN), None).to_dense(device)


def create_block_mask(mask_mod, B, H, Q_LEN, KV_LEN, device=None, BLOCK_SIZE=_DEFAULT_SPARSE_BLOCK_SIZE, _compile=False, **options):
    """Returns a mask that is defined by a function."""
    size = BLOCK_SIZE if isinstance(BLOCK_SIZE, tuple) else (BLOCK_SIZE, BLOCK_SIZE)
    return BlockMask(mask_mod, (B, H, Q_LEN, KV_LEN), size)


def _create_empty_block_mask(query, key):
    return BlockMask(noop_mask, (1, 1, query.shape[-2], key.shape[-2]), (_DEFAULT_SPARSE_BLOCK_SIZE,) * 2)


def and_masks(*mask_mods):
    """Returns the mask function that is true where all given mask functions are."""
    def both(*places):
        result = noop_mask(*places)
        for mask in mask_mods:
            result = result & mask(*places)
        return result
    return both


def or_masks(*mask_mods):
    """Returns the mask function that is true where any given mask function is."""
    def either(*places):
        result = ~noop_mask(*places)
        for mask in mask_mods:
            result = result | mask(*places)
        return result
    return either


def flex_attention(query, key, value, score_mod=None, block_mask=None, scale=None, enable_gqa=False, return_lse=False, kernel_options=None, **others):
    """Returns attention with scores that a function changes and a mask hides, and on request the logarithms of the sums of
    exponentials."""
    if others.get("return_aux") is not None:
        raise NotImplementedError("flex_attention(return_aux=...) is left out: say return_lse=True")
    if enable_gqa:
        key, value = (part.repeat_interleave(query.shape[1] // part.shape[1], dim=1) for part in (key, value))
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query @ key.transpose(-1, -2)) * scale
    places = _places(*scores.shape, scores.device)
    if score_mod is not None:
        scores = score_mod(scores, *places)
    is_seen = None
    if block_mask is not None:
        is_seen = block_mask.mask_mod(*places)
        scores = scores.masked_fill(~is_seen, -math.inf)
    logarithms = (scores if scores.dtype is _core.float64 else scores.float()).logsumexp(-1)
    weights = (scores - logarithms.unsqueeze(-1).masked_fill(logarithms.unsqueeze(-1) == -math.inf, 0.0)).exp().to(value.dtype)
    result = weights @ value
    return (result, logarithms) if return_lse else result
