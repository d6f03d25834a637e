"""Modules on several GPUs (`torch.nn.parallel`), here for a single process.
Programs that could use more GPUs run on one."""

import contextlib
import sys
import types

from .. import distributed
from ._data_parallel import DataParallel, data_parallel
from .module import Module


class DistributedDataParallel(Module):
    """A module in a group of one rank, whose gradients are already the means over the ranks.

    The wrapped module is `module`, and the names in a `state_dict` begin with that. Groups of several ranks are in the Rust crate
    (`thalweg::distributed::DistributedDataParallel`).
    """

    def __init__(self, module, device_ids=None, output_device=None, dim=0, broadcast_buffers=True, init_sync=True, process_group=None,
                 bucket_cap_mb=None, find_unused_parameters=False, check_reduction=False, gradient_as_bucket_view=False,
                 static_graph=False):
        super().__init__()
        distributed._check("DistributedDataParallel", process_group)
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise RuntimeError("DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient.")
        if device_ids is not None and len(device_ids) > 1:
            raise ValueError("device_ids can only be None or contain a single element.")
        self.module = module
        self.device_ids, self.output_device = device_ids, output_device
        self.require_backward_grad_sync = True

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self):
        """Returns a region in which gradients are accumulated without an exchange. With one rank there never is an exchange."""
        former, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = former

    def register_comm_hook(self, state, hook):
        """Raises: nothing is exchanged."""
        raise NotImplementedError(f"DistributedDataParallel.register_comm_hook is left out: {distributed._RUST}")

    def join(self, *args, **kwargs):
        """Raises: there are no other ranks."""
        raise NotImplementedError(f"DistributedDataParallel.join is left out: {distributed._RUST}")


def _place(name, **members):
    """Creates a submodule of this one, in which PyTorch defines some names."""
    made = types.ModuleType(f"{__name__}.{name}", f"What PyTorch has in `torch.nn.parallel.{name}`.")
    vars(made).update(members)
    sys.modules[made.__name__] = made
    return made


_place("distributed", DistributedDataParallel=DistributedDataParallel)
_place("data_parallel", DataParallel=DataParallel, data_parallel=data_parallel)
# The modules can be imported by their names, and `nn.parallel.data_parallel` remains the function.
__path__ = []
