"""Names of storages (`torch.storage`): tensors have no objects of their memory."""

from ._left_out import placeholder

_REASON = "storages have no objects: save, copy and share tensors"
UntypedStorage, TypedStorage = (placeholder(f"{__name__}.{name}", _REASON) for name in ("UntypedStorage", "TypedStorage"))
_warns = False


def _get_always_warn_typed_storage_removal():
    return _warns


def _set_always_warn_typed_storage_removal(always_warn):
    global _warns
    _warns = always_warn
