"""Steps of fused optimizers that are composed of operators: for steps that are recorded, and for parameters that the
kernels do not support."""

from .. import _core


class _Options:
    """The options of a group as attributes, with tensors moved to the parameter's device."""

    def __init__(self, group, parameter):
        self._group, self._device = group, parameter.device

    def __getattr__(self, name):
        return self._beside(self._group[name])

    def pair(self, name):
        """Returns both values of a pair."""
        return [self._beside(value) for value in self._group[name]]

    def _beside(self, value):
        return value.to(self._device) if isinstance(value, _core.Tensor) else value


def has_gaps(tensor):
    """Returns whether a tensor has gaps between its elements, or several elements at one address."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) != tensor.numel() != 0


def share_memory(tensors):
    """Returns whether two tensors have elements at the same address. A kernel that steps both at once would write these
    twice."""
    unique = {id(tensor): tensor for tensor in tensors if tensor.numel()}.values()
    # Not by address: a tensor whose address was read may be written unnoticed, so it is not fused and has no kept cast.
    ranges = sorted((tensor._storage_identity(), tensor.storage_offset() * tensor.element_size(), tensor.numel() * tensor.element_size())
                    for tensor in unique)
    return any(later[0] == former[0] and later[1] < former[1] + former[2] for former, later in zip(ranges, ranges[1:]))


def real(tensor):
    """Returns a complex tensor as pairs of real and imaginary parts, in the same memory; another tensor unchanged."""
    return _core.view_as_real(tensor) if tensor.is_complex() else tensor


def start(optimizer, group, parameter, state):
    """Adds the missing states to `state`."""
    def scalar(value):
        value = group["lr"] if value is None else value
        value = value.item() if isinstance(value, _core.Tensor) else value
        return _core.full([], float(value), dtype=_core.float32, device=parameter.device)

    if "step" not in optimizer._hidden and not isinstance(state.get("step"), _core.Tensor):
        state["step"] = scalar(state.get("step", 0.0))
    for name, value in optimizer._scalars.items():
        if name not in state:
            state[name] = scalar(value)
    for entry in optimizer._starts.split():
        name, _, condition = entry.partition(":")
        name, _, first = name.partition("=")
        if name not in state and (not condition or group[condition]):
            made = _core.zeros_like(parameter.detach())
            if first:
                value = group[first]
                real(made).copy_(value) if isinstance(value, _core.Tensor) else real(made).fill_(float(value))
            state[name] = made


def step(optimizer, group, parameter, gradient, state):
    """Steps a parameter by the rule of an optimizer, and writes its states. Recorded gradients are with respect to the values before the step."""
    start(optimizer, group, parameter, state)
    if "step" in state:
        state["step"] += 1
    count = state["step"].to(device=parameter.device, dtype=_core.float64) if "step" in state else None
    # What operators save of a recorded step must not be written by it.
    copied = _core.clone if _core.is_grad_enabled() else lambda tensor: tensor
    former = {name: real(copied(value)) for name, value in state.items() if isinstance(value, _core.Tensor) and name != "step"}
    gradient = real(gradient)
    value, changed = optimizer._formula(
        _Options(group, parameter), real(copied(parameter)), -gradient if group["maximize"] else gradient, count, former)
    real(parameter).copy_(value)
    for name, new in changed.items():
        if name in state:
            real(state[name]).copy_(new)
        else:
            state[name] = (_core.view_as_complex(new.contiguous()) if parameter.is_complex() else new).clone()
