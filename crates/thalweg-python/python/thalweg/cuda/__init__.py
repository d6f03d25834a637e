"""Streams, events, graphs and memory (`torch.cuda`).

Without a GPU, these functions work on the simulated GPU, so programs that use them run everywhere; `is_available` returns whether
there is a GPU. The default device is the current one.
"""

import functools
import os
import types

from .. import _core, _typed, _typed_storage
from .._left_out import attributes as _attributes
from .._core import OutOfMemoryError
from .._names import AcceleratorError  # noqa: F401
from . import amp, memory, nvtx, profiler, random, streams, tunable
from . import graphs
from .graphs import Audit, CUDAGraph, audit, graph, graph_pool_handle, is_current_stream_capturing, make_graphed_callables
from .memory import *  # noqa: F401,F403
from .random import *  # noqa: F401,F403
from .streams import Event, ExternalStream, Stream, get_stream_from_external

_inner = _core._cuda

can_device_access_peer = _inner.can_device_access_peer
current_stream = _inner.current_stream
default_stream = _inner.default_stream
synchronize = _inner.synchronize
utilization = _inner.utilization
memory_usage = _inner.memory_usage
temperature = _inner.temperature
power_draw = _inner.power_draw
clock_rate = _inner.clock_rate
# Nothing spins on a GPU: the host sleeps in stream order.
_sleep = _inner._sleep

has_half, has_magma = True, False


def is_available():
    """Returns whether this machine has a GPU. NVML is queried and CUDA is not initialised, so that the process may still fork."""
    return device_count() > 0


def is_initialized():
    """Returns True: devices are opened when they are first used."""
    return True


def init():
    """Does nothing: devices are opened when they are first used."""


_lazy_init = init


def _lazy_call(callable, **kwargs):
    """Calls a function at once: CUDA needs no start."""
    callable()



def is_bf16_supported(including_emulation=True):
    """Returns whether the device computes in bfloat16."""
    return including_emulation or get_device_capability()[0] >= 8


def is_tf32_supported():
    """Returns whether products of the device can be computed in TF32."""
    return get_device_capability()[0] >= 8


_gpu_count = functools.cache(_inner._gpu_count)


def _simulated_count():
    """Returns the number of simulated GPUs, and opens none."""
    number = os.environ.get("THALWEG_SIM_DEVICES", "")
    return max(int(number), 1) if number.isdecimal() else 1


def device_count():
    """Returns the number of GPUs. Without a GPU, it is 0, or the number of simulated GPUs if they are shown as GPUs. NVML is
    queried and CUDA is not initialised, so that the process may still fork."""
    return _gpu_count() or (_simulated_count() if _core._simulated_is_shown_as() == "cuda" else 0)


def current_device():
    """Returns the number of the current device."""
    return _core.get_default_device().index


def set_device(device):
    """Makes a device the current one of this thread."""
    _core._set_current_device(device)


class device:
    """A region with another current device."""

    def __init__(self, device):
        # A negative number is the result of `get_device` for a tensor that is not on a GPU.
        self._device = None if type(device) is int and device < 0 else device

    def __enter__(self):
        if self._device is not None:
            _core._enter_device(self._device, self)

    def __exit__(self, *_):
        _inner._exit(self)


class device_of(device):
    """A region in which the device of a tensor is the current device."""

    def __init__(self, obj):
        super().__init__(obj.device)


class stream:
    """A region with another current stream."""

    def __init__(self, stream):
        self._stream = stream

    def __enter__(self):
        if self._stream is not None:
            self._stream._enter(self)

    def __exit__(self, *_):
        _inner._exit(self)


StreamContext = stream


def set_stream(stream):
    """Makes a stream the current one of this thread, without a region."""
    stream._set_current()


def get_device_properties(device=None):
    """Returns the properties of a device."""
    return types.SimpleNamespace(**_inner._device_properties(device))


def get_device_name(device=None):
    """Returns the name of a device."""
    return get_device_properties(device).name


def get_device_capability(device=None):
    """Returns the compute capability of a device: two numbers."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def get_arch_list():
    """Returns the architecture of the current GPU, for which kernels are compiled; nothing without a GPU."""
    return [f"sm_{major}{minor}" for major, minor in ([get_device_capability()] if is_available() else [])]


class _Runtime:
    """The functions of CUDA's runtime that programs call by name. Others are left out: the driver's interface is in the Rust crate."""

    @staticmethod
    def cudaProfilerStart():
        """Starts the recording of an external profiler."""
        profiler.start()
        return 0

    @staticmethod
    def cudaProfilerStop():
        """Stops the recording of an external profiler."""
        profiler.stop()
        return 0

    @staticmethod
    def cudaMemGetInfo(device):
        """Returns the free and the total memory of a device."""
        return memory.mem_get_info(device)

    def __getattr__(self, name):
        raise AttributeError(f"cudart().{name} is left out: the driver's interface is in the Rust crate")


def cudart():
    """Returns the functions of CUDA's runtime that programs call by name."""
    return _Runtime()


def ipc_collect():
    """Does nothing: memory that other processes have shared is released with its last tensor."""


class CudaError(RuntimeError):
    """An error of the CUDA driver, by its number."""

    def __init__(self, code):
        super().__init__(f"CUDA error {code}")


class DeferredCudaCallError(Exception):
    """An error of a call that waited for the first use of a GPU. It is never raised: devices are opened when they are first used."""


class _Generators:
    """The default generators of the devices, by number. A device is opened when its generator is accessed."""

    def __len__(self):
        return max(device_count(), 1)

    def __getitem__(self, index):
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no generator {index}: there are {len(self)} devices")
        return _core._default_generator(index % len(self))


default_generators = _Generators()

_typed.add(globals(), "thalweg.cuda", "cuda")
globals().update(_typed_storage.classes("thalweg.cuda", True))


# Every public name of `torch.cuda` (PyTorch 2.11) that is missing here, with the reason; docs/python.md lists them.
_LEFT_OUT = {
    "CUDAPluggableAllocator": "the allocator is Thalweg's own",
    "change_current_allocator": "the allocator is Thalweg's own",
    "caching_allocator_alloc": "memory is allocated and freed with tensors",
    "caching_allocator_delete": "memory is allocated and freed with tensors",
    "caching_allocator_enable": "memory always comes from the caching allocator",
    "GreenContext": "contexts of part of a GPU are left out",
    "green_contexts": "contexts of part of a GPU are left out",
    "nccl": "NCCL is used through `distributed`",
    "jiterator": "kernels of one's own are written in Rust",
    "sparse": "its types are former names: say `sparse_coo_tensor`",
    "gds": "files go through the host's memory",
    "set_sync_debug_mode": "use the audit of graphs, or the sanitizer",
    "get_sync_debug_mode": "use the audit of graphs, or the sanitizer",
    "get_gencode_flags": "kernels are compiled for the GPU that is there",
    "check_error": "calls that fail raise by themselves",
    "cudaStatus": "calls that fail raise by themselves",
    "current_blas_handle": "the handle of cuBLAS is Thalweg's own",
}

__getattr__ = _attributes(__name__, _LEFT_OUT)
