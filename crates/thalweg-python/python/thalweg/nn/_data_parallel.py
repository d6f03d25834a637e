"""`DataParallel`: a module whose batch would be split over GPUs, here of one."""

from .module import Module

_SEVERAL = "it replicates a module for each thread; run a process per GPU"


def _of_one(name, device_ids):
    if device_ids is not None and len(device_ids) > 1:
        raise NotImplementedError(f"{name} over {len(device_ids)} GPUs is left out: {_SEVERAL}")


class DataParallel(Module):
    """A module of one GPU, by the names of a module over several: it is `module`, and gets the whole batch."""

    def __init__(self, module, device_ids=None, output_device=None, dim=0):
        super().__init__()
        _of_one("DataParallel", device_ids)
        self.module, self.dim, self.output_device = module, dim, output_device
        self.device_ids = [] if device_ids is None else list(device_ids)

    def forward(self, *inputs, **kwargs):
        return self.module(*inputs, **kwargs)


def data_parallel(module, inputs, device_ids=None, output_device=None, dim=0, module_kwargs=None):
    """Returns the result of a module, which gets the whole batch."""
    _of_one("data_parallel", device_ids)
    return module(*(inputs if isinstance(inputs, tuple) else (inputs,)), **(module_kwargs or {}))
