"""Dynamo's decorators (`torch._dynamo`): programs run eagerly, so each returns its function unchanged."""

import types as _types

from ._left_out import rest as _rest
from .compiler import (  # noqa: F401
    allow_in_graph, assume_constant_result, disable, disallow_in_graph, is_compiling, list_backends, reset, substitute_in_graph)


def graph_break(msg=""):
    """Does nothing: there is no graph to break."""


def optimize(backend="eager", **options):
    """Returns a decorator that returns its function unchanged."""
    return lambda function: function


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
