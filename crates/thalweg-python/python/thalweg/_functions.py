"""Functions of `torch` that do more than one operator, and operators that take their tensors as separate arguments."""

import math
import sys

from . import _core
from ._warnings import warn as _warn
from ._dlpack import from_cuda_array
from ._host_memory import from_file, from_numpy, frombuffer, over_array
from ._results import Size

__all__ = [
    "as_tensor", "asarray", "atleast_1d", "atleast_2d", "atleast_3d", "block_diag", "broadcast_tensors", "cartesian_prod", "einsum",
    "finfo", "from_file", "from_numpy", "frombuffer", "iinfo", "is_floating_point", "is_complex", "is_tensor", "meshgrid",
    "numel", "set_default_device", "tensordot", "unique", "set_printoptions", "is_storage", "typename",
    "get_num_threads", "set_num_threads", "get_num_interop_threads", "set_num_interop_threads", "set_flush_denormal",
    "set_default_tensor_type", "get_float32_matmul_precision", "set_float32_matmul_precision",
    "use_deterministic_algorithms", "are_deterministic_algorithms_enabled", "is_deterministic_algorithms_warn_only_enabled",
    "set_deterministic_debug_mode", "get_deterministic_debug_mode", "broadcast_shapes", "can_cast", "promote_types", "result_type",
]


def is_tensor(obj):
    """Returns whether an object is a tensor."""
    return isinstance(obj, _core.Tensor)


def is_storage(obj):
    """Returns whether an object is a storage."""
    from ._storage import UntypedStorage
    from ._typed_storage import TypedStorage
    return isinstance(obj, (TypedStorage, UntypedStorage))


def typename(obj):
    """Returns the name of an object's type; for a tensor, with its dtype."""
    return obj.type() if isinstance(obj, _core.Tensor) else type(obj).__qualname__


def is_floating_point(input):
    """Returns whether a tensor's dtype is a floating-point one."""
    return input.is_floating_point()


def is_complex(input):
    """Returns whether a tensor's dtype is complex."""
    return input.dtype.is_complex


def numel(self):
    """Returns the number of elements."""
    return self.numel()


def set_default_device(device):
    """Sets the device for tensors that are created without a `device` argument."""
    _core._set_current_device(device)


# How tensors are printed: digits, maximum number of elements printed in full, elements at each edge otherwise, characters per
# line.
_PROFILES = {
    "default": dict(precision=4, threshold=1000, edgeitems=3, linewidth=80), "short": dict(precision=2, threshold=1000, edgeitems=2, linewidth=80),
    "full": dict(precision=4, threshold=math.inf, edgeitems=3, linewidth=80)}
_printed = dict(_PROFILES["default"])


def set_printoptions(precision=None, threshold=None, edgeitems=None, linewidth=None, profile=None, sci_mode=None):
    """Sets how tensors are printed, with PyTorch's options. Omitted options are kept, except for `sci_mode`, which then depends
    on the values."""
    if profile is not None and profile not in _PROFILES:
        raise ValueError(f"profile is one of {', '.join(_PROFILES)}, not {profile!r}")
    given = dict(precision=precision, threshold=threshold, edgeitems=edgeitems, linewidth=linewidth)
    options = {**_printed, **_PROFILES.get(profile, {}), **{name: value for name, value in given.items() if value is not None}}
    numbers = {name: min(value, sys.maxsize) for name, value in options.items()}
    _core._set_print_options(**numbers, sci_mode=sci_mode)
    _printed.update(options)


def get_num_threads():
    """Returns 1: the threads are those of the device."""
    return 1


def set_num_threads(num):
    """Does nothing: the threads are those of the device."""
    if not 0 < num < 2**31:
        raise RuntimeError("set_num_threads expects a positive integer")


def get_num_interop_threads():
    """Returns 1: the threads are those of the device."""
    return 1


def set_num_interop_threads(num):
    """Does nothing: the threads are those of the device."""
    if not 0 < num < 2**31:
        raise RuntimeError("Expected positive number of threads")


