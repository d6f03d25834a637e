"""Weights as norms and directions, by a hook (`torch.nn.utils.weight_norm`); `parametrizations.weight_norm` is the newer way."""

import warnings

from ... import _core
from ..parameter import Parameter, is_lazy


def norm_except_dim(v, pow=2, dim=0):
    """Returns the norms of the slices along a dimension, or of the whole where it is -1."""
    if dim == -1:
        return _core.linalg_vector_norm(v, pow)
    others = [one for one in range(v.dim()) if one != dim % v.dim()]
    return _core.linalg_vector_norm(v, pow, others, True) if others else v.abs()


def weight_of(v, g, dim=0):
    """Returns directions times norms."""
    return v * (g / norm_except_dim(v, 2, dim))


class WeightNorm:
    """The hook that computes a weight before each call."""

    def __init__(self, name, dim):
        self.name, self.dim = name, -1 if dim is None else dim

    def compute_weight(self, module):
        """Returns the weight by its norms and directions."""
        return weight_of(getattr(module, f"{self.name}_v"), getattr(module, f"{self.name}_g"), self.dim)

    @staticmethod
    def apply(module, name, dim):
        """Splits a weight of a module into norms and directions."""
        warnings.warn("`torch.nn.utils.weight_norm` is deprecated in favor of `torch.nn.utils.parametrizations.weight_norm`.", FutureWarning,
                      stacklevel=3)
        if any(isinstance(hook, WeightNorm) and hook.name == name for hook in module._forward_pre_hooks.values()):
            raise RuntimeError(f"Cannot register two weight_norm hooks on the same parameter {name}")
        made, weight = WeightNorm(name, dim), getattr(module, name)
        if is_lazy(weight):
            raise ValueError("The module passed to `WeightNorm` can't have uninitialized parameters. Make sure to run the dummy forward before applying "
                             "weight normalization")
        norms = norm_except_dim(weight.detach(), 2, made.dim)
        del module._parameters[name]
        module.register_parameter(f"{name}_g", Parameter(norms))
        module.register_parameter(f"{name}_v", Parameter(weight.detach()))
        setattr(module, name, made.compute_weight(module))
        module.register_forward_pre_hook(made)
        return made

    def remove(self, module):
        """Makes the weight a parameter again."""
        weight = self.compute_weight(module)
        delattr(module, self.name)
        del module._parameters[f"{self.name}_g"], module._parameters[f"{self.name}_v"]
        setattr(module, self.name, Parameter(weight.detach()))

    def __call__(self, module, inputs):
        setattr(module, self.name, self.compute_weight(module))


def weight_norm(module, name="weight", dim=0):
    """Splits a weight into norms and directions of its slices, which are learned in its place."""
    WeightNorm.apply(module, name, dim)
    return module


def remove_weight_norm(module, name="weight"):
    """Makes a weight a parameter again."""
    for number, hook in list(module._forward_pre_hooks.items()):
        if isinstance(hook, WeightNorm) and hook.name == name:
            hook.remove(module)
            del module._forward_pre_hooks[number]
            return module
    raise ValueError(f"weight_norm of '{name}' not found in {module}")
