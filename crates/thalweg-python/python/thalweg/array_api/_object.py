"""`Array`: a tensor with the operators of the standard."""

import builtins
import math

from .. import _core
from .._core import Tensor
from .._torch_functions import _disabled_torch_function_impl
from ._dtypes import common, with_scalar


class Array(Tensor):
    """A tensor with the operators of the array API standard."""

    __torch_function__ = _disabled_torch_function_impl

    def __new__(cls, data):
        return super().__new__(cls, data)

    def __init__(self, data):
        pass

    @classmethod
    def _of(cls, tensor):
        return cls(tensor)

    @property
    def size(self):
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def T(self):
        """The transposed matrix."""
        if self.ndim != 2:
            raise ValueError(f"T: expected an array of 2 dimensions, got {self.ndim}; say mT for stacks of matrices")
        return array(_core.transpose(self, 0, 1))

    @property
    def mT(self):
        """The stack of matrices, each transposed."""
        if self.ndim < 2:
            raise ValueError(f"mT: expected an array of at least 2 dimensions, got {self.ndim}")
        return array(_core.transpose(self, -2, -1))

    def to_device(self, device, /, *, stream=None):
        """Returns the array on a device."""
        if stream is not None:
            raise ValueError("to_device(stream=...): the current stream is used; say `with thalweg.cuda.stream(...)`")
        return array(self.to(device))

    def __getitem__(self, key):
        if _is_mask(key):
            _check_mask(key, self)
            shape = [1 if key.ndim == 0 and key else 0, *self.shape[key.ndim:]]
            if key.ndim == 0 and shape[0]:
                return array(_core.clone(_core.unsqueeze(self, 0)))
            if 0 in (shape[0], *key.shape) and _fits(key, self):
                return array(_core.empty([0, *shape[1:]], dtype=self.dtype, device=self.device))
        source, key = _forward(self, key)
        return array(Tensor.__getitem__(source, key))

    def __setitem__(self, key, value):
        if isinstance(value, Tensor):
            value = value.to(self.dtype)
        if _is_mask(key) and key.ndim == 0:
            if key:
                self.copy_(value if isinstance(value, Tensor) else _core.full_like(self, value))
            return
        source, forward = _forward(self, key)
        if source is self:
            Tensor.__setitem__(self, forward, value)
            return
        # The flipped array is a copy, so it is written back.
        Tensor.__setitem__(source, forward, value)
        self.copy_(_core.flip(source, _backward(self, key)[1]))

    def __eq__(self, other):
        return _binary("eq", self, other)

    def __ne__(self, other):
        return _binary("ne", self, other)

    __hash__ = Tensor.__hash__

    def __invert__(self):
        return array(_core.bitwise_not(self))

    def __neg__(self):
        return array(_core.neg(self))

    def __pos__(self):
        return array(_core.clone(self))

    def __abs__(self):
        return array(_core.abs(self))


def namespace(api_version=None):
    """Returns the namespace of the standard. Raises for a version that it does not implement."""
    from .. import array_api
    if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
        raise ValueError(f"there is no namespace of the array API standard {api_version}; there is {array_api.__array_api_version__}")
    return array_api


def array(value):
    """Returns a tensor as an array, and several tensors as several arrays."""
    if isinstance(value, Array):
        return value
    if isinstance(value, Tensor):
        return Array(value)
    return tuple(array(part) for part in value)


def pair(x1, x2):
    """Returns two operands in their common dtype. One of them may be a number."""
    if isinstance(x1, Tensor) and isinstance(x2, Tensor):
        dtype = common(x1.dtype, x2.dtype)
        return x1.to(dtype), x2.to(dtype)
    if isinstance(x1, Tensor):
        dtype = with_scalar(x1.dtype, x2)
        return x1.to(dtype), _core.tensor(x2, dtype=dtype, device=x1.device)
    if not isinstance(x2, Tensor):
        raise TypeError(f"one operand has to be an array, got {type(x1).__name__} and {type(x2).__name__}")
    return pair(x2, x1)[::-1]


