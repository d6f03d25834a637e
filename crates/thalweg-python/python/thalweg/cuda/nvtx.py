"""Ranges and marks that profilers show (`torch.cuda.nvtx`). Without NVIDIA's NVTX library they are only counted."""

import contextlib

from .. import _core

__all__ = ["range_push", "range_pop", "range_start", "range_end", "mark", "range"]


def range_push(msg):
    """Begins a range nested in those of this thread, and returns how many ranges were open before."""
    return _core._nvtx_range_push(msg)


def range_pop():
    """Ends the range that this thread began last, and returns how many are still open; -1 if none was open."""
    return _core._nvtx_range_pop()


def range_start(msg):
    """Begins a process-wide range, and returns its number."""
    return _core._nvtx_range_start(msg)


def range_end(range_id):
    """Ends a process-wide range."""
    _core._nvtx_range_end(range_id)


def mark(msg):
    """Marks a point in time."""
    _core._nvtx_mark(msg)


@contextlib.contextmanager
def range(msg, *args, **kwargs):
    """Returns a context manager or decorator for a range. The message is formatted with the arguments."""
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()
