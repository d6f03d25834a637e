"""Functions that arguments or modes take over (`__torch_function__`, `__torch_dispatch__` of subclasses).

The extension finds calls of its functions that are taken over (`src/overrides.rs`). Functions that are written in Python, and the
attributes of `Tensor` that are not operators, are looked after here:

- Functions of Python are made overridable when a program first needs it (`activate`): their code is replaced by a call that looks
  at the arguments first. So they cost nothing more until then, and keep their identity.
- A subclass that overrides gets attributes of its own, in the place of those of `Tensor` (`__init_subclass__`). While a mode is
  open, `Tensor` itself has them.
"""

import threading
import types

from . import _core

Tensor = _core.Tensor


class _Local(threading.local):
    """The modes of a thread, the innermost last."""

    def __init__(self):
        # Whether functions of arguments are skipped, and operators go to `__torch_dispatch__` of their classes.
        self.modes, self.is_below = [], False


_local = _Local()


def modes():
    """Returns the open modes of this thread, the innermost last."""
    return _local.modes


class _Off:
    """A region in which overrides are switched off."""

    _extent = 1

    def __enter__(self):
        self._former = _core._set_overrides_off(max(self._extent, _core._overrides_off()))

    def __exit__(self, *_):
        _core._set_overrides_off(self._former)


class SubclassesOff(_Off):
    """A region in which no argument takes over functions or operators."""


class DisableTorchFunctionSubclass(_Off):
    """A region in which no argument takes over functions. Classes with `__torch_dispatch__` still receive operators."""

    def __enter__(self):
        self._is_below = _has_dispatch
        if not self._is_below:
            return super().__enter__()
        self._former, _local.is_below = _local.is_below, True

    def __exit__(self, *values):
        if not self._is_below:
            return super().__exit__(*values)
        _local.is_below = self._former


# Whether there is a class with `__torch_dispatch__`.
_has_dispatch = False


class DisableTorchFunction(_Off):
    """A region in which neither arguments nor modes take over functions."""

    _extent = 2


def _disabled_torch_function_impl(func, types, args=(), kwargs=None):
    """Returns the result of the function. A class whose `__torch_function__` is this overrides nothing."""
    with DisableTorchFunctionSubclass():
        return func(*args, **(kwargs or {}))


def _disabled_torch_dispatch_impl(func, types, args=(), kwargs=None):
    """Returns the result of the function. A class whose `__torch_dispatch__` is this overrides nothing."""
    return func(*args, **(kwargs or {}))


# Functions that PyTorch has in `nn.functional` alone, as they are.
_OF_FUNCTIONAL = frozenset("linear gelu scaled_dot_product_attention one_hot softplus softshrink avg_pool2d avg_pool3d".split())


def _function(name, is_method):
    """Returns the function that a program calls by a name."""
    if is_method:
        found = _originals.get(name) or getattr(Tensor, name)
        return found if callable(found) else found.__get__
    import sys
    own = getattr(_core, name, None) or _core._in_place[name]
    public = getattr(sys.modules[__package__], name, None)
    # A function of Python by this name calls the operator.
    return own if isinstance(public, types.FunctionType) or not callable(public) else public


def _called(name, is_method, found, args, kwargs):
    """Is called by the extension for a call that is taken over."""
    activate()
    return take(_function(name, is_method), found, args, kwargs)


def _ordered(values):
    """Returns values in the order in which their classes are asked: subclasses first, then as in the call."""
    ordered = []
    for value in values:
        place = next((place for place, other in enumerate(ordered) if issubclass(type(value), type(other))), len(ordered))
        ordered.insert(place, value)
    return ordered


class _Again:
    """A function that a mode receives while arguments or further modes override it, too: calling it calls those
    overrides."""

    def __init__(self, function):
        self._function = function
        for name in ("__name__", "__qualname__", "__doc__", "__module__", "__self__", "__wrapped__"):
            if hasattr(function, name):
                setattr(self, name, getattr(function, name))

    def __call__(self, *args, **kwargs):
        if _core._is_overridden(args, kwargs):
            return take(self._function, _core._overriding(args, kwargs), args, kwargs)
        return self._function(*args, **kwargs)

    def __eq__(self, other):
        return self._function == other

    def __hash__(self):
        return hash(self._function)

    def __repr__(self):
        return repr(self._function)


def plain(function):
    """Returns the function that a mode has received, without the wrapper that calls the overrides of its arguments."""
    return function._function if isinstance(function, _Again) else function


