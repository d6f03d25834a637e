"""Collectives of process groups (`torch.distributed.all_reduce`, …)."""

from .. import _core
from ._group import ReduceOp, Work, packed, pickled, reduced, unpacked, unpickled

Tensor = _core.Tensor


def _group(name, group):
    from . import _check
    return _check(name, group)


def _done(async_op, result=None, between_gpus=None):
    """Returns a `Work` that waits for a collective, or None after the current stream has been made to wait for it."""
    work = Work(result=result, between_gpus=between_gpus)
    return work if async_op else (work.wait(), None)[1]


# The names of reductions between GPUs.
_BETWEEN_GPUS = {getattr(ReduceOp, name): (name, None) for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX")}


def _direct(own, op, *tensors):
    """Returns the communicator of GPUs, or None if tensors go through the host, and the name and factor of a reduction."""
    named = ("SUM", None) if op is None else _BETWEEN_GPUS.get(op)
    if named is None:
        named = "SUM", getattr(op, "factor", None)
        if named[1] is None:
            return None, named
    return own.communicator(*tensors), named


def _tensor(name, tensor):
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} takes a Tensor, not {type(tensor).__name__}")
    if hasattr(tensor, "_outer"):
        raise NotImplementedError(f"{name} does not take a {type(tensor).__name__}: take this rank's part by to_local(), or the entire tensor by full_tensor()")


def _root(own, rank, group_rank, what):
    """Returns the number of a rank in the group. The rank is given by its global number, or by its number in the group."""
    if group_rank is not None:
        return group_rank
    return own._place(0 if rank is None else rank, what)


def _put(target, source):
    with _core_no_grad():
        target.copy_(source.reshape(target.shape))


def _core_no_grad():
    from ..autograd import no_grad
    return no_grad()


def barrier(group=None, async_op=False, device_ids=None):
    """Waits until all ranks call it."""
    own = _group("barrier", group)
    if own is not None:
        own.exchange(None, "barrier")
    return _done(async_op)


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """Waits until all ranks call it. The error names those that do not."""
    own = _group("monitored_barrier", group)
    former = own._timeout
    own._timeout = timeout or former
    try:
        own.exchange(None, "monitored_barrier")
    finally:
        own._timeout = former


def all_reduce(tensor, op=ReduceOp.SUM, group=None, async_op=False):
    """Replaces the tensor of each rank with the reduction of all."""
    own = _group("all_reduce", group)
    _tensor("all_reduce", tensor)
    if own is None:
        return None
    direct, named = _direct(own, op, tensor)
    if direct is not None:
        return _done(async_op, [tensor], direct.all_reduce(tensor, named))
    factor = getattr(op, "factor", None)
    mine = tensor if factor is None else tensor * factor
    if own.size() > 1 or factor is not None:
        _put(tensor, reduced(own.tensors(mine, "all_reduce"), op))
    return _done(async_op, [tensor])


def all_reduce_coalesced(tensors, op=ReduceOp.SUM, group=None, async_op=False):
    """Reduces several tensors."""
    for tensor in tensors:
        all_reduce(tensor, op, group)
    return _done(async_op, tensors)


def reduce(tensor, dst=None, op=ReduceOp.SUM, group=None, async_op=False, group_dst=None):
    """Replaces the tensor of one rank with the reduction of all."""
    own = _group("reduce", group)
    _tensor("reduce", tensor)
    if own is None:
        return None
    root = _root(own, dst, group_dst, "dst")
    direct, named = _direct(own, op, tensor)
    if direct is not None:
        return _done(async_op, [tensor], direct.reduce(tensor, root, named))
    found = own.tensors(tensor, "reduce")
    if own.rank() == root and own.size() > 1:
        _put(tensor, reduced(found, op))
    return _done(async_op, [tensor])


def broadcast(tensor, src=None, group=None, async_op=False, group_src=None):
    """Replaces the tensor of each rank with that of one."""
    own = _group("broadcast", group)
    _tensor("broadcast", tensor)
    if own is None:
        return None
    root = _root(own, src, group_src, "src")
    direct, _ = _direct(own, None, tensor)
    if direct is not None:
        return _done(async_op, [tensor], direct.broadcast(tensor, root))
    if own.size() > 1:
        found = own.exchange(packed(tensor) if own.rank() == root else None, "broadcast")
        if own.rank() != root:
            _put(tensor, unpacked(found[root], tensor.device))
    return _done(async_op, [tensor])


