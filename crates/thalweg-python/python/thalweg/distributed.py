"""Process groups of one process (`torch.distributed`), so that programs that can train on many GPUs run on one.

Groups of several ranks are in the Rust crate (`thalweg::distributed`). Functions that need them raise an error that says so.
"""

import os

from . import _core
from ._left_out import attributes

_RUST = "groups of several ranks are not in Python yet; they are in the Rust crate (`thalweg::distributed`)"
_BACKENDS = ("nccl", "gloo", "cuda:nccl", "cpu:gloo,cuda:nccl")
_backend = None


class ReduceOp:
    """The reduction operations. Over one rank, each returns the tensor itself."""

    SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR = "sum", "avg", "product", "min", "max", "band", "bor", "bxor"
    PREMUL_SUM, RedOpType = "premul_sum", str


class Work:
    """A collective in progress. Over one rank, it is already complete."""

    def wait(self, timeout=None):
        """Returns True."""
        return True

    def is_completed(self):
        """Returns True."""
        return True


class _Group:
    WORLD = None


group = _Group


def is_available():
    """Returns True: there are groups of one rank."""
    return True


def is_initialized():
    """Returns whether the default group has been created."""
    return _backend is not None


def is_torchelastic_launched():
    """Returns whether `torchrun` started the program."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_nccl_available():
    """Returns False: groups over several GPUs are not available in Python yet."""
    return False


def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None, group_name="", pg_options=None,
                       device_id=None):
    """Creates the default group, which contains only this process. `WORLD_SIZE` or `world_size` above 1 is refused."""
    global _backend
    if is_initialized():
        raise ValueError("trying to initialize the default process group twice!")
    if backend is not None and backend not in _BACKENDS:
        raise ValueError(f"init_process_group: the backend is nccl or gloo, not {backend!r}")
    ranks = world_size if world_size != -1 else int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        raise NotImplementedError(f"init_process_group with {ranks} ranks is left out: {_RUST}")
    place = rank if rank != -1 else int(os.environ.get("RANK", "0"))
    if ranks != 1 or place != 0:
        raise ValueError(f"init_process_group: rank {place} is not within a group of {ranks}")
    _backend = backend or "nccl"


def destroy_process_group(group=None):
    """Destroys the default group."""
    global _backend
    _check("destroy_process_group", group)
    _backend = None


def _check(name, group=None):
    if not is_initialized():
        raise ValueError("Default process group has not been initialized, please make sure to call init_process_group.")
    if group is not None:
        raise NotImplementedError(f"{name}(group=...) is left out: {_RUST}")


def get_rank(group=None):
    """Returns 0."""
    _check("get_rank", group)
    return 0


def get_world_size(group=None):
    """Returns 1."""
    _check("get_world_size", group)
    return 1


def get_backend(group=None):
    """Returns the name of the requested backend."""
    _check("get_backend", group)
    return _backend


def _only(name, rank, what):
    if rank not in (None, 0):
        raise ValueError(f"{name}: {what} is rank {rank}, and the group has rank 0 alone")


def _begun(async_op):
    return Work() if async_op else None


def _tensor(name, tensor):
    if not isinstance(tensor, _core.Tensor):
        raise TypeError(f"{name} takes a Tensor, not {type(tensor).__name__}")


def barrier(group=None, async_op=False, device_ids=None):
    """Returns immediately: there is no other rank to wait for."""
    _check("barrier", group)
    return _begun(async_op)


def all_reduce(tensor, op=ReduceOp.SUM, group=None, async_op=False):
    """Leaves the tensor unchanged: it is the reduction over one rank."""
    _check("all_reduce", group)
    _tensor("all_reduce", tensor)
    return _begun(async_op)


def reduce(tensor, dst=None, op=ReduceOp.SUM, group=None, async_op=False):
    """Leaves the tensor unchanged: it is the reduction over one rank."""
    _only("reduce", dst, "dst")
    return all_reduce(tensor, op, group, async_op)


def broadcast(tensor, src=None, group=None, async_op=False):
    """Leaves the tensor unchanged: it is that of rank 0."""
    _check("broadcast", group)
    _only("broadcast", src, "src")
    _tensor("broadcast", tensor)
    return _begun(async_op)


def broadcast_object_list(object_list, src=None, group=None, device=None):
    """Leaves the list unchanged: it is that of rank 0."""
    _check("broadcast_object_list", group)
    _only("broadcast_object_list", src, "src")


def all_gather(tensor_list, tensor, group=None, async_op=False):
    """Copies the tensor into a list of one."""
    _check("all_gather", group)
    if len(tensor_list) != 1:
        raise ValueError(f"all_gather: the list has {len(tensor_list)} tensors, and the group 1 rank")
    tensor_list[0].copy_(tensor)
    return _begun(async_op)


def all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
    """Copies the tensor."""
    _check("all_gather_into_tensor", group)
    output_tensor.copy_(input_tensor.reshape(output_tensor.shape))
    return _begun(async_op)


def all_gather_object(object_list, obj, group=None):
    """Puts the object into a list of one."""
    _check("all_gather_object", group)
    object_list[0] = obj


def reduce_scatter_tensor(output, input, op=ReduceOp.SUM, group=None, async_op=False):
    """Copies the tensor, which is the reduction over one rank."""
    _check("reduce_scatter_tensor", group)
    output.copy_(input.reshape(output.shape))
    return _begun(async_op)


__getattr__ = attributes(__name__)
