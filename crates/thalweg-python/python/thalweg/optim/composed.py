"""`Muon` and `Adafactor`: optimizers that are composed of operators. A step never waits for the device, so it can be captured."""

import math

from .. import _core, _external
from .optimizer import Optimizer, evaluated, refuse_below


def _rate(group, parameter):
    """Returns the learning rate: a number, or a tensor on the parameter's device, which the host does not read."""
    rate = group["lr"]
    return rate.to(parameter.device) if isinstance(rate, _core.Tensor) else float(rate)


class _Composed(Optimizer):
    """Steps each parameter that has a gradient with `_update`."""

    def step(self, closure=None):
        """Updates every parameter that has a gradient. Asynchronous."""
        loss = evaluated(closure)
        former = _core._set_grad_enabled(False)
        if _core._cuda._step_is_captured(self):
            self._captured_rates = [group["lr"] for group in self.param_groups]
        try:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        _external.check_step(self, parameter.grad)
                        self._update(group, parameter, parameter.grad.detach(), self.state[parameter])
        finally:
            _core._set_grad_enabled(former)
        return loss


class Muon(_Composed):
    """Momentum with updates that are made nearly orthogonal, by a polynomial that is iterated in bfloat16. Parameters must be
    matrices."""

    def __init__(self, params, lr=1e-3, weight_decay=0.1, momentum=0.95, nesterov=True, ns_coefficients=(3.4445, -4.775, 2.0315),
                 eps=1e-7, ns_steps=5, adjust_lr_fn=None):
        refuse_below(0.0, **{"Learning rate": lr, "momentum": momentum, "weight decay": weight_decay})
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(f"Adjust learning rate function {adjust_lr_fn} is not supported")
        if ns_steps >= 100:
            raise ValueError("Number of steps must be less than 100 for computational efficiency")
        if len(ns_coefficients) != 3:
            raise ValueError("Coefficients must be a tuple of exactly 3 values")
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov,
                                      ns_coefficients=ns_coefficients, eps=eps, ns_steps=ns_steps, adjust_lr_fn=adjust_lr_fn))

    def add_param_group(self, param_group):
        """Adds a group of matrices with its own options."""
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            if parameter.dim() != 2:
                self.param_groups.pop()
                raise ValueError(f"Muon only supports 2D parameters whereas we found a parameter with size: {parameter.size()}")

    def _update(self, group, parameter, gradient, state):
        if parameter.is_complex():
            raise RuntimeError("Muon does not support complex parameters")
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = _core.zeros_like(gradient)
        buffer, rate = state["momentum_buffer"], _rate(group, parameter)
        buffer.lerp_(gradient, 1 - group["momentum"])
        update = gradient.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer
        rows, columns = parameter.shape
        ratio = math.sqrt(max(1, rows / columns))
        if group["adjust_lr_fn"] == "match_rms_adamw":
            ratio = 0.2 * math.sqrt(max(rows, columns))
        parameter.mul_(1 - rate * group["weight_decay"])
        step = _orthogonal(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
        if isinstance(rate, _core.Tensor):
            parameter.sub_(step * (rate * ratio))
        else:
            parameter.add_(step, alpha=-rate * ratio)


def _orthogonal(matrix, coefficients, steps, eps):
    """Returns a bfloat16 matrix with approximately the singular vectors of another, and singular values near 1
    (Newton-Schulz)."""
    a, b, c = coefficients
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.to(_core.bfloat16)
    x = x.T if is_tall else x
    x = x / _core.linalg_vector_norm(x, 2).clamp_min(eps)
    for _ in range(steps):
        gram = x @ x.T
        x = _core.addmm(x, _core.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x


class Adafactor(_Composed):
    """An optimizer with steps relative to the size of a parameter, and variances of rows and columns instead of elements."""

    def __init__(self, params, lr=1e-2, beta2_decay=-0.8, eps=(None, 1e-3), d=1.0, weight_decay=0.0, *, foreach=None, maximize=False):
        refuse_below(0.0, **{"Learning rate": lr, "epsilon1": eps[0] or 0.0, "epsilon2": eps[1], "weight_decay": weight_decay})
        refuse_below(1.0, **{"Clipping threshold d": d})
        if beta2_decay > 0.0:
            raise ValueError(f"beta2_decay should be <= 0 but is: {beta2_decay}")
        super().__init__(params, dict(lr=lr, beta2_decay=beta2_decay, eps=eps, d=d, weight_decay=weight_decay, foreach=foreach,
                                      maximize=maximize))

    def _update(self, group, parameter, gradient, state):
        if not state:
            state["step"] = _core.zeros([], dtype=_core.float32, device=parameter.device)
            if gradient.dim() > 1:
                state["row_var"] = _core.zeros_like(gradient[..., :1])
                state["col_var"] = _core.zeros_like(gradient[..., :1, :])
            else:
                state["variance"] = _core.zeros_like(gradient)
        gradient, rate = -gradient if group["maximize"] else gradient, _rate(group, parameter)
        eps1, eps2 = group["eps"]
        if eps1 is None:
            eps1 = {_core.float64: 2.0**-52, _core.float16: 2.0**-10, _core.bfloat16: 2.0**-7}.get(parameter.dtype, 2.0**-23)
        step = state["step"].add_(1)
        size = _core.linalg_vector_norm(parameter.detach(), 2) / math.sqrt(parameter.numel())
        length = size.clamp_min(eps2) * step.rsqrt().clamp_max(rate).to(size.dtype)
        if group["weight_decay"]:
            parameter.mul_(1 - rate * group["weight_decay"])
        weight = step.pow(group["beta2_decay"]).to(gradient.dtype)
        square = gradient * gradient
        if gradient.dim() > 1:
            row = state["row_var"].lerp_(square.mean(-1, keepdim=True), weight)
            column = state["col_var"].lerp_(square.mean(-2, keepdim=True), weight)
            variance = row @ column / row.mean(-2, keepdim=True).clamp_min(eps1)
        else:
            variance = state["variance"].lerp_(square, weight)
        update = variance.clamp_min(eps1 * eps1).rsqrt() * gradient
        scale = (_core.linalg_vector_norm(update, 2) / (math.sqrt(update.numel()) * group["d"])).clamp_min(1.0)
        parameter.sub_(update * (length / scale))
