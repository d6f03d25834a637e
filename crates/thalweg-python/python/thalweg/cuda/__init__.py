"""Streams, events, graphs and memory (`torch.cuda`).

Without a GPU they are those of the simulated GPU, so programs that use them run everywhere; `is_available` tells whether there is a GPU.
A device that is not named is the current one.
"""

import functools
import types

from .. import _core
from .. import random as _random
from .._core import OutOfMemoryError
from . import amp, nvtx, tunable
from . import graphs
from .graphs import CUDAGraph, graph, graph_pool_handle, is_current_stream_capturing, make_graphed_callables

_inner = _core._cuda

Event = _inner.Event
Stream = _inner.Stream
current_stream = _inner.current_stream
default_stream = _inner.default_stream
empty_cache = _inner.empty_cache
memory_stats = _inner.memory_stats
memory_summary = _inner.memory_summary
reset_accumulated_memory_stats = _inner.reset_accumulated_memory_stats
reset_peak_memory_stats = _inner.reset_peak_memory_stats
synchronize = _inner.synchronize


@functools.cache
def is_available():
    """Returns whether this machine has a GPU."""
    return _inner._is_available()


def is_initialized():
    """Returns True: devices are opened when they are first used."""
    return True


def init():
    """Does nothing: devices are opened when they are first used."""


def is_bf16_supported(including_emulation=True):
    """Returns whether the device computes in bfloat16."""
    return including_emulation or get_device_capability()[0] >= 8


def device_count():
    """Returns the number of GPUs; without one, 0."""
    return _inner._device_count() if is_available() else 0


def current_device():
    """Returns the number of the current device."""
    return _core.get_default_device().index


def set_device(device):
    """Makes a device the current one of this thread."""
    _core._set_current_device(device)


class device:
    """A region with another current device."""

    def __init__(self, device):
        self._device = device

    def __enter__(self):
        if self._device is not None:
            _inner._enter_device(self._device)

    def __exit__(self, *_):
        if self._device is not None:
            _inner._exit()


class device_of(device):
    """A region whose current device is that of a tensor."""

    def __init__(self, obj):
        super().__init__(obj.device)


class stream:
    """A region with another current stream."""

    def __init__(self, stream):
        self._stream = stream

    def __enter__(self):
        if self._stream is not None:
            self._stream._enter()

    def __exit__(self, *_):
        if self._stream is not None:
            _inner._exit()


StreamContext = stream


def set_stream(stream):
    """Makes a stream the current one of this thread, for good."""
    stream._set_current()


def get_device_properties(device=None):
    """Returns what a device is and can do."""
    return types.SimpleNamespace(**_inner._device_properties(device))


def get_device_name(device=None):
    """Returns the name of a device."""
    return get_device_properties(device).name


def get_device_capability(device=None):
    """Returns the compute capability of a device: two numbers."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


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


def manual_seed(seed):
    """Seeds the generator of the current device."""
    _random.manual_seed(seed)


manual_seed_all = manual_seed
get_rng_state = _random.get_rng_state
set_rng_state = _random.set_rng_state
initial_seed = _random.initial_seed

_LEFT_OUT = {
    "memory_snapshot": "it is in the Rust crate and the command line, not yet in Python",
    "memory": "its functions are in `thalweg.cuda` itself",
    "MemPool": "it is in the Rust crate, not yet in Python",
    "use_mem_pool": "it is in the Rust crate, not yet in Python",
    "CUDAPluggableAllocator": "the allocator is Thalweg's own",
    "change_current_allocator": "the allocator is Thalweg's own",
    "caching_allocator_alloc": "memory comes with tensors",
    "caching_allocator_delete": "memory goes with tensors",
    "set_per_process_memory_fraction": "it is in the Rust crate, not yet in Python",
    "mem_get_info": "it is in the Rust crate, not yet in Python",
    "host_memory_stats": "it is in the Rust crate, not yet in Python",
    "ExternalStream": "streams of other libraries come with DLPack, later",
    "ipc_collect": "memory of other processes is in the Rust crate only",
    "comm": "collectives are not in Python yet",
    "nccl": "collectives are not in Python yet",
    "jiterator": "kernels of one's own are written in Rust",
    "profiler": "use the tools of CUDA",
    "sparse": "there are no sparse tensors",
    "gds": "files go through the host's memory",
    "green_contexts": "they are left out",
    "utilization": "ask NVML", "temperature": "ask NVML", "power_draw": "ask NVML", "clock_rate": "ask NVML",
    "list_gpu_processes": "ask NVML",
    "can_device_access_peer": "it is in the Rust crate, not yet in Python",
    "set_sync_debug_mode": "use the audit of graphs, or the sanitizer",
    "get_sync_debug_mode": "use the audit of graphs, or the sanitizer",
    "seed": "seeds are given: say `manual_seed`", "seed_all": "seeds are given: say `manual_seed`",
    "get_arch_list": "kernels are compiled for the GPU that is there",
    "get_gencode_flags": "kernels are compiled for the GPU that is there",
    "cudart": "the driver's interface is in the Rust crate",
}


def __getattr__(name):
    if name in _LEFT_OUT:
        raise AttributeError(f"thalweg.cuda.{name} is left out: {_LEFT_OUT[name]}")
    raise AttributeError(f"module 'thalweg.cuda' has no attribute '{name}'")
