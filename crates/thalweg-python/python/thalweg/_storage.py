"""Storages as objects (`torch.UntypedStorage`): the memory of tensors that may be views of each other.
`_typed_storage` has the storages whose elements have a dtype."""

import operator
import sys

from . import _core, _host_memory
from ._storages import has_memory

Tensor = _core.Tensor
_NO_DATA = "Cannot copy out of meta tensor; no data!"
_SHARING = ("share_memory_", "_share_cuda_", "_share_fd_cpu_", "_share_filename_cpu_")


def elements_of(args, dtype, device, name):
    """Returns a one-dimensional tensor from the arguments of a storage's constructor: nothing, a number of elements, or a
    sequence of them."""
    refusal = f"{name}() takes the number of elements, or a sequence of them"
    if len(args) > 1:
        raise RuntimeError(f"{refusal}\nToo many positional arguments")
    data = args[0] if args else 0
    if isinstance(data, Tensor):
        raise TypeError(f"{refusal}\nArgument type not recognized: {type(data)}")
    if not hasattr(data, "__getitem__"):
        try:
            return _core.empty(operator.index(data), dtype=dtype, device=device)
        except TypeError:
            raise TypeError(f"{refusal}\nArgument type not recognized: {type(data)}") from None
    return _core.tensor(data, dtype=dtype, device=device).flatten()


def check_readable(storage):
    """Refuses to read elements on the meta device, which has none."""
    if storage.device.type == "meta":
        raise NotImplementedError("Not available for 'meta' device type")


def check_copied(storage):
    """Refuses to copy elements of the meta device, which has none."""
    if storage.device.type == "meta":
        raise NotImplementedError(_NO_DATA)


def from_buffer(buffer, byte_order="native", count=-1, offset=0, *, dtype, device=None):
    """Returns the elements of a buffer, with the given byte order (`native`, `little`, `big`), as a one-dimensional tensor."""
    if byte_order not in ("native", "little", "big"):
        raise ValueError(f"invalid byte_order '{byte_order}' (expected 'big', 'little', or 'native')")
    data, size = bytearray(memoryview(buffer).cast("B")), dtype.itemsize
    if offset < 0 or offset >= len(data):
        raise ValueError(f"offset must be non-negative and no greater than buffer length ({len(data)}) minus 1, but got {offset}")
    if count < 0 and (len(data) - offset) % size:
        raise ValueError(f"buffer size ({len(data)}) must be a multiple of element size ({size})")
    count = (len(data) - offset) // size if count < 0 else count
    if offset + count * size > len(data):
        raise ValueError(f"buffer has only {len(data) - offset} elements after offset {offset}, but specified a size of {count}")
    data = data[offset:offset + count * size]
    if byte_order not in ("native", sys.byteorder):
        part = size // (2 if dtype.is_complex else 1)
        data = b"".join(data[start:start + part][::-1] for start in range(0, len(data), part))
    if dtype._name == "bool":
        data = bytes(byte != 0 for byte in data)
    return _core._from_bytes(bytes(data), [count], dtype, device)


def _rebuild_untyped(data, device):
    return UntypedStorage(_tensor=_core._from_bytes(data, [len(data)], _core.uint8, device))


