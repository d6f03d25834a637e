"""Helpers of passes (`torch.fx.passes.utils`)."""

from .common import compare_graphs, lift_subgraph_as_module  # noqa: F401
