"""Functions of complex numbers with the values at zeros, infinities and NaN that the standard requires (those of C99, annex G).

Each function is computed from the real and imaginary parts; `choose` inserts the special values.
"""

import math

from .. import _core

_PI = math.pi


def _parts(z):
    return _core.real(z).clone(), _core.imag(z).clone()


def _join(real, imaginary):
    return _core.complex(real, imaginary)


def choose(values, *cases):
    """Returns values, replaced where conditions hold. The first condition that holds counts."""
    for condition, value in reversed(cases):
        if not hasattr(value, "dtype"):
            value = _core.full_like(values, value)
        values = _core.where(condition, value, values)
    return values


def _kinds(x, y):
    """Returns a mask of infinite parts, and a mask of imaginary parts that are not finite."""
    return _core.isinf(x), _core.logical_not(_core.isfinite(y))


def _and(first, *rest):
    for one in rest:
        first = _core.logical_and(first, one)
    return first


def exp(z):
    x, y = _parts(z)
    infinite, open_ = _kinds(x, y)
    size = _core.exp(x)
    down = _and(infinite, _core.lt(x, 0), open_)
    up = _and(infinite, _core.gt(x, 0), open_)
    is_real = _core.eq(y, 0)
    real = choose(_core.mul(size, _core.cos(y)), (is_real, size), (down, 0.0), (up, math.inf))
    return _join(real, choose(_core.mul(size, _core.sin(y)), (is_real, y), (down, 0.0), (up, math.nan)))


def expm1(z):
    x, y = _parts(z)
    infinite, open_ = _kinds(x, y)
    less, half = _core.expm1(x), _core.sin(_core.mul(y, 0.5))
    down = _and(infinite, _core.lt(x, 0), open_)
    up = _and(infinite, _core.gt(x, 0), open_)
    is_real = _core.eq(y, 0)
    general = _core.where(infinite, _core.sub(_core.mul(_core.exp(x), _core.cos(y)), 1),
                          _core.sub(_core.mul(less, _core.cos(y)), _core.mul(_core.mul(half, half), 2)))
    real = choose(general, (is_real, _core.add(less, 0.0)), (down, -1.0), (up, math.inf))
    return _join(real, choose(_core.mul(_core.exp(x), _core.sin(y)), (is_real, y), (down, 0.0), (up, math.nan)))


def sinh(z):
    x, y = _parts(z)
    infinite, open_ = _kinds(x, y)
    is_real, is_imaginary = _core.eq(y, 0), _core.eq(x, 0)
    both = _and(infinite, open_)
    real = choose(_core.mul(_core.sinh(x), _core.cos(y)), (is_real, _core.sinh(x)), (_and(is_imaginary, open_), x), (both, x))
    return _join(real, choose(_core.mul(_core.cosh(x), _core.sin(y)), (is_real, y), (open_, math.nan)))


def cosh(z):
    x, y = _parts(z)
    infinite, open_ = _kinds(x, y)
    is_real, is_imaginary = _core.eq(y, 0), _core.eq(x, 0)
    real = choose(_core.mul(_core.cosh(x), _core.cos(y)), (is_real, _core.cosh(x)), (_and(infinite, open_), math.inf))
    signed = _core.mul(y, _core.sign(x))
    return _join(real, choose(_core.mul(_core.sinh(x), _core.sin(y)), (is_real, signed), (_and(is_imaginary, open_), 0.0), (open_, math.nan)))


def tanh(z):
    x, y = _parts(z)
    infinite, open_ = _kinds(x, y)
    found = _core.tanh(z)
    zero, one = _core.zeros_like(x), _core.ones_like(x)
    turned = _core.where(open_, zero, _core.copysign(zero, y))
    is_real, is_imaginary = _core.eq(y, 0), _core.eq(x, 0)
    real = choose(_core.real(found).clone(), (infinite, _core.copysign(one, x)), (is_real, _core.tanh(x)), (_and(is_imaginary, open_), x))
    imaginary = choose(_core.imag(found).clone(), (infinite, turned), (is_real, y), (open_, math.nan))
    return _join(real, imaginary)


def _logarithm(name):
    operator = getattr(_core, name)

    def function(z):
        x, y = _parts(z)
        found = operator(z)
        is_infinite = _core.logical_or(_core.isinf(x), _core.isinf(y))
        # Squares of large parts overflow; a 1 next to them is negligible.
        is_large = _core.gt(_core.maximum(_core.abs(x), _core.abs(y)), 1e8)
        real = choose(_core.real(found).clone(), (is_infinite, math.inf), (is_large, _core.log(_core.hypot(x, y))))
        return _join(real, _core.imag(found).clone())
    return function


log, log1p = _logarithm("log"), _logarithm("log1p")


