"""Operators of programs (`torch.library`): functions that are found under `torch.ops`, with gradients, and shapes on the meta device."""

import contextlib
import functools
import inspect
import types
import typing

from . import _core, _dispatching, ops
from ._core import Tensor
from ._left_out import attributes as _attributes

# The operators that programs have defined, by name with namespace.
_defined = {}
# What is registered for operators that are not defined yet, by name: functions of the definition.
_waiting = {}
_BACKENDS = {"cpu": "CPU", "sim": "CPU", "cuda": "CUDA", "meta": "Meta"}


class CustomOpDef:
    """An operator of a program. Calling it calls the function for the device of its tensors."""

    def __init__(self, name, function, schema="", tags=()):
        namespace, separator, base = name.partition("::")
        if not separator:
            raise ValueError(f"custom_op: the name is `namespace::name`, not {name!r}")
        self._name, self._namespace, self._base = base, namespace, base
        self._qualname, self._init_fn, self._schema = name, function, schema
        self._kernels, self._fake, self._backward, self._setup_context, self._vmap, self._function = {}, None, None, None, None, None
        if function is not None:
            functools.update_wrapper(self, function)
        space, (own, _, overload) = getattr(ops.ops, namespace), base.partition(".")
        packet = vars(space).get(own)
        if packet is None:
            packet = ops.OpOverloadPacket(namespace, own, [])
            setattr(space, own, packet)
        self._opoverload = _Overload(self, packet, tags)
        packet.add(self._opoverload)
        _defined[name] = self
        for register in _waiting.pop(name, ()):
            register(self)

    def __call__(self, *args, **kwargs):
        if _core._is_overridden(args, kwargs):
            from ._torch_functions import take
            return take(self._opoverload, _core._overriding(args, kwargs), args, kwargs)
        return self._run(args, kwargs)

    def _run(self, args, kwargs):
        own = self._kernels.get("Autograd")
        if own is not None and _core.is_grad_enabled() and any(value.requires_grad for value in _tensors(args, kwargs)):
            with _below(self):
                return own(*args, **kwargs)
        return self._computed(*args, **kwargs) if self._backward is None else _with_gradient(self, args, kwargs)

    def _computed(self, *args, **kwargs):
        if not _dispatching.modes():
            return self._by_device(*args, **kwargs)
        with _dispatching.without_innermost() as mode:
            result = mode.__torch_dispatch__(self._opoverload, (), args, kwargs)
            return self._by_device(*args, **kwargs) if result is NotImplemented else result

    def _by_device(self, *args, **kwargs):
        tensor = next(_tensors(args, kwargs), None)
        kind = _BACKENDS.get(tensor.device.type, "CUDA") if tensor is not None else "CPU"
        if kind == "Meta" and self._fake is not None:
            return self._fake(*args, **kwargs)
        for key in (kind, "CompositeExplicitAutograd", "CompositeImplicitAutograd"):
            if key in self._kernels:
                return self._kernels[key](*args, **kwargs)
        if self._init_fn is None:
            raise NotImplementedError(f"Could not run '{self._qualname}' with arguments from the '{kind}' backend: no function was registered for it "
                                      "(`Library.impl`, `register_kernel`)")
        return self._init_fn(*args, **kwargs)

    def register_fake(self, fn, /):
        """Sets the function that computes shapes, for tensors on the meta device."""
        self._fake = fn
        return fn

    def register_kernel(self, device_types, fn=None, /):
        """Registers a function for kinds of devices."""
        if fn is None:
            return lambda function: self.register_kernel(device_types, function)
        kinds = [device_types] if isinstance(device_types, str) or device_types is None else device_types
        for kind in kinds:
            self._kernels[_BACKENDS.get(kind, "CompositeExplicitAutograd")] = fn
        return fn

    def register_autograd(self, backward, /, *, setup_context=None):
        """Sets the backward pass of the operator."""
        self._backward, self._setup_context = backward, setup_context

    def register_vmap(self, func=None, /):
        """Sets the rule of the operator inside of `vmap`: `func(info, in_dims, *args)` returns the results and their dimensions."""
        if func is None:
            return self.register_vmap
        self._vmap = func
        return func

    def register_torch_dispatch(self, torch_dispatch_class, fn=None, /):
        """Returns the function: modes receive the operators that this one calls."""
        return fn if fn is not None else lambda function: function

    def register_autocast(self, device_type, cast_inputs, /):
        """Makes tensors of floats be converted before each call in a region of autocast."""
        computed = self._computed

        def converted(*args, **kwargs):
            from .amp import is_autocast_enabled
            if is_autocast_enabled(device_type):
                args = [value.to(cast_inputs) if isinstance(value, Tensor) and value.is_floating_point() else value for value in args]
            return computed(*args, **kwargs)
        self._computed = converted

    @contextlib.contextmanager
    def set_kernel_enabled(self, device_type, enabled=True):
        """Returns a region in which the function for a kind of device is enabled or disabled."""
        key = _BACKENDS.get(device_type, device_type)
        former = self._kernels.get(key)
        if not enabled:
            self._kernels.pop(key, None)
        try:
            yield
        finally:
            if former is not None:
                self._kernels[key] = former

    def __repr__(self):
        return f"<CustomOpDef({self._qualname})>"


