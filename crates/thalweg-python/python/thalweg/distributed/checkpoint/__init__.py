"""States that all ranks write together (`torch.distributed.checkpoint`): a folder with a file for each rank.

Tensors of which each rank has rows are read back whole, on any number of ranks.
"""

import os
import pickle
import typing

from ... import _core
from ...futures import Future
from .. import get_rank, get_world_size, is_initialized
from ..tensor import DTensor

__all__ = ["CheckpointException", "DefaultLoadPlanner", "DefaultSavePlanner", "FileSystemReader", "FileSystemWriter", "LoadPlanner", "SavePlanner",
           "Stateful", "async_save", "load", "load_state_dict", "save", "save_state_dict"]
STATE_DICT_TYPE = dict


class CheckpointException(BaseException):
    """The exceptions of several ranks."""

    def __init__(self, msg, failures):
        super().__init__(msg, failures)
        self.failures = failures


@typing.runtime_checkable
class Stateful(typing.Protocol):
    """An object with a state of its own, which is written and read in its place."""

    def state_dict(self):
        """Returns the state."""

    def load_state_dict(self, state_dict):
        """Loads a state."""


class SavePlanner:
    """How states are written: each rank writes its parts."""

    def __init__(self, *_, **__):
        pass


class LoadPlanner(SavePlanner):
    """How states are read: as they were written."""


class DefaultSavePlanner(SavePlanner):
    """How states are written: each rank writes its parts."""


class DefaultLoadPlanner(LoadPlanner):
    """How states are read. With `allow_partial_load` a state may have tensors that were not written."""

    def __init__(self, flatten_state_dict=True, flatten_sharded_tensors=True, allow_partial_load=False):
        self.allow_partial_load = allow_partial_load


class _EmptyStateDictLoadPlanner(DefaultLoadPlanner):
    """How all tensors of a folder are read into an empty state."""

    def __init__(self, keys=None, *_, **__):
        super().__init__()
        self.keys = keys


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
    if isinstance(value, DTensor):
        if value.device_mesh._ranks == list(range(_rank()[1])) and value.placements[0].is_shard(0):
            return {"rows": value._local.detach(), "shape": tuple(value.shape)}
        return {"whole": value.full_tensor()}
    return {"value": value}


def _opened(state):
    """Returns a state in which objects that have a state of their own are replaced by that state."""
    if isinstance(state, dict):
        return {key: _opened(value) for key, value in state.items()}
    is_object = hasattr(state, "state_dict") and callable(state.state_dict) and not isinstance(state, _core.Tensor)
    return _opened(state.state_dict()) if is_object else state


def save(state_dict, *, checkpoint_id=None, storage_writer=None, planner=None, process_group=None, no_dist=False, use_collectives=True):
    """Writes a state. All ranks call it."""
    from ...serialization import save as write
    folder, (rank, count) = _path(checkpoint_id, storage_writer), _rank()
    os.makedirs(folder, exist_ok=True)
    values = {path: _described(value) for path, value in _flat(_opened(state_dict))}
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
    if isinstance(planner, _EmptyStateDictLoadPlanner):
        for path in own:
            if planner.keys is None or ".".join(map(str, path)).startswith(tuple(planner.keys)):
                _insert(state_dict, path, _read(files, own, path))
        return
    is_partial = getattr(planner, "allow_partial_load", False)
    opened = _opened(state_dict)
    for path, value in list(_flat(opened)):
        if path in own:
            _put(opened, path, value, _read(files, own, path))
        elif not is_partial:
            raise RuntimeError(f"Missing key in checkpoint state_dict: {'.'.join(map(str, path))}.")
    _return(state_dict, opened)


def _insert(state, path, value):
    """Puts a value at a path of nested dictionaries."""
    for key in path[:-1]:
        state = state.setdefault(key, {})
    state[path[-1]] = value


def _return(state, opened):
    """Passes the states that were read to their objects, and writes the values of dictionaries back."""
    for key, value in state.items():
        if isinstance(value, dict):
            _return(value, opened[key])
        elif hasattr(value, "load_state_dict") and not isinstance(value, _core.Tensor):
            value.load_state_dict(opened[key])
        elif not isinstance(value, _core.Tensor):
            state[key] = opened[key]


def async_save(state_dict, *, checkpoint_id=None, storage_writer=None, planner=None, process_group=None, **options):
    """Writes a state as it is now, and returns a future. The ranks write together, before this function returns."""
    made = Future()
    save(state_dict, checkpoint_id=checkpoint_id, storage_writer=storage_writer, planner=planner, process_group=process_group)
    made.set_result(None)
    return made


def _load_state_dict(state_dict, storage_reader, process_group=None, coordinator_rank=0, no_dist=False, planner=None):
    """Reads a state into the tensors and dictionaries of another."""
    return load(state_dict, storage_reader=storage_reader, planner=planner)


def dcp_to_torch_save(dcp_checkpoint_dir, torch_save_path):
    """Writes the entire tensors of a folder as a file of `torch.save`."""
    from ...serialization import save as write
    state = {}
    load(state, checkpoint_id=dcp_checkpoint_dir, planner=_EmptyStateDictLoadPlanner())
    write(state, torch_save_path)


def torch_save_to_dcp(torch_save_path, dcp_checkpoint_dir):
    """Writes a file of `torch.save` as a folder."""
    from ...serialization import load as read
    save(read(torch_save_path, weights_only=False), checkpoint_id=dcp_checkpoint_dir)


def _read(files, own, path):
    """Returns a value: entire, where each rank has written rows."""
    found = own[path]
    if "rows" in found:
        return _core.cat([file[path]["rows"].reshape(-1, *found["shape"][1:]) for file in files]).reshape(found["shape"])
    return next(iter(found.values()))


def _put(state, path, target, value):
    if isinstance(target, DTensor):
        target._local.detach().copy_(target._part(value, target.placements))
    elif isinstance(target, _core.Tensor):
        target.detach().copy_(value)
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
