"""Autograd functions that PyTorch itself defines (`torch.autograd._functions`)."""

import math
import operator

from .function import Function


class Resize(Function):
    """Returns a contiguous tensor in another shape with the same number of elements."""

    @staticmethod
    def forward(ctx, tensor, sizes):
        ctx.sizes = tensor.size()
        if math.prod(sizes) != tensor.numel():
            raise RuntimeError(f"requested resize to {'x'.join(map(str, sizes))} ({math.prod(sizes)} elements in total), but the given tensor has a size of "
                               f"{'x'.join(map(str, tensor.size()))} ({tensor.numel()} elements). autograd's resize can only change the shape of a given "
                               "tensor, while preserving the number of elements. ")
        return tensor.contiguous().clone().view(*map(operator.index, sizes))

    @staticmethod
    def backward(ctx, gradient):
        return gradient.contiguous().view(ctx.sizes), None
