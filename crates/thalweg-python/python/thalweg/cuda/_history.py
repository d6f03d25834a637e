"""The history of a device's memory: its allocations and frees, with stacks (`torch.cuda.memory._record_memory_history`).

Files have PyTorch's format: https://pytorch.org/memory_viz and `thalweg memory` open them. Stacks are Python stacks.
"""

import json
import operator
import pickle
import sys
import threading

from .. import _core

_inner = _core._cuda
# The devices whose histories record stacks.
_wanting = set()
_lock = threading.Lock()


def _record_memory_history(enabled="all", *args, **kwargs):
    """Records the memory events of a device, by default the current one, from now on. `enabled=None` stops and discards the
    history."""
    (_record_by_truth if isinstance(enabled, bool) else _record)(enabled, *args, **kwargs)


def _record(enabled="all", context="all", stacks="all", max_entries=sys.maxsize, device=None, clear_history=False, compile_context=False,
            global_record_annotations=False, skip_actions=None, record_pinned_host_memory=False, record_cuda=True):
    kind = _place("enabled", enabled, (None, "state", "all"))
    when = _place("context", context, (None, "state", "alloc", "all"))
    _place("stacks", stacks, ("python", "all"))
    if record_pinned_host_memory or not record_cuda:
        raise NotImplementedError("_record_memory_history: the history of pinned memory is in the Rust crate (`Device::host_allocator`)")
    _start(device, kind, when, max_entries if enabled == "all" else 1, clear_history, compile_context, global_record_annotations,
           skip_actions)


def _record_by_truth(enabled, record_context=True, trace_alloc_max_entries=1, trace_alloc_record_context=False, device=None,
                     record_context_cpp=False, clear_history=False, compile_context=False, global_record_annotations=False,
                     skip_actions=None):
    when = 2 if trace_alloc_record_context else 1 if record_context else 0
    _start(device, 2 if enabled else 0, when, trace_alloc_max_entries, clear_history, compile_context, global_record_annotations,
           skip_actions)


def _place(name, word, words):
    """Returns the position of a word in PyTorch's list."""
    if not isinstance(word, (str, type(None))):
        raise TypeError(f"{name} must be a str or None, not {type(word).__name__}")
    if word not in words:
        raise RuntimeError(f"expected {name} to be one of {', '.join(map(repr, words))}, but got {word!r}")
    return words.index(word)


def _start(device, kind, when, max_entries, clear_history, compile_context, annotations, skip_actions):
    entries = operator.index(max_entries)
    if entries < 0:
        raise ValueError(f"max_entries is {entries}: say how many of the newest events are kept")
    actions = list(skip_actions or ())
    place = str(_core.device(device) if device is not None else _core.get_default_device())
    with _lock:
        _inner._record_memory_history(device, kind, when, min(entries, 2**64 - 1), clear_history, compile_context, annotations, actions)
        (_wanting.add if kind and when else _wanting.discard)(place)
        if not _wanting:
            _inner._forget_stacks()


def _of_all(include_traces):
    """Returns the snapshots of all open devices of the current device's kind, the current device first."""
    current = _core.get_default_device()
    others = [device for device in _inner._opened_devices() if device != current]
    return [pickle.loads(_inner._memory_snapshot(device, None, include_traces)) for device in (current, *others)]


def _segments_of_all():
    """Returns the segments of all devices of the current device's kind, without events."""
    return [segment for snapshot in _of_all(False) for segment in snapshot["segments"]]


def _snapshot(device=None, augment_with_fx_traces=False):
    """Returns the memory state of one device, or of all devices of the current device's kind: segments with their blocks, the
    events of histories, and the allocator's settings."""
    if device is not None:
        return pickle.loads(_inner._memory_snapshot(device, None, True))
    whole, *others = _of_all(True)
    for other in others:
        whole["segments"] += other["segments"]
        traces = whole["device_traces"]
        traces += [[] for _ in range(len(other["device_traces"]) - len(traces))]
        for own, more in zip(traces, other["device_traces"]):
            own += more
    return whole


def _dump_snapshot(filename="dump_snapshot.pickle", augment_with_fx_traces=False):
    """Writes the result of `_snapshot` to a file."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)


def _memory_metadata_supported():
    """Returns True: events can have a text attached."""
    return True


def _set_memory_metadata(metadata):
    """Sets the text that is attached to events of this thread; a dictionary is converted to text."""
    _inner._set_memory_metadata(metadata if isinstance(metadata, str) else json.dumps(metadata, separators=(",", ":")))


def _get_memory_metadata():
    """Returns the text that is attached to events of this thread."""
    return _inner._get_memory_metadata()


def _annotate_tensor(tensor, annotation):
    """Attaches a text to a tensor's memory in the history."""
    _inner._annotate_tensor(tensor, annotation)
