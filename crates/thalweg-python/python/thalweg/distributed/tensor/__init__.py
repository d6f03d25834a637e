"""Tensors whose parts are on several ranks (`torch.distributed.tensor`).

A `DTensor` has this rank's part, which has its place in the graph, and the placement of all parts. `_rules.py` has the functions that each rank
computes for its part; every other function gathers the parts, and each rank computes it entirely.
"""

import dataclasses
import sys
import types

from ... import _core, _external, _torch_functions
from .. import all_gather_object
from .._placements import Partial, Placement, Replicate, Shard, _StridedShard
from ..device_mesh import DeviceMesh, _of_file, init_device_mesh
from ._placing import is_divided, parts_of, redistributed, used_in_parts

__all__ = ["DTensor", "DeviceMesh", "Partial", "Placement", "Replicate", "Shard", "distribute_module", "distribute_tensor", "empty", "full",
           "init_device_mesh", "ones", "rand", "randn", "zeros"]
Tensor = _core.Tensor


class DTensor(Tensor):
    """A tensor of which this rank has a part."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return _called(func, args, kwargs or {})

    @staticmethod
    def from_local(local_tensor, device_mesh=None, placements=None, *, run_check=False, shape=None, stride=None):
        """Returns the tensor of which each rank has given a part."""
        mesh = device_mesh or init_device_mesh("cpu", (_size(),))
        placements = _normal(placements, mesh, local_tensor.dim())
        local = local_tensor.view_as(local_tensor) if local_tensor.requires_grad else local_tensor.detach()
        return made(local, mesh, placements, _global_shape(local_tensor, mesh, placements) if shape is None else shape)

    def to_local(self, *, grad_placements=None):
        """Returns this rank's part. `grad_placements` says how the ranks' gradients of it are placed."""
        local = self._local.view_as(self._local) if self._local.requires_grad else self._local
        for place, placement in enumerate(grad_placements or ()):
            if placement.is_partial() and not self.placements[place].is_partial():
                local = used_in_parts(local, self.device_mesh.get_group(place))
        return local

    def full_tensor(self, *, grad_placements=None):
        """Returns the entire tensor, on each rank."""
        whole = self.redistribute(placements=[Replicate()] * self.device_mesh.ndim)
        return whole.to_local(grad_placements=grad_placements)

    def redistribute(self, device_mesh=None, placements=None, *, async_op=False, forward_dtype=None, backward_dtype=None):
        """Returns the tensor with its parts placed in a different way."""
        mesh = device_mesh or self.device_mesh
        if mesh != self.device_mesh:
            raise NotImplementedError("redistribute to another mesh is left out: gather the tensor and distribute it there")
        placements = self.placements if placements is None else _normal(placements, mesh, self.dim())
        if any(one.is_partial() and not former.is_partial() for one, former in zip(placements, self.placements)):
            raise RuntimeError("Can not redistribute to Partial, redistributing to Partial is for internal use only!")
        return made(redistributed(self._local, mesh, self.placements, placements), mesh, placements, self.shape)

    def __repr__(self):
        return f"DTensor(local_tensor={self._local.detach()}, device_mesh={self.device_mesh}, placements={self.placements})"

    @property
    def _handle(self):
        """The tensor that has the properties of this rank's part."""
        return self._local

    @property
    def _outer(self):
        """The tensor that has the sizes of the entire one."""
        return self

    def _part(self, value, placements):
        """Returns this rank's part of another tensor, which is divided or entire, for the placements."""
        if not isinstance(value, DTensor):
            return parts_of(value, self.device_mesh, placements) if tuple(value.shape) == tuple(self.shape) else value
        if value.device_mesh != self.device_mesh:
            return parts_of(value.full_tensor(), self.device_mesh, placements)
        return redistributed(value._local, self.device_mesh, value.placements, placements)

    @property
    def _spec(self):
        return types.SimpleNamespace(mesh=self.device_mesh, placements=self.placements)

    @property
    def _local_tensor(self):
        return self._local

    def _with_gradient(self, gradient):
        return made(gradient, self.device_mesh, _of_gradient(self), self.shape)

    def __create_chunk_list__(self):
        """Returns where this rank's part is in the entire tensor."""
        raise NotImplementedError("chunks of a DTensor are left out: checkpoints read `full_tensor`")

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            local = self._local.detach().clone().requires_grad_(self._local.requires_grad)
            memo[id(self)] = made(local, self.device_mesh, self.placements, self.shape)
        return memo[id(self)]

    def _as_parameter(self, requires_grad):
        """Returns the tensor as a parameter."""
        return ShardedParameter(self._local.detach(), self.device_mesh, self.placements, self.shape, requires_grad)

    def __reduce_ex__(self, protocol):
        return made, (self._local.detach(), self.device_mesh, self.placements, tuple(self.shape))


