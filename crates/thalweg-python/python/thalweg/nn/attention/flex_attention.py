"""Attention with a function of the scores (`torch.nn.attention.flex_attention`).
It is computed by operators over the full score matrix."""

import math
import typing

from ... import _core
from ..._left_out import placeholder

_DEFAULT_SPARSE_BLOCK_SIZE = 128
_mask_mod_signature = _score_mod_signature = "Callable"
FlexKernelOptions = placeholder(f"{__name__}.FlexKernelOptions", "kernels have no options")


class AuxRequest(typing.NamedTuple):
    """The values that `flex_attention` returns besides its result: logarithms of sums of exponentials, and the greatest scores."""

    lse: bool = False
    max_scores: bool = False


class AuxOutput(typing.NamedTuple):
    """The values that an `AuxRequest` asked for, and None for the others."""

    lse: typing.Any = None
    max_scores: typing.Any = None


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


_TABLES = tuple(f"{prefix}{side}_{part}" for prefix in ("", "full_") for side in ("kv", "q") for part in ("num_blocks", "indices"))


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
        return tuple(size or 1 for size in self._sizes)

    def to(self, device):
        """Returns the mask itself: its function takes tensors of any device."""
        return self

    def _seen(self, device=None):
        """Returns the mask as bools."""
        batch, heads, queries, keys = self._sizes
        return self.mask_mod(*_places(batch or 1, heads or 1, queries, keys, device)).expand(batch or 1, heads or 1, queries, keys)

    def _counts(self):
        """Returns how many pairs of a query and a key are seen in each block."""
        seen = self._seen()
        rows, columns = self.BLOCK_SIZE
        padded = _core.constant_pad_nd(seen.long(), [0, -seen.shape[3] % columns, 0, -seen.shape[2] % rows])
        return padded.unflatten(3, (-1, columns)).unflatten(2, (-1, rows)).sum([3, 5])

    def to_dense(self):
        """Returns which blocks have pairs that are seen, as 0 and 1."""
        return (self._counts() > 0).int()

    def numel(self):
        """Returns the number of pairs, seen or not."""
        return math.prod(self.shape)

    def sparsity(self):
        """Returns the percentage of pairs that are in blocks in which nothing is seen."""
        return 100.0 * (1.0 - self.to_dense().sum().item() * math.prod(self.BLOCK_SIZE) / self.numel())

    def __getattr__(self, name):
        """The blocks of a mask that a function defines, found when they are first asked for."""
        if name not in _TABLES:
            raise AttributeError(f"'BlockMask' object has no attribute '{name}'")
        counts = self._counts()
        is_full = counts == math.prod(self.BLOCK_SIZE)
        for prefix, blocks in (("full_", is_full), ("", (counts > 0) & ~is_full)):
            for side, table in (("kv", blocks), ("q", blocks.transpose(-2, -1))):
                setattr(self, f"{prefix}{side}_num_blocks", table.sum(-1).int())
                setattr(self, f"{prefix}{side}_indices", table.int().argsort(dim=-1, descending=True, stable=True).int())
        return self.__dict__[name]

    def __repr__(self):
        return f"BlockMask(shape={self.shape}, sparsity={self.sparsity():.2f}%)"


def create_mask(mod_fn, B, H, Q_LEN, KV_LEN, device=None):
    """Returns the mask of a function, as bools."""
    return BlockMask(mod_fn, (B, H, Q_LEN, KV_LEN), None)._seen(device)


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


def flex_attention(query, key, value, score_mod=None, block_mask=None, scale=None, enable_gqa=False, return_lse=False, kernel_options=None, *,
                   return_aux=None):
    """Returns attention with scores that a function changes and a mask hides, and on request the logarithms of the sums of
    exponentials."""
    if return_lse and return_aux is not None:
        raise ValueError("Cannot specify both return_lse and return_aux. return_lse is deprecated, please use return_aux instead.")
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
    if return_aux is not None:
        return result, AuxOutput(logarithms if return_aux.lse else None, scores.amax(-1) if return_aux.max_scores else None)
    return (result, logarithms) if return_lse else result
