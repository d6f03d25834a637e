"""The available accelerator (`torch.accelerator`): an NVIDIA GPU, or none; the simulated GPU counts as the CPU."""

from . import _core, cuda
from .cuda import (  # noqa: F401
    empty_cache, get_rng_state, get_rng_state_all, initial_seed, max_memory_allocated, max_memory_reserved, memory_allocated,
    memory_reserved, memory_stats, reset_accumulated_memory_stats, reset_peak_memory_stats, set_stream)
from .cuda import CUDAGraph as Graph  # noqa: F401
from .cuda import mem_get_info as get_memory_info  # noqa: F401


def is_available():
    """Returns whether this machine has a GPU."""
    return cuda.is_available()


def device_count():
    """Returns the number of GPUs, which may be 0."""
    return cuda.device_count()


def current_accelerator(check_available=False):
    """Returns the device of the current GPU, or None if there is no GPU."""
    return _core.device("cuda") if is_available() else None


def current_device_index():
    """Returns the number of the current device."""
    return cuda.current_device()


def _checked(device):
    """Returns a device, a device number or None, after checking that it belongs to the accelerator if there is one."""
    named = _core.device(device) if isinstance(device, str) else device
    accelerator = current_accelerator()
    if isinstance(named, _core.device) and accelerator is not None and named.type != accelerator.type:
        raise ValueError(f"{named.type} doesn't match the current accelerator {accelerator}.")
    return named


def set_device_index(device, /):
    """Makes a device the current one of this thread."""
    cuda.set_device(_checked(device))


def current_stream(device=None, /):
    """Returns the current stream of a device."""
    return cuda.current_stream(_checked(device))


current_device_idx, set_device_idx = current_device_index, set_device_index


def get_device_capability(device=None, /):
    """Returns the capabilities of a device: the dtypes of its tensors."""
    return {"supported_dtypes": {value for name in dir(_core) if isinstance(value := getattr(_core, name), _core.dtype) and value._is_held}}


class device_index(cuda.device):
    """A region with the device of the given number as current device. None changes nothing."""


def synchronize(device=None, /):
    """Blocks until all work of a device has finished."""
    cuda.synchronize(_checked(device))
