"""Functions of networks (`torch.nn.functional`): operators of the table with the names and arguments that PyTorch has here.

A name that is not defined below is the operator of that name.
"""

import math
import numbers

from .. import _core, _left_out, _operators
from .._warnings import warn as _warn
from . import _checks
from ._attention import multi_head_attention_forward  # noqa: F401
from ._complex import convolved
from ._grouped import grouped_mm  # noqa: F401
from ._resampling import affine_grid, grid_sample, interpolate, upsample, upsample_bilinear, upsample_nearest  # noqa: F401

_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}
_NAMES = tuple(_REDUCTIONS)


_omitted = _left_out.attributes(__name__)
# Operators that PyTorch has here too. They are attributes, so that programs find them in `dir` and put functions in their place.
globals().update({_name: _core._in_place[_name] for _name in (
    "relu_", "elu_", "celu_", "selu_", "leaky_relu_", "hardtanh_", "threshold_", "rrelu_")} | {_name: getattr(_core, _name) for _name in (
        "bilinear", "channel_shuffle", "cosine_similarity", "hardshrink", "pairwise_distance", "pdist", "pixel_shuffle", "pixel_unshuffle", "prelu", "softplus",
        "softshrink")})


def __getattr__(name):
    if not name.startswith("_") and hasattr(_core, name):
        return getattr(_core, name)
    if name == "grad":
        from . import grad
        return grad
    if name in ("conv_tbc", "native_channel_shuffle"):
        return getattr(_operators, name)
    return _omitted(name)


def _reduction(reduction, size_average=None, reduce=None):
    if size_average is not None or reduce is not None:
        mean, reduced = (True if value is None else value for value in (size_average, reduce))
        reduction = "none" if not reduced else "mean" if mean else "sum"
        _warn(f"size_average and reduce args will be deprecated, please use reduction='{reduction}' instead.")
    if reduction not in _REDUCTIONS:
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return _REDUCTIONS[reduction]


def _elementwise(name, inplace, input, *options):
    """Computes an elementwise operator, in place if requested."""
    return getattr(_core.Tensor, f"{name}_" if inplace else name)(input, *options)


def relu(input, inplace=False):
    """Returns max(x, 0) of each element, in place if requested."""
    return _elementwise("relu", inplace, input)


def relu6(input, inplace=False):
    """Returns each element, clamped to the range from 0 to 6, in place if requested."""
    return _elementwise("relu6", inplace, input)


def sigmoid(input):
    """Returns 1 / (1 + exp(-x)) of each element."""
    return _core.sigmoid(input)


def tanh(input):
    """Returns the hyperbolic tangent of each element."""
    return _core.tanh(input)


def softsign(input):
    """Returns x / (1 + |x|) of each element."""
    return _core.softsign(input)


def silu(input, inplace=False):
    """Returns x · sigmoid(x) of each element, in place if requested."""
    return _elementwise("silu", inplace, input)


def mish(input, inplace=False):
    """Returns x · tanh(softplus(x)) of each element, in place if requested."""
    return _elementwise("mish", inplace, input)


def selu(input, inplace=False):
    """Returns the scaled exponential linear unit of each element, in place if requested."""
    return _elementwise("selu", inplace, input)


def hardswish(input, inplace=False):
    """Returns x · relu6(x + 3) / 6 of each element, in place if requested."""
    return _elementwise("hardswish", inplace, input)


def hardsigmoid(input, inplace=False):
    """Returns relu6(x + 3) / 6 of each element, in place if requested."""
    return _elementwise("hardsigmoid", inplace, input)


def leaky_relu(input, negative_slope=0.01, inplace=False):
    """Returns the positive elements, and the others times a slope, in place if requested."""
    return _elementwise("leaky_relu", inplace, input, negative_slope)


def elu(input, alpha=1.0, inplace=False):
    """Returns the positive elements, and alpha · (exp(x) − 1) of the others, in place if requested."""
    return _elementwise("elu", inplace, input, alpha)


def celu(input, alpha=1.0, inplace=False):
    """Returns the positive elements, and alpha · (exp(x / alpha) − 1) of the others, in place if requested."""
    if alpha == 0:
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
    return _elementwise("celu", inplace, input, alpha)


