"""Compiled modules (`torch._dynamo.eval_frame.OptimizedModule`)."""

from .._compiling import compiled
from .module import Module

_OWN = ("_orig_mod", "_options", "forward", "_torchdynamo_orig_callable")


class OptimizedModule(Module):
    """A module whose loops are fused when it is called. Everything else is that of the original module."""

    def __init__(self, module, captures=False, fullgraph=False, tunes=False, adaptive=True):
        super().__init__()
        self._orig_mod = module
        self._options = captures, fullgraph, tunes, adaptive
        self.forward = compiled(module.__call__, captures, fullgraph, tunes, adaptive)
        self._torchdynamo_orig_callable = module.forward

    @property
    def training(self):
        """Whether the original module is in training mode."""
        return self._orig_mod.training if "_modules" in self.__dict__ and "_orig_mod" in self._modules else True

    @training.setter
    def training(self, mode):
        if "_modules" in self.__dict__ and "_orig_mod" in self._modules:
            self._orig_mod.training = mode

    def __getattr__(self, name):
        if name == "_orig_mod":
            return super().__getattr__(name)
        return getattr(self._orig_mod, name)

    def __setattr__(self, name, value):
        if name in _OWN or name == "training" or "_modules" not in self.__dict__ or "_orig_mod" not in self._modules:
            return super().__setattr__(name, value)
        setattr(self._orig_mod, name, value)

    def __delattr__(self, name):
        delattr(self._orig_mod, name)

    def __len__(self):
        return len(self._orig_mod)

    def __iter__(self):
        return iter(self._orig_mod)

    def __getitem__(self, place):
        return self._orig_mod[place]

    def __dir__(self):
        return sorted({*super().__dir__(), *dir(self._orig_mod)})

    def __reduce__(self):
        return OptimizedModule, (self._orig_mod, *self._options)

    def __deepcopy__(self, memo):
        import copy
        return OptimizedModule(copy.deepcopy(self._orig_mod, memo), *self._options)
