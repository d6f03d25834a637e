"""Files that PyTorch reads and writes (`torch.save`, `torch.load`)."""

import enum
import io
import os
import pickle
import pickletools
import typing

from . import _core, _objects
from .safetensors import load_file, save_file  # noqa: F401

_safe = []

# Names under which libraries write the defaults and the types of arguments.
DEFAULT_PROTOCOL, MAGIC_NUMBER, PROTOCOL_VERSION = 2, 0x1950A86A20F9469CFC6C, 1001
MAP_LOCATION = typing.Union[typing.Callable, _core.device, str, typing.Dict[str, str], None]
FILE_LIKE = FileLike = typing.Union[str, os.PathLike, typing.IO[bytes]]


class SourceChangeWarning(Warning):
    """A warning of old files of modules whose source has changed. It is never given: sources are not kept in files."""


class LoadEndianness(enum.Enum):
    """The order of bytes in files without a mark of it."""

    NATIVE = 1
    LITTLE = 2
    BIG = 3


# What programs set and read back; files are read the same way.
_settings = {"load_endianness": None, "crc32_options": True, "mmap_options": 2}


def _setting(name):
    def read():
        return _settings[name]
    read.__doc__ = f"Returns what `set_{name}` has stored."
    return read


get_default_load_endianness, get_crc32_options, get_default_mmap_options = map(_setting, _settings)


def set_default_load_endianness(endianness):
    """Stores the order of bytes in files without a mark. All files that are written today have one."""
    if endianness not in (None, *LoadEndianness):
        raise TypeError("Invalid argument type in function set_default_load_endianness")
    _settings["load_endianness"] = endianness


def set_crc32_options(compute_crc32):
    """Stores whether sums of files are to be computed. They always are."""
    _settings["crc32_options"] = compute_crc32


class set_default_mmap_options:
    """Stores how files are to be mapped, for good or for a region. Files are read, and not mapped."""

    def __init__(self, flags):
        self._former, _settings["mmap_options"] = _settings["mmap_options"], flags

    def __enter__(self):
        return None

    def __exit__(self, *_):
        _settings["mmap_options"] = self._former


def location_tag(storage):
    """Returns the name of the device of a storage."""
    return str(storage.device)


def default_restore_location(storage, location):
    """Returns a storage on the device of this name."""
    return storage.cuda(_core.device(location).index or 0) if location.startswith("cuda") else storage.cpu()


def add_safe_globals(safe_globals):
    """Allows `load(..., weights_only=True)` to create objects of these classes and call these functions."""
    _safe.extend(safe_globals)


def clear_safe_globals():
    """Clears the list of classes that `load` may create objects of."""
    _safe.clear()


def get_safe_globals():
    """Returns the classes that `load` may create objects of."""
    return list(_safe)


class safe_globals:
    """A region in which `load(..., weights_only=True)` may create objects of some classes."""

    def __init__(self, safe_globals):
        self._safe_globals = safe_globals

    def __enter__(self):
        self._former = list(_safe)
        add_safe_globals(self._safe_globals)

    def __exit__(self, *_):
        _safe[:] = self._former


def save(obj, f, pickle_module=None, pickle_protocol=2, _use_new_zipfile_serialization=True):
    """Writes an object to a path or a file object: tensors, lists, tuples and dictionaries of tensors and plain values, modules,
    and anything else that can be pickled. Tensors that share memory share it in the file."""
    if not isinstance(f, (str, os.PathLike)) and not hasattr(f, "write"):
        raise AttributeError(f"expected 'f' to be string, path, or a file-like object with a 'write' attribute, not {type(f).__name__}")
    folder = None if hasattr(f, "write") else os.path.dirname(os.path.abspath(f))
    if folder is not None and not os.path.isdir(folder):
        raise RuntimeError(f"Parent directory {folder} does not exist.")
    _objects.save(obj, f, pickle_protocol)


