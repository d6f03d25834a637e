"""Functions that reduce the gradients of `DistributedDataParallel` (`torch.distributed.algorithms.ddp_comm_hooks`)."""

from ...._left_out import attributes
from . import default_hooks

__getattr__ = attributes(__name__)
