"""States of modules and optimizers for checkpoints (`torch.distributed.checkpoint.state_dict`)."""

import dataclasses

from ..fsdp import ShardedParameter
from ..tensor import DTensor, part_of


@dataclasses.dataclass
class StateDictOptions:
    """How states are read: with `full_state_dict` as entire tensors."""

    full_state_dict: bool = False
    cpu_offload: bool = False
    ignore_frozen_params: bool = False
    keep_submodule_prefixes: bool = True
    strict: bool = True
    broadcast_from_rank0: bool = False
    flatten_optimizer_state_dict: bool = False


def get_model_state_dict(model, *, submodules=None, options=None):
    """Returns the state of a module."""
    options = options or StateDictOptions()
    state = {}
    for name, value in model.state_dict(keep_vars=True).items():
        is_whole = options.full_state_dict and isinstance(value, DTensor)
        state[name.removeprefix("module.")] = value.full_tensor() if is_whole else value if isinstance(value, DTensor) else value.detach()
    return state


def set_model_state_dict(model, model_state_dict, *, options=None):
    """Loads the state of a module from entire tensors or from its own parts."""
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, value in model_state_dict.items():
        target = own.get(name, own.get(f"module.{name}"))
        if target is None:
            raise KeyError(name)
        if isinstance(target, ShardedParameter) and tuple(value.shape) == target._full_shape and tuple(value.shape) != tuple(target.shape):
            value = part_of(value, 0, target._group.rank(), target._group.size())
        target.data.copy_(value)


def get_optimizer_state_dict(model, optimizers, *, submodules=None, options=None):
    """Returns the state of an optimizer."""
    return optimizers.state_dict()


def set_optimizer_state_dict(model, optimizers, optim_state_dict, *, options=None):
    """Loads the state of an optimizer."""
    optimizers.load_state_dict(optim_state_dict)


def get_state_dict(model, optimizers, *, submodules=None, options=None):
    """Returns the states of a module and of an optimizer."""
    return get_model_state_dict(model, options=options), get_optimizer_state_dict(model, optimizers)


def set_state_dict(model, optimizers, *, model_state_dict, optim_state_dict, options=None):
    """Loads the states of a module and of an optimizer."""
    set_model_state_dict(model, model_state_dict, options=options)
    set_optimizer_state_dict(model, optimizers, optim_state_dict)


def _init_optim_state(optimizer):
    """Gives a new optimizer the state that its first step would make; parameters keep their values.

    An optimizer that has state, or whose parameters have gradients, stays as it is.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if optimizer.state or any(parameter.grad is not None for parameter in parameters):
        return
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.grad = parameter.detach().clone().zero_()
    former = [{name: group[name] for name in ("lr", "weight_decay") if group.get(name) is not None} for group in optimizer.param_groups]
    for group, options in zip(optimizer.param_groups, former):
        group.update(dict.fromkeys(options, 0.0))
    try:
        optimizer.step()
    finally:
        for group, options in zip(optimizer.param_groups, former):
            group.update(options)
        optimizer.zero_grad(set_to_none=True)
