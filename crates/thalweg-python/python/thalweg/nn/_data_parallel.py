"""`DataParallel`: a module whose batch would be split over GPUs, here on a single one."""

from .module import Module

_SEVERAL = "it replicates a module for each thread; run a process per GPU"


def _of_one(name, device_ids):
    if device_ids is not None and len(device_ids) > 1:
        raise NotImplementedError(f"{name} over {len(device_ids)} GPUs is left out: {_SEVERAL}")


class DataParallel(Module):
    """A module on one GPU with the interface of `DataParallel`: the wrapped module is `module`, and it gets the entire batch."""

    def __init__(self, module, device_ids=None, output_device=None, dim=0):
        super().__init__()
        _of_one("DataParallel", device_ids)
        self.module, self.dim, self.output_device = module, dim, output_device
        self.device_ids = [] if device_ids is None else list(device_ids)

    def forward(self, *inputs, **kwargs):
        return self.module(*inputs, **kwargs)


def data_parallel(module, inputs, device_ids=None, output_device=None, dim=0, module_kwargs=None):
    """Returns the result of a module for the entire batch."""
    _of_one("data_parallel", device_ids)
    return module(*(inputs if isinstance(inputs, tuple) else (inputs,)), **(module_kwargs or {}))
