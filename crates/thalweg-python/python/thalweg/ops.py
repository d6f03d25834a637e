"""Operators by their names with overloads (`torch.ops`): those of the table under `aten`, and those that programs register."""

import ast
import ctypes
import functools
import sys
import types

from . import _core
from ._left_out import placeholder
from ._torch_functions import take


class OpOverload:
    """One overload of an operator."""

    def __init__(self, packet, name):
        self._packet, self._full = packet, name
        self._key = name if packet._namespace in ("aten", "prims") else f"{packet._namespace}::{name}"
        base, _, overload = name.partition(".")
        self._overloadname = overload or "default"
        self.__name__ = f"{base}.{self._overloadname}"
        self.__qualname__ = f"{packet._qualified_op_name}.{self._overloadname}"
        self.__module__ = f"torch._ops.{packet._namespace}"
        self._qualified_name = f"torch.ops.{packet._namespace}.{self.__name__}"
        self.tags = []

    @property
    def overloadpacket(self):
        """All overloads of the operator."""
        return self._packet

    _overloadpacket = overloadpacket

    @property
    def namespace(self):
        """The namespace of the operator."""
        return self._packet._namespace

    @property
    def op(self):
        """All overloads of the operator."""
        return self._packet

    @property
    def _schema(self):
        return FunctionSchema(self.namespace, self._described())

    def _described(self):
        return _core._overload_schema(self._key)

    @property
    def is_view(self):
        """Whether the result shares memory with an argument."""
        return "(a)" in str(self._schema)

    def name(self):
        """Returns the name with the namespace."""
        suffix = "" if self._overloadname == "default" else f".{self._overloadname}"
        return f"{self._packet._qualified_op_name}{suffix}"

    def __call__(self, *args, **kwargs):
        if _core._is_overridden(args, kwargs):
            return take(self, _core._overriding(args, kwargs), args, kwargs)
        return _core._call_overload(self._key, args, kwargs)

    def __repr__(self):
        return f"<OpOverload(op='{self._packet._qualified_op_name.replace('::', '.')}', overload='{self._overloadname}')>"

    def __str__(self):
        return f"{self._packet._namespace}.{self.__name__}"

    def __hash__(self):
        return hash(self._full)

    def __reduce__(self):
        return _named, (self._packet._namespace, self._packet.__name__, self._overloadname)

    def __deepcopy__(self, memo):
        return self


def _named(namespace, name, overload):
    return getattr(getattr(getattr(ops, namespace), name), overload)


_TYPES = {"ScalarType": "Optional[int]", "Scalar": "number", "Generator": "Generator", "Device": "Device", "Layout": "int", "MemoryFormat": "int"}


def _type_name(one):
    """Returns a type in the notation of PyTorch's messages."""
    name = _TYPES.get(one["kind"], one["kind"]).removeprefix("Optional[").removesuffix("]")
    if one["optional_elements"]:
        name = f"Optional[{name}]"
    name = f"List[{name}]" if one["list"] else name
    return f"Optional[{name}]" if one["optional"] else name


class Argument:
    """A parameter or a result of a schema."""

    def __init__(self, described):
        self.name, self.type, self.N = described["name"] or "", _type_name(described), described["length"]
        self.kwarg_only, self._default = described.get("keyword_only", False), described.get("default")
        alias = described["alias"]
        self.alias_info = alias and types.SimpleNamespace(is_write=alias[1], before_set={alias[0]}, after_set={alias[0]})
        self.is_out = self.kwarg_only and alias is not None and alias[1]

    @property
    def default_value(self):
        """The default, or None."""
        return None if self._default is None else ast.literal_eval(self._default)

    def has_default_value(self):
        """Returns whether the argument may be left out."""
        return self._default is not None

    def __repr__(self):
        return f"{self.type} {self.name}" + (f"={self._default}" if self._default is not None else "")


class FunctionSchema:
    """The schema of an operator."""

    def __init__(self, namespace, described):
        text, arguments, returns = described
        name, _, rest = text.partition("(")
        name = name.rpartition("::")[2]
        self.name, self.overload_name, self._text = f"{namespace}::{name.partition('.')[0]}", name.partition(".")[2], f"{namespace}::{name}({rest}"
        self.arguments, self.returns = [Argument(one) for one in arguments], [Argument(one) for one in returns]

    @property
    def is_mutable(self):
        """Whether a call writes into an argument."""
        return any(one.alias_info is not None and one.alias_info.is_write for one in self.arguments)

    def __str__(self):
        return self._text

    __repr__ = __str__

    def __eq__(self, other):
        return isinstance(other, FunctionSchema) and str(self) == str(other)

    def __hash__(self):
        return hash(self._text)


