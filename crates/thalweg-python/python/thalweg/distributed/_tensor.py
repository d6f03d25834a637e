"""Tensors whose parts are on several ranks, under their former name (`torch.distributed._tensor`)."""

import sys

from .tensor import *  # noqa: F401,F403
from .tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, experimental, placement_types  # noqa: F401

for _name, _module in (("experimental", experimental), ("placement_types", placement_types)):
    sys.modules[f"{__name__}.{_name}"] = _module
# These are the modules of `torch.distributed.tensor`.
__path__ = []
