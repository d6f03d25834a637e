"""Storages whose elements have a dtype (`torch.TypedStorage`, `torch.FloatStorage`), which older programs use."""

import numbers

from . import _core
from ._storage import UntypedStorage, check_copied, check_readable, elements_of, from_buffer, kind_of
from ._typed import KINDS

Tensor = _core.Tensor
NAMES = {f"{kind}Storage": dtype for dtype, kind in KINDS.items()}
_CONVERSIONS = {kind.lower().replace("complex", "complex_"): dtype for dtype, kind in KINDS.items()}


class TypedStorage:
    """A storage whose elements have a dtype."""

    def __init__(self, *args, wrap_storage=None, dtype=None, device=None, _internal=False):
        if wrap_storage is None:
            if device is not None and _core.device(device).type not in ("cpu", "cuda", "meta", "sim"):
                raise RuntimeError(f"Storage device not recognized: {device}")
            dtype = dtype or _core.get_default_dtype()
            made = elements_of(args, dtype, device, "TypedStorage")
            wrap_storage = UntypedStorage(_tensor=made)
        elif args:
            raise RuntimeError("No positional arguments should be given when using 'wrap_storage'")
        elif dtype is None:
            raise RuntimeError("Argument 'dtype' must be specified")
        elif not isinstance(dtype, _core.dtype):
            raise TypeError(f"Argument 'dtype' must be torch.dtype, not {type(dtype)}")
        elif device is not None:
            raise RuntimeError("Argument 'device' should not be specified when 'wrap_storage' is given")
        elif not isinstance(wrap_storage, UntypedStorage):
            raise TypeError(f"Argument 'wrap_storage' must be UntypedStorage, but got {type(wrap_storage)}")
        self._untyped_storage, self.dtype = wrap_storage, dtype

    device = property(lambda self: self._untyped_storage.device)
    is_cuda = property(lambda self: self._untyped_storage.is_cuda)
    _cdata = property(lambda self: self._untyped_storage._cdata)
    is_sparse, is_hpu, filename = False, False, None

    def untyped(self):
        """Returns the storage as bytes."""
        return self._untyped_storage

    def element_size(self):
        """Returns the bytes per element."""
        return self.dtype.itemsize

    def nbytes(self):
        """Returns the number of bytes."""
        return self._untyped_storage.nbytes()

    def size(self):
        """Returns the number of elements."""
        return self.nbytes() // self.element_size()

    __len__ = size

    def data_ptr(self):
        """Returns the address of the first element, or 0 if there is none."""
        return self._untyped_storage.data_ptr()

    def get_device(self):
        """Returns the number of the device."""
        return self._untyped_storage.get_device()

    def resizable(self):
        """Returns True."""
        return True

    def resize_(self, size):
        """Resizes the storage to a number of elements. 0 frees the memory."""
        self._untyped_storage.resize_(size * self.element_size())
        return self

    def is_shared(self):
        """Returns whether the memory can be shared with other processes. That of a GPU can."""
        return self._untyped_storage.is_shared()

    def share_memory_(self):
        """Moves the memory to where other processes can share it."""
        self._untyped_storage.share_memory_()
        return self

    def pickle_storage_type(self):
        """Returns the older name of the class, which files contain."""
        return f"{kind_of(self.dtype)}Storage"

    def type(self, dtype=None, non_blocking=False):
        """Returns the name of the class, or the elements in the dtype of a class or of its name."""
        if dtype is None:
            return f"torch.{'cuda.' if self.is_cuda else ''}{self.pickle_storage_type()}"
        name = (dtype if isinstance(dtype, str) else dtype.__name__).rpartition(".")[2]
        return self._to(getattr(_core, NAMES[name]))

    def _elements(self):
        return self._untyped_storage._as_tensor(self.dtype)

    def _to(self, dtype):
        if dtype == self.dtype:
            return self
        return _over(self._elements().to(dtype), dtype)

    def __getitem__(self, index):
        check_readable(self)
        if isinstance(index, slice):
            raise RuntimeError("slices are only supported in UntypedStorage.__getitem__")
        if not isinstance(index, numbers.Integral):
            raise RuntimeError(f"can't index a {type(self)} with {type(index)}")
        self._check(index)
        return self._elements()[index].item()

    def __setitem__(self, index, value):
        if isinstance(value, (TypedStorage, UntypedStorage)):
            raise RuntimeError(f"cannot set item with value type {type(value)}")
        if not isinstance(index, slice):
            self._check(index)
        self._elements()[index] = value

    def _check(self, index):
        if not -self.size() <= index < self.size():
            raise IndexError(f"index {index} out of range for storage of size {self.size()}")

    def __iter__(self):
        return iter(self.tolist())

    def tolist(self):
        """Returns the elements as a list."""
        check_readable(self)
        return self._elements().tolist()

    def fill_(self, value):
        """Sets all elements to a value."""
        self[:] = value
        return self

    def copy_(self, source, non_blocking=None):
        """Overwrites the elements with those of another storage, converted."""
        check_copied(source)
        self._elements().copy_(source._elements() if isinstance(source, TypedStorage) else source._as_tensor(self.dtype))
        return self

    def clone(self):
        """Returns a copy."""
        return TypedStorage(wrap_storage=self._untyped_storage.clone(), dtype=self.dtype)

    def to(self, *, device, non_blocking=False):
        """Returns a copy on a device, or the storage itself if it is already there."""
        moved = self._untyped_storage.to(device=device)
        return self if moved is self._untyped_storage else TypedStorage(wrap_storage=moved, dtype=self.dtype)

    def cpu(self):
        """Returns a copy on the simulated GPU, whose memory is the host's, or the storage itself if it is already there."""
        return self.to(device="cpu")

    def cuda(self, device=None, non_blocking=False):
        """Returns a copy on a GPU, or the storage itself if it is already there."""
        check_copied(self)
        return self.to(device="cuda" if device is None else device)

    def is_pinned(self, device=None):
        """Returns whether pinned memory was requested."""
        return self._untyped_storage.is_pinned()

    def pin_memory(self, device=None):
        """Returns a copy in pinned memory, or the storage itself if it is already there."""
        return self if self.is_pinned() else TypedStorage(wrap_storage=self._untyped_storage.pin_memory(), dtype=self.dtype)

    @classmethod
    def from_buffer(cls, *args, dtype=None, device=None, **kwargs):
        """Returns the elements of a buffer (`from_buffer(buffer, byte_order, count, offset, dtype=...)`)."""
        dtype = dtype or _core.get_default_dtype()
        return _over(from_buffer(*args, dtype=dtype, device=device, **kwargs), dtype)

    def __copy__(self):
        return self.clone()

    def __deepcopy__(self, memo):
        import copy
        return TypedStorage(wrap_storage=copy.deepcopy(self._untyped_storage, memo), dtype=self.dtype)

    def __sizeof__(self):
        return object.__sizeof__(self) + self.nbytes()

    def __reduce__(self):
        return _rebuild, (self._untyped_storage, self.dtype)

    def __eq__(self, other):
        return isinstance(other, TypedStorage) and self.dtype == other.dtype and self._untyped_storage == other._untyped_storage

    def __hash__(self):
        return hash(self._untyped_storage)

    def __repr__(self):
        start = "...\n" if self.device.type == "meta" else "".join(f" {value}\n" for value in self.tolist())
        return f"{start}[torch.storage.TypedStorage(dtype={self.dtype}, device={self.device}) of size {len(self)}]"

    def __getattr__(self, name):
        if name.startswith("__") or name == "_untyped_storage":
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(self._untyped_storage, name)


