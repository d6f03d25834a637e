"""Operators that are internal to PyTorch, but that programs and PyTorch's own operator lists use."""

from . import _core
from .autograd import no_grad

__all__ = ["_addmm_activation", "_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_", "_convolution", "cudnn_convolution",
           "cudnn_convolution_transpose"]


def _several(value, like):
    """Returns one number for each spatial dimension of a tensor."""
    return list(value) if isinstance(value, (tuple, list)) else [value] * (like.dim() - 2)


def _convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, *_switches):
    """Returns a convolution. The switches of libraries have no effect here; `backends` has them."""
    stride, padding, dilation, output_padding = (_several(value, input) for value in (stride, padding, dilation, output_padding))
    return _core.convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


def cudnn_convolution(input, weight, padding, stride, dilation, groups, benchmark, deterministic, allow_tf32):
    """Returns a convolution without bias."""
    return _convolution(input, weight, None, stride, padding, dilation, False, 0, groups)


def cudnn_convolution_transpose(input, weight, padding, output_padding, stride, dilation, groups, benchmark, deterministic, allow_tf32):
    """Returns a transposed convolution without bias."""
    return _convolution(input, weight, None, stride, padding, dilation, True, output_padding, groups)


def _addmm_activation(input, mat1, mat2, *, beta=1, alpha=1, use_gelu=False):
    """Returns `addmm` followed by a ReLU or, with `use_gelu`, a GELU."""
    product = _core.addmm(input, mat1, mat2, beta=beta, alpha=alpha)
    return _core.gelu(product) if use_gelu else _core.relu(product)


@no_grad()
def _amp_foreach_non_finite_check_and_unscale_(grads, found_inf, inv_scale):
    """Multiplies gradients by a number on the device, in place, and sets `found_inf` to 1 if one of them is not finite."""
    for grad in grads:
        found_inf.copy_(_core.maximum(found_inf, (~_core.isfinite(grad)).any().to(found_inf.dtype)))
        grad.mul_(inv_scale.to(grad.dtype))


@no_grad()
def _amp_update_scale_(self, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor, growth_interval):
    """Decreases the scale of gradients after a step with one that is not finite, and increases it after enough finite steps, on
    the device."""
    is_infinite = found_inf != 0
    steps = _core.where(is_infinite, 0, growth_tracker + 1)
    is_grown = steps == growth_interval
    grown = self * scale_growth_factor
    grown = _core.where(is_grown & _core.isfinite(grown), grown, self)
    self.copy_(_core.where(is_infinite, self * scale_backoff_factor, grown))
    growth_tracker.copy_(_core.where(is_grown, 0, steps).to(growth_tracker.dtype))
    return self