def hardtanh(input, min_val=-1.0, max_val=1.0, inplace=False):
    """Returns each element, clamped to a range, in place if requested."""
    if min_val > max_val:
        raise ValueError("min_val cannot be greater than max_val")
    return _elementwise("hardtanh", inplace, input, min_val, max_val)


def threshold(input, threshold, value, inplace=False):
    """Returns the elements above a threshold, and a fixed value for the others, in place if requested."""
    return _elementwise("threshold", inplace, input, threshold, value)


def rrelu(input, lower=1.0 / 8, upper=1.0 / 3, training=False, inplace=False):
    """Returns the input with negative elements multiplied by a slope, which is random during training, in place if requested."""
    return _elementwise("rrelu", inplace, input, lower, upper, training)


def logsigmoid(input, *, out=None):
    """Returns log(1 / (1 + exp(−x))) of each element."""
    return _core.log_sigmoid(input) if out is None else _core.log_sigmoid(input, out=out)


def tanhshrink(input):
    """Returns x − tanh(x) of each element."""
    return input - input.tanh()


def gelu(input, approximate="none"):
    """Returns x · Φ(x) of each element, or its approximation by tanh."""
    return _core.gelu(input, approximate=approximate)


def softmax(input, dim=None, _stacklevel=3, dtype=None):
    """Returns softmax along a dimension."""
    return _core.softmax(input, _softmax_dim("softmax", input, dim), dtype)


def log_softmax(input, dim=None, _stacklevel=3, dtype=None):
    """Returns the logarithm of softmax along a dimension."""
    return _core.log_softmax(input, _softmax_dim("log_softmax", input, dim), dtype)


def softmin(input, dim=None, _stacklevel=3, dtype=None):
    """Returns softmax of the negated elements along a dimension."""
    return _core.softmax(-input, _softmax_dim("softmin", input, dim), dtype)


def _softmax_dim(name, input, dim):
    return dim if dim is not None else (0 if input.dim() in (0, 1, 3) else 1)


def _dropped(operator, input, p, training, inplace):
    """Returns the result of a function that draws. In place, what keeps all elements writes nothing."""
    _checks.check_probability(p)
    if inplace and (not training or p == 0):
        return input
    result = operator(input, p, training)
    return input.copy_(result) if inplace else result


def dropout(input, p=0.5, training=True, inplace=False):
    """Sets each element to 0 with probability p, and scales the others by 1 / (1 − p)."""
    return _dropped(_core.dropout, input, p, training, inplace)


def alpha_dropout(input, p=0.5, training=False, inplace=False):
    """Returns dropout that preserves the mean and variance of SELU's results."""
    return _dropped(_core.alpha_dropout, input, p, training, inplace)


def feature_alpha_dropout(input, p=0.5, training=False, inplace=False):
    """Returns dropout of entire channels that preserves the mean and variance of SELU's results."""
    return _dropped(_core.feature_alpha_dropout, input, p, training, inplace)


def _channel_dropout(dims):
    def channel_dropout(input, p=0.5, training=True, inplace=False):
        if dims == 1 and input.dim() not in (2, 3):
            raise RuntimeError(f"dropout1d: Expected 2D or 3D input, but received a {input.dim()}D input. Note that dropout1d exists to provide "
                               "channel-wise dropout on inputs with 1 spatial dimension, a channel dimension, and an optional batch dimension.")
        _checks.warn_of_rank(dims, input)
        # Without a batch, the first dimension is that of channels. For images, PyTorch takes the first dimension as the batch
        # all the same.
        lacks_batch = dims != 2 and input.dim() == dims + 1

        def dropped(input, p, training):
            result = _core.feature_dropout(input.unsqueeze(0) if lacks_batch else input, p, training)
            return result.squeeze(0) if lacks_batch else result
        return _dropped(dropped, input, p, training, inplace)
    channel_dropout.__name__ = channel_dropout.__qualname__ = f"dropout{dims}d"
    channel_dropout.__doc__ = f"Sets whole channels of {dims} dimensions to 0 with probability p, and scales the others."
    return channel_dropout


dropout1d, dropout2d, dropout3d = (_channel_dropout(dims) for dims in (1, 2, 3))


def linear(input, weight, bias=None):
    """Returns input · weightᵀ + bias."""
    if bias is not None and bias.dim() > 1:
        product = _core.linear(input, weight, None)
        return product + bias.to(product.dtype)
    return _core.linear(input, weight, bias)


