"""Files in PyTorch's format: tensors and any other objects that can be pickled.

A file is a zip archive with a pickle and the bytes of each storage, which views share. It uses PyTorch's names for tensors,
dtypes and shapes, so that each library can read the files of the other if it has the classes. A class of `torch.nn` in a file is
read as the class of this package.
"""

import codecs
import collections
import io
import pickle

from . import _core, _external, _names
from ._results import Size
from ._storage import UntypedStorage
from ._typed_storage import TypedStorage
from ._storages import Shared, attributes, has_memory, plain_class, view, with_attributes
from ._typed import KINDS
from .nn.parameter import Buffer, Parameter, is_lazy

_FOLDER = "archive"
# Modules whose functions a file can never call by name, whatever else is allowed.
_BLOCKED = ("sys", "os", "posix", "nt")


class _Name:
    """A name that is in the file, but need not exist in this program."""

    def __init__(self, module, name):
        self.module, self.name = module, name

    def __call__(self, *arguments):
        raise TypeError(f"{self.module}.{self.name} is a name in a file")


def _rebuilder(name, module="torch._utils"):
    return _Name(module, f"_rebuild_{name}")


class _Layout:
    """The name of a layout in a file."""

    def __init__(self, name):
        self.name = name


class _Storage:
    """The elements of a storage, which are a separate file in the archive."""

    def __init__(self, row, key):
        self.row = row
        kind = KINDS.get(row.dtype._name)
        name = _Name("torch", f"{kind}Storage") if kind else _Name("torch.storage", "UntypedStorage")
        self.described = ("storage", name, key, "cpu", row.numel() if kind else row.nbytes)


# The pickler in Python, because the one in C only writes names that it can import.
class _Pickler(pickle._Pickler):
    dispatch = dict(pickle._Pickler.dispatch)

    def __init__(self, file, protocol):
        super().__init__(file, protocol=protocol)
        self.storages = {}

    def persistent_id(self, obj):
        if isinstance(obj, TypedStorage):
            obj = self._storage(obj._elements())
        elif isinstance(obj, UntypedStorage):
            obj = self._storage(obj._bytes())
        return obj.described if isinstance(obj, _Storage) else None

    def reducer_override(self, obj):
        if is_lazy(obj):
            return NotImplemented
        if isinstance(obj, _core.Tensor) and _external.is_wrapper(obj):
            own = {name: value for name, value in obj.__dict__.items() if name not in ("_wrapper_device", "_has_wrapper_device")}
            parts = (type(obj), obj.dtype, Size(obj.shape), tuple(obj.stride()), obj.storage_offset(), _Layout("torch.strided"), obj.device, obj.requires_grad)
            return _rebuilder("from_type_v2", "torch._tensor"), (_rebuilder("wrapper_subclass"), type(obj), parts, own)
        if isinstance(obj, _core.Tensor) and hasattr(obj, "_outer"):
            return obj.__reduce_ex__(2)
        if isinstance(obj, Parameter):
            parts, own = (obj.detach(), obj.requires_grad, collections.OrderedDict()), attributes(obj)
            return (_rebuilder("parameter_with_state"), (*parts, own)) if own else (_rebuilder("parameter"), parts)
        if isinstance(obj, _core.Tensor) and _external.is_sparse(obj):
            parts = (obj._indices(), obj._values().detach(), Size(obj.shape), obj.is_coalesced())
            return _rebuilder("sparse_tensor"), (_Layout("torch.sparse_coo"), parts)
        if isinstance(obj, _Layout):
            return _Name("torch.serialization", "_get_layout"), (obj.name,)
        if isinstance(obj, _core.Tensor):
            function, parts = self._tensor(obj)
            own = {name: value for name, value in attributes(obj).items() if name != "persistent" or not isinstance(obj, Buffer)}
            if (plain_class(obj) or isinstance(obj, Buffer)) and not own:
                return function, parts
            kind = _Name("torch", "Tensor") if plain_class(obj) else type(obj)
            return _rebuilder("from_type_v2", "torch._tensor"), (function, kind, parts, own)
        if isinstance(obj, Size):
            return _Name("torch", "Size"), (tuple(obj),)
        if isinstance(obj, _core.device):
            # The simulated GPU is a name that only this package has.
            parts = (obj.type,) if obj.index is None else (obj.type, obj.index)
            return _Name("torch", "device"), ("cpu",) if obj.type == "sim" else parts
        return NotImplemented

    def _tensor(self, tensor):
        """Returns the function that recreates a tensor, and its arguments."""
        place, tail = (tuple(tensor.shape), tuple(tensor.stride())), (tensor.requires_grad, collections.OrderedDict())
        if tensor.device.type == "meta":
            return _rebuilder("meta_tensor_no_storage"), (tensor.dtype, *place, tensor.requires_grad)
        parts = (self._storage(tensor), tensor.storage_offset(), *place, *tail)
        if tensor.dtype._name in KINDS:
            return _rebuilder("tensor_v2"), parts
        return _rebuilder("tensor_v3"), (*parts, tensor.dtype)

    def _storage(self, tensor):
        if not has_memory(tensor):
            shared, identity = tensor.detach().reshape(-1), ("none", len(self.storages))
            return self.storages.setdefault(identity, _Storage(shared, str(len(self.storages))))
        shared = Shared(tensor)
        storage = self.storages.setdefault(shared.identity, _Storage(shared.row, str(len(self.storages))))
        if storage.row.dtype != shared.dtype:
            raise RuntimeError("Cannot save multiple tensors or storages that view the same data as different types: "
                               f"{storage.row.dtype} and {shared.dtype}; clone one of them")
        return storage

    def _save_name(self, obj):
        self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())

    def _save_dtype(self, obj):
        self._save_name(_Name("torch", obj._name))

    dispatch[_Name] = _save_name
    dispatch[_core.dtype] = _save_dtype


