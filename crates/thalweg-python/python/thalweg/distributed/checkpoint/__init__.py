"""States that all ranks write together (`torch.distributed.checkpoint`): a folder with a file for each rank.

Tensors of which each rank has rows are read back whole, on any number of ranks.
"""

import os
import pickle

from ... import _core
from .. import get_rank, get_world_size, is_initialized
from ..fsdp import ShardedParameter
from ..tensor import DTensor, part_of

__all__ = ["FileSystemReader", "FileSystemWriter", "load", "load_state_dict", "save", "save_state_dict"]


class FileSystemWriter:
    """A folder that states are written to."""

    def __init__(self, path, *_, **__):
        self.path = os.fspath(path)


class FileSystemReader(FileSystemWriter):
    """A folder that states are read from."""


def _path(checkpoint_id, place):
    path = checkpoint_id if checkpoint_id is not None else getattr(place, "path", None)
    if path is None:
        raise ValueError("name a folder by checkpoint_id, or by a FileSystemWriter or FileSystemReader")
    return os.fspath(path)


def _rank():
    return (get_rank(), get_world_size()) if is_initialized() else (0, 1)


def _flat(state, path=()):
    """Yields the values of nested dictionaries and lists with their paths."""
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else None
    if items is None:
        yield path, state
        return
    for key, value in items:
        yield from _flat(value, (*path, key))


def _described(value):
    """Returns a value as it is written: the rows of a rank with the whole shape."""
    if isinstance(value, ShardedParameter):
        return {"rows": value.detach().data, "shape": value._full_shape}
    if isinstance(value, DTensor):
        return {"whole": value.full_tensor()}
    if hasattr(value, "state_dict") and callable(value.state_dict):
        return {"state": value.state_dict()}
    return {"value": value}


def save(state_dict, *, checkpoint_id=None, storage_writer=None, planner=None, process_group=None, no_dist=False, use_collectives=True):
    """Writes a state. All ranks call it."""
    from ...serialization import save as write
    folder, (rank, count) = _path(checkpoint_id, storage_writer), _rank()
    os.makedirs(folder, exist_ok=True)
    values = {path: _described(value) for path, value in _flat(state_dict)}
    write(values, os.path.join(folder, f"__{rank}_0.distcp.part"))
    os.replace(os.path.join(folder, f"__{rank}_0.distcp.part"), os.path.join(folder, f"__{rank}_0.distcp"))
    if is_initialized():
        from .. import barrier
        barrier(process_group)
    if rank == 0:
        with open(os.path.join(folder, ".metadata"), "wb") as file:
            pickle.dump({"ranks": count}, file)
    if is_initialized():
        from .. import barrier
        barrier(process_group)


def load(state_dict, *, checkpoint_id=None, storage_reader=None, planner=None, process_group=None, no_dist=False):
    """Reads a state into the tensors and dictionaries of another, in place. All ranks call it."""
    from ...serialization import load as read
    folder = _path(checkpoint_id, storage_reader)
    with open(os.path.join(folder, ".metadata"), "rb") as file:
        count = pickle.load(file)["ranks"]
    files = [read(os.path.join(folder, f"__{rank}_0.distcp"), weights_only=False) for rank in range(count)]
    own = files[min(_rank()[0], count - 1)]
    for path, value in list(_flat(state_dict)):
        if path not in own:
            raise RuntimeError(f"Missing key in checkpoint state_dict: {'.'.join(map(str, path))}.")
        _put(state_dict, path, value, _read(files, own, path))


def _read(files, own, path):
    """Returns a value: entire, where each rank has written rows."""
    found = own[path]
    if "rows" in found:
        return _core.cat([file[path]["rows"].reshape(-1, *found["shape"][1:]) for file in files]).reshape(found["shape"])
    return next(iter(found.values()))


def _put(state, path, target, value):
    if isinstance(target, ShardedParameter):
        whole = value.reshape(1) if value.dim() == 0 else value
        target.data.copy_(part_of(whole, 0, target._group.rank(), target._group.size()).reshape(target.shape))
    elif isinstance(target, DTensor):
        whole = value
        for dim, placement in enumerate(target.placements):
            if placement.is_shard():
                whole = part_of(whole, placement.dim, target.device_mesh.get_local_rank(dim), target.device_mesh.size(dim))
        target._local.copy_(whole)
    elif isinstance(target, _core.Tensor):
        target.detach().copy_(value)
    elif hasattr(target, "load_state_dict"):
        target.load_state_dict(value)
    else:
        for key in path[:-1]:
            state = state[key]
        state[path[-1]] = value


def save_state_dict(state_dict, storage_writer, process_group=None, coordinator_rank=0, no_dist=False, planner=None):
    """Writes a state, under the former name of `save`."""
    return save(state_dict, storage_writer=storage_writer, process_group=process_group)


def load_state_dict(state_dict, storage_reader, process_group=None, coordinator_rank=0, no_dist=False, planner=None):
    """Reads a state, under the former name of `load`."""
    return load(state_dict, storage_reader=storage_reader, process_group=process_group)