class _Overload(ops.OpOverload):
    """An operator of a program, as `torch.ops` has it."""

    def __init__(self, operator, packet, tags):
        super().__init__(packet, operator._base)
        self._operator, self.tags = operator, list(tags) if isinstance(tags, (list, tuple)) else [tags]

    def __call__(self, *args, **kwargs):
        return self._operator(*args, **kwargs)

    def _described(self):
        return _core._parsed_schema(self._operator._schema)


@contextlib.contextmanager
def _below(operator):
    """Returns a region in which a call of an operator goes to the functions for devices."""
    own = operator._kernels.pop("Autograd")
    try:
        yield
    finally:
        operator._kernels["Autograd"] = own


def _tensors(args, kwargs):
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value, {})


def _with_gradient(operator, args, kwargs):
    signature = inspect.signature(operator._init_fn) if operator._init_fn is not None else None
    only = [name for name, one in signature.parameters.items() if one.kind is inspect.Parameter.KEYWORD_ONLY] if signature else []
    if signature is not None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        args, kwargs = bound.args, bound.kwargs
    if operator._function is None:
        operator._function = _function_of(operator)
    return operator._function.apply(*args, *kwargs.values(), (tuple(kwargs), bool(only)))


def _function_of(operator):
    """Returns the function of autograd of an operator. Its last argument names the arguments by keyword, and says whether there are
    some that are by keyword only."""
    from .autograd import Function

    class _Called(Function):
        @staticmethod
        def forward(ctx, *values):
            *values, (ctx._names, has_only) = values
            count = len(values) - len(ctx._names)
            values, named = tuple(values[:count]), dict(zip(ctx._names, values[count:]))
            output = operator._computed(*values, **named)
            if operator._setup_context is not None:
                given = {"keyword_only_inputs": named} if has_only else {}
                operator._setup_context(ctx=ctx, inputs=values, output=output, **given)
            return output

        @staticmethod
        def backward(ctx, *gradients):
            found = operator._backward(ctx, *gradients)
            found = found if isinstance(found, tuple) else (found,)
            return (*found, *(None,) * (len(ctx._names) + 1))
    _Called.__name__ = f"{operator._base}Backward"
    return _Called


def custom_op(name, fn=None, /, *, mutates_args=(), device_types=None, schema=None, tags=None):
    """Registers a Python function as an operator."""
    if fn is None:
        return lambda function: custom_op(name, function, mutates_args=mutates_args, device_types=device_types, schema=schema, tags=tags)
    text = schema if schema is not None else infer_schema(fn, mutates_args=mutates_args)
    made = CustomOpDef(name, fn, f"{name}{text}", tags or ())
    if device_types is not None:
        made._init_fn = None
        made.register_kernel(device_types, fn)
        made._init_fn = None if "CompositeExplicitAutograd" not in made._kernels else fn
    return made


triton_op = custom_op
_TYPES = {Tensor: "Tensor", int: "SymInt", float: "float", bool: "bool", str: "str", _core.dtype: "ScalarType", _core.device: "Device",
          typing.Union[int, float, bool]: "Scalar"}


def _type_name(kind, function):
    """Returns a type of Python in the notation of schemas."""
    if isinstance(kind, str):
        kind = eval(kind, function.__globals__)
    if kind in _TYPES:
        return _TYPES[kind]
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    without = [part for part in parts if part is not type(None)]
    if 0 < len(without) < len(parts) and origin in (typing.Union, types.UnionType):
        return f"{_type_name(typing.Union[tuple(without)], function)}?"
    if origin is not None and issubclass(origin if isinstance(origin, type) else object, typing.Sequence) and parts:
        return f"{_type_name(parts[0], function)}[]"
    raise ValueError(f"infer_schema(func): Parameter has unsupported type {kind}")


