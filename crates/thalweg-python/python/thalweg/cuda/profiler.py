"""Regions that CUDA's profilers record (`torch.cuda.profiler`). Without a GPU they do nothing."""

import contextlib
import ctypes
import functools

__all__ = ["start", "stop", "profile"]


@functools.cache
def _driver():
    """Returns CUDA's driver, or None."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _call(name):
    driver = _driver()
    if driver is not None:
        code = getattr(driver, name)()
        # Without a context nothing has run yet, so there is nothing to record.
        if code not in (0, 3, 201):
            raise RuntimeError(f"{name} failed with code {code} of CUDA's driver")


def start():
    """Makes a waiting profiler begin to record."""
    _call("cuProfilerStart")


def stop():
    """Makes a profiler stop recording."""
    _call("cuProfilerStop")


def init(*args, **kwargs):
    """Raises: the format of the output is chosen by the profiler's own command line."""
    raise NotImplementedError("thalweg.cuda.profiler.init is left out: choose the output by the profiler's command line")


@contextlib.contextmanager
def profile():
    """Returns a region that a profiler records."""
    start()
    try:
        yield
    finally:
        stop()