def _limit_rows(weight, indices, max_norm, norm_type):
    """Scales the rows of a table at indices, in place, so that their norms are at most `max_norm`."""
    former = _core._set_grad_enabled(False)
    try:
        indices = indices.reshape(-1)
        rows = weight.detach().index_select(0, indices)
        norms = rows.norm(norm_type, 1, True)
        # An index that occurs several times is written several times, with the same values.
        weight.index_copy_(0, indices, _core.where(norms > max_norm, rows * (max_norm / (norms + 1e-7)), rows))
    finally:
        _core._set_grad_enabled(former)


def embedding(input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False):
    """Returns the rows of a table at indices. With `sparse` the gradient of the table is sparse: the indices and the rows' gradients."""
    place = _checks.check_padding_idx(padding_idx, weight.shape[0] if weight.dim() else 0)
    if max_norm is not None:
        _limit_rows(weight, input, max_norm, norm_type)
    if sparse and weight.requires_grad and _core.is_grad_enabled():
        from . import _tables
        return _tables.rows(weight, input, place, scale_grad_by_freq)
    return _core.embedding(weight, input, place, scale_grad_by_freq)


def embedding_bag(input, weight, offsets=None, max_norm=None, norm_type=2, scale_grad_by_freq=False, mode="mean", sparse=False,
                  per_sample_weights=None, include_last_offset=False, padding_idx=None):
    """Returns the sum, mean or maximum of the rows of each bag: a row of indices, or those from an offset to the next."""
    if weight.dtype is _core.int64 and input.is_floating_point():
        _warn("Argument order of nn.functional.embedding_bag was changed. Usage `embedding_bag(weight, input, ...)` is deprecated, and should now be "
              "`embedding_bag(input, weight, ...)`.")
        input, weight = weight, input
    _checks.check_bags(input, weight, offsets, mode, scale_grad_by_freq, per_sample_weights, padding_idx)
    if max_norm is not None:
        _limit_rows(weight, input, max_norm, norm_type)
    modes = {"sum": 0, "mean": 1, "max": 2}
    if input.dim() == 2:
        # Each row is a bag, so there is no further offset after the last one.
        offsets, include_last_offset = _core.arange(0, input.numel(), input.shape[1], dtype=input.dtype, device=input.device), False
        input = input.reshape(-1)
        per_sample_weights = None if per_sample_weights is None else per_sample_weights.reshape(-1)
    padding = () if padding_idx is None else (padding_idx % weight.shape[0],)
    if sparse and weight.requires_grad and _core.is_grad_enabled():
        from . import _tables
        return _tables.bags(weight, input, offsets, mode, scale_grad_by_freq, per_sample_weights, include_last_offset, padding)
    return _core.embedding_bag(weight, input, offsets, scale_grad_by_freq, modes[mode], False, per_sample_weights, include_last_offset,
                               *padding)[0]


