"""Modules whose parameters are spread over ranks (`torch.distributed.fsdp`): each rank keeps its rows of every parameter.

The entire parameters of a module are gathered for `forward`, freed after it, and gathered again for the backward pass, which gives each rank
its rows of the mean gradient (`_units.py`).
"""

import dataclasses
import types

from ... import _core
from ..._left_out import attributes as _attributes
from ...nn.parameter import Parameter
from ...utils._pytree import tree_map
from ...utils.hooks import RemovableHandle
from .. import _check, get_process_group_ranks
from .._placements import Replicate, Shard
from ..tensor import DTensor
from ..tensor._placing import padded, part_of
from ._units import Unit

__all__ = ["CPUOffloadPolicy", "FSDPModule", "MixedPrecisionPolicy", "OffloadPolicy", "fully_shard", "register_fsdp_forward_method"]


@dataclasses.dataclass(frozen=True)
class MixedPrecisionPolicy:
    """The dtypes of entire parameters, of reductions and of results."""

    param_dtype: object = None
    reduce_dtype: object = None
    output_dtype: object = None
    cast_forward_inputs: bool = True


@dataclasses.dataclass
class OffloadPolicy:
    """Where parts of parameters are: with the ranks' devices."""


@dataclasses.dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """The policy that would keep parts of parameters in the host's memory. It is left out."""

    pin_memory: bool = True


