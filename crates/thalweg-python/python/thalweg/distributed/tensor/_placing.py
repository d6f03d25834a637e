"""Changes of the placement of a tensor's parts among ranks, with the changes of its gradient.

The gradient of an entire tensor is the same on every rank, that of a part is the part of the gradient, and that of a term of a sum is the
gradient of the sum.
"""

from ... import _core
from .._collectives import all_reduce
from .._functional_collectives import Change, gathered
from .._group import ReduceOp
from .._placements import Partial, Replicate, Shard, _StridedShard

_OPERATIONS = {"sum": ReduceOp.SUM, "avg": ReduceOp.AVG, "max": ReduceOp.MAX, "min": ReduceOp.MIN, "product": ReduceOp.PRODUCT}


def part_of(tensor, dim, place, count):
    """Returns one of several parts of a dimension, as `chunk` makes them. The last ones may be smaller, or empty."""
    rows = -(-tensor.shape[dim] // count)
    first = min(place * rows, tensor.shape[dim])
    return tensor.narrow(dim, first, min(rows, tensor.shape[dim] - first))


def padded(part, dim, rows):
    """Returns a rank's part of a dimension with zeros after it, as large as the parts of the other ranks."""
    missing = rows - part.shape[dim]
    return _core.cat([part, part.new_zeros([*part.shape[:dim], missing, *part.shape[dim + 1:]])], dim) if missing else part


def is_divided(placement):
    """Returns whether each rank has a part of a dimension."""
    return isinstance(placement, (Shard, _StridedShard))


def placed(tensor, placement, place, count):
    """Returns the part of the rank at a place, of a dimension that is divided."""
    if isinstance(placement, Shard):
        return part_of(tensor, placement.dim, place, count)
    groups = [part_of(tensor, placement.dim, group, placement.split_factor) for group in range(placement.split_factor)]
    return _core.cat([part_of(group, placement.dim, place, count) for group in groups], placement.dim)


def parts_of(tensor, mesh, placements):
    """Returns this rank's part of an entire tensor."""
    for dim, placement in enumerate(placements):
        if is_divided(placement):
            tensor = placed(tensor, placement, mesh.get_local_rank(dim), mesh.size(dim))
    return tensor


def own_part(tensor, placement, group):
    """Returns this rank's part of a dimension, in memory of its own."""
    return placed(tensor.detach(), placement, group.rank(), group.size()).contiguous()


def together(tensor, placement, group):
    """Returns the entire tensor from the parts of all ranks."""
    dim, counts = placement.dim, group.exchange(tensor.shape[placement.dim], "redistribute")
    most = max(counts)
    found = gathered(padded(tensor, dim, most), dim, group)
    if min(counts) < most:
        found = _core.cat([found.narrow(dim, most * place, count) for place, count in enumerate(counts)], dim)
    if isinstance(placement, Shard):
        return found
    numbers = _core.arange(found.shape[placement.dim], device=found.device)
    along = _StridedShard(0, split_factor=placement.split_factor)
    order = _core.cat([placed(numbers, along, place, group.size()) for place in range(group.size())])
    return found.index_select(placement.dim, order.argsort())


def summed(tensor, group, operation="sum"):
    """Returns the reduction of the terms of all ranks."""
    made = tensor.detach().clone(memory_format=_core.contiguous_format)
    all_reduce(made, _OPERATIONS[operation], group)
    return made


def _same(tensor):
    return tensor.view_as(tensor)


def used_in_parts(tensor, group):
    """Returns an entire tensor for a function that each rank computes a part of: the terms of the gradient are added up."""
    return Change.apply(tensor, _same, lambda gradient: summed(gradient, group))


def of_first(tensor, group):
    """Returns the tensor on the first rank, and zeros on the others."""
    return tensor.clone() if group.rank() == 0 else _core.zeros_like(tensor)


def changed(tensor, source, target, group):
    """Returns the part of this rank in another placement of one dimension of the mesh."""
    if source == target:
        return tensor
    if is_divided(source):
        entire = Change.apply(tensor, lambda value: together(value, source, group), lambda gradient: own_part(gradient, source, group))
        return changed(entire, Replicate(), target, group)
    if isinstance(source, Partial):
        entire = Change.apply(tensor, lambda value: summed(value, group, source.reduce_op), _same)
        return changed(entire, Replicate(), target, group)
    if is_divided(target):
        return Change.apply(tensor, lambda value: own_part(value, target, group), lambda gradient: together(gradient, target, group))
    return Change.apply(tensor, lambda value: of_first(value, group), _same)


def redistributed(tensor, mesh, sources, targets):
    """Returns this rank's part of a tensor in another placement. The old placement is undone from the last dimension of
    the mesh to the first; then the new one is applied from the first."""
    if tuple(sources) == tuple(targets):
        return tensor
    middle = [source if source == target else Replicate() for source, target in zip(sources, targets)]
    # A dimension of the tensor that several dimensions of the mesh divide is put together from the innermost part outwards.
    dims = [placement.dim for placement in (*sources, *targets) if is_divided(placement)]
    if mesh.ndim > 1 and len(set(dims)) < len(dims):
        middle = [Replicate()] * mesh.ndim
    for place in reversed(range(mesh.ndim)):
        tensor = changed(tensor, sources[place], middle[place], mesh.get_group(place))
    for place in range(mesh.ndim):
        tensor = changed(tensor, middle[place], targets[place], mesh.get_group(place))
    return tensor
