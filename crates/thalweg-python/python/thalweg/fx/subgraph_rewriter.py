"""Patterns in graphs that are replaced by others (`torch.fx.replace_pattern`)."""

import copy
import dataclasses
import typing

from ._symbolic_trace import symbolic_trace
from .graph import Graph
from .graph_module import GraphModule, _copy_attr
from .node import Node

__all__ = ["Match", "ReplacedPatterns", "replace_pattern", "replace_pattern_with_filters"]


class Match(typing.NamedTuple):
    """A match of a pattern in a graph: its first node, and for each node of the pattern the node that it matches."""

    anchor: Node
    nodes_map: dict


@dataclasses.dataclass
class ReplacedPatterns:
    """A place where a pattern was replaced, with the new nodes."""

    anchor: Node
    nodes_map: dict
    replacements: list


def _has(module, path):
    for name in path.split("."):
        if not hasattr(module, name):
            return False
        module = getattr(module, name)
    return True


def _replace_attributes(gm, replacement):
    """Copies the attributes that a replacement uses to a module that does not have them."""
    gm.delete_all_unused_submodules()
    if isinstance(replacement, GraphModule):
        replacement.graph.lint()
    for node in gm.graph.nodes:
        if node.op in ("call_module", "get_attr") and not _has(gm, node.target):
            if not _has(replacement, node.target):
                raise RuntimeError(f'Attempted to create a "{node.op}" node during subgraph rewriting with target {node.target}, but the referenced '
                                   "attribute does not exist in the replacement GraphModule")
            _copy_attr(replacement, gm, node.target)
    gm.graph.lint()


def _graph_of(program):
    if isinstance(program, GraphModule):
        return program.graph
    return program if isinstance(program, Graph) else symbolic_trace(program).graph


def replace_pattern(gm, pattern, replacement):
    """Replaces all parts of a module's graph that match a pattern, and returns the matches. Both patterns are functions or modules."""
    return [Match(anchor=match.anchor, nodes_map=match.nodes_map) for match in _replace_pattern(gm, pattern, replacement)]


def replace_pattern_with_filters(gm, pattern, replacement=None, match_filters=None, ignore_literals=False, replacement_callback=None,
                                 node_name_match=""):
    """Replaces the parts of a graph that match a pattern and that all filters accept."""
    return _replace_pattern(gm, pattern, replacement, match_filters, ignore_literals, replacement_callback, node_name_match)


def _replace_pattern(gm, pattern, replacement=None, match_filters=None, ignore_literals=False, replacement_callback=None, node_name_match=""):
    from .passes.utils.matcher_utils import SubgraphMatcher
    match_filters = match_filters or []
    original, pattern_graph = gm.graph, _graph_of(pattern)
    matcher = SubgraphMatcher(pattern_graph, match_output=False, match_placeholder=False, remove_overlapping_matches=True,
                              ignore_literals=ignore_literals)
    matches = [match for match in matcher.match(original, node_name_match=node_name_match)
               if all(accepts(match, original, pattern_graph) for accepts in match_filters)]
    common = None
    if replacement is not None:
        common = _graph_of(replacement)
    else:
        assert replacement_callback is not None, "Must provide either a replacement GraphModule or a replacement callback"
    changed, found = {}, []
    for match in matches:
        graph = common if replacement_callback is None else replacement_callback(match, original, pattern_graph)
        found.append(_replaced(original, pattern_graph, graph, match, changed))
    gm.recompile()
    if isinstance(replacement, Graph) or replacement is None:
        return found
    from ..nn.module import Module
    if isinstance(replacement, Module):
        _replace_attributes(gm, replacement)
    return found


def _replaced(original, pattern_graph, graph, match, changed):
    """Replaces one match, and returns it with the new nodes."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    assert len(match.placeholder_nodes) == len(inputs), "the pattern and the replacement have different numbers of inputs"
    for place, node in enumerate(match.placeholder_nodes):
        while isinstance(node, Node) and node in changed:
            node = changed[node]
        match.placeholder_nodes[place] = node
    values = dict(zip(inputs, match.placeholder_nodes))
    for pattern_node, node in match.nodes_map.items():
        if isinstance(node, Node) and node in changed:
            match.nodes_map[pattern_node] = changed[node]
    first = _first_user(original, pattern_graph, match)
    with original.inserting_before(first):
        result = original.graph_copy(graph, values)
    results = (result,) if isinstance(result, Node) else tuple(result)
    new = [values[node] for node in graph.nodes if node in values and node.op != "placeholder"]
    assert len(match.returning_nodes) == len(results), "the pattern and the replacement have different numbers of results"
    for old, made in zip(match.returning_nodes, results):
        old.replace_all_uses_with(made)
        changed[old] = made
        if isinstance(made, Node) and made in new:
            made.meta = {**copy.copy(old.meta), **made.meta}
    for node in reversed(pattern_graph.nodes):
        if node.op not in ("placeholder", "output"):
            here = match.nodes_map[node]
            if here.graph is original and not here._erased:
                original.erase_node(here)
    return ReplacedPatterns(anchor=match.anchors[0], nodes_map=match.nodes_map, replacements=new)


def _first_user(original, pattern_graph, match):
    """Returns the node before which the replacement belongs: the first of the match that comes after all inputs."""
    inputs = {node for node in match.placeholder_nodes if isinstance(node, Node)}
    matched = {match.nodes_map[node] for node in pattern_graph.nodes if node.op not in ("placeholder", "output")}
    users = {user for node in matched for user in node.users}
    seen, found = 0, None
    for node in original.nodes:
        if node in inputs:
            seen += 1
            found = None if found is not None and node not in matched else found
        elif (node in matched or node in users) and found is None and seen == len(inputs):
            found = node
    return found if found is not None else next(node for node in original.nodes if node in matched)
