"""The rules of the fused optimizers, composed of operators.
They serve steps that are recorded, and parameters that the kernels do not support.

A rule is a function of the options of a group, a parameter, its gradient, the number of the step and the states, all as real
tensors. It returns the next value of the parameter and of the states that it changes, and writes nothing.
"""

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


def _mean(former, value, keep):
    """Returns an exponential running mean."""
    return former * keep + value * (1 - keep)


def _decayed(group, parameter, gradient):
    """Returns the gradient with the weight decay added."""
    return gradient + group.weight_decay * parameter if group.weight_decay else gradient


def _shrunk(group, parameter, gradient):
    """Returns the parameter and the gradient after the weight decay, which changes one of them."""
    if not group.decoupled_weight_decay:
        return parameter, _decayed(group, parameter, gradient)
    return parameter * (1 - group.lr * group.weight_decay), gradient


def _sgd(group, parameter, gradient, step, state):
    gradient, changed = _decayed(group, parameter, gradient), {}
    if group.momentum:
        former = state.get("momentum_buffer")
        buffer = gradient if former is None else former * group.momentum + gradient * (1 - group.dampening)
        changed["momentum_buffer"] = buffer
        gradient = gradient + group.momentum * buffer if group.nesterov else buffer
    return parameter - group.lr * gradient, changed


def _adam(group, parameter, gradient, step, state):
    (first, second), (parameter, gradient) = group.pair("betas"), _shrunk(group, parameter, gradient)
    changed = {"exp_avg": _mean(state["exp_avg"], gradient, first), "exp_avg_sq": _mean(state["exp_avg_sq"], gradient * gradient, second)}
    square = changed["exp_avg_sq"]
    if group.amsgrad:
        square = changed["max_exp_avg_sq"] = _core.maximum(state["max_exp_avg_sq"], square)
    size = square.sqrt() / (1 - second**step).sqrt() + group.eps
    return parameter - group.lr / (1 - first**step) * (changed["exp_avg"] / size), changed


def _adamax(group, parameter, gradient, step, state):
    (first, second), gradient = group.pair("betas"), _decayed(group, parameter, gradient)
    mean, size = _mean(state["exp_avg"], gradient, first), _core.maximum(state["exp_inf"] * second, gradient.abs() + group.eps)
    return parameter - group.lr / (1 - first**step) * (mean / size), {"exp_avg": mean, "exp_inf": size}


def _nadam(group, parameter, gradient, step, state):
    (first, second), (parameter, gradient) = group.pair("betas"), _shrunk(group, parameter, gradient)
    mean, square = _mean(state["exp_avg"], gradient, first), _mean(state["exp_avg_sq"], gradient * gradient, second)
    now, after = (first * (1 - 0.5 * 0.96 ** (number * group.momentum_decay)) for number in (step, step + 1))
    product = state["mu_product"] * now
    size = (square / (1 - second**step)).sqrt() + group.eps
    parameter = parameter - group.lr * (1 - now) / (1 - product) * (gradient / size)
    parameter = parameter - group.lr * after / (1 - product * after) * (mean / size)
    return parameter, {"exp_avg": mean, "exp_avg_sq": square, "mu_product": product}


def _radam(group, parameter, gradient, step, state):
    (first, second), (parameter, gradient) = group.pair("betas"), _shrunk(group, parameter, gradient)
    mean, square = _mean(state["exp_avg"], gradient, first), _mean(state["exp_avg_sq"], gradient * gradient, second)
    longest, power = 2 / (1 - second) - 1, second**step
    length = longest - 2 * step * power / (1 - power)
    # Up to 5 the variance of the step size cannot be estimated, and the step is that of momentum.
    known = length.clamp_min(5.0)
    variance = ((known - 4) * (known - 2) * longest / ((longest - 4) * (longest - 2) * known)).sqrt()
    scale = _core.where(length > 5, variance * (1 - power).sqrt() / (square.sqrt() + group.eps), 1.0).to(parameter.dtype)
    return parameter - group.lr / (1 - first**step) * (mean * scale), {"exp_avg": mean, "exp_avg_sq": square}


def _adadelta(group, parameter, gradient, step, state):
    gradient = _decayed(group, parameter, gradient)
    square = _mean(state["square_avg"], gradient * gradient, group.rho)
    change = (state["acc_delta"] + group.eps).sqrt() / (square + group.eps).sqrt() * gradient
    return parameter - group.lr * change, {"square_avg": square, "acc_delta": _mean(state["acc_delta"], change * change, group.rho)}


def _adagrad(group, parameter, gradient, step, state):
    gradient = _decayed(group, parameter, gradient)
    total = state["sum"] + gradient * gradient
    return parameter - group.lr / (1 + (step - 1) * group.lr_decay) * (gradient / (total.sqrt() + group.eps)), {"sum": total}


def _rmsprop(group, parameter, gradient, step, state):
    gradient = _decayed(group, parameter, gradient)
    square = _mean(state["square_avg"], gradient * gradient, group.alpha)
    changed = {"square_avg": square}
    if group.centered:
        mean = changed["grad_avg"] = _mean(state["grad_avg"], gradient, group.alpha)
        square = square - mean * mean
    change = gradient / (square.sqrt() + group.eps)
    if group.momentum:
        change = changed["momentum_buffer"] = state["momentum_buffer"] * group.momentum + change
    return parameter - group.lr * change, changed


