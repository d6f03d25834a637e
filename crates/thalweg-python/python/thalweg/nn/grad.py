"""Gradients of convolutions as functions (`torch.nn.grad`)."""

from .. import _core
from . import functional as F


def _gradient(dims, name, asked):
    """Returns the function that computes the gradient of a convolution's input or weight."""
    def gradient(given, size, grad_output, stride, padding, dilation, groups):
        convolve, former = getattr(F, f"conv{dims}d"), _core._set_grad_enabled(True)
        try:
            # The convolution is linear in this operand, so its values do not matter.
            leaf = _core.zeros(list(size), dtype=given.dtype, device=given.device, requires_grad=True)
            operands = (leaf, given) if asked == "input" else (given, leaf)
            from ..autograd import grad
            result = convolve(*operands, None, stride, padding, dilation, groups)
            return grad(result, leaf, grad_output, create_graph=former)[0]
        finally:
            _core._set_grad_enabled(former)

    if asked == "input":
        def function(input_size, weight, grad_output, stride=1, padding=0, dilation=1, groups=1):
            return gradient(weight, input_size, grad_output, stride, padding, dilation, groups)
    else:
        def function(input, weight_size, grad_output, stride=1, padding=0, dilation=1, groups=1):
            return gradient(input, weight_size, grad_output, stride, padding, dilation, groups)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Returns the gradient of the {asked} of a convolution over {dims} dimension{'s' if dims > 1 else ''}."
    return function


conv1d_input, conv2d_input, conv3d_input = (_gradient(dims, f"conv{dims}d_input", "input") for dims in (1, 2, 3))
conv1d_weight, conv2d_weight, conv3d_weight = (_gradient(dims, f"conv{dims}d_weight", "weight") for dims in (1, 2, 3))