def all_gather(tensor_list, tensor, group=None, async_op=False):
    """Copies the tensors of all ranks into a list."""
    own = _group("all_gather", group)
    if own is None:
        return None
    if len(tensor_list) != own.size():
        raise ValueError(f"all_gather: the list has {len(tensor_list)} tensors, and the group {own.size()} rank{'s' * (own.size() > 1)}")
    direct, _ = _direct(own, None, tensor, *tensor_list)
    if direct is not None:
        return _done(async_op, tensor_list, direct.all_gather(tensor_list, tensor))
    for target, source in zip(tensor_list, own.tensors(tensor, "all_gather")):
        _put(target, source)
    return _done(async_op, tensor_list)


def all_gather_coalesced(output_tensor_lists, input_tensor_list, group=None, async_op=False):
    """Copies several tensors of all ranks into lists."""
    for place, tensor in enumerate(input_tensor_list):
        all_gather([outputs[place] for outputs in output_tensor_lists], tensor, group)
    return _done(async_op, output_tensor_lists)


def all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
    """Copies the tensors of all ranks into one."""
    own = _group("all_gather_into_tensor", group)
    if own is None:
        return None
    if output_tensor.numel() != input_tensor.numel() * own.size():
        raise ValueError(f"all_gather_into_tensor: the output has {output_tensor.numel()} elements, and the {own.size()} inputs "
                         f"{input_tensor.numel()} each")
    direct, _ = _direct(own, None, output_tensor, input_tensor)
    if direct is not None:
        return _done(async_op, [output_tensor], direct.all_gather_into_tensor(output_tensor, input_tensor))
    _put(output_tensor, _core.cat([source.reshape(-1) for source in own.tensors(input_tensor, "all_gather_into_tensor")]))
    return _done(async_op, [output_tensor])


_all_gather_base = all_gather_into_tensor


def gathered_together(outputs, inputs, group):
    """Begins to copy several tensors of all ranks, each into one output, and returns the work."""
    direct, _ = _direct(group, None, *outputs, *inputs) if outputs else (None, None)
    if direct is not None:
        return Work(between_gpus=direct.all_gather_coalesced(outputs, inputs))
    found = group.exchange([packed(one) for one in inputs], "all_gather_coalesced")
    for output, *parts in zip(outputs, *found):
        _put(output, _core.cat([unpacked(part, output.device) for part in parts]))
    return Work()


def scattered_together(outputs, inputs, group):
    """Begins to give each rank its part of the means of several tensors, and returns the work."""
    direct, operation = _direct(group, ReduceOp.AVG, *outputs, *inputs) if outputs else (None, None)
    if direct is not None:
        return Work(between_gpus=direct.reduce_scatter_coalesced(outputs, inputs, operation))
    parts = [one.detach().reshape(group.size(), -1).unbind(0) for one in inputs]
    found = group.exchange([[packed(part) for part in one] for one in parts], "reduce_scatter_coalesced")
    for output, *ranks in zip(outputs, *found):
        _put(output, reduced([unpacked(parts[group.rank()], output.device) for parts in ranks], ReduceOp.AVG))
    return Work()


def reduced_together(tensors, op, group):
    """Begins to replace several tensors by the reductions over the ranks, and returns the work."""
    direct, operation = _direct(group, op, *tensors) if tensors else (None, None)
    if direct is not None:
        return Work(between_gpus=direct.all_reduce_coalesced(tensors, operation))
    for tensor, *ranks in zip(tensors, *group.exchange([packed(one) for one in tensors], "all_reduce_coalesced")):
        _put(tensor, reduced([unpacked(one, tensor.device) for one in ranks], op))
    return Work()


def copied_together(tensors, group):
    """Gives several tensors of all ranks the values of the group's first rank."""
    direct, _ = _direct(group, None, *tensors) if tensors else (None, None)
    if direct is not None:
        return Work(between_gpus=direct.broadcast_coalesced(tensors, 0)).wait()
    found = group.exchange([packed(one) for one in tensors] if group.rank() == 0 else None, "broadcast_coalesced")
    if group.rank():
        for tensor, value in zip(tensors, found[0]):
            _put(tensor, unpacked(value, tensor.device))
    return True


def gather(tensor, gather_list=None, dst=None, group=None, async_op=False, group_dst=None):
    """Copies the tensors of all ranks into a list of one rank."""
    own = _group("gather", group)
    if own is None:
        return None
    root = _root(own, dst, group_dst, "dst")
    direct, _ = _direct(own, None, tensor)
    if direct is not None:
        return _done(async_op, gather_list, direct.gather(tensor, gather_list, root))
    found = own.tensors(tensor, "gather")
    if own.rank() == root:
        if gather_list is None or len(gather_list) != own.size():
            raise ValueError("Argument ``gather_list`` must be specified on destination rank, with one tensor for each rank.")
        for target, source in zip(gather_list, found):
            _put(target, source)
    return _done(async_op, gather_list)