def save(obj, file, protocol=2):
    """Writes an object to a path or a binary file. Nothing is written if the object cannot be pickled."""
    import zipfile
    text = io.BytesIO()
    pickler = _Pickler(text, protocol)
    pickler.dump(obj)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{_FOLDER}/data.pkl", text.getvalue())
        archive.writestr(f"{_FOLDER}/byteorder", b"little")
        for storage in pickler.storages.values():
            archive.writestr(f"{_FOLDER}/data/{storage.described[2]}", bytes(storage.row._bytes()))
        archive.writestr(f"{_FOLDER}/version", b"3\n")


def _tensor(storage, offset, size, stride, requires_grad=False, hooks=None, metadata=None):
    """Returns the tensor that a file describes by its storage and its position in the storage."""
    made = view(getattr(storage, "_row", storage), size, stride, offset)
    if metadata and metadata.get("conj"):
        made = made.conj()
    if metadata and metadata.get("neg"):
        made = -made
    return made.requires_grad_() if requires_grad else made


def _tensor_of_bytes(storage, offset, size, stride, requires_grad, hooks, dtype, metadata=None):
    return _tensor(getattr(storage, "_row", storage).view(dtype), offset, size, stride, requires_grad, hooks, metadata)


def _tensor_without_memory(dtype, size, stride, requires_grad):
    return _core.empty_strided(list(size), list(stride), dtype=dtype, device="meta").requires_grad_(requires_grad)


def _parameter(data, requires_grad, hooks, state=None):
    return with_attributes(Parameter(data, requires_grad), state or {})


def _tensor_of_class(function, kind, arguments, state):
    """Returns a tensor of a subclass, or a tensor with attributes."""
    made = function(*arguments)
    if kind is not _core.Tensor and type(made) is not kind:
        made = kind._of(made) if hasattr(kind, "_of") else made.as_subclass(kind)
    if isinstance(state, tuple):
        state = {name: value for part in state if part for name, value in part.items()}
    if _external.is_wrapper(made) and hasattr(kind, "__setstate__"):
        made.__setstate__(state)
        return made
    return with_attributes(made, state or {})


def _layout(name):
    own = name.removeprefix("torch.")
    return getattr(_core, own, None) or getattr(_names, own)


def _wrapper(kind, dtype, size, strides, storage_offset, layout, device, requires_grad):
    return _core.Tensor._make_wrapper_subclass(kind, size, strides=strides, storage_offset=storage_offset, dtype=dtype, device=device, requires_grad=requires_grad)


def _sparse_tensor(layout, parts):
    from ._sparse import sparse_coo_tensor
    indices, values, size, *rest = parts
    return sparse_coo_tensor(indices, values, size, is_coalesced=bool(rest and rest[0]))


_KNOWN = {
    "torch._utils._rebuild_tensor": _tensor, "torch._utils._rebuild_tensor_v2": _tensor, "torch._utils._rebuild_tensor_v3": _tensor_of_bytes,
    "torch._utils._rebuild_meta_tensor_no_storage": _tensor_without_memory, "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter, "torch._tensor._rebuild_from_type_v2": _tensor_of_class,
    "torch.Size": Size, "torch.device": _core.device, "torch.Tensor": _core.Tensor, "torch.nn.parameter.Parameter": Parameter,
    "torch.serialization._get_layout": _layout, "torch._utils._rebuild_sparse_tensor": _sparse_tensor,
    "torch._utils._rebuild_wrapper_subclass": _wrapper,
    "collections.OrderedDict": collections.OrderedDict, "collections.Counter": collections.Counter, "_codecs.encode": codecs.encode,
    # Files of protocol 2 use the names of Python 2.
    **{f"{module}.{kind.__name__}": kind for module in ("builtins", "__builtin__") for kind in (set, frozenset, bytearray, bytes, complex)},
    **{f"torch.{kind}Storage": getattr(_core, name) for name, kind in KINDS.items()}, "torch.storage.UntypedStorage": _core.uint8,
}
_KNOWN |= {f"torch.{name}": value for name in dir(_core) if isinstance(value := getattr(_core, name), _core.dtype)}


def know(*named):
    """Adds classes and functions that belong to tensors, by their names here and under the alias."""
    for one in named:
        path = one.__module__.partition(".")[2]
        _KNOWN.update({f"{package}.{path}.{one.__qualname__}": one for package in (__package__, "torch")})


