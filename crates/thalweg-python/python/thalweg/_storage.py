"""Storages as objects (`torch.UntypedStorage`, and `torch.TypedStorage` of `Tensor.storage`): the memory behind tensors that are views of each other."""

from . import _core
from ._typed import KINDS

Tensor = _core.Tensor


class UntypedStorage:
    """The bytes of a storage. `resize_(0)` gives its memory back while the tensors over it stay; what uses their elements raises until it is resized again."""

    def __init__(self, size=0, *, device=None, _tensor=None):
        self._tensor = _core.empty(size, dtype=_core.uint8, device=device) if _tensor is None else _tensor.detach()

    device = property(lambda self: self._tensor.device)
    is_cuda = property(lambda self: self._tensor.is_cuda)
    is_sparse, is_shared = False, lambda self: False
    _cdata = property(lambda self: self._tensor._storage_identity())

    def nbytes(self):
        """Returns the number of bytes."""
        return self._tensor._storage_bytes()

    size = __len__ = nbytes

    def element_size(self):
        """Returns 1: elements are bytes."""
        return 1

    def data_ptr(self):
        """Returns the address of the first byte; 0 where there is none."""
        return self._tensor._storage_pointer()

    def resize_(self, size):
        """Gives the memory back (0), or has so many bytes from now on: those that were there before are the first."""
        self._tensor._resize_storage(size)
        return self

    def _bytes(self):
        return self._tensor._storage_as_bytes()

    def __getitem__(self, index):
        part = self._bytes()[index]
        return UntypedStorage(_tensor=part.clone()) if isinstance(index, slice) else part.item()

    def __setitem__(self, index, value):
        self._bytes()[index] = value

    def __iter__(self):
        return iter(self.tolist())

    def tolist(self):
        """Returns the bytes as a list."""
        return self._bytes().tolist()

    def fill_(self, value):
        """Sets all bytes."""
        self._bytes().fill_(value)
        return self

    def copy_(self, source, non_blocking=None):
        """Overwrites the bytes with those of another storage."""
        self._bytes().copy_(source._bytes())
        return self

    def clone(self):
        """Returns a copy."""
        return UntypedStorage(_tensor=self._bytes().clone())

    def to(self, *, device, non_blocking=False):
        """Returns a copy on a device; itself where it is there."""
        moved = self._bytes().to(device)
        return self if moved.device == self.device else UntypedStorage(_tensor=moved)

    def cpu(self):
        """Returns a copy on the simulated GPU, whose memory is the host's; itself where it is there."""
        return self.to(device="cpu")

    def cuda(self, device=None, non_blocking=False):
        """Returns a copy on a GPU; itself where it is there."""
        return self.to(device="cuda" if device is None else device)

    def untyped(self):
        """Returns itself."""
        return self

    def is_pinned(self, device=None):
        """Returns whether pinned memory was asked for."""
        return self._tensor.is_pinned()

    def pin_memory(self, device=None):
        """Returns a copy in pinned memory; itself where it is in pinned memory."""
        return self if self.is_pinned() else UntypedStorage(_tensor=self._bytes().pin_memory())

    def __eq__(self, other):
        return isinstance(other, UntypedStorage) and self._cdata == other._cdata

    def __hash__(self):
        return hash(self._cdata)

    def __repr__(self):
        return f"[{type(self).__name__}(device={self.device}) of size {len(self)}]"

    def __getattr__(self, name):
        if name in ("share_memory_", "from_file", "new_shared", "_new_shared", "_share_cuda_", "_share_fd_cpu_", "_share_filename_cpu_"):
            raise NotImplementedError(f"{type(self).__name__}.{name} is left out: memory is not shared between processes")
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")


