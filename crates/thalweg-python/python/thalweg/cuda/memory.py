"""Memory of devices (`torch.cuda.memory`): statistics, limits, snapshots and pools of the caching allocator."""

import html
import pickle
import weakref

from .. import _core
from .._left_out import attributes as _attributes
from .._html import bar, paragraph, size
from ._history import (  # noqa: F401
    _annotate_tensor, _dump_snapshot, _get_memory_metadata, _memory_metadata_supported, _record_memory_history, _segments_of_all, _set_memory_metadata, _snapshot)

_inner = _core._cuda

__all__ = [
    "empty_cache", "get_allocator_backend", "get_per_process_memory_fraction", "set_per_process_memory_fraction",
    "memory_stats", "memory_stats_as_nested_dict", "memory_summary", "memory_snapshot", "mem_get_info", "memory_allocated",
    "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_cached", "max_memory_cached",
    "reset_accumulated_memory_stats", "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached",
    "device_memory_used", "host_memory_stats", "host_memory_stats_as_nested_dict", "reset_accumulated_host_memory_stats",
    "reset_peak_host_memory_stats", "MemPool", "use_mem_pool", "list_gpu_processes",
]

empty_cache = _inner.empty_cache
get_per_process_memory_fraction = _inner.get_per_process_memory_fraction
host_memory_stats = _inner.host_memory_stats
mem_get_info = _inner.mem_get_info
memory_stats = _inner.memory_stats
reset_accumulated_host_memory_stats = _inner.reset_accumulated_host_memory_stats
reset_accumulated_memory_stats = _inner.reset_accumulated_memory_stats
reset_peak_host_memory_stats = _inner.reset_peak_host_memory_stats
reset_peak_memory_stats = _inner.reset_peak_memory_stats


def set_per_process_memory_fraction(fraction, device=None):
    """Limits the allocator to a fraction of a device's memory; 1 removes the limit. Memory that is already allocated is kept."""
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if fraction < 0 or fraction > 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _inner.set_per_process_memory_fraction(fraction, device)


class Segments(list):
    """The segments of a snapshot, each a dictionary with its blocks. Notebooks show them as bars of blocks in use, blocks that
    wait for a stream, and free blocks."""

    _COLORS = {"active_allocated": "#2c6fbb", "active_pending_free": "#d9822b", "active_awaiting_free": "#d9822b"}

    def _repr_html_(self):
        greatest = max((segment["total_size"] for segment in self), default=0)
        total, allocated = (sum(segment[name] for segment in self) for name in ("total_size", "allocated_size"))
        lines = [paragraph(f"{len(self)} segments of {size(total)}; tensors have {size(allocated)} of it.")]
        for segment in sorted(self, key=lambda segment: -segment["total_size"]):
            parts = [(block["size"], self._COLORS.get(block["state"], "#dddddd"), f"{size(block['size'])} {block['state']}")
                     for block in segment["blocks"]]
            lines.append(f"<div>{bar(parts, greatest)} {size(segment['allocated_size'])} of {size(segment['total_size'])}, "
                         f"stream {segment['stream']:#x}, {html.escape(str(segment['segment_type']))}</div>")
        return "".join(lines)


class Summary(str):
    """The text of `memory_summary`. Notebooks preserve its columns."""

    __slots__ = ()

    def _repr_html_(self):
        return f"<pre>{html.escape(self)}</pre>"


def memory_summary(device=None, abbreviated=False):
    """Returns the allocator's statistics as a text table in PyTorch's format."""
    return Summary(_inner.memory_summary(device, abbreviated))


def _nested(flat):
    """Returns statistics with dotted names as nested dictionaries."""
    nested = {}
    for name, value in flat.items():
        *outer, last = name.split(".")
        place = nested
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = value
    return nested


def memory_stats_as_nested_dict(device=None):
    """Returns the statistics of the allocator as nested dictionaries."""
    return _nested(memory_stats(device))


def host_memory_stats_as_nested_dict():
    """Returns the statistics of pinned memory as nested dictionaries."""
    return _nested(host_memory_stats())


def _set_allocator_settings(env):
    """Changes settings of the current device's allocator, from a text in the format of `PYTORCH_CUDA_ALLOC_CONF`."""
    _inner._set_allocator_settings(env, None)


def get_allocator_backend():
    """Returns `native`: the caching allocator is Thalweg's own, with PyTorch's settings and statistics."""
    return "native"


def memory_snapshot(mempool_id=None, include_traces=True):
    """Returns the segments of all devices of the current device's kind with their blocks, for all memory or for one pool (by its
    `id`). Events are part of `_snapshot`."""
    if mempool_id is None:
        return Segments(_segments_of_all())
    pool = _POOLS.get(tuple(mempool_id))
    if pool is None:
        raise RuntimeError(f"memory_snapshot: there is no pool {tuple(mempool_id)}; its MemPool is gone, or it is a graph's")
    return pool.snapshot(include_traces)


