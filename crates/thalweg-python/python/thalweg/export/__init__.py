"""Modules as graphs of operators (`torch.export`): recorded from one call, run without their Python, written and read."""

from .._left_out import attributes
from ..utils._pytree import register_dataclass  # noqa: F401
from ._files import load, save  # noqa: F401
from ._program import ExportedProgram, ModuleCallSignature, export
from .dynamic_shapes import Dim, ShapesCollection, dims  # noqa: F401
from .graph_signature import ExportGraphSignature  # noqa: F401

__all__ = ["Dim", "ExportGraphSignature", "ExportedProgram", "ModuleCallSignature", "ShapesCollection", "default_decompositions", "dims", "draft_export", "export",
           "load", "register_dataclass", "save", "unflatten"]


def export_for_training(mod, args, kwargs=None, *, dynamic_shapes=None, strict=False, preserve_module_call_signature=()):
    """Returns a module as a graph of operators: see `export`."""
    return export(mod, args, kwargs, dynamic_shapes=dynamic_shapes)


draft_export = export_for_training


def unflatten(module, flat_args_adapter=None):
    """Returns the module of an exported program, with parameters and buffers in submodules of their former names."""
    return module.module()


def default_decompositions():
    """Returns an empty table: operators are not taken apart."""
    return {}


__getattr__ = attributes(__name__)
