"""Exchange of tensors with other libraries: DLPack and `__cuda_array_interface__`."""

from . import _core

_HOST, _CUDA = 1, 2
_inner = _core._cuda
_TYPES = {dtype._array: dtype for dtype in _core._dtypes() if dtype._array}


def _device(self):
    """Returns DLPack's kind and number of the device. The memory of a simulated GPU is the host's."""
    return (_CUDA, self.device.index) if self._is_on_gpu else (_HOST, 0)


def _stream_of(is_on_gpu, stream):
    """Returns the number of the consumer's stream, whose work has to wait, or None if no work has to wait."""
    if stream is not None and (isinstance(stream, bool) or not isinstance(stream, int)):
        raise TypeError(f"stream must be an int or None, not {type(stream).__name__}")
    if not is_on_gpu:
        if stream not in (None, -1):
            raise BufferError(f"stream={stream}: the elements lie in the host's memory, which has no streams; pass None")
        return None
    if stream == 0 or (stream is not None and stream < -1):
        raise ValueError(f"stream={stream} is not a stream: 0 is ambiguous, say 1 for the legacy default stream, 2 for the thread's own")
    return None if stream == -1 else 1 if stream is None else stream


def _dlpack(self, *, stream=None, max_version=None, dl_device=None, copy=None):
    """Returns a capsule over the tensor.

    `stream` is the consumer's stream: a number in CUDA's sense, 1 or None for the legacy default stream, 2 for the thread's own.
    Later work of that stream waits for the tensor's work, without blocking the host. −1 requests no ordering.
    """
    if self.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    waiting = _stream_of(self._is_on_gpu, stream)
    if dl_device is not None and tuple(dl_device) != _device(self):
        raise BufferError(f"the tensor is on DLPack's device {_device(self)}, not on {tuple(dl_device)}; move it first")
    if copy:
        self = self.clone()
    if waiting is not None:
        _inner._let_wait(self.device, waiting)
    return _core._to_dlpack(self, max_version is not None and max_version[0] >= 1)


def from_dlpack(ext_tensor, *, device=None, copy=None):
    """Returns the tensor of another library. GPU memory is used in place, in the order of the current stream, and host memory by the
    simulated GPU; another device gets a copy. `copy=True` always copies, `copy=False` never does."""
    if not hasattr(ext_tensor, "__dlpack__"):
        if copy is False:
            raise BufferError("from_dlpack(copy=False) of a capsule: it does not tell where its elements are; pass the object that has it")
        return _core._from_dlpack(ext_tensor, device)
    kind, number = ext_tensor.__dlpack_device__()
    if copy is False and kind != _CUDA and _core.device(device or _core.get_default_device()).type not in ("sim", "cpu"):
        raise BufferError("from_dlpack(copy=False): elements in the host's memory are copied to a GPU")
    options = {"stream": _inner._stream_number(f"cuda:{number}")} if kind == _CUDA else {}
    try:
        capsule = ext_tensor.__dlpack__(max_version=(1, 0), **options)
    except TypeError:
        capsule = ext_tensor.__dlpack__(**options)
    made = _core._from_dlpack(capsule, device if kind != _CUDA else None)
    if device is not None:
        made = made.to(device)
    return made.clone() if copy else made


def to_dlpack(tensor):
    """Returns a capsule over a tensor, in the form without a version."""
    return tensor.__dlpack__()


def _cuda_array_interface(self):
    """Returns the description with which other libraries use a GPU tensor in place, version 3. `stream` is the stream whose work they
    must wait for."""
    if not self._is_on_gpu:
        raise AttributeError(f"a tensor on {self.device} has no __cuda_array_interface__: its memory is not a GPU's")
    return _interface(self, _inner._stream_number(self.device))


def _interface(tensor, stream):
    if tensor.requires_grad:
        raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad. If gradients aren't required, use var.detach() to "
                           "get Variable that doesn't require grad.")
    code = tensor.dtype._array
    if code is None:
        raise TypeError(f"__cuda_array_interface__ has no type for {tensor.dtype}")
    strides = None if tensor.is_contiguous() else tuple(stride * tensor.itemsize for stride in tensor.stride())
    return {"shape": tuple(tensor.shape), "typestr": ("|" if tensor.itemsize == 1 else "<") + code, "strides": strides,
            "data": (tensor.data_ptr() if tensor.numel() else 0, False), "version": 3, "stream": stream}


def _parts(interface):
    """Returns the address, shape, strides in bytes, dtype and stream of an interface, and whether the memory is read-only."""
    if interface.get("mask") is not None:
        raise NotImplementedError("__cuda_array_interface__ with a mask is left out")
    order, code = interface["typestr"][0], interface["typestr"][1:]
    if order == ">" or code not in _TYPES:
        raise TypeError(f"__cuda_array_interface__: {interface['typestr']!r} has no dtype here")
    stream = interface.get("stream") if interface["version"] >= 3 else None
    if stream == 0:
        raise ValueError("__cuda_array_interface__: stream 0 is ambiguous")
    address, is_read_only = interface["data"]
    return address, interface["shape"], interface.get("strides"), _TYPES[code], stream, is_read_only


def from_cuda_array(array):
    """Returns a tensor over the memory of an object with `__cuda_array_interface__`. Work of the current stream waits for that of
    the object's stream. Read-only memory is copied."""
    address, shape, strides, dtype, stream, is_read_only = _parts(array.__cuda_array_interface__)
    device = _core.get_default_device()
    index = device.index if device.type == "cuda" else 0
    if stream is not None:
        _inner._wait_for(f"cuda:{index}", stream)
    made = _core._from_cuda_array(array, address, list(shape), None if strides is None else list(strides), dtype, index)
    return made.clone() if is_read_only else made


_core.Tensor.__dlpack__ = _dlpack
_core.Tensor.__dlpack_device__ = _device
_core.Tensor.__cuda_array_interface__ = property(_cuda_array_interface)
