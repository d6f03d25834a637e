"""Process groups (`torch.distributed`): ranks are processes, which a launcher starts, or threads.

Tensors of GPUs are exchanged by NCCL, unless the backend is gloo, and so are those of simulated GPUs of one process. All others go
through the host (`_hub.py`).
"""

import datetime
import os
import threading

from .. import _core
from .._left_out import attributes
from ._collectives import (  # noqa: F401
    P2POp, all_gather, all_gather_coalesced, all_gather_into_tensor, all_gather_object, all_reduce, all_reduce_coalesced, all_to_all,
    all_to_all_single, barrier, batch_isend_irecv, broadcast, broadcast_object_list, gather, gather_object, irecv, isend, monitored_barrier, recv,
    recv_object_list, reduce, reduce_scatter, reduce_scatter_tensor, scatter, scatter_object_list, send, send_object_list)
from ._group import ProcessGroup, ReduceOp, Work, _make_nccl_premul_sum  # noqa: F401
from .constants import default_pg_timeout
from ._stores import FileStore, HashStore, PrefixStore, Store, TCPStore  # noqa: F401

_BACKENDS = ("nccl", "gloo", "mpi", "threads", "cuda:nccl", "cpu:gloo,cuda:nccl", "cpu:gloo", "cuda:gloo")
reduce_op = ReduceOp


class DistError(RuntimeError):
    """The exception of process groups."""


class DistBackendError(DistError):
    """The exception of a backend."""


class DistNetworkError(DistError):
    """The exception of a network."""


class DistStoreError(DistError):
    """The exception of a store."""


class DistQueueEmptyError(DistStoreError):
    """The exception of an empty queue in a store."""


class Backend(str):
    """The name of a backend."""

    UNDEFINED, GLOO, NCCL, MPI, UCC, XCCL, FAKE = "undefined", "gloo", "nccl", "mpi", "ucc", "xccl", "fake"
    backend_list = [UNDEFINED, GLOO, NCCL]
    default_device_backend_map = {"cpu": GLOO, "cuda": NCCL}
    backend_capability = {GLOO: ["cpu", "cuda"], NCCL: ["cuda"]}

    def __new__(cls, name):
        if not isinstance(name, str):
            raise ValueError(f"Backend constructor parameter must be string-ish, not {name!r}")
        return super().__new__(cls, name.lower())


class _World:
    """The groups of a process, or of a thread that is a rank."""

    def __init__(self):
        self.group, self.groups, self.store, self.count, self.client, self.device = None, {}, None, 0, None, None


_process = _World()
_thread = threading.local()


def _world():
    """Returns the groups of this rank."""
    return getattr(_thread, "world", None) or _process


class _Group(type):
    @property
    def WORLD(cls):
        """The group of all ranks, or None."""
        return _world().group


class group(metaclass=_Group):
    """The group of all ranks, under PyTorch's name."""


class GroupMember(metaclass=_Group):
    """The group of all ranks, and the value for ranks that are in no group."""

    NON_GROUP_MEMBER = -100


def is_available():
    """Returns True."""
    return True


def is_initialized():
    """Returns whether the group of all ranks has been made."""
    return _world().group is not None