class UntypedStorage:
    """The bytes of a storage. `resize_(0)` frees the memory while the tensors over it remain. Uses of their elements raise until
    it is resized."""

    def __init__(self, *args, device=None, _tensor=None):
        self._tensor = elements_of(args, _core.uint8, device, "UntypedStorage") if _tensor is None else _tensor.detach()

    device = property(lambda self: self._tensor.device)
    is_cuda = property(lambda self: self._tensor.is_cuda)
    is_sparse = False
    is_hpu = False
    _cdata = property(lambda self: self._tensor._storage_identity())

    def nbytes(self):
        """Returns the number of bytes."""
        return self._tensor._storage_bytes()

    size = __len__ = nbytes

    def element_size(self):
        """Returns 1: elements are bytes."""
        return 1

    def data_ptr(self):
        """Returns the address of the first byte, or 0 if there is none."""
        return self._bytes().data_ptr() if has_memory(self._tensor) else 0

    def share_memory_(self):
        """Moves the memory to where other processes can share it."""
        if self.device.type == "meta":
            raise RuntimeError("share_memory_: only available on CPU")
        _host_memory.share(self._tensor)
        return self

    def is_shared(self):
        """Returns whether the memory can be shared with other processes. That of a GPU can."""
        return self.is_cuda or _host_memory.region_of(self._tensor) is not None

    @property
    def filename(self):
        """The path of the file that the memory is of, or None."""
        return getattr(_host_memory.region_of(self._tensor), "path", None)

    @classmethod
    def from_file(cls, filename, shared=False, nbytes=0):
        """Returns the bytes of a file, as `torch.from_file` does."""
        return cls(_tensor=_host_memory.from_file(filename, shared, nbytes, dtype=_core.uint8))

    @classmethod
    def _new_shared(cls, size, *, device="cpu"):
        made = cls(size, device=device)
        return made if made.device.type == "meta" else made.fill_(0).share_memory_()

    def new_shared(self, size):
        """Returns another storage, in memory that other processes can share."""
        return self._new_shared(size, device=self.device)

    def resize_(self, size):
        """Resizes the storage to a number of bytes, and keeps its first bytes. 0 frees the memory."""
        self._tensor._resize_storage(size)
        return self

    def _bytes(self):
        return self._tensor._storage_as_bytes()

    def __getitem__(self, index):
        check_readable(self)
        part = self._bytes()[index]
        return UntypedStorage(_tensor=part.clone()) if isinstance(index, slice) else part.item()

    def __setitem__(self, index, value):
        self._bytes()[index] = value

    def __iter__(self):
        return iter(self.tolist())

    def tolist(self):
        """Returns the bytes as a list."""
        check_readable(self)
        return self._bytes().tolist()

    def fill_(self, value):
        """Sets all bytes to a value."""
        self._bytes().fill_(value)
        return self

    def copy_(self, source, non_blocking=None):
        """Overwrites the bytes with those of another storage."""
        check_copied(source)
        self._bytes().copy_(source._bytes())
        return self

    def clone(self):
        """Returns a copy."""
        return UntypedStorage(_tensor=self._bytes().clone())

    def to(self, *, device, non_blocking=False):
        """Returns a copy on a device, or the storage itself if it is already there."""
        check_copied(self)
        moved = self._bytes().to(device)
        return self if moved.device == self.device else UntypedStorage(_tensor=moved)

    def cpu(self):
        """Returns a copy on the simulated GPU, whose memory is the host's, or the storage itself if it is already there."""
        return self.to(device="cpu")

    def cuda(self, device=None, non_blocking=False):
        """Returns a copy on a GPU, or the storage itself if it is already there."""
        return self.to(device="cuda" if device is None else device)

    def untyped(self):
        """Returns the storage itself."""
        return self

    def is_pinned(self, device=None):
        """Returns whether pinned memory was requested."""
        return self._tensor.is_pinned()

    def pin_memory(self, device=None):
        """Returns a copy in pinned memory, or the storage itself if it is already there."""
        if self.device.type == "meta":
            raise TypeError(f"cannot pin '{self.type()}' only CPU memory can be pinned")
        return self if self.is_pinned() else UntypedStorage(_tensor=self._bytes().pin_memory())

    def type(self, dtype=None, non_blocking=False):
        """Returns the name of the class."""
        return f"torch.{'cuda' if self.is_cuda else 'storage'}.UntypedStorage"

    def get_device(self):
        """Returns the number of the device."""
        return self.device.index

    def new(self, *args):
        """Returns another storage on the device."""
        return UntypedStorage(*args, device=self.device)

    def resizable(self):
        """Returns True."""
        return True

    def byteswap(self, dtype):
        """Reverses the bytes of each element of a dtype. Complex numbers are reversed part by part."""
        part = dtype.itemsize // (2 if dtype.is_complex else 1)
        rows = self._bytes()[:self.nbytes() // part * part].view(-1, part)
        rows.copy_(rows.flip(1))

    @classmethod
    def from_buffer(cls, buffer, dtype, byte_order="native", count=-1, offset=0):
        """Returns the bytes of a buffer's elements."""
        return cls(_tensor=from_buffer(buffer, byte_order, count, offset, dtype=dtype))

    def _write_file(self, file, is_real_file, save_size, element_size):
        check_copied(self)
        raise NotImplementedError("UntypedStorage._write_file is left out: files are written by `save`")

    def __copy__(self):
        return self.clone()

    def __deepcopy__(self, memo):
        from ._storages import copied_bytes
        if id(self) not in memo:
            memo[id(self)] = UntypedStorage(_tensor=copied_bytes(self._tensor, memo))
        return memo[id(self)]

    def __sizeof__(self):
        return object.__sizeof__(self) + self.nbytes()

    def __reduce__(self):
        return _rebuild_untyped, (bytes(self._bytes()._bytes()), str(self.device))

    def _as_tensor(self, dtype):
        """Returns the elements as a tensor of a dtype over the storage."""
        data = self._bytes()
        return data[:data.numel() // dtype.itemsize * dtype.itemsize].view(dtype)

    def __eq__(self, other):
        return isinstance(other, UntypedStorage) and self._cdata == other._cdata

    def __hash__(self):
        return hash(self._cdata)

    def __repr__(self):
        start = "...\n" if self.device.type == "meta" else "".join(f" {byte}\n" for byte in self.tolist())
        return f"{start}[{self.type()}(device={self.device}) of size {len(self)}]"

    def __getattr__(self, name):
        if name in _SHARING:
            if self.device.type == "meta":
                return _refuse_to_share(name)
            raise NotImplementedError(f"{type(self).__name__}.{name} is left out: processes share memory by sending a tensor, or a storage")
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")


def _refuse_to_share(name):
    def refuse(*args, **kwargs):
        raise RuntimeError(f"{name}: only available on {'CUDA' if 'cuda' in name else 'CPU'}")
    return refuse


def _untyped_storage(self):
    """Returns the storage of the tensor, which its views share."""
    return UntypedStorage(_tensor=self)


def kind_of(dtype):
    """Returns the word that names of classes have for a dtype (`Float` of `FloatStorage`)."""
    return dtype._scalar_type


def _set_(self, source=None, storage_offset=0, size=None, stride=None):
    """Makes the tensor a view of a storage's or tensor's memory, with an offset, sizes and strides. Without a source it has no
    elements."""
    if self.requires_grad and _core.is_grad_enabled() and self.is_leaf:
        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
    if source is None:
        source = _core.empty(0, dtype=self.dtype, device=self.device)
    if source.device != self.device:
        raise RuntimeError(
            f'Attempted to set the storage of a tensor on device "{self.device}" to a storage on different device "{source.device}".  This '
            "is no longer allowed; the devices must match.")
    if isinstance(source, Tensor) and source.dtype != self.dtype:
        raise RuntimeError(f"Could not set tensor of type {kind_of(source.dtype)} to a tensor of type {kind_of(self.dtype)}")
    if isinstance(source, Tensor) and size is None:
        self.data = source.detach()
        return self
    storage = source.untyped_storage() if isinstance(source, Tensor) else untyped_of(source, self.dtype)
    if size is None:
        self.data = storage._as_tensor(self.dtype)
        return self
    size = (size,) if isinstance(size, int) else tuple(size)
    stride = _core.empty(size, device="meta").stride() if not stride else (stride,) if isinstance(stride, int) else tuple(stride)
    reach = storage_offset + sum((extent - 1) * step for extent, step in zip(size, stride)) + 1 if 0 not in size else 0
    if reach * self.element_size() > storage.nbytes():
        if size == self.shape:
            raise RuntimeError(
                f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {storage_offset}, and itemsize {self.element_size()} "
                f"requiring a storage size of {reach * self.element_size()} are out of bounds for storage of size {storage.nbytes()}")
        storage.resize_(reach * self.element_size())
    self.data = storage._as_tensor(self.dtype).as_strided(size, stride, storage_offset)
    return self


def untyped_of(storage, dtype):
    """Returns a storage as bytes. A storage whose elements have another dtype is refused."""
    own = getattr(storage, "dtype", dtype)
    if not isinstance(storage, UntypedStorage) and not hasattr(storage, "_untyped_storage"):
        raise TypeError(f"set_(): argument 'source' must be Storage or Tensor, not {type(storage).__name__}")
    if own != dtype:
        kinds = [kind_of(own) for own in (dtype, own)]
        raise RuntimeError(
            f"Expected a Storage of type {kinds[0]} or an UntypedStorage, but got type {kinds[1]} for argument 1 'storage'")
    return storage.untyped()


def tensor_over(storage, dtype):
    """Returns a tensor over a storage, in its dtype, or in the default dtype for bytes. Used where `tensor` and `Tensor` receive
    a storage."""
    dtype = dtype or getattr(storage, "dtype", None) or _core.get_default_dtype()
    return untyped_of(storage, dtype)._as_tensor(dtype)


Tensor.set_ = _set_
Tensor.untyped_storage = _untyped_storage
