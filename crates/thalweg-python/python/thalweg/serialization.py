"""Files that PyTorch reads and writes (`torch.save`, `torch.load`)."""

import io
import os
import pickle
import tempfile

from . import _core, _objects
from .safetensors import load_file, save_file  # noqa: F401

_safe = []


def add_safe_globals(safe_globals):
    """Lets `load(..., weights_only=True)` make objects of these classes, and call these functions."""
    _safe.extend(safe_globals)


def clear_safe_globals():
    """Forgets the classes that `load` may make objects of."""
    _safe.clear()


def get_safe_globals():
    """Returns the classes that `load` may make objects of."""
    return list(_safe)


class safe_globals:
    """A region in which `load(..., weights_only=True)` may make objects of some classes."""

    def __init__(self, safe_globals):
        self._safe_globals = safe_globals

    def __enter__(self):
        self._former = list(_safe)
        add_safe_globals(self._safe_globals)

    def __exit__(self, *_):
        _safe[:] = self._former


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
    """Writes an object to a path or a file object: tensors, lists, tuples and dictionaries of them and of plain values, modules, and
    whatever else can be pickled."""
    with tempfile.TemporaryDirectory() as folder:
        to_file = hasattr(f, "write")
        path = os.path.join(folder, "object.pt") if to_file else os.fspath(f)
        try:
            _core._save(_plain(obj), path)
        except (TypeError, OverflowError):
            with io.BytesIO() as written:
                _objects.save(obj, written)
                with open(path, "wb") as file:
                    file.write(written.getbuffer())
        if to_file:
            with open(path, "rb") as written:
                f.write(written.read())


def load(f, map_location=None, pickle_module=None, *, weights_only=True, mmap=None, **pickle_load_args):
    """Reads a file of PyTorch's onto one device: tensors and plain values; objects of classes that `add_safe_globals` was told of; or with
    `weights_only=False` any object, which may run code of the file."""
    map_location = _device_of(map_location)
    if weights_only and not _safe:
        if not hasattr(f, "read"):
            return _load_plain(os.fspath(f), map_location)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "object.pt")
            with open(path, "wb") as written:
                written.write(f.read())
            return _load_plain(path, map_location)
    allowed = {_full_name(one) for one in _safe} if weights_only else None
    if hasattr(f, "read"):
        return _objects.load(io.BytesIO(f.read()), map_location, allowed)
    with open(f, "rb") as file:
        return _objects.load(file, map_location, allowed)


class _Place:
    """A storage that is asked where it goes: what functions of `map_location` are given."""

    def __init__(self, device):
        self.device = device

    def cpu(self):
        """Returns a storage on the CPU."""
        return _Place("cpu")

    def cuda(self, device=None):
        """Returns a storage on a GPU."""
        return _Place("cuda" if device is None else f"cuda:{device}" if isinstance(device, int) else device)


def _device_of(map_location):
    """Returns the device of `map_location`: one, a function of a storage and its place, or a dictionary all of whose values are one device."""
    if callable(map_location):
        return getattr(map_location(_Place("cpu"), "cpu"), "device", None)
    if isinstance(map_location, dict):
        devices = {str(_core.device(value)): value for value in map_location.values()}
        if len(devices) != 1:
            raise NotImplementedError(f"load(map_location={map_location}): tensors go to one device, and these are {len(devices)}; name one")
        return next(iter(devices.values()))
    return map_location


def _load_plain(path, device):
    """Returns the tensors and plain values of a file."""
    try:
        return _core._load(path, device)
    except RuntimeError as error:
        if "was not an allowed global" not in str(error):
            raise
        raise pickle.UnpicklingError(
            f"{error}. If you trust the file, name the class by `serialization.add_safe_globals`, or say `load(..., weights_only=False)`, "
            "which may run code of the file") from None


def _full_name(one):
    """Returns the name by which a file has a class or a function: its own, or one that is given with it."""
    return one[1] if isinstance(one, tuple) else f"{one.__module__}.{one.__qualname__}"
