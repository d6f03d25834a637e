"""Weights as norms and directions, by a hook (`torch.nn.utils.weight_norm`).
`parametrizations.weight_norm` is the newer interface."""

import warnings

from ... import _core
from ..parameter import Parameter
from ._computed import ComputedWeight


def norm_except_dim(v, pow=2, dim=0):
    """Returns the norms of the slices along a dimension, or of the entire tensor if `dim` is -1."""
    if dim == -1:
        return _core.linalg_vector_norm(v, pow)
    others = [one for one in range(v.dim()) if one != dim % v.dim()]
    return _core.linalg_vector_norm(v, pow, others, True) if others else v.abs()


def weight_of(v, g, dim=0):
    """Returns the product of directions and norms."""
    return v * (g / norm_except_dim(v, 2, dim))


class WeightNorm(ComputedWeight):
    """The hook that computes a weight before each call."""

    _function = "weight_norm"

    def __init__(self, name, dim):
        super().__init__(name, -1 if dim is None else dim)

    def compute_weight(self, module):
        """Returns the weight from its norms and directions."""
        return weight_of(getattr(module, f"{self.name}_v"), getattr(module, f"{self.name}_g"), self.dim)

    @staticmethod
    def apply(module, name, dim):
        """Splits a weight of a module into norms and directions."""
        warnings.warn("`torch.nn.utils.weight_norm` is deprecated in favor of `torch.nn.utils.parametrizations.weight_norm`.", FutureWarning,
                      stacklevel=3)
        made, weight = WeightNorm(name, dim), getattr(module, name)
        made._add_to(module, weight)
        norms = norm_except_dim(weight.detach(), 2, made.dim)
        del module._parameters[name]
        module.register_parameter(f"{name}_g", Parameter(norms))
        module.register_parameter(f"{name}_v", Parameter(weight.detach()))
        setattr(module, name, made.compute_weight(module))
        return made

    def remove(self, module):
        """Makes the weight a parameter again."""
        weight = self.compute_weight(module)
        delattr(module, self.name)
        del module._parameters[f"{self.name}_g"], module._parameters[f"{self.name}_v"]
        setattr(module, self.name, Parameter(weight.detach()))


def weight_norm(module, name="weight", dim=0):
    """Splits a weight into the norms and directions of its slices, which are learned instead."""
    WeightNorm.apply(module, name, dim)
    return module


def remove_weight_norm(module, name="weight"):
    """Makes a weight a parameter again."""
    WeightNorm._removed_from(module, name)
    return module
