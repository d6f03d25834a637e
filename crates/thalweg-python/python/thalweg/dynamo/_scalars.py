"""Scalars of the CPU beside the tensors of a GPU, such as learning rates and counts of steps.

A call of the table takes such a scalar as a tensor of the GPU with its own dtype, or as a number where a tensor would not compute the same
bits. A number is a part of the commands of a call, which cannot be repeated if it changes. All scalars become tensors by one copy.
"""

import functools

import torch

from ._calls import number_argument, takes


def tensors_of(value):
    """Returns the tensors of a node's value."""
    return [one for one in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(one, torch.Tensor)]


def tensors_read(node):
    """Returns the tensors that a node reads."""
    return [one for argument in node.all_input_nodes for one in tensors_of(argument.meta.get("val"))]


def _category(dtype):
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 0 if dtype is torch.bool else 1


def is_beside(argument, node, device):
    """Returns whether an argument of a call is a scalar of the CPU beside the tensors of a GPU."""
    scalar = argument.meta.get("val")
    is_scalar = isinstance(scalar, torch.Tensor) and scalar.dim() == 0 and scalar.device.type == "cpu" and device.type == "cuda"
    is_argument = is_scalar and any(value is argument for value in [*node.args, *node.kwargs.values()])
    return is_argument and any(one.device == device for one in _others(argument, node))


def _others(argument, node):
    return [one for other in node.all_input_nodes if other is not argument for one in tensors_of(other.meta.get("val"))]


def is_a_number(argument, node, is_constant=False):
    """Returns whether a call takes a scalar of the CPU as a number. 16-bit floats are computed with a number that is not rounded, and would
    be with a tensor that is. Numbers have no dtype, so only calls that PyTorch has for numbers take them, too."""
    scalar = argument.meta["val"]
    if number_argument(node.target, node.args, node.kwargs) is not argument:
        return False
    category, others = _category(scalar.dtype), _others(argument, node)
    if is_constant:
        return any(_category(one.dtype) >= category for one in others if one.dim() > 0 or one.dtype == scalar.dtype)
    return category <= _category(torch.float16) and any(one.dim() > 0 and one.dtype in (torch.float16, torch.bfloat16) for one in others)


def moved_of(graph, device):
    """Returns the scalars that become tensors of a graph's device."""
    calls = [node for node in graph.nodes if node.op == "call_function" and takes(node.target)]
    pairs = [(argument, node) for node in calls for argument in node.all_input_nodes if is_beside(argument, node, device)]
    return list(dict.fromkeys(argument for argument, node in pairs if not is_a_number(argument, node)))


def in_order(graph, scalars):
    """Returns the nodes of a graph, first those that compute scalars without tensors of a GPU, so that one copy moves all of them."""
    nodes = list(graph.nodes)
    if not scalars:
        return nodes
    early = set()
    for node in nodes:
        read = node.all_input_nodes
        if node.op == "placeholder" or node.op == "get_attr" or _is_pure(node) and read and early.issuperset(read):
            early.add(node)
    return [*(node for node in nodes if node in early), *(node for node in nodes if node not in early)]


def _is_pure(node):
    """Returns whether a node computes scalars of the CPU of others, and nothing else."""
    values = [*tensors_of(node.meta.get("val")), *tensors_read(node)]
    is_operator = isinstance(node.target, torch._ops.OpOverload) and node.target.namespace in ("aten", "prims")
    if not (is_operator and values and all(one.dim() == 0 and one.device.type == "cpu" for one in values)):
        return False
    return not node.target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in node.target.tags


def by_dtype(scalars):
    """Returns scalars in lists, one for each dtype."""
    dtypes = list(dict.fromkeys(one.meta["val"].dtype for one in scalars))
    return [[one for one in scalars if one.meta["val"].dtype == dtype] for dtype in dtypes]


def mover(device):
    """Returns a function that copies scalars of one dtype to a device."""
    return functools.partial(_moved, device if torch.cuda.is_available() else torch.device("cpu"))


def _moved(device, *scalars):
    return torch.stack(scalars).to(device, non_blocking=True).unbind()


def number_in(scalar):
    """Returns the number in a scalar of the CPU."""
    return scalar.item()
