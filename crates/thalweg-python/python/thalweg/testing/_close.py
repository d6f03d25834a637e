"""Assertions that tensors are close (`torch.testing.assert_close`)."""

import cmath
import collections.abc
import math

from .. import _core

_TOLERANCES = {
    "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5), "complex128": (1e-7, 1e-7)}


def default_tolerances(*inputs):
    """Returns the relative and the absolute tolerance of dtypes or of tensors: those of the least exact."""
    dtypes = [value.dtype if isinstance(value, _core.Tensor) else value for value in inputs]
    found = [_TOLERANCES.get(dtype._name, (0.0, 0.0)) for dtype in dtypes]
    return max(rtol for rtol, _ in found), max(atol for _, atol in found)


class _Options:
    def __init__(self, rtol, atol, equal_nan, check_device, check_dtype, check_layout, check_stride, allow_subclasses, msg):
        if (rtol is None) != (atol is None):
            raise ValueError(f"rtol and atol must both be specified or both be unspecified, but got {rtol=} and {atol=}.")
        self.rtol, self.atol, self.equal_nan, self.allow_subclasses, self.msg = rtol, atol, equal_nan, allow_subclasses, msg
        self.check_device, self.check_dtype, self.check_layout, self.check_stride = check_device, check_dtype, check_layout, check_stride

    def fail(self, kind, message, path):
        """Raises an assertion, with the place in nested containers."""
        if path:
            message += f"\n\nThe failure occurred for item {''.join(f'[{step!r}]' for step in path)}"
        if self.msg is not None:
            message = self.msg(message) if callable(self.msg) else self.msg
        raise kind(message)


def assert_close(actual, expected, *, allow_subclasses=True, rtol=None, atol=None, equal_nan=False, check_device=True, check_dtype=True,
                 check_layout=True, check_stride=False, msg=None):
    """Raises an `AssertionError` unless tensors, numbers, or nested lists and dictionaries of them are close.

    Close is |actual − expected| ≤ atol + rtol · |expected|; the tolerances are those of the dtype where they are not given.
    """
    options = _Options(rtol, atol, equal_nan, check_device, check_dtype, check_layout, check_stride, allow_subclasses, msg)
    _compare(actual, expected, options, ())


def _compare(actual, expected, options, path):
    texts = (str, bytes)
    if isinstance(actual, collections.abc.Mapping) and isinstance(expected, collections.abc.Mapping):
        if set(actual) != set(expected):
            options.fail(AssertionError, "The keys of the mappings do not match:\n"
                         f"Missing keys in the actual mapping: {sorted(set(expected) - set(actual), key=repr)}\n"
                         f"Missing keys in the expected mapping: {sorted(set(actual) - set(expected), key=repr)}", path)
        for key in expected:
            _compare(actual[key], expected[key], options, (*path, key))
    elif all(isinstance(value, collections.abc.Sequence) and not isinstance(value, texts) for value in (actual, expected)):
        if len(actual) != len(expected):
            options.fail(AssertionError, f"The length of the sequences mismatch: {len(actual)} != {len(expected)}", path)
        for number, (one, other) in enumerate(zip(actual, expected)):
            _compare(one, other, options, (*path, number))
    elif actual is None or expected is None:
        if actual is not expected:
            options.fail(AssertionError, f"None mismatch: {actual} is not {expected}", path)
    elif isinstance(actual, (int, float, complex)) and isinstance(expected, (int, float, complex)):
        _compare_numbers(actual, expected, options, path)
    else:
        _compare_tensors(*(_tensor(value, actual, expected, options, path) for value in (actual, expected)), options, path)


def _tensor(value, actual, expected, options, path):
    if isinstance(value, _core.Tensor):
        return value.detach()
    try:
        return _core.tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"No comparison pair was able to handle inputs of type {type(actual)} and {type(expected)}.") from None


def _compare_numbers(actual, expected, options, path):
    if options.check_dtype and type(actual) is not type(expected):
        options.fail(AssertionError, f"The (d)types do not match: {type(actual)} != {type(expected)}.", path)
    rtol, atol = options.rtol, options.atol
    if rtol is None:
        is_inexact = any(isinstance(value, (float, complex)) for value in (actual, expected))
        rtol, atol = (1e-7, 1e-7) if is_inexact else (0.0, 0.0)
    if actual == expected or (options.equal_nan and cmath.isnan(actual) and cmath.isnan(expected)):
        return
    difference = abs(actual - expected)
    if cmath.isfinite(expected) and difference <= atol + rtol * abs(expected):
        return
    relative = difference / abs(expected) if expected else math.inf
    options.fail(AssertionError, f"Scalars are not close!\n\nExpected {expected} but got {actual}.\nAbsolute difference: {difference} (up to {atol} "
                 f"allowed)\nRelative difference: {relative} (up to {rtol} allowed)", path)


def _compare_tensors(actual, expected, options, path):
    if actual.shape != expected.shape:
        options.fail(AssertionError, f"The values for attribute 'shape' do not match: {actual.shape} != {expected.shape}.", path)
    for name in ("device", "dtype", "layout", "stride"):
        mine, theirs = (getattr(value, name) for value in (actual, expected))
        if name == "stride":
            mine, theirs = mine(), theirs()
        if getattr(options, f"check_{name}") and mine != theirs:
            options.fail(AssertionError, f"The values for attribute '{name}{'()' if name == 'stride' else ''}' do not match: {mine} != {theirs}.", path)
    rtol, atol = (options.rtol, options.atol) if options.rtol is not None else default_tolerances(actual, expected)
    if actual.dtype is not expected.dtype:
        common = _core.promote_types(actual.dtype, expected.dtype) if hasattr(_core, "promote_types") else _core.float64
        actual, expected = actual.to(common), expected.to(common)
    if actual.device != expected.device:
        actual, expected = actual.cpu(), expected.cpu()
    close = _core.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=options.equal_nan)
    if actual.is_meta or bool(close.all()):
        return
    wrong, count = ~close, actual.numel()
    missed = int(wrong.sum())
    wide = _core.complex128 if actual.dtype.is_complex else _core.float64
    difference = (actual.to(wide) - expected.to(wide)).abs().masked_fill(close, 0.0).flatten()
    relative = (difference / expected.to(wide).abs().flatten()).masked_fill(close.flatten(), 0.0)
    head = "Tensor-likes are not equal!" if rtol == atol == 0 else "Tensor-likes are not close!"
    lines = [head, "", f"Mismatched elements: {missed} / {count} ({missed / count:.1%})"]
    for name, values, allowed in (("absolute", difference, atol), ("relative", relative, rtol)):
        place = int(values.nan_to_num(math.inf).argmax())
        index = []
        for size in reversed(actual.shape):
            place, rest = divmod(place, size)
            index.insert(0, rest)
        largest = values[int(values.nan_to_num(math.inf).argmax())].item()
        lines.append(f"Greatest {name} difference: {largest} at index {tuple(index)}" + (f" (up to {allowed} allowed)" if rtol or atol else ""))
    options.fail(AssertionError, "\n".join(lines), path)


def assert_allclose(actual, expected, rtol=None, atol=None, equal_nan=True, msg=""):
    """Raises an `AssertionError` unless two tensors are close, of whatever dtype and device."""
    if rtol is None and atol is None:
        rtol, atol = default_tolerances(*(value for value in (actual, expected) if isinstance(value, _core.Tensor)) or (_core.float64,))
    assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=equal_nan, check_device=True, check_dtype=False, check_stride=False,
                 msg=msg or None)
