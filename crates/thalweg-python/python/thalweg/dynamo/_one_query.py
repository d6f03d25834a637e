"""Attention without a gradient, as a step of a decoder has it: heads of keys and values that are repeated for the heads of the queries are read
where they are, and a single query is computed by a kernel of its own."""

import operator

import torch

from ._attention import ours
from ._nodes import are_same, call, is_call

aten = torch.ops.aten

_LIBRARY = torch.library.Library("thalweg_graph", "FRAGMENT")
_LIBRARY.define("attention_of_one_query(Tensor query, Tensor key, Tensor value, Tensor? mask, float scale) -> Tensor")

# The most features of a head.
_MOST_FEATURES = 128


@torch.library.register_fake("thalweg_graph::attention_of_one_query", lib=_LIBRARY)
def _(query, key, value, mask, scale):
    return query.new_empty(query.shape)


RULES = {ours.attention_of_one_query.default: lambda named: ("thalweg::one_query_attention", {"mask": None, **named})}


def rewritten(gm, is_on_gpu):
    """Returns a graph whose calls of attention without a gradient read shared heads, and compute a single query by its kernel."""
    for node in gm.graph.find_nodes(op="call_function", target=ours.attention.default):
        if not is_on_gpu(node.args[0].meta["val"]) or any(not is_call(user, operator.getitem) or user.args[1] != 0 for user in node.users):
            continue
        _share_heads(node)
        if _is_one(node):
            _compute_one(gm.graph, node)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def _share_heads(node):
    """Passes heads of keys and values once that are repeated in memory, if both are."""
    query, key, value, *rest = node.args
    shared = [_unrepeated(one) for one in (key, value)]
    if None not in shared and are_same(shared[0].meta["val"].shape, shared[1].meta["val"].shape):
        node.args = (query, *shared, *rest)


def _unrepeated(node):
    """Returns the heads (batch, heads, tokens, features) that a node repeats, each one several times in succession; None if it does not."""
    wide = node
    if is_call(wide, aten.view.default, aten._unsafe_view.default, aten.reshape.default):
        wide = wide.args[0]
    if is_call(wide, aten.clone.default):
        wide = wide.args[0]
    if wide is node or not is_call(wide, aten.expand.default) or not is_call(wide.args[0], aten.unsqueeze.default):
        return None
    (heads, dimension), repeated = wide.args[0].args, wide.meta["val"].shape
    if heads.meta["val"].dim() != 4 or dimension not in (2, -3):
        return None
    batch, count, tokens, features = heads.meta["val"].shape
    if not (isinstance(count, int) and isinstance(repeated[2], int)):
        return None
    is_whole = are_same(repeated, [batch, count, repeated[2], tokens, features])
    return heads if is_whole and are_same(node.meta["val"].shape, [batch, count * repeated[2], tokens, features]) else None


def _is_one(node):
    """Returns whether the kernel of one query takes a call, whose features are known and whole chunks of 16 bytes."""
    query, key, value, mask, state, is_causal, _, dropout = node.args
    *_, queries, features = query.meta["val"].shape
    is_plain = not is_causal and not dropout and state is None and are_same([queries], [1]) and features <= _MOST_FEATURES
    is_truth = mask is None or mask.meta["val"].dtype is torch.bool
    return is_plain and is_truth and are_same(key.meta["val"].shape, value.meta["val"].shape)


def _compute_one(graph, node):
    query, key, value, mask, _, _, scale, _ = node.args
    with graph.inserting_before(node):
        made = call(graph, node, ours.attention_of_one_query.default, query, key, value, mask, scale)
    for user in list(node.users):
        user.replace_all_uses_with(made)