class ShardedParameter(Parameter, DTensor):
    """This rank's part of a parameter: its rows, unless a placement says otherwise.

    `within` has the placements and groups by which the parameter was divided before, if there are any. With `is_replicated` the ranks along
    the first dimension of the mesh have the same part.
    """

    def __new__(cls, rows, group, shape, mesh, requires_grad, placement=Shard(0), within=(), is_replicated=False):
        made = Parameter.__new__(cls, rows, requires_grad)
        parts = (*within, (placement, group))
        placements = (*([Replicate()] if is_replicated else ()), *(one for one, _ in reversed(parts)))
        made.__dict__.update(_group=group, _parts=parts, _full_shape=tuple(shape), device_mesh=mesh, placements=placements, _is_replicated=is_replicated,
                             _is_gathered=False, _when_reduced={}, _when_accumulated={})
        return made

    def __init__(self, *_, **__):
        pass

    def to_local(self, *, grad_placements=None):
        """Returns this rank's rows."""
        return self.data

    @property
    def grad(self):
        """The gradient of this rank's part, as a divided tensor."""
        own = _core.Tensor.grad.__get__(self)
        return None if own is None else self._like(own)

    @grad.setter
    def grad(self, value):
        _core.Tensor.grad.__set__(self, value.to_local() if isinstance(value, DTensor) else value)

    def detach(self):
        """Returns this rank's part without its place in the graph, as a divided tensor."""
        return self._like(self.data)

    def _own_part(self, whole):
        """Returns this rank's part of an entire tensor."""
        whole = whole.reshape(1) if whole.dim() == 0 else whole
        for placement, group in self._parts:
            if placement.is_shard():
                whole = part_of(whole, placement.dim, group.rank(), group.size())
        return whole

    def _shape_in_group(self, number=-1):
        """Returns the shape of the tensor that a group divides, which groups before it may have divided."""
        shape = list(self._full_shape)
        for placement, group in self._parts[:len(self._parts) + number if number < 0 else number]:
            if placement.is_shard():
                rows = -(-shape[placement.dim] // group.size())
                shape[placement.dim] = max(min(rows, shape[placement.dim] - rows * group.rank()), 0)
        return shape

    def _joined(self, part, number):
        """Returns the tensor that a group has divided, from the parts of its ranks."""
        placement, group = self._parts[number]
        if not placement.is_shard():
            return part
        shape = self._shape_in_group(number) or [1]
        rows = -(-shape[placement.dim] // group.size())
        from .._functional_collectives import gathered
        return gathered(padded(part, placement.dim, rows), placement.dim, group).narrow(placement.dim, 0, shape[placement.dim])

    def _take_gradient(self, rows):
        """Adds this rank's rows of a reduced gradient to the gradient."""
        if "_sum_over" in self.__dict__:
            from .._functional_collectives import reduced
            rows = reduced(rows, "sum", self.__dict__["_sum_over"])
        for hook in tuple(self._when_reduced.values()):
            replaced = hook(rows)
            rows = rows if replaced is None else replaced
        former = _core.Tensor.grad.__get__(self)
        _core.Tensor.grad.__set__(self, rows if former is None else former + rows)
        for hook in tuple(self._when_accumulated.values()):
            hook(self)

    def register_hook(self, hook):
        """Registers a function of the gradient, which may return another one. For a parameter that is gathered the gradient is this rank's rows."""
        return _registered(self._when_reduced, hook) if self._is_gathered else super().register_hook(hook)

    def register_post_accumulate_grad_hook(self, hook):
        """Registers a function of the parameter that is called after its gradient has been accumulated."""
        return _registered(self._when_accumulated, hook) if self._is_gathered else super().register_post_accumulate_grad_hook(hook)

    def full_tensor(self, *, grad_placements=None):
        """Returns the entire parameter, on each rank."""
        whole = self.data
        for number in reversed(range(len(self._parts))):
            whole = self._joined(whole, number)
        return whole.reshape(self._full_shape)

    def _like(self, rows, requires_grad=False):
        """Returns this rank's part of another tensor that is divided as this one is."""
        (placement, group), within = self._parts[-1], self._parts[:-1]
        return ShardedParameter(rows, group, self._full_shape, self.device_mesh, requires_grad, placement, within, self._is_replicated)

    def _loaded(self, saved):
        """Returns this rank's part of a saved tensor, which may be divided or entire."""
        if isinstance(saved, DTensor):
            return self._like(saved.to_local(), self.requires_grad)
        return self._own_part(saved) if tuple(saved.shape) == self._full_shape else saved

    def _state_shown(self, state):
        """Returns an optimizer's state of the parameter with its tensors as divided ones."""
        return {name: self._like(value) if isinstance(value, _core.Tensor) and value.dim() and value.shape == self.shape else value
                for name, value in state.items()}

    def _state_kept(self, state):
        """Returns this rank's part of an optimizer's state of the parameter."""
        return {name: value.to_local() if isinstance(value, DTensor) else value for name, value in state.items()}

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            memo[id(self)] = self._like(self.data.clone(), self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol):
        return Parameter, (self.data, self.requires_grad)


def sum_over(parameter, group):
    """Makes the gradient of a parameter the sum of the ranks' gradients."""
    from .._functional_collectives import reduced
    parameter.__dict__["_sum_over"] = group
    parameter.register_hook(lambda gradient: reduced(gradient, "sum", group))


def _registered(hooks, hook):
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


class FSDPModule:
    """A module whose parameters are spread over ranks."""

    def unshard(self, async_op=False):
        """Gathers the parameters before the next call of `forward`, which uses them. Returns an object with `wait` if `async_op` is true."""
        unit = self._unit
        unit.gather()
        unit.is_kept = True
        if not async_op:
            unit.swap()
        return types.SimpleNamespace(wait=unit.swap) if async_op else None

    def reshard(self):
        """Gives the module its part of the parameters again."""
        self._unit.swap_back()
        self._unit.reshard()

    def _units(self, recurse=True):
        return [module._unit for module in (self.modules() if recurse else [self]) if isinstance(module, FSDPModule)]

    def set_requires_gradient_sync(self, requires_gradient_sync, *, recurse=True):
        """Sets whether gradients are reduced in backward passes. If not, they stay on their ranks until a pass that reduces them."""
        for unit in self._units(recurse):
            unit.is_synchronized = requires_gradient_sync

    def set_is_last_backward(self, is_last_backward):
        """Does nothing: each pass reduces its gradients."""

    def set_requires_all_reduce(self, requires_all_reduce, *, recurse=True):
        """Sets whether gradients are also reduced over the ranks that have the same rows, if the mesh has two dimensions."""
        for unit in self._units(recurse):
            unit.all_reduces = requires_all_reduce

    def set_reshard_after_forward(self, reshard_after_forward, recurse=True):
        """Sets whether entire parameters are freed after a forward pass."""
        for unit in self._units(recurse):
            unit.reshards_after_forward = reshard_after_forward

    def set_reshard_after_backward(self, reshard_after_backward, *, recurse=True):
        """Sets whether entire parameters are freed as soon as their gradients are there."""
        for unit in self._units(recurse):
            unit.reshards_after_backward = reshard_after_backward

    def set_modules_to_forward_prefetch(self, modules):
        """Sets the modules that are gathered at the beginning of this one's forward pass."""
        self._unit.ahead_forward = [module._unit for module in modules]

    def set_modules_to_backward_prefetch(self, modules):
        """Sets the modules that are gathered at the beginning of this one's backward pass."""
        self._unit.ahead_backward = [module._unit for module in modules]

    def __deepcopy__(self, memo):
        raise AssertionError("FSDP does not support deepcopy. Please use state dict for serialization.")


def fully_shard(module, *, mesh=None, reshard_after_forward=None, shard_placement_fn=None, mp_policy=None, offload_policy=None, ignored_params=None,
                group=None):
    """Spreads the parameters of a module, without those of parts that are spread already, over the ranks, and returns the module.

    Parameters are spread over the last dimension of a mesh. The ranks along the first of two dimensions have the same rows.
    """
    if isinstance(offload_policy, CPUOffloadPolicy):
        raise NotImplementedError("fully_shard(offload_policy=CPUOffloadPolicy()) is left out: parts of parameters stay on the ranks' devices")
    if shard_placement_fn is not None:
        raise NotImplementedError("fully_shard(shard_placement_fn=...) is left out: parameters are divided by rows")
    if isinstance(module, (list, tuple)):
        return [fully_shard(one, mesh=mesh, reshard_after_forward=reshard_after_forward, mp_policy=mp_policy, ignored_params=ignored_params)
                for one in module]
    if mesh is not None and mesh.ndim > 2:
        raise ValueError(f"fully_shard expects a 1D or 2D DeviceMesh but got {mesh}")
    if group is not None:
        group, replicas = group
    elif mesh is not None:
        group, replicas = mesh.get_group(mesh.ndim - 1), mesh.get_group(0) if mesh.ndim == 2 else None
    else:
        group, replicas = _check("fully_shard"), None
    mesh = mesh if mesh is not None else _mesh_of(group)
    ignored, known = set(map(id, ignored_params or ())), {}
    waiting = [module]
    while waiting:
        part = waiting.pop()
        for name, parameter in part._parameters.items():
            if parameter is None or id(parameter) in ignored or any(one is group for _, one in getattr(parameter, "_parts", ())):
                continue
            if id(parameter) not in known:
                known[id(parameter)] = _divided(parameter, group, replicas, mesh)
            part._parameters[name] = known[id(parameter)]
        waiting += [child for child in part._modules.values() if child is not None and not isinstance(child, FSDPModule)]
    unit = Unit(module, group, replicas, mp_policy or MixedPrecisionPolicy(), None if reshard_after_forward is None else bool(reshard_after_forward),
                lambda parameter: isinstance(parameter, ShardedParameter) and parameter._group is group)
    for part in module.modules():
        if part is not module and isinstance(part, FSDPModule):
            unit.take_in(part._unit)
    _become_unit(module, unit)
    return module


def _mesh_of(group):
    """Returns the ranks of a group as a mesh."""
    from ..device_mesh import DeviceMesh
    return DeviceMesh(_core.get_default_device().type, get_process_group_ranks(group), _groups=[group])


def _divided(parameter, group, replicas, mesh):
    """Returns this rank's rows of a parameter, or of its part of one, whose elements are those of the first rank."""
    from .._collectives import broadcast
    whole = parameter.data
    if not whole.is_meta:
        for one in (replicas, group):
            if one is not None:
                broadcast(whole, group=one, group_src=0)
    rows = part_of(whole.reshape(1) if whole.dim() == 0 else whole, 0, group.rank(), group.size())
    within, shape = getattr(parameter, "_parts", ()), getattr(parameter, "_full_shape", parameter.shape)
    made = ShardedParameter(rows.clone(), group, shape, mesh, parameter.requires_grad, within=within, is_replicated=replicas is not None)
    made.__dict__["_is_gathered"] = True
    if "_sum_over" in parameter.__dict__:
        made.__dict__["_sum_over"] = parameter.__dict__["_sum_over"]
    return made


def _become_unit(module, unit):
    """Makes a module an `FSDPModule`, which has entire parameters in each call of `forward`."""
    kind = type(module)
    module.__class__ = type(f"FSDP{kind.__name__}", (FSDPModule, kind), {})
    module.__dict__["_unit"] = unit
    forward, policy = module.forward, unit.policy

    def gathering(*args, **kwargs):
        if policy.param_dtype is not None and policy.cast_forward_inputs:
            args, kwargs = tree_map(lambda value: value.to(policy.param_dtype) if isinstance(value, _core.Tensor) and value.is_floating_point() else value,
                                    (args, kwargs))
        result = unit.run(forward, args, kwargs)
        if policy.output_dtype is None:
            return result
        return tree_map(lambda value: value.to(policy.output_dtype) if isinstance(value, _core.Tensor) and value.is_floating_point() else value, result)
    module.forward = gathering


def register_fsdp_forward_method(module, method_name):
    """Makes another method of a module gather its parameters as well."""
    method = getattr(module, method_name)
    setattr(module, method_name, lambda *args, **kwargs: module._unit.run(method, args, kwargs))


from .fully_sharded_data_parallel import (  # noqa: E402,F401
    BackwardPrefetch, CPUOffload, FullOptimStateDictConfig, FullStateDictConfig, FullyShardedDataParallel, LocalOptimStateDictConfig,
    LocalStateDictConfig, MixedPrecision, OptimStateDictConfig, OptimStateKeyType, ShardedOptimStateDictConfig, ShardedStateDictConfig,
    ShardingStrategy, StateDictConfig, StateDictSettings, StateDictType)

__getattr__ = _attributes(__name__)
