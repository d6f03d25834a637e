"""Placements of the parts of a tensor among ranks (`torch.distributed.tensor`).
Programs create these values at import time."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Placement:
    """A placement of the parts of a tensor."""

    def is_shard(self, dim=None):
        """Returns whether each rank has a part of a dimension."""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self):
        """Returns whether each rank has the entire tensor."""
        return isinstance(self, Replicate)

    def is_partial(self, reduce_op=None):
        """Returns whether each rank has a term of a reduction."""
        return isinstance(self, Partial) and reduce_op in (None, self.reduce_op)


@dataclasses.dataclass(frozen=True)
class Replicate(Placement):
    """Each rank has the entire tensor."""


@dataclasses.dataclass(frozen=True)
class Shard(Placement):
    """Each rank has a part of a dimension."""

    dim: int


@dataclasses.dataclass(frozen=True)
class _StridedShard(Placement):
    """Each rank has its part of each of several parts of a dimension, as if that had been divided before. As in PyTorch, this class does not derive
    from `Shard`."""

    dim: int
    split_factor: int = dataclasses.field(kw_only=True)


@dataclasses.dataclass(frozen=True)
class Partial(Placement):
    """Each rank has a term of a reduction."""

    reduce_op: str = "sum"


def names():
    """Returns the classes by name."""
    return {one.__name__: one for one in (Placement, Replicate, Shard, Partial, _StridedShard)}