def scatter(tensor, scatter_list=None, src=None, group=None, async_op=False, group_src=None):
    """Gives each rank one tensor of a list of one rank."""
    own = _group("scatter", group)
    if own is None:
        return None
    root = _root(own, src, group_src, "src")
    is_root = own.rank() == root
    if is_root and (scatter_list is None or len(scatter_list) != own.size()):
        raise ValueError("Argument ``scatter_list`` must be specified on source rank, with one tensor for each rank.")
    direct, _ = _direct(own, None, tensor)
    if direct is not None:
        return _done(async_op, [tensor], direct.scatter(tensor, scatter_list, root))
    found = own.exchange([packed(one) for one in scatter_list] if is_root else None, "scatter")
    _put(tensor, unpacked(found[root][own.rank()], tensor.device))
    return _done(async_op, [tensor])


def reduce_scatter(output, input_list, op=ReduceOp.SUM, group=None, async_op=False):
    """Reduces lists of tensors, and gives each rank one of them."""
    own = _group("reduce_scatter", group)
    if own is None:
        return None
    direct, named = _direct(own, op, output, *input_list)
    if direct is not None:
        return _done(async_op, [output], direct.reduce_scatter(output, list(input_list), named))
    found = own.exchange([packed(one) for one in input_list], "reduce_scatter")
    _put(output, reduced([unpacked(messages[own.rank()], output.device) for messages in found], op))
    return _done(async_op, [output])


def reduce_scatter_tensor(output, input, op=ReduceOp.SUM, group=None, async_op=False):
    """Reduces tensors, and gives each rank its part."""
    own = _group("reduce_scatter_tensor", group)
    if own is None:
        return None
    if input.numel() != output.numel() * own.size():
        raise ValueError(f"reduce_scatter_tensor: the input has {input.numel()} elements, and the {own.size()} outputs {output.numel()} each")
    direct, named = _direct(own, op, output, input)
    if direct is not None:
        return _done(async_op, [output], direct.reduce_scatter_tensor(output, input, named))
    parts = input.detach().reshape(own.size(), -1).unbind(0)
    return reduce_scatter(output, list(parts), op, group, async_op)


_reduce_scatter_base = reduce_scatter_tensor


def all_to_all(output_tensor_list, input_tensor_list, group=None, async_op=False):
    """Sends each rank one tensor of a list, and receives one from each."""
    own = _group("all_to_all", group)
    if own is None:
        return None
    direct, _ = _direct(own, None, *output_tensor_list, *input_tensor_list)
    if direct is not None:
        return _done(async_op, output_tensor_list, direct.all_to_all(list(output_tensor_list), list(input_tensor_list)))
    found = own.exchange([packed(one) for one in input_tensor_list], "all_to_all")
    for target, messages in zip(output_tensor_list, found):
        _put(target, unpacked(messages[own.rank()], target.device))
    return _done(async_op, output_tensor_list)


