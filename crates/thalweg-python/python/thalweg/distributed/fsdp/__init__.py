"""Modules whose parameters are spread over ranks (`torch.distributed.fsdp`): each rank keeps its rows of every parameter.

The entire parameters are gathered for `forward` and kept by the graph until the backward pass, which gives each rank its rows of the
mean gradient. In the Rust crate (`thalweg::distributed::fully_shard`) they are freed in between.
"""

import contextlib
import dataclasses
import functools
import threading
import types

from ... import _core
from ..._left_out import attributes as _attributes
from ...autograd.function import Function
from ...nn.parameter import Parameter
from ...utils import checkpoint
from .. import _check, get_process_group_ranks
from .._group import ReduceOp
from .._placements import Shard
from ..tensor import DTensor
from ..tensor._placing import part_of

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

    `within` has the placements and groups by which the parameter was divided before, if there are any.
    """

    def __new__(cls, rows, group, shape, mesh, requires_grad, placement=Shard(0), within=()):
        made = Parameter.__new__(cls, rows, requires_grad)
        parts = (*within, (placement, group))
        made.__dict__.update(_group=group, _parts=parts, _full_shape=tuple(shape), device_mesh=mesh, placements=tuple(one for one, _ in reversed(parts)))
        return made

    def __init__(self, *_, **__):
        pass

    def to_local(self, *, grad_placements=None):
        """Returns this rank's rows."""
        return self.data

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

    def _joined(self, part, number):
        """Returns the tensor that a group has divided, from the parts of its ranks."""
        placement, group = self._parts[number]
        if not placement.is_shard():
            return part
        shape = list(self._full_shape) or [1]
        for before, other in self._parts[:number]:
            if before.is_shard():
                rows = -(-shape[before.dim] // other.size())
                shape[before.dim] = max(min(rows, shape[before.dim] - rows * other.rank()), 0)
        if shape[placement.dim] % group.size() == 0:
            from .._functional_collectives import gathered
            return gathered(part, placement.dim, group)
        return _core.cat(group.tensors(part, "full_tensor"), placement.dim)

    def _of_group(self):
        """Returns the tensor that the last group has divided."""
        found = self._joined(self.data, len(self._parts) - 1)
        return found if self._full_shape else found.reshape(())

    def full_tensor(self, *, grad_placements=None):
        """Returns the entire parameter, on each rank."""
        whole = self.data
        for number in reversed(range(len(self._parts))):
            whole = self._joined(whole, number)
        return whole.reshape(self._full_shape)

    def _like(self, rows, requires_grad=False):
        """Returns this rank's part of another tensor that is divided as this one is."""
        (placement, group), within = self._parts[-1], self._parts[:-1]
        return ShardedParameter(rows, group, self._full_shape, self.device_mesh, requires_grad, placement, within)

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


class _Gather(Function):
    """Gathers an entire parameter. The gradient of a rank's rows is the mean over the ranks."""

    @staticmethod
    def forward(ctx, rows, unit):
        ctx.group, ctx.unit, ctx.dtype, ctx.key = rows._group, unit, rows.dtype, id(rows)
        dtype = unit._policy.param_dtype
        with _core_no_grad():
            whole = rows._of_group()
            return whole if dtype is None else whole.to(dtype)

    @staticmethod
    def backward(ctx, gradient):
        dtype = ctx.unit._policy.reduce_dtype
        gradient = gradient if dtype is None else gradient.to(dtype)
        earlier = ctx.unit._waiting.pop(ctx.key, None)
        gradient = gradient if earlier is None else gradient + earlier
        if not ctx.unit._is_synchronized:
            ctx.unit._waiting[ctx.key] = gradient.detach()
            return None, None
        gradient = _mean(gradient, ctx.group)
        place = part_of(gradient, 0, ctx.group.rank(), ctx.group.size()) if gradient.dim() else gradient
        return place.to(ctx.dtype).contiguous(), None


def _mean(gradient, group):
    from .._collectives import all_reduce
    gradient = gradient.contiguous().clone()
    all_reduce(gradient, ReduceOp.AVG if gradient.is_floating_point() else ReduceOp.SUM, group)
    return gradient


def _core_no_grad():
    from ...autograd import no_grad
    return no_grad()


class FSDPModule:
    """A module whose parameters are spread over ranks."""

    def unshard(self, async_op=False):
        """Gathers the parameters before the next call of `forward`, which uses them. Returns an object with `wait` if `async_op` is true."""
        if self._entire is None:
            self._entire = contextlib.ExitStack()
            self._entire.enter_context(_gathered(self))
        return types.SimpleNamespace(wait=lambda: None) if async_op else None

    def reshard(self):
        """Gives the module its part of the parameters again."""
        if self._entire is not None:
            entire, self._entire = self._entire, None
            entire.close()

    def set_requires_gradient_sync(self, requires_gradient_sync, *, recurse=True):
        """Sets whether gradients are reduced in backward passes."""
        for module in self.modules() if recurse else [self]:
            if isinstance(module, FSDPModule):
                module._is_synchronized = requires_gradient_sync

    def set_is_last_backward(self, is_last_backward):
        """Does nothing: each pass reduces its gradients."""

    def set_requires_all_reduce(self, requires_all_reduce, *, recurse=True):
        """Does nothing: there is one group."""

    set_reshard_after_forward = set_reshard_after_backward = set_requires_all_reduce

    def set_modules_to_forward_prefetch(self, modules):
        """Does nothing: nothing is gathered ahead."""

    set_modules_to_backward_prefetch = set_modules_to_forward_prefetch

    def _own_places(self):
        """Yields the modules, names and parameters of this unit: those that are in no other."""
        waiting = [self]
        while waiting:
            module = waiting.pop()
            for name, parameter in module._parameters.items():
                if isinstance(parameter, ShardedParameter) and parameter._group is self._group:
                    yield module, name, parameter
            waiting += [child for child in module._modules.values() if child is not None and not isinstance(child, FSDPModule)]


# The places of entire parameters in the regions that this thread is in.
_regions = threading.local()


@contextlib.contextmanager
def _gathered(unit):
    """Returns a region in which the unit's modules have entire parameters."""
    places, known = [], {}
    for module, name, parameter in unit._own_places():
        if id(parameter) not in known:
            known[id(parameter)] = _Gather.apply(parameter, unit)
        places.append((module, name, known[id(parameter)]))
    with _placed(places):
        yield


@contextlib.contextmanager
def _placed(places):
    """Returns a region in which modules have other parameters."""
    former = [(module, name, module._parameters[name]) for module, name, _ in places]
    entered = _regions.__dict__.setdefault("entered", [])
    entered.append(places)
    for module, name, parameter in places:
        module._parameters[name] = parameter
    try:
        yield
    finally:
        entered[:] = [one for one in entered if one is not places]
        for module, name, parameter in former:
            module._parameters[name] = parameter


def _again():
    """Returns a function that makes a region with the entire parameters that this thread's modules have now; None if
    there are none."""
    places = [place for entered in getattr(_regions, "entered", ()) for place in entered]
    return functools.partial(_placed, places) if places else None


checkpoint.regions_again.append(_again)


def fully_shard(module, *, mesh=None, reshard_after_forward=None, shard_placement_fn=None, mp_policy=None, offload_policy=None, ignored_params=None,
                group=None):
    """Spreads the parameters of a module, without those of parts that are spread already, over the ranks, and returns the module."""
    if isinstance(offload_policy, CPUOffloadPolicy):
        raise NotImplementedError("fully_shard(offload_policy=CPUOffloadPolicy()) is left out: parts of parameters stay on the ranks' devices")
    if shard_placement_fn is not None:
        raise NotImplementedError("fully_shard(shard_placement_fn=...) is left out: parameters are divided by rows")
    if isinstance(module, (list, tuple)):
        return [fully_shard(one, mesh=mesh, mp_policy=mp_policy, ignored_params=ignored_params) for one in module]
    group = group or (mesh.get_group(0) if mesh is not None else _check("fully_shard"))
    mesh = mesh if mesh is not None else _mesh_of(group)
    ignored, known = set(map(id, ignored_params or ())), {}
    waiting = [module]
    while waiting:
        part = waiting.pop()
        for name, parameter in part._parameters.items():
            if parameter is None or id(parameter) in ignored or any(one is group for _, one in getattr(parameter, "_parts", ())):
                continue
            if id(parameter) not in known:
                known[id(parameter)] = _divided(parameter, group, mesh)
            part._parameters[name] = known[id(parameter)]
        waiting += [child for child in part._modules.values() if child is not None and not isinstance(child, FSDPModule)]
    _become_unit(module, mp_policy or MixedPrecisionPolicy(), group)
    return module


def _mesh_of(group):
    """Returns the ranks of a group as a mesh."""
    from ..device_mesh import DeviceMesh
    return DeviceMesh(_core.get_default_device().type, get_process_group_ranks(group), _groups=[group])


def _divided(parameter, group, mesh):
    """Returns this rank's rows of a parameter, or of its part of one, whose elements are those of the first rank."""
    from .._collectives import broadcast
    whole = parameter.data
    if not whole.is_meta:
        broadcast(whole, group=group, group_src=0)
    rows = part_of(whole.reshape(1) if whole.dim() == 0 else whole, 0, group.rank(), group.size())
    within, shape = getattr(parameter, "_parts", ()), getattr(parameter, "_full_shape", parameter.shape)
    made = ShardedParameter(rows.clone(), group, shape, mesh, parameter.requires_grad, within=within)
    if "_sum_over" in parameter.__dict__:
        sum_over(made, parameter.__dict__["_sum_over"])
    return made


def _become_unit(module, policy, group):
    """Makes a module an `FSDPModule`, which gathers its parameters for each call of `forward`."""
    kind = type(module)
    module.__class__ = type(f"FSDP{kind.__name__}", (FSDPModule, kind), {})
    # Gradients that wait on this rank for a backward pass that adds them up, by the parameters' identities.
    module._policy, module._is_synchronized, module._waiting, module._entire, module._group = policy, True, {}, None, group
    forward = module.forward

    def gathering(*args, **kwargs):
        if policy.param_dtype is not None and policy.cast_forward_inputs:
            args = [value.to(policy.param_dtype) if isinstance(value, _core.Tensor) and value.is_floating_point() else value for value in args]
        if module._entire is None:
            module.unshard()
        try:
            result = forward(*args, **kwargs)
        finally:
            module.reshard()
        return result.to(policy.output_dtype) if policy.output_dtype is not None and isinstance(result, _core.Tensor) else result
    module.forward = gathering


def register_fsdp_forward_method(module, method_name):
    """Makes another method of a module gather its parameters as well."""
    method = getattr(module, method_name)

    def gathering(*args, **kwargs):
        with _gathered(module):
            return method(*args, **kwargs)
    setattr(module, method_name, gathering)


from .fully_sharded_data_parallel import (  # noqa: E402,F401
    BackwardPrefetch, CPUOffload, FullOptimStateDictConfig, FullStateDictConfig, FullyShardedDataParallel, LocalOptimStateDictConfig,
    LocalStateDictConfig, MixedPrecision, OptimStateDictConfig, OptimStateKeyType, ShardedOptimStateDictConfig, ShardedStateDictConfig,
    ShardingStrategy, StateDictConfig, StateDictSettings, StateDictType)

__getattr__ = _attributes(__name__)
