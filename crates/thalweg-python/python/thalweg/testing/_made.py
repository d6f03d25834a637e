"""Random tensors for tests (`torch.testing.make_tensor`)."""

import collections.abc
import math
import warnings

from .. import _core
from .._functions import finfo, iinfo


def _range(dtype):
    """Returns the range of a dtype's numbers as a minimum and an exclusive end, and the default interval of elements."""
    if dtype is getattr(_core, "bool"):
        return 0, 2, (0, 2)
    if dtype.is_floating_point or dtype.is_complex:
        limits = finfo(dtype)
        return limits.min, limits.max, (-9, 9)
    limits = iinfo(dtype)
    # The exclusive end of `randint` is an int64, so the largest int64 is never drawn.
    return limits.min, min(limits.max + 1, 2**63 - 1), (-9, 10)


def _limits(dtype, low, high):
    """Returns the interval of the elements: the given one, limited to the range of the dtype."""
    least, end, usual = _range(dtype)
    low, high = usual[0] if low is None else low, usual[1] if high is None else high
    is_inexact = dtype.is_floating_point or dtype.is_complex
    if any(isinstance(limit, float) and math.isnan(limit) for limit in (low, high)):
        raise ValueError(f"`low` and `high` cannot be NaN, but got {low=} and {high=}")
    if low == high and is_inexact:
        warnings.warn("Passing `low==high` to `torch.testing.make_tensor` for floating or complex types is deprecated since 2.1 and will be removed "
                      "in 2.3. Use `torch.full(...)` instead.", FutureWarning, stacklevel=3)
    elif low >= high:
        raise ValueError(f"`low` must be less than `high`, but got {low} >= {high}")
    elif high < least or low >= end:
        raise ValueError(f"The value interval specified by `low` and `high` is [{low}, {high}), but {dtype} only supports [{least}, {end})")
    low, high = (min(max(limit, least), end) for limit in (low, high))
    return (low, high) if is_inexact else (math.ceil(low), math.ceil(high))


def _uniform(shape, dtype, device, low, high):
    """Returns uniform floats in an interval, which may be wider than the largest number."""
    is_wide = high - low >= finfo(dtype).max
    drawn = _core.empty(list(shape), dtype=dtype, device=device)
    return drawn.uniform_(low / 2, high / 2).mul_(2) if is_wide else drawn.uniform_(low, high)


def _drawn(shape, dtype, device, low, high):
    """Returns random elements of an interval, in any dtype."""
    if dtype.is_complex:
        real = _core.float64 if dtype is _core.complex128 else _core.float32
        return _core.complex(*(_uniform(shape, real, device, low, high) for _ in range(2))).to(dtype)
    if dtype.is_floating_point:
        # 8-bit floats are drawn in float32 and rounded.
        return _uniform(shape, _core.float32 if dtype.itemsize == 1 else dtype, device, low, high).to(dtype)
    return _core.randint(low, high, list(shape), dtype=dtype, device=device)


def make_tensor(*shape, dtype, device, low=None, high=None, requires_grad=False, noncontiguous=False, exclude_zero=False, memory_format=None):
    """Returns a random tensor with elements in [low, high), by default from −9 to 9; elements of integer dtypes are integers."""
    shape = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], collections.abc.Sequence) else shape
    is_inexact = dtype.is_floating_point or dtype.is_complex
    if noncontiguous and memory_format is not None:
        raise ValueError(f"The parameters `noncontiguous` and `memory_format` are mutually exclusive, but got {noncontiguous=} and {memory_format=}")
    if requires_grad and not is_inexact:
        raise ValueError(f"`requires_grad=True` is not supported for boolean and integral dtypes, but got {dtype=}")
    noncontiguous = noncontiguous and math.prod(shape) > 1
    low, high = _limits(dtype, low, high)
    made = _drawn((*shape[:-1], 2 * shape[-1]) if noncontiguous else shape, dtype, device, low, high)
    if noncontiguous:
        # Every second element, starting with the second, so that storage offsets are tested as well.
        made = made[..., 1::2]
    elif memory_format is not None:
        made = made.clone(memory_format=memory_format)
    if exclude_zero:
        made[made == 0] = finfo(dtype).tiny if is_inexact else 1
    return made.requires_grad_() if requires_grad else made
