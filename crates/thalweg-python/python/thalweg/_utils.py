"""Helpers that programs use from PyTorch's internals (`torch._utils`); the rest is left out."""

import sys
import traceback

from . import _core
from ._left_out import rest as _rest


def _flatten_dense_tensors(tensors):
    """Returns the elements of tensors of one dtype, concatenated."""
    return _core.cat([tensor.reshape(-1) for tensor in tensors])


def _unflatten_dense_tensors(flat, tensors):
    """Returns views of concatenated elements, in the shapes of tensors."""
    parts = flat.split([tensor.numel() for tensor in tensors]) if tensors else ()
    return tuple(part.view(tensor.shape) for part, tensor in zip(parts, tensors))


def _take_tensors(tensors, size_limit):
    """Yields lists of tensors of one dtype, each of at most some bytes unless one tensor is larger."""
    waiting = {}
    for tensor in tensors:
        group, size = waiting.setdefault(tensor.dtype, ([], [0]))
        own = tensor.numel() * tensor.element_size()
        if size[0] + own > size_limit and size[0] > 0:
            yield list(group)
            group.clear()
            size[0] = 0
        group.append(tensor)
        size[0] += own
    for group, _ in waiting.values():
        if group:
            yield group


def _get_device_index(device, optional=False, allow_cpu=False):
    """Returns the number of a device."""
    device = _core.device(device) if isinstance(device, str) else device
    if isinstance(device, int):
        return device
    if isinstance(device, _core.device):
        if not allow_cpu and device.type == "cpu":
            raise ValueError(f"Expected a non cpu device, but got: {device}")
        if device.type == "cpu":
            return -1
        if device.index is not None:
            return device.index
    if optional or isinstance(device, _core.device):
        return _core.get_default_device().index or 0
    raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{device}")


def _get_available_device_type():
    """Returns the type of the GPUs of this machine, or None."""
    from . import cuda
    return "cuda" if cuda.is_available() else None


def _rebuild_tensor(storage, storage_offset, size, stride):
    """Returns the tensor of some elements of a storage, without a copy."""
    return _core.empty(0, dtype=storage.dtype, device=storage.device).set_(storage, storage_offset, tuple(size), tuple(stride))


def _rebuild_tensor_v2(storage, storage_offset, size, stride, requires_grad, backward_hooks, metadata=None):
    """Returns the tensor of some elements of a storage, as files describe it."""
    made = _rebuild_tensor(storage, storage_offset, size, stride)
    if metadata and metadata.get("conj"):
        made = made.conj()
    return made.requires_grad_(requires_grad)


def _rebuild_parameter(data, requires_grad, backward_hooks):
    """Returns a parameter of the memory of a tensor."""
    from .nn import Parameter
    return Parameter(data, requires_grad)


def _get_all_device_indices():
    """Returns the numbers of all GPUs."""
    from . import cuda
    return list(range(cuda.device_count()))


def _get_current_device_index():
    """Returns the number of the current device, or −1 without a GPU."""
    from . import cuda
    return cuda.current_device() if cuda.is_available() else -1


class classproperty:
    """A property of a class."""

    def __init__(self, func):
        self.func = func

    def __get__(self, instance, owner):
        return self.func(owner)


class ExceptionWrapper:
    """An exception of another thread or process, as text, which `reraise` raises."""

    def __init__(self, exc_info=None, where="in background"):
        kind, value, trace = exc_info or sys.exc_info()
        self.exc_type, self.where = kind, where
        self.exc_msg = "".join(traceback.format_exception(kind, value, trace))

    def reraise(self):
        """Raises the exception again, with the text of its original traceback."""
        text = f"Caught {self.exc_type.__name__} {self.where}.\nOriginal {self.exc_msg}"
        try:
            raised = self.exc_type(text)
        except TypeError:
            raised = RuntimeError(text)
        raise raised


def _element_size(dtype):
    """Returns the bytes per element."""
    return dtype.itemsize




def _set_obj_state(obj, state):
    """Sets the attributes of an object, from a dictionary or from a pair of it and a dictionary of slots."""
    parts = state if isinstance(state, tuple) else (state,)
    for part in parts:
        for name, value in (part or {}).items():
            setattr(obj, name, value)
    return obj


def _get_obj_state(obj):
    """Returns the attributes of an object."""
    return obj.__dict__


__getattr__ = _rest(__name__)
