"""Files of PyTorch's that hold objects beside tensors and plain values: modules, and whatever else can be pickled.

A file is a zip archive of a pickle and of the bytes of each tensor. Its names of tensors, dtypes and shapes are PyTorch's, so that either
library reads what the other one wrote, as far as it has the classes. A class of `torch.nn` in a file is read as the one of this package.
"""

import codecs
import collections
import io
import pickle
import zipfile

from . import _core
from ._results import Size
from ._typed import KINDS
from .nn.parameter import Parameter

_STORAGES = {**KINDS, "complex64": "ComplexFloat", "complex128": "ComplexDouble"}
_FOLDER = "archive"


class _Name:
    """A name that the file has and this program need not have."""

    def __init__(self, module, name):
        self.module, self.name = module, name

    def __call__(self, *arguments):
        raise TypeError(f"{self.module}.{self.name} is a name in a file")


class _Storage:
    """The elements of a tensor, which are a file of their own in the archive."""

    def __init__(self, tensor, key):
        kind = _STORAGES.get(tensor.dtype._name)
        name = _Name("torch", f"{kind}Storage") if kind else _Name("torch.storage", "UntypedStorage")
        self.described = ("storage", name, key, "cpu", tensor.numel() if kind else tensor.nbytes)


# The pickler in Python: that in C writes names only of what it can import.
class _Pickler(pickle._Pickler):
    dispatch = dict(pickle._Pickler.dispatch)

    def __init__(self, file):
        super().__init__(file, protocol=2)
        self.tensors = []

    def persistent_id(self, obj):
        return obj.described if isinstance(obj, _Storage) else None

    def reducer_override(self, obj):
        if isinstance(obj, Parameter):
            plain = obj.detach()
            return _Name("torch._utils", "_rebuild_parameter"), (plain, obj.requires_grad, collections.OrderedDict())
        if isinstance(obj, _core.Tensor):
            plain = obj.detach().contiguous()
            storage = _Storage(plain, str(len(self.tensors)))
            self.tensors.append(plain)
            parts = (storage, 0, tuple(plain.shape), tuple(plain.stride()), obj.requires_grad, collections.OrderedDict())
            if plain.dtype._name in _STORAGES:
                return _Name("torch._utils", "_rebuild_tensor_v2"), parts
            return _Name("torch._utils", "_rebuild_tensor_v3"), (*parts, plain.dtype)
        if isinstance(obj, Size):
            return _Name("torch", "Size"), (tuple(obj),)
        return NotImplemented

    def _save_name(self, obj):
        self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())

    def _save_dtype(self, obj):
        self._save_name(_Name("torch", obj._name))

    dispatch[_Name] = _save_name
    dispatch[_core.dtype] = _save_dtype


def save(obj, file):
    """Writes an object to a binary file."""
    text = io.BytesIO()
    pickler = _Pickler(text)
    pickler.dump(obj)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{_FOLDER}/data.pkl", text.getvalue())
        archive.writestr(f"{_FOLDER}/byteorder", b"little")
        for key, tensor in enumerate(pickler.tensors):
            archive.writestr(f"{_FOLDER}/data/{key}", bytes(tensor._bytes()))
        archive.writestr(f"{_FOLDER}/version", b"3\n")


def _tensor(storage, offset, size, stride, requires_grad, hooks, dtype=None, metadata=None):
    """Returns the tensor that a file describes by its storage and its place in it."""
    if dtype is not None:
        elements = bytes(storage._bytes())
        storage = _core._from_bytes(elements, [len(elements) // dtype.itemsize], dtype, storage.device)
    return storage.as_strided(list(size), list(stride), offset).requires_grad_(requires_grad)


def _parameter(data, requires_grad, hooks):
    return Parameter(data, requires_grad)


_KNOWN = {
    "torch._utils._rebuild_tensor_v2": _tensor, "torch._utils._rebuild_tensor_v3": _tensor, "torch._utils._rebuild_parameter": _parameter,
    "torch.Size": Size, "torch.device": _core.device, "torch.nn.parameter.Parameter": Parameter,
    "collections.OrderedDict": collections.OrderedDict, "collections.Counter": collections.Counter, "_codecs.encode": codecs.encode,
    # Files of protocol 2 have the names of Python 2.
    **{f"{module}.{kind.__name__}": kind for module in ("builtins", "__builtin__") for kind in (set, frozenset, bytearray, complex)},
    **{f"torch.{kind}Storage": getattr(_core, name) for name, kind in _STORAGES.items()}, "torch.storage.UntypedStorage": _core.uint8,
}
_KNOWN |= {f"torch.{name}": value for name in dir(_core) if isinstance(value := getattr(_core, name), _core.dtype)}


class _Unpickler(pickle.Unpickler):
    """Reads a pickle's objects; where names are `allowed`, those and what belongs to tensors, else any that the program has."""

    def __init__(self, archive, folder, device, allowed):
        super().__init__(io.BytesIO(archive.read(f"{folder}/data.pkl")), encoding="utf-8")
        self._archive, self._folder, self._device, self._allowed, self._storages = archive, folder, device, allowed, {}

    def persistent_load(self, pid):
        try:
            kind, dtype, key, _, count = pid
            if kind != "storage":
                raise ValueError
            if key not in self._storages:
                elements = self._archive.read(f"{self._folder}/data/{key}")
                count = len(elements) if dtype is _core.uint8 else count
                self._storages[key] = _core._from_bytes(elements, [count], dtype, self._device)
        except (KeyError, TypeError, ValueError):
            raise pickle.UnpicklingError(f"{pid!r} describes no tensor of the file") from None
        return self._storages[key]

    def find_class(self, module, name):
        full = f"{module}.{name}"
        if full in _KNOWN:
            return _KNOWN[full]
        own = f"thalweg{module.removeprefix('torch')}" if module.partition(".")[0] == "torch" else module
        if self._allowed is not None and full not in self._allowed and f"{own}.{name}" not in self._allowed:
            raise pickle.UnpicklingError(
                f"Weights only load failed: the file has an object of {full}. If you trust it, name the class by "
                f"`serialization.add_safe_globals([{name}])`, or say `load(..., weights_only=False)`, which may run code of the file")
        return super().find_class(own, name)


def load(file, device, allowed):
    """Reads an object from a binary file, with its tensors on one device. `allowed` are names of classes, or None for any."""
    if not zipfile.is_zipfile(file):
        raise RuntimeError("load() reads files of PyTorch 1.6 and later with objects in them: this one is not a zip archive; save it anew")
    with zipfile.ZipFile(file) as archive:
        folder = next((name.removesuffix("/data.pkl") for name in archive.namelist() if name.endswith("/data.pkl")), None)
        if folder is None:
            raise RuntimeError("load(): the archive has no data.pkl: it is not a file of torch.save")
        if f"{folder}/byteorder" in archive.namelist() and archive.read(f"{folder}/byteorder") != b"little":
            raise RuntimeError("load(): the file has numbers in big-endian order; save it on a little-endian machine")
        return _Unpickler(archive, folder, device, allowed).load()