def _over(tensor, dtype):
    """Returns the storage of a tensor."""
    return TypedStorage(wrap_storage=UntypedStorage(_tensor=tensor), dtype=dtype)


def _rebuild(untyped, dtype):
    return TypedStorage(wrap_storage=untyped, dtype=dtype)


def _conversion(name, dtype):
    def convert(self):
        return self._to(dtype)
    convert.__name__, convert.__qualname__ = name, f"TypedStorage.{name}"
    convert.__doc__ = f"Returns the elements in {dtype}; itself where they have that dtype."
    return convert


for _name, _dtype in _CONVERSIONS.items():
    setattr(TypedStorage, _name, _conversion(_name, getattr(_core, _dtype)))


class _LegacyMeta(type):
    """The storages of one dtype on a GPU, or on the host's side, for `isinstance`."""

    def __instancecheck__(cls, instance):
        return type(instance) is cls or (
            isinstance(instance, TypedStorage) and cls.dtype is not None and instance.dtype == cls.dtype and instance.is_cuda is cls._on_gpu)


class _LegacyStorage(TypedStorage, metaclass=_LegacyMeta):
    """A class of storages of one dtype. Its constructor returns a `TypedStorage`."""

    dtype, _on_gpu = None, False

    def __new__(cls, *args, wrap_storage=None, **kwargs):
        if cls.dtype is None:
            raise RuntimeError("Only child classes of _LegacyStorage can be instantiated")
        kwargs.pop("_internal", None)
        for name in kwargs:
            if name in ("device", "dtype"):
                raise RuntimeError(f"{cls.__name__}.__init__ received an invalid combination of arguments: '{name}' cannot be specified")
            raise TypeError(f"{cls.__name__}.__init__() got an unexpected keyword argument '{name}'")
        if wrap_storage is None:
            return TypedStorage(*args, dtype=cls.dtype, device="cuda" if cls._on_gpu else None)
        if args:
            raise RuntimeError("No positional arguments should be given when using 'wrap_storage'")
        if not isinstance(wrap_storage, UntypedStorage):
            raise TypeError(f"Argument 'wrap_storage' must be UntypedStorage, but got {type(wrap_storage)}")
        if wrap_storage.is_cuda is not cls._on_gpu:
            raise RuntimeError(f"Device of 'wrap_storage' must be {'cuda' if cls._on_gpu else 'cpu'}, but got {wrap_storage.device.type}")
        return TypedStorage(wrap_storage=wrap_storage, dtype=cls.dtype)

    @classmethod
    def from_buffer(cls, *args, **kwargs):
        """Returns the elements of a buffer (`from_buffer(buffer, byte_order, count, offset)`)."""
        cls._check_host("from_buffer")
        return TypedStorage.from_buffer(*args, dtype=cls.dtype, **kwargs)

    @classmethod
    def _new_with_weak_ptr(cls, *args, **kwargs):
        cls._check_host("_new_with_weak_ptr")

    @classmethod
    def _new_shared_filename(cls, manager, obj, size):
        cls._check_host("_new_shared_filename")

    @classmethod
    def _check_host(cls, name):
        if cls._on_gpu:
            raise RuntimeError(f"{name}: Not available for CUDA storage")
        if name != "from_buffer":
            raise NotImplementedError(f"{cls.__name__}.{name} is left out: processes share memory by sending a tensor, or a storage")


_classes = {}


def classes(module, on_gpu):
    """Returns the classes of a module, one for each dtype, by name."""
    if on_gpu not in _classes:
        _classes[on_gpu] = {
            name: _LegacyMeta(name, (_LegacyStorage,), {
                "dtype": getattr(_core, dtype), "_on_gpu": on_gpu, "__module__": module, "__qualname__": name,
                "__doc__": f"Makes a storage of {dtype}."})
            for name, dtype in NAMES.items()}
    return _classes[on_gpu]


def all_classes():
    """Returns all storage classes."""
    return {UntypedStorage, TypedStorage, *(made for kinds in _classes.values() for made in kinds.values())}


def _storage(self):
    """Returns the storage of the tensor, with its dtype."""
    return TypedStorage(wrap_storage=UntypedStorage(_tensor=self), dtype=self.dtype)


def _storage_type(self):
    """Returns the storage class of the tensor's storage."""
    return classes(None, self.is_cuda)[f"{kind_of(self.dtype)}Storage"]


Tensor.storage = _storage
Tensor.storage_type = _storage_type
