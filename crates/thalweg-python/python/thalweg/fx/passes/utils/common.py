"""Parts of graphs as modules (`torch.fx.passes.utils.common`)."""

from ...graph import Graph
from ...graph_module import GraphModule
from ...graph_module import _copy_attr as _copied
from ....nn.module import Module
from .matcher_utils import SubgraphMatcher

__all__ = ["HolderModule", "compare_graphs", "lift_subgraph_as_module"]


class HolderModule(Module):
    """A module that holds others by name."""

    def __init__(self, d):
        super().__init__()
        for name, value in d.items():
            self.add_module(name, value)


def lift_subgraph_as_module(gm, subgraph, comp_name="", class_name="GraphModule"):
    """Returns a module of a graph with copies of the attributes that it uses, and the new paths by the old ones."""
    root = Module()
    for node in subgraph.nodes:
        if node.op in ("call_module", "get_attr"):
            _copied(gm, root, node.target)
    paths = {f"{comp_name}.{node.target}" if comp_name else node.target: node.target for node in subgraph.nodes if node.op in ("call_module", "get_attr")}
    subgraph.owning_module = None
    subgraph._owners = 0
    return GraphModule(root, subgraph, class_name), paths


def compare_graphs(left, right):
    """Returns whether two graphs compute the same: the same calls of the same values."""
    assert isinstance(left, Graph) and isinstance(right, Graph)
    matches = SubgraphMatcher(left, match_output=True, match_placeholder=True).match(right)
    return len(matches) > 0
