"""Dtypes of the standard: promotion, kinds, limits, and the namespace's description of itself."""

from types import SimpleNamespace

from .. import _core, _functions
from .._core import Tensor, complex64, complex128, float32, float64, int64

# float16, bfloat16 and the like are floats that the standard does not name.
NAMED = {dtype._name: dtype for dtype in _core._dtypes() if dtype._is_computed}
BOOL = bool = NAMED["bool"]
FLOATS = tuple(dtype for dtype in NAMED.values() if dtype.is_floating_point)
COMPLEX = tuple(dtype for dtype in NAMED.values() if dtype.is_complex)
INTEGERS = tuple(dtype for dtype in NAMED.values() if dtype not in (BOOL, *FLOATS, *COMPLEX))
SIGNED = tuple(dtype for dtype in INTEGERS if dtype.is_signed)
UNSIGNED = tuple(dtype for dtype in INTEGERS if not dtype.is_signed)
KINDS = {"bool": (bool,), "signed integer": SIGNED, "unsigned integer": UNSIGNED, "integral": INTEGERS, "real floating": FLOATS,
         "complex floating": COMPLEX, "numeric": INTEGERS + FLOATS + COMPLEX}


def _rank(dtype):
    """Returns the rank of a dtype's kind: bools, integers, real numbers, complex numbers."""
    return 0 if dtype == BOOL else 1 if dtype in INTEGERS else 3 if dtype in COMPLEX else 2


def common(first, second):
    """Returns the dtype to which two dtypes are promoted."""
    if first == second:
        return first
    pair = (first, second)
    if all(one in SIGNED for one in pair) or all(one in UNSIGNED for one in pair):
        return max(pair, key=lambda one: one.itemsize)
    if all(one in INTEGERS for one in pair):
        signed, unsigned = pair if first in SIGNED else pair[::-1]
        return next(one for one in SIGNED if one.itemsize >= signed.itemsize and one.itemsize > unsigned.itemsize)
    if all(one in FLOATS + COMPLEX for one in pair):
        wide = float64 in pair or complex128 in pair
        narrow, double = (complex64, complex128) if any(one in COMPLEX for one in pair) else FLOATS
        return double if wide else narrow
    # Of different kinds: the standard leaves the result open.
    ranks = [_rank(one) for one in pair]
    return pair[ranks.index(max(ranks))]


def with_scalar(dtype, scalar):
    """Returns the dtype of a Python number in an operation with an array of a dtype."""
    if isinstance(scalar, complex) and not isinstance(scalar, (int, float)):
        return {float32: complex64, float64: complex128}.get(dtype, dtype if dtype in COMPLEX else complex64)
    if type(scalar) is float or isinstance(scalar, float):
        return dtype if dtype.is_floating_point or dtype in COMPLEX else float32
    if scalar is True or scalar is False:
        return dtype
    if isinstance(scalar, int):
        if dtype == BOOL:
            return int64
        return dtype
    raise TypeError(f"expected an array or a number, got {type(scalar).__name__}")


def result_type(*arrays_and_dtypes):
    """Returns the dtype to which arrays, dtypes and numbers are promoted."""
    dtypes, scalars = [], []
    for one in arrays_and_dtypes:
        if isinstance(one, Tensor):
            dtypes.append(one.dtype)
        elif isinstance(one, _core.dtype):
            dtypes.append(one)
        else:
            scalars.append(one)
    if not dtypes:
        raise ValueError("result_type expects at least one array or dtype")
    found = dtypes[0]
    for one in dtypes[1:]:
        found = common(found, one)
    for one in scalars:
        found = with_scalar(found, one)
    return found


def can_cast(from_, to, /):
    """Returns whether an array or dtype is promoted to a dtype without loss of kind."""
    source = from_.dtype if isinstance(from_, Tensor) else from_
    if (source == bool) != (to == bool):
        return source == bool
    if source in COMPLEX and to not in COMPLEX or source in FLOATS and to in INTEGERS:
        return False
    return common(source, to) == to


def isdtype(dtype, kind):
    """Returns whether a dtype is of a kind, or of one of several kinds."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    if isinstance(kind, str):
        if kind not in KINDS:
            raise ValueError(f"isdtype: there is no kind {kind!r}; there are {', '.join(KINDS)}")
        return dtype in KINDS[kind]
    return dtype == kind


def _real(type):
    dtype = type.dtype if isinstance(type, Tensor) else type
    return {complex64: float32, complex128: float64}.get(dtype, dtype)


def finfo(type, /):
    """Returns the limits of a floating-point dtype; for a complex dtype, those of its parts."""
    dtype = _real(type)
    found = _functions.finfo(dtype)
    return SimpleNamespace(
        bits=found.bits, eps=found.eps, max=found.max, min=found.min, smallest_normal=found.smallest_normal, dtype=dtype)


def iinfo(type, /):
    """Returns the limits of an integer dtype."""
    dtype = _real(type)
    found = _functions.iinfo(dtype)
    return SimpleNamespace(bits=found.bits, max=found.max, min=found.min, dtype=dtype)


class _Namespace:
    """The namespace's description of itself."""

    def capabilities(self):
        """Returns the capabilities of the namespace."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self):
        """Returns the default device of arrays."""
        return _core.tensor(0).device

    def devices(self):
        """Returns the devices."""
        return [self.default_device()]

    def default_dtypes(self, *, device=None):
        """Returns the default dtypes."""
        return {"real floating": float32, "complex floating": complex64, "integral": int64, "indexing": int64}

    def dtypes(self, *, device=None, kind=None):
        """Returns dtypes by name, of one kind or of several."""
        return {name: dtype for name, dtype in NAMED.items() if kind is None or isdtype(dtype, kind)}


def __array_namespace_info__():
    """Returns the namespace's description of itself."""
    return _Namespace()
