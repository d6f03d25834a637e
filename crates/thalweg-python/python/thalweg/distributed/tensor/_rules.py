"""Functions of tensors that are divided among ranks: which parts each rank needs, and how the parts of the result are placed.

A rule computes the result from the parts of the ranks: products (`matmul`, `linear`), functions of single elements, sums, and changes of the
shape. Every other function is computed by each rank from entire tensors.
"""

import dataclasses
import math
import threading

from ... import _core, _torch_functions
from ..._kinds import LIKE, LINEAR, OF_ELEMENTS, name_of
from .._collectives import broadcast
from .._placements import Partial, Replicate, Shard, _StridedShard
from ._placing import is_divided, parts_of, redistributed, used_in_parts

Tensor = _core.Tensor

class _Local(threading.local):
    """Whether plain tensors are taken as entire ones on this thread."""

    takes_plain = False


local = _Local()
_IN_PLACE = frozenset(f"{name}_" for name in (*OF_ELEMENTS, "add", "sub", "neg", "zero"))
# Draws of numbers: they are those of the first rank for the entire tensor, so that they are the numbers that one rank would have.
_DRAWS = frozenset("normal_ uniform_ bernoulli_ exponential_ geometric_ log_normal_ cauchy_ random_ rand_like randn_like randint_like".split())
_NEW = frozenset("new_empty new_zeros new_ones new_full new_tensor".split())


def _located(placement, rank, own):
    """Returns the placement of an argument with `own` dimensions in a result with `rank` dimensions."""
    return Shard(placement.dim + rank - own) if isinstance(placement, Shard) else placement


def _beside(value, place, target, shape):
    """Returns the placement that an argument must have so that the result, of a shape, has the placement `target`."""
    placement = value.placements[place]
    if is_divided(target):
        dim = target.dim - (len(shape) - value.dim())
        return dataclasses.replace(target, dim=dim) if dim >= 0 and value.shape[dim] == shape[target.dim] else Replicate()
    return placement if placement == target else Replicate()


class Call:
    """A call with tensors that are divided among the ranks of one mesh."""

    def __init__(self, kind, func, args, kwargs):
        from ...func._batching import replaced
        self.kind, self.func, self.args, self.kwargs, self.values = kind, func, args, kwargs, []
        self.plain = []
        replaced((args, kwargs), lambda value: (self.values if isinstance(value, kind) else self.plain).append(value) or value)
        self.values = list({id(value): value for value in self.values}.values())
        self.mesh = self.values[0].device_mesh
        if any(value.device_mesh != self.mesh for value in self.values):
            raise NotImplementedError(f"{name_of(func)}: its tensors are divided among different meshes")

    def of_parts(self, parts):
        """Returns the result of the function of the ranks' parts, by the identity of the tensors."""
        from ...func._batching import replaced
        args, kwargs = (replaced(value, lambda one: parts[id(one)] if isinstance(one, self.kind) else one) for value in (self.args, self.kwargs))
        return self.func(*args, **kwargs)

    def entire(self):
        """Returns the result that each rank computes from entire tensors."""
        from ...func._batching import replaced
        whole = [Replicate()] * self.mesh.ndim
        parts = {id(value): redistributed(value._local, self.mesh, value.placements, whole) for value in self.values}
        result = self.of_parts(parts)
        return replaced(result, lambda one: self.made(one, whole, one.shape))

    def made(self, local, placements, shape):
        """Returns a part as a tensor that is divided."""
        from . import made
        return made(local, self.mesh, placements, shape)


def _check_plain(call):
    """Refuses plain tensors of several elements beside divided ones."""
    if any(value.dim() and value.numel() != 1 for value in call.plain):
        raise RuntimeError(f"{name_of(call.func)}: got mixed torch.Tensor and DTensor, need to convert all torch.Tensor to DTensor before calling distributed "
                           "operators!")


