"""Dynamo's decorators (`torch._dynamo`): nothing is traced, so most return their function unchanged."""

import types as _types

from ._left_out import rest as _rest
from .compiler import (  # noqa: F401
    allow_in_graph, assume_constant_result, disable, disallow_in_graph, is_compiling, list_backends, reset, substitute_in_graph)
from ._compiling import compile as _compile
from .nn.compiled import OptimizedModule  # noqa: F401


def graph_break(msg=""):
    """Does nothing: there is no graph to break."""


def optimize(backend="inductor", *, nopython=False, dynamic=None, disable=False, **options):
    """Returns a decorator that compiles its function."""
    return _compile(backend=backend, fullgraph=nopython, dynamic=dynamic, disable=disable)


def mark_dynamic(t, index=None, **options):
    """Does nothing: shapes are never specialised."""


maybe_mark_dynamic = mark_static = mark_static_address = mark_unbacked = mark_dynamic
forbid_in_graph = nonstrict_trace = disallow_in_graph
config = _types.ModuleType(f"{__name__}.config", "Settings of Dynamo, which nothing reads.")
vars(config).update(
    compiled_autograd=False, suppress_errors=False, inline_inbuilt_nn_modules=False, cache_size_limit=8, recompile_limit=8,
    accumulated_recompile_limit=256, capture_scalar_outputs=False, capture_dynamic_output_shape_ops=False, verbose=False)
# `torch._dynamo.decorators` and others can be imported as if they existed.
__path__ = []

__getattr__ = _rest(__name__)