def set_flush_denormal(mode):
    """Returns False: subnormal numbers are kept."""
    return False


def set_default_tensor_type(t):
    """Makes the dtype of a tensor class, or of its name (`"torch.DoubleTensor"`), the default floating-point dtype."""
    from ._typed import NAMES
    _warn(
        "torch.set_default_tensor_type() is deprecated as of PyTorch 2.1, please use torch.set_default_dtype() and torch.set_default_device() "
        "as alternatives.")
    name = (t if isinstance(t, str) else t.__name__).rpartition(".")[2]
    if name not in NAMES:
        raise TypeError(f"invalid type object: {t!r} is not a class of tensors")
    _core.set_default_dtype(getattr(_core, NAMES[name]))


def get_float32_matmul_precision():
    """Returns how products of float32 are computed: `highest` is float32, `high` is TF32."""
    return _core._backends._float32_matmul_precision()


def set_float32_matmul_precision(precision):
    """Sets how products of float32 are computed: `highest` is float32, `high` and `medium` are TF32."""
    _core._backends._set_float32_matmul_precision(precision)


# The last value of `warn_only`: PyTorch keeps it even if determinism is not required.
_warns_only = False


def use_deterministic_algorithms(mode, *, warn_only=False):
    """Sets whether operators must be deterministic. Nearly all always are; convolutions and attention are on request.

    Memory that is allocated without being initialised is then filled, unless `utils.deterministic.fill_uninitialized_memory` is
    false.
    """
    if not isinstance(mode, bool):
        raise TypeError(f"_set_deterministic_algorithms(): argument 'mode' (position 1) must be bool, not {type(mode).__name__}")
    if not isinstance(warn_only, bool):
        raise TypeError(f"_set_deterministic_algorithms(): argument 'warn_only' must be bool, not {type(warn_only).__name__}")
    global _warns_only
    set_deterministic_debug_mode((1 if warn_only else 2) if mode else 0)
    _warns_only = warn_only


def are_deterministic_algorithms_enabled():
    """Returns whether operators must be deterministic."""
    return get_deterministic_debug_mode() != 0


def is_deterministic_algorithms_warn_only_enabled():
    """Returns whether a nondeterministic operator causes a warning instead of an error."""
    return _warns_only


def set_deterministic_debug_mode(debug_mode):
    """Sets how nondeterministic operators are treated: 0 or "default", 1 or "warn", 2 or "error"."""
    if not isinstance(debug_mode, (int, str)):
        raise TypeError(f"debug_mode must be str or int, but got {type(debug_mode).__name__}")
    modes = {"default": 0, "warn": 1, "error": 2}
    if isinstance(debug_mode, str):
        if debug_mode not in modes:
            raise RuntimeError(f"invalid value of debug_mode, expected one of `default`, `warn`, `error`, but got {debug_mode}")
        debug_mode = modes[debug_mode]
    if debug_mode not in modes.values():
        raise RuntimeError(f"invalid value of debug_mode, expected 0, 1, or 2, but got {debug_mode}")
    global _warns_only
    _core._backends._set_deterministic_debug_mode(debug_mode)
    _warns_only = debug_mode == 1


def get_deterministic_debug_mode():
    """Returns how nondeterministic operators are treated: 0 to allow them, 1 to warn, 2 to raise an error."""
    return _core._backends._deterministic_debug_mode()


def as_tensor(data, dtype=None, device=None):
    """Returns data as a tensor. A tensor that fits is returned itself, GPU memory and NumPy arrays are used in place, everything else is
    copied."""
    if not isinstance(data, _core.Tensor) and hasattr(data, "__cuda_array_interface__"):
        data = from_cuda_array(data)
    elif type(data).__module__ == "numpy" and type(data).__name__ == "ndarray":
        data = over_array(data, device)
    if isinstance(data, _core.Tensor):
        return data.to(device=device, dtype=dtype) if device is not None or dtype is not None else data
    return _core.tensor(data, dtype=dtype, device=device)


