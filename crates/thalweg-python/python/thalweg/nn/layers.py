"""Modules of layers (`torch.nn.Linear` and others), with PyTorch's parameters and initial values."""

import collections.abc
import math
import warnings

from .. import _core
from . import _checks
from . import functional as F
from . import init
from .module import Module
from .parameter import Parameter


def _tuple(value, dims):
    return tuple(value) if isinstance(value, collections.abc.Iterable) else (value,) * dims


def _empty(shape, device, dtype):
    return Parameter(_core.empty(list(shape), device=device, dtype=dtype))


def _padding_idx(padding_idx, count, name):
    """Returns the non-negative index of the padding row."""
    if padding_idx is None:
        return None
    if not -count <= padding_idx < count:
        raise AssertionError(f"{name} must be within num_embeddings")
    return padding_idx % count


def _check_table(weight, count, width):
    if weight is not None and list(weight.shape) != [count, width]:
        raise AssertionError("Shape of weight does not match num_embeddings and embedding_dim")


def _check_matrix(embeddings):
    if embeddings.dim() != 2:
        raise AssertionError("Embeddings parameter is expected to be 2-dimensional")

_LINEAR = F.linear


class Identity(Module):
    """Returns its input."""

    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, input):
        return input


class Linear(Module):
    """y = x · weightᵀ + bias."""

    def __init__(self, in_features, out_features, bias=True, device=None, dtype=None):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = _empty((out_features, in_features), device, dtype)
        self.register_parameter("bias", _empty((out_features,), device, dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self):
        """Draws new initial values."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = F._bound(self.in_features)
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input):
        # The operator itself, unless a program has put a function in the place of `functional.linear`.
        linear = _core.linear if F.linear is _LINEAR else F.linear
        return linear(input, self.weight, self.bias)

    def extra_repr(self):
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class NonDynamicallyQuantizableLinear(Linear):
    """The last layer of attention, which libraries that quantize layers leave out."""


class Bilinear(Module):
    """y = x1 · weight · x2 + bias, with a matrix for each output feature."""

    def __init__(self, in1_features, in2_features, out_features, bias=True, device=None, dtype=None):
        super().__init__()
        if in1_features <= 0:
            raise ValueError(f"in1_features must be > 0, but got (in1_features={in1_features})")
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = _empty((out_features, in1_features, in2_features), device, dtype)
        self.register_parameter("bias", _empty((out_features,), device, dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self):
        """Draws new initial values."""
        bound = F._bound(self.in1_features)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input1, input2):
        return _core.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self):
        return (f"in1_features={self.in1_features}, in2_features={self.in2_features}, out_features={self.out_features}, "
                f"bias={self.bias is not None}")


def _table_repr(module, *more):
    """Returns the options of a table that are not the default, and `more`."""
    defaults = {"max_norm": None, "norm_type": 2, "scale_grad_by_freq": False, "sparse": False}
    padding = ("padding_idx",) if module.padding_idx is not None else ()
    own = [name for name, default in defaults.items() if getattr(module, name) != default]
    names = (*own, *more, *padding) if more else (*padding, *own)
    return ", ".join([f"{module.num_embeddings}, {module.embedding_dim}", *[f"{name}={getattr(module, name)!r}" for name in names]])


class Embedding(Module):
    """A table whose rows are looked up by indices."""

    def __init__(self, num_embeddings, embedding_dim, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False,
                 sparse=False, _weight=None, _freeze=False, device=None, dtype=None):
        super().__init__()
        self.padding_idx = _padding_idx(padding_idx, num_embeddings, "Padding_idx")
        _check_table(_weight, num_embeddings, embedding_dim)
        self.max_norm, self.norm_type = max_norm, norm_type
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        if _weight is None:
            self.weight = _empty((num_embeddings, embedding_dim), device, dtype)
            self.reset_parameters()
        else:
            self.weight = Parameter(_weight, requires_grad=not _freeze)

    @classmethod
    def from_pretrained(cls, embeddings, freeze=True, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False):
        """Returns a module over a given table."""
        _check_matrix(embeddings)
        return cls(*embeddings.shape, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, _weight=embeddings, _freeze=freeze)

    def reset_parameters(self):
        """Draws new initial values."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            init.zeros_(self.weight.detach()[self.padding_idx])

    def forward(self, input):
        return F.embedding(input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse)

    def extra_repr(self):
        return _table_repr(self)


class EmbeddingBag(Module):
    """A table whose rows are looked up by bags of indices, and reduced by sum, mean or maximum."""

    def __init__(self, num_embeddings, embedding_dim, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, mode="mean", sparse=False,
                 _weight=None, include_last_offset=False, padding_idx=None, device=None, dtype=None):
        super().__init__()
        self.padding_idx = _padding_idx(padding_idx, num_embeddings, "padding_idx")
        _check_table(_weight, num_embeddings, embedding_dim)
        self.max_norm, self.norm_type = max_norm, norm_type
        self.num_embeddings, self.embedding_dim, self.mode = num_embeddings, embedding_dim, mode
        self.scale_grad_by_freq, self.sparse, self.include_last_offset = scale_grad_by_freq, sparse, include_last_offset
        if _weight is None:
            self.weight = _empty((num_embeddings, embedding_dim), device, dtype)
            self.reset_parameters()
        else:
            self.weight = Parameter(_weight)

    @classmethod
    def from_pretrained(cls, embeddings, freeze=True, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, mode="mean", sparse=False,
                        include_last_offset=False, padding_idx=None):
        """Returns a module over a given table."""
        _check_matrix(embeddings)
        made = cls(*embeddings.shape, max_norm, norm_type, scale_grad_by_freq, mode, sparse, _weight=embeddings,
                   include_last_offset=include_last_offset, padding_idx=padding_idx)
        made.weight.requires_grad_(not freeze)
        return made

    def reset_parameters(self):
        """Draws new initial values."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            init.zeros_(self.weight.detach()[self.padding_idx])

    def forward(self, input, offsets=None, per_sample_weights=None):
        return F.embedding_bag(input, self.weight, offsets, self.max_norm, self.norm_type, scale_grad_by_freq=self.scale_grad_by_freq, mode=self.mode,
                               sparse=self.sparse, per_sample_weights=per_sample_weights, include_last_offset=self.include_last_offset,
                               padding_idx=self.padding_idx)

    def extra_repr(self):
        return _table_repr(self, "mode")


class _Scaled(Module):
    """The common part of normalization modules: a scale and an offset for the normalized values."""

    def reset_parameters(self):
        """Sets the weight to 1 and the bias to 0."""
        for value, reset in ((self.weight, init.ones_), (getattr(self, "bias", None), init.zeros_)):
            if value is not None:
                reset(value)


class LayerNorm(_Scaled):
    """Normalizes the last dimensions."""

    def __init__(self, normalized_shape, eps=1e-5, elementwise_affine=True, bias=True, device=None, dtype=None):
        super().__init__()
        self.normalized_shape, self.eps = _tuple(normalized_shape, 1), eps
        self.elementwise_affine = elementwise_affine
        self.register_parameter("weight", _empty(self.normalized_shape, device, dtype) if elementwise_affine else None)
        self.register_parameter("bias", _empty(self.normalized_shape, device, dtype) if elementwise_affine and bias else None)
        self.reset_parameters()

    def forward(self, input):
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self):
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class RMSNorm(_Scaled):
    """Divides by the root mean square of the last dimensions."""

    def __init__(self, normalized_shape, eps=None, elementwise_affine=True, device=None, dtype=None):
        super().__init__()
        self.normalized_shape, self.eps = _tuple(normalized_shape, 1), eps
        self.elementwise_affine = elementwise_affine
        self.register_parameter("weight", _empty(self.normalized_shape, device, dtype) if elementwise_affine else None)
        self.reset_parameters()

    def forward(self, x):
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self):
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(_Scaled):
    """Normalizes groups of channels."""

    def __init__(self, num_groups, num_channels, eps=1e-5, affine=True, device=None, dtype=None):
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self.register_parameter("weight", _empty((num_channels,), device, dtype) if affine else None)
        self.register_parameter("bias", _empty((num_channels,), device, dtype) if affine else None)
        self.reset_parameters()

    def forward(self, input):
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self):
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class LocalResponseNorm(Module):
    """Divides by a power of the mean square of the neighbouring channels."""

    def __init__(self, size, alpha=1e-4, beta=0.75, k=1.0):
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input):
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self):
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class _NormBase(Module):
    """The common part of batch norm and instance norm: weight, bias and running statistics per channel."""

    _version = 2

    def __init__(self, num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True, device=None, dtype=None):
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self.register_parameter("weight", _empty((num_features,), device, dtype) if affine else None)
        self.register_parameter("bias", _empty((num_features,), device, dtype) if affine else None)
        tracked = track_running_stats
        self.register_buffer("running_mean", _core.zeros([num_features], device=device, dtype=dtype) if tracked else None)
        self.register_buffer("running_var", _core.ones([num_features], device=device, dtype=dtype) if tracked else None)
        self.register_buffer("num_batches_tracked", _core.tensor(0, device=device) if tracked else None)
        self.reset_parameters()

    def reset_running_stats(self):
        """Sets the running means to 0, the variances to 1, and the number of batches to 0."""
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self):
        """Sets the weight to 1, the bias to 0, and resets the running statistics."""
        self.reset_running_stats()
        if self.affine:
            init.ones_(self.weight)
            init.zeros_(self.bias)

    def _check_input_dim(self, input):
        raise NotImplementedError

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
        # States of the first version lack the number of batches.
        key = prefix + "num_batches_tracked"
        if local_metadata.get("version", 1) < 2 and self.track_running_stats and key not in state_dict:
            own = self.num_batches_tracked
            state_dict[key] = own if own is not None and own.device.type != "meta" else _core.tensor(0)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    def extra_repr(self):
        return (f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
                f"track_running_stats={self.track_running_stats}")


class _BatchNorm(_NormBase):
    _ranks = ()

    def _check_input_dim(self, input):
        if input.dim() not in self._ranks:
            raise ValueError(f"expected {' or '.join(f'{rank}D' for rank in self._ranks)} input (got {input.dim()}D input)")

    def forward(self, input):
        """Returns the normalized input, and updates the running statistics during training."""
        self._check_input_dim(input)
        tracks, uses_batch = self.training and self.track_running_stats, self.training or self.running_mean is None
        _checks.check_batch(input, uses_batch, self.eps)
        factor = 0.0 if self.momentum is None else self.momentum
        if tracks and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / self.num_batches_tracked.item()
        kept = not self.training or self.track_running_stats
        return F.batch_norm(input, self.running_mean if kept else None, self.running_var if kept else None, self.weight, self.bias,
                            uses_batch, factor, self.eps)


class BatchNorm1d(_BatchNorm):
    """Normalizes each channel of (N, C) or (N, C, L)."""

    _ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Normalizes each channel of (N, C, H, W)."""

    _ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """Normalizes each channel of (N, C, D, H, W)."""

    _ranks = (5,)


class SyncBatchNorm(_BatchNorm):
    """Normalizes each channel of (N, C, …) over the batches of all ranks of a group. Python groups have one rank."""

    def __init__(self, num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True, process_group=None, device=None, dtype=None):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.process_group = process_group

    def _check_input_dim(self, input):
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    @classmethod
    def convert_sync_batchnorm(cls, module, process_group=None):
        """Returns the module with its batch norms converted to this class, with their parameters and statistics."""
        if isinstance(module, _BatchNorm):
            made = cls(module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats, process_group)
            made._parameters.update(module._parameters)
            made._buffers.update(module._buffers)
            return made.train(module.training)
        for name, child in list(module.named_children()):
            module._modules[name] = cls.convert_sync_batchnorm(child, process_group)
        return module


class _InstanceNorm(_NormBase):
    _rank = 0

    def __init__(self, num_features, eps=1e-5, momentum=0.1, affine=False, track_running_stats=False, device=None, dtype=None):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)

    def _get_no_batch_dim(self):
        return self._rank - 1

    def _check_input_dim(self, input):
        if input.dim() not in (self._rank, self._rank - 1):
            raise ValueError(f"expected {self._rank - 1}D or {self._rank}D input (got {input.dim()}D input)")

    def forward(self, input):
        """Returns the normalized input, and updates the running statistics during training."""
        self._check_input_dim(input)
        dim = input.dim() - self._rank + 1
        if input.shape[dim] != self.num_features:
            text = f"input's size at dim={dim} does not match num_features"
            if self.affine:
                raise ValueError(f"expected {text.replace('does not match', 'to match')} ({self.num_features}), but got: {input.shape[dim]}.")
            warnings.warn(f"{text}. You can silence this warning by not passing in num_features, which is not used because affine=False",
                          stacklevel=2)
        batch = input if input.dim() == self._rank else input.unsqueeze(0)
        result = F.instance_norm(batch, self.running_mean, self.running_var, self.weight, self.bias,
                                 self.training or not self.track_running_stats, self.momentum or 0.0, self.eps)
        return result if batch is input else result.squeeze(0)


