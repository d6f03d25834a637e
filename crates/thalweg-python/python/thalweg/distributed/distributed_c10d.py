"""The names of process groups (`torch.distributed.distributed_c10d`)."""

from .._left_out import attributes as _attributes
from . import *  # noqa: F401,F403
from . import (  # noqa: F401
    Backend, DistBackendError, DistError, DistNetworkError, DistStoreError, GroupMember, P2POp, PrefixStore, ProcessGroup, ReduceOp, Store, TCPStore,
    Work, get_global_rank as _get_global_rank, get_group_rank as _get_group_rank, _get_default_group, _get_default_store, _rank_not_in_group, _world, default_pg_timeout, get_rank, get_world_size, group, is_initialized,
    new_group)
from ._collectives import _all_gather_base, _reduce_scatter_base  # noqa: F401


__getattr__ = _attributes(__name__)
