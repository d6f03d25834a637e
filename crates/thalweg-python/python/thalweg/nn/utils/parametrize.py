"""Tensors of modules that are computed from other tensors (`torch.nn.utils.parametrize`)."""

import collections.abc
import contextlib
import copy

from ... import _core
from ..containers import ModuleDict, ModuleList
from ..parameter import Parameter

# The tensors computed in regions of `cached`, by module and name, and the number of open regions.
_cache = {}
_cache_enabled = 0


@contextlib.contextmanager
def cached():
    """Returns a region in which each parametrized tensor is computed only once."""
    global _cache_enabled
    _cache_enabled += 1
    try:
        yield
    finally:
        _cache_enabled -= 1
        if not _cache_enabled:
            _cache.clear()


@contextlib.contextmanager
def _unrecorded():
    former = _core._set_grad_enabled(False)
    try:
        yield
    finally:
        _core._set_grad_enabled(former)


def _register(module, name, tensor):
    if isinstance(tensor, Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor)


def _same(found, wanted, first, second, text):
    """Refuses a tensor whose dtype or shape is not the expected one."""
    for kind in ("dtype", "shape"):
        one, other = getattr(wanted, kind), getattr(found, kind)
        if one != other:
            raise ValueError(f"{text.format(kind)}\n{first}.{kind}: {one}\n{second}.{kind}: {other}")


def _check_tensor(value, title):
    if not isinstance(value, _core.Tensor):
        raise ValueError(f"{title} must return a tensor. Got {type(value).__name__}.")


_CHANGES = "Registering a parametrization may not change the {} of the tensor, unless the `unsafe` flag is enabled."


class ParametrizationList(ModuleList):
    """The parametrizations of one tensor, with the tensors that it is computed from: `original`, or `original0` and so on."""

    def __init__(self, modules, original, unsafe=False):
        if len(modules) == 0:
            raise ValueError("ParametrizationList requires one or more modules.")
        super().__init__(modules)
        self.unsafe = unsafe
        like = original.detach()
        with _unrecorded():
            new = original
            for module in reversed(list(self)):
                if hasattr(module, "right_inverse"):
                    with contextlib.suppress(NotImplementedError):
                        new = module.right_inverse(new)
        if not isinstance(new, (_core.Tensor, collections.abc.Sequence)):
            raise ValueError(f"'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). Got {type(new).__name__}")
        self.is_tensor = isinstance(new, _core.Tensor)
        self.ntensors = 1 if self.is_tensor else len(new)
        former = original.detach().clone()
        if self.is_tensor:
            self._take_one(original, new)
        else:
            self._take_all(original, new)
        if not unsafe:
            try:
                found = self()
                _check_tensor(found, "A parametrization")
                _same(found, like, "unparametrized", "parametrized", _CHANGES)
            except Exception:
                if self.is_tensor:
                    original.data = former
                raise

    def _take_one(self, original, new):
        for kind in ("dtype", "device"):
            one, other = getattr(original, kind), getattr(new, kind)
            if one != other:
                raise ValueError(f"When `right_inverse` outputs one tensor, it may not change the {kind}.\noriginal.{kind}: {one}\n"
                                 f"right_inverse(original).{kind}: {other}")
        if new is not original:
            original.data = new.detach()
        _register(self, "original", original)

    def _take_all(self, original, new):
        for place, tensor in enumerate(new):
            if not isinstance(tensor, _core.Tensor):
                raise ValueError("'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). Got element "
                                 f"{place} of the sequence with type {type(tensor).__name__}.")
        for place, tensor in enumerate(new):
            tensor = tensor.detach()
            tensor = Parameter(tensor, original.requires_grad) if isinstance(original, Parameter) else tensor.requires_grad_(original.requires_grad)
            _register(self, f"original{place}", tensor)

    def _originals(self):
        return [self.original] if self.is_tensor else [getattr(self, f"original{place}") for place in range(self.ntensors)]

    def right_inverse(self, value):
        """Sets the original tensors so that the parametrized tensor gets a given value."""
        with _unrecorded():
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    raise RuntimeError(f"parametrization {type(module).__name__} does not implement right_inverse.")
                value = module.right_inverse(value)
            if self.is_tensor:
                if not isinstance(value, _core.Tensor):
                    raise ValueError(f"`right_inverse` should return a tensor. Got {type(value).__name__}")
                value = [value]
            elif not isinstance(value, collections.abc.Sequence):
                raise ValueError(f"'right_inverse' must return a sequence of tensors. Got {type(value).__name__}.")
            elif len(value) != self.ntensors:
                raise ValueError(f"'right_inverse' must return a sequence of tensors of length {self.ntensors}. Got a sequence of length {len(value)}.")
            for place, (tensor, original) in enumerate(zip(value, self._originals())):
                if not isinstance(tensor, _core.Tensor):
                    raise ValueError(f"`right_inverse` must return a sequence of tensors. Got element {place} of type {type(tensor).__name__}")
                if tensor.dtype != original.dtype:
                    raise ValueError(f"The tensor returned by `right_inverse` has dtype {tensor.dtype} while `original` has dtype {original.dtype}")
            for tensor, original in zip(value, self._originals()):
                original.data = tensor.detach()

    def forward(self):
        """Returns the parametrized tensor."""
        first, *others = list(self)
        value = first(*self._originals())
        for module in others:
            value = module(value)
        return value


