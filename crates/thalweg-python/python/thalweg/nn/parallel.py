"""Modules on several ranks (`torch.nn.parallel`)."""

import contextlib
import sys
import types

from .. import _core
from . import _scattering
from ._data_parallel import DataParallel, data_parallel
from ._joining import Join, Joinable, JoinHook
from ._reducer import Reducer
from .module import Module


class _FollowedSteps(JoinHook):
    """The collectives of a data parallel module on a rank whose loop has ended."""

    def __init__(self, module):
        self._module = module

    def main_hook(self):
        """Takes part in a step of the other ranks."""
        if self._module._begin_joined(is_followed=True):
            self._module.reducer.follow()

    def post_hook(self, is_last_joiner):
        """Gives all ranks the parameters of one that was among the last."""
        module = self._module
        module._synchronize([*module._not_ignored(module.module.named_parameters()), *module._buffers_of_all()], module._common_rank(is_last_joiner))


class DistributedDataParallel(Module, Joinable):
    """A module whose gradients are the means over the ranks of a group.

    The wrapped module is `module`, and the names in a `state_dict` begin with that. Gradients are reduced in buckets while the backward pass
    computes others, also those that only some ranks have.
    """

    def __init__(self, module, device_ids=None, output_device=None, dim=0, broadcast_buffers=True, init_sync=True, process_group=None,
                 bucket_cap_mb=None, find_unused_parameters=False, check_reduction=False, gradient_as_bucket_view=False,
                 static_graph=False, delay_all_reduce_named_params=None, param_to_hook_all_reduce=None, mixed_precision=None, device_mesh=None,
                 skip_all_reduce_unused_params=False):
        super().__init__()
        Joinable.__init__(self)
        if device_mesh is not None:
            process_group = device_mesh.get_group(0)
        from .. import distributed
        self.process_group = distributed._check("DistributedDataParallel", process_group)
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise RuntimeError("DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient.")
        if device_ids is not None and len(device_ids) > 1:
            raise ValueError("device_ids can only be None or contain a single element.")
        self.module = module
        self.device_ids, self.output_device, self.broadcast_buffers = device_ids, output_device, broadcast_buffers
        self.require_backward_grad_sync, self._is_reduced = True, True
        self.find_unused_parameters, self.static_graph, self.gradient_as_bucket_view = find_unused_parameters, static_graph, gradient_as_bucket_view
        self._divides_by_all = True
        self.dim, self.bucket_bytes_cap = dim, int((25 if bucket_cap_mb is None else bucket_cap_mb) * 1024 * 1024)
        self.device = next(module.parameters()).device
        self.device_type = self.device.type
        reduced = [parameter for parameter in self._not_ignored(module.named_parameters()) if parameter.requires_grad]
        self.__dict__["reducer"] = Reducer(reduced, self.process_group, bucket_cap_mb)
        if self.process_group.size() > 1:
            if init_sync:
                self._check_shapes()
                self._synchronize([*self._not_ignored(module.named_parameters()), *self._buffers_of_all()])
            self.reducer.watch(lambda: self._is_reduced)

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(module, params_and_buffers_to_ignore):
        """Sets the names of parameters and buffers that ranks have by themselves."""
        module._ddp_params_and_buffers_to_ignore = params_and_buffers_to_ignore

    def _not_ignored(self, named):
        """Returns the tensors that ranks have together, this rank's parts of divided ones."""
        ignored = set(getattr(self.module, "_ddp_params_and_buffers_to_ignore", ()))
        return [tensor._local if hasattr(tensor, "_outer") else tensor for name, tensor in named if name not in ignored]

    def _buffers_of_all(self):
        return self._not_ignored(self.module.named_buffers())

    def _check_shapes(self):
        """Raises a `RuntimeError` if the ranks have different parameters."""
        own = [tuple(parameter.shape) for parameter in self.module.parameters()]
        for rank, shapes in enumerate(self.process_group.exchange(own, "DistributedDataParallel")):
            if shapes != own:
                raise RuntimeError(f"DDP expects same model across all ranks, but rank {self.process_group.rank()} has parameters of the shapes {own}, "
                                   f"while rank {rank} has {shapes}")

    def _synchronize(self, tensors, source=0):
        """Gives the tensors of all ranks the values of one."""
        from ..distributed._collectives import broadcast, copied_together
        together = [tensor.detach() for tensor in tensors if source == 0 and tensor.is_contiguous()]
        copied_together(together, self.process_group)
        for tensor in tensors:
            if source != 0 or not tensor.is_contiguous():
                broadcast(tensor.detach(), group=self.process_group, group_src=source)

    def _common_rank(self, is_candidate):
        """Returns the last of the ranks that are candidates."""
        return max(self.process_group.exchange(self.process_group.rank() if is_candidate else -1, "join"))

    def _begin_joined(self, is_followed):
        """Begins a step of a region in which ranks may end their loops before others. Returns whether the step reduces gradients."""
        own = not is_followed and self.require_backward_grad_sync
        is_reduced = any(self.process_group.exchange(own, "join"))
        if is_reduced and self.broadcast_buffers and self.training and self._buffers_of_all():
            self._synchronize(self._buffers_of_all(), self._common_rank(not is_followed))
        return is_reduced

    def forward(self, *args, **kwargs):
        if _core.is_grad_enabled():
            self._is_reduced = self.require_backward_grad_sync
            self.reducer.forget()
            active = Join.notify_join_context(self)
            if self._join_config.enable:
                self._begin_joined(is_followed=False)
                if active is not None:
                    self.reducer.factor = 1.0 if self._divides_by_all else self.process_group.size() / active
            elif self.broadcast_buffers and self.training and self._is_reduced and self.process_group.size() > 1:
                self._synchronize(self._buffers_of_all())
        return self.module(*args, **kwargs)

    def _get_ddp_logging_data(self):
        """Returns the facts about the module that PyTorch logs."""
        return {"world_size": self.process_group.size(), "rank": self.process_group.rank(), "can_set_static_graph": False}

    def _set_static_graph(self):
        """Does nothing: a pass may use other parameters than the one before."""

    @contextlib.contextmanager
    def no_sync(self):
        """Returns a region in which gradients are accumulated without a reduction."""
        former, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = former

    def register_comm_hook(self, state, hook):
        """Sets a function of a state and a bucket that reduces gradients, and returns the result as a future."""
        if not callable(hook):
            raise TypeError("Communication hook must be callable.")
        self.reducer.hook = hook, state

    def join(self, divide_by_initial_world_size=True, enable=True, throw_on_early_termination=False):
        """Returns a region for a loop that may be shorter on some ranks. These then take part in the steps of the others with zeros."""
        return Join([self], enable, throw_on_early_termination, divide_by_initial_world_size=divide_by_initial_world_size)

    def join_hook(self, **kwargs):
        """Returns the collectives of a rank whose loop has ended."""
        self._divides_by_all, self.reducer.factor = kwargs.get("divide_by_initial_world_size", True), 1.0
        return _FollowedSteps(self)

    @property
    def join_device(self):
        """The device of the parameters."""
        return next(self.module.parameters()).device

    @property
    def join_process_group(self):
        """The group of the ranks."""
        return self.process_group


def _place(name, **members):
    """Creates a submodule of this one, for names that PyTorch defines there."""
    made = types.ModuleType(f"{__name__}.{name}", f"What PyTorch has in `torch.nn.parallel.{name}`.")
    vars(made).update(members)
    sys.modules[made.__name__] = made
    return made


distributed = _place("distributed", DistributedDataParallel=DistributedDataParallel)
_place("data_parallel", DataParallel=DataParallel, data_parallel=data_parallel)
scatter_gather = _place("scatter_gather", scatter=_scattering.scatter, scatter_kwargs=_scattering.scatter_kwargs, gather=_scattering.gather)
scatter, gather = _scattering.scatter, _scattering.gather
# The modules can be imported by their names, and `nn.parallel.data_parallel` remains the function.
__path__ = []
