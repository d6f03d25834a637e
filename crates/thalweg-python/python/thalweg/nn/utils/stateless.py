"""Calls of modules with other parameters, under their former name (`torch.nn.utils.stateless`)."""

from ...func import functional_call as _called

__all__ = ["functional_call"]


def functional_call(module, parameters_and_buffers, args=None, kwargs=None, *, tie_weights=True, strict=False):
    """Returns the result of a module with other tensors as its parameters and buffers."""
    return _called(module, parameters_and_buffers, args, kwargs, tie_weights=tie_weights, strict=strict)
