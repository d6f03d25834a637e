"""Options of sharded modules of the first kind (`torch.distributed.fsdp.api`)."""

import dataclasses
import enum


class ShardingStrategy(enum.Enum):
    """The parts of a model that are spread over ranks. The results are the same. Parameters are spread by all of them; with `SHARD_GRAD_OP`
    and `NO_SHARD` entire ones stay between a forward pass and its backward pass."""

    FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, _HYBRID_SHARD_ZERO2 = range(1, 6)


class BackwardPrefetch(enum.Enum):
    """When the parameters for the next part of a backward pass are gathered. It changes nothing: they are gathered before the present part."""

    BACKWARD_PRE, BACKWARD_POST = range(1, 3)


class StateDictType(enum.Enum):
    """The form of the tensors in states: entire, this rank's rows as they are, or as parts of entire ones."""

    FULL_STATE_DICT, LOCAL_STATE_DICT, SHARDED_STATE_DICT = range(1, 4)


@dataclasses.dataclass
class MixedPrecision:
    """The dtypes of entire parameters, of reductions and of buffers."""

    param_dtype: object = None
    reduce_dtype: object = None
    buffer_dtype: object = None
    keep_low_precision_grads: bool = False
    cast_forward_inputs: bool = False
    cast_root_forward_inputs: bool = True
    _module_classes_to_ignore: tuple = ()


@dataclasses.dataclass
class CPUOffload:
    """Whether the ranks' parts of parameters are in the host's memory."""

    offload_params: bool = False


@dataclasses.dataclass
class StateDictConfig:
    """Options of states."""

    offload_to_cpu: bool = False


@dataclasses.dataclass
class FullStateDictConfig(StateDictConfig):
    """Options of states with entire tensors."""

    rank0_only: bool = False


@dataclasses.dataclass
class LocalStateDictConfig(StateDictConfig):
    """Options of states with this rank's rows."""


@dataclasses.dataclass
class ShardedStateDictConfig(StateDictConfig):
    """Options of states with parts of entire tensors."""

    _use_dtensor: bool = False


@dataclasses.dataclass
class OptimStateDictConfig:
    """Options of states of optimizers."""

    offload_to_cpu: bool = True


@dataclasses.dataclass
class FullOptimStateDictConfig(OptimStateDictConfig):
    """Options of states of optimizers with entire tensors."""

    rank0_only: bool = False


@dataclasses.dataclass
class LocalOptimStateDictConfig(OptimStateDictConfig):
    """Options of states of optimizers with this rank's rows."""

    offload_to_cpu: bool = False


@dataclasses.dataclass
class ShardedOptimStateDictConfig(OptimStateDictConfig):
    """Options of states of optimizers with parts of entire tensors."""

    _use_dtensor: bool = False


@dataclasses.dataclass
class StateDictSettings:
    """The kind of states that a module makes, with its options."""

    state_dict_type: StateDictType
    state_dict_config: StateDictConfig
    optim_state_dict_config: OptimStateDictConfig


class OptimStateKeyType(enum.Enum):
    """How states of optimizers name parameters."""

    PARAM_NAME, PARAM_ID = range(1, 3)
