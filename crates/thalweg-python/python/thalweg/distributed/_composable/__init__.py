"""Former names of `torch.distributed.fsdp.fully_shard` and others."""

from ..._left_out import attributes
from ..fsdp import fully_shard

__getattr__ = attributes(__name__)
