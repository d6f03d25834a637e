"""Initial values, in place (`torch.nn.init`)."""

import functools
import math
import warnings

from .. import _core
from ..autograd import no_grad


_LINEAR = ("linear", "sigmoid", *(f"{kind}{dims}d" for kind in ("conv", "conv_transpose") for dims in (1, 2, 3)))


def calculate_gain(nonlinearity, param=None):
    """Returns the recommended gain of a nonlinearity."""
    if nonlinearity in _LINEAR:
        return 1.0
    if nonlinearity == "tanh":
        return 5.0 / 3
    if nonlinearity == "relu":
        return math.sqrt(2.0)
    if nonlinearity == "leaky_relu":
        if param is not None and (isinstance(param, bool) or not isinstance(param, (int, float))):
            raise ValueError(f"negative_slope {param} not a valid number")
        return math.sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity == "selu":
        return 0.75
    raise ValueError(f"Unsupported nonlinearity {nonlinearity}")


def _calculate_fan_in_and_fan_out(tensor):
    """Returns the numbers of inputs and outputs that an element of a weight connects to."""
    if tensor.dim() < 2:
        raise ValueError("Fan in and fan out can not be computed for tensor with fewer than 2 dimensions")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def _calculate_correct_fan(tensor, mode):
    """Returns the number of inputs or outputs, depending on the mode."""
    modes = ["fan_in", "fan_out"]
    mode = mode.lower()
    if mode not in modes:
        raise ValueError(f"Mode {mode} not supported, please use one of {modes}")
    return _calculate_fan_in_and_fan_out(tensor)[modes.index(mode)]


@no_grad()
def uniform_(tensor, a=0.0, b=1.0, generator=None):
    """Draws from [a, b)."""
    if a > b:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={a} > to={b}")
    # Both parts of complex numbers are drawn.
    (_core.view_as_real(tensor) if tensor.is_complex() else tensor).uniform_(a, b, generator=generator)
    return tensor


@no_grad()
def normal_(tensor, mean=0.0, std=1.0, generator=None):
    """Draws from the normal distribution."""
    if std < 0.0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    return tensor.normal_(mean, std, generator=generator)


@no_grad()
def trunc_normal_(tensor, mean=0.0, std=1.0, a=-2.0, b=2.0, generator=None):
    """Draws from the normal distribution, truncated at a and b."""
    def below(value):
        return (1.0 + math.erf((value - mean) / std / math.sqrt(2.0))) / 2.0
    tensor.uniform_(2 * below(a) - 1, 2 * below(b) - 1, generator=generator)
    return tensor.erfinv_().mul_(std * math.sqrt(2.0)).add_(mean).clamp_(a, b)


def constant_(tensor, val):
    """Fills with one value."""
    with no_grad():
        return tensor.fill_(val)


def ones_(tensor):
    """Fills with 1."""
    return constant_(tensor, 1.0)


def zeros_(tensor):
    """Fills with 0."""
    return constant_(tensor, 0.0)


@no_grad()
def eye_(tensor):
    """Sets the matrix to the identity."""
    if tensor.dim() != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    return _core.eye(*tensor.shape, dtype=tensor.dtype, out=tensor)


def xavier_uniform_(tensor, gain=1.0, generator=None):
    """Draws uniformly, with a range that preserves variances (Glorot)."""
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    bound = gain * math.sqrt(6.0 / (fan_in + fan_out))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor, gain=1.0, generator=None):
    """Draws normally, with a deviation that preserves variances (Glorot)."""
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / (fan_in + fan_out)), generator)


def kaiming_uniform_(tensor, a=0, mode="fan_in", nonlinearity="leaky_relu", generator=None):
    """Draws uniformly, with a range that preserves variances after a nonlinearity (He)."""
    if 0 in tensor.shape:
        warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=2)
        return tensor
    fan = _calculate_correct_fan(tensor, mode)
    bound = calculate_gain(nonlinearity, a) * math.sqrt(3.0 / fan)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(tensor, a=0, mode="fan_in", nonlinearity="leaky_relu", generator=None):
    """Draws normally, with a deviation that preserves variances after a nonlinearity (He)."""
    if 0 in tensor.shape:
        warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=2)
        return tensor
    fan = _calculate_correct_fan(tensor, mode)
    return normal_(tensor, 0.0, calculate_gain(nonlinearity, a) / math.sqrt(fan), generator)


@no_grad()
def orthogonal_(tensor, gain=1, generator=None):
    """Fills with a matrix whose rows, or columns if there are fewer, are orthonormal. Further dimensions are part of a row."""
    if tensor.dim() < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    if tensor.numel() == 0:
        return tensor
    rows, columns = tensor.shape[0], tensor.numel() // tensor.shape[0]
    dtype = _core.float64 if tensor.dtype is _core.float64 else _core.float32
    flat = tensor.new_empty([rows, columns], dtype=dtype).normal_(generator=generator)
    q, r = _core.linalg_qr(flat.t() if rows < columns else flat)
    # The decomposition is made unique, so that draws are uniform.
    q = q * r.diagonal().sign()
    return tensor.copy_((q.t() if rows < columns else q).reshape(tensor.shape)).mul_(gain)


@no_grad()
def dirac_(tensor, groups=1):
    """Makes a convolution return its input, for as many channels as there are."""
    if tensor.dim() not in (3, 4, 5):
        raise ValueError("Only tensors with 3, 4, or 5 dimensions are supported")
    if tensor.shape[0] % groups:
        raise ValueError("dim 0 must be divisible by groups")
    each = tensor.shape[0] // groups
    tensor.zero_()
    middle = tuple(size // 2 for size in tensor.shape[2:])
    for group in range(groups):
        for channel in range(min(each, tensor.shape[1])):
            tensor[(group * each + channel, channel, *middle)] = 1.0
    return tensor


@no_grad()
def sparse_(tensor, sparsity, std=0.01, generator=None):
    """Draws from the normal distribution, and sets a fraction of each column to 0."""
    if tensor.dim() != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    zeros = math.ceil(sparsity * tensor.shape[0])
    normal_(tensor, 0.0, std, generator)
    order = tensor.new_empty(tensor.shape, dtype=_core.float32).uniform_(generator=generator).argsort(0)
    return tensor.masked_fill_(order.argsort(0) < zeros, 0.0)


def _former(name):
    """Returns a deprecated function: its name has no `_`, and it warns."""
    new = globals()[f"{name}_"]

    @functools.wraps(new)
    def function(*args, **kwargs):
        warnings.warn(f"`nn.init.{name}` is now deprecated in favor of `nn.init.{name}_`.", FutureWarning, stacklevel=2)
        return new(*args, **kwargs)
    function.__name__ = function.__qualname__ = name
    return function


uniform, normal, constant, eye, dirac, xavier_uniform, xavier_normal, kaiming_uniform, kaiming_normal, orthogonal, sparse = (
    _former(name) for name in ("uniform", "normal", "constant", "eye", "dirac", "xavier_uniform", "xavier_normal", "kaiming_uniform",
                               "kaiming_normal", "orthogonal", "sparse"))
