"""Convolutions of complex tensors, which are composed of real ones."""

from .. import _core


def convolved(convolve, input, weight, bias, options):
    """Returns a convolution by `convolve(input, weight, bias, *options)`. A convolution of complex operands takes three real
    ones."""
    if not all(isinstance(tensor, _core.Tensor) and tensor.is_complex() for tensor in (input, weight)):
        return convolve(input, weight, bias, *options)
    a, b, c, d = input.real, input.imag, weight.real, weight.imag
    both, neither, mixed = convolve(a, c, None, *options), convolve(b, d, None, *options), convolve(a + b, c + d, None, *options)
    result = _core.complex(both - neither, mixed - both - neither)
    if bias is None:
        return result
    dims = weight.dim() - 2
    return result + bias.reshape([-1, *[1] * dims])
