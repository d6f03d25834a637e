"""Optimizers of several ranks (`torch.distributed.optim`)."""

from ... import _core
from ..._left_out import attributes
from ...nn._joining import Join, Joinable, JoinHook
from ...optim.optimizer import Optimizer
from .. import _check, broadcast


class _FollowedSteps(JoinHook):
    """The collectives of an optimizer on a rank whose loop has ended."""

    def __init__(self, optimizer):
        self._optimizer = optimizer

    def main_hook(self):
        """Steps this rank's share of the parameters."""
        self._optimizer.step()


class ZeroRedundancyOptimizer(Optimizer, Joinable):
    """An optimizer whose states are spread over ranks: each rank steps its share of the parameters, and sends them to the others."""

    def __init__(self, params, optimizer_class, process_group=None, parameters_as_bucket_view=False, overlap_with_ddp=False, **defaults):
        super().__init__(params, defaults)
        Joinable.__init__(self)
        self._group = _check("ZeroRedundancyOptimizer", process_group)
        self._defaults, self._class = defaults, optimizer_class
        self._owners = _shares(self._parameters(), self._group.size())
        rank, own = self._group.rank(), []
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if self._owners[id(parameter)] == rank]
            own.append({**{name: value for name, value in group.items() if name != "params"}, "params": parameters})
        self.optim, self._states = optimizer_class(own, **defaults), []

    def add_param_group(self, param_group):
        """Adds a group of parameters, which the ranks share."""
        super().add_param_group(param_group)
        if hasattr(self, "optim"):
            self._owners.update(_shares(param_group["params"], self._group.size()))
            own = [parameter for parameter in param_group["params"] if self._owners[id(parameter)] == self._group.rank()]
            self.optim.add_param_group({**param_group, "params": own})

    def step(self, closure=None, **kwargs):
        """Steps this rank's share of the parameters, and receives the others."""
        Join.notify_join_context(self)
        for own, group in zip(self.optim.param_groups, self.param_groups):
            own.update({name: value for name, value in group.items() if name != "params"})
        loss = self.optim.step(closure, **kwargs) if closure is not None else self.optim.step(**kwargs)
        for parameter in self._parameters():
            broadcast(parameter.detach(), group=self._group, group_src=self._owners[id(parameter)])
        return loss

    def join_hook(self, **kwargs):
        """Returns the collectives of a rank whose loop has ended."""
        return _FollowedSteps(self)

    @property
    def join_device(self):
        """The device of the parameters."""
        return self._parameters()[0].device

    @property
    def join_process_group(self):
        """The group of the ranks."""
        return self._group

    def consolidate_state_dict(self, to=0):
        """Sends the states of all ranks to one of them, which can then call `state_dict`."""
        self._states = self._group.exchange(self._own_states(), "consolidate_state_dict")
        if self._group.rank() != to:
            self._states = []

    def _own_states(self):
        """Returns the states of this rank's share, by the numbers of the parameters."""
        numbers = {id(parameter): number for number, parameter in enumerate(self._parameters())}
        return {numbers[id(parameter)]: {key: value.detach().cpu() if isinstance(value, _core.Tensor) else value for key, value in state.items()}
                for parameter, state in self.optim.state.items()}

    def state_dict(self):
        """Returns the states of all ranks, after `consolidate_state_dict` on this rank."""
        if not self._states:
            raise RuntimeError("Optimizer state has not been consolidated on this rank. "
                               f"Please call `consolidate_state_dict(to={self._group.rank()})` on all ranks beforehand if you meant to save the global state.")
        result = super().state_dict()
        result["state"] = {number: state for states in self._states for number, state in states.items()}
        return result

    def load_state_dict(self, state_dict):
        """Loads the states of this rank's share."""
        super().load_state_dict({**state_dict, "state": {}})
        rank = self._group.rank()
        for number, parameter in enumerate(self._parameters()):
            if self._owners[id(parameter)] == rank and number in state_dict["state"]:
                self.optim.state[parameter] = {key: value.to(parameter.device).clone() if isinstance(value, _core.Tensor) and key != "step" else value
                                               for key, value in state_dict["state"][number].items()}


def _shares(parameters, count):
    """Returns which rank steps each parameter, by their identities, so that all have about as many elements."""
    sizes, owners = [0] * count, {}
    for parameter in sorted(parameters, key=lambda one: one.numel(), reverse=True):
        rank = sizes.index(min(sizes))
        sizes[rank] += parameter.numel()
        owners[id(parameter)] = rank
    return owners


__getattr__ = attributes(__name__)
