"""Calls of subgraphs (`torch.compiler.nested_compile_region`) and calls with effects as plain calls of a graph.

A program runs its calls in the order of the graph, so that effects need no tokens, and a subgraph's calls are fused with those around it.
"""

import torch

_SUBGRAPH = torch.ops.higher_order.invoke_subgraph
_WITH_EFFECTS = torch.ops.higher_order.with_effects


def inlined(gm):
    """Returns a graph without calls of subgraphs."""
    while found := gm.graph.find_nodes(op="call_function", target=_SUBGRAPH):
        for node in found:
            _inline(gm, node)
    gm.recompile()
    return gm


def without_tokens(gm):
    """Returns a graph without tokens of effects. Calls with effects may have no users then, so that this is the last change of a graph."""
    for node in gm.graph.find_nodes(op="call_function", target=_WITH_EFFECTS):
        _without_token(gm.graph, node)
    gm.recompile()
    return gm


def _inline(gm, node):
    """Replaces the call of a subgraph by the subgraph's calls."""
    prefix, operands = node.args[0].target, node.args[2:]
    values, own = iter(operands), gm.get_submodule(prefix).graph
    made = {one: next(values) for one in own.nodes if one.op == "placeholder"}
    with gm.graph.inserting_before(node):
        results = gm.graph.graph_copy(own, made)
    for one, copy in made.items():
        if one.op == "get_attr":
            copy.target = f"{prefix}.{one.target}"
    for user in list(node.users):
        user.replace_all_uses_with(results[user.args[1]])
        gm.graph.erase_node(user)
    source = node.args[0]
    gm.graph.erase_node(node)
    if not source.users:
        gm.graph.erase_node(source)


def _without_token(graph, node):
    """Replaces a call with a token by the call."""
    token, target, *arguments = node.args
    _, *values = node.meta["val"]
    with graph.inserting_before(node):
        made = graph.call_function(target, tuple(arguments), node.kwargs)
    is_one = len(values) == 1
    made.meta = {**node.meta, "val": values[0] if is_one else tuple(values)}
    for user in list(node.users):
        place = user.args[1] - 1
        if place < 0:
            user.replace_all_uses_with(token)
        elif is_one:
            user.replace_all_uses_with(made)
        else:
            user.args = (made, place)
            continue
        graph.erase_node(user)
    graph.erase_node(node)