def _size():
    from .. import get_world_size
    return get_world_size()


def _normal(placements, mesh, rank):
    """Returns placements with dimensions that count from the first."""
    placements = [Replicate()] * mesh.ndim if placements is None else placements
    return tuple(dataclasses.replace(one, dim=one.dim % rank) if is_divided(one) and one.dim < 0 else one for one in placements)


def made(local, mesh, placements, shape, like=None):
    """Returns a rank's part as a divided tensor. `like` may be a tensor without memory that has the shape."""
    _external.expected()
    with _torch_functions.DisableTorchFunction():
        outer = Tensor.as_subclass(_core.empty(list(shape), dtype=local.dtype, device="meta") if like is None else like, DTensor)
    outer.__dict__.update(_local=local, device_mesh=mesh, placements=tuple(placements))
    return outer


def _global_shape(local, mesh, placements):
    shape = list(local.shape)
    for dim, placement in enumerate(placements):
        if is_divided(placement):
            found = [None] * mesh.size(dim)
            all_gather_object(found, local.shape[placement.dim], group=mesh.get_group(dim))
            shape[placement.dim] = sum(found) if list(local.shape)[placement.dim] == shape[placement.dim] else shape[placement.dim] * len(found)
    return tuple(shape)


def distribute_tensor(tensor, device_mesh=None, placements=None, *, src_data_rank=0):
    """Returns a tensor of which each rank keeps its part. The elements are those of one rank, unless `src_data_rank` is None."""
    mesh = device_mesh or init_device_mesh("cpu", (_size(),))
    if isinstance(tensor, DTensor):
        return tensor.redistribute(mesh, placements)
    if not tensor.is_leaf:
        raise RuntimeError("`distribute_tensor` should be used to distribute leaf tensors! but found non-leaf tensor!")
    placements = _normal(placements, mesh, tensor.dim())
    local, shape = tensor.detach(), tensor.shape
    if mesh.device_type == "cuda" and not local.is_meta:
        local = local.to(_core.get_default_device())
    if src_data_rank is not None:
        from .. import broadcast
        local = local.clone()
        for dim in range(mesh.ndim):
            broadcast(local, group=mesh.get_group(dim), group_src=src_data_rank)
    for dim, placement in enumerate(placements):
        if placement.is_partial():
            raise RuntimeError(f"Trying to distribute tensor with unsupported placements {placement} on device mesh dimension {dim}!")
    local = parts_of(local, mesh, placements).clone(memory_format=_core.contiguous_format)
    return made(local.requires_grad_(tensor.requires_grad), mesh, placements, shape)


def distribute_module(module, device_mesh=None, partition_fn=None, input_fn=None, output_fn=None):
    """Returns a module whose parts `partition_fn` divides, with functions before and after its `forward`. Parameters
    and buffers that it has not divided are entire on each rank."""
    from ...nn.parameter import Parameter
    mesh = device_mesh or init_device_mesh("cpu", (_size(),))
    for name, part in module.named_modules():
        if partition_fn is not None:
            partition_fn(name, part, mesh)
        for own, value in list(part._parameters.items()):
            if value is not None and not isinstance(value, DTensor):
                part.register_parameter(own, Parameter(distribute_tensor(value.detach(), mesh), value.requires_grad))
        for own, value in list(part._buffers.items()):
            if value is not None and not isinstance(value, DTensor):
                part._buffers[own] = distribute_tensor(value, mesh)
    if input_fn is not None:
        module.register_forward_pre_hook(lambda part, inputs: input_fn(part, inputs, mesh))
    if output_fn is not None:
        module.register_forward_hook(lambda part, inputs, outputs: output_fn(part, outputs, mesh))
    return module


