"""Checks of conditions that programs and libraries make (`torch._check` and its relatives)."""

from . import _core

__all__ = ["_check_index", "_check_is_size", "_check_not_implemented", "_check_tensor_all", "_check_tensor_all_with", "_check_type",
           "_check_value", "_check_with"]


def _check_with(error_type, cond, message):
    """Raises an exception of the given class unless a condition holds. `message` may be a function that returns the message."""
    if not isinstance(cond, bool):
        raise TypeError(f"cond must be a bool, but got {type(cond)}")
    if cond:
        return
    if message is not None and not callable(message):
        raise TypeError("message must be a callable")
    raise error_type("Expected cond to be True, but got False." if message is None else str(message()))


def _of(error_type):
    def check(cond, message=None):
        _check_with(error_type, cond, message)
    check.__doc__ = f"Raises {error_type.__name__} unless a condition holds."
    return check


_check_index, _check_value, _check_type, _check_not_implemented = map(_of, (IndexError, ValueError, TypeError, NotImplementedError))


def _check_is_size(i, message=None, *, max=None):
    """Raises RuntimeError unless a number is at least 0, and at most `max`."""
    _check_with(RuntimeError, i >= 0, message)
    if max is not None:
        _check_with(RuntimeError, i <= max, message)


def _check_tensor_all_with(error_type, cond, message=None):
    """Raises an exception of the given class unless all elements of a tensor are true. Blocks."""
    if not isinstance(cond, _core.Tensor):
        raise TypeError(f"cond must be a tensor, but got {type(cond)}")
    if cond.dtype is not _core.bool:
        raise TypeError(f"cond tensor must have dtype torch.bool, but got {cond.dtype}")
    _check_with(error_type, cond.all().item(), message)


def _check_tensor_all(cond, message=None):
    """Raises RuntimeError unless all elements of a tensor are true. Blocks."""
    _check_tensor_all_with(RuntimeError, cond, message)
