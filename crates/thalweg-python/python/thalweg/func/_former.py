"""The package `functorch`, under whose name programs used `torch.func` before."""

import copy

from . import functionalize, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap  # noqa: F401
from ._modules import functional_call


class FunctionalModule:
    """A module as a function of its parameters, and of its inputs."""

    def __init__(self, module, names, buffer_names=None):
        self.stateless_model, self.param_names, self.buffer_names = module, names, buffer_names

    def __call__(self, params, *args, **kwargs):
        values = dict(zip(self.param_names, params))
        if self.buffer_names is not None:
            buffers, *args = args
            values |= dict(zip(self.buffer_names, buffers))
        return functional_call(self.stateless_model, values, tuple(args), kwargs)


class FunctionalModuleWithBuffers(FunctionalModule):
    """A module as a function of its parameters, its buffers and its inputs."""


def _taken(values, is_detached):
    return tuple(value.detach().clone().requires_grad_(value.requires_grad and not is_detached) for value in values)


def make_functional(model, disable_autograd_tracking=False):
    """Returns a module as a function of its parameters and inputs, and the parameters."""
    if dict(model.named_buffers()):
        raise RuntimeError("make_functional(model): `model` has buffers. Please use make_functional_with_buffers(model) instead.")
    named = dict(model.named_parameters())
    return FunctionalModule(copy.deepcopy(model), list(named)), _taken(named.values(), disable_autograd_tracking)


def make_functional_with_buffers(model, disable_autograd_tracking=False):
    """Returns a module as a function of its parameters, buffers and inputs, the parameters and the buffers."""
    named, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    made = FunctionalModuleWithBuffers(copy.deepcopy(model), list(named), list(buffers))
    return made, _taken(named.values(), disable_autograd_tracking), _taken(buffers.values(), True)


def combine_state_for_ensemble(models):
    """Returns identical modules as one function of their stacked parameters and buffers, with both."""
    made, _, _ = make_functional_with_buffers(models[0])
    parameters, buffers = stack_module_state(models)
    return made, tuple(parameters.values()), tuple(buffers.values())
