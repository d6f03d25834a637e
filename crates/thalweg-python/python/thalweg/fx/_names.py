"""Names of functions, classes and values in generated code."""

import builtins
import keyword
import math
import re
import sys
import types
import typing

from .. import _core

PACKAGE = __name__.partition(".")[0]


def package():
    """Returns this package, which generated code calls `torch`."""
    return sys.modules[PACKAGE]


def as_torch(module):
    """Returns the name of a module of this package as PyTorch has it."""
    return "torch" + module.removeprefix(PACKAGE) if module == PACKAGE or module.startswith(f"{PACKAGE}.") else module


def is_from_torch(obj):
    """Returns whether an object is found by its name in the package."""
    module = getattr(obj, "__module__", None)
    if isinstance(module, str):
        return module.partition(".")[0] in ("torch", PACKAGE) and not module.endswith(("._dynamo.external_utils",))
    name = getattr(obj, "__name__", None)
    return isinstance(name, str) and name != "torch" and any(getattr(guess, name, None) is obj for guess in _modules())


def _modules():
    from ..nn import functional
    own = package()
    return own, functional, own.linalg, own.special, own.fft


def module_of(function):
    """Returns the name of the module in which a function is found by its own name."""
    name, module = function.__name__, getattr(function, "__module__", None)
    if not isinstance(module, str) or module.partition(".")[0] in ("torch", PACKAGE):
        for guess in _modules():
            if getattr(guess, name, None) is function:
                return as_torch(guess.__name__)
    if isinstance(module, str):
        return as_torch(module)
    if _core._in_place.get(name) is function or getattr(_core, name, None) is function:
        return "torch"
    raise RuntimeError(f"cannot find module for {function}")


def qualified(function):
    """Returns a function's name with its module, by which generated code finds it."""
    name = getattr(function, "__name__", None)
    if name is not None and getattr(builtins, name, None) is function:
        return name
    if isinstance(function, (types.MethodDescriptorType, types.WrapperDescriptorType)) and getattr(_core.Tensor, name, None) is function:
        return f"torch.Tensor.{name}"
    qualname = getattr(function, "_qualified_name", None)
    if qualname is not None:
        return qualname
    if name == "<lambda>":
        import inspect
        try:
            name = inspect.getsource(function).split("=")[0].strip()
        except Exception as error:
            raise RuntimeError("Unable to represent lambda") from error
    return f"{module_of(function).replace('torch._ops', 'torch.ops')}.{name}"


def snake_case(text):
    """Returns a name in capitals as words in lower case with `_` between them."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower()


class Builtin(typing.NamedTuple):
    """A name that generated code may use without a definition: the statement that imports it, and the object."""

    import_str: str
    obj: object


def _made():
    from ..utils import _pytree
    from . import _pytree as fx_pytree
    return {
        "inf": Builtin("from math import inf", math.inf), "nan": Builtin("from math import nan", math.nan),
        "NoneType": Builtin("NoneType = type(None)", type(None)), "torch": Builtin("import torch", package()),
        "device": Builtin("from torch import device", _core.device),
        "fx_pytree": Builtin("import torch.fx._pytree as fx_pytree", fx_pytree),
        "pytree": Builtin("import torch.utils._pytree as pytree", _pytree)}


class _Builtins(dict):
    """The names that generated code may use, made when they are first asked for."""

    def _filled(self):
        if not self:
            self.update(_made())
        return self

    def __contains__(self, name):
        return dict.__contains__(self._filled(), name)

    def get(self, name, default=None):
        """Returns the name's import and object."""
        return dict.get(self._filled(), name, default)

    def items(self):
        """Returns the names with their imports and objects."""
        return dict.items(self._filled())


custom_builtins = _Builtins()


class Namespace:
    """The names that are in use: every object has one, and no two have the same."""

    def __init__(self):
        self._names, self._used, self._counts = {}, set(), {}

    def create_name(self, candidate, obj=None):
        """Returns an unused name that is like a candidate, and remembers it as the name of an object."""
        if obj is not None and obj in self._names:
            return self._names[obj]
        candidate = re.sub(r"[^0-9a-zA-Z_]+", "_", candidate) or "_unnamed"
        if candidate[0].isdigit():
            candidate = f"_{candidate}"
        base, number = candidate, None
        found = re.fullmatch(r"(.*)_(\d+)", candidate)
        if found is not None:
            base, number = found.group(1), int(found.group(2))
        if candidate in self._used:
            number = number or self._counts.get(base, 0)
        while candidate in self._used or self._is_illegal(candidate, obj):
            number = (number or 0) + 1
            candidate = f"{base}_{number}"
        self._used.add(candidate)
        self._counts[base] = max(self._counts.get(base, 0), number or 0)
        if obj is not None:
            self._names[obj] = candidate
        return candidate

    def associate_name_with_obj(self, name, obj):
        """Remembers a used name as the name of an object."""
        former = self._names.setdefault(obj, name)
        assert former == name, "obj is already associated"

    def _rename_object(self, obj, name):
        """Gives an object a name that is in use."""
        self._names[obj] = name
        self._used.add(name)

    @staticmethod
    def _is_illegal(name, obj):
        if name in keyword.kwlist:
            return True
        if name in builtins.__dict__:
            return obj is not builtins.__dict__[name]
        if name in custom_builtins:
            return obj is not custom_builtins.get(name).obj
        return False


_ORIGINS = {list: typing.List, dict: typing.Dict, tuple: typing.Tuple, set: typing.Set, frozenset: typing.FrozenSet}


def type_repr(obj):
    """Returns a type as it is printed in annotations."""
    if isinstance(obj, type) and not isinstance(obj, types.GenericAlias):
        if obj.__module__ == "builtins":
            return obj.__qualname__
        return f"{as_torch(obj.__module__)}.{obj.__qualname__}"
    if obj is ...:
        return "..."
    if isinstance(obj, types.FunctionType):
        return obj.__name__
    return repr(obj).replace(f"{PACKAGE}.", "torch.")
