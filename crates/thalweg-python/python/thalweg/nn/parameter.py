"""`Parameter` and `Buffer`: tensors that modules register, and variants whose shapes are not known yet."""

import copyreg
import weakref

from .. import _core
from .._torch_functions import _disabled_torch_function_impl


class _ParameterMeta(type):
    """The class of `Parameter`, of which instances of a program's own tensor classes can be instances as well."""

    def __instancecheck__(cls, instance):
        if type.__instancecheck__(cls, instance):
            return True
        return cls is Parameter and isinstance(instance, _core.Tensor) and getattr(instance, "_is_param", False)


def _of_own_class(data, requires_grad):
    """Returns a tensor of a program's class as a parameter of that class; None if the class overrides no functions."""
    kind = type(data)
    if hasattr(data, "_as_parameter"):
        return data._as_parameter(requires_grad)
    if kind is _core.Tensor or issubclass(kind, Parameter) or kind.__torch_function__ is _disabled_torch_function_impl:
        return None
    made = data.detach()
    if type(made) is not kind:
        raise RuntimeError(f"Creating a Parameter from an instance of type {kind.__name__} requires that detach() returns an instance of the same type, but "
                           f"return type {type(made).__name__} was found instead. To use the type as a Parameter, please correct the detach() semantics "
                           "defined by its __torch_dispatch__() implementation.")
    made = made.requires_grad_(requires_grad)
    made._is_param = True
    return made


# The parameters that exist, of which nodes of the graph name one.
_alive = weakref.WeakValueDictionary()


def _of_node(node):
    """Returns the leaf whose gradient a node of the graph accumulates: the program's own object, if it is a parameter."""
    for parameter in list(_alive.values()):
        if parameter.requires_grad and parameter.is_leaf and parameter._gradient_edge()[0] is node:
            return parameter
    return node._leaf()


class _Hook:
    """The handle of a hook that a parameter keeps."""

    def __init__(self, parameter, register, hook):
        hooks = parameter._hooks if hasattr(parameter, "_hooks") else {}
        self._parameter, self._key = reference, key = weakref.ref(parameter), object()

        def call(value):
            owner = reference()
            return None if owner is None else owner._hooks[key](value)
        self._handle = register(parameter, call)
        hooks[key], parameter._hooks = hook, hooks

    def remove(self):
        """Unregisters the hook."""
        self._handle.remove()
        owner = self._parameter()
        if owner is not None:
            owner._hooks.pop(self._key, None)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.remove()


class Parameter(_core.Tensor, metaclass=_ParameterMeta):
    """A tensor that a module registers as a parameter when it becomes an attribute. It keeps its hooks, where Python's collector sees
    them: a hook may hold the module that the parameter belongs to."""

    __slots__ = ("_hooks",)
    __torch_function__ = _disabled_torch_function_impl

    def __new__(cls, data=None, requires_grad=True):
        made = _of_own_class(data, requires_grad) if cls is Parameter and isinstance(data, _core.Tensor) else None
        if made is None:
            made = super().__new__(cls, *(() if data is None else (data,)), requires_grad=requires_grad)
        _alive[id(made)] = made
        return made

    @classmethod
    def _of(cls, tensor):
        return cls(tensor, tensor.requires_grad)

    def register_hook(self, hook):
        """Registers a hook that backward passes call with the gradient, as long as the parameter exists. It may return another one."""
        return _Hook(self, _core.Tensor.register_hook, hook)

    def register_post_accumulate_grad_hook(self, hook):
        """Registers a hook that backward passes call with the parameter after its gradient has been accumulated."""
        if not callable(hook):
            return super().register_post_accumulate_grad_hook(hook)
        return _Hook(self, _core.Tensor.register_post_accumulate_grad_hook, hook)

    def __deepcopy__(self, memo):
        """Returns a copy of the elements, in separate memory and without the gradient."""
        if id(self) not in memo:
            memo[id(self)] = type(self)(self.detach().clone(), self.requires_grad)
        return memo[id(self)]

    def __repr__(self):
        return "Parameter containing:\n" + super().__repr__()