def asarray(obj, *, dtype=None, device=None, copy=None, requires_grad=False):
    """Returns an object as a tensor."""
    made = as_tensor(obj, dtype, device)
    if copy and made is obj:
        made = made.clone()
    elif copy is False and made is not obj:
        raise ValueError("asarray(copy=False): the elements have to be copied to a device")
    return made.requires_grad_() if requires_grad else made


def _one_by_one(name):
    """Returns an operator of a list of tensors that accepts the tensors as separate arguments or as a list."""
    operator = getattr(_core, name)

    def function(*tensors):
        if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
            tensors = tensors[0]
        elif len(tensors) == 1 and name.startswith("atleast"):
            return operator(tensors[0])
        return operator(list(tensors))
    function.__name__ = function.__qualname__ = name
    function.__doc__ = operator.__doc__
    return function


atleast_1d, atleast_2d, atleast_3d = (_one_by_one(f"atleast_{dims}d") for dims in (1, 2, 3))
block_diag, broadcast_tensors, cartesian_prod = (_one_by_one(name) for name in ("block_diag", "broadcast_tensors", "cartesian_prod"))


def meshgrid(*tensors, indexing=None):
    """Returns the coordinates of a grid, with one tensor per dimension. The first one varies along rows (`"ij"`) or columns
    (`"xy"`)."""
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        tensors = tensors[0]
    return _core.meshgrid(list(tensors), **({} if indexing is None else {"indexing": indexing}))