def device_memory_used(device=None):
    """Returns the bytes of a device that are in use by all programs."""
    free, total = mem_get_info(device)
    return total - free


def list_gpu_processes(device=None):
    """Returns the processes that compute on a GPU with the memory that each uses, as text in PyTorch's format. NVML reports
    them."""
    gpu, processes = _inner._gpu_processes(device)
    lines = [f"GPU:{gpu}"]
    if not processes:
        lines.append("no processes are running")
    for process, used in processes:
        amount = "an unknown amount of" if used is None else f"{used / (1024 * 1024):>12.3f} MB"
        lines.append(f"process {process:>10d} uses {amount} GPU memory")
    return "\n".join(lines)


def _statistic(name, field, doc):
    def read(device=None):
        return memory_stats(device).get(field, 0)
    read.__name__ = read.__qualname__ = name
    read.__doc__ = doc
    return read


memory_allocated = _statistic("memory_allocated", "allocated_bytes.all.current", "Returns the bytes that tensors have.")
max_memory_allocated = _statistic("max_memory_allocated", "allocated_bytes.all.peak", "Returns the most bytes that tensors have had.")
memory_reserved = _statistic("memory_reserved", "reserved_bytes.all.current", "Returns the bytes that the allocator has taken.")
max_memory_reserved = _statistic("max_memory_reserved", "reserved_bytes.all.peak", "Returns the most bytes that the allocator had.")
memory_cached, max_memory_cached = memory_reserved, max_memory_reserved


def reset_max_memory_allocated(device=None):
    """Resets all peaks of the statistics to the current values (`reset_peak_memory_stats`)."""
    reset_peak_memory_stats(device)


reset_max_memory_cached = reset_max_memory_allocated

# The live pools, by number.
_POOLS = weakref.WeakValueDictionary()


class MemPool:
    """A memory pool for a part of the program. Its cached memory is freed when the pool and its last tensor have been freed."""

    def __init__(self, allocator=None, use_on_oom=False, no_split=False):
        if allocator is not None:
            raise NotImplementedError("MemPool(allocator=...) is left out: the allocator is Thalweg's own")
        self._inner = _inner._MemPool(None, use_on_oom, no_split)
        self.device = _core.get_default_device()
        _POOLS[self.id] = self

    @property
    def id(self):
        """The number of the pool, as a pair."""
        return (0, self._inner.id())

    def use_count(self):
        """Returns how many references to the pool exist: that of its object, and one for each region that uses it."""
        return self._inner.use_count()

    def snapshot(self, include_traces=True):
        """Returns the segments of the pool with their blocks."""
        return Segments(pickle.loads(_inner._memory_snapshot(self.device, self._inner, False))["segments"])


def _inner_of(pool):
    """Returns the pool for the argument `pool` of a capture: a `MemPool` or its `id`."""
    if not isinstance(pool, MemPool):
        found = _POOLS.get(tuple(pool)) if isinstance(pool, (tuple, list)) else None
        if found is None:
            raise ValueError(f"pool is that of a graph (`pool()`), a `graph_pool_handle()`, or a MemPool that is alive or its `id`; not {pool!r}")
        pool = found
    return pool._inner


class use_mem_pool:
    """A region in which this thread allocates from a pool."""

    def __init__(self, pool, device=None):
        if not isinstance(pool, MemPool):
            raise TypeError(f"use_mem_pool takes a MemPool, not {type(pool).__name__}")
        if device is not None and _core.device(device) != pool.device:
            raise RuntimeError(f"use_mem_pool: the pool is of {pool.device}, not of {device}")
        self._pool = pool

    def __enter__(self):
        self._pool._inner.enter(self)

    def __exit__(self, *_):
        _inner._exit(self)


_LEFT_OUT = {
    "caching_allocator_alloc": "memory is allocated and freed with tensors",
    "caching_allocator_delete": "memory is allocated and freed with tensors",
    "caching_allocator_enable": "memory always comes from the caching allocator",
    "CUDAPluggableAllocator": "the allocator is Thalweg's own",
    "change_current_allocator": "the allocator is Thalweg's own",
    "MemPoolContext": "say `use_mem_pool`",
    "_save_segment_usage": "say `_dump_snapshot`, and `thalweg memory` draws the file",
    "_save_memory_usage": "say `_dump_snapshot`, and `thalweg memory` draws the file",
}

__getattr__ = _attributes(__name__, _LEFT_OUT)
