"""Former names of `torch.distributed.fsdp`."""

from ..._left_out import attributes
from ..fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard, register_fsdp_forward_method  # noqa: F401

FSDP = FSDPModule
__getattr__ = attributes(__name__)
