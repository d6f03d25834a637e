"""PyTorch's first wrapper of sharded modules, which is left out, under the name of its module."""

from ..._left_out import attributes
from . import FullyShardedDataParallel  # noqa: F401

__getattr__ = attributes(__name__.rpartition(".")[0])