def take(function, found, args, kwargs):
    """Returns the result of a call that modes or values take over."""
    found = _ordered(found)
    kinds = tuple(type(value) for value in found)
    stack = _local.modes
    if stack and _core._overrides_off() < 2:
        mode = stack.pop()
        former = _core._set_function_modes(len(stack))
        try:
            # Attributes of tensors that are not operators ask the next mode by this alone.
            result = mode.__torch_function__(_Again(function) if found or stack else function, kinds, args, kwargs)
        finally:
            stack.append(mode)
            _core._set_function_modes(former)
        if result is not NotImplemented:
            return result
    if _local.is_below:
        return _below(function, found, kinds, args, kwargs)
    for value in found:
        result = type(value).__torch_function__(_given(function, type(value)), kinds, args, kwargs)
        if result is not NotImplemented:
            return result
    name = f"{getattr(function, '__module__', None) or 'torch'}.{getattr(function, '__qualname__', function)}"
    text = f"no implementation found for '{name}' on types that implement __torch_function__: {[kind.__name__ for kind in kinds]}"
    if stack:
        text += f" nor in mode {stack[-1]}"
    raise TypeError(text)


def _given(function, kind):
    """Returns a function as a class receives it: by the name under which PyTorch has it, unless the class follows functions into operators."""
    name = getattr(function, "__name__", "")
    if name in _OF_FUNCTIONAL and function is getattr(_core, name) and not getattr(kind, "_follows_functions", False):
        import sys
        function = getattr(sys.modules[f"{__package__}.nn.functional"], name)
    # A method that is called again reaches the operators of the class.
    return _Again(function) if _receives_operators(kind) and isinstance(function, _METHODS) else function


_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType, types.FunctionType)


def _receives_operators(kind):
    return _has_dispatch and getattr(kind, "__torch_dispatch__", _disabled_torch_dispatch_impl) is not _disabled_torch_dispatch_impl


def _below(function, found, kinds, args, kwargs):
    """Returns the result of a call whose arguments override operators, but not functions."""
    for kind in kinds:
        if _receives_operators(kind):
            from . import _dispatching
            return _dispatching.through_class(kind, function, kinds, args, kwargs)
    with SubclassesOff():
        return function(*args, **kwargs)


# ---- What a subclass does by itself --------------------------------------------------------------------------------


def _of_class(result, cls):
    """Returns a result with its tensors as instances of a class."""
    if isinstance(result, Tensor):
        return result if isinstance(result, cls) else result.as_subclass(cls)
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*[_of_class(part, cls) for part in result])
    if type(result) in (tuple, list):
        return type(result)([_of_class(part, cls) for part in result])
    return result


def _torch_function(cls, func, types, args=(), kwargs=None):
    """Returns the result of a function, with its tensors as instances of the class."""
    kwargs = kwargs or {}
    if not all(issubclass(cls, kind) for kind in types):
        return NotImplemented
    with DisableTorchFunctionSubclass():
        result = func(*args, **kwargs)
        if cls is Tensor or func in _plain_results():
            return result
        return _of_class(result, cls)


_kept = []


def _plain_results():
    """Returns the functions whose results keep their class."""
    if not _kept:
        _kept.extend(_original(name).__get__ for name in ("grad", "_base", "_grad"))
    return _kept


def _through_dispatch(cls, func, types, args=(), kwargs=None):
    """Passes a call to `__torch_dispatch__` as the operator that it runs. Other functions run on the tensors as they are."""
    from . import _dispatching
    return _dispatching.through_class(cls, func, types, args, kwargs or {})


def _init_subclass(cls, **options):
    """Makes the attributes of a subclass that overrides functions overridable, too."""
    super(Tensor, cls).__init_subclass__(**options)
    global _has_dispatch
    dispatch = getattr(cls, "__torch_dispatch__", None)
    _has_dispatch = _has_dispatch or dispatch is not _disabled_torch_dispatch_impl
    own = cls.__torch_function__
    if "__torch_dispatch__" in vars(cls) and dispatch is not _disabled_torch_dispatch_impl and (
            own is _disabled_torch_function_impl or getattr(own, "__func__", None) is _torch_function):
        cls.__torch_function__ = classmethod(_through_dispatch)
    if cls.__torch_function__ is not _disabled_torch_function_impl:
        activate()
        _install(cls)


# ---- Attributes of tensors that are not operators -------------------------------------------------------------------

# The operator by which PyTorch names what a symbol of Python calls.
_BY_SYMBOL = {
    "__add__": "add", "__radd__": "add", "__sub__": "sub", "__mul__": "mul", "__rmul__": "mul", "__matmul__": "matmul", "__truediv__": "div",
    "__mod__": "remainder", "__neg__": "neg", "__pos__": "positive", "__abs__": "abs", "__invert__": "bitwise_not", "__eq__": "eq",
    "__ne__": "ne", "__lt__": "lt", "__le__": "le", "__gt__": "gt", "__ge__": "ge", "__iadd__": "add_", "__isub__": "sub_", "__imul__": "mul_",
    "__pow__": "pow"}