class Buffer(_core.Tensor):
    """A tensor that a module registers as a buffer when it becomes an attribute."""

    __torch_function__ = _disabled_torch_function_impl

    def __new__(cls, data=None, *, persistent=True):
        made = super().__new__(cls, *(() if data is None else (data,)))
        made.persistent = persistent
        return made

    @classmethod
    def _of(cls, tensor):
        return cls(tensor)


class UninitializedTensorMixin:
    """A parameter or buffer without a shape until `materialize` is called. It has a device and a dtype, and refuses all other
    uses."""

    cls_to_become = None

    def materialize(self, shape, device=None, dtype=None):
        """Gives the tensor a shape and uninitialised memory. It becomes an instance of the class `cls_to_become`."""
        data = self.data
        self.data = _core.empty(shape, device=device or data.device, dtype=dtype or data.dtype)
        self.__class__ = self.cls_to_become

    @property
    def shape(self):
        """Raises: there is no shape yet."""
        raise RuntimeError("Can't access the shape of an uninitialized parameter or buffer. It has none until a forward pass of its module, which "
                           "must come before `load_state_dict` loads it into a module that has shapes")

    def share_memory_(self):
        """Raises: there is no memory yet."""
        raise RuntimeError("Can't share memory on an uninitialized parameter or buffer; run a forward pass of its module first")

    def __repr__(self):
        return f"<{type(self).__name__}>"

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            memo[id(self)] = self._like(self.data)
        return memo[id(self)]

    def __reduce_ex__(self, protocol):
        return copyreg.__newobj__, (type(self), self.requires_grad, self.device, self.dtype)

    def _like(self, tensor):
        """Returns an instance with the device and dtype of a tensor."""
        return type(self)(self.requires_grad, tensor.device, tensor.dtype)


class UninitializedParameter(UninitializedTensorMixin, Parameter):
    """A parameter whose shape is not known yet."""

    cls_to_become = Parameter

    def __new__(cls, requires_grad=True, device=None, dtype=None):
        return Parameter.__new__(cls, _core.empty([0], device=device, dtype=dtype), requires_grad)

    def __init__(self, requires_grad=True, device=None, dtype=None):
        pass


class UninitializedBuffer(UninitializedTensorMixin, _core.Tensor):
    """A buffer whose shape is not known yet."""

    cls_to_become = _core.Tensor
    __torch_function__ = _disabled_torch_function_impl

    def __new__(cls, requires_grad=False, device=None, dtype=None, persistent=True):
        made = _core.Tensor.__new__(cls, _core.empty([0], device=device, dtype=dtype), requires_grad=requires_grad)
        made.persistent = persistent
        return made

    def __init__(self, requires_grad=False, device=None, dtype=None, persistent=True):
        pass


def is_lazy(param):
    """Returns whether a tensor is a parameter or buffer whose shape is not known yet."""
    return isinstance(param, UninitializedTensorMixin)


# Methods that only change the device or the dtype, and those that need no shape.
_CONVERSIONS = ("to", "cpu", "cuda", "half", "float", "double", "bfloat16", "char", "short", "int", "long")
_ALLOWED = ("is_complex", "is_floating_point", "requires_grad_", "get_device", "__hash__", "__init_subclass__", "__subclasshook__", "__class__")


def _converted(name):
    def convert(self, *args, **kwargs):
        return self._like(getattr(self.data, name)(*args, **kwargs))
    return convert


def _refused(name):
    def refuse(self, *args, **kwargs):
        raise ValueError(f"Attempted to use an uninitialized parameter in Tensor.{name}: its shape is not known before the first forward pass of its "
                         "module; run one with a batch of any values first")
    return refuse


def _refuse_use():
    """Makes tensors without a shape refuse all other operations of tensors."""
    objects = {name for name in vars(object) if name not in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__format__")}
    for name in dir(_core.Tensor):
        if name in _CONVERSIONS:
            setattr(UninitializedTensorMixin, name, _converted(name))
        elif name not in vars(UninitializedTensorMixin) and name not in _ALLOWED and name not in objects and (
                not name.startswith("_") or name.endswith("__")) and callable(getattr(_core.Tensor, name)) and name not in (
                "__torch_function__", "__torch_dispatch__"):
            setattr(UninitializedTensorMixin, name, _refused(name))


_refuse_use()
