"""Storages (`torch.storage`): the memory of tensors, which several may share."""

from ._storage import TypedStorage, UntypedStorage  # noqa: F401

_warns = False


def _get_always_warn_typed_storage_removal():
    return _warns


def _set_always_warn_typed_storage_removal(always_warn):
    global _warns
    _warns = always_warn
