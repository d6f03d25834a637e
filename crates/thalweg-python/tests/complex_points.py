"""The functions and points of `test_complex.py`, which the script that writes PyTorch's results also uses."""

import math

DTYPES = ("complex128", "complex64")

# Functions with defined values at infinities and on both sides of a branch cut.
EXACT = ("exp", "log", "log2", "log10", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh")
# Functions whose values are only compared where they are finite.
FINITE = ("expm1", "log1p", "sinc", "silu", "softsign", "sigmoid", "logaddexp")
FUNCTIONS = EXACT + FINITE


def points(dtype):
    """Returns complex numbers with zeros, small, medium and large numbers, infinities and NaN as parts."""
    large = 3e38 if dtype == "complex64" else 1.5e308
    parts = (0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 30.0, 1e-12, -1e10, large, math.inf, -math.inf, math.nan)
    return [complex(a, b) for a in parts for b in parts]


def called(torch, name, z):
    """Returns a function of complex numbers."""
    if name == "logaddexp":
        return torch.logaddexp(z, z.conj() * 0.5)
    if name in ("silu", "softsign"):
        return getattr(torch.nn.functional, name)(z)
    return getattr(torch, name)(z)
