"""The order in memory of what convolutions and normalizations read.

Libraries compute convolutions of 16 bits with channels last, and copy tensors of another order before and after. In a graph with such
convolutions, weights and images get that order once, and everything that is computed from them keeps it, as it does in PyTorch. Convolutions
in groups take images in the order that they have.

A row that is normalized, or of which a softmax is computed, is read fastest if its elements are neighbours. A computed tensor of another order
is copied once, and what is computed from it keeps the order of the copy.

Products of batches read matrices by rows or by columns, and write results by rows or by columns: no matrix is turned for them.

Results of the graph have the order that they had.
"""

import operator

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from . import _asked as asked
from ._nodes import call, is_call
from ._versions import adapter

aten = torch.ops.aten

# The tensors of a call that are images or weights, by their places.
_TENSORS = {aten.convolution.default: (0, 1), aten.convolution_backward.default: (0, 1, 2)}

# The tensors of a call that are read in rows along the last dimension, by their places.
_ROWS = {aten.native_layer_norm.default: (0,), aten._softmax.default: (0,), aten._log_softmax.default: (0,)}

# The fewest elements of a tensor that is copied so that its rows are dense.
_LEAST_ROWS = 1 << 16

# Views that are copies where the order of the elements in memory does not allow a view.
_VIEWS = {aten.view.default, aten._unsafe_view.default}


class _NotPossible(Exception):
    """The exception for a graph that keeps its order."""


def rewritten(gm, is_on_gpu):
    """Returns a graph whose convolutions have their channels last, if it has some for which that is faster, and whose rows are dense."""
    convolutions = [node for node in gm.graph.nodes if is_call(node, *_TENSORS)]
    whole = [node for node in convolutions if _groups(node) == 1]
    is_last = bool(whole) and all(is_on_gpu(_value(node.args[0])) and _is_faster(node) for node in whole)
    # Parts of channels have gaps if channels are last. Among convolutions in groups, copies of them cost more than is gained.
    is_last = is_last and (len(whole) == len(convolutions) or not any(_reads_parts(node) for node in convolutions))
    if not is_last and not any(_is_better_otherwise(node) and is_on_gpu(_value(node)) for node in gm.graph.nodes):
        return gm
    try:
        graph = _Layouts(gm.graph, is_last).graph
    except _NotPossible:
        return gm
    gm.graph = graph
    gm.recompile()
    return gm


def _value(node):
    return node.meta["val"]


def _groups(node):
    """Returns the number of groups of a convolution."""
    return node.args[8] if node.target is aten.convolution.default else node.args[9]


def _is_faster(node):
    """Returns whether a library computes a convolution faster with channels last."""
    image, weight = (_value(node.args[place]) for place in _TENSORS[node.target][-2:])
    is_narrow = image.dtype in (torch.float16, torch.bfloat16) or image.dtype is torch.float32 and adapter().settings()[1]
    sizes = [*image.shape[1:], *weight.shape]
    return image.dim() == 4 and is_narrow and all(isinstance(size, int) for size in sizes)


def _reads_parts(node):
    """Returns whether the image of a convolution is a part of the channels of another tensor."""
    image = node.args[_TENSORS[node.target][-2]]
    if is_call(image, operator.getitem):
        return is_call(image.args[0], aten.split.Tensor, aten.split_with_sizes.default) and image.args[0].args[2:] in ((1,), (-3,))
    return is_call(image, aten.slice.Tensor) and image.args[1:2] in ((1,), (-3,))


def _is_for_convolutions(node):
    """Returns whether convolutions without groups read a computed value, and nothing reads it as a view."""
    users = list(node.users)
    is_read = any(is_call(user, *_TENSORS) and _groups(user) == 1 and node in [user.args[place] for place in _TENSORS[user.target]] for user in users)
    return node.op == "call_function" and is_read and all(user.op == "call_function" and user.target not in _VIEWS for user in users)


def _has_rows(node):
    """Returns whether a normalization or a softmax along the last dimension reads a computed tensor."""

    def is_read(user):
        is_last = user.target is aten.native_layer_norm.default or user.args[1] in (-1, _value(node).dim() - 1)
        return node in [user.args[place] for place in _ROWS[user.target]] and is_last

    return node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor) and any(is_call(user, *_ROWS) and is_read(user) for user in node.users)


