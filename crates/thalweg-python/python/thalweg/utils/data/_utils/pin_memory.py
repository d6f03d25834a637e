"""Batches in pinned memory (`torch.utils.data._utils.pin_memory`)."""

import collections.abc

from .... import _core


def pin_memory(data, device=None):
    """Returns a batch whose tensors are in pinned memory, except for those on a GPU."""
    if isinstance(data, _core.Tensor):
        data._mark_pinned()
    elif isinstance(data, collections.abc.Mapping):
        for value in data.values():
            pin_memory(value)
    elif isinstance(data, collections.abc.Sequence) and not isinstance(data, (str, bytes)):
        for value in data:
            pin_memory(value)
    elif hasattr(data, "pin_memory"):
        return data.pin_memory()
    return data