# The functions of the table that the other symbols call, and those that are called with the operands in reverse order.
_CALLED = _BY_SYMBOL | {
    "__rsub__": "rsub", "__and__": "bitwise_and", "__rand__": "bitwise_and", "__or__": "bitwise_or", "__ror__": "bitwise_or", "__xor__": "bitwise_xor",
    "__rxor__": "bitwise_xor", "__lshift__": "bitwise_left_shift", "__rshift__": "bitwise_right_shift", "__floordiv__": "floor_divide"}
for _symbol in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
    _CALLED[f"__i{_symbol}__"] = f"{_CALLED[f'__{_symbol}__']}_"
_REVERSED = {"__rpow__": "pow", "__rfloordiv__": "floor_divide", "__rmod__": "remainder", "__rmatmul__": "matmul", "__rlshift__": "bitwise_left_shift",
             "__rrshift__": "bitwise_right_shift"}


def overload_of(name, args, kwargs):
    """Returns the name with overload of the operator of the table that a function or a symbol runs, and its positional arguments, or `(None, args)`."""
    called = _CALLED.get(name, name)
    if name in _REVERSED:
        called, args = _REVERSED[name], args[::-1]
    with DisableTorchFunction():
        try:
            return _core._overload_of(called, tuple(args), kwargs), args
        except (TypeError, RuntimeError, ValueError, IndexError):
            return None, args


def property_name(func):
    """Returns the name of the property of tensors that a function reads or writes, or None."""
    owner = getattr(func, "__self__", None)
    if owner is None or getattr(func, "__name__", None) not in ("__get__", "__set__"):
        return None
    return getattr(owner, "__name__", None) or next((name for name, value in _originals.items() if value is owner), None)


_UNTOUCHED = {
    "__new__", "__init__", "__init_subclass__", "__class__", "__dict__", "__weakref__", "__torch_function__", "__torch_dispatch__", "__getattribute__",
    "__setattr__", "__delattr__", "__hash__", "__dir__", "__doc__", "__module__", "__subclasshook__", "__sizeof__", "__getstate__", "__reduce__",
    "__array_priority__", "__class_getitem__", "as_subclass", "new", "name", "volatile", "__qualname__", "__array_namespace__", "is_sparse",
    "is_quantized", "layout", "__cuda_array_interface__"}
_SHOWN = ("_version", "_base", "_grad", "_backward_hooks", "_is_view")
_originals = {}


def _original(name):
    """Returns an attribute of `Tensor` as it is without modes."""
    return _originals.get(name) or vars(Tensor).get(name) or getattr(Tensor, name)


def _is_of_program(value):
    """Returns whether a method was given to `Tensor` by a program, which overrides do not see."""
    spec = getattr(value, "__globals__", {}).get("__spec__")
    return isinstance(value, types.FunctionType) and (spec is None or spec.name.partition(".")[0] != __package__)


def _overridable_attributes():
    """Yields the names and values of the attributes of `Tensor` that are not operators of the table and that overrides see."""
    operators = set(_core._operator_methods)
    for name, value in list(vars(Tensor).items()):
        is_hidden = name.startswith("_") and not name.startswith("__") and name not in _SHOWN
        if name in _UNTOUCHED or is_hidden or isinstance(value, (staticmethod, classmethod)) or _is_of_program(value):
            continue
        if isinstance(value, (types.GetSetDescriptorType, property)):
            yield name, value, _property(name, value)
        elif isinstance(value, types.MethodDescriptorType) and name in operators:
            continue
        elif isinstance(value, (types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)):
            yield name, value, _method(name, value)


def _method(name, original):
    def method(self, *args, **kwargs):
        args = (self, *args)
        if not _core._is_overridden(args, kwargs):
            return original(*args, **kwargs)
        function = original if name not in _BY_SYMBOL else _original(_BY_SYMBOL[name])
        return take(function, _core._overriding(args, kwargs), args, kwargs)
    method.__name__, method.__qualname__, method.__doc__ = name, f"Tensor.{name}", getattr(original, "__doc__", None)
    method.__wrapped__ = original
    return method


def _property(name, original):
    def accessor(kind):
        function = getattr(original, kind)

        def access(self, *value):
            args = (self, *value)
            if not _core._is_overridden(args, {}):
                return function(*args)
            return take(function, _core._overriding(args, {}), args, {})
        return access
    has_setter = isinstance(original, types.GetSetDescriptorType) or original.fset is not None
    return property(accessor("__get__"), accessor("__set__") if has_setter else None, None, getattr(original, "__doc__", None))


_made = {}


def _attributes():
    """Returns the overridable attributes, by name. They are made once."""
    if not _made:
        for name, value, own in _overridable_attributes():
            _originals[name] = value
            _made[name] = own
    return _made


