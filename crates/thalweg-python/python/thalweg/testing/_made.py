"""Tensors of random elements for tests (`torch.testing.make_tensor`)."""

import math

from .. import _core


def _limits(dtype, low, high):
    """Returns the interval of the elements: what is given, within what the dtype holds."""
    if dtype is getattr(_core, "bool"):
        least, end, usual = 0, 2, (0, 2)
    elif dtype.is_floating_point or dtype.is_complex:
        from .._functions import finfo
        largest = finfo(dtype).max
        least, end, usual = -largest, largest, (-9, 9)
    else:
        from .._functions import iinfo
        least, end = iinfo(dtype).min, iinfo(dtype).max
        usual = (0, 10) if least == 0 else (-9, 10)
    low, high = usual[0] if low is None else low, usual[1] if high is None else high
    if any(isinstance(limit, float) and math.isnan(limit) for limit in (low, high)):
        raise ValueError(f"`low` and `high` cannot be NaN, but got low={low!r} and high={high!r}")
    if low > high or (low == high and not dtype.is_floating_point and not dtype.is_complex):
        raise ValueError(f"make_tensor: low={low} has to be less than high={high}")
    low, high = max(low, least), min(high, end if dtype.is_floating_point or dtype.is_complex or end == 2 else end + 1)
    if not (dtype.is_floating_point or dtype.is_complex):
        low, high = math.floor(low), math.ceil(high)
    return low, high


def make_tensor(*shape, dtype, device, low=None, high=None, requires_grad=False, noncontiguous=False, exclude_zero=False, memory_format=None):
    """Returns a tensor of elements that are drawn from [low, high): from −9 to 9 where they are not given, whole numbers of integer dtypes."""
    if len(shape) == 1 and not isinstance(shape[0], int):
        shape = tuple(shape[0])
    if noncontiguous and memory_format is not None:
        raise ValueError(f"The parameters `noncontiguous` and `memory_format` are mutually exclusive, but got {noncontiguous=} and {memory_format=}")
    if requires_grad and not (dtype.is_floating_point or dtype.is_complex):
        raise ValueError(f"`requires_grad=True` is only supported for floating and complex dtypes, but got {dtype=}")
    low, high = _limits(dtype, low, high)
    if dtype.is_complex:
        real = _core.float64 if dtype is _core.complex128 else _core.float32
        parts = [_core.empty(list(shape), dtype=real, device=device).uniform_(low, high) for _ in range(2)]
        made = _core.complex(*parts).to(dtype)
    elif dtype.is_floating_point:
        is_exact = dtype in (_core.float32, _core.float64)
        drawn = _core.rand(list(shape), dtype=dtype if is_exact else _core.float32, device=device)
        # Two products: the width of the interval may be more than the dtype holds.
        made = (drawn * high + (1 - drawn) * low).to(dtype)
    else:
        drawn = _core.randint(max(low, -2**63), min(high, 2**63 - 1), list(shape), dtype=_core.int64, device=device)
        made = drawn.to(dtype)
    if noncontiguous and made.numel() > 1:
        made = made.repeat_interleave(2, dim=-1)[..., ::2]
    elif memory_format is not None:
        made = made.clone(memory_format=memory_format)
    if exclude_zero:
        smallest = 1
        if dtype.is_floating_point or dtype.is_complex:
            from .._functions import finfo
            smallest = finfo(dtype).tiny
        made[made == 0] = smallest
    return made.requires_grad_() if requires_grad else made