class OpOverloadPacket:
    """All overloads of an operator."""

    def __init__(self, namespace, name, overloads):
        self._namespace, self.__name__, self._overloads = namespace, name, overloads
        self._qualified_op_name = f"{namespace}::{name}"
        self._qualified_name = f"torch.ops.{namespace}.{name}"
        self.__qualname__, self.__module__ = name, f"torch.ops.{namespace}"

    def overloads(self):
        """Returns the names of the overloads."""
        return [name.partition(".")[2] or "default" for name in self._overloads]

    def add(self, overload):
        """Adds an overload that a program defines."""
        if overload._full not in self._overloads:
            self._overloads.append(overload._full)
        setattr(self, overload._overloadname, overload)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        full = self.__name__ if name == "default" else f"{self.__name__}.{name}"
        if full not in self._overloads and self._namespace in ("aten", "prims"):
            # Programs name overloads that the table has in another form, in tables of their own.
            return placeholder(f"{__name__}.{self._namespace}.{full}", "the overload is not in the table")
        if full not in self._overloads:
            raise AttributeError(f"The underlying op of '{self._namespace}.{self.__name__}' has no overload name '{name}'")
        made = OpOverload(self, full)
        setattr(self, name, made)
        return made

    def __iter__(self):
        return iter(self.overloads())

    def __call__(self, *args, **kwargs):
        if _core._is_overridden(args, kwargs):
            return take(self, _core._overriding(args, kwargs), args, kwargs)
        function = None
        # An operator of a program may have the name of another one.
        if self._namespace in ("aten", "prims"):
            function = getattr(_core, self.__name__, None) or _core._in_place.get(self.__name__)
        if function is None:
            return getattr(self, self.overloads()[0])(*args, **kwargs)
        return function(*args, **kwargs)

    def __repr__(self):
        return f"<OpOverloadPacket(op='{self._namespace}.{self.__name__}')>"

    def __str__(self):
        return f"{self._namespace}.{self.__name__}"

    def __reduce__(self):
        return _packet, (self._namespace, self.__name__)

    def __deepcopy__(self, memo):
        return self


def _packet(namespace, name):
    return getattr(getattr(ops, namespace), name)


@functools.cache
def table():
    """Returns the entries of the operator table."""
    return _core._table()


@functools.cache
def _overloads():
    """Returns the names with overload of the operators of the table, by name."""
    found = {}
    for name in [entry["name"] for entry in table()] + [name for name in _core._operator_names() if "::" not in name]:
        found.setdefault(name.partition(".")[0], {})[name] = None
    return found


# Namespaces whose operators programs name in tables of their own.
_OF_PYTORCH = ("aten", "prims", "_c10d_functional", "c10d_functional", "c10d", "fsdp", "quantized", "quantized_decomposed", "inductor", "higher_order", "rngprims")


class _OpNamespace(types.ModuleType):
    """The operators of a namespace, as attributes."""

    def __init__(self, name):
        super().__init__(f"torch.ops.{name}")
        self.name, self._dir = name, []

    def __getattr__(self, name):
        found = _overloads().get(name) if self.name in ("aten", "prims") else None
        if found is None and name.startswith("__"):
            raise AttributeError(name)
        if found is None and self.name in _OF_PYTORCH:
            return placeholder(f"{__name__}.{self.name}.{name}", "the operator is not in the table")
        if found is None:
            raise AttributeError(f"'_OpNamespace' '{self.name}' object has no attribute '{name}'")
        made = OpOverloadPacket(self.name, name, list(found))
        setattr(self, name, made)
        return made

    def __dir__(self):
        return [*super().__dir__(), *(_overloads() if self.name == "aten" else ())]

    def __iter__(self):
        return iter(self._dir)


def overload(name):
    """Returns an operator of the table by its name with overload."""
    if "::" not in name:
        base, _, own = name.partition(".")
        return getattr(getattr(ops.aten, base), own or "default")
    # A part of other operators, which this package alone has.
    namespace, _, rest = name.partition("::")
    base, _, own = rest.partition(".")
    space = getattr(ops, namespace)
    packet = vars(space).get(base)
    if packet is None:
        packet = OpOverloadPacket(namespace, base, [rest])
        setattr(space, base, packet)
    elif rest not in packet._overloads:
        packet._overloads.append(rest)
    return getattr(packet, own or "default")


def _record_function_enter(name, args=None):
    """Begins a region that the profiler shows under a name, and returns it."""
    from .profiler import record_function
    region = record_function(name)
    region.__enter__()
    return region


def _record_function_exit(region):
    """Ends a region of the profiler."""
    region.__exit__(None, None, None)


# Operators of other namespaces than the table's, which are functions.
_FUNCTIONS = {"profiler": (_record_function_enter, _record_function_exit)}


class _Ops(types.ModuleType):
    """The namespaces of operators, as attributes."""

    __path__ = []
    loaded_libraries = set()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = _OpNamespace(name)
        for function in _FUNCTIONS.get(name, ()):
            function.__module__ = made.__name__
            setattr(made, function.__name__, function)
        setattr(self, name, made)
        return made

    def load_library(self, path):
        """Loads a library of operators. Those that are compiled for PyTorch cannot be loaded: `_compiled_libraries` defines the operators of some."""
        from . import _compiled_libraries
        if not _compiled_libraries.define(path):
            try:
                ctypes.CDLL(path)
            except OSError as error:
                raise OSError(f"{path} cannot be loaded ({error}). Operators that were compiled for PyTorch do not run in this package: define them "
                              "in Python (`torch.library.custom_op`).") from None
        self.loaded_libraries.add(path)

    def import_module(self, module):
        """Imports a module of Python that registers operators."""
        import importlib
        importlib.import_module(module)


ops = sys.modules[__name__]
ops.__class__ = _Ops
