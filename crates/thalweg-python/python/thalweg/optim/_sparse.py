"""Steps by sparse gradients, which change only the rows of a parameter that the gradient has."""

from .. import _core


def _rows(gradient):
    """Returns the indices and the values of a sparse gradient, with one value per index."""
    whole = gradient.coalesce()
    return tuple(whole._places.unbind(0)), whole._elements


def _count(state, parameter):
    """Increments and returns the number of the step."""
    if not isinstance(state.get("step"), _core.Tensor):
        state["step"] = _core.zeros([], dtype=_core.float32, device=parameter.device)
    state["step"] += 1
    return state["step"].to(device=parameter.device, dtype=_core.float64)


def _number(value):
    return value.item() if isinstance(value, _core.Tensor) else value


def sgd(group, parameter, gradient, state):
    """Steps by the values of a gradient. With momentum, the buffer is sparse as well."""
    if group["weight_decay"]:
        raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
    if group["momentum"]:
        former = state.get("momentum_buffer")
        buffer = gradient if former is None else former * group["momentum"] + gradient * (1 - group["dampening"])
        state["momentum_buffer"] = buffer.clone() if former is None else buffer
        gradient = gradient + buffer * group["momentum"] if group["nesterov"] else buffer
    places, values = tuple(gradient._places.unbind(0)), gradient._elements
    parameter.index_put_(list(places), (values * -_number(group["lr"])).to(parameter.dtype), accumulate=True)


def adagrad(group, parameter, gradient, state):
    """Steps the rows of a gradient by the sum of the squares of all earlier ones."""
    if group["weight_decay"]:
        raise RuntimeError("weight_decay option is not compatible with sparse gradients")
    places, values = _rows(gradient)
    if "sum" not in state:
        state["sum"] = _core.full_like(parameter.detach(), group["initial_accumulator_value"])
    step = _count(state, parameter)
    square = state["sum"][places] + values * values
    state["sum"].index_put_(list(places), square)
    rate = (_number(group["lr"]) / (1 + (step - 1) * group["lr_decay"])).to(parameter.dtype)
    parameter.index_put_(list(places), -rate * values / (square.sqrt() + group["eps"]), accumulate=True)


def adam(group, parameter, gradient, state):
    """Steps the rows of a gradient as Adam does, and leaves the moments of all other rows unchanged."""
    places, values = _rows(gradient)
    for name in ("exp_avg", "exp_avg_sq"):
        if name not in state:
            state[name] = _core.zeros_like(parameter.detach())
    step, (first, second) = _count(state, parameter), group["betas"]
    mean = state["exp_avg"][places] * first + values * (1 - first)
    square = state["exp_avg_sq"][places] * second + values * values * (1 - second)
    state["exp_avg"].index_put_(list(places), mean)
    state["exp_avg_sq"].index_put_(list(places), square)
    rate = (_number(group["lr"]) * (1 - second**step).sqrt() / (1 - first**step)).to(parameter.dtype)
    parameter.index_put_(list(places), -rate * mean / (square.sqrt() + group["eps"]), accumulate=True)


def step(optimizer, group, parameter, gradient, state):
    """Steps a parameter by a sparse gradient."""
    from .._external import check_step
    check_step(optimizer, gradient)
    optimizer._sparse_step(group, parameter, -gradient if group["maximize"] else gradient, state)


