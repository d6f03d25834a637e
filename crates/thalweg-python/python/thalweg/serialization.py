"""Files that PyTorch reads and writes (`torch.save`, `torch.load`)."""

import os
import tempfile

from . import _core
from .safetensors import load_file, save_file  # noqa: F401


def _plain(value):
    """Returns a value with ordered dictionaries and subclasses of tensors as what files hold."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(inner) for inner in value)
    if isinstance(value, tuple):
        return tuple(_plain(inner) for inner in value)
    return value


def save(obj, f, pickle_module=None, pickle_protocol=2, _use_new_zipfile_serialization=True):
    """Writes tensors, and lists, tuples and dictionaries of them and of plain values, to a path or a file object."""
    if hasattr(f, "write"):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "object.pt")
            _core._save(_plain(obj), path)
            with open(path, "rb") as written:
                f.write(written.read())
    else:
        _core._save(_plain(obj), os.fspath(f))


def load(f, map_location=None, pickle_module=None, *, weights_only=True, mmap=None):
    """Reads a file of PyTorch's: tensors and plain values, as with `weights_only=True`. Everything goes to one device."""
    if not weights_only:
        raise NotImplementedError("load(weights_only=False) is left out: it would run code of the file")
    if map_location is not None and not isinstance(map_location, (str, int, _core.device)):
        raise NotImplementedError("load(map_location=...) takes a device; functions and dictionaries are left out")
    if hasattr(f, "read"):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "object.pt")
            with open(path, "wb") as written:
                written.write(f.read())
            return _core._load(path, map_location)
    return _core._load(os.fspath(f), map_location)
