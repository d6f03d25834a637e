"""The fused optimizers: each rule made of operators, and its class with the options of PyTorch's constructor. The kernels come from the rule's
entry in the table of optimizers, `crates/thalweg-ops/src/optimizer/table.rs`; its formula here is for steps that are recorded, and for
parameters that the kernels do not take (`fused.Fused`)."""

from .. import _core
from ..nn.parameter import is_lazy
from . import _composing, _sparse
from .fused import Fused, optimizer

_DECAY = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0}
_FOREACH = {"foreach": None}


def _mean(former, value, keep):
    """Returns a running mean."""
    return former * keep + value * (1 - keep)


def _decayed(group, parameter, gradient):
    """Returns the gradient with the weight decay added to it."""
    return gradient + group.weight_decay * parameter if group.weight_decay else gradient


def _shrunk(group, parameter, gradient):
    """Returns parameter and gradient after weight decay, which changes one of them."""
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


SGD = optimizer("SGD", _sgd, "", {"lr": 1e-3, "momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False},
                "maximize foreach differentiable fused", _hidden=("step",), _sparse_step=staticmethod(_sparse.sgd))


def _adam(group, parameter, gradient, step, state):
    (first, second), (parameter, gradient) = group.pair("betas"), _shrunk(group, parameter, gradient)
    changed = {"exp_avg": _mean(state["exp_avg"], gradient, first), "exp_avg_sq": _mean(state["exp_avg_sq"], gradient * gradient, second)}
    square = changed["exp_avg_sq"]
    if group.amsgrad:
        square = changed["max_exp_avg_sq"] = _core.maximum(state["max_exp_avg_sq"], square)
    size = square.sqrt() / (1 - second**step).sqrt() + group.eps
    return parameter - group.lr / (1 - first**step) * (changed["exp_avg"] / size), changed


class Adam(optimizer("FusedAdam", _adam, "exp_avg exp_avg_sq max_exp_avg_sq:amsgrad", {**_DECAY, "amsgrad": False}, {
        **_FOREACH, "maximize": False, "capturable": False, "differentiable": False, "fused": None, "decoupled_weight_decay": False})):
    """Adam, fused; with `decoupled_weight_decay` it is AdamW."""

    __module__ = "thalweg.optim"

    def _check_options(self, group):
        super()._check_options(group)
        betas, is_on_host = group["betas"], group.get("foreach") and not group.get("capturable")
        if not any(all(isinstance(beta, kind) for beta in betas) for kind in (float, _core.Tensor)):
            raise ValueError("betas must be either both floats or both Tensors")
        for name, value in (("lr", group["lr"]), ("betas[0]", betas[0]), ("betas[1]", betas[1])):
            if is_on_host and isinstance(value, _core.Tensor):
                raise ValueError(f"{name} as a Tensor is not supported for capturable=False and foreach=True")


class AdamW(Adam):
    """Adam with decoupled weight decay, fused."""

    __module__ = "thalweg.optim"

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, amsgrad=False, *, maximize=False, foreach=None,
                 capturable=False, differentiable=False, fused=None):
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize, capturable=capturable,
                         differentiable=differentiable, fused=fused, decoupled_weight_decay=True)

    def __setstate__(self, state):
        super().__setstate__(state)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True


def _adamax(group, parameter, gradient, step, state):
    (first, second), gradient = group.pair("betas"), _decayed(group, parameter, gradient)
    mean, size = _mean(state["exp_avg"], gradient, first), _core.maximum(state["exp_inf"] * second, gradient.abs() + group.eps)
    return parameter - group.lr / (1 - first**step) * (mean / size), {"exp_avg": mean, "exp_inf": size}


Adamax = optimizer("Adamax", _adamax, "exp_avg exp_inf", {**_DECAY, "lr": 2e-3, **_FOREACH}, "maximize differentiable capturable")


