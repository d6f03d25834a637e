"""Modules of pools (`torch.nn.MaxPool2d` and its like)."""

import numbers

from . import functional as F
from .module import Module


class _MaxPool(Module):
    _dims = 0

    def __init__(self, kernel_size, stride=None, padding=0, dilation=1, return_indices=False, ceil_mode=False):
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation, self.return_indices, self.ceil_mode = padding, dilation, return_indices, ceil_mode

    def forward(self, input):
        pool = getattr(F, f"max_pool{self._dims}d")
        return pool(input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices)

    def extra_repr(self):
        return (f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
                f"ceil_mode={self.ceil_mode}")


class MaxPool1d(_MaxPool):
    """The greatest element of each window of 1 dimension."""

    _dims = 1


class MaxPool2d(_MaxPool):
    """The greatest element of each window of 2 dimensions."""

    _dims = 2


class MaxPool3d(_MaxPool):
    """The greatest element of each window of 3 dimensions."""

    _dims = 3


def _sizes(dims, kernel_size, stride, padding):
    """Returns the sizes of windows, their steps and the padding as tuples."""
    values = (kernel_size, kernel_size if stride is None else stride, padding)
    return [tuple(value) if isinstance(value, (tuple, list)) else (value,) * dims for value in values]


class _MaxUnpool(Module):
    _dims = 0

    def __init__(self, kernel_size, stride=None, padding=0):
        super().__init__()
        self.kernel_size, self.stride, self.padding = _sizes(self._dims, kernel_size, stride, padding)

    def forward(self, input, indices, output_size=None):
        return getattr(F, f"max_unpool{self._dims}d")(input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self):
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    """Zeros, with the elements of a pool of 1 dimension at their original positions."""

    _dims = 1


class MaxUnpool2d(_MaxUnpool):
    """Zeros, with the elements of a pool of 2 dimensions at their original positions."""

    _dims = 2


class MaxUnpool3d(_MaxUnpool):
    """Zeros, with the elements of a pool of 3 dimensions at their original positions."""

    _dims = 3


class _AvgPool(Module):
    """The base class of pools of means."""


class AvgPool1d(_AvgPool):
    """The mean of each window of 1 dimension."""

    def __init__(self, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
        super().__init__()
        self.kernel_size, self.stride, self.padding = _sizes(1, kernel_size, stride, padding)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input):
        return F.avg_pool1d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

    def extra_repr(self):
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(_AvgPool):
    """The mean of each window of 2 dimensions."""

    _dims = 2

    def __init__(self, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.ceil_mode, self.count_include_pad, self.divisor_override = ceil_mode, count_include_pad, divisor_override

    def forward(self, input):
        pool = getattr(F, f"avg_pool{self._dims}d")
        return pool(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad, self.divisor_override)

    def extra_repr(self):
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool3d(AvgPool2d):
    """The mean of each window of 3 dimensions."""

    _dims = 3


class _LPPool(Module):
    _dims = 0

    def __init__(self, norm_type, kernel_size, stride=None, ceil_mode=False):
        super().__init__()
        self.norm_type, self.kernel_size, self.stride, self.ceil_mode = norm_type, kernel_size, stride, ceil_mode

    def forward(self, input):
        pool = getattr(F, f"lp_pool{self._dims}d")
        return pool(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self):
        return f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, ceil_mode={self.ceil_mode}"


class LPPool1d(_LPPool):
    """The p-norm of each window of 1 dimension."""

    _dims = 1


class LPPool2d(_LPPool):
    """The p-norm of each window of 2 dimensions."""

    _dims = 2


class LPPool3d(_LPPool):
    """The p-norm of each window of 3 dimensions."""

    _dims = 3


class _Adaptive(Module):
    _function = ""

    def __init__(self, output_size):
        super().__init__()
        self.output_size = output_size

    def forward(self, input):
        return getattr(F, self._function)(input, self.output_size)

    def extra_repr(self):
        return f"output_size={self.output_size}"


class _AdaptiveAvg(_Adaptive):
    """The base class of pools of means with an output of a given size."""


class AdaptiveAvgPool1d(_AdaptiveAvg):
    """The means of windows of 1 dimension, one for each position of an output of the given size."""

    _function = "adaptive_avg_pool1d"


class AdaptiveAvgPool2d(_AdaptiveAvg):
    """The means of windows of 2 dimensions, one for each position of an output of the given size."""

    _function = "adaptive_avg_pool2d"


class AdaptiveAvgPool3d(_AdaptiveAvg):
    """The means of windows of 3 dimensions, one for each position of an output of the given size."""

    _function = "adaptive_avg_pool3d"


class _AdaptiveMax(_Adaptive):
    def __init__(self, output_size, return_indices=False):
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input):
        return getattr(F, self._function)(input, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMax):
    """The maxima of windows of 1 dimension, one for each position of an output of the given size."""

    _function = "adaptive_max_pool1d"


class AdaptiveMaxPool2d(_AdaptiveMax):
    """The maxima of windows of 2 dimensions, one for each position of an output of the given size."""

    _function = "adaptive_max_pool2d"


class AdaptiveMaxPool3d(_AdaptiveMax):
    """The maxima of windows of 3 dimensions, one for each position of an output of the given size."""

    _function = "adaptive_max_pool3d"


class _FractionalMaxPool(Module):
    _dims = 0

    def __init__(self, kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None):
        super().__init__()
        name, dims = type(self).__name__, self._dims
        sizes = [kernel_size] if isinstance(kernel_size, numbers.Integral) else kernel_size
        if dims == 3 and not all(size > 0 for size in sizes):
            raise ValueError(f"kernel_size must greater than 0, but got {kernel_size}")
        if output_size is None and output_ratio is None:
            raise ValueError(f"{name} requires specifying either an output size, or a pooling ratio")
        if output_size is not None and output_ratio is not None:
            raise ValueError("only one of output_size and output_ratio may be specified")

        def each(value):
            return value if value is None or isinstance(value, (tuple, list)) else (value,) * dims
        if output_ratio is not None and not all(0 < ratio < 1 for ratio in each(output_ratio)):
            raise ValueError(f"output_ratio must be between 0 and 1 (got {output_ratio})")
        self.kernel_size, self.output_size, self.output_ratio = (each(value) for value in (kernel_size, output_size, output_ratio))
        self.return_indices = return_indices
        self.register_buffer("_random_samples", _random_samples)

    def forward(self, input):
        pool = getattr(F, f"fractional_max_pool{self._dims}d")
        return pool(input, self.kernel_size, self.output_size, self.output_ratio, self.return_indices, _random_samples=self._random_samples)


class FractionalMaxPool2d(_FractionalMaxPool):
    """The maximum of each window of 2 dimensions, with random window positions."""

    _dims = 2


class FractionalMaxPool3d(_FractionalMaxPool):
    """The maximum of each window of 3 dimensions, with random window positions."""

    _dims = 3
