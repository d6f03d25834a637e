"""Assertions that tensors are close (`torch.testing.assert_close`)."""

import cmath
import collections.abc
import math
import sys

from .. import _core
from .._functions import as_tensor, promote_types

_TOLERANCES = {
    "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5), "complex128": (1e-7, 1e-7)}
# The tolerances of the former `assert_allclose`.
_FORMER_TOLERANCES = {"float16": (1e-3, 1e-3), "float32": (1e-4, 1e-5), "float64": (1e-5, 1e-8)}


def default_tolerances(*inputs, dtype_precisions=None):
    """Returns the relative and the absolute tolerance for dtypes or tensors: those of the least precise dtype."""
    known = _TOLERANCES if dtype_precisions is None else {getattr(dtype, "_name", dtype): pair for dtype, pair in dtype_precisions.items()}
    for value in inputs:
        if not isinstance(value, (_core.Tensor, _core.dtype)):
            raise TypeError(f"Expected a torch.Tensor or a torch.dtype, but got {type(value)} instead.")
    dtypes = [value.dtype if isinstance(value, _core.Tensor) else value for value in inputs]
    found = [known.get(dtype._name, (0.0, 0.0)) for dtype in dtypes]
    return max(rtol for rtol, _ in found), max(atol for _, atol in found)


class _Options:
    def __init__(self, rtol, atol, equal_nan, check_device, check_dtype, check_layout, check_stride, allow_subclasses, msg):
        if (rtol is None) != (atol is None):
            raise ValueError(f"Both 'rtol' and 'atol' must be either specified or omitted, but got no {'rtol' if rtol is None else 'atol'}.")
        self.rtol, self.atol, self.equal_nan, self.allow_subclasses, self.msg = rtol, atol, equal_nan, allow_subclasses, msg
        self.check_device, self.check_dtype, self.check_layout, self.check_stride = check_device, check_dtype, check_layout, check_stride

    def tolerances(self, *inputs):
        """Returns the given tolerances, or those of the inputs."""
        return (self.rtol, self.atol) if self.rtol is not None else default_tolerances(*inputs)

    def fail(self, kind, message, path):
        """Raises an `AssertionError` that names the position in nested containers."""
        if path:
            message += f"\n\nThe failure occurred for item {''.join(f'[{step!r}]' for step in path)}"
        if self.msg is not None:
            message = self.msg(message) if callable(self.msg) else self.msg
        raise kind(message)


def assert_close(actual, expected, *, allow_subclasses=True, rtol=None, atol=None, equal_nan=False, check_device=True, check_dtype=True,
                 check_layout=True, check_stride=False, msg=None):
    """Raises an `AssertionError` unless tensors, numbers, or nested lists and dictionaries of them are close.

    Close means |actual − expected| ≤ atol + rtol · |expected|. The default tolerances depend on the dtype.
    """
    options = _Options(rtol, atol, equal_nan, check_device, check_dtype, check_layout, check_stride, allow_subclasses, msg)
    # The types of all items are compared before any values.
    for compare, one, other, path in list(_pairs(actual, expected, options, ())):
        compare(one, other, options, path)


def _pairs(actual, expected, options, path):
    """Yields the items of nested containers, with the function that compares them."""
    if all(isinstance(value, collections.abc.Sequence) and not isinstance(value, str) for value in (actual, expected)):
        if len(actual) != len(expected):
            options.fail(AssertionError, f"The length of the sequences mismatch: {len(actual)} != {len(expected)}", path)
        for number, (one, other) in enumerate(zip(actual, expected)):
            yield from _pairs(one, other, options, (*path, number))
    elif all(isinstance(value, collections.abc.Mapping) for value in (actual, expected)):
        if set(actual) != set(expected):
            options.fail(AssertionError, "The keys of the mappings do not match:\n"
                         f"Missing keys in the actual mapping: {sorted(set(expected) - set(actual), key=repr)}\n"
                         f"Additional keys in the actual mapping: {sorted(set(actual) - set(expected), key=repr)}", path)
        for key in expected:
            yield from _pairs(actual[key], expected[key], options, (*path, key))
    else:
        yield (*_pair(actual, expected, options, path), path)


def _plain(value):
    """Returns a NumPy number as a Python number, and any other value unchanged."""
    numpy = sys.modules.get("numpy")
    return value.item() if numpy is not None and isinstance(value, (numpy.number, numpy.bool_)) else value


def _pair(actual, expected, options, path):
    """Returns the function that compares two items, and both items in the form that it takes."""
    if actual is None or expected is None:
        return _compare_none, actual, expected
    numbers = _plain(actual), _plain(expected)
    if all(isinstance(value, bool) for value in numbers):
        return _compare_truths, *numbers
    if all(isinstance(value, (int, float, complex)) and not isinstance(value, bool) for value in numbers):
        return _compare_numbers, *numbers
    is_related = isinstance(actual, type(expected)) or isinstance(expected, type(actual))
    if is_related and (options.allow_subclasses or type(actual) is type(expected)):
        try:
            return _compare_tensors, *(value.detach() if isinstance(value, _core.Tensor) else as_tensor(value) for value in (actual, expected))
        except (TypeError, ValueError, RuntimeError):
            pass  # They cannot be converted to tensors.
    return options.fail(TypeError, f"No comparison pair was able to handle inputs of type {type(actual)} and {type(expected)}.", path)


def _compare_none(actual, expected, options, path):
    if actual is not expected:
        options.fail(AssertionError, f"None mismatch: {actual} is not {expected}", path)


def _compare_truths(actual, expected, options, path):
    if actual is not expected:
        options.fail(AssertionError, f"Booleans mismatch: {actual} is not {expected}", path)


def _compare_numbers(actual, expected, options, path):
    if options.check_dtype and type(actual) is not type(expected):
        options.fail(AssertionError, f"The (d)types do not match: {type(actual)} != {type(expected)}.", path)
    is_inexact = any(isinstance(value, (float, complex)) for value in (actual, expected))
    rtol, atol = options.tolerances(_core.float64 if is_inexact else _core.int64)
    if actual == expected or (options.equal_nan and cmath.isnan(actual) and cmath.isnan(expected)):
        return
    difference = abs(actual - expected)
    if not cmath.isfinite(difference) or difference > atol + rtol * abs(expected):
        options.fail(AssertionError, _scalars(actual, expected, rtol, atol), path)


def _scalars(actual, expected, rtol, atol):
    """Returns the message for two numbers that are not close."""
    difference = abs(actual - expected)
    found = (("Absolute", difference, atol), ("Relative", difference / abs(expected) if expected else math.inf, rtol))
    return "\n".join([_head("Scalars", rtol, atol), "", f"Expected {expected} but got {actual}.",
                      *(f"{name} difference: {value}" + _allowed(allowed, rtol, atol) for name, value, allowed in found)])


def _head(what, rtol, atol):
    return f"{what} are not {'equal' if rtol == atol == 0 else 'close'}!"


def _allowed(tolerance, rtol, atol):
    return f" (up to {tolerance} allowed)" if rtol or atol else ""


def _check_attributes(actual, expected, options, path):
    """Refuses tensors of different shapes, layouts, strides, devices or dtypes."""
    checked = {"shape": True, "layout": options.check_layout, "stride()": options.check_stride, "device": options.check_device,
               "dtype": options.check_dtype}
    for name, is_checked in checked.items():
        if not is_checked:
            continue
        mine, theirs = (value.stride() if name == "stride()" else getattr(value, name) for value in (actual, expected))
        if mine != theirs:
            options.fail(AssertionError, f"The values for attribute '{name}' do not match: {mine} != {theirs}.", path)


def _compare_sparse(actual, expected, options, path):
    """Compares the parts of sparse tensors: where their values are, and the values."""
    if actual.layout is not expected.layout:
        return _compare_tensors(*(value.to_dense() if value.is_sparse or value.is_sparse_csr else value for value in (actual, expected)), options, path)
    kind, parts = ("COO", ("indices", "values")) if actual.is_sparse else ("CSR", ("crow_indices", "col_indices", "values"))
    for what, one, other in (("sparse dimensions", actual.sparse_dim(), expected.sparse_dim()), ("specified values", actual._nnz(), expected._nnz())):
        if one != other:
            options.fail(AssertionError, f"The number of {what} in sparse {kind} tensors does not match: {one} != {other}", path)
    for part in parts:
        one, other = (getattr(value, f"_{part}" if kind == "COO" else part)() for value in (actual, expected))
        _compare_elements(one, other, options, path, f"Sparse {kind} {part}", part == "values")
    return None


def _compare_tensors(actual, expected, options, path):
    _check_attributes(actual, expected, options, path)
    if any(value.is_sparse or value.is_sparse_csr for value in (actual, expected)):
        return _compare_sparse(actual, expected, options, path)
    return _compare_elements(actual, expected, options, path, "Tensor-likes", True)


def _compare_elements(actual, expected, options, path, what, has_tolerances):
    if actual.is_meta or expected.is_meta:
        return
    rtol, atol = options.tolerances(actual, expected) if has_tolerances else (0.0, 0.0)
    if actual.device != expected.device:
        actual, expected = actual.cpu(), expected.cpu()
    if actual.dtype is not expected.dtype:
        common = promote_types(actual.dtype, expected.dtype)
        actual, expected = actual.to(common), expected.to(common)
    close = _core.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=options.equal_nan)
    if bool(close.all()):
        return
    if actual.dim() == 0:
        options.fail(AssertionError, _scalars(actual.item(), expected.item(), rtol, atol), path)
    options.fail(AssertionError, _tensors(actual, expected, close, rtol, atol, what), path)