def infer_schema(prototype_function, /, *, mutates_args=(), op_name=None):
    """Returns the schema of a function by its annotations."""
    parts, is_named = [], False
    signature = inspect.signature(prototype_function)
    for number, (name, one) in enumerate(signature.parameters.items()):
        if one.annotation is inspect.Parameter.empty:
            raise ValueError(f"infer_schema(func): Parameter {name} must have a type annotation.")
        if one.kind is inspect.Parameter.KEYWORD_ONLY and not is_named:
            parts.append("*")
            is_named = True
        kind = _type_name(one.annotation, prototype_function)
        if mutates_args == "unknown" or name in mutates_args:
            kind = kind.replace("Tensor", f"Tensor(a{number}!)", 1)
        default = "" if one.default is inspect.Parameter.empty else f"={_default(one.default)}"
        parts.append(f"{kind} {name}{default}")
    kind = signature.return_annotation
    if kind is inspect.Signature.empty:
        raise ValueError("infer_schema(func): the function must have an annotation of what it returns")
    if kind is None:
        returns = "()"
    elif typing.get_origin(kind) is tuple:
        returns = f"({', '.join(_type_name(part, prototype_function) for part in typing.get_args(kind))})"
    else:
        returns = _type_name(kind, prototype_function)
    return f"{op_name or ''}({', '.join(parts)}) -> {returns}"


def _default(value):
    return f'"{value}"' if isinstance(value, str) else str(value).removeprefix("torch.")


def _found(op):
    """Returns an operator by its definition, its name or its object in `torch.ops`."""
    if isinstance(op, CustomOpDef):
        return op
    if isinstance(op, _Overload):
        return op._operator
    if isinstance(op, ops.OpOverloadPacket):
        op = op._qualified_op_name
    if op not in _defined:
        raise RuntimeError(f"operator {op} does not exist: define it with `custom_op` or `Library.define` first")
    return _defined[op]


def _once_defined(name, register):
    """Calls a function of the definition of an operator: now, or when the operator is defined."""
    if isinstance(name, str) and name not in _defined:
        _waiting.setdefault(name, []).append(register)
    else:
        register(_found(name))


def register_fake(op, func=None, /, *, lib=None, _stacklevel=1, allow_override=False):
    """Sets the function that computes an operator's shapes, for tensors on the meta device. The operator may be defined later."""
    if func is None:
        return lambda function: register_fake(op, function)
    _once_defined(op, lambda operator: operator.register_fake(func))
    return func


def register_kernel(op, device_types, func=None, /, *, lib=None):
    """Registers a function of an operator for kinds of devices."""
    return _found(op).register_kernel(device_types, func)


def register_autocast(op, device_type, cast_inputs, /, *, lib=None):
    """Makes an operator's tensors of floats be converted before each call in a region of autocast."""
    return _found(op).register_autocast(device_type, cast_inputs)


def register_vmap(op, func=None, /, *, lib=None):
    """Sets the rule of an operator inside of `vmap`."""
    return _found(op).register_vmap(func)


def register_torch_dispatch(op, torch_dispatch_class, func=None, /, *, lib=None, allow_override=False):
    """Returns the function: modes receive the operators that an operator calls."""
    return _found(op).register_torch_dispatch(torch_dispatch_class, func)


impl_abstract = register_fake


def register_autograd(op, backward, /, *, setup_context=None, lib=None):
    """Sets the backward pass of an operator."""
    _found(op).register_autograd(backward, setup_context=setup_context)


def wrap_triton(function, /):
    """Returns the function: kernels are called as they are."""
    return function