def _is_known(value):
    """Returns whether sizes and strides of a tensor are numbers."""
    return all(isinstance(size, int) for size in (*value.shape, *value.stride()))


def _is_sparse(value):
    """Returns whether the elements of a tensor's rows are apart in memory, so that reading a copy is faster."""
    return value.dim() > 0 and _is_known(value) and value.shape[-1] > 1 and value.stride(-1) != 1 and value.numel() >= _LEAST_ROWS


def _is_better_otherwise(node):
    """Returns whether another order in memory of a tensor is faster, for what does not have channels."""
    return _has_rows(node) and _is_sparse(_value(node)) or _is_turned_for_products(node) or _is_product_read_turned(node)


def _is_turn(node):
    """Returns whether a call is a view with the last two dimensions interchanged."""
    return is_call(node, aten.transpose.int) and {one % _value(node).dim() for one in node.args[1:]} == {_value(node).dim() - 1, _value(node).dim() - 2}


def _keeps_matrices(node):
    """Returns whether a call is a view of the same matrices, of batches of other dimensions."""
    return is_call(node, *_VIEWS, aten.expand.default) and _value(node).shape[-2:] == _value(node.args[0]).shape[-2:]


def _is_matrices(value):
    """Returns whether a tensor is a batch of matrices whose order in memory matters."""
    return _is_known(value) and value.dim() >= 3 and min(value.shape[-2:]) > 1 and value.numel() >= _LEAST_ROWS


def _is_turned_for_products(node):
    """Returns whether a call copies matrices, by rows, that are there by columns, and only products read the copy."""
    if not is_call(node, aten.clone.default) or node.kwargs.get("memory_format") is not torch.contiguous_format:
        return False
    source = _value(node.args[0])
    return _is_matrices(source) and source.stride(-2) == 1 != source.stride(-1) and _is_of_products(node)


def _is_of_products(node):
    """Returns whether only products of batches read matrices."""
    return all(is_call(user, aten.bmm.default) or (_is_turn(user) or _keeps_matrices(user)) and _is_of_products(user) for user in node.users)


def _is_product_read_turned(node, is_view=False):
    """Returns whether the result of a product of batches is read only with its rows and columns interchanged."""
    if not is_view and not (is_call(node, aten.bmm.default) and _is_matrices(_value(node))):
        return False
    return bool(node.users) and all(_is_turn(user) or _keeps_matrices(user) and _is_product_read_turned(user, True) for user in node.users)


