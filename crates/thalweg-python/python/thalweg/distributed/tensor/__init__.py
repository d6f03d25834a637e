"""Tensors whose parts are on several ranks (`torch.distributed.tensor`).

Functions of them gather the parts and return an entire tensor on each rank. They have no gradients: modules with parts of their
parameters are those of `fully_shard`.
"""

import sys
import types

from ... import _core, _torch_functions
from .. import all_gather_object, all_reduce
from .._group import ReduceOp
from .._placements import Partial, Placement, Replicate, Shard
from ..device_mesh import DeviceMesh, init_device_mesh

__all__ = ["DTensor", "DeviceMesh", "Partial", "Placement", "Replicate", "Shard", "distribute_module", "distribute_tensor", "empty", "full",
           "init_device_mesh", "ones", "rand", "randn", "zeros"]
Tensor = _core.Tensor


class DTensor(Tensor):
    """A tensor of which this rank has a part."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return _whole(func, args, kwargs or {})

    @staticmethod
    def from_local(local_tensor, device_mesh=None, placements=None, *, run_check=False, shape=None, stride=None):
        """Returns the tensor of which each rank has given a part."""
        mesh = device_mesh or init_device_mesh("cpu", (_size(),))
        placements = tuple(placements or [Replicate()] * mesh.ndim)
        return _made(local_tensor, mesh, placements, shape)

    def to_local(self, *, grad_placements=None):
        """Returns this rank's part."""
        return self._local

    def full_tensor(self, *, grad_placements=None):
        """Returns the entire tensor, on each rank."""
        return _gathered(self._local, self.device_mesh, self.placements, self._full_shape)

    def redistribute(self, device_mesh=None, placements=None, *, async_op=False, forward_dtype=None, backward_dtype=None):
        """Returns the tensor with its parts placed in another way."""
        return distribute_tensor(self.full_tensor(), device_mesh or self.device_mesh, placements or self.placements, src_data_rank=None)

    @property
    def _spec(self):
        return types.SimpleNamespace(mesh=self.device_mesh, placements=self.placements)


def _size():
    from .. import get_world_size
    return get_world_size()


def _made(local, mesh, placements, shape=None):
    shape = tuple(shape) if shape is not None else _global_shape(local, mesh, placements)
    with _torch_functions.DisableTorchFunction():
        made = Tensor.as_subclass(_core.empty(shape, dtype=local.dtype, device="meta"), DTensor)
    made.__dict__.update(_local=local.detach(), device_mesh=mesh, placements=tuple(placements), _full_shape=shape)
    return made


def _global_shape(local, mesh, placements):
    shape = list(local.shape)
    for dim, placement in enumerate(placements):
        if placement.is_shard():
            found = [None] * mesh.size(dim)
            all_gather_object(found, local.shape[placement.dim], group=mesh.get_group(dim))
            shape[placement.dim] = sum(found) if list(local.shape)[placement.dim] == shape[placement.dim] else shape[placement.dim] * len(found)
    return tuple(shape)


def part_of(tensor, dim, place, count):
    """Returns one of several parts of a dimension, as `chunk` makes them. The last ones may be smaller, or empty."""
    rows = -(-tensor.shape[dim] // count)
    first = min(place * rows, tensor.shape[dim])
    return tensor.narrow(dim, first, min(rows, tensor.shape[dim] - first))


def _gathered(local, mesh, placements, shape):
    """Returns an entire tensor from its parts."""
    whole = local.detach()
    for dim, placement in reversed(list(enumerate(placements))):
        group = mesh.get_group(dim)
        if placement.is_shard():
            whole = _core.cat(group.tensors(whole.contiguous(), "full_tensor"), placement.dim)
        elif placement.is_partial():
            whole = whole.clone()
            all_reduce(whole, {"sum": ReduceOp.SUM, "avg": ReduceOp.AVG, "max": ReduceOp.MAX, "min": ReduceOp.MIN,
                               "product": ReduceOp.PRODUCT}[placement.reduce_op], group)
    return whole.reshape(shape)


def distribute_tensor(tensor, device_mesh=None, placements=None, *, src_data_rank=0):
    """Returns a tensor of which each rank keeps its part. The elements are those of one rank, unless `src_data_rank` is None."""
    mesh = device_mesh or init_device_mesh("cpu", (_size(),))
    placements = tuple(placements or [Replicate()] * mesh.ndim)
    local, shape = tensor.detach(), tensor.shape
    if src_data_rank is not None:
        from .. import broadcast
        local = local.clone()
        for dim in range(mesh.ndim):
            broadcast(local, group=mesh.get_group(dim), group_src=src_data_rank)
    for dim, placement in enumerate(placements):
        if placement.is_shard():
            local = part_of(local, placement.dim, mesh.get_local_rank(dim), mesh.size(dim))
    return _made(local.contiguous(), mesh, placements, shape)


def distribute_module(module, device_mesh=None, partition_fn=None, input_fn=None, output_fn=None):
    """Returns a module whose parts `partition_fn` places, with functions before and after its `forward`."""
    if partition_fn is not None:
        for name, part in module.named_modules():
            partition_fn(name, part, device_mesh)
    if input_fn is not None:
        module.register_forward_pre_hook(lambda part, inputs: input_fn(part, inputs, device_mesh))
    if output_fn is not None:
        module.register_forward_hook(lambda part, inputs, outputs: output_fn(part, outputs, device_mesh))
    return module


_OWN = frozenset(("shape", "dtype", "ndim", "layout", "requires_grad", "is_leaf", "size", "dim", "numel", "nelement", "stride", "is_floating_point",
                  "is_complex", "element_size", "itemsize", "__hash__", "grad_fn", "__len__"))


def _whole(func, args, kwargs):
    """Returns the result of a function of entire tensors."""
    from ...func._batching import replaced
    name = getattr(func, "__name__", "")
    owner = _torch_functions.property_name(func) or name
    if owner in _OWN:
        with _torch_functions.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)
    if owner == "device":
        return args[0]._local.device
    mesh = []

    def gathered(value):
        if isinstance(value, DTensor):
            mesh.append(value.device_mesh)
            return value.full_tensor()
        return value
    result = func(*replaced(args, gathered), **replaced(kwargs, gathered))
    if name in ("__repr__", "tolist", "item", "numpy") or not mesh:
        return result
    return replaced(result, lambda value: _made(value, mesh[0], [Replicate()] * mesh[0].ndim, value.shape))


def _factory(name):
    function = getattr(_core, name)

    def make(*size, device_mesh=None, placements=None, **options):
        size = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        rest = (options.pop("fill_value"),) if "fill_value" in options else ()
        return distribute_tensor(function(list(size), *rest, **options), device_mesh, placements)
    make.__name__, make.__doc__ = name, f"Returns the tensor of `torch.{name}`, of which each rank keeps its part."
    return make


empty, ones, zeros, rand, randn = (_factory(_name) for _name in ("empty", "ones", "zeros", "rand", "randn"))


def full(size, fill_value, *, device_mesh=None, placements=None, **options):
    """Returns a tensor of one number, of which each rank keeps its part."""
    return distribute_tensor(_core.full(list(size), fill_value, **options), device_mesh, placements)


_types = types.ModuleType(f"{__name__}.placement_types", "Placements of the parts of a tensor (`torch.distributed.tensor.placement_types`).")
vars(_types).update(Placement=Placement, Shard=Shard, Replicate=Replicate, Partial=Partial, _Partial=Partial)
sys.modules[_types.__name__] = placement_types = _types