def of_elements(call, is_linear):
    """Returns the result of a function of single elements: the arguments are placed as the first that is in parts."""
    _check_plain(call)
    shape = _broadcast([value.shape for value in call.values + call.plain])
    rank = len(shape)
    targets, wanted = [], {id(value): [] for value in call.values}
    for place in range(call.mesh.ndim):
        placements = [_located(value.placements[place], rank, value.dim()) for value in call.values]
        shards = [one for value, one in zip(call.values, placements) if isinstance(one, Shard) and value.shape[one.dim - rank] == shape[one.dim]]
        partial = next((one for one in placements if isinstance(one, Partial)), None)
        if shards:
            target = shards[0]
        elif partial and is_linear and partial.reduce_op == "sum" and all(one == partial for one in placements) and not (call.plain or _has_number(call)):
            target = partial
        else:
            target = Replicate()
        targets.append(target)
        for value in call.values:
            wanted[id(value)].append(_beside(value, place, target, shape))
    return call.made(call.of_parts(_parts(call, wanted, targets)), targets, shape)


def _has_number(call):
    return len(call.values) == 1 and len(call.args) > 1 and isinstance(call.args[1], (int, float)) and name_of(call.func) in ("add", "sub")


def _parts(call, wanted, targets):
    """Returns the parts that a rank needs. The gradient of an entire tensor is added up where the result is in parts."""
    parts = {}
    for value in call.values:
        local = redistributed(value._local, call.mesh, value.placements, wanted[id(value)])
        for place, (own, target) in enumerate(zip(wanted[id(value)], targets)):
            if isinstance(own, Replicate) and is_divided(target) and local.requires_grad:
                local = used_in_parts(local, call.mesh.get_group(place))
        parts[id(value)] = local
    return parts


def _broadcast(shapes):
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(max(extents) if 0 not in extents else 0 for extents in zip(*padded))


def in_place(call):
    """Writes a tensor in place: other arguments are placed as it is."""
    _check_plain(call)
    target, *_ = call.args
    wanted = {id(value): [_beside(value, place, target.placements[place], target.shape) for place in range(call.mesh.ndim)] for value in call.values}
    wanted[id(target)] = list(target.placements)
    call.of_parts(_parts(call, wanted, target.placements))
    return target


def written(call, target):
    """Writes a tensor, by a function that each rank computes for the entire one."""
    _check_plain(call)
    whole = [Replicate()] * call.mesh.ndim
    parts = {id(value): redistributed(value._local, call.mesh, value.placements, whole) for value in call.values}
    call.of_parts(parts)
    if any(map(is_divided, target.placements)):
        target._local.copy_(redistributed(parts[id(target)], call.mesh, whole, target.placements))
    return target


def drawn(call):
    """Returns a tensor of random numbers, or the one that a draw writes."""
    target, = call.values
    placements = [Replicate() if isinstance(one, Partial) else one for one in target.placements]
    found = call.of_parts({id(target): target._local.new_empty(list(target.shape))})
    if not found.is_meta:
        for dim in range(call.mesh.ndim):
            broadcast(found, group=call.mesh.get_group(dim), group_src=0)
    part = parts_of(found, call.mesh, placements)
    if name_of(call.func).endswith("_like"):
        return call.made(part.contiguous(), placements, target.shape)
    target._local.copy_(part)
    return target


def product(call, first, second, compute):
    """Returns a matrix product: of rows or columns that ranks have, or the terms that they have computed."""
    rank = max(first.dim(), second.dim())
    targets, wanted = [], {id(first): [], id(second): []}
    for place in range(call.mesh.ndim):
        own, other = first.placements[place], second.placements[place]
        inner, columns, last = Shard(first.dim() - 1), Shard(second.dim() - 1), Shard(rank - 1)
        rows = Shard(second.dim() - 2)
        if isinstance(own, Shard) and own != inner:
            same = isinstance(other, Shard) and second.dim() > 2 and other.dim == own.dim < second.dim() - 2
            batch = second.dim() > 2 and own.dim < first.dim() - 2
            pair, target = (own, Shard(own.dim) if same or batch else Replicate()), own
        elif own == inner or other == rows:
            pair, target = (inner, rows), Partial()
        elif other == columns:
            pair, target = (Replicate(), columns), last
        else:
            pair, target = (Replicate(), Replicate()), Replicate()
        for value, one in zip((first, second), pair):
            wanted[id(value)].append(one)
        targets.append(target)
    shape = (*_broadcast([first.shape[:-2], second.shape[:-2]]), first.shape[-2], second.shape[-1])
    parts = _parts(call, wanted, targets)
    return call.made(compute(parts[id(first)], parts[id(second)]), targets, shape)