class InstanceNorm1d(_InstanceNorm):
    """Normalizes each channel of each sample of (N, C, L)."""

    _rank = 3


class InstanceNorm2d(_InstanceNorm):
    """Normalizes each channel of each sample of (N, C, H, W)."""

    _rank = 4


class InstanceNorm3d(_InstanceNorm):
    """Normalizes each channel of each sample of (N, C, D, H, W)."""

    _rank = 5


def _check_groups(in_channels, out_channels, groups):
    if groups <= 0:
        raise ValueError("groups must be a positive integer")
    for name, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
        if channels % groups:
            raise ValueError(f"{name} must be divisible by groups")


def _written(conv, output_padding=""):
    """Returns the text in the parentheses of a printed convolution."""
    text = f"{conv.in_channels}, {conv.out_channels}, kernel_size={conv.kernel_size}, stride={conv.stride}"
    if conv.padding != (0,) * conv._dims:
        text += f", padding={conv.padding}"
    if conv.dilation != (1,) * conv._dims:
        text += f", dilation={conv.dilation}"
    text += output_padding
    if conv.groups != 1:
        text += f", groups={conv.groups}"
    text += ", bias=False" if conv.bias is None else ""
    return text + (f", padding_mode={conv.padding_mode}" if conv.padding_mode != "zeros" else "")


