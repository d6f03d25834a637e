"""Lists of tensors by device and dtype (`torch.utils._foreach_utils`), which optimizers of libraries ask for."""

from .. import _core

_foreach_supported_types = [_core.Tensor]


def _get_foreach_kernels_supported_devices():
    """Returns the names of the devices with functions of lists."""
    return ["cpu", "cuda"]


_get_fused_kernels_supported_devices = _get_foreach_kernels_supported_devices


def _group_tensors_by_device_and_dtype(tensorlistlist, with_indices=False):
    """Returns the lists with their elements grouped by the device and the dtype of the first list's tensors, and the places of the elements."""
    groups = {}
    for place, first in enumerate(tensorlistlist[0]):
        lists, places = groups.setdefault((first.device, first.dtype), ([[] for _ in tensorlistlist], []))
        for made, given in zip(lists, tensorlistlist):
            if given:
                made.append(given[place])
        if with_indices:
            places.append(place)
    return groups


def _device_has_foreach_support(device):
    """Returns whether a device has functions of lists."""
    return device.type in _get_foreach_kernels_supported_devices()


def _has_foreach_support(tensors, device):
    """Returns whether a device has functions of lists of these tensors."""
    return _device_has_foreach_support(device) and all(tensor is None or type(tensor) in _foreach_supported_types for tensor in tensors)
