"""The results of calls that are written where PyTorch reads them, instead of being copied: PyTorch reads the results of a graph and the
arguments of its own calls."""

import operator

import torch

aten = torch.ops.aten

# Operators whose results are views of their first argument, though their schemas do not say so.
_VIEWS = {aten._unsafe_view.default, aten._reshape_alias.default}


def is_view(target):
    """Returns whether an operator's results are views of its first argument."""
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    return target in _VIEWS or any(one.alias_info is not None for one in target._schema.returns)


def origin(node):
    """Returns the node that computes the memory of a node's value, and the number of its result."""
    place = 0
    while node.op == "call_function":
        if node.target is operator.getitem:
            node, place = node.args
        elif is_view(node.target) and node.args and isinstance(node.args[0], torch.fx.Node):
            node, place = node.args[0], 0
        else:
            break
    return node, place


def origins(nodes):
    """Returns the results of calls whose memory nodes have as their values: nodes with numbers of results."""
    found = [origin(node) for node in nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    return {(node, place) for node, place in found if isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.is_mutable}


def results(graph):
    """Returns the nodes that are results of a graph."""
    return [one for one in graph.output_node().args[0] if isinstance(one, torch.fx.Node)]


def is_dense(value):
    """Returns whether each element of a result has memory of its own, as far as the sizes are known."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    steps = [(stride, size) for size, stride in zip(value.shape, value.stride()) if not (isinstance(size, int) and size == 1)]
    if not all(isinstance(number, int) for step in steps for number in step):
        return all(not isinstance(stride, int) or stride > 0 for stride, _ in steps)
    span = 1
    for stride, size in sorted(steps):
        if stride < span:
            return False
        span += (size - 1) * stride
    return True