def is_torchelastic_launched():
    """Returns whether a launcher started the program."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_gloo_available():
    """Returns True: tensors are exchanged through the host."""
    return True


def is_nccl_available():
    """Returns whether there are GPUs, whose tensors NCCL exchanges."""
    from ..cuda import is_available
    return is_available()


def is_mpi_available():
    """Returns False: tensors are exchanged by NCCL, or through the host."""
    return False


is_ucc_available = is_xccl_available = is_mpi_available


def is_backend_available(backend):
    """Returns whether there is a backend of this name."""
    return backend.lower() == "gloo"


def get_default_backend_for_device(device):
    """Returns the name of the backend for a device."""
    kind = str(device).partition(":")[0]
    return "nccl" if kind == "cuda" else "gloo"


def _place(name, value, variable, default):
    return value if value != -1 else int(os.environ.get(variable, default))


def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None, group_name="", pg_options=None,
                       device_id=None):
    """Makes the group of all ranks. Every rank calls it, and they meet at the store of rank 0 (`MASTER_ADDR`, `MASTER_PORT`)."""
    world = _world()
    if is_initialized():
        raise ValueError("trying to initialize the default process group twice!")
    if backend is not None and backend.lower() not in _BACKENDS:
        raise ValueError(f"init_process_group: the backend is nccl or gloo, not {backend!r}")
    if store is not None and init_method is not None:
        raise AssertionError("Cannot specify both init_method and store.")
    url, query = (init_method or "env://").partition("?")[::2]
    asked = dict(part.split("=") for part in query.split("&") if "=" in part)
    ranks = _place("world_size", int(asked.get("world_size", world_size)), "WORLD_SIZE", "1")
    own = _place("rank", int(asked.get("rank", rank)), "RANK", "0")
    if not 0 <= own < ranks:
        raise ValueError(f"init_process_group: rank {own} is not within a group of {ranks}")
    timeout = timeout or default_pg_timeout
    if ranks > 1:
        world.store = store if store is not None else _meeting(url, own, ranks, timeout)
        world.client = world.store._hub
        world.client.join(own)
    world.group = ProcessGroup(world.client, range(ranks), own, "0", timeout, (backend or "cpu:gloo,cuda:nccl").lower(), world.store)
    world.groups, world.count = {"0": world.group}, 1
    if ranks > 1:
        world.group.exchange(None, "init_process_group")


def _meeting(url, rank, ranks, timeout):
    """Returns the store at which ranks meet."""
    if url.startswith("file://"):
        raise NotImplementedError("init_process_group(init_method='file://…') is left out: give a port (`tcp://host:port`), or set MASTER_ADDR and "
                                  "MASTER_PORT")
    if url.startswith("tcp://"):
        host, _, port = url.removeprefix("tcp://").rstrip("/").rpartition(":")
    elif url in ("env://", ""):
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise ValueError(f"Error initializing torch.distributed using env:// rendezvous: environment variable {missing[0]} expected, but not set")
        host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    else:
        raise ValueError(f"init_process_group: no ranks meet at {url!r}: say `env://` or `tcp://host:port`")
    return TCPStore(host, int(port), None, rank == 0, timeout)


def destroy_process_group(group=None):
    """Destroys a group, or all of them."""
    world = _world()
    own = _check("destroy_process_group", group)
    if own is not world.group:
        world.groups.pop(own._group_name, None)
        return
    if world.client is not None and own.size() > 1:
        try:
            own.exchange(None, "destroy_process_group")
            world.client.leave(own._own, " its part of the group")
        except (RuntimeError, TimeoutError, OSError):
            pass
    world.group, world.groups, world.store, world.client = None, {}, None, None


def abort(group=None):
    """Ends this rank's part in its groups, without waiting for others."""
    world = _world()
    if world.client is not None:
        world.client.leave(world.group._own, ": it has aborted")
    world.group, world.groups, world.store, world.client = None, {}, None, None


def _check(name, group=None):
    """Returns a group, by default that of all ranks."""
    if not is_initialized():
        raise ValueError("Default process group has not been initialized, please make sure to call init_process_group.")
    if group is None:
        return _world().group
    if group is GroupMember.NON_GROUP_MEMBER:
        return None
    if not isinstance(group, ProcessGroup):
        raise TypeError(f"{name}: the group is a ProcessGroup, not {type(group).__name__}")
    return group


def get_rank(group=None):
    """Returns this rank's number in a group, or -1 if it is not in it."""
    own = _check("get_rank", group)
    return -1 if own is None else own.rank()


def get_world_size(group=None):
    """Returns the number of ranks of a group, or -1 if this one is not in it."""
    own = _check("get_world_size", group)
    return -1 if own is None else own.size()


def get_backend(group=None):
    """Returns the name of the requested backend."""
    return _check("get_backend", group)._backend


def get_backend_config(group=None):
    """Returns the name of the requested backend."""
    return get_backend(group)


def get_process_group_ranks(group=None):
    """Returns the ranks of a group, as numbers of the whole."""
    return list(_check("get_process_group_ranks", group)._ranks)


def get_global_rank(group, group_rank):
    """Returns the number in the whole of a rank of a group."""
    ranks = _check("get_global_rank", group)._ranks
    if not 0 <= group_rank < len(ranks):
        raise ValueError(f"Group rank {group_rank} is not part of group {group}")
    return ranks[group_rank]


def get_group_rank(group, global_rank):
    """Returns the number in a group of a rank of the whole."""
    own = _check("get_group_rank", group)
    if global_rank not in own._ranks:
        raise ValueError(f"Global rank {global_rank} is not part of group {group}")
    return own._ranks.index(global_rank)


def get_node_local_rank(fallback_rank=None):
    """Returns this rank's number on its machine."""
    if "LOCAL_RANK" in os.environ:
        return int(os.environ["LOCAL_RANK"])
    if fallback_rank is not None:
        return int(fallback_rank)
    raise RuntimeError("LOCAL_RANK is not in the environment. Consider passing fallback_rank to allow `get_node_local_rank` to work, assuming you are "
                       "not running in a multi-device context and want the code to run locally instead.")