_OF_ENTIRE = frozenset(("shape", "ndim", "size", "dim", "ndimension", "numel", "nelement", "stride", "__len__", "is_contiguous"))
_OF_PART = frozenset((
    "device", "requires_grad", "is_leaf", "grad_fn", "is_cuda", "is_meta", "is_cpu", "get_device", "retains_grad", "_version", "dtype", "layout",
    "is_floating_point", "is_complex", "is_signed", "element_size", "itemsize", "is_sparse", "is_quantized", "data_ptr", "untyped_storage", "storage_offset",
    "is_pinned", "is_shared", "share_memory_", "record_stream"))


def _called(func, args, kwargs):
    """Returns the result of a function of divided tensors."""
    name = getattr(func, "__name__", "")
    owner = _torch_functions.property_name(func) or name
    x = args[0] if args else None
    if owner in _OF_ENTIRE:
        with _torch_functions.SubclassesOff():
            return func(x._outer, *args[1:], **kwargs)
    if owner in ("grad", "_grad", "data") and name in ("__get__", "__set__"):
        return _part_read(x, owner) if name == "__get__" else _part_written(x, owner, args[1])
    if owner in _OF_PART:
        return func(x._local, *args[1:], **kwargs)
    if owner in ("T", "mT", "H", "mH"):
        return x.transpose(-2, -1) if x.dim() > 1 else x
    if name in ("requires_grad_", "retain_grad", "detach_"):
        with _torch_functions.SubclassesOff():
            func(x._handle, *args[1:], **kwargs)
        return None if name == "retain_grad" else x
    if name == "backward":
        gradient = args[1] if len(args) > 1 else kwargs.pop("gradient", None)
        local = x._local if not isinstance(gradient, DTensor) else x.redistribute(placements=gradient.placements)._local
        return func(local, gradient._local if isinstance(gradient, DTensor) else gradient, *args[2:], **kwargs)
    if name == "register_hook":
        hook = args[1]
        return x._local.register_hook(lambda gradient: _local_of(hook(made(gradient, x.device_mesh, _of_gradient(x), x.shape))))
    if name == "__format__" and x.dim():
        return repr(x)
    if name in ("__format__", "tolist", "item", "numpy", "__bool__", "__float__", "__int__", "__array__", "is_nonzero", "__index__", "equal", "allclose"):
        args = [value.full_tensor() if isinstance(value, DTensor) else value for value in args]
        return func(*args, **kwargs)
    from . import _rules
    return _rules.result_of(DTensor, func, args, kwargs)


def _local_of(value):
    return value._local if isinstance(value, DTensor) else value


def _of_gradient(x):
    """Returns the placements of the gradient of a tensor."""
    return [Replicate() if one.is_partial() else one for one in x.placements]


def _part_read(x, owner):
    part = x._local.data if owner == "data" else x._local.grad
    return None if part is None else made(part, x.device_mesh, x.placements if owner == "data" else _of_gradient(x), x.shape)


def _part_written(x, owner, value):
    if owner == "data":
        x._local.data = value.redistribute(placements=x.placements)._local.detach()
    else:
        x._local.grad = None if value is None else value.redistribute(placements=_of_gradient(x))._local.detach()


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
vars(_types).update(Placement=Placement, Shard=Shard, Replicate=Replicate, Partial=Partial, _Partial=Partial, _StridedShard=_StridedShard)
sys.modules[_types.__name__] = placement_types = _types

from ._parameter import ShardedParameter  # noqa: E402
from ..._objects import know  # noqa: E402

know(_of_file, Partial, Replicate, Shard, ShardedParameter, _StridedShard, made)
from . import experimental  # noqa: E402,F401
