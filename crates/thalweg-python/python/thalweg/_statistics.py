"""The parts of batch normalization over several processes, rows of embeddings with a limited norm, and rounding to the levels of integers."""

from . import _core
from .autograd import Function, no_grad

__all__ = [
    "alpha_dropout_", "batch_norm_backward_elemt", "batch_norm_backward_reduce", "batch_norm_elemt", "batch_norm_gather_stats",
    "batch_norm_gather_stats_with_counts", "batch_norm_stats", "batch_norm_update_stats", "dropout_", "embedding_renorm_",
    "fake_quantize_per_channel_affine", "fake_quantize_per_tensor_affine", "feature_alpha_dropout_", "feature_dropout_"]


def _wide(input):
    """Returns numbers in the dtype in which they are summed."""
    return input.float() if input.dtype in (_core.float16, _core.bfloat16) else input


def _others(input):
    return [dim for dim in range(input.dim()) if dim != 1]


def _along(input, values):
    """Returns one number of each channel in a shape that is broadcast with the input."""
    return values.reshape([-1 if dim == 1 else 1 for dim in range(input.dim())])


def batch_norm_stats(input, eps):
    """Returns the mean of each channel, and 1 / √(variance + eps)."""
    wide = _wide(input)
    return wide.mean(_others(input)), (wide.var(_others(input), correction=0) + eps).rsqrt()


def batch_norm_update_stats(input, running_mean, running_var, momentum):
    """Returns the mean and the variance of each channel, and moves running statistics towards them."""
    wide = _wide(input)
    mean, variance = wide.mean(_others(input)), wide.var(_others(input), correction=0)
    _move(running_mean, running_var, momentum, mean, variance, input.numel() // max(input.shape[1], 1))
    return mean, variance


def _move(running_mean, running_var, momentum, mean, variance, count):
    """Moves running statistics towards those of a number of elements."""
    with no_grad():
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        if running_var is not None:
            running_var.lerp_((variance * (count / (count - 1))).to(running_var.dtype), momentum)


def batch_norm_elemt(input, weight, bias, mean, invstd, eps, *, out=None):
    """Returns normalized channels, times a weight, plus a bias."""
    wide = _wide(input)
    scale = invstd if weight is None else invstd * weight
    result = (wide - _along(input, mean)) * _along(input, scale)
    result = (result if bias is None else result + _along(input, bias)).to(input.dtype)
    return result if out is None else out.copy_(result)


def batch_norm_gather_stats(input, mean, invstd, running_mean, running_var, momentum, eps, count):
    """Returns the statistics of all processes from those of each, which have the same number of elements."""
    counts = _core.full([mean.shape[0]], count, dtype=mean.dtype, device=mean.device)
    return batch_norm_gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts)


def batch_norm_gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts):
    """Returns the mean of all processes and 1 / √(variance + eps) from those of each with its number of elements, and moves running statistics."""
    shares = counts.to(mean.dtype).reshape(-1, 1)
    count = shares.sum()
    whole = (shares * mean).sum(0) / count
    variance = (shares * (invstd.pow(-2) - eps + (mean - whole).square())).sum(0) / count
    _move(running_mean, running_var, momentum, whole, variance, count)
    return whole, (variance + eps).rsqrt()


def batch_norm_backward_reduce(grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g):
    """Returns the sums of the gradient and of its product with the distance to the mean, and the gradients of weight and bias, as requested."""
    gradient, dims = _wide(grad_out), _others(input)
    total = gradient.sum(dims)
    product = (gradient * (_wide(input) - _along(input, mean))).sum(dims)
    return (total if input_g else None, product if input_g else None, product * invstd if weight_g else None, total if bias_g else None)


def batch_norm_backward_elemt(grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count):
    """Returns the gradient of the input from the sums of all processes."""
    number = count.sum().to(sum_dy.dtype)
    scale = invstd if weight is None else invstd * weight
    change = _along(input, sum_dy / number) + (_wide(input) - _along(input, mean)) * _along(input, invstd.square() * sum_dy_xmu / number)
    return ((_wide(grad_out) - change) * _along(input, scale)).to(input.dtype)


def embedding_renorm_(input, indices, max_norm, norm_type):
    """Scales the rows of a table at indices, in place, so that their norms are at most `max_norm`."""
    from .nn.functional import _limit_rows
    _limit_rows(input, indices, max_norm, norm_type)
    return input


class _Levels(Function):
    """Rounding to the levels of integers. The gradient passes where no limit was reached."""

    @staticmethod
    def forward(ctx, x, scale, zero_point, least, greatest):
        level = zero_point + (x * (1.0 / scale)).round()
        ctx.save_for_backward((level >= least) & (level <= greatest))
        return ((level.clamp(least, greatest) - zero_point).to(scale.dtype) * scale).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        inside, = ctx.saved_tensors
        return gradient * inside, None, None, None, None


def _check_levels(least, greatest):
    if least > greatest:
        raise RuntimeError(f"`quant_min` should be less than or equal to `quant_max`, not {least} and {greatest}")


def fake_quantize_per_tensor_affine(input, scale, zero_point, quant_min, quant_max):
    """Returns the numbers that integers from `quant_min` to `quant_max` stand for: (integer - zero_point) · scale."""
    _check_levels(quant_min, quant_max)
    if not isinstance(scale, _core.Tensor):
        scale = _core.tensor(scale, dtype=_core.float32, device=input.device)
    return _Levels.apply(input, scale, zero_point, quant_min, quant_max)


def fake_quantize_per_channel_affine(input, scale, zero_point, axis, quant_min, quant_max):
    """Returns the numbers that integers stand for, with a scale and a zero point of each index of a dimension."""
    _check_levels(quant_min, quant_max)
    if scale.dim() != 1 or scale.shape != zero_point.shape or scale.shape[0] != input.shape[axis]:
        raise RuntimeError(f"scale and zero-point need one number for each of the {input.shape[axis]} indices of dimension {axis}, not the shapes "
                           f"{tuple(scale.shape)} and {tuple(zero_point.shape)}")
    shape = [-1 if dim == axis % input.dim() else 1 for dim in range(input.dim())]
    return _Levels.apply(input, scale.reshape(shape), zero_point.reshape(shape), quant_min, quant_max)


def _in_place(name):
    def call(input, p, train):
        return input.copy_(getattr(_core, name)(input, p, train))
    call.__name__, call.__qualname__ = f"{name}_", f"{name}_"
    call.__doc__ = f"Overwrites a tensor with the result of `{name}`."
    return call


dropout_, alpha_dropout_, feature_dropout_, feature_alpha_dropout_ = (
    _in_place(_name) for _name in ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"))
