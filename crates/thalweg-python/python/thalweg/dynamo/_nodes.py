"""Nodes of PyTorch's graphs: which calls they are, and new ones with their values."""

import operator

import torch


class PassedOn(Exception):
    """The exception for a call that stays PyTorch's, with the reason."""


def known(sizes):
    """Returns sizes, which must be numbers."""
    if not all(isinstance(size, int) for size in sizes):
        raise PassedOn("its sizes are not known")
    return list(sizes)


def are_same(sizes, others):
    """Returns whether sizes are known to be the same: without a guard, which comparing sizes that vary would add."""

    def form(size):
        return size if isinstance(size, int) else size.node.expr

    return list(map(form, sizes)) == list(map(form, others))


def is_on_gpu(tensor):
    """Returns whether a tensor is on a GPU."""
    return tensor.device.type == "cuda"


def is_call(node, *targets):
    """Returns whether a value is the node of a call of one of some operators."""
    return isinstance(node, torch.fx.Node) and node.op == "call_function" and node.target in targets


def results_read(node):
    """Returns the places of the results of a call that the graph reads."""
    return {user.args[1] if user.target is operator.getitem else 0 for user in node.users}


def call(graph, at, target, *args, **kwargs):
    """Adds a call with its value, and with the source line that another call has in the model."""
    made = graph.call_function(target, args, kwargs)
    given = torch.fx.node.map_arg((args, kwargs), lambda one: one.meta["val"])
    made.meta = {key: held for key, held in at.meta.items() if key in ("stack_trace", "nn_module_stack", "custom", "seq_nr", "partitioner_tag")}
    leaves = torch.utils._pytree.tree_leaves(given)
    first = next(held for held in leaves if isinstance(held, torch.Tensor))
    with first.fake_mode:
        made.meta["val"] = target(*given[0], **given[1])
    return made


def size_of(graph, at, tensor, dimension):
    """Returns a size of a node's tensor: a number, or a call that is added."""
    size = tensor.meta["val"].shape[dimension]
    return size if isinstance(size, int) else call(graph, at, torch.ops.aten.sym_size.int, tensor, dimension)
