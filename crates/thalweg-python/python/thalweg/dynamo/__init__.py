"""The backend `thalweg` of PyTorch's compiler: `torch.compile(model, backend="thalweg")`.

PyTorch traces the model; the graph becomes a program of calls of the operator table (`graph`), which runs without Python
between its steps. Operators that the table lacks are PyTorch's, called between parts of the program. `compiled()` lists the
graphs of the process, with what was taken and what was passed on, and why.

This package needs the real PyTorch beside Thalweg; nothing of it is imported by `import thalweg`.
"""

from ._report import CompiledGraph, compiled, forget

__all__ = ["CompiledGraph", "Refused", "backend", "compiled", "forget", "register"]


class Refused(RuntimeError):
    """The exception for a request that the backend cannot fulfil, with the reason and a remedy."""


def backend(gm, example_inputs, *, mode=None, options=None, name=None):
    """Compiles a graph of PyTorch's compiler; the function that `torch.compile(backend="thalweg")` calls."""
    from ._entry import compile_graph

    return compile_graph(gm, example_inputs, mode=mode, options=options)


def register():
    """Registers the backend under its name with PyTorch, where the installed package has not done so."""
    from ._entry import register_by_name

    register_by_name(backend)


def _reset():
    forget()
    from .. import _core

    _core._forget_programs()


# `torch.compiler.reset()` calls it.
backend.reset = _reset
