"""Initial values, in place (`torch.nn.init`)."""

import math

from .. import _core
from ..autograd import no_grad


def calculate_gain(nonlinearity, param=None):
    """Returns the recommended gain of a nonlinearity."""
    if nonlinearity in ("linear", "conv1d", "conv2d", "conv3d", "sigmoid"):
        return 1.0
    if nonlinearity == "tanh":
        return 5.0 / 3
    if nonlinearity == "relu":
        return math.sqrt(2.0)
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity == "selu":
        return 0.75
    raise ValueError(f"Unsupported nonlinearity {nonlinearity}")


def _fans(tensor):
    if tensor.dim() < 2:
        raise ValueError("Fan in and fan out can not be computed for tensor with fewer than 2 dimensions")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


@no_grad()
def _overwrite(tensor, values):
    tensor.copy_(values)
    return tensor


def uniform_(tensor, a=0.0, b=1.0, generator=None):
    """Draws from [a, b)."""
    values = _core.rand(tensor.shape, dtype=_core.float32, device=tensor.device, generator=generator)
    return _overwrite(tensor, values * (b - a) + a)


def normal_(tensor, mean=0.0, std=1.0, generator=None):
    """Draws from the normal distribution."""
    values = _core.randn(tensor.shape, dtype=_core.float32, device=tensor.device, generator=generator)
    return _overwrite(tensor, values * std + mean)


def trunc_normal_(tensor, mean=0.0, std=1.0, a=-2.0, b=2.0, generator=None):
    """Draws from the normal distribution, cut off at a and b."""
    def below(value):
        return (1.0 + math.erf((value - mean) / std / math.sqrt(2.0))) / 2.0
    low, high = below(a), below(b)
    values = _core.rand(tensor.shape, dtype=_core.float32, device=tensor.device, generator=generator) * (2 * high - 2 * low) + (2 * low - 1)
    values = values.erfinv() * (std * math.sqrt(2.0)) + mean
    return _overwrite(tensor, values.clamp(a, b))


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


def eye_(tensor):
    """Makes the matrix the identity."""
    return _overwrite(tensor, _core.eye(*tensor.shape, dtype=tensor.dtype, device=tensor.device))


def xavier_uniform_(tensor, gain=1.0, generator=None):
    """Draws uniformly, so that variances stay (Glorot)."""
    fan_in, fan_out = _fans(tensor)
    bound = gain * math.sqrt(6.0 / (fan_in + fan_out))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor, gain=1.0, generator=None):
    """Draws normally, so that variances stay (Glorot)."""
    fan_in, fan_out = _fans(tensor)
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / (fan_in + fan_out)), generator)


def kaiming_uniform_(tensor, a=0, mode="fan_in", nonlinearity="leaky_relu", generator=None):
    """Draws uniformly, so that variances stay behind a nonlinearity (He)."""
    fan = _fans(tensor)[0 if mode == "fan_in" else 1]
    bound = calculate_gain(nonlinearity, a) * math.sqrt(3.0 / fan)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(tensor, a=0, mode="fan_in", nonlinearity="leaky_relu", generator=None):
    """Draws normally, so that variances stay behind a nonlinearity (He)."""
    fan = _fans(tensor)[0 if mode == "fan_in" else 1]
    return normal_(tensor, 0.0, calculate_gain(nonlinearity, a) / math.sqrt(fan), generator)
