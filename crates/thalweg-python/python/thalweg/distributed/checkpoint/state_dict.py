"""States of modules and optimizers for checkpoints (`torch.distributed.checkpoint.state_dict`).

Parameters have their names as keys, in the states of optimizers too, so that a state can be loaded on another number of ranks.
"""

import dataclasses

from ... import _core
from ...nn._states import _IncompatibleKeys
from ..tensor import DTensor

# Parts of names that wrappers add.
_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.", "module.")


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
    dsd_fqn_modifiers: str = "_fqn_modifiers"


def _plain(name):
    """Returns the name of a parameter without those of wrappers."""
    path = f".{name}"
    for wrapper in _WRAPPERS:
        path = path.replace(f".{wrapper}", ".")
    return path[1:]


def _own(model):
    """Returns the parameters and persistent buffers of a module by name."""
    from ..fsdp.fully_sharded_data_parallel import FullyShardedDataParallel
    inner = model.module if isinstance(model, FullyShardedDataParallel) else model
    return {_plain(name): value for name, value in inner.state_dict(keep_vars=True).items() if isinstance(value, _core.Tensor)}


def _is_first():
    from .. import get_rank, is_initialized
    return not is_initialized() or get_rank() == 0


def _read(value, options):
    """Returns a tensor of a state: entire, or this rank's part of it."""
    if isinstance(value, DTensor):
        value = value.full_tensor() if options.full_state_dict else value
    if not isinstance(value, _core.Tensor):
        return value
    # A copy in the host's memory is one, also of a tensor that is there already.
    return value.detach().to("cpu", copy=True) if options.cpu_offload else value.detach()


def _only_first(state, options):
    """Returns a state, which only the first rank keeps if it is entire and in the host's memory."""
    return state if _is_first() or not (options.full_state_dict and options.cpu_offload) else {}


def get_model_state_dict(model, *, submodules=None, options=None):
    """Returns the state of a module."""
    options = options or StateDictOptions()
    state = {name: _read(value, options) for name, value in _own(model).items()
             if not (options.ignore_frozen_params and hasattr(value, "requires_grad") and not value.requires_grad and value.is_leaf)}
    return _only_first(state, options)


def _of_first(state, options):
    """Returns a state, with the entire tensors of the first rank if the options say so."""
    if not options.broadcast_from_rank0:
        return state
    from .. import broadcast_object_list
    from ...utils._pytree import tree_map
    listed = [tree_map(lambda value: value.cpu() if isinstance(value, _core.Tensor) else value, state) if _is_first() else None]
    broadcast_object_list(listed)
    return listed[0]


def set_model_state_dict(model, model_state_dict, *, options=None):
    """Loads the state of a module from entire tensors or from its own parts. Returns the missing and the unexpected keys."""
    options, own = options or StateDictOptions(), _own(model)
    state = _of_first(model_state_dict, options)
    given = {_plain(name): value for name, value in state.items()}
    missing, unexpected = [name for name in own if name not in given], [name for name in given if name not in own]
    if options.strict and (missing or unexpected):
        raise RuntimeError(f"Error(s) in loading state_dict for {type(model).__name__}:\n\tMissing key(s) in state_dict: {missing}. Unexpected key(s) in "
                           f"state_dict: {unexpected}.")
    with _core_no_grad():
        for name, target in own.items():
            if name in given:
                is_divided = isinstance(target, DTensor)
                part = target._part(given[name], target.placements) if is_divided else given[name]
                if target.is_meta:
                    part = part.detach().to(device=_core.get_default_device(), dtype=target.dtype).clone()
                    target.data = target._divided(part) if is_divided else part
                else:
                    (target._local if is_divided else target).copy_(part)
    return _IncompatibleKeys(missing, unexpected)


def _core_no_grad():
    from ...autograd import no_grad
    return no_grad()


def _optimizers(optimizers):
    return list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]


def _names(model):
    """Returns the names of a module's parameters by their identities."""
    return {id(parameter): _plain(name) for name, parameter in model.named_parameters()}


def get_optimizer_state_dict(model, optimizers, *, submodules=None, options=None):
    """Returns the state of optimizers, by the names of parameters. Optimizers without state get the state of their first step."""
    options, names = options or StateDictOptions(), _names(model)
    result = {"state": {}, "param_groups": []}
    for optimizer in _optimizers(optimizers):
        _init_optim_state(optimizer)
        read = optimizer.state_dict()
        numbered = [names[id(parameter)] for parameter in optimizer._parameters()]
        for number, values in read["state"].items():
            result["state"][numbered[number]] = {key: _read(value, options) for key, value in values.items()}
        result["param_groups"] += [{**group, "params": [numbered[number] for number in group["params"]]} for group in read["param_groups"]]
    if options.flatten_optimizer_state_dict:
        result = _flattened(result)
    return _only_first(result, options)


def _flattened(state):
    """Returns the state of an optimizer as one dictionary, whose keys are paths."""
    flat = {f"state.{name}.{key}": value for name, values in state["state"].items() for key, value in values.items()}
    for group in state["param_groups"]:
        flat.update({f"param_groups.{name}.{key}": value for name in group["params"] for key, value in group.items() if key != "params"})
    return flat


def _unflattened(flat, optimizer, names):
    """Returns the state of an optimizer from a dictionary whose keys are paths."""
    state, groups = {}, []
    for group in optimizer.param_groups:
        listed = [names[id(parameter)] for parameter in group["params"]]
        for name in listed:
            state[name] = {key.removeprefix(f"state.{name}."): value for key, value in flat.items() if key.startswith(f"state.{name}.")}
        groups.append({**{key: flat.get(f"param_groups.{listed[0]}.{key}", value) for key, value in group.items() if key != "params"}, "params": listed})
    return {"state": state, "param_groups": groups}


def set_optimizer_state_dict(model, optimizers, optim_state_dict, *, options=None):
    """Loads the state of optimizers, from entire tensors or from this rank's parts."""
    options, names = options or StateDictOptions(), _names(model)
    given = _of_first(optim_state_dict, options)
    for optimizer in _optimizers(optimizers):
        _init_optim_state(optimizer)
        state = given if "param_groups" in given else _unflattened(given, optimizer, names)
        parameters = {names[id(parameter)]: (number, parameter) for number, parameter in enumerate(optimizer._parameters())}
        states = {}
        for name, values in state["state"].items():
            if name in parameters:
                number, parameter = parameters[name]
                states[number] = {key: parameter._state(value) for key, value in values.items()} if isinstance(parameter, DTensor) else values
        groups = []
        for group in optimizer.param_groups:
            first = names[id(group["params"][0])] if group["params"] else None
            saved = next((one for one in state["param_groups"] if first in one["params"]), {})
            options_of = {key: value for key, value in {**group, **saved}.items() if key != "params"}
            groups.append({**options_of, "params": [parameters[names[id(parameter)]][0] for parameter in group["params"]]})
        optimizer.load_state_dict({"state": states, "param_groups": groups})


def get_state_dict(model, optimizers, *, submodules=None, options=None):
    """Returns the states of a module and of its optimizers."""
    return get_model_state_dict(model, options=options), get_optimizer_state_dict(model, optimizers, options=options)


def set_state_dict(model, optimizers, *, model_state_dict, optim_state_dict, options=None):
    """Loads the states of a module and of its optimizers. Returns the module's missing and unexpected keys."""
    keys = set_model_state_dict(model, model_state_dict, options=options)
    set_optimizer_state_dict(model, optimizers, optim_state_dict, options=options)
    return keys


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
