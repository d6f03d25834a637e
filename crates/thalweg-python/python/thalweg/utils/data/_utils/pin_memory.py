"""Batches in pinned memory (`torch.utils.data._utils.pin_memory`)."""

import collections.abc
import copy

from .... import _core


def pin_memory(data, device=None):
    """Returns a batch whose tensors are in pinned memory, except for those on a GPU."""
    if isinstance(data, _core.Tensor):
        data._mark_pinned()
        return data
    if isinstance(data, (str, bytes)):
        return data
    if isinstance(data, collections.abc.Mapping):
        return _with(data, {key: pin_memory(value) for key, value in data.items()})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(pin_memory, data))
    if isinstance(data, tuple):
        return [pin_memory(value) for value in data]
    if isinstance(data, collections.abc.Sequence):
        return _with(data, [pin_memory(value) for value in data])
    return data.pin_memory() if hasattr(data, "pin_memory") else data


def _with(data, values):
    """Returns a container of the same class with other values."""
    try:
        if isinstance(data, collections.abc.MutableMapping):
            made = copy.copy(data)
            made.update(values)
            return made
        return type(data)(values)
    except TypeError:
        return values
