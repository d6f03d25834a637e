"""Collectives with gradients (`torch.distributed.nn.functional`): the gradient of a tensor that other ranks have
received comes back to the rank that sent it."""

from ... import _core
from ..._left_out import attributes
from ...autograd.function import Function
from .. import _check
from .. import all_gather as _all_gather
from .. import all_reduce as _all_reduce
from .. import all_to_all as _all_to_all
from .. import broadcast as _broadcast
from .. import get_rank
from .. import scatter as _scatter
from .._functional_collectives import all_to_all_single as _all_to_all_single
from .._group import ReduceOp

__all__ = ["all_gather", "all_reduce", "all_to_all", "all_to_all_single", "broadcast", "gather", "reduce", "reduce_scatter", "scatter"]


class _Exchange(Function):
    """An exchange of tensors between ranks, with the exchange of their gradients."""

    @staticmethod
    def forward(ctx, change, back, *tensors):
        ctx.back = back
        return change(*(tensor.detach().contiguous() for tensor in tensors))

    @staticmethod
    def backward(ctx, *gradients):
        return None, None, *ctx.back(*(gradient.contiguous() for gradient in gradients))


def _summed(tensor, op, own):
    made = tensor.clone()
    _all_reduce(made, op, own)
    return made


def _sent(tensors, own):
    """Sends one tensor to each rank, and returns the tensors that the ranks have sent to this one."""
    received = [_core.empty_like(tensors[own.rank()]) for _ in range(own.size())]
    _all_to_all(received, list(tensors), own)
    return tuple(received)


def all_gather(tensor, group=None):
    """Returns the tensors of all ranks."""
    own = _check("all_gather", group)

    def change(value):
        found = [_core.empty_like(value) for _ in range(own.size())]
        _all_gather(found, value, own)
        return tuple(found)
    return _Exchange.apply(change, lambda *gradients: (_summed(_core.stack(gradients), ReduceOp.SUM, own)[own.rank()],), tensor)


def all_reduce(tensor, op=ReduceOp.SUM, group=None):
    """Returns the reduction of the tensors of all ranks."""
    own = _check("all_reduce", group)
    return _Exchange.apply(lambda value: _summed(value, op, own), lambda gradient: (_summed(gradient, op, own),), tensor)


def reduce_scatter(output, input_list, op=ReduceOp.SUM, group=None):
    """Returns this rank's part of the reduction of the lists of all ranks."""
    own = _check("reduce_scatter", group)

    def back(gradient):
        found = [_core.empty_like(gradient) for _ in range(own.size())]
        _all_gather(found, gradient, own)
        return found
    return _Exchange.apply(lambda *values: _summed(_core.stack(values), op, own)[own.rank()].clone(), back, *input_list)


def all_to_all(output_tensor_list, input_tensor_list, group=None):
    """Returns the tensors that the ranks have sent to this one."""
    own = _check("all_to_all", group)

    def change(*values):
        received = [_core.empty_like(place) for place in output_tensor_list]
        _all_to_all(received, list(values), own)
        return tuple(received)

    def back(*gradients):
        received = [_core.empty_like(value) for value in input_tensor_list]
        _all_to_all(received, list(gradients), own)
        return received
    return _Exchange.apply(change, back, *input_tensor_list)


def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None):
    """Returns the parts that the ranks have sent to this one."""
    own = _check("all_to_all_single", group)
    return _Exchange.apply(lambda value: _all_to_all_single(value, output_split_sizes, input_split_sizes, own),
                           lambda gradient: (_all_to_all_single(gradient, input_split_sizes, output_split_sizes, own),), input)


def broadcast(tensor, src, group=None):
    """Returns the tensor of one rank."""
    own = _check("broadcast", group)

    def change(value):
        made = value.clone()
        _broadcast(made, src, own)
        return made

    def back(gradient):
        total = _summed(gradient, ReduceOp.SUM, own)
        return (total if get_rank() == src else _core.zeros_like(total),)
    return _Exchange.apply(change, back, tensor)


def reduce(tensor, dst, op=ReduceOp.SUM, group=None):
    """Returns the reduction of the tensors of all ranks on one of them; on the others, their own tensor."""
    own = _check("reduce", group)

    def back(gradient):
        made = gradient.clone()
        _broadcast(made, dst, own)
        return (made,)
    return _Exchange.apply(lambda value: _summed(value, op, own) if get_rank() == dst else (_summed(value, op, own), value.clone())[1], back, tensor)


def gather(tensor, dst=0, group=None):
    """Returns the tensors of all ranks on one of them; the others have zeros."""
    own = _check("gather", group)

    def change(value):
        found = [_core.empty_like(value) for _ in range(own.size())]
        _all_gather(found, value, own)
        return tuple(found) if get_rank() == dst else tuple(_core.zeros_like(value) for _ in found)

    def back(*gradients):
        made = _core.empty_like(gradients[0])
        _scatter(made, list(gradients) if get_rank() == dst else None, dst, own)
        return (made,)
    return _Exchange.apply(change, back, tensor)


def scatter(tensors, src=0, group=None):
    """Returns this rank's tensor of the list of one rank."""
    own = _check("scatter", group)

    def change(*values):
        made = _core.empty_like(values[0])
        _scatter(made, list(values) if get_rank() == src else None, src, own)
        return made

    def back(gradient):
        found = [_core.empty_like(gradient) for _ in range(own.size())]
        _all_gather(found, gradient, own)
        return found if get_rank() == src else [_core.zeros_like(one) for one in found]
    return _Exchange.apply(change, back, *tensors)


__getattr__ = attributes(__name__)
