"""The accelerator that is there (`torch.accelerator`): an NVIDIA GPU, or none; the simulated GPU stands for the CPU."""

from . import _core, cuda


def is_available():
    """Returns whether this machine has a GPU."""
    return cuda.is_available()


def device_count():
    """Returns the number of GPUs; without one, 0."""
    return cuda.device_count()


def current_accelerator(check_available=False):
    """Returns the device of the current GPU; None where there is none."""
    return _core.device("cuda") if is_available() else None


def current_device_index():
    """Returns the number of the current device."""
    return cuda.current_device()


def set_device_index(device, /):
    """Makes a device the current one of this thread."""
    cuda.set_device(device)


def synchronize(device=None, /):
    """Blocks until all work of a device is done."""
    cuda.synchronize(device)
