"""Tensors of other libraries, in and out (DLPack)."""

from . import _core

_HOST, _CUDA = 1, 2


def _device(self):
    """Returns DLPack's kind and number of the device: what a simulated GPU hands out lies in the host's memory."""
    return (_CUDA, self.device.index) if self.is_cuda else (_HOST, 0)


def _dlpack(self, *, stream=None, max_version=None, dl_device=None, copy=None):
    """Returns a capsule over the tensor. A consumer's stream, unless it is −1, finds the work done: the host waits for it."""
    if self.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if dl_device is not None and tuple(dl_device) != _device(self):
        raise BufferError(f"the tensor is on DLPack's device {_device(self)}, not on {tuple(dl_device)}; move it first")
    if copy is False and not self.is_cuda:
        raise BufferError("the elements of a simulated GPU are handed out as a copy")
    if copy and self.is_cuda:
        self = self.clone()
    if self.is_cuda and stream != -1:
        _core._cuda.current_stream(self.device).synchronize()
    return _core._to_dlpack(self, max_version is not None and max_version[0] >= 1)


def from_dlpack(ext_tensor, *, device=None, copy=None):
    """Returns the tensor of another library: a copy, on the GPU that it lies on, or of host memory on the current device."""
    if copy is False:
        raise BufferError("from_dlpack(copy=False): the elements are copied into memory of the caching allocator")
    if not hasattr(ext_tensor, "__dlpack__"):
        return _core._from_dlpack(ext_tensor, device)
    kind, number = ext_tensor.__dlpack_device__()
    options = {"stream": 1} if kind == _CUDA else {}
    try:
        capsule = ext_tensor.__dlpack__(max_version=(1, 0), **options)
    except TypeError:
        capsule = ext_tensor.__dlpack__(**options)
    made = _core._from_dlpack(capsule, device if kind != _CUDA else None)
    return made.to(device) if device is not None else made


def to_dlpack(tensor):
    """Returns a capsule over a tensor, of the form without a version."""
    return tensor.__dlpack__()


_core.Tensor.__dlpack__ = _dlpack
_core.Tensor.__dlpack_device__ = _device