class Library:
    """A group of operators in a namespace."""

    def __init__(self, ns, kind, dispatch_key=""):
        if kind not in ("IMPL", "DEF", "FRAGMENT"):
            raise ValueError("Unsupported kind: ", kind)
        self.ns, self.kind, self.dispatch_key, self._own = ns, kind, dispatch_key, []

    def define(self, schema, alias_analysis="", *, tags=()):
        """Defines an operator by its schema, and returns its name."""
        name = schema.partition("(")[0].strip()
        full = f"{self.ns}::{name}"
        self._own.append(full)
        CustomOpDef(full, None, f"{self.ns}::{schema}", tags)
        return name

    def impl(self, op_name, fn, dispatch_key="", *, with_keyset=False, allow_override=False):
        """Sets the function of an operator for a key: a backend, `CompositeExplicitAutograd`, `Autograd`, …"""
        name = op_name if isinstance(op_name, str) else op_name.name()
        name = name if "::" in name else f"{self.ns}::{name}"
        key = dispatch_key or self.dispatch_key or "CompositeImplicitAutograd"
        if name not in _defined and self.ns in ("aten", "prims"):
            raise NotImplementedError(f"Library.impl of {name} is left out: operators of this package's table cannot be replaced from Python")

        def register(operator):
            if key == "Meta":
                operator._fake = fn
            operator._kernels[{"AutogradCPU": "Autograd", "AutogradCUDA": "Autograd"}.get(key, key)] = fn
        _once_defined(name, register)

    def fallback(self, fn, dispatch_key="", *, with_keyset=False):
        """Raises: keys have no functions for all operators in Python."""
        raise NotImplementedError("Library.fallback is left out: use a mode (`torch.utils._python_dispatch.TorchDispatchMode`)")

    def _register_fake(self, op_name, fn, _stacklevel=1, *, allow_override=False):
        _found(f"{self.ns}::{op_name}").register_fake(fn)

    def _destroy(self):
        for name in self._own:
            _defined.pop(name, None)
            vars(getattr(ops.ops, self.ns)).pop(name.partition("::")[2].partition(".")[0], None)
        self._own = []


@contextlib.contextmanager
def _scoped_library(*args, **kwargs):
    """Returns a region with a group of operators, which are removed at its end."""
    made = Library(*args, **kwargs)
    try:
        yield made
    finally:
        made._destroy()


def define(qualname, schema=None, *, lib=None, tags=()):
    """Defines an operator by its name and schema, or decorates the function that computes it. With a `Library` instead
    of a name, the operator belongs to its namespace, and the decorated function computes it."""
    if isinstance(qualname, Library):
        name = qualname.define(schema, tags=tags)
        return lambda function: (qualname.impl(name, function, "CompositeExplicitAutograd"), function)[1]
    if schema is None:
        def decorate(function):
            CustomOpDef(qualname, function, f"{qualname}{infer_schema(function)}", tags)
            return function
        return decorate
    CustomOpDef(qualname, None, f"{qualname}{schema}", tags)
    return None


def impl(qualname, types, func=None, *, lib=None):
    """Sets the function of an operator for kinds of devices, or decorates it. With a `Library` in the place of the name, `types` is the name, and `func` the
    key."""
    if isinstance(qualname, Library):
        return lambda function: (qualname.impl(types, function, func or ""), function)[1]
    if func is None:
        return lambda function: impl(qualname, types, function, lib=lib)
    kinds = [_BACKENDS.get(kind, "CompositeExplicitAutograd" if kind == "default" else kind) for kind in ([types] if isinstance(types, str) else types)]
    _once_defined(qualname, lambda operator: operator._kernels.update(dict.fromkeys(kinds, func)))
    return func


class _Context:
    """The object that a function which computes shapes may ask for new extents."""

    def new_dynamic_size(self, *, min=0, max=None):
        """Raises: shapes are numbers."""
        raise NotImplementedError("new_dynamic_size is left out: there are no symbolic shapes")


def get_ctx():
    """Returns the object that a function which computes shapes may query."""
    return _Context()


def opcheck(op, args, kwargs=None, *, test_utils=(), raise_exception=True, atol=None, rtol=None):
    """Compares an operator's results with its shapes on the meta device, and its gradients with finite differences."""
    operator, kwargs, outcome = _found(op), kwargs or {}, {}

    def moved(value):
        return value.detach().to("meta") if isinstance(value, Tensor) else value
    try:
        results = operator(*args, **kwargs)
        if operator._fake is not None:
            shown = operator._fake(*map(moved, args), **{name: moved(value) for name, value in kwargs.items()})
            for one, other in zip(_tensors((results,), {}), _tensors((shown,), {})):
                if one.shape != other.shape or one.dtype != other.dtype:
                    raise RuntimeError(f"opcheck: {operator._qualname} returns {tuple(one.shape)} of {one.dtype}, and register_fake says "
                                       f"{tuple(other.shape)} of {other.dtype}")
        outcome = {"test_schema": "SUCCESS", "test_faketensor": "SUCCESS"}
    except Exception as error:
        if raise_exception:
            raise
        outcome = {"test_faketensor": error}
    return outcome


__getattr__ = _attributes(__name__)
