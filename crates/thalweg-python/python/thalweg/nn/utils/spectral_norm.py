"""Weights divided by their greatest singular value, by a hook (`torch.nn.utils.spectral_norm`); `parametrizations.spectral_norm` is the newer
way."""

from ... import _core
from .. import functional as F
from ..layers import _ConvTranspose
from ..parameter import Parameter, is_lazy


class SpectralNorm:
    """The hook that computes a weight before each call."""

    _version = 1

    def __init__(self, name="weight", n_power_iterations=1, dim=0, eps=1e-12):
        if n_power_iterations <= 0:
            raise ValueError(f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}")
        self.name, self.dim, self.n_power_iterations, self.eps = name, dim, n_power_iterations, eps

    def reshape_weight_to_matrix(self, weight):
        """Returns a weight as a matrix whose rows are its slices along a dimension."""
        if self.dim != 0:
            weight = weight.permute(self.dim, *(dim for dim in range(weight.dim()) if dim != self.dim))
        return weight.reshape(weight.shape[0], -1)

    def compute_weight(self, module, do_power_iteration):
        """Returns the weight divided by its greatest singular value, after iterating for the singular vectors if asked to."""
        weight, u, v = (getattr(module, f"{self.name}_{part}") for part in ("orig", "u", "v"))
        matrix = self.reshape_weight_to_matrix(weight)
        if do_power_iteration:
            former = _core._set_grad_enabled(False)
            try:
                for _ in range(self.n_power_iterations):
                    v.copy_(F.normalize(_core.mv(matrix.t(), u), dim=0, eps=self.eps))
                    u.copy_(F.normalize(_core.mv(matrix, v), dim=0, eps=self.eps))
                u, v = u.clone(), v.clone()
            finally:
                _core._set_grad_enabled(former)
        return weight / _core.dot(u, _core.mv(matrix, v))

    @staticmethod
    def apply(module, name, n_power_iterations, dim, eps):
        """Makes a weight of a module one that is divided by its greatest singular value."""
        if any(isinstance(hook, SpectralNorm) and hook.name == name for hook in module._forward_pre_hooks.values()):
            raise RuntimeError(f"Cannot register two spectral_norm hooks on the same parameter {name}")
        made, weight = SpectralNorm(name, n_power_iterations, dim, eps), module._parameters[name]
        if weight is None:
            raise ValueError(f"`SpectralNorm` cannot be applied as parameter `{name}` is None")
        if is_lazy(weight):
            raise ValueError("The module passed to `SpectralNorm` can't have uninitialized parameters. Make sure to run the dummy forward before applying "
                             "spectral normalization")
        vectors = [F.normalize(weight.new_empty([extent]).normal_(0, 1), dim=0, eps=eps)
                   for extent in made.reshape_weight_to_matrix(weight.detach()).shape]
        delattr(module, name)
        module.register_parameter(f"{name}_orig", weight)
        setattr(module, name, weight.detach())
        for part, vector in zip("uv", vectors):
            module.register_buffer(f"{name}_{part}", vector)
        module.register_forward_pre_hook(made)
        module._register_state_dict_hook(_Versioned(made))
        return made

    def remove(self, module):
        """Makes the weight a parameter again."""
        weight = self.compute_weight(module, do_power_iteration=False).detach()
        for suffix in ("", "_u", "_v", "_orig"):
            delattr(module, self.name + suffix)
        module.register_parameter(self.name, Parameter(weight))

    def __call__(self, module, inputs):
        setattr(module, self.name, self.compute_weight(module, do_power_iteration=module.training))


class _Versioned:
    """The hook that notes the version of the form in the metadata of a state."""

    def __init__(self, norm):
        self.norm = norm

    def __call__(self, module, state_dict, prefix, local_metadata):
        local_metadata.setdefault("spectral_norm", {})[f"{self.norm.name}.version"] = self.norm._version


def spectral_norm(module, name="weight", n_power_iterations=1, eps=1e-12, dim=None):
    """Makes a weight of a module one that is divided by its greatest singular value."""
    SpectralNorm.apply(module, name, n_power_iterations, dim if dim is not None else 1 if isinstance(module, _ConvTranspose) else 0, eps)
    return module


def remove_spectral_norm(module, name="weight"):
    """Makes a weight a parameter again."""
    for number, hook in list(module._forward_pre_hooks.items()):
        if isinstance(hook, SpectralNorm) and hook.name == name:
            hook.remove(module)
            del module._forward_pre_hooks[number]
            for other, noted in list(module._state_dict_hooks.items()):
                if isinstance(noted, _Versioned) and noted.norm is hook:
                    del module._state_dict_hooks[other]
            return module
    raise ValueError(f"spectral_norm of '{name}' not found in {module}")
