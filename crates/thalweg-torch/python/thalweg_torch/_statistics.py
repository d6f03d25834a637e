"""Statistics, snapshots and histories under PyTorch's names. They need no PyTorch behind them, and work in both tiers."""

import ctypes
import pickle
import sys

from . import _library, _state

_ACTIONS = [
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "annotate",
]


def _index(device):
    import torch

    if isinstance(device, int):
        return device
    if device is None:
        return torch.cuda.current_device()
    device = torch.device(device)
    return torch.cuda.current_device() if device.index is None else device.index


def memory_stats(device=None):
    """The statistics of a device, as `torch.cuda.memory_stats` has them. `pending_use_bytes`, `num_cross_stream_waits` and
    `num_pages_moved` are Thalweg's own."""
    text = _state.library().text("thalweg_memory_stats", _index(device)).decode()
    return {key: int(value) for key, value in (line.rsplit(" ", 1) for line in text.splitlines())}


def memory_stats_as_nested_dict(device=None):
    """The same as nested dictionaries (`torch.cuda.memory_stats_as_nested_dict`)."""
    nested = {}
    for key, value in memory_stats(device).items():
        *path, last = key.split(".")
        place = nested
        for name in path:
            place = place.setdefault(name, {})
        place[last] = value
    return nested


def memory_allocated(device=None):
    """Bytes in tensors."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device=None):
    """The most that `memory_allocated` was."""
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device=None):
    """Bytes taken from the driver."""
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device=None):
    """The most that `memory_reserved` was."""
    return memory_stats(device)["reserved_bytes.all.peak"]


def reset_peak_memory_stats(device=None):
    """Sets every peak to what there is now."""
    _state.library().call("thalweg_reset_peak_statistics", _index(device))


def reset_accumulated_memory_stats(device=None):
    """Sets every sum to 0."""
    _state.library().call("thalweg_reset_accumulated_statistics", _index(device))


def memory_summary(device=None, abbreviated=False):
    """The statistics as a table."""
    return _state.library().text("thalweg_memory_summary", _index(device), int(abbreviated)).decode()


def _snapshot(device=None, augment_with_fx_traces=False):
    """Everything that is known of the memory, as `torch.cuda.memory._snapshot` has it."""
    return pickle.loads(_state.library().text("thalweg_write_snapshot", 0))


def memory_snapshot(mempool_id=None, include_traces=True):
    """The segments, as `torch.cuda.memory_snapshot` has them; of one pool only, if one is named."""
    segments = _snapshot()["segments"]
    if mempool_id is None:
        return segments
    return [segment for segment in segments if tuple(segment["segment_pool_id"]) == tuple(mempool_id)]


def _dump_snapshot(filename="dump_snapshot.pickle", augment_with_fx_traces=False):
    """Writes the snapshot as a file that pytorch.org/memory_viz and `thalweg memory` open."""
    with open(filename, "wb") as file:
        file.write(_state.library().text("thalweg_write_snapshot", 0))


def _record_memory_history(
    enabled="all",
    context="all",
    stacks="all",
    max_entries=sys.maxsize,
    device=None,
    clear_history=False,
    compile_context=False,
    global_record_annotations=False,
    skip_actions=(),
    **_others,
):
    """Records what happens from now on (`torch.cuda.memory._record_memory_history`), on all devices. Stacks are Python's."""
    settings = _library.HistorySettings(
        enabled={None: 0, False: 0, "state": 1, True: 2, "all": 2}[enabled],
        context={None: 0, "state": 1, "alloc": 2, "all": 3}[context],
        clear_history=clear_history,
        compile_context=compile_context,
        record_annotations=global_record_annotations,
        skip_actions=sum(1 << _ACTIONS.index(action) for action in skip_actions or ()),
        max_entries=max_entries if enabled in (True, "all") else 1,
    )
    _state.library().call("thalweg_record_history", ctypes.byref(settings))
