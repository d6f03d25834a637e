"""Tensors whose parts are on several ranks, under their former name (`torch.distributed._tensor`)."""

from .tensor import *  # noqa: F401,F403
from .tensor import DTensor, Partial, Replicate, Shard, distribute_tensor  # noqa: F401
