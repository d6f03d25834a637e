"""Elementwise functions of the standard."""

from .. import _core
from .._core import Tensor
from ._complex import FUNCTIONS, choose
from ._dtypes import BOOL, COMPLEX, FLOATS, INTEGERS, common, with_scalar
from ._object import array, pair

# The standard's names, and PyTorch's where they differ.
_UNARY = {name: name for name in (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "isfinite", "isinf", "isnan", "log", "log1p",
    "log2", "log10", "logical_not", "reciprocal", "signbit", "sin", "sinh", "sqrt", "square", "tan", "tanh")}
_UNARY |= {"bitwise_invert": "bitwise_not", "negative": "neg"}
_BINARY = {name: name for name in (
    "atan2", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "copysign", "hypot",
    "logical_and", "logical_or", "logical_xor", "logaddexp", "maximum", "minimum", "nextafter")}
_BINARY |= {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "equal": "eq", "not_equal": "ne", "less": "lt",
            "less_equal": "le", "greater": "gt", "greater_equal": "ge"}

__all__ = [*_UNARY, *_BINARY, "ceil", "clip", "conj", "floor", "floor_divide", "imag", "positive", "pow", "real", "remainder", "round", "sign", "trunc"]


def _unary(name, full):
    operator = getattr(_core, full)

    of_complex = FUNCTIONS.get(name, operator)

    def function(x, /):
        return array(of_complex(x) if x.dtype in COMPLEX else operator(x))
    function.__name__ = function.__qualname__ = name
    function.__doc__ = operator.__doc__
    return function


def _binary(name, full):
    operator = getattr(_core, full)

    def function(x1, x2, /):
        return array(operator(*pair(x1, x2)))
    function.__name__ = function.__qualname__ = name
    function.__doc__ = operator.__doc__
    return function


globals().update({name: _unary(name, full) for name, full in _UNARY.items()})
globals().update({name: _binary(name, full) for name, full in _BINARY.items()})


def _rounding(name):
    operator = getattr(_core, name)

    def function(x, /):
        if x.dtype in INTEGERS:
            return array(_core.clone(x))
        if x.dtype in COMPLEX:
            return array(_core.complex(operator(_core.real(x)), operator(_core.imag(x))))
        return array(operator(x))
    function.__name__ = function.__qualname__ = name
    function.__doc__ = operator.__doc__
    return function


ceil, floor, round, trunc = (_rounding(name) for name in ("ceil", "floor", "round", "trunc"))


def positive(x, /):
    """Returns the elements unchanged."""
    return array(_core.clone(x))


def sign(x, /):
    """Returns the sign of each element: −1, 0 or 1; of complex numbers x / |x|."""
    if x.dtype in COMPLEX:
        return array(_core.where(_core.eq(x, 0), _core.zeros_like(x), _core.sgn(x)))
    return array(choose(_core.sign(x), (_core.isnan(x), x)) if x.dtype in FLOATS else _core.sign(x))


def conj(x, /):
    """Returns the complex conjugates."""
    return array(_core.conj(x) if x.dtype in COMPLEX else _core.clone(x))


def real(x, /):
    """Returns the real parts."""
    return array(_core.real(x) if x.dtype in COMPLEX else x)


def imag(x, /):
    """Returns the imaginary parts."""
    return array(_core.imag(x) if x.dtype in COMPLEX else _core.zeros_like(x))


def pow(x1, x2, /):
    """Returns the elements of `x1` to the power of those of `x2`."""
    return array(_core.pow(*pair(x1, x2)))


def floor_divide(x1, x2, /):
    """Returns quotients, rounded down."""
    x1, x2 = pair(x1, x2)
    if x1.dtype in FLOATS:
        is_infinite = _core.logical_or(_core.isinf(x1), _core.isinf(x2))
        return array(choose(_core.floor_divide(x1, x2), (is_infinite, _core.floor(_core.div(x1, x2)))))
    return array(_core.div(x1, x2, rounding_mode="floor"))


def remainder(x1, x2, /):
    """Returns remainders of division rounded down, with the sign of the divisor."""
    x1, x2 = pair(x1, x2)
    found = _core.remainder(x1, x2)
    return array(choose(found, (_core.eq(found, 0), _core.copysign(_core.zeros_like(found), x2))) if x1.dtype in FLOATS else found)


def clip(x, /, min=None, max=None):
    """Returns the elements, with those outside of the bounds replaced by the bounds."""
    def bound(value):
        if not isinstance(value, Tensor):
            return _core.tensor(value, dtype=with_scalar(x.dtype, value), device=x.device)
        return value.to(x.dtype)
    found = _core.clone(x)
    if min is not None:
        low = bound(min)
        found = _core.where(_core.lt(found, low), low, _core.where(_core.isnan(low), low, found)) if x.dtype in FLOATS else _core.maximum(found, low)
    if max is not None:
        high = bound(max)
        found = _core.where(_core.gt(found, high), high, _core.where(_core.isnan(high), high, found)) if x.dtype in FLOATS else _core.minimum(found, high)
    return array(found)