def _sparse_adam(group, parameter, gradient, step, state):
    (first, second), is_missing = group.pair("betas"), gradient == 0
    mean, square = _mean(state["exp_avg"], gradient, first), _mean(state["exp_avg_sq"], gradient * gradient, second)
    moved = parameter - group.lr * (1 - second**step).sqrt() / (1 - first**step) * (mean / (square.sqrt() + group.eps))
    return _core.where(is_missing, parameter, moved), {
        "exp_avg": _core.where(is_missing, state["exp_avg"], mean), "exp_avg_sq": _core.where(is_missing, state["exp_avg_sq"], square)}


SparseAdam = optimizer("SparseAdam", _sparse_adam, "exp_avg exp_avg_sq", {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "maximize": False}, "",
                       _sparse_step=staticmethod(_sparse.adam))


def _nadam(group, parameter, gradient, step, state):
    (first, second), (parameter, gradient) = group.pair("betas"), _shrunk(group, parameter, gradient)
    mean, square = _mean(state["exp_avg"], gradient, first), _mean(state["exp_avg_sq"], gradient * gradient, second)
    now, after = (first * (1 - 0.5 * 0.96 ** (number * group.momentum_decay)) for number in (step, step + 1))
    product = state["mu_product"] * now
    size = (square / (1 - second**step)).sqrt() + group.eps
    parameter = parameter - group.lr * (1 - now) / (1 - product) * (gradient / size)
    parameter = parameter - group.lr * after / (1 - product * after) * (mean / size)
    return parameter, {"exp_avg": mean, "exp_avg_sq": square, "mu_product": product}


NAdam = optimizer("NAdam", _nadam, "exp_avg exp_avg_sq", {**_DECAY, "lr": 2e-3, "momentum_decay": 4e-3, "decoupled_weight_decay": False},
              "foreach maximize capturable differentiable", _scalars={"mu_product": 1.0})


def _radam(group, parameter, gradient, step, state):
    (first, second), (parameter, gradient) = group.pair("betas"), _shrunk(group, parameter, gradient)
    mean, square = _mean(state["exp_avg"], gradient, first), _mean(state["exp_avg_sq"], gradient * gradient, second)
    longest, power = 2 / (1 - second) - 1, second**step
    length = longest - 2 * step * power / (1 - power)
    # Below 5 the variance of the step size is not known, and the step is that of momentum.
    known = length.clamp_min(5.0)
    variance = ((known - 4) * (known - 2) * longest / ((longest - 4) * (longest - 2) * known)).sqrt()
    scale = _core.where(length > 5, variance * (1 - power).sqrt() / (square.sqrt() + group.eps), 1.0).to(parameter.dtype)
    return parameter - group.lr / (1 - first**step) * (mean * scale), {"exp_avg": mean, "exp_avg_sq": square}


RAdam = optimizer("RAdam", _radam, "exp_avg exp_avg_sq", {**_DECAY, "decoupled_weight_decay": False}, "foreach maximize capturable differentiable")


def _adadelta(group, parameter, gradient, step, state):
    gradient = _decayed(group, parameter, gradient)
    square = _mean(state["square_avg"], gradient * gradient, group.rho)
    change = (state["acc_delta"] + group.eps).sqrt() / (square + group.eps).sqrt() * gradient
    return parameter - group.lr * change, {"square_avg": square, "acc_delta": _mean(state["acc_delta"], change * change, group.rho)}


Adadelta = optimizer("Adadelta", _adadelta, "square_avg acc_delta", {"lr": 1.0, "rho": 0.9, "eps": 1e-6, "weight_decay": 0, **_FOREACH},
                     "capturable maximize differentiable")


def _adagrad(group, parameter, gradient, step, state):
    gradient = _decayed(group, parameter, gradient)
    total = state["sum"] + gradient * gradient
    return parameter - group.lr / (1 + (step - 1) * group.lr_decay) * (gradient / (total.sqrt() + group.eps)), {"sum": total}


