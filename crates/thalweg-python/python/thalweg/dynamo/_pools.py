"""Max pooling of images whose indices only its gradient reads: the places of maxima are bytes, counted within the windows.

The gradient then needs the size of the images, and not the images, which PyTorch's operator reads for their shape alone.
"""

import math
import operator

import torch

from ._nodes import call, is_call, size_of

aten = torch.ops.aten

_LIBRARY = torch.library.Library("thalweg_graph", "FRAGMENT")
_NUMBERS = "int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool ceil_mode"
_LIBRARY.define(f"max_pool2d_within(Tensor self, {_NUMBERS}) -> (Tensor, Tensor)")
_LIBRARY.define(f"max_pool2d_within_backward(Tensor grad_output, Tensor places, {_NUMBERS}, SymInt[2] size) -> Tensor")
ours = torch.ops.thalweg_graph

# The numbers of a call after its images: windows, distance, padding, dilation, and whether windows may end beyond the padding.
_DEFAULTS = (None, [], [0, 0], [1, 1], False)

# The places that a byte has, without the one that means none.
_MOST_PLACES = 254


@torch.library.register_fake("thalweg_graph::max_pool2d_within", lib=_LIBRARY)
def _(input, *numbers):
    values, places = aten.max_pool2d_with_indices.default(input, *numbers)
    return values, torch.empty_like(places, dtype=torch.uint8)


@torch.library.register_fake("thalweg_graph::max_pool2d_within_backward", lib=_LIBRARY)
def _(gradient, places, kernel_size, stride, padding, dilation, ceil_mode, size):
    made = gradient.new_empty((*gradient.shape[:-2], *size))
    return made.contiguous(memory_format=torch._prims_common.suggest_memory_format(places))


def _rule(name):
    return lambda named: (f"thalweg::{name}", named)


RULES = {ours.max_pool2d_within.default: _rule("max_pool2d_within"), ours.max_pool2d_within_backward.default: _rule("max_pool2d_within_backward")}


def rewritten(gm, is_on_gpu):
    """Returns a graph whose max pools have bytes as places, where only gradients read them."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.max_pool2d_with_indices.default):
        images, numbers = node.args[0], [*node.args[1:], *_DEFAULTS[len(node.args) - 1 :]]
        parts = {user.args[1]: user for user in node.users if is_call(user, operator.getitem)}
        gradients = list(parts[1].users) if 1 in parts else []
        are_gradients = all(is_call(user, aten.max_pool2d_with_indices_backward.default) and user.args[-1] is parts[1] for user in gradients)
        if not gradients or not are_gradients or not is_on_gpu(images.meta["val"]) or math.prod(_pair(numbers[0])) > _MOST_PLACES:
            continue
        with gm.graph.inserting_before(node):
            pair = call(gm.graph, node, ours.max_pool2d_within.default, images, *numbers)
            values, places = (call(gm.graph, node, operator.getitem, pair, place) for place in range(2))
        for gradient in gradients:
            with gm.graph.inserting_before(gradient):
                size = [size_of(gm.graph, gradient, images, images.meta["val"].dim() + place) for place in (-2, -1)]
                made = call(gm.graph, gradient, ours.max_pool2d_within_backward.default, gradient.args[0], places, *numbers, size)
            gradient.replace_all_uses_with(made)
        if 0 in parts:
            parts[0].replace_all_uses_with(values)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def _pair(sizes):
    return list(sizes) * 2 if len(sizes) == 1 else sizes