def _is_pytorchs(node):
    """Returns whether a call stays PyTorch's. What it computes may depend on the order in memory, as in functions of the program, or in those
    whose callers see to it. It does not in those that draw, most of which the table computes in the end, and that read sizes."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in node.target.tags:
        return False
    if node.target.namespace in ("streams", "thalweg_graph"):
        return False
    is_of_elements = node.target.namespace != "aten" or any(isinstance(one, torch.Tensor) for one in torch.utils._pytree.tree_leaves(node.meta.get("val")))
    return is_of_elements and node.target is not aten._native_batch_norm_legit_functional.default and asked.is_refused(node)


def _is_channels_last(value):
    return torch._prims_common.is_channels_last_contiguous_or_false_2d(value)


def _forms(value):
    """Returns the strides of the tensors of a value."""
    return [tuple(one.stride()) if isinstance(one, torch.Tensor) and one.layout is torch.strided else None for one in torch.utils._pytree.tree_leaves(value)]


class _Layouts:
    """A copy of a graph, in which nodes have the values that follow from rows that are dense and, if wanted, channels that are last."""

    def __init__(self, source, is_last):
        self.graph, self._is_last = torch.fx.Graph(), is_last
        self._made, self._last, self._before = {}, {}, {}
        for node in source.nodes:
            if node.op == "output":
                self._output(node)
            else:
                self._made[node] = self._copied(node)

    def _copied(self, node):
        """Copies a node, with another value if those of its arguments have other strides."""
        former = node.meta.get("val")
        is_convolution = self._is_last and is_call(node, *_TENSORS)
        is_whole = is_convolution and _groups(node) == 1
        if is_whole:
            for place in _TENSORS[node.target]:
                self._channels_last(self._made[node.args[place]])
        if _is_turned_for_products(node):
            return self._turned(call(self.graph, node, aten.clone.default, self._turned(self._made[node.args[0]]), memory_format=torch.contiguous_format))
        if _is_product_read_turned(node):
            first, second = (self._turned(self._made[one]) for one in node.args)
            return self._turned(call(self.graph, node, aten.bmm.default, second, first))
        made = self.graph.node_copy(node, self._made.__getitem__)
        made.meta = dict(node.meta)
        if is_whole:
            made.args = tuple(self._last.get(one, one) if place in _TENSORS[node.target] else one for place, one in enumerate(made.args))
        given = [one for one in node.all_input_nodes if self._made[one].meta.get("val") is not one.meta.get("val")]
        if given and _is_pytorchs(node):
            with self.graph.inserting_before(made):
                for one in given:
                    made.replace_input_with(self._made[one], self._as_before(one))
        elif node.op == "call_function" and (given or is_convolution):
            self._infer(made, former)
        # Everything that reads it reads the copy, so that no tensors of both orders meet, and one of them is saved.
        if self._is_last and _is_for_convolutions(node) and not _is_channels_last(_value(made)):
            return call(self.graph, made, aten.clone.default, made, memory_format=torch.channels_last)
        if _has_rows(node) and _is_sparse(_value(made)):
            return call(self.graph, made, aten.clone.default, made, memory_format=torch.contiguous_format)
        return made

    def _turned(self, node):
        """Adds a view with the last two dimensions interchanged."""
        return call(self.graph, node, aten.transpose.int, node, -2, -1)

    def _channels_last(self, node):
        """Adds a copy of an image or a weight with its channels last, unless they are."""
        if node in self._last or _is_channels_last(_value(node)):
            return
        self._last[node] = call(self.graph, node, aten.clone.default, node, memory_format=torch.channels_last)

    def _as_before(self, node):
        """Returns the copy of a node, in the order in memory that the node had."""
        made, former = self._made[node], node.meta.get("val")
        if _forms(made.meta.get("val")) == _forms(former):
            return made
        if not isinstance(former, torch.Tensor):
            raise _NotPossible
        if node not in self._before:
            self._before[node] = self._in_order(made, former)
        return self._before[node]

    def _infer(self, node, former):
        """Computes the value of a node anew."""
        if not isinstance(node.target, torch._ops.OpOverload):
            if node.target is not operator.getitem:
                raise _NotPossible
            node.meta["val"] = _value(node.args[0])[node.args[1]]
            return
        if any(isinstance(one, torch.Tensor) and free_unbacked_symbols(one) for one in torch.utils._pytree.tree_leaves(former)):
            raise _NotPossible
        try:
            value = self._call(node)
        except (RuntimeError, ValueError) as problem:
            if node.target not in _VIEWS:
                raise _NotPossible from problem
            with self.graph.inserting_before(node):
                dense = call(self.graph, node.args[0], aten.clone.default, node.args[0], memory_format=torch.contiguous_format)
            node.args = (dense, *node.args[1:])
            value = self._call(node)
        # Nothing changes for what is computed from a value that is as before.
        node.meta["val"] = former if _forms(value) == _forms(former) else value

    def _call(self, node):
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), _value)
        first = next(one for one in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor))
        with first.fake_mode:
            value = node.target(*args, **kwargs)
            is_whole = self._is_last and is_call(node, *_TENSORS) and _groups(node) == 1
            if is_whole and node.target is aten.convolution.default:
                value = value.contiguous(memory_format=torch.channels_last)
            elif is_whole:
                value = tuple(one if one is None or one.dim() != 4 else one.contiguous(memory_format=torch.channels_last) for one in value)
        return value

    def _output(self, node):
        """Copies the results, in the order in memory that they had."""
        made = {one: self._as_before(one) for one in node.all_input_nodes}
        copied = self.graph.node_copy(node, made.__getitem__)
        copied.meta = dict(node.meta)

    def _in_order(self, node, former):
        """Adds a copy of a node, in the order in memory of a value without gaps."""
        order = sorted(range(former.dim()), key=lambda dimension: former.stride(dimension), reverse=True)
        if not former.permute(order).is_contiguous():
            raise _NotPossible
        if order == list(range(former.dim())):
            return call(self.graph, node, aten.clone.default, node, memory_format=torch.contiguous_format)
        turned = call(self.graph, node, aten.permute.default, node, order)
        dense = call(self.graph, turned, aten.clone.default, turned, memory_format=torch.contiguous_format)
        return call(self.graph, dense, aten.permute.default, dense, [order.index(dimension) for dimension in range(former.dim())])
