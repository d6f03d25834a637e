"""Operators by their names with overloads (`torch.ops`): those of the table under `aten`, and those that programs register."""

import ctypes
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
        return _Schema(self._packet._namespace, self._full, self._key)

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


class _Schema:
    """The schema of an operator."""

    def __init__(self, namespace, name, key):
        self.name = f"{namespace}::{name.partition('.')[0]}"
        self.overload_name = name.partition(".")[2]
        self._text, _, self._names = _core._overload_schema(key)
        self.is_mutable = name.partition(".")[0].endswith("_")

    def __str__(self):
        return f"{self.name.partition('::')[0]}::{self._text}"

    __repr__ = __str__

    @property
    def arguments(self):
        """The parameters."""
        return [types.SimpleNamespace(name=name) for name in self._names]


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

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        full = self.__name__ if name == "default" else f"{self.__name__}.{name}"
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


_table = {}


def _overloads():
    """Returns the names with overload of the operators of the table, by their names."""
    if not _table:
        for entry in _core._table():
            _table.setdefault(entry["name"].partition(".")[0], {})[entry["name"]] = None
        for name in _core._operator_names():
            if "::" not in name:
                _table.setdefault(name.partition(".")[0], {}).setdefault(name)
    return _table


class _OpNamespace(types.ModuleType):
    """The operators of a namespace, as attributes."""

    def __init__(self, name):
        super().__init__(f"torch.ops.{name}")
        self.name, self._dir = name, []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        found = _overloads().get(name) if self.name in ("aten", "prims") else None
        if found is None and self.name in ("aten", "prims"):
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


class _Ops(types.ModuleType):
    """The namespaces of operators, as attributes."""

    __path__ = []
    loaded_libraries = set()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = _OpNamespace(name)
        setattr(self, name, made)
        return made

    def load_library(self, path):
        """Loads a library of operators, which would have to be made for this package."""
        ctypes.CDLL(path)
        self.loaded_libraries.add(path)

    def import_module(self, module):
        """Imports a module of Python that registers operators."""
        import importlib
        importlib.import_module(module)


ops = sys.modules[__name__]
ops.__class__ = _Ops