def one_hot(tensor, num_classes=-1):
    """Returns vectors of zeros with a 1 at each index."""
    return _core.one_hot(tensor, num_classes)


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Returns the input normalized over its last dimensions."""
    return _core.layer_norm(input, list(normalized_shape), weight, bias, eps)


def rms_norm(input, normalized_shape, weight=None, eps=None):
    """Returns the input divided by its root mean square over its last dimensions."""
    return _core.rms_norm(input, list(normalized_shape), weight, eps)


def batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    """Returns the input normalized over all dimensions but the channels. Updates the running statistics during training."""
    _checks.check_batch(input, training, eps)
    return _core.batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, False)


def group_norm(input, num_groups, weight=None, bias=None, eps=1e-5):
    """Returns the input normalized over groups of channels."""
    _checks.check_groups(input, num_groups)
    return _core.group_norm(input, num_groups, weight, bias, eps)


def instance_norm(input, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, momentum=0.1, eps=1e-5):
    """Returns the input normalized over the positions of each channel."""
    _checks.check_places(input, use_input_stats)
    return _core.instance_norm(input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, False)


def normalize(input, p=2.0, dim=1, eps=1e-12, out=None):
    """Returns the input divided by its norm along a dimension."""
    norm = _core.linalg_vector_norm(input, p, [dim] if isinstance(dim, numbers.Integral) else dim, True).clamp_min(eps).expand_as(input)
    return _core.div(input, norm, out=out)


def _pool(name, dims):
    """Returns the two functions of a pool: one that returns the indices if requested, and one that always does."""
    pool, operator = getattr(_core, name), getattr(_core, f"{name}_with_indices")

    def max_pool(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
        function = operator if return_indices else pool
        return function(input, kernel_size, [] if stride is None else stride, padding, dilation, ceil_mode)

    def with_indices(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
        return max_pool(input, kernel_size, stride, padding, dilation, ceil_mode, True)
    return _named(max_pool, name, f"Returns the greatest element of each window of {dims} dimensions."), _named(
        with_indices, f"{name}_with_indices", f"Returns the greatest element of each window of {dims} dimensions, and its place.")


def _named(function, name, doc):
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


max_pool1d, max_pool1d_with_indices = _pool("max_pool1d", 1)
max_pool2d, max_pool2d_with_indices = _pool("max_pool2d", 2)
max_pool3d, max_pool3d_with_indices = _pool("max_pool3d", 3)


def _fractional(dims):
    """Returns the two functions of a pool with windows of random extents."""
    operator = getattr(_core, f"fractional_max_pool{dims}d")
    name = f"fractional_max_pool{dims}d"

    def with_indices(input, kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None):
        if output_size is None and output_ratio is None:
            raise ValueError(f"{name} requires specifying either an output_size or an output_ratio")
        if output_size is None:
            ratios = [output_ratio] * dims if isinstance(output_ratio, (int, float)) else output_ratio
            if len(ratios) > dims:
                raise ValueError(f"{name} requires output_ratio to either be a single Int or tuple of Ints.")
            output_size = [int(size * ratio) for size, ratio in zip(input.shape[-dims:], ratios)]
        sizes = [[size] * dims if isinstance(size, numbers.Integral) else list(size) for size in (kernel_size, output_size)]
        if _random_samples is None:
            batch = 1 if input.dim() == dims + 1 else input.shape[0]
            _random_samples = _core.rand([batch, input.shape[-dims - 1], dims], dtype=input.dtype, device=input.device)
        if isinstance(_random_samples, _core.Tensor):
            _checks.check_fractional(name, input, *sizes)
        if 0 in sizes[1]:
            shape = [*input.shape[:-dims], *sizes[1]]
            return input.flatten()[:0].reshape(shape), _core.empty(shape, dtype=_core.int64, device=input.device)
        return operator(input, *sizes, _random_samples)

    def fractional_max_pool(input, kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None):
        values, indices = with_indices(input, kernel_size, output_size, output_ratio, True, _random_samples)
        return (values, indices) if return_indices else values
    doc = f"Returns the greatest element of each window of {dims} dimensions, whose extents are random"
    return _named(fractional_max_pool, name, f"{doc}."), _named(with_indices, f"{name}_with_indices", f"{doc}, and its place.")


fractional_max_pool2d, fractional_max_pool2d_with_indices = _fractional(2)
fractional_max_pool3d, fractional_max_pool3d_with_indices = _fractional(3)


def _unpool(dims):
    operator = getattr(_core, f"max_unpool{max(dims, 2)}d")

    def max_unpool(input, indices, kernel_size, stride=None, padding=0, output_size=None):
        kernel, steps, edges = (
            [value] * dims if isinstance(value, numbers.Integral) else list(value) for value in (kernel_size, kernel_size if stride is None else stride, padding))
        output_size = _checks.check_unpooled(input, kernel, steps, edges, output_size)
        if dims == 1:
            return operator(input.unsqueeze(-2), indices.unsqueeze(-2), [1, *output_size]).squeeze(-2)
        return operator(input, indices, output_size, *((steps, edges) if dims == 3 else ()))
    max_unpool.__name__ = max_unpool.__qualname__ = f"max_unpool{dims}d"
    max_unpool.__doc__ = f"Returns zeros with the elements of a pool of {dims} dimensions at the places that they came from."
    return max_unpool


max_unpool1d, max_unpool2d, max_unpool3d = (_unpool(dims) for dims in (1, 2, 3))


def avg_pool1d(input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
    """Returns the mean of each window."""
    return _core.avg_pool1d(input, kernel_size, [] if stride is None else stride, padding, ceil_mode, count_include_pad)


def avg_pool2d(input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
    """Returns the mean of each window of 2 dimensions."""
    return _core.avg_pool2d(input, kernel_size, [] if stride is None else stride, padding, ceil_mode, count_include_pad, divisor_override)


def avg_pool3d(input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
    """Returns the mean of each window of 3 dimensions."""
    return _core.avg_pool3d(input, kernel_size, [] if stride is None else stride, padding, ceil_mode, count_include_pad, divisor_override)


def _norm_pool(dims):
    average = getattr(_core, f"avg_pool{dims}d")

    def lp_pool(input, norm_type, kernel_size, stride=None, ceil_mode=False):
        places = kernel_size**dims if isinstance(kernel_size, numbers.Integral) else math.prod(kernel_size)
        means = average(input.pow(norm_type), kernel_size, [] if stride is None else stride, 0, ceil_mode)
        # Written as in PyTorch, so that it has the same gradient at 0.
        return (means.sign() * means.abs().relu() * places).pow(1.0 / norm_type)
    lp_pool.__name__ = lp_pool.__qualname__ = f"lp_pool{dims}d"
    lp_pool.__doc__ = f"Returns the root of the sum of powers of each window of {dims} dimensions."
    return lp_pool


lp_pool1d, lp_pool2d, lp_pool3d = (_norm_pool(dims) for dims in (1, 2, 3))


def local_response_norm(input, size, alpha=1e-4, beta=0.75, k=1.0):
    """Returns the input divided by (k + alpha · mean of squares of `size` channels around) to a power."""
    if input.dim() < 3:
        raise ValueError(f"Expected 3D or higher dimensionality input (got {input.dim()} dimensions)")
    if input.numel() == 0:
        return input
    squares = _core.constant_pad_nd((input * input).flatten(2).unsqueeze(1), [0, 0, size // 2, (size - 1) // 2], 0.0)
    means = _core.avg_pool2d(squares, [size, 1], [1, 1]).view(input.shape)
    return input / (means * alpha + k).pow(beta)


def _adaptive_sizes(input, output_size, dims):
    is_list = not (output_size is None or isinstance(output_size, numbers.Integral))
    sizes = list(output_size) if is_list else [output_size] * dims
    if is_list and dims > 1 and input.dim() <= len(sizes):
        raise ValueError(f"Input dimension should be at least {len(sizes) + 1}")
    if len(sizes) != dims:
        raise RuntimeError(f"adaptive pools of {dims} dimensions: output_size must have {dims} numbers, not {len(sizes)}")
    return [own if size is None else size for own, size in zip(input.shape[-dims:], sizes)]


def _adaptive_average(name, dims):
    operator = getattr(_core, name)

    def adaptive_avg_pool(input, output_size):
        return operator(input, _adaptive_sizes(input, output_size, dims))
    adaptive_avg_pool.__name__ = adaptive_avg_pool.__qualname__ = name
    adaptive_avg_pool.__doc__ = f"Returns the means of as many windows of {dims} dimensions as the output has places."
    return adaptive_avg_pool


def _adaptive_greatest(name, dims):
    operator = getattr(_core, name)

    def with_indices(input, output_size, return_indices=False):
        return tuple(operator(input, _adaptive_sizes(input, output_size, dims)))

    def adaptive_max_pool(input, output_size, return_indices=False):
        values, indices = with_indices(input, output_size)
        return (values, indices) if return_indices else values
    doc = f"Returns the greatest elements of as many windows of {dims} dimensions as the output has places"
    return _named(adaptive_max_pool, name, f"{doc}."), _named(with_indices, f"{name}_with_indices", f"{doc}, and their places.")


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (
    _adaptive_average(f"adaptive_avg_pool{dims}d", dims) for dims in (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool1d_with_indices = _adaptive_greatest("adaptive_max_pool1d", 1)
adaptive_max_pool2d, adaptive_max_pool2d_with_indices = _adaptive_greatest("adaptive_max_pool2d", 2)
adaptive_max_pool3d, adaptive_max_pool3d_with_indices = _adaptive_greatest("adaptive_max_pool3d", 3)


def cross_entropy(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean",
                  label_smoothing=0.0):
    """Returns the cross entropy of scores and classes, or probabilities of classes."""
    _checks.check_classes(input, target, label_smoothing)
    return _core.cross_entropy_loss(input, target, weight, _reduction(reduction, size_average, reduce), ignore_index, label_smoothing)


def nll_loss(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean"):
    """Returns the negative log-likelihood of classes."""
    _checks.check_rows(input, target)
    return _core.nll_loss_nd(input, target, weight, _reduction(reduction, size_average, reduce), ignore_index)


def _reduced(losses, reduction):
    """Returns elementwise losses, their mean or their sum."""
    return losses if reduction == 0 else losses.mean() if reduction == 1 else losses.sum()


def _weighted(loss, input, weight, reduction):
    """Returns elementwise losses times weights, reduced. The mean is divided by the sum of the weights."""
    if weight.shape != input.shape:
        raise ValueError("Weights and input must have the same size.")
    losses = loss * weight
    return losses if reduction == 0 else losses.sum() if reduction == 2 else losses.sum() / weight.sum()


def mse_loss(input, target, size_average=None, reduce=None, reduction="mean", weight=None):
    """Returns the squared differences."""
    _checks.warn_of_sizes(input, target)
    kind = _reduction(reduction, size_average, reduce)
    return _core.mse_loss(input, target, kind) if weight is None else _weighted(_core.mse_loss(input, target, 0), input, weight, kind)


def l1_loss(input, target, size_average=None, reduce=None, reduction="mean", weight=None):
    """Returns the magnitudes of the differences."""
    _checks.warn_of_sizes(input, target)
    kind = _reduction(reduction, size_average, reduce)
    if weight is not None:
        return _weighted(l1_loss(input, target, reduction="none"), input, weight, kind)
    if input.is_complex() or target.is_complex():
        return _reduced((input - target).abs(), kind)
    return _core.l1_loss(input, target, kind)


def smooth_l1_loss(input, target, size_average=None, reduce=None, reduction="mean", beta=1.0):
    """Returns the absolute differences, smoothed to squares where they are below `beta`."""
    _checks.warn_of_sizes(input, target)
    return _core.smooth_l1_loss(input, target, _reduction(reduction, size_average, reduce), beta)


def huber_loss(input, target, reduction="mean", delta=1.0, weight=None):
    """Returns half the squared differences where they are below `delta`, and linear ones above."""
    _checks.warn_of_sizes(input, target)
    kind = _reduction(reduction)
    if weight is None:
        return _core.huber_loss(input, target, kind, delta)
    if weight.shape != input.shape:
        raise ValueError("Weights and input must have the same size.")
    # As in PyTorch, this mean is over the elements and not over the weights.
    return _reduced(_core.huber_loss(input, target, 0, delta) * weight, kind)


def binary_cross_entropy(input, target, weight=None, size_average=None, reduce=None, reduction="mean"):
    """Returns the cross entropy of probabilities and targets between 0 and 1."""
    _checks.check_sizes(input, target, "Using a target size ({0}) that is different to the input size ({1}) is deprecated. Please ensure they have "
                        "the same size.")
    if target.dtype != input.dtype and not (target.is_floating_point() and input.is_floating_point()):
        raise RuntimeError(f"Found dtype {target.dtype} but expected {input.dtype}")
    return _core.binary_cross_entropy(input, target, weight, _reduction(reduction, size_average, reduce))


def binary_cross_entropy_with_logits(input, target, weight=None, size_average=None, reduce=None, reduction="mean", pos_weight=None):
    """Returns the cross entropy of scores and targets between 0 and 1."""
    _checks.check_sizes(input, target, "Target size ({0}) must be the same as input size ({1})")
    return _core.binary_cross_entropy_with_logits(input, target, weight, pos_weight, _reduction(reduction, size_average, reduce))


def kl_div(input, target, size_average=None, reduce=None, reduction="mean", log_target=False):
    """Returns the Kullback-Leibler divergence, from log-probabilities."""
    if reduction == "batchmean":
        return _core.kl_div(input, target, 2, log_target=log_target) / (input.shape[0] if input.dim() else 1)
    return _core.kl_div(input, target, _reduction(reduction, size_average, reduce), log_target=log_target)


def margin_ranking_loss(input1, input2, target, margin=0, size_average=None, reduce=None, reduction="mean"):
    """Returns max(0, −target · (input1 − input2) + margin)."""
    _checks.check_same_rank("margin_ranking_loss", input1=input1, input2=input2, target=target)
    return _core.margin_ranking_loss(input1, input2, target, margin, _reduction(reduction, size_average, reduce))


def hinge_embedding_loss(input, target, margin=1.0, size_average=None, reduce=None, reduction="mean"):
    """Returns x where the target is 1, and max(0, margin − x) where it is −1."""
    return _core.hinge_embedding_loss(input, target, margin, _reduction(reduction, size_average, reduce))


def soft_margin_loss(input, target, size_average=None, reduce=None, reduction="mean"):
    """Returns log(1 + exp(−target · x))."""
    return _core.soft_margin_loss(input, target, _reduction(reduction, size_average, reduce))


def cosine_embedding_loss(input1, input2, target, margin=0, size_average=None, reduce=None, reduction="mean"):
    """Returns 1 − cosine where the target is 1, and max(0, cosine − margin) where it is −1."""
    return _core.cosine_embedding_loss(input1, input2, target, margin, _reduction(reduction, size_average, reduce))


def triplet_margin_loss(anchor, positive, negative, margin=1.0, p=2, eps=1e-6, swap=False, size_average=None, reduce=None,
                        reduction="mean"):
    """Returns max(0, margin + distance(anchor, positive) − distance(anchor, negative))."""
    _checks.check_margin(margin)
    return _core.triplet_margin_loss(anchor, positive, negative, margin, p, eps, swap, _reduction(reduction, size_average, reduce))


def multi_margin_loss(input, target, p=1, margin=1.0, weight=None, size_average=None, reduce=None, reduction="mean"):
    """Returns the mean over classes of max(0, margin − x[target] + x)^p."""
    _checks.check_multi_margin(p, weight)
    return _core.multi_margin_loss(input, target, p, margin, weight, _reduction(reduction, size_average, reduce))


def multilabel_margin_loss(input, target, size_average=None, reduce=None, reduction="mean"):
    """Returns the sum of margins between the classes in a row's list and the other classes."""
    return _core.multilabel_margin_loss(input, target, _reduction(reduction, size_average, reduce))


