"""Parameters of which each rank has a part."""

import functools
import types

from ... import _core, _torch_functions
from ...nn.parameter import Parameter, _Hook
from ...utils.hooks import RemovableHandle
from . import _OF_ENTIRE, _OF_PART, DTensor, _called, _of_gradient, made

_raw = {name: _torch_functions._original(name) for name in ("grad", "data")}


class ShardedParameter(Parameter, DTensor):
    """A divided tensor that is a parameter.

    It is this rank's part for autograd and for optimizers, whose kernels step the parts as they are, and it has the sizes of the entire
    tensor and divided results for functions. `_group` has the ranks among which `fully_shard` has divided it, if that has.
    """

    _group = None

    def __new__(cls, local, mesh, placements, shape, requires_grad=True):
        own = Parameter.__new__(cls, local, requires_grad)
        own.__dict__.update(device_mesh=mesh, placements=tuple(placements), _when_reduced={}, _when_accumulated={})
        own._set_sizes(local, shape)
        return own

    def __init__(self, *_, **__):
        pass

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return _called(func, args, kwargs or {})

    def _set_sizes(self, local, shape):
        self.__dict__["_outer"] = _core.empty(list(shape), dtype=local.dtype, device="meta")

    @property
    def _local(self):
        return self.as_subclass(_core.Tensor)

    @property
    def _handle(self):
        return self

    def _divided(self, part):
        """Returns this rank's part of another tensor that is divided as this one is."""
        return made(part, self.device_mesh, _of_gradient(self), None, self.__dict__["_outer"])

    def _state(self, value):
        """Returns a saved state, as this parameter is divided if it has the parameter's shape."""
        if not isinstance(value, _core.Tensor) or not value.dim() or tuple(value.shape) != tuple(self.shape):
            return value
        return self._divided(self._part(value, self.placements).contiguous())

    @property
    def _own_gradient(self):
        """The gradient of this rank's part."""
        return _raw["grad"].__get__(self)

    @property
    def grad(self):
        """The gradient, as a divided tensor."""
        own, (known, shown) = self._own_gradient, self.__dict__.get("_shown", (None, None))
        if own is not known:
            shown = None if own is None else self._divided(own)
            self.__dict__["_shown"] = own, shown
        return shown

    @grad.setter
    def grad(self, value):
        _raw["grad"].__set__(self, None if value is None else self._part(value, _of_gradient(self)).detach())

    @property
    def data(self):
        """The divided tensor without its place in the graph."""
        return made(_raw["data"].__get__(self), self.device_mesh, self.placements, self.shape)

    @data.setter
    def data(self, value):
        if not isinstance(value, DTensor):
            raise TypeError(f"data of a divided parameter is set to a {type(value).__name__}, and must be a DTensor: see distribute_tensor")
        part = self._part(value, self.placements).detach()
        _raw["data"].__set__(self, part)
        self._set_sizes(part, value.shape)

    def _take_gradient(self, part):
        """Adds this rank's part of a reduced gradient to the gradient."""
        if "_sum_over" in self.__dict__:
            part = _summed(part, self._sum_over)
        for hook in tuple(self._when_reduced.values()):
            replaced = hook(self._divided(part))
            part = part if replaced is None else self._part(replaced, _of_gradient(self))
        former = self._own_gradient
        _raw["grad"].__set__(self, part if former is None else former + part)
        for hook in tuple(self._when_accumulated.values()):
            hook(self)

    def register_hook(self, hook):
        """Registers a function of the gradient, which may return another one."""
        if self._group is not None:
            return _registered(self._when_reduced, hook)

        def of_part(gradient):
            replaced = hook(self._divided(gradient))
            return None if replaced is None else self._part(replaced, _of_gradient(self))
        return _Hook(self, _core.Tensor.register_hook, of_part)

    def register_post_accumulate_grad_hook(self, hook):
        """Registers a function of the parameter that is called after its gradient has been accumulated."""
        return _registered(self._when_accumulated, hook) if self._group is not None else super().register_post_accumulate_grad_hook(hook)

    def sum_over(self, group):
        """Makes the gradient the sum of the ranks' gradients."""
        self.__dict__["_sum_over"] = group
        _core.Tensor.register_hook(self, lambda gradient: _summed(gradient, group))

    def _like(self, part, requires_grad):
        """Returns another parameter that is divided as this one is."""
        other = ShardedParameter(part, self.device_mesh, self.placements, self.shape, requires_grad)
        other.__dict__.update({name: self.__dict__[name] for name in ("_group", "_dim", "_shape_in_group", "_sum_over") if name in self.__dict__})
        return other

    def _loaded(self, saved):
        """Returns a saved tensor, which may be divided or entire, as this one is divided."""
        if tuple(saved.shape) != tuple(self.shape):
            return saved
        return self._like(self._part(saved, self.placements), self.requires_grad)

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            memo[id(self)] = self._like(self._local.detach().clone(), self.requires_grad)
        return memo[id(self)]

    __repr__ = DTensor.__repr__

    def __reduce_ex__(self, protocol):
        return ShardedParameter, (self._local.detach(), self.device_mesh, self.placements, tuple(self.shape), self.requires_grad)


def _of_entire(name):
    """Returns an attribute of the entire tensor."""
    own = _torch_functions._original(name)
    if isinstance(own, types.GetSetDescriptorType):
        return property(lambda self: own.__get__(self.__dict__["_outer"]), doc=own.__doc__)
    return functools.update_wrapper(lambda self, *args, **kwargs: own(self.__dict__["_outer"], *args, **kwargs), own)


for _name in _OF_PART:
    setattr(ShardedParameter, _name, _torch_functions._original(_name))
for _name in _OF_ENTIRE:
    setattr(ShardedParameter, _name, _of_entire(_name))


def _summed(gradient, group):
    from .._functional_collectives import reduced
    return reduced(gradient, "sum", group)


def _registered(hooks, hook):
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle
