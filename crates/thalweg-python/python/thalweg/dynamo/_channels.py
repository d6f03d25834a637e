"""Normalizations of channels in a graph that is divided into a forward and a backward pass.

An activation reads its input again in the backward pass. If that is the result of a batch or group normalization, it is computed again from the
input of the normalization, which is saved in any case, with the means and the deviations: `normalized_channels` is the result as a function of these. In
the pass that has the normalization itself, it is its result; in the other one it becomes PyTorch's operators, parts of a fused loop.
"""

import operator

import torch

from ._nodes import call, is_call, size_of

aten = torch.ops.aten

_LIBRARY = torch.library.Library("thalweg_graph", "FRAGMENT")
_LIBRARY.define("normalized_channels(Tensor input, Tensor? weight, Tensor? bias, Tensor mean, Tensor rstd) -> Tensor")
_NORMALIZED = torch.ops.thalweg_graph.normalized_channels.default

_NORMALIZATIONS = (aten._native_batch_norm_legit_functional.default, aten.native_group_norm.default)


@torch.library.register_fake("thalweg_graph::normalized_channels", lib=_LIBRARY)
def _(input, weight, bias, mean, rstd):
    return torch.empty_like(input)


def rewritten(gm):
    """Returns a graph in which the results of normalizations are functions of their inputs and statistics, and gradients read no running
    statistics, which only evaluation needs."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.native_batch_norm_backward.default):
        if node.args[7]:
            node.args = (*node.args[:3], None, None, *node.args[5:])
    for node in list(gm.graph.nodes):
        if _has_exact_statistics(node):
            _rewrite(gm.graph, node)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def _has_exact_statistics(node):
    """Returns whether a node normalizes channels by statistics of its input, of which it returns those that it uses. For 16 bits, those of
    groups are rounded."""
    if is_call(node, aten._native_batch_norm_legit_functional.default):
        return bool(node.args[5])
    if not is_call(node, aten.native_group_norm.default) or not all(isinstance(number, int) for number in (node.args[4], node.args[6])):
        return False
    return node.meta["val"][1].dtype in (torch.float32, torch.float64)


def _rewrite(graph, node):
    """Makes the result of a normalization a function of its input and statistics."""
    parts = {user.args[1]: user for user in node.users}
    if 0 not in parts:
        return
    with graph.inserting_after(node):
        statistics = [call(graph, node, operator.getitem, node, place) for place in (2, 1)][::-1]
    with graph.inserting_after(statistics[1]):
        made = call(graph, node, _NORMALIZED, *node.args[:3], *statistics)
    made.meta["val"] = parts[0].meta["val"]
    parts[0].replace_all_uses_with(made)
    for place, one in zip((1, 2), statistics, strict=True):
        if place in parts:
            parts[place].replace_all_uses_with(one)


def resolved(gm):
    """Returns a pass with the results of its own normalizations, and those of another pass as calls of PyTorch's operators."""
    for node in gm.graph.find_nodes(op="call_function", target=_NORMALIZED):
        made = node.args[3].args[0] if is_call(node.args[3], operator.getitem) else None
        with gm.graph.inserting_before(node):
            is_own = is_call(made, *_NORMALIZATIONS)
            result = call(gm.graph, node, operator.getitem, made, 0) if is_own else _computed(gm.graph, node)
        node.replace_all_uses_with(result)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def _computed(graph, node):
    """Adds the calls that compute a result."""
    x, weight, bias, *statistics = node.args
    form, wide = x.meta["val"], statistics[0].meta["val"].dtype

    def in_dtype(one, dtype):
        return one if one.meta["val"].dtype is dtype else call(graph, node, aten._to_copy.default, one, dtype=dtype)

    def along_channels(one):
        one = in_dtype(one, wide)
        if one.meta["val"].dim() == 2:
            # A number for each group of an instance, and so for each of its channels.
            channels, groups = form.shape[1], one.meta["val"].shape[1]
            one = call(graph, node, aten.unsqueeze.default, one, -1)
            one = call(graph, node, aten.expand.default, one, [-1, -1, channels // groups])
            one = call(graph, node, aten.clone.default, one, memory_format=torch.contiguous_format)
            one = call(graph, node, aten.view.default, one, [size_of(graph, node, x, 0), channels])
        for _ in range(form.dim() - 2):
            one = call(graph, node, aten.unsqueeze.default, one, -1)
        return one

    mean, deviation = map(along_channels, statistics)
    result = call(graph, node, aten.sub.Tensor, in_dtype(x, wide), mean)
    result = call(graph, node, aten.mul.Tensor, result, deviation)
    for target, one in ((aten.mul.Tensor, weight), (aten.add.Tensor, bias)):
        if one is not None:
            result = call(graph, node, target, result, along_channels(one))
    return in_dtype(result, form.dtype)
