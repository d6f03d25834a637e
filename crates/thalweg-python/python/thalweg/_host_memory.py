"""Memory that NumPy, other libraries and other processes use together with tensors of the simulated GPU, whose memory is the host's.

A tensor over such memory, or whose address was given away, has its operators done when they return.
"""

import ctypes
import mmap
import os
import warnings

from . import _core, _dlpack

Tensor = _core.Tensor
_NOT_WRITABLE = (
    "The given {} is not writable. Its elements are copied: writes to the tensor do not change it, and its changes are not seen.")


def is_host(device):
    """Returns whether the memory of a device is the host's."""
    return device.type in ("sim", "cpu")


# ---- NumPy ---------------------------------------------------------------------------------------------------------


class _Elements:
    """The elements of a tensor, as the array interface describes them. The array that is made of it keeps it, and so the tensor."""

    def __init__(self, tensor, address, code):
        size = tensor.element_size()
        self._tensor = tensor
        self.__array_interface__ = {
            "shape": tuple(tensor.shape), "strides": tuple(stride * size for stride in tensor.stride()),
            "typestr": ("|" if size == 1 else "<") + code, "data": (address, False), "version": 3}


def as_array(tensor):
    """Returns a NumPy array over the memory of a tensor, or of a copy if that may move."""
    import numpy
    try:
        dtype = numpy.dtype(tensor.dtype._name)
    except TypeError:
        raise TypeError(f"Got unsupported ScalarType {tensor.dtype}: NumPy has no such dtype") from None
    tensor = tensor.detach()
    address = tensor._host_address(True) if is_host(tensor.device) else None
    if address is None:
        return numpy.frombuffer(tensor._bytes(), dtype=dtype).reshape(tuple(tensor.shape))
    return numpy.asarray(_Elements(tensor, address, tensor.dtype._array))


def _refuse_array(array):
    """Refuses an array whose elements no tensor can be over."""
    if not array.dtype.isnative:
        raise ValueError("given numpy array has byte order different from the native byte order. Conversion between byte orders is currently not supported.")
    if any(stride < 0 for stride in array.strides):
        raise ValueError(
            "At least one stride in the given numpy array is negative, and tensors with negative strides are not currently supported. "
            "(You can probably work around this by making a copy of your array  with array.copy().) ")
    if any(stride % array.itemsize for stride in array.strides):
        raise ValueError("given numpy array strides not a multiple of the element byte size. Copy the numpy array to reallocate the memory.")


def from_numpy(ndarray):
    """Returns a NumPy array as a tensor on the current device: over the same memory, if the device's memory is the host's."""
    import numpy
    if not isinstance(ndarray, numpy.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(ndarray).__name__})")
    return over_array(ndarray, None)


