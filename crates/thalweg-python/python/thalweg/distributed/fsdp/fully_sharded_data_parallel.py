"""The first wrapper of sharded modules (`torch.distributed.fsdp.FullyShardedDataParallel`), over `fully_shard`."""

import contextlib

from ... import _core
from ...autograd import no_grad
from ...nn.module import Module
from ...nn.utils import clip_grad_norm_
from .. import _check
from ..tensor import DTensor, ShardedParameter
from . import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from .api import (  # noqa: F401
    BackwardPrefetch, CPUOffload, FullOptimStateDictConfig, FullStateDictConfig, LocalOptimStateDictConfig, LocalStateDictConfig, MixedPrecision,
    OptimStateDictConfig, OptimStateKeyType, ShardedOptimStateDictConfig, ShardedStateDictConfig, ShardingStrategy, StateDictConfig, StateDictSettings,
    StateDictType)
from .wrap import chosen

# The strategies by which entire parameters stay between a forward pass and its backward pass.
_KEEPING = (ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)
_PREFIX = "_fsdp_wrapped_module."
_CONFIGS = {StateDictType.FULL_STATE_DICT: (FullStateDictConfig, FullOptimStateDictConfig),
            StateDictType.LOCAL_STATE_DICT: (LocalStateDictConfig, LocalOptimStateDictConfig),
            StateDictType.SHARDED_STATE_DICT: (ShardedStateDictConfig, ShardedOptimStateDictConfig)}


def _shown(value, settings):
    """Returns a tensor of a state: entire, this rank's rows, or the divided one."""
    if not isinstance(value, DTensor) or settings.state_dict_type is StateDictType.SHARDED_STATE_DICT:
        return value
    return value.full_tensor() if settings.state_dict_type is StateDictType.FULL_STATE_DICT else value.to_local()


