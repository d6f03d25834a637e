"""The array API standard 2024.12: `thalweg.array_api` is a namespace of the standard, which `Tensor.__array_namespace__` returns.

Its arrays are tensors: `Array` is a subclass of `Tensor` with the standard's operators. Dtypes are promoted regardless of
dimensions, slices may have negative steps, and `size` is a number. A function accepts any tensor and returns an `Array`, without
gradients. `uint32` and `uint64` are missing.
"""

import math as _math

from . import fft, linalg
from ._creation import (
    arange, asarray, empty, empty_like, eye, from_dlpack, full, full_like, linspace, meshgrid, ones, ones_like, tril, triu, zeros, zeros_like,
)
from ._dtypes import NAMED as _NAMED
from ._dtypes import __array_namespace_info__, can_cast, finfo, iinfo, isdtype, result_type
from ._elementwise import *  # noqa: F401,F403
from ._manipulation import (
    astype, broadcast_arrays, broadcast_to, concat, expand_dims, flip, moveaxis, permute_dims, repeat, reshape, roll, squeeze, stack, tile, unstack,
)
from ._object import Array
from ._searching import (
    argmax, argmin, argsort, count_nonzero, nonzero, searchsorted, sort, take, take_along_axis, unique_all, unique_counts, unique_inverse, unique_values,
    where,
)
from ._statistics import all, any, cumulative_prod, cumulative_sum, diff, max, mean, min, prod, std, sum, var
from .linalg import matmul, matrix_transpose, tensordot, vecdot

from ._object import _install

_install(Array)
__array_api_version__ = "2024.12"
e, inf, nan, pi = _math.e, _math.inf, _math.nan, _math.pi
newaxis = None
globals().update(_NAMED)