def over_array(array, device):
    """Returns a NumPy array as a tensor, over the same memory if it can be written and the device's memory is the host's."""
    dtype = _dlpack._TYPES.get(array.dtype.str[1:]) if array.itemsize else None
    if dtype is None:
        return _core.tensor(array, device=device)
    _refuse_array(array)
    place = _core.device(device) if device is not None else _core.get_default_device()
    address = array.__array_interface__["data"][0]
    if not is_host(place) or array.size == 0 or address % dtype.itemsize:
        return _core.tensor(array, device=device)
    if not array.flags.writeable:
        warnings.warn(_NOT_WRITABLE.format("NumPy array"), UserWarning, stacklevel=3)
        return _core.tensor(array.copy(), device=device)
    strides = [stride // dtype.itemsize for stride in array.strides]
    return _core._over_process(array, address, (list(array.shape), strides), dtype, device)


def frombuffer(buffer, *, dtype, count=-1, offset=0, requires_grad=False):
    """Returns the bytes of a buffer as a tensor of one dimension on the current device: over the same memory, if the buffer can be
    written and the device's memory is the host's."""
    view = memoryview(buffer).cast("B")
    size, length = dtype.itemsize, len(view)
    if length == 0 or count == 0:
        raise ValueError(f"both buffer length ({length}) and count ({count}) must not be 0")
    if not 0 <= offset < length:
        raise ValueError(f"offset ({offset} bytes) must be non-negative and no greater than buffer length ({length} bytes) minus 1")
    if count < 0 and (length - offset) % size:
        raise ValueError(f"buffer length ({length - offset} bytes) after offset ({offset} bytes) must be a multiple of element size ({size})")
    count = (length - offset) // size if count < 0 else count
    if offset + count * size > length:
        raise ValueError(f"requested buffer length ({count} * {size} bytes) after offset ({offset} bytes) must not be greater than actual buffer length ({length} bytes)")
    if view.readonly:
        warnings.warn(_NOT_WRITABLE.format("buffer"), UserWarning, stacklevel=2)
    made = None if view.readonly or not is_host(_core.get_default_device()) else _over_buffer(buffer, offset, count, dtype)
    if made is None:
        made = _core._from_bytes(bytes(view[offset:offset + count * size]), [count], dtype, None)
    return made.requires_grad_() if requires_grad else made


def _over_buffer(buffer, offset, count, dtype):
    """Returns a tensor over a part of a buffer that can be written; None if it is not aligned."""
    held = (ctypes.c_char * (count * dtype.itemsize)).from_buffer(memoryview(buffer).cast("B"), offset)
    address = ctypes.addressof(held)
    return None if address % dtype.itemsize else _core._over_process(held, address, ([count], [1]), dtype, None)


class MappedFile:
    """The bytes of a file, which are the file's own, or a copy that is made when they are written."""

    def __init__(self, path, is_shared, size):
        flags = os.O_RDWR | os.O_CREAT if is_shared else os.O_RDONLY
        try:
            descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            mode = "read-write" if is_shared else "read-only"
            raise RuntimeError(f"unable to open file <{path}> in {mode} mode: {error.strerror} ({error.errno})") from None
        try:
            length = os.fstat(descriptor).st_size
            if length < size and not is_shared:
                raise RuntimeError(f"file <{path}> size <{length}> is smaller than the required mapping size <{size}>")
            if length < size:
                os.ftruncate(descriptor, size)
            self.path, self.size = os.fspath(path), size
            self._map = mmap.mmap(descriptor, size, access=mmap.ACCESS_WRITE if is_shared else mmap.ACCESS_COPY)
        finally:
            os.close(descriptor)
        self._held = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._held)


def from_file(filename, shared=None, size=0, *, dtype=None, layout=None, device=None, pin_memory=False, requires_grad=False):
    """Returns the elements of a file as a tensor over it. With `shared`, writes to the tensor change the file, which is made if it is
    missing."""
    dtype = dtype or _core.get_default_dtype()
    file = MappedFile(filename, bool(shared), size * dtype.itemsize)
    made = _core._over_process(file, file.address, ([size], [1]), dtype, device or "cpu")
    return made.requires_grad_(requires_grad)


# ---- Memory of several processes -----------------------------------------------------------------------------------


class Region:
    """Memory that processes share: a file without a name, which each of them has mapped. It exists as long as one of them has it."""

    def __init__(self, descriptor, size):
        self.descriptor, self.size = descriptor, size
        self._map = mmap.mmap(descriptor, size)
        self._held = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._held)

    def __del__(self, close=os.close):
        if "descriptor" in self.__dict__:
            close(self.descriptor)

    def tensor(self, dtype, shape, strides, offset):
        """Returns a tensor over a part of the memory."""
        count = self.size // dtype.itemsize
        row = _core._over_process(self, self.address, ([count], [1]), dtype, "cpu")
        return row.as_strided(list(shape), list(strides), offset)


def new_region(size):
    """Returns new memory that processes can share, of zeros."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("thalweg-shared", os.MFD_CLOEXEC)
    else:
        import tempfile
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return Region(descriptor, size)


def region_of(tensor):
    """Returns the shared memory, or the file, that a tensor is in; None if it is in other memory."""
    if tensor.device.type == "meta" or tensor._is_on_gpu:
        return None
    owner = tensor._memory_owner()
    return owner if isinstance(owner, (Region, MappedFile)) else None


def share(tensor):
    """Moves the storage of a tensor to memory that processes can share. That of a GPU, and of no bytes, stays."""
    if is_host(tensor.device) and tensor._storage_bytes() and region_of(tensor) is None:
        region = new_region(tensor._storage_bytes())
        tensor._move_storage(region, region.address, region.size)


def _share_memory_(self):
    """Moves the storage to memory that processes can share: a process that receives the tensor sees its writes, and it sees theirs."""
    share(self)
    return self


def _is_shared(self):
    """Returns whether the memory can be shared with other processes. That of a GPU can."""
    return self.is_cuda or region_of(self) is not None


Tensor.share_memory_, Tensor.is_shared = _share_memory_, _is_shared