def _binary(name, x1, x2):
    return array(getattr(_core, name)(*pair(x1, x2)))


def _parts(x, key):
    """Returns the parts of a subscript, each with its first dimension."""
    parts = key if isinstance(key, tuple) else (key,)

    def dimensions(part):
        if part is None or part is Ellipsis or isinstance(part, builtins.bool):
            return 0
        return part.ndim if isinstance(part, Tensor) and part.dtype == getattr(_core, "bool") else 1

    rest = x.ndim - builtins.sum(dimensions(part) for part in parts)
    place, found = 0, []
    for part in parts:
        found.append((part, place))
        place += rest if part is Ellipsis else dimensions(part)
    return found


def _backward(x, key):
    """Returns the subscript with forward slices, and the dimensions to be flipped for it."""
    parts, flipped = [], []
    for part, place in _parts(x, key):
        if isinstance(part, slice) and part.step is not None and part.step < 0:
            extent = x.shape[place]
            start, stop, step = part.indices(extent)
            flipped.append(place)
            part = slice(extent - 1 - start, extent - 1 - stop, -step)
            if part.stop <= part.start:
                part = slice(0, 0)
        parts.append(part)
    return tuple(parts), flipped


def _forward(x, key):
    """Returns a tensor and a subscript of it without slices of negative step."""
    if not _has_backward(key):
        return x, _clamped(x, key)
    key, flipped = _backward(x, key)
    return _core.flip(x, flipped), key


def _clamped(x, key):
    """Returns a subscript whose slices begin and end within the array."""
    def clamp(part, place):
        if not isinstance(part, slice):
            return part
        start, stop, step = part.indices(x.shape[place])
        return slice(start, builtins.max(start, stop), step)
    if not builtins.any(isinstance(part, slice) for part in (key if isinstance(key, tuple) else (key,))):
        return key
    return tuple(clamp(part, place) for part, place in _parts(x, key))


def _is_mask(key):
    return isinstance(key, Tensor) and key.dtype == getattr(_core, "bool")


def _check_mask(mask, x):
    for place, (extent, of) in enumerate(zip(mask.shape, x.shape)):
        if extent not in (of, 0):
            raise IndexError(f"a mask of shape {tuple(mask.shape)} does not fit an array of shape {tuple(x.shape)}: extents of dimension {place} differ")


def _fits(mask, x):
    """Returns whether a mask's extents equal those of the array, or are 0 for no elements."""
    fits = mask.ndim <= x.ndim and builtins.all(extent in (of, 0) for extent, of in zip(mask.shape, x.shape))
    return fits and (mask.ndim == 0 or 0 in mask.shape)


def _has_backward(key):
    parts = key if isinstance(key, tuple) else (key,)
    return builtins.any(isinstance(part, slice) and part.step is not None and part.step < 0 for part in parts)


def _install(cls):
    """Adds the operators to the class, implemented by the functions of the namespace."""
    from . import _elementwise, linalg

    def operator(function):
        return lambda self, other: function(self, other) if _is_operand(other) else NotImplemented

    def reflected(function):
        return lambda self, other: function(other, self) if _is_operand(other) else NotImplemented

    def in_place(function):
        def apply(self, other):
            if not _is_operand(other):
                return NotImplemented
            return self.copy_(function(self, other))
        return apply

    names = {"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide", "mod": "remainder", "pow": "pow",
             "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift"}
    functions = {name: getattr(_elementwise, full) for name, full in names.items()} | {"matmul": linalg.matmul}
    for name, function in functions.items():
        setattr(cls, f"__{name}__", operator(function))
        setattr(cls, f"__r{name}__", reflected(function))
        setattr(cls, f"__i{name}__", in_place(function))
    for name, full in {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal"}.items():
        setattr(cls, f"__{name}__", operator(getattr(_elementwise, full)))


def _is_operand(value):
    return isinstance(value, (Tensor, builtins.bool, int, float, complex))
