"""Graphs of programs (`torch.fx`): programs are traced with symbolic values, changed as graphs, and run again as generated code."""

from .. import _torch_functions
from . import immutable_collections, traceback  # noqa: F401
from ._symbolic_trace import PH, ProxyableClassMeta, Tracer, symbolic_trace, wrap
from .graph import CodeGen, Graph
from .graph_module import GraphModule
from .interpreter import Interpreter, Transformer
from .node import Node, has_side_effect, map_arg
from .proxy import Proxy
from .subgraph_rewriter import replace_pattern

__all__ = [
    "CodeGen", "Graph", "GraphModule", "Interpreter", "Node", "PH", "Proxy", "ProxyableClassMeta", "Tracer", "Transformer", "has_side_effect",
    "map_arg", "replace_pattern", "symbolic_trace", "wrap"]

# Functions of networks that are written in Python become nodes.
_torch_functions.activate()


def __getattr__(name):
    if name in ("passes", "experimental", "operator_schemas", "_pytree", "config", "_compatibility", "_utils", "_lazy_graph_module",
                "tensor_type", "annotate"):
        import importlib
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
