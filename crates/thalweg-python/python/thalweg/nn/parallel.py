"""Modules on several ranks (`torch.nn.parallel`)."""

import contextlib
import sys
import types

from .. import _core
from . import _scattering
from ._data_parallel import DataParallel, data_parallel
from ._reducer import Reducer
from .module import Module


class DistributedDataParallel(Module):
    """A module whose gradients are the means over the ranks of a group.

    The wrapped module is `module`, and the names in a `state_dict` begin with that. Gradients are reduced in buckets while the backward pass
    computes others, also those that only some ranks have.
    """

    def __init__(self, module, device_ids=None, output_device=None, dim=0, broadcast_buffers=True, init_sync=True, process_group=None,
                 bucket_cap_mb=None, find_unused_parameters=False, check_reduction=False, gradient_as_bucket_view=False,
                 static_graph=False, delay_all_reduce_named_params=None, param_to_hook_all_reduce=None, mixed_precision=None, device_mesh=None,
                 skip_all_reduce_unused_params=False):
        super().__init__()
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
        self.find_unused_parameters, self.static_graph = find_unused_parameters, static_graph
        ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        reduced = [parameter for name, parameter in module.named_parameters() if parameter.requires_grad and name not in ignored]
        self.__dict__["reducer"] = Reducer(reduced, self.process_group, bucket_cap_mb)
        if self.process_group.size() > 1:
            if init_sync:
                self._check_shapes()
                self._synchronize([*module.parameters(), *module.buffers()])
            self.reducer.watch(lambda: self._is_reduced)

    def _check_shapes(self):
        """Raises a `RuntimeError` if the ranks have different parameters."""
        own = [tuple(parameter.shape) for parameter in self.module.parameters()]
        for rank, shapes in enumerate(self.process_group.exchange(own, "DistributedDataParallel")):
            if shapes != own:
                raise RuntimeError(f"DDP expects same model across all ranks, but rank {self.process_group.rank()} has parameters of the shapes {own}, "
                                   f"while rank {rank} has {shapes}")

    def _synchronize(self, tensors):
        """Gives the tensors of all ranks the values of the first."""
        from ..distributed._collectives import broadcast, copied_together
        copied_together([tensor.detach() for tensor in tensors if tensor.is_contiguous()], self.process_group)
        for tensor in tensors:
            if not tensor.is_contiguous():
                broadcast(tensor.detach(), group=self.process_group, group_src=0)

    def forward(self, *args, **kwargs):
        if _core.is_grad_enabled():
            self._is_reduced = self.require_backward_grad_sync
            self.reducer.forget()
            if self.broadcast_buffers and self.training and self._is_reduced and self.process_group.size() > 1:
                self._synchronize(list(self.module.buffers()))
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

    def join(self, *args, **kwargs):
        """Raises: all ranks take the same number of steps."""
        raise NotImplementedError("DistributedDataParallel.join is left out: it is in the Rust crate only; let all ranks take the same number of steps")


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