class _Unpickler(pickle.Unpickler):
    """Reads the objects of a pickle. If names are `allowed`, only those names and those that belong to tensors are read, else any
    name that the program has. `row` makes the row of elements of a storage from a key, a dtype and a count."""

    def __init__(self, file, row, allowed, encoding):
        super().__init__(file, encoding=encoding)
        self._row, self._allowed, self._storages = row, allowed, {}

    def persistent_load(self, pid):
        try:
            kind, dtype, key, _, count, *_ = pid
            if kind != "storage":
                raise ValueError
            if key not in self._storages:
                row = self._row(key, dtype, count)
                self._storages[key] = made = TypedStorage(wrap_storage=UntypedStorage(_tensor=row), dtype=row.dtype)
                made._row = row
        except (KeyError, TypeError, ValueError):
            raise pickle.UnpicklingError(f"{pid!r} describes no tensor of the file") from None
        return self._storages[key]

    def find_class(self, module, name):
        full = f"{module}.{name}"
        if full in _KNOWN:
            return _KNOWN[full]
        own = f"thalweg{module.removeprefix('torch')}" if module.partition(".")[0] == "torch" else module
        if self._allowed is not None:
            if module.partition(".")[0] in _BLOCKED:
                raise pickle.UnpicklingError(f"Weights only load failed: the file names {full}, whose module is blocked")
            if full not in self._allowed and f"{own}.{name}" not in self._allowed:
                raise pickle.UnpicklingError(
                    f"Weights only load failed: the file has an object of {full}, which was not an allowed global by default. If you trust it, "
                    f"name the class by `serialization.add_safe_globals([{name}])`, or say `load(..., weights_only=False)`, which may run code of "
                    "the file")
            given = self._allowed.get(full) or self._allowed.get(f"{own}.{name}")
            if given is not None:
                return given
        return super().find_class(own, name)


def opened(file):
    """Opens an archive, which must be complete."""
    import zipfile
    try:
        return zipfile.ZipFile(file)
    except Exception as error:
        raise _damaged(file, error) from None


def read(archive, name):
    """Reads a file of an archive. A file that the archive does not have is a `KeyError`."""
    try:
        return archive.read(name)
    except KeyError:
        raise
    except Exception as error:
        raise _damaged(archive.fp, error) from None


def _damaged(file, error):
    return RuntimeError(f"load(): {getattr(file, 'name', None) or 'the file'} is damaged or cut off ({error}): save, copy or download it again")


def folder_of(archive):
    """Returns the folder of an archive that contains the pickle."""
    folder = next((name.removesuffix("/data.pkl") for name in archive.namelist() if name.endswith("/data.pkl")), None)
    if folder is None:
        raise RuntimeError("load(): the archive has no data.pkl: it is not a file of torch.save")
    if f"{folder}/byteorder" in archive.namelist() and read(archive, f"{folder}/byteorder") != b"little":
        raise RuntimeError("load(): the file has numbers in big-endian order; save it on a little-endian machine")
    return folder


def load(file, device, allowed, encoding="utf-8"):
    """Reads an object from an archive, with its tensors on one device. `allowed` are classes by name, or None for any class."""
    with opened(file) as archive:
        folder = folder_of(archive)

        def row(key, dtype, count):
            elements = read(archive, f"{folder}/data/{key}")
            return _core._from_bytes(elements, [len(elements) if dtype is _core.uint8 else count], dtype, device)
        return _Unpickler(io.BytesIO(read(archive, f"{folder}/data.pkl")), row, allowed, encoding).load()


# The magic number of files of PyTorch before 1.6, and the version of their format.
_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001


def _length(file):
    place = file.tell()
    length = file.seek(0, io.SEEK_END)
    file.seek(place)
    return length


def load_stream(file, device, allowed, encoding="utf-8"):
    """Reads an object from a file of PyTorch before 1.6: a sequence of pickles, followed by the elements of each storage."""
    def unpickled(row=None):
        return _Unpickler(file, row, allowed, encoding)
    if unpickled().load() != _MAGIC:
        raise RuntimeError("Invalid magic number; corrupt file?")
    version = unpickled().load()
    if version != _VERSION:
        raise RuntimeError(f"Invalid protocol version: {version}")
    unpickled().load()
    length = _length(file)

    def empty(key, dtype, count):
        if count * dtype.itemsize > length:
            raise RuntimeError(f"storage {key} has {count} elements of {dtype}, and the file {length} bytes: it is damaged or cut off")
        return _core.empty([count], dtype=dtype, device=device)
    reader = unpickled(empty)
    made, storages = reader.load(), reader._storages
    for key in unpickled().load():
        count, row = int.from_bytes(file.read(8), "little"), storages[key]._row
        elements = file.read(row.nbytes)
        if count != row.numel() or len(elements) != count * row.dtype.itemsize:
            raise RuntimeError(f"storage {key} has {row.numel()} elements, and the file {count}, {len(elements)} bytes: it is cut off")
        row.copy_(_core._from_bytes(elements, [count], row.dtype, device))
    return made
