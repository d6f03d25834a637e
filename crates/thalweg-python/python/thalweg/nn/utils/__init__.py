"""Helpers for training (`torch.nn.utils`)."""

import inspect
import math
import warnings

from ... import _core, _external
from ..module import Module
from . import rnn


def _listed(parameters):
    parameters = [parameters] if isinstance(parameters, _core.Tensor) else list(parameters)
    return [parameter for parameter in parameters if parameter.grad is not None]


def clip_grad_norm(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """Calls `clip_grad_norm_`, which is its newer name."""
    warnings.warn("`torch.nn.utils.clip_grad_norm` is now deprecated in favor of `torch.nn.utils.clip_grad_norm_`.", FutureWarning, stacklevel=2)
    return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """Scales gradients so that their norm is at most a given number, and returns their norm before that."""
    parameters = _listed(parameters)
    if not parameters:
        return _core.tensor(0.0)
    norm_type = float(norm_type)
    if any(hasattr(parameter, "_full_shape") for parameter in parameters):
        return _clip_sharded(parameters, max_norm, norm_type, error_if_nonfinite)
    is_plain = not any(parameter.is_complex() or _external.may_exist and type(parameter.grad) is not _core.Tensor for parameter in parameters)
    if norm_type > 0 and not error_if_nonfinite and is_plain:
        return _core._clip_grad_norm(parameters, float(max_norm), norm_type)
    norm = get_total_norm([parameter.grad for parameter in parameters], norm_type, error_if_nonfinite)
    clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


def _clip_sharded(parameters, max_norm, norm_type, error_if_nonfinite):
    """Scales gradients that are divided among ranks, so that their total norm is at most a given number, and returns
    the norm before."""
    from ... import distributed
    from ...distributed.tensor import DTensor
    # A part that several ranks have counts once.
    of_share = {}
    for parameter in parameters:
        share = math.prod(group.size() for placement, group in getattr(parameter, "_parts", ()) if placement.is_shard())
        of_share.setdefault(share, []).append(parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad.detach())
    norms = _core.stack([_core._total_norm(gradients, norm_type).float() for gradients in of_share.values()])
    if norm_type == float("inf"):
        total = norms.max()
        distributed.all_reduce(total, distributed.ReduceOp.MAX)
    else:
        shares = _core.tensor(list(of_share), device=norms.device)
        total = (norms ** norm_type * shares / distributed.get_world_size()).sum()
        distributed.all_reduce(total)
        total = total ** (1.0 / norm_type)
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be clipped.")
    _core._clip_grads_with_norm(parameters, float(max_norm), total)
    return total


def clip_grad_value_(parameters, clip_value, foreach=None):
    """Clamps gradients to ± a number."""
    parameters = _listed(parameters)
    if _external.may_exist and any(type(parameter.grad) is not _core.Tensor for parameter in parameters):
        for parameter in parameters:
            parameter.grad.clamp_(-clip_value, clip_value)
    elif parameters:
        _core._clip_grad_value(parameters, float(clip_value))


def parameters_to_vector(parameters):
    """Returns all parameters as one vector."""
    parameters = list(parameters)
    if not parameters:
        raise ValueError("torch.cat(): expected a non-empty list of Tensors")
    return _core.cat([parameter.reshape(-1) for parameter in parameters])


def vector_to_parameters(vec, parameters):
    """Overwrites parameters with the parts of a vector."""
    if not isinstance(vec, _core.Tensor):
        raise TypeError(f"expected torch.Tensor, but got: {type(vec).__name__}")
    parameters, start = list(parameters), 0
    if sum(parameter.numel() for parameter in parameters) > vec.numel():
        raise RuntimeError(f"a row of {vec.numel()} elements is too short for parameters of {sum(one.numel() for one in parameters)}")
    for parameter in parameters:
        count = parameter.numel()
        parameter.data = vec[start:start + count].reshape(parameter.shape).clone()
        start += count


def get_total_norm(tensors, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """Returns the norm of all tensors taken together."""
    tensors, norm_type = [tensors] if isinstance(tensors, _core.Tensor) else list(tensors), float(norm_type)
    if not tensors:
        return _core.tensor(0.0)
    norms = _core.stack([_core.linalg_vector_norm(tensor.detach(), norm_type) for tensor in tensors])
    total = _core.linalg_vector_norm(norms, norm_type)
    if error_if_nonfinite and not total.isfinite().item():
        raise RuntimeError(f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be clipped. To disable this "
                           "error and scale the gradients by the non-finite norm anyway, set `error_if_nonfinite=False`")
    return total


def clip_grads_with_norm_(parameters, max_norm, total_norm, foreach=None):
    """Scales gradients so that their total norm is at most a given number."""
    factor = (float(max_norm) / (total_norm + 1e-6)).clamp_max(1.0)
    for parameter in _listed(parameters):
        gradient = parameter.grad.detach()
        gradient.mul_(factor.to(gradient.dtype))


def skip_init(module_cls, *args, **kwargs):
    """Creates a module with uninitialised parameters, on a device if one is given."""
    if not issubclass(module_cls, Module):
        raise RuntimeError(f"Expected a Module; got {module_cls}")
    if "device" not in inspect.signature(module_cls).parameters:
        raise RuntimeError("Module must support a 'device' arg to skip initialization")
    device = kwargs.pop("device", "cpu")
    return module_cls(*args, **kwargs, device="meta").to_empty(device=device)


# These modules use the functions above, or have functions with their own names.
from . import fusion, memory_format, parametrizations, parametrize, prune  # noqa: E402,F401
from .fusion import fuse_conv_bn_eval, fuse_conv_bn_weights, fuse_linear_bn_eval, fuse_linear_bn_weights  # noqa: E402,F401
from .memory_format import convert_conv2d_weight_memory_format, convert_conv3d_weight_memory_format  # noqa: E402,F401
from .spectral_norm import remove_spectral_norm, spectral_norm  # noqa: E402,F401
from .weight_norm import remove_weight_norm, weight_norm  # noqa: E402,F401
