"""Casts that one command computes: under autocast a graph begins with a cast for each parameter, and its backward pass ends with one for each
gradient. Most of them are small."""

import torch

from ._given import is_dense, is_view, origin

aten, prims = torch.ops.aten, torch.ops.prims

# The most elements of a cast in a list, and the most bytes of the results of a list, since all its sources and results exist at a time.
_ELEMENTS, _BYTES = 1 << 20, 1 << 25


def lists_of(graph, device):
    """Returns the lists of two or more casts by the node in whose place each is computed, and all other nodes of the lists."""
    lists, is_open = [], {}
    for node in graph.nodes:
        is_first = _is_first(node) if _is_plain(node, device) else None
        if is_first is None:
            continue
        value = node.meta["val"]
        form, size = (is_first, node.args[0].meta["val"].dtype, value.dtype), value.numel() * value.element_size()
        place, held = is_open.get(form, (None, _BYTES))
        if held + size > _BYTES:
            place, held = len(lists), 0
            lists.append((is_first, []))
        lists[place][1].append(node)
        is_open[form] = place, held + size
    lists = {nodes[0 if is_first else -1]: nodes for is_first, nodes in lists if len(nodes) > 1}
    return lists, {node for nodes in lists.values() for node in nodes}.difference(lists)


def _is_plain(node, device):
    """Returns whether a node is a small cast that keeps the strides, without other effects."""
    if node.target is aten._to_copy.default:
        is_cast = set(node.kwargs) <= {"dtype", "layout", "device"}
    else:
        is_cast = node.target is prims.convert_element_type.default
    if not is_cast:
        return False
    source, value = node.args[0].meta["val"], node.meta["val"]
    is_float = source.dtype.is_floating_point and value.dtype.is_floating_point and source.dtype != value.dtype
    is_fixed = all(isinstance(number, int) for one in (source, value) for number in (*one.shape, *one.stride()))
    if not (is_float and is_fixed and is_dense(source)) or source.stride() != value.stride():
        return False
    return source.device == value.device == device and value.layout is torch.strided and 0 < value.numel() <= _ELEMENTS


def _is_first(node):
    """Returns whether a cast may be computed with others in the place of the first one, since it reads an input, or in that of the last one,
    since it is a result of the graph alone; None if neither is so, or if a loop computes it together with other operators."""
    if node.args[0].op == "placeholder":
        return True if any(map(_is_command, _readers(node))) else None
    is_result = all(user.op == "output" for user in node.users)
    source = origin(node.args[0])[0]
    # What is written in place has this value only until it is written again.
    is_lasting = source.op == "call_function" and not getattr(getattr(source.target, "_schema", None), "is_mutable", False)
    return False if is_result and is_lasting and _is_command(source) else None


def _readers(node):
    """Returns the nodes that read a value, itself or as a view."""
    return [one for user in node.users for one in (_readers(user) if is_view(user.target) else [user])]


def _is_command(node):
    """Returns whether a node is more than a loop, which would compute a cast where it reads it."""
    tags = getattr(node.target, "tags", ())
    return node.op == "output" or not (torch.Tag.pointwise in tags or torch.Tag.reduction in tags)
