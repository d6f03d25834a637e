"""Weights divided by their greatest singular value, by a hook (`torch.nn.utils.spectral_norm`).
`parametrizations.spectral_norm` is the newer interface."""

from ... import _core
from .. import functional as F
from ..layers import _ConvTranspose
from ..parameter import Parameter
from ._computed import ComputedWeight


class SpectralNorm(ComputedWeight):
    """The hook that computes a weight before each call."""

    _version, _function = 1, "spectral_norm"

    def __init__(self, name="weight", n_power_iterations=1, dim=0, eps=1e-12):
        if n_power_iterations <= 0:
            raise ValueError(f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}")
        super().__init__(name, dim)
        self.n_power_iterations, self.eps = n_power_iterations, eps

    def reshape_weight_to_matrix(self, weight):
        """Returns a weight as a matrix whose rows are its slices along a dimension."""
        if self.dim != 0:
            weight = weight.permute(self.dim, *(dim for dim in range(weight.dim()) if dim != self.dim))
        return weight.reshape(weight.shape[0], -1)

    def compute_weight(self, module, do_power_iteration=None):
        """Returns the weight divided by its greatest singular value, after a power iteration if requested. By default, it
        iterates during training."""
        weight, u, v = (getattr(module, f"{self.name}_{part}") for part in ("orig", "u", "v"))
        matrix = self.reshape_weight_to_matrix(weight)
        if module.training if do_power_iteration is None else do_power_iteration:
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
        """Replaces a weight of a module with one that is divided by its greatest singular value."""
        made, weight = SpectralNorm(name, n_power_iterations, dim, eps), module._parameters.get(name)
        if SpectralNorm._found(module, name) is None and weight is None:
            raise ValueError(f"`SpectralNorm` cannot be applied as parameter `{name}` is None")
        made._add_to(module, weight)
        vectors = [F.normalize(weight.new_empty([extent]).normal_(0, 1), dim=0, eps=eps)
                   for extent in made.reshape_weight_to_matrix(weight.detach()).shape]
        delattr(module, name)
        module.register_parameter(f"{name}_orig", weight)
        setattr(module, name, weight.detach())
        for part, vector in zip("uv", vectors):
            module.register_buffer(f"{name}_{part}", vector)
        module._register_state_dict_hook(_Versioned(made))
        module._register_load_state_dict_pre_hook(_FirstVersion(made))
        return made

    def remove(self, module):
        """Makes the weight a parameter again."""
        weight = self.compute_weight(module, do_power_iteration=False).detach()
        for suffix in ("", "_u", "_v", "_orig"):
            delattr(module, self.name + suffix)
        module.register_parameter(self.name, Parameter(weight))


class _Versioned:
    """The hook that writes the version of the format into the metadata of a state."""

    def __init__(self, norm):
        self.norm = norm

    def __call__(self, module, state_dict, prefix, local_metadata):
        local_metadata.setdefault("spectral_norm", {})[f"{self.norm.name}.version"] = self.norm._version


class _FirstVersion:
    """The hook that completes a state in the first format, which contains the computed weight and no right singular vector."""

    def __init__(self, norm):
        self.norm = norm

    def __call__(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs):
        norm, key = self.norm, prefix + self.norm.name
        version = local_metadata.get("spectral_norm", {}).get(f"{norm.name}.version")
        is_newer = version is None and key not in state_dict and all(f"{key}_{part}" in state_dict for part in ("orig", "u", "v"))
        if is_newer or (version or 0) >= 1:
            return
        missing = [name for name in (f"{key}_orig", key, f"{key}_u") if name not in state_dict]
        if missing:
            missing_keys.extend(missing if strict else ())
            return
        weight, u, computed = state_dict[f"{key}_orig"].detach(), state_dict[f"{key}_u"].detach(), state_dict.pop(key).detach()
        matrix = norm.reshape_weight_to_matrix(weight)
        # The original weight is the computed one times the greatest singular value, with the singular vectors u and v.
        v = _core.mv(_core.linalg_pinv(matrix), u)
        state_dict[f"{key}_v"] = v * ((weight / computed).mean() / _core.dot(u, _core.mv(matrix, v)))


def spectral_norm(module, name="weight", n_power_iterations=1, eps=1e-12, dim=None):
    """Replaces a weight of a module with one that is divided by its greatest singular value."""
    SpectralNorm.apply(module, name, n_power_iterations, dim if dim is not None else 1 if isinstance(module, _ConvTranspose) else 0, eps)
    return module


def remove_spectral_norm(module, name="weight"):
    """Makes a weight a parameter again."""
    norm = SpectralNorm._removed_from(module, name)
    for hooks, kind in ((module._state_dict_hooks, _Versioned), (module._load_state_dict_pre_hooks, _FirstVersion)):
        for number, hook in list(hooks.items()):
            if isinstance(hook, kind) and hook.norm is norm:
                del hooks[number]
    return module
