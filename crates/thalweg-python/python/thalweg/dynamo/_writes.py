"""Inputs that a graph writes. PyTorch's graphs compute new values, and copy them into the inputs at the end."""

import operator

import torch

from ._given import is_view
from ._nodes import is_call

aten = torch.ops.aten


def early(graph):
    """Moves each copy into an input to the value that is copied, unless the input is read later: the value needs no memory of its own then."""
    if any(isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "streams" for node in graph.nodes):
        return
    places = {node: place for place, node in enumerate(graph.nodes)}
    for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
        written, value = node.args[:2]
        if written.op != "placeholder" or not isinstance(value, torch.fx.Node) or value.op != "call_function":
            continue
        others = [user for user in written.users if user is not node]
        if all(places[user] <= places[value] and not is_view(user.target) for user in others):
            value.append(node)


def of_batch_norm(node):
    """Returns the copies of the new running mean and the new running variance of a batch normalization into the inputs that have the old ones;
    `None` for one that has other uses, so that it cannot be computed in its place."""
    parts = {user.args[1]: user for user in node.users if is_call(user, operator.getitem)}
    return [_copy(node, old, parts.get(place)) for place, old in ((3, node.args[3]), (4, node.args[4]))]


def _copy(node, old, new):
    if new is None or not isinstance(old, torch.fx.Node) or old.op != "placeholder" or len(new.users) != 1:
        return None
    (copy,) = new.users
    return copy if is_call(copy, aten.copy_.default) and copy.args[:2] == (old, new) and set(old.users) == {node, copy} else None
