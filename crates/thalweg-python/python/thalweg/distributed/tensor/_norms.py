"""Norms of tensors that are divided among ranks."""

import math

from ... import _core
from .._collectives import all_reduce
from .._group import ReduceOp
from .._placements import Replicate
from . import DTensor, _of_gradient, made
from ._placing import is_divided

_EXTREMES = {math.inf: (_core.amax, ReduceOp.MAX), -math.inf: (_core.amin, ReduceOp.MIN)}


def total_norm(tensors, norm_type, norm_of_plain):
    """Returns the norm of all tensors taken together: as a divided tensor, if all are divided among the ranks of one mesh. Of tensors that are
    divided alike, ranks add up the norms of their parts once."""
    shares, device = {}, tensors[0].device
    dtype = _core.float64 if any(tensor.dtype in (_core.float64, _core.complex128) for tensor in tensors) else _core.float32
    for tensor in tensors:
        groups = ()
        if isinstance(tensor, DTensor):
            placements = _of_gradient(tensor)
            groups = [tensor.device_mesh.get_group(dim) for dim, one in enumerate(placements) if is_divided(one)]
            tensor = tensor._part(tensor, placements) if any(one.is_partial() for one in tensor.placements) else tensor._local
        shares.setdefault(tuple(map(id, groups)), (groups, []))[1].append(tensor.detach())
    norms = _core.stack([_of_share(norm_of_plain, [part for part in parts if part.numel()], norm_type, groups, device, dtype)
                         for groups, parts in shares.values()])
    if norm_type in _EXTREMES:
        total = _EXTREMES[norm_type][0](norms)
    else:
        total = norms.sum() if norm_type == 0 else norms.sum() ** (1.0 / norm_type)
    meshes = [tensor.device_mesh if isinstance(tensor, DTensor) else None for tensor in tensors]
    if meshes[0] is None or any(mesh is None or mesh != meshes[0] for mesh in meshes):
        return total
    return made(total, meshes[0], [Replicate()] * meshes[0].ndim, ())


def _of_share(norm_of_plain, parts, norm_type, groups, device, dtype):
    """Returns the norm of tensors that are divided among groups, to the power of the norm's type."""
    least = math.inf if norm_type == -math.inf else 0.0
    found = norm_of_plain(parts, norm_type).to(device=device, dtype=dtype) if parts else _core.full([], least, device=device, dtype=dtype)
    if norm_type not in _EXTREMES and norm_type != 0:
        found = found ** norm_type
    for group in groups:
        all_reduce(found, _EXTREMES[norm_type][1] if norm_type in _EXTREMES else ReduceOp.SUM, group)
    return found