def _is_divided_matrix(call, *values):
    return all(isinstance(value, call.kind) and value.dim() >= 2 for value in values) and (values[0].dim() >= values[1].dim() or values[1].dim() == 2) and (
        values[1].dim() in (2, values[0].dim()) and (values[1].dim() == 2 or tuple(values[0].shape[:-2]) == tuple(values[1].shape[:-2])))


def matmul(call):
    """Returns the product of two matrices, or of many."""
    first, second = call.args[:2]
    if getattr(call.func, "__name__", "") == "__rmatmul__":
        first, second = second, first
    if len(call.args) > 2 or call.kwargs or not _is_divided_matrix(call, first, second) or first is second:
        return call.entire()
    return product(call, first, second, _core.matmul)


def linear(call):
    """Returns the product with the transpose of a weight, and the bias added to it."""
    names = ("input", "weight", "bias")
    given = dict(zip(names, call.args)) | call.kwargs
    x, weight, bias = (given.get(name) for name in names)
    if not (isinstance(x, call.kind) and isinstance(weight, call.kind)):
        raise RuntimeError("linear: got mixed torch.Tensor and DTensor, need to convert all torch.Tensor to DTensor before calling distributed operators!")
    result = x @ weight.t()
    return result if bias is None else result + bias


def addmm(call):
    """Returns a matrix plus a product."""
    added, first, second, *rest = call.args
    beta, alpha = (call.kwargs.get(name, 1) for name in ("beta", "alpha"))
    result = first @ second
    return (result if alpha == 1 else result * alpha) + (added if beta == 1 else added * beta)


def reduction(call):
    """Returns the sum or the mean of all elements, or along dimensions."""
    x, *rest = call.args
    dims = rest[0] if rest else call.kwargs.get("dim", call.kwargs.get("axis"))
    keeps = rest[1] if len(rest) > 1 else call.kwargs.get("keepdim", False)
    dims = range(x.dim()) if dims is None or dims == [] or dims == () else [dims] if isinstance(dims, int) else dims
    dims = sorted(dim % x.dim() for dim in dims) if x.dim() else []
    targets, wanted = [], []
    for placement in x.placements:
        if isinstance(placement, Shard):
            before = 0 if keeps else sum(dim < placement.dim for dim in dims)
            targets.append(Partial() if placement.dim in dims else Shard(placement.dim - before))
            wanted.append(placement)
        else:
            is_sum = isinstance(placement, Partial) and placement.reduce_op == "sum"
            targets.append(Partial() if is_sum else Replicate())
            wanted.append(placement if is_sum else Replicate())
    local = redistributed(x._local, call.mesh, x.placements, wanted)
    options = {key: value for key, value in call.kwargs.items() if key == "dtype"}
    total = _core.sum(local, list(dims), bool(keeps), **options)
    if name_of(call.func) == "mean":
        total = total / max(math.prod(x.shape[dim] for dim in dims), 1)
    shape = tuple(1 if dim in dims else extent for dim, extent in enumerate(x.shape) if keeps or dim not in dims)
    return call.made(total, targets, shape)


def _moved(call, order):
    """Returns a tensor with its dimensions in another order."""
    x, = call.values
    targets = [Shard(order.index(one.dim)) if isinstance(one, Shard) else one for one in x.placements]
    return call.made(x._local.permute(order), targets, [x.shape[dim] for dim in order])