def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False):
    """Sends each rank a part of a tensor, and receives one from each."""
    own = _group("all_to_all_single", group)
    if own is None:
        return None
    direct, _ = _direct(own, None, output, input)
    if direct is not None:
        sizes = [None if one is None else list(one) for one in (output_split_sizes, input_split_sizes)]
        return _done(async_op, [output], direct.all_to_all_single(output, input, *sizes))

    def parts(tensor, sizes):
        return list(tensor.split(list(sizes) if sizes else tensor.shape[0] // own.size()))
    all_to_all(parts(output.detach(), output_split_sizes), parts(input.detach(), input_split_sizes), group)
    return _done(async_op, [output])


# ---- Between two ranks ---------------------------------------------------------------------------------------------


def _peer(own, rank, group_rank, what):
    peer = own._ranks[group_rank] if group_rank is not None else rank
    if peer is not None:
        own._place(peer, what)
        if peer == own._own:
            raise ValueError(f"Invalid {what} rank: {what} rank should not be the same as the rank of the current process.")
    return peer


def isend(tensor, dst=None, group=None, tag=0, group_dst=None):
    """Sends a tensor to a rank."""
    own = _group("isend", group)
    _tensor("isend", tensor)
    peer = _peer(own, dst, group_dst, "destination")
    direct, _ = _direct(own, None, tensor)
    if direct is not None:
        return Work(between_gpus=direct.exchange([(True, tensor, own._place(peer, "destination"))]))
    own.post(packed(tensor), peer, tag)
    return Work()


def send(tensor, dst=None, group=None, tag=0, group_dst=None):
    """Sends a tensor to a rank."""
    isend(tensor, dst, group, tag, group_dst)


def irecv(tensor, src=None, group=None, tag=0, group_src=None):
    """Receives a tensor from a rank, or from any. `wait` of the result waits for it."""
    own = _group("irecv", group)
    _tensor("irecv", tensor)
    source = _peer(own, src, group_src, "source")
    direct, _ = _direct(own, None, tensor)
    if direct is not None:
        if source is None:
            raise ValueError("recv from any rank is left out between GPUs: name the rank")
        work = Work(result=[tensor], between_gpus=direct.exchange([(False, tensor, own._place(source, "source"))]))
        work.source = source
        return work

    def finish():
        work.source, message = own.take(source, tag, "recv")
        _put(tensor, unpacked(message, tensor.device))
    work = Work(finish, [tensor])
    return work


def recv(tensor, src=None, group=None, tag=0, group_src=None):
    """Receives a tensor from a rank, or from any, and returns that rank."""
    work = irecv(tensor, src, group, tag, group_src)
    work.wait()
    return work.source


class P2POp:
    """A send or a receive, for `batch_isend_irecv`."""

    def __init__(self, op, tensor, peer=None, group=None, tag=0, group_peer=None):
        if op not in (isend, irecv):
            raise ValueError("Invalid ``op``. Expected ``op`` to be of type ``torch.distributed.isend`` or ``torch.distributed.irecv``.")
        self.op, self.tensor, self.peer, self.group, self.tag, self.group_peer = op, tensor, peer, group, tag, group_peer


def batch_isend_irecv(p2p_op_list):
    """Begins several sends and receives, in any order."""
    if not p2p_op_list or not all(isinstance(one, P2POp) for one in p2p_op_list):
        raise ValueError("Invalid ``p2p_op_list``. Each op is expected to to be of type ``torch.distributed.P2POp``.")
    own = _group("batch_isend_irecv", p2p_op_list[0].group)
    direct, _ = _direct(own, None, *[one.tensor for one in p2p_op_list])
    if direct is not None:
        peers = [own._place(_peer(own, one.peer, one.group_peer, "peer"), "peer") for one in p2p_op_list]
        return [Work(between_gpus=direct.exchange([(one.op is isend, one.tensor, peer) for one, peer in zip(p2p_op_list, peers)]))]
    return [one.op(one.tensor, one.peer, one.group, one.tag, one.group_peer) for one in p2p_op_list]


# ---- Objects -------------------------------------------------------------------------------------------------------


def all_gather_object(object_list, obj, group=None):
    """Puts the objects of all ranks into a list."""
    own = _group("all_gather_object", group)
    if own is not None:
        object_list[:own.size()] = [unpickled(message) for message in own.exchange(pickled(obj), "all_gather_object")]


def gather_object(obj, object_gather_list=None, dst=None, group=None, group_dst=None):
    """Puts the objects of all ranks into a list of one rank."""
    own = _group("gather_object", group)
    if own is None:
        return
    found = own.exchange(pickled(obj), "gather_object")
    if own.rank() == _root(own, dst, group_dst, "dst"):
        object_gather_list[:own.size()] = [unpickled(message) for message in found]


def broadcast_object_list(object_list, src=None, group=None, device=None, group_src=None):
    """Replaces the objects of each rank's list with those of one rank's."""
    own = _group("broadcast_object_list", group)
    if own is None:
        return
    root = _root(own, src, group_src, "src")
    found = own.exchange(pickled(list(object_list)) if own.rank() == root else None, "broadcast_object_list")
    if own.rank() != root:
        object_list[:] = unpickled(found[root])


def scatter_object_list(scatter_object_output_list, scatter_object_input_list=None, src=None, group=None, group_src=None):
    """Gives each rank one object of a list of one rank."""
    own = _group("scatter_object_list", group)
    if own is None:
        return
    root = _root(own, src, group_src, "src")
    found = own.exchange([pickled(one) for one in scatter_object_input_list] if own.rank() == root else None, "scatter_object_list")
    scatter_object_output_list[0] = unpickled(found[root][own.rank()])


def send_object_list(object_list, dst=None, group=None, device=None, group_dst=None, use_batch=False):
    """Sends objects to a rank."""
    own = _group("send_object_list", group)
    own.post(pickled(list(object_list)), _peer(own, dst, group_dst, "destination"), "objects")


def recv_object_list(object_list, src=None, group=None, device=None, group_src=None, use_batch=False):
    """Receives objects from a rank, or from any, and returns that rank."""
    own = _group("recv_object_list", group)
    source, message = own.take(_peer(own, src, group_src, "source"), "objects", "recv_object_list")
    object_list[:] = unpickled(message)
    return source
