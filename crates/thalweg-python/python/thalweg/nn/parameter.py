"""`Parameter` and `Buffer`: tensors that modules know."""

from .. import _core, _left_out


class Parameter(_core.Tensor):
    """A tensor that a module collects among its parameters when it becomes an attribute."""

    def __new__(cls, data=None, requires_grad=True):
        return super().__new__(cls, *(() if data is None else (data,)), requires_grad=requires_grad)

    def __init__(self, data=None, requires_grad=True):
        pass

    @classmethod
    def _of(cls, tensor):
        return cls(tensor, tensor.requires_grad)

    def __deepcopy__(self, memo):
        """Returns a copy of the elements, in memory of its own and without the gradient."""
        if id(self) not in memo:
            memo[id(self)] = type(self)(self.detach().clone(), self.requires_grad)
        return memo[id(self)]

    def __repr__(self):
        return "Parameter containing:\n" + super().__repr__()


class Buffer(_core.Tensor):
    """A tensor that a module collects among its buffers when it becomes an attribute."""

    def __new__(cls, data=None, *, persistent=True):
        made = super().__new__(cls, *(() if data is None else (data,)))
        made.persistent = persistent
        return made

    def __init__(self, data=None, *, persistent=True):
        pass

    @classmethod
    def _of(cls, tensor):
        return cls(tensor)


__getattr__ = _left_out.attributes(__name__)
