"""Modules that hold modules (`Sequential`, `ModuleList`, `ModuleDict`, `ParameterList`, `ParameterDict`)."""

from .module import Module
from .parameter import Parameter


class Sequential(Module):
    """Modules that are called one after the other."""

    def __init__(self, *modules):
        super().__init__()
        named = modules[0].items() if len(modules) == 1 and isinstance(modules[0], dict) else enumerate(modules)
        for name, module in named:
            self.add_module(str(name), module)

    def forward(self, input):
        for module in self._modules.values():
            input = module(input)
        return input

    def append(self, module):
        """Adds a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self._modules.values())

    def __getitem__(self, place):
        if isinstance(place, slice):
            return type(self)(dict(list(self._modules.items())[place]))
        return list(self._modules.values())[place]

    def __setitem__(self, place, module):
        self._modules[list(self._modules)[place]] = module


class ModuleList(Module):
    """A list of modules."""

    def __init__(self, modules=None):
        super().__init__()
        self.extend(modules or [])

    def append(self, module):
        """Adds a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules):
        """Adds modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, place, module):
        """Adds a module in front of a place."""
        modules = list(self)
        modules.insert(place, module)
        self._modules.clear()
        return self.extend(modules)

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self._modules.values())

    def __getitem__(self, place):
        modules = list(self._modules.values())[place]
        return type(self)(modules) if isinstance(place, slice) else modules

    def __setitem__(self, place, module):
        self._modules[list(self._modules)[place]] = module


class ModuleDict(Module):
    """A dictionary of modules."""

    def __init__(self, modules=None):
        super().__init__()
        self.update(modules or {})

    def update(self, modules):
        """Adds modules by their names."""
        for name, module in modules.items() if hasattr(modules, "items") else modules:
            self.add_module(name, module)

    def keys(self):
        """Returns the names."""
        return self._modules.keys()

    def values(self):
        """Returns the modules."""
        return self._modules.values()

    def items(self):
        """Returns names and modules."""
        return self._modules.items()

    def pop(self, name):
        """Takes a module out."""
        return self._modules.pop(name)

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self._modules)

    def __contains__(self, name):
        return name in self._modules

    def __getitem__(self, name):
        return self._modules[name]

    def __setitem__(self, name, module):
        self.add_module(name, module)

    def __delitem__(self, name):
        del self._modules[name]


class ParameterList(Module):
    """A list of parameters."""

    def __init__(self, values=None):
        super().__init__()
        for value in values or []:
            self.append(value)

    def append(self, value):
        """Adds a parameter at the end."""
        self.register_parameter(str(len(self)), value if isinstance(value, Parameter) else Parameter(value))
        return self

    def __len__(self):
        return len(self._parameters)

    def __iter__(self):
        return iter(self._parameters.values())

    def __getitem__(self, place):
        return list(self._parameters.values())[place]


class ParameterDict(Module):
    """A dictionary of parameters. Tensors become parameters."""

    def __init__(self, parameters=None):
        super().__init__()
        self.update(parameters or {})

    def update(self, parameters):
        """Adds parameters by their names."""
        for name, value in parameters.items() if hasattr(parameters, "items") else parameters:
            self[name] = value

    def keys(self):
        """Returns the names."""
        return self._parameters.keys()

    def values(self):
        """Returns the parameters."""
        return self._parameters.values()

    def items(self):
        """Returns names and parameters."""
        return self._parameters.items()

    def get(self, name, default=None):
        """Returns a parameter, or another value where there is none of the name."""
        return self._parameters.get(name, default)

    def pop(self, name):
        """Takes a parameter out."""
        return self._parameters.pop(name)

    def clear(self):
        """Takes all parameters out."""
        self._parameters.clear()

    def __len__(self):
        return len(self._parameters)

    def __iter__(self):
        return iter(self._parameters)

    def __contains__(self, name):
        return name in self._parameters

    def __getitem__(self, name):
        return self._parameters[name]

    def __setitem__(self, name, value):
        self.register_parameter(name, value if isinstance(value, Parameter) else Parameter(value))

    def __delitem__(self, name):
        del self._parameters[name]