def transposed(call):
    """Returns a tensor with two dimensions exchanged, or all in another order."""
    x, *rest = call.args
    order = list(range(x.dim()))
    if name_of(call.func) == "permute":
        dims = rest[0] if rest and not isinstance(rest[0], int) else rest or call.kwargs["dims"]
        return _moved(call, [dim % x.dim() for dim in dims])
    if name_of(call.func) == "t":
        return _moved(call, order[::-1])
    first, second = rest or (call.kwargs["dim0"], call.kwargs["dim1"])
    order[first], order[second] = order[second], order[first]
    return _moved(call, order)


def reshaped(call):
    """Returns a tensor with another shape. It is divided in the same way if each rank's part stays in one piece;
    otherwise it is computed from the entire tensor."""
    x, *sizes = call.args
    with _torch_functions.DisableTorchFunction():
        made = call.func(_core.empty(list(x.shape), device="meta"), *sizes, **call.kwargs)
    shape, extents, targets = tuple(made.shape), list(made.shape), []
    for place, one in enumerate(x.placements):
        if not isinstance(one, Shard):
            targets.append(one)
            continue
        before = math.prod(x.shape[:one.dim])
        parts = math.prod(call.mesh.size(other) for other, same in enumerate(x.placements) if same == one)
        dim = next((dim for dim in range(len(shape)) if math.prod(shape[:dim]) == before and shape[dim] % parts == 0 and shape[dim] > 1), None)
        if dim is None or x.shape[one.dim] % parts:
            return call.entire()
        extents[dim] //= call.mesh.size(place)
        targets.append(Shard(dim))
    return call.made(x._local.reshape(extents), targets, shape)


RULES = {"matmul": matmul, "mm": matmul, "bmm": matmul, "__matmul__": matmul, "__rmatmul__": matmul, "linear": linear, "addmm": addmm, "sum": reduction,
         "mean": reduction, "t": transposed, "transpose": transposed, "permute": transposed, "view": reshaped, "reshape": reshaped, "flatten": reshaped,
         "unsqueeze": reshaped, "squeeze": reshaped, "unflatten": reshaped, "view_as": lambda call: call.args[0].view(call.args[1].shape)}


def _all_divided(kind, args, kwargs):
    """Returns arguments with plain tensors as tensors that are in one piece on each rank."""
    from ...func._batching import replaced
    from . import made
    meshes = []
    replaced((args, kwargs), lambda value: meshes.append(value.device_mesh) if isinstance(value, kind) else None)
    whole = [Replicate()] * meshes[0].ndim
    return replaced((args, kwargs), lambda value: value if isinstance(value, kind) else made(value, meshes[0], whole, value.shape))


def result_of(kind, func, args, kwargs):
    """Returns the result of a function of divided tensors."""
    if local.takes_plain:
        args, kwargs = _all_divided(kind, args, kwargs)
    call, name = Call(kind, func, args, kwargs), name_of(func)
    if name in RULES and "out" not in kwargs:
        # The rules divide a dimension once.
        is_strided = any(isinstance(one, _StridedShard) for value in call.values for one in value.placements)
        return call.entire() if is_strided else RULES[name](call)
    if name in _DRAWS:
        return drawn(call)
    if name in _NEW and isinstance(args[0], kind):
        found = call.of_parts({id(value): value._local for value in call.values})
        return call.made(found, [Replicate()] * call.mesh.ndim, found.shape)
    if (name.endswith("_") and not name.endswith("__") or name == "__setitem__") and isinstance(args[0], kind):
        return in_place(call) if name in _IN_PLACE else written(call, args[0])
    if isinstance(kwargs.get("out"), kind):
        return written(call, kwargs["out"])
    if name in LINEAR or name in OF_ELEMENTS:
        return of_elements(call, name in LINEAR)
    if name in LIKE:
        x, = call.values
        placements = [Replicate() if isinstance(one, Partial) else one for one in x.placements]
        return call.made(call.of_parts({id(x): x._local.detach()}), placements, x.shape)
    return call.entire()