def sqrt(z):
    x, y = _parts(z)
    found = _core.sqrt(z)
    right = _and(_core.isinf(x), _core.gt(x, 0))
    left = _and(_core.isinf(x), _core.lt(x, 0), _core.isnan(y))
    zero = _core.copysign(_core.zeros_like(y), y)
    along = _and(right, _core.isfinite(y))
    up = _core.isinf(y)
    # On the real axis, angles are not exact.
    is_real, size = _core.eq(y, 0), _core.sqrt(_core.abs(x))
    is_root = _and(is_real, _core.ge(x, 0))
    is_turned = _and(is_real, _core.lt(x, 0))
    real = choose(_core.real(found).clone(), (up, math.inf), (right, math.inf), (left, math.nan), (is_root, size), (is_turned, 0.0))
    imaginary = choose(_core.imag(found).clone(), (up, y), (along, zero), (right, math.nan), (left, math.inf), (is_root, y),
                       (is_turned, _core.copysign(size, y)))
    return _join(real, imaginary)


def _large(x, y):
    """Returns three arrays: a mask of the numbers that are so large that 1 is negligible next to their squares; the
    logarithms of the magnitudes of all numbers; and their angles."""
    limit = 1e8 if x.dtype == _core.float64 else 1e4
    greatest = _core.maximum(_core.abs(x), _core.abs(y))
    infinite = _core.logical_or(_core.isinf(x), _core.isinf(y))
    size = choose(_core.hypot(x, y), (infinite, math.inf))
    return _core.logical_or(_core.gt(greatest, limit), infinite), _core.add(_core.log(size), math.log(2)), _core.atan2(y, x)


def _times(a, b):
    """Returns the parts of a product of finite numbers."""
    (x, y), (u, v) = _parts(a), _parts(b)
    return _core.sub(_core.mul(x, u), _core.mul(y, v)), _core.add(_core.mul(x, v), _core.mul(y, u))


def _upper_acosh(x, y):
    """Returns the parts of acosh for numbers with an imaginary part of at least 0 (Kahan's formulas)."""
    large, size, angle = _large(x, y)
    less, more = sqrt(_join(_core.sub(x, 1), y)), sqrt(_join(_core.add(x, 1), y))
    real = _core.asinh(_times(_core.conj(less), more)[0])
    imaginary = _core.mul(_core.atan2(_core.imag(less).clone(), _core.real(more).clone()), 2)
    across = _and(_core.eq(x, 0), _core.isnan(y))
    return choose(real, (large, size)), choose(imaginary, (large, angle), (across, _PI / 2))


def acosh(z):
    x, y = _parts(z)
    real, imaginary = _upper_acosh(x, _core.abs(y))
    return _join(real, _core.copysign(imaginary, y))


def acos(z):
    x, y = _parts(z)
    real, imaginary = _upper_acosh(x, _core.abs(y))
    return _join(imaginary, _core.neg(_core.copysign(real, y)))


def asinh(z):
    (a, b) = _parts(z)
    x, y = _core.abs(a), _core.abs(b)
    large, size, angle = _large(x, y)
    less, more = sqrt(_join(_core.add(y, 1), _core.neg(x))), sqrt(_join(_core.add(_core.neg(y), 1), x))
    real = _core.asinh(_times(_core.conj(less), more)[1])
    imaginary = _core.atan2(y, _times(less, more)[0])
    real, imaginary = choose(real, (large, size)), choose(imaginary, (_core.eq(y, 0), 0.0), (large, angle))
    return _join(_core.copysign(real, a), _core.copysign(imaginary, b))


def atanh(z):
    (a, b) = _parts(z)
    x, y = _core.abs(a), _core.abs(b)
    large, _, _ = _large(x, y)
    rest = _core.sub(_core.ones_like(x), x)
    beside = _core.add(_core.mul(rest, rest), _core.mul(y, y))
    real = _core.mul(_core.log1p(_core.div(_core.mul(x, 4), beside)), 0.25)
    below = _core.sub(_core.mul(rest, _core.add(x, 1)), _core.mul(y, y))
    imaginary = _core.mul(_core.atan2(_core.mul(y, 2), below), 0.5)
    size = _core.hypot(x, y)
    far = _core.div(_core.div(x, size), size)
    far = choose(far, (_core.logical_or(_core.isinf(x), _core.isinf(y)), 0.0))
    real = choose(real, (large, far), (_and(_core.eq(x, 0), _core.isnan(y)), 0.0))
    imaginary = choose(imaginary, (_core.isnan(y), math.nan), (large, _PI / 2))
    return _join(_core.copysign(real, a), _core.copysign(imaginary, b))


def asin(z):
    # asin z = −i · asinh iz.
    x, y = _parts(z)
    turned, size = _parts(asinh(_join(_core.neg(y), x)))
    return _join(size, _core.neg(turned))


def atan(z):
    # atan z = −i · atanh iz.
    x, y = _parts(z)
    turned, size = _parts(atanh(_join(_core.neg(y), x)))
    return _join(size, _core.neg(turned))


FUNCTIONS = {function.__name__: function for function in (exp, expm1, sinh, cosh, tanh, sqrt, acosh, acos, asin, asinh, atan, atanh)} | {"log": log, "log1p": log1p}
