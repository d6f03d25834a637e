"""Finding a pattern in a graph (`torch.fx.passes.utils.matcher_utils`)."""

import copy
import dataclasses

from ...node import Node

__all__ = ["InternalMatch", "SubgraphMatcher"]


@dataclasses.dataclass
class InternalMatch:
    """A match of a pattern in a graph: for each node of the pattern, the node that it matches."""

    anchors: list
    nodes_map: dict = dataclasses.field(default_factory=dict)
    placeholder_nodes: list = dataclasses.field(default_factory=list)
    returning_nodes: list = dataclasses.field(default_factory=list)
    name_node_map: dict = dataclasses.field(default_factory=dict)

    def __copy__(self):
        return InternalMatch(self.anchors, self.nodes_map.copy(), self.placeholder_nodes.copy(), self.returning_nodes.copy())


def _attribute(module, path):
    for name in path.split("."):
        module = getattr(module, name)
    return module


class SubgraphMatcher:
    """Finds a pattern in graphs. The pattern's results are matched first, then their arguments."""

    def __init__(self, pattern, match_output=False, match_placeholder=False, remove_overlapping_matches=True, ignore_literals=False):
        self.pattern, self.match_output, self.match_placeholder = pattern, match_output, match_placeholder
        self.remove_overlapping_matches, self.ignore_literals = remove_overlapping_matches, ignore_literals
        if len(pattern.nodes) == 0:
            raise ValueError("SubgraphMatcher cannot be initialized with an empty pattern")
        for node in pattern.nodes:
            if node.op != "output" and not node.is_impure():
                assert len(node.users) > 0, (
                    "SubgraphMatcher cannot be initialized with an pattern with dead code")
        self.pattern_placeholder_nodes = [node for node in pattern.nodes if node.op == "placeholder"]
        output = next(iter(reversed(pattern.nodes)))
        self.pattern_returning_nodes = output.all_input_nodes
        self.pattern_anchors = [output] if match_output else [
            node for node in output.all_input_nodes if len(node.users) == 1]

    def _match_attributes(self, pattern_node, node):
        """Returns whether two attributes are tensors, or modules that are printed alike."""
        from .... import Tensor
        mine, theirs = (_attribute(one.graph.owning_module, one.target) for one in (pattern_node, node))
        if isinstance(mine, Tensor):
            return isinstance(theirs, Tensor)
        return type(mine) is type(theirs)

    def _nodes_are_equal(self, pattern_node, node, node_name_match=""):
        if node_name_match and node_name_match in node.name:
            return True
        if not self.match_placeholder and pattern_node.op == "placeholder":
            return True
        if pattern_node.op != node.op:
            return False
        if pattern_node.op in ("placeholder", "output"):
            return True
        if pattern_node.op == "get_attr":
            return self._match_attributes(pattern_node, node)
        return pattern_node.target == node.target

    def _is_contained(self, nodes_map):
        """Returns whether the nodes between the pattern's inputs and results have no users outside of the match."""
        returned = {nodes_map[node] for node in self.pattern_returning_nodes if node in nodes_map}
        inputs = {nodes_map.get(node) for node in self.pattern_placeholder_nodes}
        found = {value for value in nodes_map.values() if isinstance(value, Node)}
        for pattern_node, node in nodes_map.items():
            if not isinstance(node, Node) or pattern_node.op == "placeholder" or node in inputs or node in returned:
                continue
            if any(user not in found for user in node.users):
                return False
        return True

    def _remove_overlapping_matches(self, matches):
        kept, taken = [], set()
        for match in matches:
            own = {node for pattern_node, node in match.nodes_map.items() if pattern_node.op not in ("placeholder", "output")}
            if not own & taken:
                kept.append(match)
                taken |= own
        return kept

    def _match_literals(self, mine, theirs, match):
        assert not (isinstance(mine, Node) and isinstance(theirs, Node)), "mine and theirs cannot both be Node"
        if isinstance(mine, Node):
            if mine.op != "placeholder":
                return False
            if mine in match.nodes_map:
                return match.nodes_map[mine] == theirs
            match.nodes_map[mine] = theirs
            return True
        if isinstance(theirs, Node):
            return False
        return self.ignore_literals or (type(mine) is type(theirs) and mine == theirs)

    def _match_args(self, mine, theirs, match):
        """Returns whether nested arguments match, part by part."""
        if isinstance(mine, (list, tuple)) and isinstance(theirs, (list, tuple)):
            return len(mine) == len(theirs) and all(self._match_args(*pair, match) for pair in zip(mine, theirs))
        if isinstance(mine, dict) and isinstance(theirs, dict):
            return mine.keys() == theirs.keys() and all(self._match_args(mine[key], theirs[key], match) for key in mine)
        if isinstance(mine, slice) and isinstance(theirs, slice):
            return all(self._match_args(getattr(mine, part), getattr(theirs, part), match) for part in ("start", "stop", "step"))
        if isinstance(mine, Node) and isinstance(theirs, Node):
            return self._match_nodes(mine, theirs, match)
        return self._match_literals(mine, theirs, match)

    def _match_nodes(self, mine, theirs, match, node_name_match=""):
        """Returns whether a node matches one of the pattern, with all that it is computed from. Writes the pairs to `match`."""
        if mine in match.nodes_map:
            return match.nodes_map[mine] == theirs
        if theirs in match.nodes_map.values() and mine.op != "placeholder":
            return False
        if not self._nodes_are_equal(mine, theirs, node_name_match):
            return False
        former = copy.copy(match.nodes_map)
        match.nodes_map[mine] = theirs
        if mine.op == "placeholder":
            return True
        if self._match_args(*self._ordered(mine, theirs), match):
            return True
        match.nodes_map.clear()
        match.nodes_map.update(former)
        return False

    @staticmethod
    def _ordered(mine, theirs):
        """Returns the arguments of two calls in the same order, although they may be passed in different ways."""
        def listed(node):
            try:
                found = node.normalized_arguments(node.graph.owning_module) if node.op == "call_function" and node.kwargs else None
            except Exception:
                found = None
            return [list(node.args), dict(node.kwargs)] if found is None else [list(found.args), dict(found.kwargs)]
        one, other = listed(mine), listed(theirs)
        if len(one[0]) != len(other[0]) and one[1].keys() != other[1].keys():
            one, other = [list(mine.args), dict(mine.kwargs)], [list(theirs.args), dict(theirs.kwargs)]
        return one, other

    def match(self, graph, node_name_match=""):
        """Returns the matches of the pattern, those at the end of the graph first."""
        candidates = []
        for anchor in self.pattern_anchors:
            found = [node for node in graph.nodes if self._nodes_are_equal(anchor, node, node_name_match)]
            if not found:
                return []
            candidates.append((anchor, found))
        matches = []
        self._search(candidates, 0, InternalMatch(anchors=self.pattern_anchors), matches, node_name_match)
        found = []
        for match in matches:
            if not self._is_contained(match.nodes_map):
                continue
            match.placeholder_nodes = [match.nodes_map[node] for node in self.pattern_placeholder_nodes if node in match.nodes_map]
            match.returning_nodes = [match.nodes_map[node] for node in self.pattern_returning_nodes if node in match.nodes_map]
            found.append(match)
        return self._remove_overlapping_matches(found) if self.remove_overlapping_matches else found

    def _search(self, candidates, place, match, matches, node_name_match):
        """Appends all matches, in which each of the pattern's results is one of the candidates for it."""
        if place == len(candidates):
            matches.append(match)
            return
        anchor, nodes = candidates[place]
        for node in reversed(nodes):
            own = copy.copy(match)
            if self._match_nodes(anchor, node, own, node_name_match):
                self._search(candidates, place + 1, own, matches, node_name_match)