def _sides(self):
    """Returns the padding of each side, from the last dimension on, as `F.pad` takes it."""
    sides = F._same_padding(self.kernel_size, self.dilation) if self.padding == "same" else [(amount, amount) for amount in (
        (0,) * self._dims if self.padding == "valid" else self.padding)]
    return [amount for side in reversed(sides) for amount in side]


class _Conv(Module):
    _dims, transposed, _reversed_padding_repeated_twice = 0, False, property(_sides)

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True,
                 padding_mode="zeros", device=None, dtype=None):
        super().__init__()
        _check_groups(in_channels, out_channels, groups)
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise ValueError(f"padding_mode must be one of {{'zeros', 'reflect', 'replicate', 'circular'}}, but got padding_mode='{padding_mode}'")
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(f"Invalid padding string {padding!r}, should be one of 'same', 'valid'")
            if padding == "same" and any(step != 1 for step in _tuple(stride, self._dims)):
                raise ValueError("padding='same' is not supported for strided convolutions")
        self.in_channels, self.out_channels, self.groups, self.padding_mode = in_channels, out_channels, groups, padding_mode
        self.kernel_size, self.stride = _tuple(kernel_size, self._dims), _tuple(stride, self._dims)
        self.dilation, self.output_padding = _tuple(dilation, self._dims), (0,) * self._dims
        self.padding = padding if isinstance(padding, str) else _tuple(padding, self._dims)
        self.weight = _empty((out_channels, in_channels // groups, *self.kernel_size), device, dtype)
        self.register_parameter("bias", _empty((out_channels,), device, dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self):
        """Draws new initial values."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = F._bound(self.weight.shape[1] * math.prod(self.kernel_size))
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input):
        return self._conv_forward(input, self.weight, self.bias)

    def _conv_forward(self, input, weight, bias):
        """Convolves with a weight and bias, which subclasses of programs may compute."""
        convolve, padding = getattr(F, f"conv{self._dims}d"), self.padding
        if self.padding_mode != "zeros" and padding != "valid":
            input, padding = F.pad(input, self._reversed_padding_repeated_twice, self.padding_mode), 0
        return convolve(input, weight, bias, self.stride, padding, self.dilation, self.groups)

    def extra_repr(self):
        return _written(self)


class Conv1d(_Conv):
    """A convolution over 1 dimension."""

    _dims = 1


class Conv2d(_Conv):
    """A convolution over 2 dimensions."""

    _dims = 2


class Conv3d(_Conv):
    """A convolution over 3 dimensions."""

    _dims = 3


class _ConvTranspose(_Conv):
    transposed = True

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, output_padding=0, groups=1, bias=True, dilation=1,
                 padding_mode="zeros", device=None, dtype=None):
        Module.__init__(self)
        if padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        _check_groups(in_channels, out_channels, groups)
        dims = self._dims
        self.in_channels, self.out_channels, self.groups, self.padding_mode = in_channels, out_channels, groups, padding_mode
        self.kernel_size, self.stride, self.padding = _tuple(kernel_size, dims), _tuple(stride, dims), _tuple(padding, dims)
        self.output_padding, self.dilation = _tuple(output_padding, dims), _tuple(dilation, dims)
        self.weight = _empty((in_channels, out_channels // groups, *self.kernel_size), device, dtype)
        self.register_parameter("bias", _empty((out_channels,), device, dtype) if bias else None)
        self.reset_parameters()

    def forward(self, input, output_size=None):
        convolve = getattr(F, f"conv_transpose{self._dims}d")
        extra = self._output_padding(input, output_size, self.stride, self.padding, self.kernel_size, self._dims, self.dilation)
        return convolve(input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)

    def _output_padding(self, input, output_size, stride, padding, kernel_size, num_spatial_dims, dilation=None):
        """Returns how many elements are added at the end of each dimension."""
        if output_size is None:
            return _tuple(self.output_padding, num_spatial_dims)
        dims, dilation = num_spatial_dims, dilation or (1,) * num_spatial_dims
        count = 2 if input.dim() == dims + 2 else 1
        output_size = list(output_size)[count:] if len(output_size) == dims + count else list(output_size)
        if len(output_size) != dims:
            raise ValueError(f"ConvTranspose{dims}D: for {input.dim()}D input, output_size must have {dims} or {dims + count} "
                             f"elements (got {len(output_size)})")
        extra = []
        for dim, wanted in enumerate(output_size):
            least = (input.shape[dim - dims] - 1) * stride[dim] - 2 * padding[dim] + dilation[dim] * (kernel_size[dim] - 1) + 1
            if not least <= wanted < least + stride[dim]:
                raise ValueError(f"requested an output size of {output_size}, but valid sizes of dimension {dim} range from {least} to "
                                 f"{least + stride[dim] - 1}")
            extra.append(wanted - least)
        return extra

    def extra_repr(self):
        extra = f", output_padding={self.output_padding}" if self.output_padding != (0,) * self._dims else ""
        return _written(self, extra)


class ConvTranspose1d(_ConvTranspose):
    """A transposed convolution over 1 dimension."""

    _dims = 1


class ConvTranspose2d(_ConvTranspose):
    """A transposed convolution over 2 dimensions."""

    _dims = 2


class ConvTranspose3d(_ConvTranspose):
    """A transposed convolution over 3 dimensions."""

    _dims = 3


class _Dropout(Module):
    def __init__(self, p=0.5, inplace=False):
        super().__init__()
        if p < 0 or p > 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p, self.inplace = p, inplace

    def extra_repr(self):
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """Sets each element to 0 with probability p during training."""

    def forward(self, input):
        return F.dropout(input, self.p, self.training, self.inplace)


class Dropout2d(_Dropout):
    """Sets entire channels to 0 with probability p during training."""

    def forward(self, input):
        return F.dropout2d(input, self.p, self.training, self.inplace)


class Dropout1d(_Dropout):
    """Sets entire channels of (N, C, L) to 0 with probability p during training."""

    def forward(self, input):
        return F.dropout1d(input, self.p, self.training, self.inplace)


class Dropout3d(_Dropout):
    """Sets entire channels of (N, C, D, H, W) to 0 with probability p during training."""

    def forward(self, input):
        return F.dropout3d(input, self.p, self.training, self.inplace)


class AlphaDropout(_Dropout):
    """Dropout that preserves the mean and variance of SELU's results."""

    def forward(self, input):
        return F.alpha_dropout(input, self.p, self.training, self.inplace)


class FeatureAlphaDropout(_Dropout):
    """Dropout of entire channels that preserves the mean and variance of SELU's results."""

    def forward(self, input):
        return F.feature_alpha_dropout(input, self.p, self.training, self.inplace)


class Flatten(Module):
    """Merges dimensions into one."""

    def __init__(self, start_dim=1, end_dim=-1):
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input):
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self):
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Splits a dimension into several."""

    def __init__(self, dim, unflattened_size):
        super().__init__()
        if not isinstance(dim, (int, str)):
            raise TypeError("invalid argument type for dim parameter")
        kind, title = (int, "ints") if isinstance(dim, int) else (tuple, "tuples")
        # With named dimensions, only a tuple is allowed.
        if not isinstance(unflattened_size, (tuple, list) if kind is int else tuple):
            raise TypeError(f"unflattened_size must be a tuple of {title}, but found type {type(unflattened_size).__name__}")
        for place, element in enumerate(unflattened_size):
            if not isinstance(element, kind):
                raise TypeError(f"unflattened_size must be tuple of {title}, but found element of type {type(element).__name__} at pos {place}")
        self.dim, self.unflattened_size = dim, unflattened_size

    def forward(self, input):
        return input.unflatten(self.dim, self.unflattened_size)

    def extra_repr(self):
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class PixelShuffle(Module):
    """Moves blocks of channels to positions: (…, C · r², H, W) becomes (…, C, H · r, W · r)."""

    def __init__(self, upscale_factor):
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input):
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self):
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """Moves positions to blocks of channels: (…, C, H · r, W · r) becomes (…, C · r², H, W)."""

    def __init__(self, downscale_factor):
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input):
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self):
        return f"downscale_factor={self.downscale_factor}"


class Upsample(Module):
    """The input, resampled to more positions."""

    def __init__(self, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None):
        super().__init__()
        if scale_factor is not None:
            scale_factor = tuple(map(float, scale_factor)) if isinstance(scale_factor, (tuple, list)) else float(scale_factor)
        self.size, self.scale_factor, self.mode, self.align_corners = size, scale_factor, mode, align_corners
        self.recompute_scale_factor, self.name = recompute_scale_factor, type(self).__name__

    def extra_repr(self):
        extent = f"size={self.size!r}" if self.scale_factor is None else f"scale_factor={self.scale_factor!r}"
        return f"{extent}, mode={self.mode!r}"

    def forward(self, input):
        return F.interpolate(input, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor)


class UpsamplingNearest2d(Upsample):
    """Images at more positions, each with its nearest element."""

    def __init__(self, size=None, scale_factor=None):
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """Images at more positions, by bilinear interpolation with aligned corners."""

    def __init__(self, size=None, scale_factor=None):
        super().__init__(size, scale_factor, "bilinear", True)


class ChannelShuffle(Module):
    """The channels of all groups, interleaved."""

    def __init__(self, groups):
        super().__init__()
        self.groups = groups

    def forward(self, input):
        return _core.channel_shuffle(input, self.groups)

    def extra_repr(self):
        return f"groups={self.groups}"


class PairwiseDistance(Module):
    """The norm of the difference of two inputs along the last dimension."""

    def __init__(self, p=2.0, eps=1e-6, keepdim=False):
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1, x2):
        return _core.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)


class CosineSimilarity(Module):
    """The cosine between two inputs along a dimension."""

    def __init__(self, dim=1, eps=1e-8):
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1, x2):
        return _core.cosine_similarity(x1, x2, self.dim, self.eps)


class Unfold(Module):
    """The windows of images as columns."""

    def __init__(self, kernel_size, dilation=1, padding=0, stride=1):
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, input):
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self):
        return f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, stride={self.stride}"


class Fold(Module):
    """Images from the columns of their windows; overlapping elements are summed."""

    def __init__(self, output_size, kernel_size, dilation=1, padding=0, stride=1):
        super().__init__()
        self.output_size, self.kernel_size, self.dilation, self.padding, self.stride = output_size, kernel_size, dilation, padding, stride

    def forward(self, input):
        return F.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self):
        return (f"output_size={self.output_size}, kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, "
                f"stride={self.stride}")