def _refuse_state(self):
    raise RuntimeError("Serialization of parametrized modules is only supported through state_dict()")


def _copied(self, memo):
    """Returns a deep copy, which has a class of its own."""
    if id(self) not in memo:
        made = memo[id(self)] = self.__new__(type(self))
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
    return memo[id(self)]


def _property(name):
    """Returns the property with which a module computes a tensor."""
    def get(self):
        if not _cache_enabled:
            return self.parametrizations[name]()
        key = (id(self), name)
        if key not in _cache:
            _cache[key] = self.parametrizations[name]()
        return _cache[key]

    def put(self, value):
        self.parametrizations[name].right_inverse(value)
    return property(get, put)


def register_parametrization(module, tensor_name, parametrization, *, unsafe=False):
    """Replaces a parameter or buffer of a module with the result of a module for an original tensor. Further parametrizations are
    applied to the result of the former ones."""
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        if not unsafe:
            _check_further(module, tensor_name, parametrization)
        module.parametrizations[tensor_name].append(parametrization)
        module.parametrizations[tensor_name].unsafe |= unsafe
    elif tensor_name in module._buffers or tensor_name in module._parameters:
        original = getattr(module, tensor_name)
        made = ParametrizationList([parametrization], original, unsafe=unsafe)
        delattr(module, tensor_name)
        if not is_parametrized(module):
            kind = type(module)
            # Each module gets a class of its own, since a property belongs to a class.
            own = {"__getstate__": _refuse_state, "__module__": kind.__module__}
            if not hasattr(kind, "__deepcopy__"):
                own["__deepcopy__"] = _copied
            object.__setattr__(module, "__class__", type(f"Parametrized{kind.__name__}", (kind,), own))
            module.parametrizations = ModuleDict()
        setattr(type(module), tensor_name, _property(tensor_name))
        module.parametrizations[tensor_name] = made
    else:
        raise ValueError(f"Module '{module}' does not have a parameter, a buffer, or a parametrized element with name '{tensor_name}'")
    return module


def _check_further(module, name, parametrization):
    """Refuses a further parametrization that changes dtype or shape."""
    own = getattr(module, name)
    found = parametrization(own)
    _check_tensor(found, "A parametrization")
    _same(found, own, f"module.{name}", f"parametrization(module.{name})", _CHANGES)
    if hasattr(parametrization, "right_inverse"):
        with contextlib.suppress(NotImplementedError):
            back = parametrization.right_inverse(found)
            if not isinstance(back, _core.Tensor):
                raise ValueError(f"parametrization.right_inverse must return a tensor. Got: {type(back).__name__}")
            _same(back, own, f"module.{name}", "returned",
                  f"The tensor returned by parametrization.right_inverse must have the same {{}} as module.{name}, unless the `unsafe` flag is enabled.")


def is_parametrized(module, tensor_name=None):
    """Returns whether a module has a parametrization, or one of a given name."""
    own = getattr(module, "parametrizations", None)
    if not isinstance(own, ModuleDict):
        return False
    return len(own) > 0 if tensor_name is None else tensor_name in own


def remove_parametrizations(module, tensor_name, leave_parametrized=True):
    """Turns a tensor into a parameter or buffer again, with its current value or the original one."""
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {module} does not have a parametrization on {tensor_name}")
    own = module.parametrizations[tensor_name]
    if own.is_tensor:
        original = own.original
        if leave_parametrized:
            with _unrecorded():
                original.data = getattr(module, tensor_name).detach()
    elif leave_parametrized:
        value = getattr(module, tensor_name)
        original = Parameter(value.detach()) if value.requires_grad else value
    else:
        raise ValueError("Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is parametrized in terms of a sequence of tensors.")
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]
    _register(module, tensor_name, original)
    if not is_parametrized(module):
        del module.parametrizations
        object.__setattr__(module, "__class__", type(module).__bases__[0])
    return module


def type_before_parametrizations(module):
    """Returns the class that a module had without its parametrizations."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


def transfer_parametrizations_and_params(from_module, to_module, tensor_name=None):
    """Gives a module the parametrizations of another, with their original tensors."""
    if not is_parametrized(from_module):
        return to_module
    for name in list(from_module.parametrizations) if tensor_name is None else [tensor_name]:
        own = from_module.parametrizations[name]
        if not hasattr(to_module, name):
            setattr(to_module, name, Parameter(getattr(from_module, name).detach()))
        for parametrization in own:
            register_parametrization(to_module, name, parametrization)
        for place in ["original"] if own.is_tensor else [f"original{place}" for place in range(own.ntensors)]:
            setattr(to_module.parametrizations[name], place, getattr(own, place))
    return to_module
