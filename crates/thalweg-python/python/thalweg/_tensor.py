"""Methods of `Tensor` beyond the operator table, in Python: conversions named after dtypes, NumPy, copies and pickles."""

import builtins
import copy

from . import _core, _host_memory, _storages
from ._torch_functions import _disabled_torch_function_impl

Tensor = _core.Tensor

_CONVERSIONS = {
    "float": _core.float32, "double": _core.float64, "half": _core.float16, "bfloat16": _core.bfloat16,
    "long": _core.int64, "int": _core.int32, "short": _core.int16, "char": _core.int8, "byte": _core.uint8,
    "bool": getattr(_core, "bool"),
}


def _conversion(name, dtype):
    def convert(self, memory_format=None):
        return self.to(dtype) if memory_format is None else self.to(dtype, memory_format=memory_format)
    convert.__name__ = name
    convert.__qualname__ = f"Tensor.{name}"
    convert.__doc__ = f"Returns the tensor in {dtype}; itself where it has that dtype."
    return convert


def _numpy(self, *, force=False):
    """Returns the elements as a NumPy array over the same memory; a GPU's are copied. Blocks until they have been computed."""
    if self.requires_grad and not force and _core.is_grad_enabled():
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
    if self._is_on_gpu and not force:
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.")
    return _host_memory.as_array(self)


def _array(self, dtype=None, copy=None):
    array = self.detach().cpu().numpy() if self._is_on_gpu else self.numpy()
    return array if dtype is None else array.astype(dtype)


def _deepcopy(self, memo):
    if not self.is_leaf:
        raise RuntimeError("Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment.")
    if id(self) not in memo:
        made = memo[id(self)] = _of_class(type(self), _storages.copied(self, memo), self.requires_grad)
        if self.grad is not None:
            made.grad = copy.deepcopy(self.grad, memo)
        _storages.with_attributes(made, copy.deepcopy(_storages.attributes(self), memo))
    return memo[id(self)]


def _copy(self):
    """Returns another tensor over the same memory."""
    made = _of_class(type(self), self.detach(), self.requires_grad)
    return _storages.with_attributes(made, _storages.attributes(self))


def _of_class(kind, tensor, requires_grad):
    """Returns a tensor as an instance of a subclass."""
    if kind is not Tensor:
        tensor = kind._of(tensor) if hasattr(kind, "_of") else kind(tensor)
    return tensor.requires_grad_(requires_grad) if tensor.is_floating_point() or tensor.is_complex() else tensor


def _reduce(self, protocol):
    if self.device.type == "meta":
        return _rebuild_meta, (type(self), tuple(self.shape), tuple(self.stride()), self.dtype, self.requires_grad)
    return _rebuild, (type(self), builtins.bytes(self._bytes()), tuple(self.shape), self.dtype, str(self.device), self.requires_grad,
                      _storages.attributes(self))


def _rebuild(cls, elements, shape, dtype, device, requires_grad, attributes=None):
    tensor = _of_class(cls, _core._from_bytes(elements, list(shape), dtype, device), requires_grad)
    return _storages.with_attributes(tensor, attributes or {})


def _rebuild_meta(cls, shape, stride, dtype, requires_grad):
    return _of_class(cls, _core.empty_strided(list(shape), list(stride), dtype=dtype, device="meta"), requires_grad)


def _new_tensor(self, data, *, dtype=None, device=None, requires_grad=False, pin_memory=False):
    """Returns a tensor of numbers, by default with this tensor's dtype and device."""
    return _core.tensor(data, dtype=dtype or self.dtype, device=device or self.device, requires_grad=requires_grad)


def _record_stream(self, stream):
    """Records that a stream uses the tensor. Its memory is reused only after all work that the stream has when the tensor is
    dropped."""
    _core._cuda._record_stream(self, stream, False)


def _record_use(self, stream):
    """Records that the current work of a stream is the last there that uses the tensor, until the next call. The memory is reused
    after that work, and does not wait for later work of the stream, as it does after `record_stream`."""
    _core._cuda._record_stream(self, stream, True)


def _array_namespace(self, /, *, api_version=None):
    """Returns the namespace of the array API standard (`thalweg.array_api`)."""
    from .array_api._object import namespace
    return namespace(api_version)


_plain_repr = Tensor.__repr__


def _repr(self, *, tensor_contents=None):
    """Returns the tensor as text. That of a subclass begins with the name of the class. `tensor_contents` is shown in the place of the elements."""
    text, kind = _plain_repr(self) if tensor_contents is None else f"tensor({tensor_contents})", type(self)
    if kind is Tensor or kind.__torch_function__ is _disabled_torch_function_impl:
        return text
    name = kind.__name__
    return name + text.removeprefix("tensor").replace("\n" + " " * 7, "\n" + " " * (len(name) + 1))


def _dir(self):
    """Returns the names of attributes, without those that the tensor does not have on its device."""
    missing = () if self._is_on_gpu else ("__cuda_array_interface__",)
    return [name for name in object.__dir__(self) if name not in missing]


def _left_out(name, reason):
    def refuse(self):
        raise NotImplementedError(f"Tensor.{name} is left out: {reason}")
    refuse.__name__ = name
    refuse.__doc__ = f"Left out: {reason}."
    return refuse


for _name, _dtype in _CONVERSIONS.items():
    setattr(Tensor, _name, _conversion(_name, _dtype))

Tensor.numpy = _numpy
Tensor.__array__ = _array
Tensor.__dir__ = _dir
Tensor.__repr__ = _repr
Tensor.__array_namespace__ = _array_namespace
Tensor.__array_priority__ = 1000
Tensor.__deepcopy__ = _deepcopy
Tensor.__copy__ = _copy
Tensor.__reduce_ex__ = _reduce
Tensor.__module__ = "thalweg"
Tensor.new_tensor = _new_tensor
Tensor.record_stream = _record_stream
Tensor.record_use = _record_use
Tensor.type_as = lambda self, other: self.to(other)
Tensor.is_sparse = False
Tensor.is_quantized = False
Tensor.layout = _core.strided
Tensor.get_device = lambda self: self.device.index
# Libraries write gradients under this name as well.
Tensor._grad = property(lambda self: self.grad, lambda self, gradient: setattr(self, "grad", gradient))
for _name, _reason in {
}.items():
    setattr(Tensor, _name, _left_out(_name, _reason))