def _rprop(group, parameter, gradient, step, state):
    (shrink, grow), (least, greatest) = group.pair("etas"), group.pair("step_sizes")
    sign = gradient * state["prev"]
    factor = _core.where(sign > 0, grow, _core.where(sign < 0, shrink, 1.0)).to(parameter.dtype)
    size = (state["step_size"] * factor).clamp(least, greatest)
    gradient = gradient.masked_fill(sign < 0, 0.0)
    return parameter - gradient.sign() * size, {"prev": gradient, "step_size": size}


def _asgd(group, parameter, gradient, step, state):
    rate = group.lr
    eta, mu = (rate / (1 + group.lambd * rate * (step - 1)) ** group.alpha, 1 / (step - 1 - group.t0).clamp_min(1.0))
    parameter = parameter * (1 - group.lambd * eta) - eta * _decayed(group, parameter, gradient)
    mean = _core.where(mu == 1, parameter, state["ax"] + (parameter - state["ax"]) * mu).to(parameter.dtype)
    following = rate / (1 + group.lambd * rate * step) ** group.alpha
    return parameter, {"ax": mean, "eta": following.detach(), "mu": 1 / (step - group.t0).clamp_min(1.0)}


def _lion(group, parameter, gradient, step, state):
    first, second = group.pair("betas")
    parameter = parameter * (1 - group.lr * group.weight_decay)
    return parameter - group.lr * _mean(state["exp_avg"], gradient, first).sign(), {"exp_avg": _mean(state["exp_avg"], gradient, second)}


# The rules with the states that they need from the start. A plain name starts at 0; a name with `:option` exists if the option
# is set; a name with `=option` starts at the option's value.
_RULES = {
    "SGD": (_sgd, ""), "Adam": (_adam, "exp_avg exp_avg_sq max_exp_avg_sq:amsgrad"), "AdamW": (_adam, "exp_avg exp_avg_sq max_exp_avg_sq:amsgrad"),
    "Adamax": (_adamax, "exp_avg exp_inf"), "NAdam": (_nadam, "exp_avg exp_avg_sq"), "RAdam": (_radam, "exp_avg exp_avg_sq"),
    "Adadelta": (_adadelta, "square_avg acc_delta"), "Adagrad": (_adagrad, "sum=initial_accumulator_value"),
    "RMSprop": (_rmsprop, "square_avg grad_avg:centered momentum_buffer:momentum"), "Rprop": (_rprop, "prev step_size=lr"),
    "ASGD": (_asgd, "ax"), "Lion": (_lion, "exp_avg"),
}
# The states that are single numbers, besides the number of steps, with their initial values.
_SCALARS = {"NAdam": {"mu_product": 1.0}, "ASGD": {"eta": None, "mu": 1.0}}


def has_gaps(tensor):
    """Returns whether a tensor has gaps between its elements in memory, or several elements at one address."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) != tensor.numel() != 0


def real(tensor):
    """Returns a view of the real and imaginary parts of a complex tensor, or any other tensor unchanged."""
    return _core.view_as_real(tensor) if tensor.is_complex() else tensor


def start(rule, group, parameter, state):
    """Adds missing states to `state`."""
    def scalar(value):
        value = group["lr"] if value is None else value
        value = value.item() if isinstance(value, _core.Tensor) else value
        return _core.full([], float(value), dtype=_core.float32, device=parameter.device)

    if rule != "SGD" and not isinstance(state.get("step"), _core.Tensor):
        state["step"] = scalar(state.get("step", 0.0))
    for name, value in _SCALARS.get(rule, {}).items():
        if name not in state:
            state[name] = scalar(value)
    for entry in _RULES[rule][1].split():
        name, _, condition = entry.partition(":")
        name, _, first = name.partition("=")
        if name not in state and (not condition or group[condition]):
            made = _core.zeros_like(parameter.detach())
            if first:
                value = group[first]
                real(made).copy_(value) if isinstance(value, _core.Tensor) else real(made).fill_(float(value))
            state[name] = made


def step(rule, group, parameter, gradient, state):
    """Steps a parameter by a rule, and writes its states. A recorded step uses the values from before the step."""
    start(rule, group, parameter, state)
    if "step" in state:
        state["step"] += 1
    count = state["step"].to(device=parameter.device, dtype=_core.float64) if "step" in state else None
    # The step must not overwrite tensors that operators save for a recorded step.
    copied = _core.clone if _core.is_grad_enabled() else lambda tensor: tensor
    former = {name: real(copied(value)) for name, value in state.items() if isinstance(value, _core.Tensor) and name != "step"}
    gradient = real(gradient)
    value, changed = _RULES[rule][0](
        _Options(group, parameter), real(copied(parameter)), -gradient if group["maximize"] else gradient, count, former)
    real(parameter).copy_(value)
    for name, new in changed.items():
        if name in state:
            real(state[name]).copy_(new)
        else:
            state[name] = (_core.view_as_complex(new.contiguous()) if parameter.is_complex() else new).clone()