def einsum(*args):
    """Returns sums of products by an equation (`"ij,jk->ik"`), or by tensors that are each followed by a list of numbers for its
    dimensions."""
    if isinstance(args[0], str):
        equation, *operands = args
        if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
            operands = operands[0]
        return _core.einsum(equation, list(operands))
    operands, lists = list(args[:len(args) // 2 * 2:2]), list(args[1::2])
    equation = ",".join(_letters(dims) for dims in lists)
    if len(args) % 2:
        equation += f"->{_letters(args[-1])}"
    return _core.einsum(equation, operands)


def _letters(dims):
    """Returns the dimensions of an operand in the notation of `einsum`: a letter for each number from 0 to 51."""
    def letter(dim):
        if dim is Ellipsis:
            return "..."
        if not 0 <= dim < 52:
            raise ValueError(f"einsum(): subscripts are numbers from 0 to 51, not {dim}")
        return chr(ord("A") + dim) if dim < 26 else chr(ord("a") + dim - 26)
    return "".join(letter(dim) for dim in dims)


def tensordot(a, b, dims=2, out=None):
    """Returns sums of products over dimensions: the last `dims` of `a` and the first `dims` of `b`, or two lists of
    dimensions."""
    if isinstance(dims, _core.Tensor):
        dims = dims.tolist()
    lists = (range(-dims, 0), range(dims)) if isinstance(dims, int) else dims
    # A single number stands for a list of one.
    lists = [[part] if isinstance(part, int) else list(part) for part in lists]
    return _core.tensordot(a, b, *lists, out=out)


def unique(input, sorted=True, return_inverse=False, return_counts=False, dim=None):
    """Returns the distinct elements, or the distinct slices of a dimension. The host waits for their number."""
    if dim is not None:
        results = _core.unique_dim(input, dim, sorted, return_inverse, return_counts)
    else:
        results = _core._unique2(input, sorted, return_inverse, return_counts)
    wanted = [results[0]] + [results[1]] * return_inverse + [results[2]] * return_counts
    return wanted[0] if len(wanted) == 1 else tuple(wanted)


def broadcast_shapes(*shapes):
    """Returns the shape to which these shapes are broadcast. An integer is a shape of one dimension."""
    for shape in shapes:
        if not isinstance(shape, (int, list, tuple)):
            raise RuntimeError(f"Input shapes should be of type ints, a tuple of ints, or a list of ints, got {shape!r}")
    shapes = [(shape,) if isinstance(shape, int) else tuple(shape) for shape in shapes]
    result = [1] * max((len(shape) for shape in shapes), default=0)
    for shape in shapes:
        for place, size in enumerate(reversed(shape), 1):
            if size < 0:
                raise RuntimeError(f"Trying to create tensor with negative dimension ({size}): ({list(shape)})")
            if size != 1 and result[-place] not in (1, size):
                raise RuntimeError("Shape mismatch: objects cannot be broadcast to a single shape")
            result[-place] = result[-place] if size == 1 else size
    return Size(result)


def result_type(tensor, other):
    """Returns the dtype of the result of an operator on two tensors or numbers."""
    def without_elements(value):
        return _core.empty([1] * value.dim(), dtype=value.dtype, device="meta") if isinstance(value, _core.Tensor) else value
    one, other = without_elements(tensor), without_elements(other)
    if not isinstance(one, _core.Tensor) and not isinstance(other, _core.Tensor):
        one, other = _core.tensor(one), _core.tensor(other)
    return (one + other).dtype


def promote_types(type1, type2):
    """Returns the smallest dtype that can hold the values of both dtypes."""
    return result_type(_core.empty([1], dtype=type1, device="meta"), _core.empty([1], dtype=type2, device="meta"))


def can_cast(from_, to):
    """Returns whether PyTorch's rules allow a conversion from one dtype to another: complex numbers convert to complex numbers
    only, floats do not convert to integers, and only bools convert to bools."""
    def category(dtype):
        return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 0 if dtype._name == "bool" else 1
    return category(from_) <= category(to)


class finfo:
    """The limits of a floating-point dtype."""

    # Digits of the significand and the exponent above the largest one; for 8-bit floats the largest number and the smallest
    # exponent.
    _BITS = {
        "float64": (53, 1024), "float32": (24, 128), "float16": (11, 16), "bfloat16": (8, 128), "complex128": (53, 1024), "complex64": (24, 128),
        "complex32": (11, 16),
        "float8_e4m3fn": (4, 9, 448.0, -6), "float8_e5m2": (3, 16, 57344.0, -14), "float8_e4m3fnuz": (4, 8, 240.0, -7),
        "float8_e5m2fnuz": (3, 16, 57344.0, -15), "float8_e8m0fnu": (1, 128, 2.0**127, -127)}

    _REAL = {"complex128": "float64", "complex64": "float32", "complex32": "float16"}

    def __init__(self, type=None):
        dtype = _core.float32 if type is None else type
        if dtype._name not in self._BITS:
            raise TypeError(f"torch.finfo() requires a floating point input type. Use torch.iinfo to handle '{dtype}'")
        digits, exponent, *others = self._BITS[dtype._name]
        largest, smallest = others or ((2.0 - 2.0 ** (1 - digits)) * 2.0 ** (exponent - 1), 2 - exponent)
        self.bits = 8 * dtype.itemsize // (2 if dtype.is_complex else 1)
        self.dtype = self._REAL.get(dtype._name, dtype._name)
        self.eps = 2.0 ** (1 - digits)
        self.max = largest
        self.min = 2.0 ** smallest if digits == 1 else -largest
        self.tiny = self.smallest_normal = 2.0 ** smallest
        self.resolution = 10.0 ** -math.floor((digits - 1) * math.log10(2))

    def __repr__(self):
        return f"finfo(resolution={self.resolution}, min={self.min}, max={self.max}, eps={self.eps}, tiny={self.tiny}, dtype={self.dtype})"


class iinfo:
    """The limits of an integer dtype."""

    def __init__(self, type):
        if type.is_floating_point or type._name == "bool":
            raise TypeError(f"torch.iinfo() requires an integer input type. Use torch.finfo to handle '{type}'")
        self.bits = 8 * type.itemsize
        self.dtype = type._name
        self.max = 2 ** (self.bits - type.is_signed) - 1
        self.min = -2 ** (self.bits - 1) if type.is_signed else 0

    def __repr__(self):
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"
