"""Windows (`torch.signal.windows`), and the windows of `torch` under their older names (`hann_window`).

The numbers are computed in float64 and rounded once to the requested dtype.
"""

import math

from .. import _core

__all__ = ["bartlett", "blackman", "cosine", "exponential", "gaussian", "general_cosine", "general_hamming", "hamming", "hann", "kaiser", "nuttall"]


OLDER = ("bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window")


def _checked(name, M, dtype, layout):
    """Returns the dtype of a window."""
    if M < 0:
        raise ValueError(f"{name} requires non-negative window length, got M={M}")
    if layout is not None and layout is not _core.strided:
        raise ValueError(f"{name} is implemented for strided tensors only, got: {layout}")
    dtype = _core.get_default_dtype() if dtype is None else dtype
    narrow = (_core.float16, _core.bfloat16) if name in OLDER else ()
    if dtype not in (_core.float32, _core.float64, *narrow):
        raise ValueError(f"{name} expects {'floating point' if narrow else 'float32 or float64'} dtypes, got: {dtype}")
    return dtype


def _made(name, M, options, formula, one=1.0):
    """Returns the window of a formula, which takes the positions 0, 1, … and the length of the symmetric window that they are
    part of."""
    dtype = _checked(name, M, options["dtype"], options["layout"])
    device, requires_grad = options["device"], options["requires_grad"]
    if M == 0:
        values = _core.empty([0], dtype=_core.float64, device=device)
    elif M == 1:
        values = _core.full([1], one, dtype=_core.float64, device=device)
    else:
        length = M if options["sym"] else M + 1
        values = formula(_core.arange(M, dtype=_core.float64, device=device), length)
    return values.to(dtype).requires_grad_(requires_grad)


def _options(sym, dtype, layout, device, requires_grad):
    return dict(sym=sym, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)


def _cosines(coefficients):
    """Returns the formula of a sum of cosines with alternating signs."""
    def formula(places, length):
        angle = places * (2 * math.pi / (length - 1))
        return sum(value * (-1) ** order * (angle * order).cos() for order, value in enumerate(coefficients))
    return formula


def general_cosine(M, *, a, sym=True, dtype=None, layout=_core.strided, device=None, requires_grad=False):
    """Returns a sum of cosines with these coefficients."""
    if not hasattr(a, "__iter__"):
        raise TypeError("Coefficients must be a list/tuple")
    if not a:
        raise ValueError("Coefficients cannot be empty")
    return _made("general_cosine", M, _options(sym, dtype, layout, device, requires_grad), _cosines([float(value) for value in a]))


def general_hamming(M, *, alpha=0.54, sym=True, dtype=None, layout=_core.strided, device=None, requires_grad=False):
    """Returns alpha − (1 − alpha) · cos."""
    return general_cosine(M, a=[alpha, 1.0 - alpha], sym=sym, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)


def hamming(M, *, sym=True, dtype=None, layout=_core.strided, device=None, requires_grad=False):
    """Returns the Hamming window."""
    return general_hamming(M, sym=sym, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)


def hann(M, *, sym=True, dtype=None, layout=_core.strided, device=None, requires_grad=False):
    """Returns the Hann window."""
    return general_hamming(M, alpha=0.5, sym=sym, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)


def blackman(M, *, sym=True, dtype=None, layout=_core.strided, device=None, requires_grad=False):
    """Returns the Blackman window."""
    return general_cosine(M, a=[0.42, 0.5, 0.08], sym=sym, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)


def nuttall(M, *, sym=True, dtype=None, layout=_core.strided, device=None, requires_grad=False):
    """Returns the Nuttall window with four terms."""
    return general_cosine(M, a=[0.3635819, 0.4891775, 0.1365995, 0.0106411], sym=sym, dtype=dtype, layout=layout, device=device,
                          requires_grad=requires_grad)


def bartlett(M, *, sym=True, dtype=None, layout=_core.strided, device=None, requires_grad=False):
    """Returns the Bartlett window, a triangle."""
    return _made("bartlett", M, _options(sym, dtype, layout, device, requires_grad),
                 lambda places, length: 1 - (places * (2 / (length - 1)) - 1).abs())