def _tensors(actual, expected, close, rtol, atol, what):
    """Returns the message for two tensors that are not close."""
    count = actual.numel()
    missed = count - int(close.sum())
    lines = [_head(what, rtol, atol), "", f"Mismatched elements: {missed} / {count} ({missed / count:.1%})"]
    is_inexact = actual.dtype.is_floating_point or actual.dtype.is_complex
    wide = _core.complex128 if actual.dtype.is_complex else _core.float64 if is_inexact else _core.int64
    shape, close = close.shape, close.flatten()
    actual, expected = actual.to(wide).flatten(), expected.to(wide).flatten()
    difference = (actual - expected).abs().masked_fill(close, 0)
    relative = (difference / expected.abs()).masked_fill(close, 0.0)
    for name, values, allowed in (("absolute", difference, atol), ("relative", relative, rtol)):
        place = int((values.nan_to_num(math.inf) if values.is_floating_point() else values).argmax())
        index, rest = [], place
        for size in reversed(shape):
            rest, at = divmod(rest, size)
            index.insert(0, at)
        lines.append(f"Greatest {name} difference: {values[place].item()} at index {tuple(index)}" + _allowed(allowed, rtol, atol))
    return "\n".join(lines)


def assert_allclose(actual, expected, rtol=None, atol=None, equal_nan=True, msg=""):
    """Raises an `AssertionError` unless two tensors are close, regardless of their dtypes. Deprecated in favour of
    `assert_close`."""
    actual = actual if isinstance(actual, _core.Tensor) else _core.tensor(actual)
    expected = expected if isinstance(expected, _core.Tensor) else _core.tensor(expected, dtype=actual.dtype)
    if rtol is None and atol is None:
        rtol, atol = default_tolerances(actual, expected, dtype_precisions=_FORMER_TOLERANCES)
    assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=equal_nan, check_dtype=False, msg=msg or None)
