"""Helpers for training (`torch.nn.utils`)."""

import inspect
import warnings

from ... import _core, _external
from ..module import Module
from . import rnn


def _listed(parameters):
    parameters = [parameters] if isinstance(parameters, _core.Tensor) else list(parameters)
    return [parameter for parameter in parameters if _external.own_gradient(parameter) is not None]


def clip_grad_norm(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """Calls `clip_grad_norm_`, which is its newer name."""
    warnings.warn("`torch.nn.utils.clip_grad_norm` is now deprecated in favor of `torch.nn.utils.clip_grad_norm_`.", FutureWarning, stacklevel=2)
    return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """Scales gradients so that their norm is at most a given number, and returns their norm before that."""
    parameters = _listed(parameters)
    if not parameters:
        return _core.tensor(0.0)
    norm = _total_norm([parameter.grad for parameter in parameters], float(norm_type), error_if_nonfinite)
    clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


def clip_grad_value_(parameters, clip_value, foreach=None):
    """Clamps gradients to ± a number."""
    parameters = _listed(parameters)
    if _external.may_exist and any(type(_external.own_gradient(parameter)) is not _core.Tensor for parameter in parameters):
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
    total, dtype = _total_norm(tensors, norm_type, error_if_nonfinite), tensors[0].dtype
    is_half = dtype in (_core.float16, _core.bfloat16) and all(tensor.dtype is dtype for tensor in tensors)
    return total.to(dtype) if is_half else total


def _total_norm(tensors, norm_type, error_if_nonfinite):
    """Returns the norm of tensors taken together, which may be divided among ranks."""
    if _external.may_exist and any(hasattr(tensor, "_outer") for tensor in tensors):
        from ...distributed.tensor._norms import total_norm
        total = total_norm(tensors, norm_type, _norm_of_plain)
    else:
        total = _norm_of_plain(tensors, norm_type)
    if error_if_nonfinite and not total.isfinite().item():
        raise RuntimeError(f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be clipped. To disable this "
                           "error and scale the gradients by the non-finite norm anyway, set `error_if_nonfinite=False`")
    return total


def _norm_of_plain(tensors, norm_type):
    """Returns the norm of all tensors taken together, by one launch if they are plain ones."""
    if norm_type > 0 and all(type(tensor) is _core.Tensor for tensor in tensors):
        return _core._total_norm(tensors, norm_type)
    return _core.linalg_vector_norm(_core.stack([_core.linalg_vector_norm(tensor.detach(), norm_type) for tensor in tensors]), norm_type)


def clip_grads_with_norm_(parameters, max_norm, total_norm, foreach=None):
    """Scales gradients so that their total norm is at most a given number."""
    parameters = _listed(parameters)
    if parameters and (not _external.may_exist or all(type(_external.own_gradient(parameter)) is _core.Tensor for parameter in parameters)):
        return _core._clip_grads_with_norm(parameters, float(max_norm), total_norm._local if hasattr(total_norm, "_outer") else total_norm)
    factor = (float(max_norm) / (total_norm + 1e-6)).clamp_max(1.0)
    for parameter in parameters:
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
