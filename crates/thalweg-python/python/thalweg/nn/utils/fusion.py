"""Fusion of batch norms into the layer before them (`torch.nn.utils.fusion`)."""

import copy

from ... import _core
from ..parameter import Parameter


def _check(layer, norm):
    if layer.training or norm.training:
        raise AssertionError("Fusion only for eval!")
    if norm.running_mean is None or norm.running_var is None:
        raise AssertionError("bn.running_mean and bn.running_var must not be None")


def _fused(weight, bias, mean, variance, eps, scale, shift, dim):
    """Returns the weight and bias of a layer that includes the normalization of its outputs, along a dimension of the weight."""
    factor = _core.rsqrt(variance + eps) * (1 if scale is None else scale)
    former = _core.zeros_like(mean) if bias is None else bias
    made = (weight * factor.reshape([-1 if one == dim else 1 for one in range(weight.dim())])).to(dtype=weight.dtype)
    moved = ((former - mean) * factor + (0 if shift is None else shift)).to(dtype=weight.dtype if bias is None else bias.dtype)
    return Parameter(made.detach(), weight.requires_grad), Parameter(moved.detach(), bias is not None and bias.requires_grad)


def fuse_conv_bn_weights(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, transpose=False):
    """Returns the weight and bias of a convolution fused with the batch norm after it."""
    return _fused(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, 1 if transpose else 0)


def fuse_linear_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b):
    """Returns the weight and bias of a linear layer fused with the batch norm after it."""
    return _fused(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, 0)


def fuse_conv_bn_eval(conv, bn, transpose=False):
    """Returns a convolution that is fused with the batch norm after it, for evaluation."""
    _check(conv, bn)
    made = copy.deepcopy(conv)
    made.weight, made.bias = fuse_conv_bn_weights(conv.weight, conv.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias, transpose)
    return made


def fuse_linear_bn_eval(linear, bn):
    """Returns a linear layer that is fused with the batch norm after it, for evaluation."""
    _check(linear, bn)
    if bn.num_features not in (1, linear.out_features):
        raise AssertionError("To fuse, linear.out_features == bn.num_features or bn.num_features == 1, got linear.out_features="
                             f"{linear.out_features} and bn.num_features={bn.num_features}")
    made = copy.deepcopy(linear)
    made.weight, made.bias = fuse_linear_bn_weights(linear.weight, linear.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias)
    return made
