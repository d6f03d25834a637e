"""Calls of modules with other parameters, under their former name (`torch.nn.utils.stateless`)."""

from ...func import functional_call as _called
from ...func._modules import _replaced

__all__ = ["functional_call"]


def functional_call(module, parameters_and_buffers, args=None, kwargs=None, *, tie_weights=True, strict=False):
    """Returns the result of a module with other tensors as its parameters and buffers."""
    return _called(module, parameters_and_buffers, args, kwargs, tie_weights=tie_weights, strict=strict)


def _reparametrize_module(module, parameters_and_buffers, *, tie_weights=False, strict=False, stack_weights=False):
    """Returns a region in which a module has other tensors as its parameters and buffers."""
    return _replaced(module, parameters_and_buffers, tie_weights, strict)
