"""Statistics, snapshots and histories under PyTorch's names. They do not need PyTorch, and work in both tiers."""

import ctypes
import operator
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


def device_index(device):
    """Returns the number of a device in any of PyTorch's forms. Raises PyTorch's ValueError for anything that is not a GPU."""
    from torch.cuda._utils import _get_device_index

    return _get_device_index(device, optional=True)


def _index(device):
    import torch

    index = device_index(device)
    if index not in range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0):
        raise RuntimeError(f"Invalid device argument {index}: did you call init?")
    return index


def memory_stats(device=None):
    """Returns the statistics of a device, as `torch.cuda.memory_stats` has them. `pending_use_bytes`, `num_cross_stream_waits` and
    `num_pages_moved` are Thalweg's own. Empty before CUDA is initialised, as in PyTorch."""
    import torch

    if not torch.cuda.is_initialized():
        return {}
    text = _state.library().text("thalweg_memory_stats", _index(device)).decode()
    return {key: int(value) for key, value in (line.rsplit(" ", 1) for line in text.splitlines())}


def memory_stats_as_nested_dict(device=None):
    """Returns `memory_stats` as nested dictionaries (`torch.cuda.memory_stats_as_nested_dict`)."""
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
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device=None):
    """Returns the maximum of `memory_allocated`."""
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device=None):
    """Bytes taken from the driver."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device=None):
    """Returns the maximum of `memory_reserved`."""
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


def reset_peak_memory_stats(device=None):
    """Resets every peak to the current value."""
    _state.library().call("thalweg_reset_peak_statistics", _index(device))


def reset_accumulated_memory_stats(device=None):
    """Sets every sum to 0."""
    _state.library().call("thalweg_reset_accumulated_statistics", _index(device))


def memory_summary(device=None, abbreviated=False):
    """Returns the statistics as a table."""
    return _state.library().text("thalweg_memory_summary", _index(device), int(abbreviated)).decode()


def get_per_process_memory_fraction(device=None):
    """Returns the part of a device's memory that may be taken from the driver."""
    import torch

    torch.cuda.init()
    fraction = ctypes.c_double()
    _state.library().call("thalweg_memory_fraction", _index(device), ctypes.byref(fraction))
    return fraction.value


def _theirs():
    """Returns `torch.cuda.memory` in the second tier, in which PyTorch keeps the stacks; else None."""
    import torch

    return torch.cuda.memory if _state.enabled is not None and _state.enabled.tier == 2 else None


def _snapshot(device=None, augment_with_fx_traces=False):
    """Returns the full state of the memory, in the format of `torch.cuda.memory._snapshot` has it."""
    if theirs := _theirs():
        return theirs._snapshot(device)
    return pickle.loads(_state.library().text("thalweg_write_snapshot", 0))


def memory_snapshot(mempool_id=None, include_traces=True):
    """Returns the segments in the form of `torch.cuda.memory_snapshot`; of one pool only, if one is named."""
    segments = _snapshot()["segments"]
    if mempool_id is None:
        return segments
    return [segment for segment in segments if tuple(segment["segment_pool_id"]) == tuple(mempool_id)]


def _dump_snapshot(filename="dump_snapshot.pickle", augment_with_fx_traces=False):
    """Writes the snapshot as a file that pytorch.org/memory_viz and `thalweg memory` open."""
    if theirs := _theirs():
        return theirs._dump_snapshot(filename)
    with open(filename, "wb") as file:
        file.write(_state.library().text("thalweg_write_snapshot", 0))


def _record_memory_history(enabled="all", *arguments, **keywords):
    """Starts recording the events of all devices (`torch.cuda.memory._record_memory_history`). Stacks are Python's."""
    if theirs := _theirs():
        return theirs._record_memory_history(enabled, *arguments, **keywords)
    record = _record_legacy if isinstance(enabled, bool) else _record
    record(enabled, *arguments, **keywords)


def _record(
    enabled="all",
    context="all",
    stacks="all",
    max_entries=sys.maxsize,
    device=None,
    clear_history=False,
    compile_context=False,
    global_record_annotations=False,
    skip_actions=None,
):
    kind = _chosen("state", enabled, (None, "state", "all"))
    when = _chosen("context", context, (None, "state", "alloc", "all"))
    _chosen("stacks", stacks, ("python", "all"))
    entries = max_entries if enabled == "all" else 1
    _start_history(kind, when, entries, clear_history, compile_context, global_record_annotations, skip_actions)


def _record_legacy(
    enabled,
    record_context=True,
    trace_alloc_max_entries=1,
    trace_alloc_record_context=False,
    device=None,
    record_context_cpp=False,
    clear_history=False,
    compile_context=False,
    global_record_annotations=False,
    skip_actions=None,
):
    kind = 2 if enabled else 0
    when = 2 if trace_alloc_record_context else 1 if record_context else 0
    entries = trace_alloc_max_entries
    _start_history(kind, when, entries, clear_history, compile_context, global_record_annotations, skip_actions)


def _chosen(name, word, words):
    """Returns the number of a word. PyTorch's exceptions for others."""
    if not isinstance(word, (str, type(None))):
        raise TypeError(f"{name} is {word!r}, but must be a word or None")
    if word not in words:
        raise RuntimeError(f"expected {name} to be one of {words}, but it is {word!r}")
    return words.index(word)


def _start_history(kind, when, max_entries, clear_history, compile_context, record_annotations, skip_actions):
    if operator.index(max_entries) < 0:
        raise TypeError(f"the number of entries is {max_entries}, but must not be negative")
    settings = _library.HistorySettings(
        enabled=kind,
        context=when,
        clear_history=clear_history,
        compile_context=compile_context,
        record_annotations=record_annotations,
        skip_actions=sum({1 << _chosen("skip_actions", action, _ACTIONS) for action in skip_actions or ()}),
        max_entries=max_entries,
    )
    _state.library().call("thalweg_record_history", ctypes.byref(settings))