def load(f, map_location=None, pickle_module=None, *, weights_only=True, mmap=None, **pickle_load_args):
    """Reads a file in PyTorch's format onto one device: tensors, plain values and objects of the classes that `add_safe_globals`
    names. With `weights_only=False` any object is read, which may run code of the file."""
    device = _device_of(map_location)
    allowed = None if weights_only is False else {_full_name(one): one[0] if isinstance(one, tuple) else one for one in _safe}
    if not isinstance(f, (str, os.PathLike)) and not hasattr(f, "read"):
        raise AttributeError(f"'{type(f).__name__}' object has no attribute 'read': load() takes a path or a file object")
    if hasattr(f, "read"):
        return _load(io.BytesIO(f.read()), device, allowed, pickle_load_args)
    with open(f, "rb") as file:
        return _load(file, device, allowed, pickle_load_args)


def _load(file, device, allowed, options):
    import zipfile
    encoding = options.get("encoding", "utf-8")
    if zipfile.is_zipfile(file):
        return _objects.load(file, device, allowed, encoding)
    file.seek(0)
    if file.read(4) == b"PK\x03\x04":
        # An archive without its end, which this refuses.
        _objects.opened(file)
    file.seek(0)
    try:
        return _objects.load_stream(file, device, allowed, encoding)
    except pickle.UnpicklingError:
        raise
    except EOFError:
        raise EOFError("Ran out of input: the file is empty, or cut off") from None
    except Exception as error:
        if allowed is None:
            raise
        raise pickle.UnpicklingError(f"Weights only load failed: it is not a file of torch.save, or it is cut off ({error})") from None


def get_unsafe_globals_in_checkpoint(f):
    """Returns the names of classes and functions of a file that `load(..., weights_only=True)` refuses."""
    with _objects.opened(f) as archive:
        pickled = _objects.read(archive, f"{_objects.folder_of(archive)}/data.pkl")
    names, strings = set(), []
    for operation, argument, _ in pickletools.genops(pickled):
        if operation.name == "GLOBAL":
            names.add(argument.replace(" ", "."))
        elif operation.name == "STACK_GLOBAL":
            names.add(".".join(strings[-2:]))
        elif isinstance(argument, str):
            strings.append(argument)
    own = {_full_name(one) for one in _safe}
    return sorted(name for name in names if name not in _objects._KNOWN and name not in own)


class _Place:
    """A storage that is passed to functions of `map_location`, which return where it is to be loaded."""

    def __init__(self, device):
        self.device = device

    def cpu(self):
        """Returns a storage on the CPU."""
        return _Place("cpu")

    def cuda(self, device=None):
        """Returns a storage on a GPU."""
        return _Place("cuda" if device is None else f"cuda:{device}" if isinstance(device, int) else device)

    def to(self, device=None, non_blocking=False):
        """Returns a storage on a device."""
        return _Place(self.device if device is None else device)


def _device_of(map_location):
    """Returns the device for `map_location`: a device, a function of a storage and its location, or a dictionary whose values are
    all the same device."""
    if callable(map_location):
        return getattr(map_location(_Place("cpu"), "cpu"), "device", None)
    if isinstance(map_location, dict):
        devices = {str(_core.device(value)): value for value in map_location.values()}
        if len(devices) != 1:
            raise NotImplementedError(f"load(map_location={map_location}): tensors go to one device, and these are {len(devices)}; name one")
        return next(iter(devices.values()))
    return map_location


def _full_name(one):
    """Returns the name of a class or function in a file: its own, or one that is passed with it."""
    if not isinstance(one, tuple):
        return f"{one.__module__}.{one.__qualname__}"
    if len(one) != 2:
        raise ValueError(f"Expected tuple of length 2 (global, str of callable full path), but got tuple of length: {len(one)}")
    if type(one[1]) is not str:
        raise TypeError(f"Expected second item in tuple to be str of callable full path, but got: {type(one[1])}")
    return one[1]
