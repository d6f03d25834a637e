"""Helpers that several tests use."""

import contextlib
import io
import math

import thalweg


@contextlib.contextmanager
def raises(kind, part=""):
    """Fails unless its block raises this class of exception, with this text in the message."""
    try:
        yield
    except kind as error:
        assert type(error) is kind, f"{type(error).__name__} instead of {kind.__name__}: {error}"
        assert part in str(error), f"{part!r} is not in {str(error)!r}"
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


def close(found, expected, tolerance=1e-5):
    """Fails unless numbers, or nested lists of them, agree."""
    found, expected = (value.tolist() if hasattr(value, "tolist") else value for value in (found, expected))
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), f"{found} is not {expected}"
        for one, other in zip(found, expected):
            close(one, other, tolerance)
    elif isinstance(expected, float) and math.isnan(expected):
        assert math.isnan(found), f"{found} is a number"
    else:
        assert abs(found - expected) <= tolerance * max(1.0, abs(expected)), f"{found} is not {expected}"


def saved(value):
    """Returns a file that a value has been saved to, positioned at its start."""
    file = io.BytesIO()
    thalweg.save(value, file)
    file.seek(0)
    return file
