"""Collation of samples into batches (`torch.utils.data._utils.collate`)."""

import collections.abc
import copy
import re

from .... import _core

_REFUSED = "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {}"

# The names under which libraries ask for the elements that are refused, and for the message.
np_str_obj_array_pattern, default_collate_err_msg_format = re.compile(r"[SaUO]"), _REFUSED


def _has_text_or_objects(array):
    """Returns whether a NumPy array has elements that tensors cannot have."""
    return array.dtype.kind in "OSU"


def _like(former, parts):
    """Returns values in a collection of the same kind as another: a copy of it if it is mutable, else an object that
    its class makes, or a plain collection."""
    is_mapping = isinstance(former, collections.abc.Mapping)
    try:
        if isinstance(former, collections.abc.MutableMapping):
            made = copy.copy(former)
            made.update(parts)
            return made
        if isinstance(former, collections.abc.MutableSequence):
            made = copy.copy(former)
            for place, part in enumerate(parts):
                made[place] = part
            return made
        return type(former)(parts)
    except TypeError:
        return dict(parts) if is_mapping else list(parts)


def default_convert(data):
    """Returns a sample with NumPy arrays converted to tensors, in nested containers as well."""
    if isinstance(data, (_core.Tensor, str, bytes)):
        return data
    if type(data).__module__ == "numpy" or hasattr(data, "__array_interface__"):
        return data if hasattr(data, "dtype") and _has_text_or_objects(data) else _core.tensor(data)
    if isinstance(data, collections.abc.Mapping):
        return _like(data, {name: default_convert(data[name]) for name in data})
    if isinstance(data, tuple):
        parts = [default_convert(part) for part in data]
        return type(data)(*parts) if hasattr(data, "_fields") else parts
    if isinstance(data, collections.abc.Sequence):
        return _like(data, [default_convert(part) for part in data])
    return data


def collate(batch, *, collate_fn_map=None):
    """Returns a list of samples as one batch, by functions for the classes of its elements. Dictionaries and sequences are
    collated item by item."""
    first = batch[0]
    functions = collate_fn_map or {}
    chosen = functions.get(type(first))
    if chosen is None:
        chosen = next((function for kind, function in functions.items() if isinstance(first, kind)), None)
    if chosen is not None:
        return chosen(batch, collate_fn_map=collate_fn_map)
    if isinstance(first, collections.abc.Mapping):
        return _like(first, {name: collate([sample[name] for sample in batch], collate_fn_map=collate_fn_map) for name in first})
    if not isinstance(first, collections.abc.Sequence):
        raise TypeError(_REFUSED.format(type(first)))
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(collate(part, collate_fn_map=collate_fn_map) for part in zip(*batch)))
    if any(len(sample) != len(first) for sample in batch):
        raise RuntimeError("each element in list of batch should be of equal size")
    parts = [collate(part, collate_fn_map=collate_fn_map) for part in zip(*batch)]
    return parts if isinstance(first, tuple) else _like(first, parts)


def collate_tensor_fn(batch, *, collate_fn_map=None):
    """Returns the tensors stacked."""
    return _core.stack(list(batch))


def collate_numpy_array_fn(batch, *, collate_fn_map=None):
    """Returns NumPy arrays stacked as a tensor."""
    if _has_text_or_objects(batch[0]):
        raise TypeError(_REFUSED.format(batch[0].dtype))
    return _core.stack([_core.tensor(array) for array in batch])


def collate_numpy_scalar_fn(batch, *, collate_fn_map=None):
    """Returns NumPy numbers as a tensor."""
    return _core.stack([_core.tensor(number) for number in batch])


def collate_float_fn(batch, *, collate_fn_map=None):
    """Returns numbers as a tensor of float64."""
    return _core.tensor(list(batch), dtype=_core.float64)


def collate_int_fn(batch, *, collate_fn_map=None):
    """Returns integers or bools as a tensor."""
    return _core.tensor(list(batch))


def collate_str_fn(batch, *, collate_fn_map=None):
    """Returns texts unchanged."""
    return batch


class _Arrays(type):
    """The metaclass for NumPy types, which are recognised without importing NumPy. A NumPy string counts as text."""

    def __instancecheck__(cls, value):
        return not isinstance(value, (str, bytes)) and hasattr(value, "__array_interface__") and not isinstance(value, _core.Tensor) \
            and (type(value).__module__ == "numpy" and not hasattr(value, "__len__")) == cls.are_scalars


class _Array(metaclass=_Arrays):
    """Arrays of NumPy."""

    are_scalars = False


class _Number(metaclass=_Arrays):
    """Numbers of NumPy."""

    are_scalars = True


default_collate_fn_map = {
    _core.Tensor: collate_tensor_fn, _Array: collate_numpy_array_fn, _Number: collate_numpy_scalar_fn, float: collate_float_fn,
    int: collate_int_fn, str: collate_str_fn, bytes: collate_str_fn,
}


def default_collate(batch):
    """Returns a list of samples as one batch: tensors are stacked, numbers become a tensor, lists and dictionaries are collated
    item by item."""
    return collate(batch, collate_fn_map=default_collate_fn_map)
