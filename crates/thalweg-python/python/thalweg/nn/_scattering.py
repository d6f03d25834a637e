"""Parts of batches for several GPUs, and results put together again (`torch.nn.parallel.scatter_gather`)."""

from .. import _core
from .._core import device as _device

Tensor = _core.Tensor


def _place(target):
    return _device("cuda", target) if isinstance(target, int) else _device(target)


def _each(value, count, split):
    """Returns a nested value once per part, each time with the corresponding parts of its tensors."""
    if isinstance(value, Tensor):
        return split(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [type(value)(*parts) for parts in zip(*(_each(part, count, split) for part in value))]
    if isinstance(value, (tuple, list)) and value:
        return [type(value)(parts) for parts in zip(*(_each(part, count, split) for part in value))]
    if isinstance(value, dict) and value:
        return [type(value)(zip(value, parts)) for parts in zip(*(_each(part, count, split) for part in value.values()))]
    return [value] * count


def scatter(inputs, target_gpus, dim=0):
    """Returns a nested value for each of several devices, with the parts of its tensors along a dimension."""
    def split(tensor):
        parts = tensor.chunk(len(target_gpus), dim)
        return [part.to(_place(target)) for part, target in zip(parts, target_gpus)]
    return _each(inputs, len(target_gpus), split)


def scatter_kwargs(inputs, kwargs, target_gpus, dim=0):
    """Returns the parts of positional and keyword arguments, equally many of each."""
    places = scatter(inputs, target_gpus, dim) if inputs else []
    names = scatter(kwargs, target_gpus, dim) if kwargs else []
    places += [() for _ in range(len(names) - len(places))]
    names += [{} for _ in range(len(places) - len(names))]
    return tuple(places), tuple(names)


def gather(outputs, target_device, dim=0):
    """Returns nested results of several devices as one, on one device."""
    first = outputs[0]
    if isinstance(first, Tensor):
        place = _place(target_device)
        whole = [one.to(place) if one.dim() else one.to(place).reshape(1) for one in outputs]
        return _core.cat(whole, dim)
    if first is None:
        return None
    if isinstance(first, dict):
        return type(first)((key, gather([one[key] for one in outputs], target_device, dim)) for key in first)
    parts = [gather(parts, target_device, dim) for parts in zip(*outputs)]
    return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
