"""Storages (`torch.storage`): the memory of tensors, which several may share."""

import io

from . import _core
from ._storage import UntypedStorage  # noqa: F401
from ._typed_storage import NAMES as _NAMES
from ._typed_storage import TypedStorage, _LegacyStorage  # noqa: F401

_warns = False


def _dtype_to_storage_type_map():
    """Returns the names of the storage classes by dtype."""
    return {getattr(_core, dtype): name for name, dtype in _NAMES.items()}


def _storage_type_to_dtype_map():
    """Returns the dtypes by the names of the storage classes."""
    return {name: dtype for dtype, name in _dtype_to_storage_type_map().items()}


def _get_always_warn_typed_storage_removal():
    return _warns


def _set_always_warn_typed_storage_removal(always_warn):
    global _warns
    _warns = always_warn


def _load_from_bytes(b):
    """Returns the storage of a file's bytes, as objects that were pickled without `save` contain them."""
    from .serialization import load
    return load(io.BytesIO(b), weights_only=False)
