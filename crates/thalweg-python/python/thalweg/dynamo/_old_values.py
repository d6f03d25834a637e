"""Inputs that a forward pass writes and whose old values the backward pass reads, such as a count of steps in a buffer.

PyTorch's partitioner saves such an input, or computes again what was computed from it, as if it were not written: the backward pass would
read the new value. Here the forward pass saves a copy of the old one.
"""

import torch

from ._given import origin
from ._nodes import call

aten = torch.ops.aten


def old_values_saved(forward, backward, results):
    """Changes both passes so that no saved tensor is memory of an input that the forward pass writes. `results` is the number of the
    results of the forward pass before the saved values."""
    graph = forward.graph
    written = {node.args[0] for node in graph.nodes if node.op == "call_function" and _writes(node)}
    output = graph.output_node()
    values, changed = list(output.args[0]), False
    read = {node.name: node for node in backward.graph.nodes if node.op == "placeholder"}
    for place, node in enumerate(values[results:], results):
        is_tensor = isinstance(node, torch.fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)
        if not is_tensor or origin(node)[0] not in written:
            continue
        first = next(one for one in graph.nodes if one.op not in ("placeholder", "get_attr"))
        with graph.inserting_before(first) if node.op == "placeholder" else graph.inserting_after(node):
            values[place] = call(graph, node, aten.clone.default, node)
        if node.name in read:
            read[node.name].meta["val"] = values[place].meta["val"]
        changed = True
    if changed:
        output.args = (type(output.args[0])(values),)


def _writes(node):
    """Returns whether a call writes its first argument."""
    schema = node.target._schema if isinstance(node.target, torch._ops.OpOverload) else None
    return schema is not None and schema.is_mutable and isinstance(node.args[0] if node.args else None, torch.fx.Node)
