"""Ranges and marks that profilers show (`torch.cuda.nvtx`). Without NVIDIA's library `nvToolsExt` they do nothing."""

import contextlib
import ctypes
import functools
import threading

__all__ = ["range_push", "range_pop", "range_start", "range_end", "mark", "range"]

_NAMES = ("libnvToolsExt.so.1", "libnvToolsExt.so", "libnvtx3interop.so.1", "libnvtx3interop.so")
_depths = threading.local()


@functools.cache
def _library():
    """Returns the library, or None."""
    for name in _NAMES:
        try:
            library = ctypes.CDLL(name)
            for function in ("nvtxRangePushA", "nvtxMarkA", "nvtxRangeStartA"):
                getattr(library, function).argtypes = [ctypes.c_char_p]
            library.nvtxRangeStartA.restype = ctypes.c_uint64
            library.nvtxRangeEnd.argtypes = [ctypes.c_uint64]
            library.nvtxRangePop.argtypes = []
        except (OSError, AttributeError):
            continue
        return library
    return None


def _text(msg):
    if not isinstance(msg, str):
        raise TypeError(f"the message of a range is a str, not {type(msg).__name__}")
    return msg.encode("utf-8", "replace").replace(b"\0", b" ")


def range_push(msg):
    """Begins a range within those of this thread, and returns how many there were."""
    text = _text(msg)
    if _library() is not None:
        _library().nvtxRangePushA(text)
    _depths.now = getattr(_depths, "now", 0) + 1
    return _depths.now - 1


def range_pop():
    """Ends the range that this thread began last, and returns how many are left; -1 where there was none."""
    if _library() is not None:
        _library().nvtxRangePop()
    now = getattr(_depths, "now", 0)
    _depths.now = max(now - 1, 0)
    return now - 1


def range_start(msg):
    """Begins a range of the process, and returns its number."""
    text = _text(msg)
    return 0 if _library() is None else _library().nvtxRangeStartA(text)


def range_end(range_id):
    """Ends a range of the process."""
    if _library() is not None:
        _library().nvtxRangeEnd(range_id)


def mark(msg):
    """Marks a moment."""
    text = _text(msg)
    if _library() is not None:
        _library().nvtxMarkA(text)


@contextlib.contextmanager
def range(msg, *args, **kwargs):
    """A region, or a function, that is a range; the message is formatted with the arguments."""
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()
