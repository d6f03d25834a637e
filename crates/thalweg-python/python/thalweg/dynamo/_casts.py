"""Casts of a graph's inputs that one command computes: under autocast a graph begins with one for each parameter, most of them small."""

import torch

from ._given import is_dense, is_view

aten, prims = torch.ops.aten, torch.ops.prims

# The most elements of a cast in a list, and the most bytes of the results of a list: its results exist from the first one's place on.
_ELEMENTS, _BYTES = 1 << 20, 1 << 25


def lists_of(graph, device):
    """Returns the casts of each list of two or more by its first one, whose place in the graph is that of the list."""
    lists, is_open = [], {}
    for node in graph.nodes:
        if not _is_listed(node, device):
            continue
        value = node.meta["val"]
        form, size = (node.args[0].meta["val"].dtype, value.dtype), value.numel() * value.element_size()
        place, held = is_open.get(form, (None, _BYTES))
        if held + size > _BYTES:
            place, held = len(lists), 0
            lists.append([])
        lists[place].append(node)
        is_open[form] = place, held + size
    return {nodes[0]: nodes for nodes in lists if len(nodes) > 1}


def _is_listed(node, device):
    """Returns whether a node is a cast of an input without other effects, and its result must be in memory."""
    if node.target is aten._to_copy.default:
        is_plain = set(node.kwargs) == {"dtype"}
    else:
        is_plain = node.target is prims.convert_element_type.default
    if not is_plain or node.args[0].op != "placeholder":
        return False
    source, value = node.args[0].meta["val"], node.meta["val"]
    is_float = source.dtype.is_floating_point and value.dtype.is_floating_point and source.dtype != value.dtype
    is_fixed = all(isinstance(number, int) for one in (source, value) for number in (*one.shape, *one.stride()))
    if not (is_float and is_fixed and is_dense(source)) or source.stride() != value.stride() or value.device != device:
        return False
    return 0 < value.numel() <= _ELEMENTS and any(map(_is_command, _readers(node)))


def _readers(node):
    """Returns the nodes that read a value, itself or as a view."""
    return [one for user in node.users for one in (_readers(user) if is_view(user.target) else [user])]


def _is_command(node):
    """Returns whether a node is more than a loop, which would compute a cast where it reads it."""
    tags = getattr(node.target, "tags", ())
    return node.op == "output" or not (torch.Tag.pointwise in tags or torch.Tag.reduction in tags)
