"""Traced modules of `torch.jit`: graphs that are recorded as those of `torch.export` are."""

from . import serialization
from ._core import Tensor
from .export import Dim, _files, export
from .fx.graph_module import GraphModule
from .nn.module import Module
from .utils import _pytree


class _Function(Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self._function = function
        self.forward = function


class TopLevelTracedModule(Module):
    """A module that computes the graph of one call."""

    def __init__(self, program, original_name):
        super().__init__()
        self.__dict__["_program"], self.original_name = program, original_name
        own = program.module(check_guards=False)
        self.__dict__["_graph_module"] = own
        for members, theirs in ((self._modules, own._modules), (self._parameters, own._parameters), (self._buffers, own._buffers)):
            members.update(theirs)

    def forward(self, *args, **kwargs):
        """Computes the graph."""
        return self._graph_module.forward(*args, **kwargs)

    @property
    def graph(self):
        """The graph of calls."""
        return self._graph_module.graph

    inlined_graph = graph

    @property
    def code(self):
        """The code of the graph."""
        return self._graph_module.code

    def _get_name(self):
        return self.original_name

    def extra_repr(self):
        return f"original_name={self.original_name}"

    def save(self, f, _extra_files=None):
        """Writes the module to a path or a binary file."""
        save(self, f, _extra_files)

    def _apply(self, function, recurse=True):
        super()._apply(function, recurse)
        for name, value in list(self._program.constants.items()):
            self._program.constants[name] = function(value)
        return self


def traced(function, example_inputs, example_kwarg_inputs=None):
    """Returns the module of the graph of one call."""
    if isinstance(function, (TopLevelTracedModule, GraphModule)) and example_inputs is None:
        return function
    module = function if isinstance(function, Module) else _Function(function)
    if isinstance(example_inputs, dict) and example_kwarg_inputs is None:
        example_inputs, example_kwarg_inputs = (), example_inputs
    args = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs or ())
    given = (*args, *(example_kwarg_inputs or {}).values())
    shapes = _pytree.tree_map(lambda value: {place: Dim.AUTO for place in range(value.dim())} if isinstance(value, Tensor) else None, given)
    program = export(module, args, example_kwarg_inputs, dynamic_shapes=shapes)
    made = TopLevelTracedModule(program, type(module).__name__ if module is function else getattr(function, "__name__", "function"))
    made.train(module.training)
    return made


def save(module, f, extra_files=None):
    """Writes a module to a path or a binary file."""
    if isinstance(module, TopLevelTracedModule):
        own = dict(module.named_parameters()) | dict(module.named_buffers())
        module._program._state_dict.update({name: own[name] for name in module._program.state_dict if name in own})
        _files.save(module._program, f, extra_files={**(extra_files or {}), "original_name": module.original_name})
    else:
        vars(module).pop("save", None)
        serialization.save(module, f)


def load(f, map_location=None, extra_files=None):
    """Reads a module."""
    import zipfile
    try:
        with zipfile.ZipFile(f) as archive:
            is_traced = "program.json" in archive.namelist()
    except zipfile.BadZipFile:
        is_traced = False
    if not is_traced:
        if hasattr(f, "seek"):
            f.seek(0)
        return serialization.load(f, map_location=map_location, weights_only=False)
    found = {"original_name": "", **(extra_files or {})}
    program = _files.load(f, extra_files=found)
    made = TopLevelTracedModule(program, found.pop("original_name"))
    if extra_files is not None:
        extra_files.update(found)
    return made if map_location is None else made.to(map_location)
