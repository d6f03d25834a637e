"""Storages (`torch.storage`): the memory of tensors, which several may share."""

from . import _core

_warns = False


class UntypedStorage:
    """The memory of a tensor: its address and its size, by which programs find tensors that share it."""

    def __init__(self, tensor):
        self._tensor = tensor.detach()

    device = property(lambda self: self._tensor.device, doc="The device.")

    def data_ptr(self):
        """Returns the address on the device."""
        return self._tensor.data_ptr() - self._tensor.storage_offset() * self._tensor.dtype.itemsize

    _cdata = property(data_ptr)

    def nbytes(self):
        """Returns the number of bytes."""
        return self._tensor._storage_bytes()

    size = __len__ = nbytes


TypedStorage = UntypedStorage


def _get_always_warn_typed_storage_removal():
    return _warns


def _set_always_warn_typed_storage_removal(always_warn):
    global _warns
    _warns = always_warn


if not hasattr(_core.Tensor, "untyped_storage"):
    _core.Tensor.untyped_storage = lambda self: UntypedStorage(self)
