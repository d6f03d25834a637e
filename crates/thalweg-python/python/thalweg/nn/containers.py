"""Modules that hold modules (`Sequential`, `ModuleList`, `ModuleDict`, `ParameterList`, `ParameterDict`)."""

import collections
import collections.abc
import operator

from .. import _core
from .module import Module
from .parameter import Parameter


def _place(index, size):
    """Returns the non-negative index for an index."""
    index = operator.index(index)
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of range")
    return index % size


def _pairs(name, given, kind):
    """Yields the keys and values of a mapping or of a sequence of pairs."""
    if not isinstance(given, collections.abc.Iterable):
        raise TypeError(f"{name}.update should be called with an iterable of key/value pairs, but got {type(given).__name__}")
    if hasattr(given, "items"):
        yield from given.items()
        return
    for number, pair in enumerate(given):
        if not isinstance(pair, collections.abc.Iterable):
            raise TypeError(f"{kind} update sequence element #{number} should be Iterable; is {type(pair).__name__}")
        if len(pair) != 2:
            raise ValueError(f"{kind} update sequence element #{number} has length {len(pair)}; 2 is required")
        yield pair


class _Numbered(Module):
    """Modules in order, named by their indices."""

    def _name_at(self, index):
        return list(self._modules)[_place(index, len(self))]

    def _renumber(self, modules):
        self._modules.clear()
        for number, module in enumerate(modules):
            self._modules[str(number)] = module

    def append(self, module):
        """Adds a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def insert(self, index, module):
        """Inserts a module before an index."""
        modules = list(self)
        modules.insert(index, module)
        self._renumber(modules)

    def extend(self, modules):
        """Adds modules at the end."""
        for module in list(modules):
            self.append(module)
        return self

    def pop(self, key):
        """Removes a module and returns it."""
        taken = self[key]
        del self[key]
        return taken

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self._modules.values())

    def __setitem__(self, index, module):
        setattr(self, self._name_at(index), module)

    def __delitem__(self, index):
        names = list(self._modules)[index] if isinstance(index, slice) else [self._name_at(index)]
        self._renumber([module for name, module in self._modules.items() if name not in names])


class Sequential(_Numbered):
    """Modules that are called one after another."""

    def __init__(self, *args):
        super().__init__()
        is_named = len(args) == 1 and isinstance(args[0], collections.OrderedDict)
        for name, module in args[0].items() if is_named else enumerate(args):
            self.add_module(name if is_named else str(name), module)

    def forward(self, input):
        """Calls the modules."""
        for module in self:
            input = module(input)
        return input

    def insert(self, index, module):
        """Inserts a module before an index."""
        if not isinstance(module, Module):
            raise AssertionError(f"module should be of type: {Module}")
        if not -len(self) <= index <= len(self):
            raise IndexError(f"Index out of range: {index}")
        super().insert(index, module)
        return self

    def __getitem__(self, index):
        if isinstance(index, slice):
            return type(self)(collections.OrderedDict(list(self._modules.items())[index]))
        return self._modules[self._name_at(index)]

    @staticmethod
    def _check_added(other):
        if not isinstance(other, Sequential):
            raise ValueError(f"add operator supports only objects of Sequential class, but {type(other)} is given.")

    def __add__(self, other):
        self._check_added(other)
        return Sequential(*self, *other)

    def __iadd__(self, other):
        self._check_added(other)
        return self.extend(other)

    def _check_factor(self, other):
        if not isinstance(other, int):
            raise TypeError(f"unsupported operand type(s) for *: {type(self)} and {type(other)}")
        if other <= 0:
            raise ValueError(f"Non-positive multiplication factor {other} for {type(self)}")

    def __mul__(self, other):
        self._check_factor(other)
        return Sequential(*list(self) * other)

    def __rmul__(self, other):
        return self * other

    def __imul__(self, other):
        self._check_factor(other)
        return self.extend(list(self) * (other - 1))


class ModuleList(_Numbered):
    """A list of modules."""

    def __init__(self, modules=None):
        super().__init__()
        if modules is not None:
            self += modules

    def extend(self, modules):
        """Adds modules at the end."""
        if not isinstance(modules, collections.abc.Iterable):
            raise TypeError(f"ModuleList.extend should be called with an iterable, but got {type(modules).__name__}")
        return super().extend(modules)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return type(self)(list(self._modules.values())[index])
        return self._modules[self._name_at(index)]

    def __iadd__(self, modules):
        return self.extend(modules)

    def __add__(self, other):
        return type(self)([*self, *other])

    def __repr__(self):
        """Returns a description of the modules. Consecutive modules with the same description are shown once, with their
        count."""
        texts = [repr(module) for module in self]
        if not texts:
            return f"{self._get_name()}()"
        rows = []
        for place, text in enumerate(texts):
            if rows and rows[-1][2] == text:
                rows[-1][1] = place
            else:
                rows.append([place, place, text])
        lines = []
        for first, last, text in rows:
            name, text = (f"({first})", text) if first == last else (f"({first}-{last})", f"{last - first + 1} x {text}")
            lines.append(f"{name}: {text}".replace("\n", "\n  "))
        return f"{self._get_name()}(\n  " + "\n  ".join(lines) + "\n)"


class ModuleDict(Module):
    """A dictionary of modules."""

    def __init__(self, modules=None):
        super().__init__()
        if modules is not None:
            self.update(modules)

    def update(self, modules):
        """Adds modules by name."""
        for name, module in list(_pairs("ModuleDict", modules, "ModuleDict")):
            self[name] = module

    def keys(self):
        """Returns the names."""
        return self._modules.keys()

    def values(self):
        """Returns the modules."""
        return self._modules.values()

    def items(self):
        """Returns names and modules."""
        return self._modules.items()

    def pop(self, key):
        """Removes a module and returns it."""
        taken = self[key]
        del self[key]
        return taken

    def clear(self):
        """Removes all modules."""
        self._modules.clear()

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self._modules)

    def __contains__(self, key):
        return key in self._modules

    def __getitem__(self, key):
        return self._modules[key]

    def __setitem__(self, key, module):
        self.add_module(key, module)

    def __delitem__(self, key):
        del self._modules[key]


def _as_parameter(value):
    return Parameter(value) if isinstance(value, _core.Tensor) and not isinstance(value, Parameter) else value


def _described(key, value, type_of=lambda value: value.dtype):
    """Returns the line for a parameter or another object when its container is printed. Tensors are shown with their type."""
    if not isinstance(value, _core.Tensor):
        return f"  ({key}): Object of type: {type(value).__name__}"
    kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
    size, place = "x".join(str(extent) for extent in value.shape), f" ({value.device})" if value.is_cuda else ""
    return f"  ({key}): {kind} containing: [{type_of(value)} of size {size}{place}]"


class ParameterList(Module):
    """A list of parameters and other objects. Tensors become parameters."""

    def __init__(self, values=None):
        super().__init__()
        self._size = 0
        if values is not None:
            self += values

    def append(self, value):
        """Adds a value at the end."""
        setattr(self, str(len(self)), _as_parameter(value))
        self._size += 1
        return self

    def extend(self, values):
        """Adds values at the end."""
        if not isinstance(values, collections.abc.Iterable) or isinstance(values, _core.Tensor):
            raise TypeError(f"ParameterList.extend should be called with an iterable, but got {type(values).__name__}")
        for value in list(values):
            self.append(value)
        return self

    def __iadd__(self, values):
        return self.extend(values)

    def __len__(self):
        return self._size

    def __iter__(self):
        return iter(self[place] for place in range(len(self)))

    def __getitem__(self, index):
        if isinstance(index, slice):
            return type(self)([self[place] for place in range(*index.indices(len(self)))])
        return getattr(self, str(_place(index, len(self))))

    def __setitem__(self, index, value):
        setattr(self, str(_place(index, len(self))), _as_parameter(value))

    def __call__(self, *args, **kwargs):
        raise RuntimeError("ParameterList should not be called.")

    def extra_repr(self):
        """Returns a line for each value."""
        return "\n".join(_described(place, value) for place, value in enumerate(self))


class ParameterDict(Module):
    """A dictionary of parameters and other objects. Tensors become parameters."""

    def __init__(self, parameters=None):
        super().__init__()
        self._keys = {}
        if parameters is not None:
            self.update(parameters)

    @staticmethod
    def _checked(key):
        if not isinstance(key, str):
            raise TypeError(f"Index given to ParameterDict cannot be used as a key as it is not a string (type is '{type(key).__name__}').")
        return key

    def update(self, parameters):
        """Adds values by name. Those of a plain dictionary are added in the order of the names."""
        pairs = list(_pairs("ParametersDict", parameters, "ParameterDict"))
        if isinstance(parameters, collections.abc.Mapping) and not isinstance(parameters, collections.OrderedDict):
            pairs.sort(key=lambda pair: pair[0])
        for key, value in pairs:
            self[key] = value

    def keys(self):
        """Returns the names."""
        return self._keys.keys()

    def values(self):
        """Yields the values."""
        return (self[key] for key in self._keys)

    def items(self):
        """Yields names and values."""
        return ((key, self[key]) for key in self._keys)

    def get(self, key, default=None):
        """Returns the value of a name, or the default."""
        return self[key] if key in self else default

    def setdefault(self, key, default=None):
        """Returns the value of a name. If there is none, adds and returns the default."""
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key):
        """Removes a value and returns it."""
        taken = self[key]
        del self[key]
        return taken

    def popitem(self):
        """Removes the last value and returns it with its name."""
        if not self._keys:
            raise KeyError("popitem(): dictionary is empty")
        key = next(reversed(self._keys))
        return key, self.pop(key)

    def clear(self):
        """Removes all values."""
        for key in list(self._keys):
            del self[key]

    def copy(self):
        """Returns another dictionary with the same values."""
        return ParameterDict(collections.OrderedDict(self.items()))

    def fromkeys(self, keys, default=None):
        """Returns a dictionary with one value for all names."""
        return ParameterDict([(key, default) for key in keys])

    def __len__(self):
        return len(self._keys)

    def __iter__(self):
        return iter(self._keys)

    def __reversed__(self):
        return reversed(self._keys)

    def __contains__(self, key):
        return key in self._keys

    def __getitem__(self, key):
        return getattr(self, self._checked(key))

    def __setitem__(self, key, value):
        setattr(self, self._checked(key), _as_parameter(value))
        self._keys[key] = None

    def __delitem__(self, key):
        delattr(self, self._checked(key))
        del self._keys[key]

    def __or__(self, other):
        joined = self.copy()
        joined.update(other)
        return joined

    def __ror__(self, other):
        joined = other.copy()
        joined.update(self)
        return joined

    def __ior__(self, other):
        self.update(other)
        return self

    def __call__(self, input):
        raise RuntimeError("ParameterDict should not be called.")

    def extra_repr(self):
        """Returns a line for each value."""
        return "\n".join(_described(key, value, _core.Tensor.type) for key, value in self.items())
