"""Inputs that a graph writes. PyTorch's graphs compute new values, and copy them into the inputs at the end.

`in_place` writes a part of an input, such as the new tokens of a cache of keys and values, where the graph would copy the whole input twice.
`early` moves the copies of other values to where these are computed.
"""

import operator

import torch

from ._given import is_view
from ._nodes import are_same, call, is_call
from ._streams import is_of_streams

aten = torch.ops.aten

# Operators that return their first argument with a part of it changed, and those that change it in place.
_CHANGING = {
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.index_fill.int_Scalar: aten.index_fill_.int_Scalar,
    aten.index_put.default: aten.index_put_.default,
    aten._unsafe_index_put.default: aten.index_put_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter_reduce.two: aten.scatter_reduce_.two,
}

# Operators that return their first argument with their second one in the place of a view, and those that return the view.
_REPLACING = {aten.slice_scatter.default: aten.slice.Tensor, aten.select_scatter.default: aten.select.int}


def in_place(graph):
    """Lets operators that change a part of an input write it, if nothing reads its former value later, instead of a copy that is copied back."""
    if _uses_streams(graph):
        return
    for copy in graph.find_nodes(op="call_function", target=aten.copy_.default):
        written, value = copy.args[:2]
        changes = _changes(value, written) if written.op == "placeholder" and isinstance(value, torch.fx.Node) else []
        if changes and all(_is_alike(change.args[0], change) for change in changes) and _are_free(written, changes, copy):
            graph.erase_node(copy)
            for change, is_done in [(change, bool(_of_part(change))) for change in changes]:
                _write(graph, change, is_done)


def _is_alike(former, changed):
    """Returns whether a changed value has the form of the former one, whose memory it is to have."""
    one, other = former.meta["val"], changed.meta["val"]
    return one.dtype == other.dtype and are_same([*one.shape, *one.stride()], [*other.shape, *other.stride()])


def _changes(value, written):
    """Returns the calls that change a tensor, one after the other, until it has a value; nothing if the value has another origin."""
    changes = []
    while is_call(value, *_CHANGING, *_REPLACING):
        changes += [value, *reversed(_of_part(value))]
        value = value.args[0]
    return changes[::-1] if value is written else []


def _of_part(change):
    """Returns the calls that change a view, if their result replaces the same view; else nothing."""
    if change.target not in _REPLACING:
        return []
    former, first, *where = change.args
    while is_call(first, *_CHANGING, *_REPLACING):
        first = first.args[0]
    is_part = is_call(first, _REPLACING[change.target]) and first.args == (former, *where) and first.kwargs == change.kwargs
    return _changes(change.args[1], first) if is_part else []


def _are_free(written, changes, copy):
    """Returns whether each value of an input is read only before the next change, and whether the graph does not return the last one."""
    places = {node: place for place, node in enumerate(copy.graph.nodes)}
    known = {copy, *changes}
    for value, following in zip([written, *changes], [*changes, None]):
        for reader, read in _readers(value):
            if reader in known:
                # What a call changes is its first argument, and what it replaces by a changed part of it is the second one.
                is_first = reader.args[0] is read or read in changes and reader.args[1] is read
                is_free = is_first and torch.utils._pytree.tree_leaves((reader.args, reader.kwargs)).count(read) == 1
            else:
                is_free = reader.op != "output" if following is None else places[reader] < places[following]
            if not is_free:
                return False
    return True


def _readers(value):
    """Returns the nodes that read a value or a view of it, with what they read."""
    found = []
    for user in value.users:
        found += _readers(user) if is_view(user.target) or user.target is operator.getitem else [(user, value)]
    return found


def _write(graph, change, is_done):
    """Changes a tensor in place, unless its part is changed already: what read the changed value reads the result of the call that writes."""
    if change.target in _CHANGING:
        change.target = _CHANGING[change.target]
        return
    former, source, *where = change.args
    with graph.inserting_before(change):
        if not is_done:
            part = call(graph, change, _REPLACING[change.target], former, *where, **change.kwargs)
            call(graph, change, aten.copy_.default, part, source)
        result = call(graph, change, aten.alias.default, former)
    change.replace_all_uses_with(result)
    graph.erase_node(change)


def _uses_streams(graph):
    return any(is_of_streams(node.target) for node in graph.nodes)


def early(graph):
    """Moves each copy into an input to the value that is copied, unless the input is read later: the value needs no memory of its own then."""
    if _uses_streams(graph):
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
