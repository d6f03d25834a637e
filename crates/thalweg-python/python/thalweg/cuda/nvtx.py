"""Ranges and marks that profilers show (`torch.cuda.nvtx`). Without NVIDIA's library of NVTX they are counted and shown nowhere."""

import contextlib

from .. import _core

__all__ = ["range_push", "range_pop", "range_start", "range_end", "mark", "range"]


def range_push(msg):
    """Begins a range within those of this thread, and returns how many there were."""
    return _core._nvtx_range_push(msg)


def range_pop():
    """Ends the range that this thread began last, and returns how many are left; -1 where there was none."""
    return _core._nvtx_range_pop()


def range_start(msg):
    """Begins a range of the process, and returns its number."""
    return _core._nvtx_range_start(msg)


def range_end(range_id):
    """Ends a range of the process."""
    _core._nvtx_range_end(range_id)


def mark(msg):
    """Marks a moment."""
    _core._nvtx_mark(msg)


@contextlib.contextmanager
def range(msg, *args, **kwargs):
    """A region, or a function, that is a range; the message is formatted with the arguments."""
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()
