"""Modules whose parameters are spread over ranks (`torch.distributed.fsdp`): each rank keeps its rows of every parameter.

The entire parameters of a module are gathered for `forward`, freed after it, and gathered again for the backward pass, which gives each rank
its rows of the mean gradient (`_units.py`).
"""

import dataclasses
import functools
import math

from ... import _core
from ..._left_out import attributes as _attributes
from ...nn._calls import is_hooked
from ...nn.containers import ModuleDict, ModuleList
from ...nn.module import Module
from ...utils._pytree import tree_map
from .. import _check, get_process_group_ranks
from .._placements import Replicate, Shard, _StridedShard
from ..device_mesh import DeviceMesh
from ..tensor import DTensor, ShardedParameter
from ..tensor._placing import part_of
from ._units import Unit

__all__ = ["CPUOffloadPolicy", "FSDPModule", "MixedPrecisionPolicy", "OffloadPolicy", "UnshardHandle", "fully_shard", "register_fsdp_forward_method",
           "share_comm_ctx"]


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
    """Keeps parts of parameters, their gradients and the states of optimizers in the host's memory."""

    pin_memory: bool = True


class UnshardHandle:
    """A gather of parameters that has begun."""

    def __init__(self, unit):
        self._unit = unit

    def wait(self):
        """Gives the module its entire parameters."""
        self._unit.swap()


def _does_nothing(self, enable):
    """Does nothing: results are the same."""


class FSDPModule:
    """A module whose parameters are spread over ranks."""

    def __call__(self, *args, **kwargs):
        # Hooks see the entire parameters, too.
        call = super().__call__
        return self._unit.run(call, args, kwargs) if is_hooked(self) else call(*args, **kwargs)

    def unshard(self, async_op=False):
        """Gathers the parameters before the next call of `forward`, which uses them. Returns an object with `wait` if `async_op` is true."""
        unit = self._unit
        unit.gather()
        unit.is_kept = True
        if not async_op:
            unit.swap()
        return UnshardHandle(unit) if async_op else None

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

    set_force_sum_reduction_for_comms = set_allocate_memory_from_process_group_for_comm = _set_unshard_async_op = _does_nothing

    def set_gradient_divide_factor(self, factor):
        """Sets the number by which sums of gradients are divided, in the place of the number of ranks."""
        self._unit.divisor = factor

    set_reduce_scatter_divide_factor = set_gradient_divide_factor

    def set_unshard_in_backward(self, unshard_in_backward):
        """Sets whether parameters are gathered ahead in a backward pass. Those that the pass reads are gathered in any case."""
        self._unit.is_gathered_back = unshard_in_backward

    def set_all_reduce_hook(self, hook, *, stream=None):
        """Sets a function that is called with this rank's rows of each reduced gradient, and may change them."""
        self._unit.reduced_hook = hook

    def set_custom_all_gather(self, comm):
        """Raises: parameters are gathered by the group's own collective."""
        raise NotImplementedError("FSDPModule.set_custom_all_gather and set_custom_reduce_scatter are left out: the group's own collectives are used")

    set_custom_reduce_scatter = set_custom_all_gather

    def set_post_optim_event(self, event):
        """Sets an event that the next gather waits for: the end of the optimizer's step on another stream."""
        self._unit.awaited = event

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

    def _apply(self, fn, recurse=True):
        """Applies a function to this rank's parts."""
        self.reshard()
        return super()._apply(fn, recurse)

    def __deepcopy__(self, memo):
        raise AssertionError("FSDP does not support deepcopy. Please use state dict for serialization.")


def fully_shard(module, *, mesh=None, reshard_after_forward=None, shard_placement_fn=None, mp_policy=None, offload_policy=None, ignored_params=None,
                group=None):
    """Spreads the parameters of a module, without those of parts that are spread already, over the ranks, and returns the module.

    Parameters are spread over the last dimension of a mesh. The ranks along the first of two dimensions have the same rows. Rows are parts of
    the first dimension of a parameter, or of the one of the `Shard` that `shard_placement_fn` returns.
    """
    if isinstance(module, (list, tuple)):
        return [fully_shard(one, mesh=mesh, reshard_after_forward=reshard_after_forward, shard_placement_fn=shard_placement_fn, mp_policy=mp_policy,
                            offload_policy=offload_policy, ignored_params=ignored_params, group=group) for one in module]
    if isinstance(module, (ModuleList, ModuleDict)) and type(module).forward is Module.forward:
        raise ValueError(f"fully_shard does not support containers that do not implement forward: {module}")
    if isinstance(module, FSDPModule):
        raise AssertionError(f"fully_shard was applied to this module before: {type(module).__name__}")
    if mesh is not None and mesh.ndim > 2:
        raise ValueError(f"fully_shard expects a 1D or 2D DeviceMesh but got {mesh}")
    if group is not None:
        group, replicas = group
    elif mesh is not None:
        group, replicas = mesh.get_group(mesh.ndim - 1), mesh.get_group(0) if mesh.ndim == 2 else None
    else:
        group, replicas = _check("fully_shard"), None
    groups = [group] if replicas is None else [replicas, group]
    mesh = mesh if mesh is not None else _crossed(_core.get_default_device().type, groups)
    offload = offload_policy if isinstance(offload_policy, CPUOffloadPolicy) else None
    ignored, known = set(map(id, ignored_params or ())), {}
    waiting = [module]
    while waiting:
        part = waiting.pop()
        for name, parameter in part._parameters.items():
            if parameter is None or id(parameter) in ignored or getattr(parameter, "_group", None) is not None:
                continue
            if id(parameter) not in known:
                placement = shard_placement_fn(parameter) if shard_placement_fn is not None else None
                known[id(parameter)] = _divided(parameter, groups, mesh, Shard(0) if placement is None else placement, offload)
            part._parameters[name] = known[id(parameter)]
        waiting += [child for child in part._modules.values() if child is not None and not isinstance(child, FSDPModule)]
    unit = Unit(module, group, replicas, mp_policy or MixedPrecisionPolicy(), None if reshard_after_forward is None else bool(reshard_after_forward),
                offload is not None)
    for part in module.modules():
        if part is not module and isinstance(part, FSDPModule):
            unit.take_in(part._unit)
    _become_unit(module, unit)
    return module