def _install(cls):
    """Gives a subclass attributes that it overrides, in the place of those of `Tensor`."""
    classes = cls.__mro__[:cls.__mro__.index(Tensor)]
    for name, own in _attributes().items():
        if not any(name in vars(one) for one in classes):
            setattr(cls, name, own)


_open = 0
_lock = threading.Lock()


def opened():
    """Gives `Tensor` the attributes that modes see, when the first mode of the process is entered."""
    global _open
    activate()
    with _lock:
        _open += 1
        if _open == 1:
            for name, own in _attributes().items():
                setattr(Tensor, name, own)


def closed():
    """Gives `Tensor` its own attributes back, when the last mode is left."""
    global _open
    with _lock:
        _open -= 1
        if _open == 0:
            for name, value in _originals.items():
                setattr(Tensor, name, value)


# ---- Functions of Python -------------------------------------------------------------------------------------------

_is_active = False


def activate():
    """Makes the package's functions that are written in Python overridable, once."""
    global _is_active
    if _is_active:
        return
    _is_active = True
    import sys
    from . import _draws, _functions, _lowrank, _operators
    from .nn import _attention, _resampling, functional
    modules = (functional, _resampling, _attention, _functions, _operators, _draws, _lowrank)
    names = {module.__name__ for module in modules}
    package = sys.modules[__package__]
    for module in (package, *modules):
        for name, value in list(vars(module).items()):
            if isinstance(value, types.FunctionType) and (name in _PRIVATE or not name.startswith("_")) and name not in _NOT_OVERRIDABLE and (
                    value.__globals__.get("__name__") in names) and "__wrapped__" not in vars(value):
                _make_overridable(value)


_PRIVATE = {"_standard_gamma", "_sample_dirichlet"}
_NOT_OVERRIDABLE = {
    "is_tensor", "is_storage", "set_default_tensor_type", "set_printoptions", "typename", "is_grad_enabled", "broadcast_shapes", "has_torch_function",
    "boolean_dispatch", "use_deterministic_algorithms", "set_default_device", "get_default_device", "can_cast", "promote_types", "compile"}


def _separate(args):
    """Returns the arguments of `einsum` with each tensor as a separate argument: classes that override functions
    receive them in this form."""
    return (args[0], *args[1]) if len(args) == 2 and isinstance(args[0], str) and isinstance(args[1], (list, tuple)) else args


def _make_overridable(function):
    """Replaces the code of a function by a call that looks at the arguments first."""
    own = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    own.__kwdefaults__, own.__module__ = function.__kwdefaults__, function.__module__
    name = function.__name__
    # The new code has the free variables of the former, since a function keeps its closure.
    free = own.__code__.co_freevars
    passed = "__separate__(args)" if name == "einsum" else "args"
    source = (f"def made({', '.join(free)}):\n"
              f"    def {name}(*args, **kwargs):\n"
              "        if __is_overridden__(args, kwargs):\n"
              f"            return __take__(__overridable__[{name!r}], __overriding__(args, kwargs), {passed}, kwargs)\n"
              f"        return __own__[{name!r}](*args, **kwargs)\n"
              f"        return {', '.join(free) or None}\n"
              f"    return {name}\n")
    namespace = function.__globals__
    namespace.setdefault("__is_overridden__", _core._is_overridden)
    namespace.setdefault("__separate__", _separate)
    namespace.setdefault("__overriding__", _core._overriding)
    namespace.setdefault("__take__", take)
    namespace.setdefault("__overridable__", {})[name] = function
    namespace.setdefault("__own__", {})[name] = own
    made = {}
    exec(compile(source, own.__code__.co_filename, "exec"), made)
    code = made["made"](*free).__code__
    function.__code__ = code.replace(co_firstlineno=own.__code__.co_firstlineno)
    function.__defaults__ = function.__kwdefaults__ = None
    function.__wrapped__ = own


def register(plain):
    """Registers the functions of this module with the extension, and the classes that override nothing."""
    values = (0, 0.0, None, False, "", 0j, b"", slice(None), ..., _core.float32, _core.preserve_format)
    _core._register_overrides(_called, _disabled_torch_function_impl, [
        *plain[:1], *map(type, values), *plain[1:], _core.device, _core.Generator])


def _make_wrapper_subclass(cls, size, *args, **kwargs):
    """Returns an instance of a class without elements of its own: see `_dispatching.wrapper`."""
    from . import _dispatching
    return _dispatching.wrapper(cls, size, *args, **kwargs)


Tensor._make_wrapper_subclass = staticmethod(_make_wrapper_subclass)
Tensor.__torch_function__ = classmethod(_torch_function)
Tensor.__torch_dispatch__ = staticmethod(_disabled_torch_dispatch_impl)
Tensor.__init_subclass__ = classmethod(_init_subclass)
