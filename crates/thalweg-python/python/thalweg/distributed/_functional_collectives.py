"""Collectives that return new tensors and have gradients (`torch.distributed._functional_collectives`)."""

from .. import _core
from .._left_out import attributes
from ..autograd.function import Function
from . import _check
from ._collectives import all_gather_into_tensor, all_reduce as _all_reduce, all_to_all_single as _all_to_all_single, broadcast as _broadcast
from ._collectives import reduce_scatter_tensor as _reduce_scatter_tensor
from ._group import ProcessGroup, ReduceOp
from .device_mesh import DeviceMesh

_OPERATIONS = {"sum": ReduceOp.SUM, "avg": ReduceOp.AVG, "max": ReduceOp.MAX, "min": ReduceOp.MIN, "product": ReduceOp.PRODUCT}


def group_of(group):
    """Returns the group that an argument refers to: a group, a mesh with one dimension, a dimension of a mesh, or
    ranks."""
    if group is None or isinstance(group, ProcessGroup):
        return _check("functional collective", group)
    if isinstance(group, DeviceMesh):
        return group.get_group()
    if isinstance(group, tuple) and isinstance(group[0], DeviceMesh):
        return group[0].get_group(group[1])
    if isinstance(group, str):
        from . import _world
        return _world().groups[group]
    from . import new_group
    return new_group(list(group))


def _operation(op):
    return _OPERATIONS[op] if isinstance(op, str) else op


def reduced(tensor, op, group):
    """Returns the reduction of the tensors of all ranks."""
    made = tensor.detach().clone(memory_format=_core.contiguous_format)
    _all_reduce(made, _operation(op), group)
    return made


def gathered(tensor, dim, group):
    """Returns the tensors of all ranks, one after another along a dimension."""
    own = tensor.detach().contiguous()
    made = own.new_empty((group.size(), *own.shape))
    all_gather_into_tensor(made, own, group)
    return _core.cat(list(made.unbind(0)), dim) if own.dim() else made


def scattered(tensor, op, dim, group):
    """Returns this rank's part along a dimension of the reduction of the tensors of all ranks."""
    parts = _core.stack([part.contiguous() for part in tensor.detach().chunk(group.size(), dim)])
    made = parts.new_empty(parts.shape[1:])
    _reduce_scatter_tensor(made, parts, _operation(op), group)
    return made


class Change(Function):
    """A change of the parts of a tensor that ranks have, with the change of its gradient."""

    @staticmethod
    def forward(ctx, tensor, change, back):
        ctx.back = back
        return change(tensor)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.back(gradient), None, None


def all_reduce(self, reduceOp, group=None, tag=""):
    """Returns the reduction of the tensors of all ranks."""
    op, group = reduceOp.lower(), group_of(group)
    return Change.apply(self, lambda value: reduced(value, op, group), lambda gradient: reduced(gradient, op, group))


def all_gather_tensor(self, gather_dim, group=None, tag=""):
    """Returns the tensors of all ranks, one after another along a dimension."""
    group = group_of(group)
    return Change.apply(self, lambda value: gathered(value, gather_dim, group), lambda gradient: scattered(gradient, "sum", gather_dim, group))


def reduce_scatter_tensor(self, reduceOp, scatter_dim, group=None, tag=""):
    """Returns this rank's part of the reduction of the tensors of all ranks."""
    op, group = reduceOp.lower(), group_of(group)

    def back(gradient):
        whole = gathered(gradient, scatter_dim, group)
        return whole / group.size() if op == "avg" else whole
    return Change.apply(self, lambda value: scattered(value, op, scatter_dim, group), back)


all_reduce_autograd, all_gather_tensor_autograd, reduce_scatter_tensor_autograd = all_reduce, all_gather_tensor, reduce_scatter_tensor


def broadcast(self, src, group=None, tag=""):
    """Returns the tensor of one rank."""
    made = self.detach().clone()
    _broadcast(made, src, group_of(group))
    return made


def all_to_all_single(self, output_split_sizes=None, input_split_sizes=None, group=None, tag=""):
    """Returns the parts that the ranks have sent to this one."""
    group = group_of(group)
    rows = sum(output_split_sizes) if output_split_sizes else self.shape[0]
    made = self.new_empty((rows, *self.shape[1:]))
    _all_to_all_single(made, self.detach().contiguous(), output_split_sizes, input_split_sizes, group)
    return made


def all_to_all_single_autograd(self, output_split_sizes=None, input_split_sizes=None, group=None, tag=""):
    """Returns the parts that the ranks have sent to this one. The gradient of each goes back to the rank that sent it."""
    group = group_of(group)
    return Change.apply(self, lambda value: all_to_all_single(value, output_split_sizes, input_split_sizes, group),
                        lambda gradient: all_to_all_single(gradient, input_split_sizes, output_split_sizes, group))


def wait_tensor(tensor):
    """Returns the tensor, which is complete."""
    return tensor


class AsyncCollectiveTensor(_core.Tensor):
    """The class of tensors that are not complete, of which there are none."""


__getattr__ = attributes(__name__)
