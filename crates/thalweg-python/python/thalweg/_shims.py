"""Patches for third-party packages that read the memory of tensors by address: `safetensors`, under PyTorch's name."""

import importlib.machinery
import json

from . import _core

_DTYPES = {dtype._safetensors: dtype for dtype in _core._dtypes() if dtype._safetensors}


class _Slice:
    """A tensor in a file, of which parts can be read."""

    def __init__(self, file, name):
        self._file, self._name = file, name

    def get_shape(self):
        """Returns the sizes as a list."""
        return list(self._file._header[self._name]["shape"])

    def get_dtype(self):
        """Returns the name of the dtype in the file's format."""
        return self._file._header[self._name]["dtype"]

    def __getitem__(self, index):
        return self._file.get_tensor(self._name)[index]


class SafeFile:
    """A file in the format `safetensors` that is read tensor by tensor (`safetensors.safe_open`)."""

    def __init__(self, filename, framework="pt", device="cpu", backend=None):
        self._file, self._device = open(filename, "rb"), device
        length = int.from_bytes(self._file.read(8), "little")
        self._file.seek(0, 2)
        size = self._file.tell()
        if not 2 <= length <= size - 8:
            raise _error(f"Error while deserializing header: {filename} is not a safetensors file")
        self._file.seek(8)
        try:
            self._header = json.loads(self._file.read(length))
        except ValueError:
            raise _error(f"Error while deserializing header: the header of {filename} is not JSON") from None
        self._metadata = self._header.pop("__metadata__", None)
        self._start = 8 + length
        if max((entry["data_offsets"][1] for entry in self._header.values()), default=0) + self._start != size:
            raise _error(f"Error while deserializing header: incomplete metadata, {filename} is not fully covered")

    def keys(self):
        """Returns the names of the tensors, in order."""
        return sorted(self._header)

    def offset_keys(self):
        """Returns the names of the tensors, in the order of the file."""
        return sorted(self._header, key=lambda name: self._header[name]["data_offsets"])

    def metadata(self):
        """Returns the metadata, or None."""
        return self._metadata

    def get_tensor(self, name):
        """Returns a tensor."""
        if name not in self._header:
            raise _error(f"File does not contain tensor {name}")
        entry = self._header[name]
        first, end = entry["data_offsets"]
        self._file.seek(self._start + first)
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None:
            raise _error(f"tensor {name} has the dtype {entry['dtype']}, which no tensor here has")
        return _core._from_bytes(self._file.read(end - first), entry["shape"], dtype, self._device)

    def get_tensors(self):
        """Returns all tensors by name."""
        return {name: self.get_tensor(name) for name in self.keys()}

    def get_slice(self, name):
        """Returns a tensor of which parts can be read."""
        if name not in self._header:
            raise _error(f"File does not contain tensor {name}")
        return _Slice(self, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()


def _error(text):
    from safetensors import SafetensorError
    return SafetensorError(text)


def _safetensors(module):
    """Makes `safe_open` return tensors of this package for PyTorch."""
    inner = module.safe_open

    def safe_open(filename, framework, device="cpu", **options):
        """Opens a file whose tensors are read one by one."""
        if framework in ("pt", "torch", "pytorch"):
            return SafeFile(filename, framework, device)
        return inner(filename, framework=framework, **({} if device == "cpu" else {"device": device}), **options)
    module.safe_open = safe_open


def _to_ndarray(tensor):
    """Returns the bytes of a tensor as a NumPy array, and the object that keeps them alive."""
    import numpy
    elements = tensor._bytes()
    return numpy.frombuffer(elements, dtype=numpy.uint8), elements


def _safetensors_torch(module):
    """Makes the functions that save copy the elements of tensors instead of reading their addresses."""
    module._to_ndarray = _to_ndarray
    module._tobytes = lambda tensor, name: bytes(tensor.contiguous()._bytes())
    module.safe_open = __import__("safetensors").safe_open


_CHANGED = {"safetensors": _safetensors, "safetensors.torch": _safetensors_torch}


class _Loader:
    """The loader of a module that is patched after it has been loaded."""

    def __init__(self, inner, change):
        self._inner, self._change = inner, change

    def create_module(self, spec):
        return self._inner.create_module(spec)

    def exec_module(self, module):
        self._inner.exec_module(module)
        self._change(module)

    def __getattr__(self, name):
        return getattr(self._inner, name)


def spec_of(fullname, path):
    """Returns the spec of a module that is patched, or None."""
    change = _CHANGED.get(fullname)
    spec = importlib.machinery.PathFinder.find_spec(fullname, path) if change is not None else None
    if spec is not None and spec.loader is not None:
        spec.loader = _Loader(spec.loader, change)
    return spec


def change_loaded(modules):
    """Patches modules that have already been loaded."""
    for name, change in _CHANGED.items():
        if name in modules:
            change(modules[name])