def multilabel_soft_margin_loss(input, target, weight=None, size_average=None, reduce=None, reduction="mean"):
    """Returns the mean over classes of the cross entropy of scores and targets between 0 and 1."""
    loss = -(target * logsigmoid(input) + (1 - target) * logsigmoid(-input))
    return _reduced((loss if weight is None else loss * weight).mean(-1), _reduction(reduction, size_average, reduce))


def poisson_nll_loss(input, target, log_input=True, full=False, size_average=None, eps=1e-8, reduce=None, reduction="mean"):
    """Returns the negative log-likelihood of counts."""
    return _core.poisson_nll_loss(input, target, log_input, full, eps, _reduction(reduction, size_average, reduce))


def gaussian_nll_loss(input, target, var, full=False, eps=1e-6, reduction="mean"):
    """Returns the negative log-likelihood of normal distributions with given means and variances."""
    kind, var = _reduction(reduction), _checks.check_variance(input, var)
    floor = var.detach().clamp_min(eps)
    var = var + (floor - var.detach())
    return _reduced(0.5 * (var.log() + (input - target) ** 2 / var) + (0.5 * math.log(2 * math.pi) if full else 0.0), kind)


def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):
    """Returns the negative log-likelihood of sequences that are not aligned (connectionist temporal classification)."""
    for name, lengths in (("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        if isinstance(lengths, _core.Tensor) and lengths.is_floating_point():
            raise RuntimeError(f"{name} must be integral")
    return _core.ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, _reduction(reduction), zero_infinity)


def pad(input, pad, mode="constant", value=None):
    """Returns the input with elements added before and after its last dimensions, the last one first."""
    if mode == "constant":
        return _core.constant_pad_nd(input, list(pad), 0.0 if value is None else float(value))
    names = {"reflect": "reflection", "replicate": "replication", "circular": ""}
    _checks.check_pad(input, pad, mode, value, names)
    if mode == "circular":
        return _circular(input, list(pad))
    return getattr(_core, f"{names[mode]}_pad{len(pad) // 2}d")(input, list(pad))


def _circular(input, pad):
    for place in range(0, len(pad), 2):
        dim, (before, behind) = input.dim() - 1 - place // 2, pad[place:place + 2]
        size = input.shape[dim]
        if before > size or behind > size:
            raise RuntimeError("Padding value causes wrapping around more than once.")
        if size + before + behind < 0:
            raise RuntimeError("Negative padding value is resulting in an empty dimension")
        if before < 0 or behind < 0:
            # Elements that are cut off do not wrap around either.
            input = input.narrow(dim, max(-before, 0), size + min(before, 0) + min(behind, 0))
            size, before, behind = input.shape[dim], max(before, 0), max(behind, 0)
        parts = [input.narrow(dim, size - before, before)] * (before > 0) + [input] + [input.narrow(dim, 0, behind)] * (behind > 0)
        input = _core.cat(parts, dim)
    return input


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """Returns softmax(query · keyᵀ · scale) · value."""
    if attn_mask is not None and not attn_mask.is_floating_point() and attn_mask.dtype not in (getattr(_core, "bool"), query.dtype):
        raise RuntimeError(f"Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: {attn_mask.dtype} and "
                           f"query.dtype: {query.dtype} instead.")
    return _core.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _pair(value):
    return [value] * 2 if isinstance(value, numbers.Integral) else list(value)


def unfold(input, kernel_size, dilation=1, padding=0, stride=1):
    """Returns the windows of images as columns."""
    return _core.im2col(input, _pair(kernel_size), _pair(dilation), _pair(padding), _pair(stride))


def fold(input, output_size, kernel_size, dilation=1, padding=0, stride=1):
    """Returns images from the columns of their windows; overlapping elements are summed."""
    return _core.col2im(input, _pair(output_size), _pair(kernel_size), _pair(dilation), _pair(padding), _pair(stride))


def glu(input, dim=-1):
    """Returns the first half of a dimension, gated by the sigmoid of the second."""
    return _core.glu(input, dim)


def gumbel_softmax(logits, tau=1.0, hard=False, eps=1e-10, dim=-1):
    """Returns a sample of the Gumbel-softmax distribution."""
    noise = -_core.empty_like(logits).exponential_().log()
    soft = _core.softmax((logits + noise) / tau, dim)
    if not hard:
        return soft
    index = soft.detach().argmax(dim, True)
    return _core.zeros_like(soft).scatter(dim, index, 1.0) - soft.detach() + soft


def _same_padding(kernel_size, dilation):
    """Returns the padding before and after each dimension of a convolution whose output has the extents of its input."""
    total = [step * (size - 1) for size, step in zip(kernel_size, dilation)]
    return [(amount // 2, amount - amount // 2) for amount in total]


def _convolution(name, dims):
    convolve = getattr(_core, name)

    def conv(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        if padding == "valid":
            padding = 0
        elif padding == "same":
            if any(step != 1 for step in ([stride] if isinstance(stride, numbers.Integral) else stride)):
                raise RuntimeError("padding='same' is not supported for strided convolutions")
            sides = _same_padding(weight.shape[2:], [dilation] * dims if isinstance(dilation, numbers.Integral) else dilation)
            padding = [before for before, _ in sides]
            # If there is one more after than before, that one is added by a separate pad first.
            if any(behind > before for before, behind in sides):
                input = pad(input, [amount for before, behind in reversed(sides) for amount in (0, behind - before)])
        return convolved(convolve, input, weight, bias, (stride, padding, dilation, groups))
    return _named(conv, name, f"Returns the convolution over {dims} dimensions.")


def _transposed(dims):
    name = f"conv_transpose{dims}d"
    convolve = getattr(_core, name)

    def conv(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
        return convolved(convolve, input, weight, bias, (stride, padding, output_padding, groups, dilation))
    return _named(conv, name, f"Returns the transposed convolution over {dims} dimensions.")


conv1d = _convolution("conv1d", 1)
conv2d = _convolution("conv2d", 2)
conv3d = _convolution("conv3d", 3)
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_transposed, (1, 2, 3))


def triplet_margin_with_distance_loss(anchor, positive, negative, *, distance_function=None, margin=1.0, swap=False, reduction="mean"):
    """Returns max(0, margin + distance(anchor, positive) − distance(anchor, negative)), for any distance."""
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    kind = _reduction(reduction)
    if not anchor.dim() == positive.dim() == negative.dim():
        raise RuntimeError(
            f"The anchor, positive, and negative tensors are expected to have the same number of dimensions, but got: anchor {anchor.dim()}D, "
            f"positive {positive.dim()}D, and negative {negative.dim()}D inputs")
    distance = _core.pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = _core.minimum(far, distance(positive, negative))
    return _reduced((margin + near - far).clamp_min(0), kind)


def _bound(fan_in):
    return 1.0 / math.sqrt(fan_in) if fan_in > 0 else 0.0
