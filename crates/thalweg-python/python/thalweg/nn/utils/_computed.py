"""Weights that a hook computes before each call from other parameters: the common part of `weight_norm` and `spectral_norm`."""

from ..parameter import is_lazy


class ComputedWeight:
    """The hook. Subclasses define how a weight is computed, and how it is turned back into a parameter."""

    # The name of the function that adds such hooks.
    _function = None

    def __init__(self, name, dim):
        self.name, self.dim = name, dim

    def _add_to(self, module, weight):
        """Adds the hook to a module. The weight must have a shape, and must not have another hook of this kind."""
        if type(self)._found(module, self.name) is not None:
            raise RuntimeError(f"Cannot register two {self._function} hooks on the same parameter {self.name}")
        if is_lazy(weight):
            raise ValueError(f"The module passed to `{type(self).__name__}` can't have uninitialized parameters. Make sure to run the dummy forward before "
                             f"applying {self._function.replace('_norm', ' normalization')}")
        module.register_forward_pre_hook(self)

    @classmethod
    def _found(cls, module, name):
        """Returns the number of a module's hook for a weight, or None."""
        return next((number for number, hook in module._forward_pre_hooks.items() if isinstance(hook, cls) and hook.name == name), None)

    @classmethod
    def _removed_from(cls, module, name):
        """Removes the hook for a weight from a module, makes the weight a parameter again, and returns the hook."""
        number = cls._found(module, name)
        if number is None:
            raise ValueError(f"{cls._function} of '{name}' not found in {module}")
        hook = module._forward_pre_hooks[number]
        hook.remove(module)
        del module._forward_pre_hooks[number]
        return hook

    def compute_weight(self, module):
        """Returns the weight."""
        raise NotImplementedError

    def __call__(self, module, inputs):
        setattr(module, self.name, self.compute_weight(module))
