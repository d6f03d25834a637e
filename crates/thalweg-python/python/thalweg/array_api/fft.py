"""The extension `fft` of the standard."""

from .. import _core
from ._dtypes import COMPLEX, complex64, complex128, float32, float64
from ._manipulation import axes_of
from ._object import array

__all__ = ["fft", "ifft", "fftn", "ifftn", "rfft", "irfft", "rfftn", "irfftn", "hfft", "ihfft", "fftfreq", "rfftfreq", "fftshift", "ifftshift"]


def _one(name):
    operator = getattr(_core, f"fft_{name}")

    def function(x, /, *, n=None, axis=-1, norm="backward"):
        return array(operator(x, n, axis, norm))
    function.__name__ = function.__qualname__ = name
    function.__doc__ = operator.__doc__
    return function


def _several(name):
    operator = getattr(_core, f"fft_{name}")

    def function(x, /, *, s=None, axes=None, norm="backward"):
        return array(operator(x, None if s is None else list(s), None if axes is None else list(axes), norm))
    function.__name__ = function.__qualname__ = name
    function.__doc__ = operator.__doc__
    return function


fft, ifft, rfft, irfft, hfft, ihfft = (_one(name) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"))
fftn, ifftn, rfftn, irfftn = (_several(name) for name in ("fftn", "ifftn", "rfftn", "irfftn"))


def fftfreq(n, /, *, d=1.0, dtype=None, device=None):
    """Returns the frequencies of a transform of `n` samples."""
    return array(_core.fft_fftfreq(n, d, dtype=float32 if dtype is None else dtype, device=device))


def rfftfreq(n, /, *, d=1.0, dtype=None, device=None):
    """Returns the frequencies of a transform of `n` real samples."""
    return array(_core.fft_rfftfreq(n, d, dtype=float32 if dtype is None else dtype, device=device))


def fftshift(x, /, *, axes=None):
    """Returns the array with the frequency 0 in the middle."""
    return array(_core.fft_fftshift(x, axes_of(axes, x.ndim)))


def ifftshift(x, /, *, axes=None):
    """Returns the array with the frequency 0 at the front."""
    return array(_core.fft_ifftshift(x, axes_of(axes, x.ndim)))
