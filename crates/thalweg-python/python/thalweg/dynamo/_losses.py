"""The cross entropy of classes, which PyTorch's graphs have as a softmax, a choice of elements, and the gradients of both.

It becomes two loops over the scores: one that returns the losses and the logarithm of each row's sum of exponentials, and one for the
gradient, which reads these. Neither stores the logarithms of all classes, and scores of 16 bits are not widened in memory.
"""

import operator

import torch

from ._nodes import call, is_call, size_of

aten = torch.ops.aten

_LIBRARY = torch.library.Library("thalweg_graph", "FRAGMENT")
_LIBRARY.define("checked_classes(Tensor target, SymInt classes, int ignored) -> Tensor")
_LIBRARY.define("cross_entropy(Tensor scores, Tensor target, SymInt classes, int ignored) -> (Tensor, Tensor)")
_LIBRARY.define("mean_over_classes(Tensor losses, Tensor target, int ignored) -> Tensor")
_LIBRARY.define("cross_entropy_backward(Tensor scores, Tensor target, Tensor logarithms, Tensor gradient, SymInt classes, int ignored) -> Tensor")
ours = torch.ops.thalweg_graph

_MEAN, _SUM = 1, 2

# The operator whose value is its first argument, after a check.
CHECKED_CLASSES = ours.checked_classes.default


def _wide(tensor):
    return torch.float64 if tensor.dtype is torch.float64 else torch.float32


@torch.library.register_fake("thalweg_graph::checked_classes", lib=_LIBRARY)
def _(target, classes, ignored):
    return torch.empty_like(target)


@torch.library.register_fake("thalweg_graph::cross_entropy", lib=_LIBRARY)
def _(scores, target, classes, ignored):
    return tuple(scores.new_empty(target.shape, dtype=_wide(scores)) for _ in range(2))


@torch.library.register_fake("thalweg_graph::mean_over_classes", lib=_LIBRARY)
def _(losses, target, ignored):
    return losses.new_empty(())


@torch.library.register_fake("thalweg_graph::cross_entropy_backward", lib=_LIBRARY)
def _(scores, target, logarithms, gradient, classes, ignored):
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


def _rule(name, *order, **more):
    """Returns the rule of a call of the table, whose parameters have these names here."""
    return lambda named: (f"thalweg::{name}", {own: named[theirs] for own, theirs in order} | more)


_TENSORS = [("input0", "scores"), ("input1", "target"), ("input2", "logarithms"), ("input3", "gradient")]
_NUMBERS = [("classes", "classes"), ("ignore_index", "ignored")]
RULES = {
    CHECKED_CLASSES: _rule("check_classes", ("target", "target"), ("classes", "classes"), ("ignored", "ignored")),
    ours.cross_entropy.default: _rule("cross_entropy", ("input", "scores"), ("target", "target"), *_NUMBERS, dim=[1]),
    ours.mean_over_classes.default: _rule("mean_over_classes", ("input0", "losses"), ("input1", "target"), ("ignore_index", "ignored"), dim=[0]),
    ours.cross_entropy_backward.default: _rule("cross_entropy_backward", *_TENSORS, *_NUMBERS, dim=[1]),
}


