"""Tensors on several GPUs of one process (`torch.cuda.comm`)."""

from .. import _core
from ..nn._scattering import _place, gather as _gather

Tensor = _core.Tensor


def broadcast(tensor, devices=None, *, out=None):
    """Returns a tensor on each of several devices, or writes it into tensors there."""
    if (devices is None) == (out is None):
        raise RuntimeError(f"Exactly one of 'devices' and 'out' must be specified, but got devices={devices} and out={out}")
    if out is None:
        return tuple(tensor.to(_place(device)) for device in devices)
    for target in out:
        target.copy_(tensor)
    return tuple(out)


def broadcast_coalesced(tensors, devices, buffer_size=10485760):
    """Returns several tensors on each of several devices."""
    return tuple(tuple(tensor.to(_place(device)) for tensor in tensors) for device in devices)


def reduce_add(inputs, destination=None):
    """Returns the sum of tensors of several devices, on one of them."""
    place = inputs[0].device if destination is None else _place(destination)
    if len({tuple(tensor.shape) for tensor in inputs}) > 1:
        raise ValueError(f"reduce_add expects all inputs to have the same shape, not {[tuple(tensor.shape) for tensor in inputs]}")
    total = inputs[0].to(place)
    for tensor in inputs[1:]:
        total = total + tensor.to(place)
    return total


def reduce_add_coalesced(inputs, destination=None, buffer_size=10485760):
    """Returns the sums of lists of tensors of several devices, on one of them."""
    return tuple(reduce_add(list(parts), destination) for parts in zip(*inputs))


def scatter(tensor, devices=None, chunk_sizes=None, dim=0, streams=None, *, out=None):
    """Returns the parts of a tensor along a dimension on several devices, or writes them into tensors there."""
    if out is not None:
        for target, part in zip(out, tensor.split([one.shape[dim] for one in out], dim)):
            target.copy_(part)
        return tuple(out)
    parts = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(list(chunk_sizes), dim)
    return tuple(part.to(_place(device)) for part, device in zip(parts, devices))


def gather(tensors, dim=0, destination=None, *, out=None):
    """Returns the tensors of several devices, one after another along a dimension, on one of them."""
    if out is None:
        return _gather(tensors, "cpu" if destination in (-1, "cpu") else tensors[0].device if destination is None else destination, dim)
    return out.copy_(_core.cat([tensor.to(out.device) for tensor in tensors], dim))