def cosine(M, *, sym=True, dtype=None, layout=_core.strided, device=None, requires_grad=False):
    """Returns the cosine window, half a period of the sine."""
    return _made("cosine", M, _options(sym, dtype, layout, device, requires_grad),
                 lambda places, length: ((places + 0.5) * (math.pi / length)).sin())


def exponential(M, *, center=None, tau=1.0, sym=True, dtype=None, layout=_core.strided, device=None, requires_grad=False):
    """Returns exp(−|n − center| / tau)."""
    if tau <= 0:
        raise ValueError(f"Tau must be positive, got: {tau} instead.")
    if sym and center is not None:
        raise ValueError("Center must be None for symmetric windows")

    def formula(places, length):
        middle = (length - 1) / 2 if center is None else center
        return (-(places - middle).abs() / tau).exp()
    one = 1.0 if center is None else math.exp(-abs(center) / tau)
    return _made("exponential", M, _options(sym, dtype, layout, device, requires_grad), formula, one)


def gaussian(M, *, std=1.0, sym=True, dtype=None, layout=_core.strided, device=None, requires_grad=False):
    """Returns the Gaussian window with a standard deviation."""
    if std <= 0:
        raise ValueError(f"Standard deviation must be positive, got: {std} instead.")
    return _made("gaussian", M, _options(sym, dtype, layout, device, requires_grad),
                 lambda places, length: (-((places - (length - 1) / 2) / std) ** 2 / 2).exp())


def _kaiser(beta):
    def formula(places, length):
        height = 1 - (places * (2 / (length - 1)) - 1) ** 2
        top = _core.full([], float(beta), dtype=_core.float64, device=places.device)
        return (beta * height.clamp_min(0).sqrt()).i0() / top.i0()
    return formula


def kaiser(M, *, beta=12.0, sym=True, dtype=None, layout=_core.strided, device=None, requires_grad=False):
    """Returns the Kaiser window."""
    if beta < 0:
        raise ValueError(f"beta must be non-negative, got: {beta} instead.")
    return _made("kaiser", M, _options(sym, dtype, layout, device, requires_grad), _kaiser(beta))


def _older(name, formula, doc):
    """Returns a window function of `torch`, which is periodic by default."""
    def window(window_length, periodic=True, *, dtype=None, layout=None, device=None, pin_memory=False, requires_grad=False):
        if window_length < 0:
            raise RuntimeError(f"{name} requires non-negative window_length, got window_length={window_length}")
        return _old_window(name, window_length, _options(not periodic, dtype, layout, device, requires_grad), formula)
    window.__name__ = window.__qualname__ = name
    window.__doc__ = doc
    return window


def _old_window(name, length, options, formula):
    try:
        return _made(name, length, options, formula)
    except ValueError as error:
        raise RuntimeError(str(error)) from None


def hamming_window(window_length, periodic=True, alpha=0.54, beta=0.46, *, dtype=None, layout=None, device=None, pin_memory=False,
                   requires_grad=False):
    """Returns alpha − beta · cos, the Hamming window."""
    return _old_window("hamming_window", window_length, _options(not periodic, dtype, layout, device, requires_grad), _cosines([alpha, beta]))


def kaiser_window(window_length, periodic=True, beta=12.0, *, dtype=None, layout=None, device=None, pin_memory=False, requires_grad=False):
    """Returns the Kaiser window."""
    return _old_window("kaiser_window", window_length, _options(not periodic, dtype, layout, device, requires_grad), _kaiser(beta))


hann_window = _older("hann_window", _cosines([0.5, 0.5]), "Returns the window of Hann.")
blackman_window = _older("blackman_window", _cosines([0.42, 0.5, 0.08]), "Returns the window of Blackman.")
bartlett_window = _older("bartlett_window", lambda places, length: 1 - (places * (2 / (length - 1)) - 1).abs(), "Returns a triangle.")