def _crossed(device_type, groups, names=None, within=None):
    """Returns the ranks of groups, each of which is along a dimension, as a mesh. Within it, each rank may be a mesh."""
    inner = [] if within is None else [within.get_group(dim) for dim in range(within.ndim)]
    ranks = get_process_group_ranks(groups[-1]) if within is None else within._ranks
    for group in reversed(groups[:-1] if within is None else groups):
        ranks = group.exchange(ranks, "fully_shard")
    has_names = names is not None and (within is None or within.mesh_dim_names is not None)
    return DeviceMesh(device_type, ranks, mesh_dim_names=(*names, *(within.mesh_dim_names if inner else ())) if has_names else None, _groups=[*groups, *inner])


def _divided(parameter, groups, mesh, placement, offload):
    """Returns this rank's part of a parameter, or of its part of one, whose elements are those of the first rank."""
    from .._collectives import broadcast
    is_divided, group = isinstance(parameter, DTensor), groups[-1]
    whole = parameter._local.detach() if is_divided else parameter.data
    if not whole.is_meta:
        if mesh.device_type == "cuda" and not whole.is_cuda:
            whole = whole.to(_core.get_default_device())
        for one in groups:
            broadcast(whole, group=one, group_src=0)
    dim, shape = placement.dim % max(whole.dim(), 1), tuple(whole.shape)
    inner = parameter.placements if is_divided else ()
    counts = [parameter.device_mesh.size(place) for place, one in enumerate(inner) if one.is_shard(dim)]
    own = _StridedShard(dim, split_factor=math.prod(counts)) if counts else Shard(dim) if shape else Replicate()
    rows = (part_of(whole, dim, group.rank(), group.size()) if shape else whole).clone(memory_format=_core.contiguous_format)
    if offload is not None and rows.is_cuda:
        rows = rows.cpu().pin_memory() if offload.pin_memory else rows.cpu()
    if is_divided:
        mesh = _crossed(mesh.device_type, groups, mesh.mesh_dim_names, parameter.device_mesh)
    made = ShardedParameter(rows, mesh, [*[Replicate()] * (len(groups) - 1), own, *inner], parameter.shape, parameter.requires_grad)
    made.__dict__.update(_group=group, _dim=dim, _shape_in_group=list(shape))
    if "_sum_over" in getattr(parameter, "__dict__", ()):
        made.__dict__["_sum_over"] = parameter.__dict__["_sum_over"]
    return made


def _become_unit(module, unit):
    """Makes a module an `FSDPModule`, which has entire parameters in each call of `forward`."""
    kind = type(module)
    # A compiled module passes other attributes to its original.
    object.__setattr__(module, "__class__", type(f"FSDP{kind.__name__}", (FSDPModule, kind), {}))
    module.__dict__["_unit"] = unit
    module.forward = _gathering(unit, module.forward)


def _gathering(unit, method):
    """Returns a method that has entire parameters in each call."""
    policy = unit.policy

    def cast(values, dtype):
        return tree_map(lambda value: value.to(dtype) if isinstance(value, _core.Tensor) and value.is_floating_point() else value, values)

    @functools.wraps(method)
    def gathering(*args, **kwargs):
        if policy.param_dtype is not None and policy.cast_forward_inputs:
            args, kwargs = cast((args, kwargs), policy.param_dtype)
        result = unit.run(method, args, kwargs)
        return result if policy.output_dtype is None else cast(result, policy.output_dtype)
    return gathering


def register_fsdp_forward_method(module, method_name):
    """Makes another method of a module gather its parameters as well."""
    if not isinstance(module, FSDPModule):
        return
    if not hasattr(module, method_name):
        raise ValueError(f"{type(module)} does not have a method {method_name}")
    setattr(module, method_name, _gathering(module._unit, getattr(module, method_name)))


def share_comm_ctx(modules):
    """Does nothing: all modules of a thread use the streams of their groups."""


from .fully_sharded_data_parallel import (  # noqa: E402,F401
    BackwardPrefetch, CPUOffload, FullOptimStateDictConfig, FullStateDictConfig, FullyShardedDataParallel, LocalOptimStateDictConfig,
    LocalStateDictConfig, MixedPrecision, OptimStateDictConfig, OptimStateKeyType, ShardedOptimStateDictConfig, ShardedStateDictConfig,
    ShardingStrategy, StateDictConfig, StateDictSettings, StateDictType)

__getattr__ = _attributes(__name__)
