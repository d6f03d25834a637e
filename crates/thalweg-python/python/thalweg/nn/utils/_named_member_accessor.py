"""Tensors and modules by their paths in a module (`torch.nn.utils._named_member_accessor`)."""

from ... import _core

_MISSING = object()


def swap_tensor(module, name, tensor, allow_missing=False):
    """Replaces a parameter, a buffer or an attribute by a tensor, and returns the former one."""
    if "." in name or not name:
        raise KeyError(f"tensor name can't {'contain a dot' if name else 'be empty string'}, got {name!r}")
    places = next((own for own in (module._parameters, module._buffers) if name in own), None)
    former = places[name] if places is not None else module.__dict__.get(name, _MISSING)
    if former is _MISSING and not allow_missing:
        raise AttributeError(f"{module._get_name()} has no attribute `{name}`")
    if former is not _MISSING and former is not None and not isinstance(former, _core.Tensor) and not allow_missing:
        raise TypeError(f"{name} is not a tensor of {module._get_name()}")
    if places is not None:
        if tensor is _MISSING:
            del places[name]
        else:
            places[name] = tensor
    elif tensor is _MISSING:
        module.__dict__.pop(name, None)
    else:
        module.__dict__[name] = tensor
    return former


class NamedMemberAccessor:
    """The tensors and the submodules of a module by their paths."""

    def __init__(self, module):
        self.module = module

    def get_submodule(self, name):
        """Returns a submodule."""
        return self.module.get_submodule(name)

    def swap_tensor(self, name, value, *, allow_missing=False):
        """Replaces a tensor by another, and returns the former one."""
        path, _, own = name.rpartition(".")
        return swap_tensor(self.get_submodule(path), own, value, allow_missing)

    def get_tensor(self, name):
        """Returns a tensor."""
        path, _, own = name.rpartition(".")
        found = getattr(self.get_submodule(path), own)
        if not isinstance(found, _core.Tensor) and found is not None:
            raise TypeError(f"{name} is not a tensor")
        return found

    def set_tensor(self, name, value):
        """Replaces a tensor by another."""
        self.swap_tensor(name, value, allow_missing=True)

    def del_tensor(self, name):
        """Removes a tensor."""
        self.swap_tensor(name, _MISSING)

    def named_parameters(self, remove_duplicate=True):
        """Returns the parameters with their paths."""
        return self.module.named_parameters(remove_duplicate=remove_duplicate)

    def named_buffers(self, remove_duplicate=True):
        """Returns the buffers with their paths."""
        return self.module.named_buffers(remove_duplicate=remove_duplicate)

    def named_modules(self, remove_duplicate=True):
        """Returns the modules with their paths."""
        return self.module.named_modules(remove_duplicate=remove_duplicate)