class Adagrad(optimizer("FusedAdagrad", _adagrad, "sum=initial_accumulator_value", {
        "lr": 1e-2, "lr_decay": 0, "weight_decay": 0, "initial_accumulator_value": 0, "eps": 1e-10, **_FOREACH}, "maximize differentiable fused",
        _sparse_step=staticmethod(_sparse.adagrad))):
    """Adagrad, fused. Its states exist before the first step."""

    __module__ = "thalweg.optim"

    def add_param_group(self, param_group):
        """Adds parameters with options of their own, whose shapes must be known."""
        super().add_param_group(param_group)
        if any(is_lazy(parameter) for parameter in self.param_groups[-1]["params"]):
            self.param_groups.pop()
            raise ValueError("Adagrad: an uninitialized parameter has no shape, which the states need; run a forward pass of its module first")

    @property
    def state(self):
        """The states of each parameter, by name."""
        if self._fused is None and not self._state and self.param_groups:
            self._waiting = {}
            if self._composes():
                for group in self.param_groups:
                    for parameter in group["params"]:
                        _composing.start(self, group, parameter, self._state[parameter])
            else:
                self._made()
        return Fused.state.fget(self)

    @state.setter
    def state(self, value):
        Fused.state.fset(self, value)


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


_RMSprop = optimizer("FusedRMSprop", _rmsprop, "square_avg grad_avg:centered momentum_buffer:momentum", {
    "lr": 1e-2, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0, "momentum": 0, "centered": False, "capturable": False, **_FOREACH,
    "maximize": False, "differentiable": False}, "")


class RMSprop(_RMSprop):
    """RMSprop, fused."""

    __module__ = "thalweg.optim"

    def _check_options(self, group):
        super()._check_options(group)
        if not 0.0 <= group["alpha"]:
            raise ValueError(f"Invalid alpha value: {group['alpha']}")


def _rprop(group, parameter, gradient, step, state):
    (shrink, grow), (least, greatest) = group.pair("etas"), group.pair("step_sizes")
    sign = gradient * state["prev"]
    factor = _core.where(sign > 0, grow, _core.where(sign < 0, shrink, 1.0)).to(parameter.dtype)
    # The first step has the learning rate of that time.
    former = _core.where(step == 1, group.lr, state["step_size"])
    size = (former * factor).clamp(least, greatest)
    gradient = gradient.masked_fill(sign < 0, 0.0)
    return parameter - gradient.sign() * size, {"prev": gradient, "step_size": size}


class Rprop(optimizer("FusedRprop", _rprop, "prev step_size=lr", {"lr": 1e-2, "etas": (0.5, 1.2), "step_sizes": (1e-6, 50)},
                      "capturable foreach maximize differentiable")):
    """Resilient propagation, fused."""

    __module__ = "thalweg.optim"

    def _check_options(self, group):
        super()._check_options(group)
        low, high = group["etas"]
        if not 0.0 < low < 1.0 < high:
            raise ValueError(f"Invalid eta values: {low}, {high}")


def _asgd(group, parameter, gradient, step, state):
    rate, eta, mu = group.lr, state["eta"], state["mu"]
    parameter = parameter * (1 - group.lambd * eta) - eta * _decayed(group, parameter, gradient)
    mean = _core.where(mu == 1, parameter, state["ax"] + (parameter - state["ax"]) * mu).to(parameter.dtype)
    following = rate / (1 + group.lambd * rate * step) ** group.alpha
    return parameter, {"ax": mean, "eta": following.detach(), "mu": 1 / (step - group.t0).clamp_min(1.0)}


ASGD = optimizer("ASGD", _asgd, "ax", {"lr": 1e-2, "lambd": 1e-4, "alpha": 0.75, "t0": 1e6, "weight_decay": 0, **_FOREACH, "maximize": False,
                                       "differentiable": False, "capturable": False}, "", _scalars={"eta": None, "mu": 1.0})


def _lion(group, parameter, gradient, step, state):
    first, second = group.pair("betas")
    parameter = parameter * (1 - group.lr * group.weight_decay)
    return parameter - group.lr * _mean(state["exp_avg"], gradient, first).sign(), {"exp_avg": _mean(state["exp_avg"], gradient, second)}


Lion = optimizer("Lion", _lion, "exp_avg", {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0}, "maximize")


__all__ = [name for name, one in vars().items() if isinstance(one, type) and issubclass(one, Fused) and not name.startswith("_") and one is not Fused]