class TypedStorage:
    """A storage whose elements have a dtype."""

    def __init__(self, *, wrap_storage, dtype, _internal=False):
        self._untyped_storage, self.dtype = wrap_storage, dtype

    device = property(lambda self: self._untyped_storage.device)
    is_cuda = property(lambda self: self._untyped_storage.is_cuda)
    is_sparse, is_shared = False, lambda self: False

    def untyped(self):
        """Returns the storage as bytes."""
        return self._untyped_storage

    def element_size(self):
        """Returns the bytes of an element."""
        return self.dtype.itemsize

    def nbytes(self):
        """Returns the number of bytes."""
        return self._untyped_storage.nbytes()

    def size(self):
        """Returns the number of elements."""
        return self.nbytes() // self.element_size()

    __len__ = size

    def data_ptr(self):
        """Returns the address of the first element; 0 where there is none."""
        return self._untyped_storage.data_ptr()

    def resize_(self, size):
        """Gives the memory back (0), or has so many elements from now on."""
        self._untyped_storage.resize_(size * self.element_size())
        return self

    def _elements(self):
        return self._untyped_storage._bytes().view(self.dtype)

    def __getitem__(self, index):
        if isinstance(index, slice):
            raise RuntimeError("slices are only supported in UntypedStorage.__getitem__")
        return self._elements()[index].item()

    def __setitem__(self, index, value):
        self._elements()[index] = value

    def __iter__(self):
        return iter(self.tolist())

    def tolist(self):
        """Returns the elements as a list."""
        return self._elements().tolist()

    def fill_(self, value):
        """Sets all elements."""
        self._elements().fill_(value)
        return self

    def copy_(self, source, non_blocking=None):
        """Overwrites the elements with those of another storage, converted."""
        self._elements().copy_(source._elements())
        return self

    def clone(self):
        """Returns a copy."""
        return TypedStorage(wrap_storage=self._untyped_storage.clone(), dtype=self.dtype)

    def is_pinned(self, device=None):
        """Returns whether pinned memory was asked for."""
        return self._untyped_storage.is_pinned()

    def __repr__(self):
        return f"[TypedStorage(dtype={self.dtype}, device={self.device}) of size {len(self)}]"


class _Kind(type):
    """The class of storages by the dtype of their elements and their place: what `isinstance` asks."""

    def __instancecheck__(cls, instance):
        return isinstance(instance, TypedStorage) and instance.dtype is cls.dtype and instance.is_cuda is cls._on_gpu


def add(namespace, module, device):
    """Adds the constructors by dtype (`torch.FloatStorage`, `torch.cuda.FloatStorage`) to a namespace."""
    for name, kind in {**KINDS, "complex64": "ComplexFloat", "complex128": "ComplexDouble"}.items():
        namespace[f"{kind}Storage"] = _constructor(f"{kind}Storage", getattr(_core, name), module, device)


def _constructor(name, dtype, module, device):
    def __new__(cls, *data, wrap_storage=None, dtype=None, device=None, _internal=False):
        if wrap_storage is not None:
            return TypedStorage(wrap_storage=wrap_storage, dtype=cls.dtype)
        if len(data) > 1:
            raise TypeError(f"{name}() takes a number of elements or a sequence of them")
        given = data[0] if data else 0
        made = _core.empty([given], dtype=cls.dtype, device=cls._device) if isinstance(given, int) \
            else _core.tensor(list(given), dtype=cls.dtype, device=cls._device)
        return TypedStorage(wrap_storage=UntypedStorage(_tensor=made), dtype=cls.dtype)
    return _Kind(name, (), {
        "__new__": __new__, "__module__": module, "__qualname__": name, "dtype": dtype, "_on_gpu": device is not None, "_device": device,
        "__doc__": f"Makes a storage of elements of {dtype}: of a sequence, or so many that are not written."})


def _untyped_storage(self):
    """Returns the storage of the tensor, which views of it share."""
    return UntypedStorage(_tensor=self)


def _storage(self):
    """Returns the storage of the tensor, with its dtype."""
    return TypedStorage(wrap_storage=UntypedStorage(_tensor=self), dtype=self.dtype)


Tensor.untyped_storage = _untyped_storage
Tensor.storage = _storage
