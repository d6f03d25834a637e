"""Masks of causal attention as objects (`torch.nn.attention.bias`): here they are tensors of bools."""

import enum

from ... import _core


class CausalVariant(enum.IntEnum):
    """The corner of the score matrix at which the diagonal of a causal mask begins."""

    UPPER_LEFT = 1
    LOWER_RIGHT = 2


def causal_upper_left(*size):
    """Returns the mask in which query i sees the keys up to the i-th."""
    if len(size) != 2:
        raise RuntimeError("causal_upper_left only supports 2D tensors")
    return _core.ones(list(size), dtype=getattr(_core, "bool")).tril()


def causal_lower_right(*size):
    """Returns the mask in which the last query sees all keys."""
    if len(size) != 2:
        raise RuntimeError("causal_lower_right only supports 2D tensors")
    return _core.ones(list(size), dtype=getattr(_core, "bool")).tril(size[1] - size[0])
