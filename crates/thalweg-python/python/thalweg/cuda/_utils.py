"""The number of a device, as libraries get it from `torch.cuda._utils`."""

from .. import _core


def _get_device_index(device, optional=False, allow_cpu=False):
    """Returns the number of a CUDA device. With `optional`, None means the current device; with `allow_cpu`, the CPU has the
    number -1."""
    if isinstance(device, int):
        return device
    named = _core.device(device) if isinstance(device, str) else device
    if isinstance(named, _core.device):
        if named.type == "cpu" and allow_cpu:
            return -1
        if named.type not in ("cuda", "sim"):
            raise ValueError(f"Expected a cuda {'or cpu ' if allow_cpu else ''}device, but got: {named}")
        if named.index is not None:
            return named.index
    if not optional:
        raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{device}")
    return _core.get_default_device().index