def rewritten(gm):
    """Returns a graph with its cross entropies as calls of the table, and without calls of `detach` whose results are
    not differentiated any more."""
    for node in gm.graph.nodes:
        if is_call(node, aten.detach.default) and all(user.op != "output" for user in node.users):
            node.replace_all_uses_with(node.args[0])
    gm.graph.eliminate_dead_code()
    found = [node for node in gm.graph.nodes if node.op == "call_function" and node.target is aten.nll_loss_forward.default]
    for node in found:
        _rewrite(gm.graph, node)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def _rewrite(graph, node):
    """Replaces a choice of classes from the logarithms of a softmax, and its gradient, if they are of a cross entropy."""
    used, target, weight, reduction, ignored = node.args
    # Under autocast the logarithms of 16 bits are widened.
    logarithms = used.args[0] if _is_cast(used) else used
    if weight is not None or not is_call(logarithms, aten._log_softmax.default) or not all(is_call(user, operator.getitem) for user in node.users):
        return
    scores, value = logarithms.args[0], used.meta["val"]
    is_plain = value.dim() == 2 and logarithms.args[1] in (1, -1) and value.dtype in (torch.float32, torch.float64)
    if not is_plain or target.meta["val"].dtype is not torch.int64:
        return
    gradients = [user for user in logarithms.users if is_call(user, aten._log_softmax_backward_data.default) and user.args[1] is logarithms]
    if any(_rows(gradient) is None for gradient in gradients):
        return
    others = {node, used, *gradients, *(_zeros(gradient) for gradient in gradients)}
    if not set(logarithms.users) | set(used.users) <= others:
        return
    with graph.inserting_before(node):
        classes = size_of(graph, node, scores, 1)
        source = _narrow(graph, node, scores)
        target = call(graph, node, CHECKED_CLASSES, target, classes, ignored)
        pair = call(graph, node, ours.cross_entropy.default, source, target, classes, ignored)
        losses, sums = (call(graph, node, operator.getitem, pair, place) for place in range(2))
        reduced = {_MEAN: (ours.mean_over_classes.default, target, ignored), _SUM: (aten.sum.default,)}.get(reduction)
        result = call(graph, node, reduced[0], losses, *reduced[1:]) if reduced else losses
        counted = call(graph, node, aten.ne.Scalar, target, ignored)
        total = call(graph, node, aten.sum.dim_IntList, counted, [0], dtype=value.dtype)
    for user in list(node.users):
        user.replace_all_uses_with((result, total)[user.args[1]])
    for gradient in gradients:
        with graph.inserting_before(gradient):
            rows = _rows(gradient)
            form = rows.meta["val"]
            rows = call(graph, gradient, aten.squeeze.dim, rows, 1) if form.dim() == 2 else _expanded(graph, gradient, rows, target)
            made = call(graph, gradient, ours.cross_entropy_backward.default, source, target, sums, rows, classes, ignored)
            _replace(graph, gradient, made)


def _is_cast(node):
    """Returns whether a node changes a tensor's dtype and nothing else."""
    return is_call(node, aten._to_copy.default) and set(node.kwargs) <= {"dtype", "layout", "device"}


def _product(gradient):
    """Returns the gradient of a softmax's logarithms, before it is cast to their dtype."""
    return gradient.args[0].args[0] if _is_cast(gradient.args[0]) else gradient.args[0]


def _rows(gradient):
    """Returns the gradient of the losses, of which the gradient of a softmax's logarithms is made; None if it is made otherwise."""
    product = _product(gradient)
    if not is_call(product, aten.mul.Tensor) or len(product.users) != 1 or _zeros(gradient) is None:
        return None
    chosen = [one for one in product.args if is_call(one, aten.where.self)]
    return chosen[0].args[1] if len(chosen) == 1 else None


def _zeros(gradient):
    """Returns the zeros into which the gradients at the classes are put."""
    product = _product(gradient)
    puts = [one for one in product.args if is_call(one, aten.scatter.value)] if is_call(product, aten.mul.Tensor) else []
    zeros = puts[0].args[0] if len(puts) == 1 and puts[0].args[3] == -1.0 else None
    return zeros if is_call(zeros, aten.zeros_like.default, aten.full_like.default, aten.full.default) else None


def _narrow(graph, at, scores):
    """Returns the scores of 16 bits that were widened, or the scores."""
    views, cast = [], scores
    while is_call(cast, aten.view.default, aten._unsafe_view.default):
        views.append(cast)
        cast = cast.args[0]
    if not _is_cast(cast) or cast.args[0].meta["val"].dtype not in (torch.bfloat16, torch.float16):
        return scores
    source = cast.args[0]
    for view in reversed(views):
        source = call(graph, at, view.target, source, *view.args[1:])
    return source


def _expanded(graph, at, rows, target):
    """Adds the repetition of a number for each row."""
    return call(graph, at, aten.expand.default, rows, [size_of(graph, at, target, 0)])


def _replace(graph, gradient, made):
    """Replaces the gradient of scores, which may be cast to the dtype that it has already."""
    dtype = made.meta["val"].dtype
    for user in list(gradient.users):
        if _is_cast(user) and user.kwargs.get("dtype") is dtype:
            user.replace_all_uses_with(made)
    if dtype is not gradient.meta["val"].dtype:
        made = call(graph, gradient, aten._to_copy.default, made, dtype=gradient.meta["val"].dtype)
    gradient.replace_all_uses_with(made)