class FullyShardedDataParallel(Module):
    """A module whose parameters are spread over ranks, with the states of the module itself."""

    def __init__(self, module, process_group=None, sharding_strategy=None, cpu_offload=None, auto_wrap_policy=None, backward_prefetch=None,
                 mixed_precision=None, ignored_modules=None, param_init_fn=None, device_id=None, sync_module_states=False, forward_prefetch=False,
                 limit_all_gathers=True, use_orig_params=False, ignored_states=None, device_mesh=None):
        super().__init__()
        if device_id is not None:
            module.to(_core.device("cuda", device_id) if isinstance(device_id, int) else device_id)
        policy = MixedPrecisionPolicy() if mixed_precision is None else MixedPrecisionPolicy(
            param_dtype=mixed_precision.param_dtype, reduce_dtype=mixed_precision.reduce_dtype, cast_forward_inputs=mixed_precision.param_dtype is not None)
        ignored = list(ignored_modules or ())
        kept = {parameter for part in ignored for parameter in part.parameters()} | {
            value for value in ignored_states or () if isinstance(value, _core.Tensor)}
        parts = chosen(module, auto_wrap_policy, ignored)[0] if auto_wrap_policy is not None else []
        # Ranks that have the same rows, if there are any, and those that divide the rows.
        group, replicas = process_group if isinstance(process_group, tuple) else (process_group, None)
        if device_mesh is not None:
            group, replicas = device_mesh.get_group(device_mesh.ndim - 1), device_mesh.get_group(0) if device_mesh.ndim == 2 else None
        self.process_group = _check("FullyShardedDataParallel", group)
        self.sharding_strategy = sharding_strategy or ShardingStrategy.FULL_SHARD
        reshards = False if self.sharding_strategy in _KEEPING else None
        offload = CPUOffloadPolicy() if getattr(cpu_offload, "offload_params", cpu_offload) else None
        for part in (*parts, module):
            fully_shard(part, mesh=device_mesh, offload_policy=offload, reshard_after_forward=reshards, mp_policy=policy, ignored_params=kept, group=(self.process_group, replicas))
        self._fsdp_wrapped_module = module
        self.mixed_precision, self.rank, self.world_size = mixed_precision, self.process_group.rank(), self.process_group.size()
        self._state_settings = StateDictSettings(StateDictType.FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig())

    @property
    def module(self):
        """The wrapped module."""
        return self._fsdp_wrapped_module

    def forward(self, *args, **kwargs):
        """Computes the output."""
        return self._fsdp_wrapped_module(*args, **kwargs)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_fsdp_wrapped_module"), name)

    def __getitem__(self, key):
        return self.module[key]

    def named_parameters(self, *args, **kwargs):
        """Yields the parameters by the names of the wrapped module."""
        for name, value in super().named_parameters(*args, **kwargs):
            yield name.replace(_PREFIX, ""), value

    def named_buffers(self, *args, **kwargs):
        """Yields the buffers by the names of the wrapped module."""
        for name, value in super().named_buffers(*args, **kwargs):
            yield name.replace(_PREFIX, ""), value

    def apply(self, fn):
        """Calls a function with every module, while parameters are entire."""
        with self.summon_full_params(self):
            return super().apply(fn)

    @contextlib.contextmanager
    def no_sync(self):
        """Returns a region whose backward passes leave gradients on their ranks, until one outside of it adds them up."""
        units = [module._unit for module in self.modules() if isinstance(module, FSDPModule)]
        former = [unit.is_synchronized for unit in units]
        for unit in units:
            unit.is_synchronized = False
        try:
            yield
        finally:
            for unit, is_synchronized in zip(units, former):
                unit.is_synchronized = is_synchronized

    @no_grad()
    def clip_grad_norm_(self, max_norm, norm_type=2.0):
        """Scales gradients so that their norm over all ranks is at most `max_norm`, and returns that norm."""
        total = clip_grad_norm_(self.parameters(), max_norm, norm_type)
        return total.to_local() if isinstance(total, DTensor) else total

    # ---- States ---------------------------------------------------------------------------------------------------

    def state_dict(self, *args, destination=None, prefix="", keep_vars=False):
        """Returns the state: by default with entire tensors, on each rank."""
        settings = self._state_settings
        found = self.module.state_dict(keep_vars=True)
        made = {} if destination is None else destination
        is_left_out = getattr(settings.state_dict_config, "rank0_only", False) and self.rank != 0
        for name, value in found.items():
            value = _shown(value.detach(), settings) if isinstance(value, _core.Tensor) else value
            if not is_left_out:
                made[prefix + name] = value.cpu() if settings.state_dict_config.offload_to_cpu and isinstance(value, _core.Tensor) else value
        return made

    @no_grad()
    def load_state_dict(self, state_dict, strict=True, assign=False):
        """Loads a state with entire tensors, or with this rank's rows."""
        own = {name: value for name, value in self.module.state_dict(keep_vars=True).items()}
        missing, unexpected = [name for name in own if name not in state_dict], [name for name in state_dict if name not in own]
        if strict and (missing or unexpected):
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n\tMissing key(s) in state_dict: {missing}. Unexpected key(s) in "
                               f"state_dict: {unexpected}.")
        for name, value in state_dict.items():
            target = own.get(name)
            if isinstance(target, DTensor):
                target._local.copy_(target._part(value, target.placements))
            elif target is not None:
                target.copy_(value)
        from ...nn._states import _IncompatibleKeys
        return _IncompatibleKeys(missing, unexpected)

    @staticmethod
    def set_state_dict_type(module, state_dict_type, state_dict_config=None, optim_state_dict_config=None):
        """Sets which kind of states a module makes, and returns the former settings."""
        kinds = _CONFIGS[state_dict_type]
        former = None
        for part in module.modules():
            if isinstance(part, FullyShardedDataParallel):
                former = former or part._state_settings
                part._state_settings = StateDictSettings(state_dict_type, state_dict_config or kinds[0](), optim_state_dict_config or kinds[1]())
        return former

    @staticmethod
    def get_state_dict_type(module):
        """Returns which kind of states a module makes."""
        return next(part._state_settings for part in module.modules() if isinstance(part, FullyShardedDataParallel))

    @staticmethod
    @contextlib.contextmanager
    def state_dict_type(module, state_dict_type, state_dict_config=None, optim_state_dict_config=None):
        """Returns a region in which a module makes another kind of states."""
        former = FullyShardedDataParallel.set_state_dict_type(module, state_dict_type, state_dict_config, optim_state_dict_config)
        try:
            yield
        finally:
            if former is not None:
                FullyShardedDataParallel.set_state_dict_type(module, former.state_dict_type, former.state_dict_config, former.optim_state_dict_config)

    @staticmethod
    def optim_state_dict(model, optim, optim_state_dict=None, group=None):
        """Returns the state of an optimizer by the names of parameters, with entire tensors."""
        settings = FullyShardedDataParallel.get_state_dict_type(model)
        names, found = {id(parameter): name for name, parameter in model.named_parameters()}, {}
        for entry in optim.param_groups:
            for parameter in entry["params"]:
                state = optim.state.get(parameter)
                if state:
                    found[names[id(parameter)]] = {key: _shown(value, settings) for key, value in state.items()}
        groups = [{**entry, "params": [names[id(parameter)] for parameter in entry["params"]]} for entry in optim.param_groups]
        if getattr(settings.optim_state_dict_config, "rank0_only", False) and model.rank != 0:
            return {}
        return {"state": found, "param_groups": groups}

    full_optim_state_dict = optim_state_dict

    @staticmethod
    def optim_state_dict_to_load(model, optim, optim_state_dict, is_named_optimizer=False, load_directly=False, group=None):
        """Returns a state that the optimizer's `load_state_dict` takes: with numbers for parameters, and this rank's rows."""
        parameters, numbers = dict(model.named_parameters()), {}
        for entry in optim.param_groups:
            for parameter in entry["params"]:
                numbers[id(parameter)] = len(numbers)
        state = {}
        for name, values in optim_state_dict["state"].items():
            parameter = parameters[name]
            state[numbers[id(parameter)]] = {key: parameter._state(value) for key, value in values.items()} if isinstance(parameter, DTensor) else values
        groups = [{**entry, "params": [numbers[id(parameters[name])] for name in entry["params"]]} for entry in optim_state_dict["param_groups"]]
        made = {"state": state, "param_groups": groups}
        if load_directly:
            optim.load_state_dict(made)
        return made

    @staticmethod
    @contextlib.contextmanager
    def summon_full_params(module, recurse=True, writeback=True, rank0_only=False, offload_to_cpu=False, with_grads=False):
        """Returns a region in which a module has entire parameters. Writes to them are kept, unless `writeback` is False."""
        from ...nn.parameter import Parameter
        places, known = [], {}
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if isinstance(parameter, ShardedParameter):
                    if id(parameter) not in known:
                        known[id(parameter)] = Parameter(parameter.full_tensor().detach().clone(), parameter.requires_grad)
                    places.append((part, name, parameter))
        for part, name, parameter in places:
            part._parameters[name] = known[id(parameter)]
        try:
            yield
        finally:
            for part, name, parameter in places:
                whole = part._parameters[name].detach()
                part._parameters[name] = parameter
                if writeback:
                    with no_grad():
                        parameter._local.copy_(parameter._part(whole, parameter.placements))

    @staticmethod
    def fsdp_modules(module, root_only=False):
        """Returns the wrappers in a module."""
        return [part for part in module.modules() if isinstance(part, FullyShardedDataParallel)]
