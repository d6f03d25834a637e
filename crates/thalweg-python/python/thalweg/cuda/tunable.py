"""Choice of kernels for matrix products by measurement (`torch.cuda.tunable`)."""

import atexit

from .. import _core

_inner = _core._tunable

__all__ = [
    "enable", "is_enabled", "tuning_enable", "tuning_is_enabled", "record_untuned_enable", "record_untuned_is_enabled",
    "set_max_tuning_duration", "get_max_tuning_duration", "set_max_tuning_iterations", "get_max_tuning_iterations",
    "set_filename", "get_filename", "get_results", "get_validators", "read_file", "write_file", "write_file_on_exit",
    "tune_gemm_in_file", "mgpu_tune_gemm_in_file", "set_rotating_buffer_size", "get_rotating_buffer_size",
    "set_numerical_check_tolerances",
]

is_enabled = _inner.is_enabled
tuning_is_enabled = _inner.tuning_is_enabled
record_untuned_is_enabled = _inner.record_untuned_is_enabled
get_max_tuning_duration = _inner.get_max_tuning_duration
get_max_tuning_iterations = _inner.get_max_tuning_iterations
get_rotating_buffer_size = _inner.get_rotating_buffer_size
get_filename = _inner.get_filename


def enable(val=True):
    """Turns tuning and the use of its results on or off."""
    _inner.enable(val)


def tuning_enable(val=True):
    """Sets whether products without a result are tuned when they are first computed."""
    _inner.tuning_enable(val)


def record_untuned_enable(val=True):
    """Sets whether products without a result that are not tuned are written to a file."""
    _inner.record_untuned_enable(val)


def set_max_tuning_duration(duration):
    """Sets the maximum time in milliseconds for which a candidate is timed."""
    _inner.set_max_tuning_duration(duration)


def set_max_tuning_iterations(iterations):
    """Sets the maximum number of times that a candidate is timed."""
    _inner.set_max_tuning_iterations(iterations)


def set_rotating_buffer_size(buffer_size):
    """Sets the total size in MB of the rotating copies of the operands: negative for the size of the L2 cache, 0 for a single
    copy."""
    _inner.set_rotating_buffer_size(buffer_size)


def set_numerical_check_tolerances(enable, atol=1e-5, rtol=1e-5):
    """Sets whether a candidate is rejected if its result differs too much from the default's."""
    _inner.set_numerical_check_tolerances(enable, atol, rtol)


def set_filename(filename, insert_device_ordinal=False):
    """Sets the file for the results. The number of the device may be inserted into the name."""
    _inner.set_filename(filename, insert_device_ordinal)


def get_results():
    """Returns the results for the current device: operator, sizes, solution and milliseconds."""
    return tuple(_inner.get_results())


def get_validators():
    """Returns the versions and properties that the results depend on, as keys and values."""
    return tuple(_inner.get_validators())


def read_file(filename=None):
    """Reads results from a file, by default the device's own. Returns whether any are valid."""
    return _inner.read_file(filename)


def write_file(filename=None):
    """Writes the results to a file, by default the device's own. Returns whether they were written."""
    try:
        _inner.write_file(filename)
    except RuntimeError:
        return False
    return True


def write_file_on_exit(val):
    """Sets whether results are written to the device's own file when the program ends."""
    atexit.unregister(write_file)
    if val:
        atexit.register(write_file)


def tune_gemm_in_file(filename):
    """Tunes the products that are listed in a file. Blocks."""
    _inner.tune_gemm_in_file(filename)


def mgpu_tune_gemm_in_file(filename_pattern, num_gpus):
    """Raises: files are tuned on one device at a time."""
    raise NotImplementedError("tunable.mgpu_tune_gemm_in_file is left out: call tune_gemm_in_file on each device")