def new_group(ranks=None, timeout=None, backend=None, pg_options=None, use_local_synchronization=False, group_desc=None, device_id=None):
    """Makes a group of some ranks. All ranks call it, in the same order; ranks that are not in the group get a
    placeholder."""
    whole = _check("new_group")
    world = _world()
    ranks = sorted(range(whole.size()) if ranks is None else ranks)
    if len(set(ranks)) != len(ranks) or not all(0 <= rank < whole.size() for rank in ranks):
        raise ValueError(f"new_group: the ranks {ranks} are not distinct ranks of a group of {whole.size()}")
    name = str(world.count)
    world.count += 1
    if whole._own not in ranks:
        return GroupMember.NON_GROUP_MEMBER
    made = ProcessGroup(world.client, ranks, whole._own, name, timeout or whole._timeout, (backend or whole._backend).lower(), world.store,
                        world.device)
    world.groups[name] = made
    return made


def new_subgroups(group_size=None, group=None, timeout=None, backend=None, pg_options=None, group_desc=None):
    """Divides the ranks into groups of one size. Returns this rank's group, and all of them."""
    count = get_world_size()
    group_size = count if group_size is None else group_size
    if count % group_size:
        raise ValueError("The world size must be divisible by group_size")
    return new_subgroups_by_enumeration([range(first, first + group_size) for first in range(0, count, group_size)], timeout, backend)


def new_subgroups_by_enumeration(ranks_per_subgroup_list, timeout=None, backend=None, pg_options=None, group_desc=None):
    """Makes several groups. Returns this rank's group, and all of them."""
    groups = [new_group(list(ranks), timeout, backend) for ranks in ranks_per_subgroup_list]
    return next((one for one in groups if isinstance(one, ProcessGroup)), None), groups


def split_group(parent_pg=None, split_ranks=None, timeout=None, pg_options=None, group_desc=None):
    """Divides the ranks into given groups, and returns this rank's."""
    return new_subgroups_by_enumeration(split_ranks, timeout)[0]


def _get_default_group():
    """Returns the group of all ranks."""
    return _check("_get_default_group")


def _get_default_store():
    """Returns the store at which the ranks have met."""
    return _world().store


def get_default_store():
    """Returns the store at which the ranks have met."""
    return _world().store


def _rank_not_in_group(group):
    return group is GroupMember.NON_GROUP_MEMBER


def set_debug_level(level):
    """Does nothing: there is no log."""


def get_debug_level():
    """Returns 0: there is no log."""
    return DebugLevel.OFF


class DebugLevel:
    """How much is logged."""

    OFF, INFO, DETAIL = 0, 1, 2


def run_ranks(function, nprocs, args=(), *, devices=None):
    """Calls a function with a rank and further arguments in as many threads as there are ranks, in which the group of all ranks is
    made already, and returns the results. With `devices` each rank has one of them as its current device, and their tensors are
    exchanged directly: GPUs by NCCL, simulated ones (`THALWEG_SIM_DEVICES`) in the same way. Otherwise all share the current device.
    If one raises, the others get an error where they wait for it, and its exception is raised."""
    from ._hub import Hub
    hub, results, errors = Hub(), [None] * nprocs, {}

    def run(rank):
        _thread.world = world = _World()
        world.client, world.store = hub, HashStore()
        world.store._hub = hub
        if devices is not None:
            world.device = _core.device(devices[rank])
            _core._set_current_device(world.device)
        world.group = ProcessGroup(hub, range(nprocs), rank, "0", default_pg_timeout, "threads", world.store, world.device)
        world.groups, world.count = {"0": world.group}, 1
        try:
            results[rank] = function(rank, *args)
        except BaseException as error:
            errors.setdefault(rank, error)
            hub.leave(rank, f": {type(error).__name__}: {error}")
            for own in world.groups.values():
                for communicator in own._communicators.values():
                    communicator.abort(f"{type(error).__name__}: {error}")
        finally:
            _thread.world = None
    threads = [threading.Thread(target=run, args=(rank,), name=f"rank-{rank}") for rank in range(nprocs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next(iter(errors.values()))
    return results


_LATER = {
    "init_device_mesh": "device_mesh", "DeviceMesh": "device_mesh"}
_SUBMODULES = ("algorithms", "checkpoint", "device_mesh", "distributed_c10d", "fsdp", "launch", "run", "tensor", "utils", "rendezvous", "constants",
               "_composable", "_functional_collectives", "_tensor", "elastic", "nn", "optim", "rpc")
_rest = attributes(__name__)


def __getattr__(name):
    import importlib
    if name == "_tensor":
        return importlib.import_module(f"{__name__}.tensor")
    if name in _LATER:
        return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    return _rest(name)
