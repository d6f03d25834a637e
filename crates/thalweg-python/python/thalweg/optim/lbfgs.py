"""`LBFGS`: steps along directions from an approximation of the Hessian, optionally with a line search."""

import collections

from .. import _core, _external
from .optimizer import Optimizer

# The constants of the line search: the fraction of the slope by which the loss must fall, the fraction of the slope that may
# remain, and the smallest change.
_DECREASE, _CURVATURE, _SMALLEST = 1e-4, 0.9, 1e-9

# A point along a line: its distance, the loss, the gradient, and the derivative of the loss along the line.
_Point = collections.namedtuple("_Point", "length loss gradient slope")


def _least(one, other, bounds=None):
    """Returns the minimizer, between bounds, of the cubic through two points with their slopes, or the midpoint if there is
    none."""
    left, right = (one, other) if one.length <= other.length else (other, one)
    low, high = bounds or (left.length, right.length)
    mean = left.slope + right.slope - 3 * (left.loss - right.loss) / (left.length - right.length)
    square = mean * mean - left.slope * right.slope
    if not square >= 0:
        return (low + high) / 2
    root = square**0.5
    divisor = right.slope - left.slope + 2 * root
    if divisor == 0:
        return low
    place = right.length - (right.length - left.length) * (right.slope + root - mean) / divisor
    return min(max(place, low), high)


def _strong_wolfe(start, length, extent, budget, evaluate):
    """Returns a point that satisfies the strong Wolfe conditions (Nocedal and Wright, *Numerical Optimization*, algorithms 3.5
    and 3.6), or the best of `budget` trials, with the number of evaluations."""
    def is_high(point):
        return point.loss > start.loss + _DECREASE * point.length * start.slope

    def is_flat(point):
        return abs(point.slope) <= -_CURVATURE * start.slope

    former, point, trials = start, evaluate(length), 0
    while True:
        if trials >= budget:
            ends = [start, point]
            break
        if is_flat(point) and not is_high(point) and not (trials > 1 and point.loss >= former.loss):
            return point, trials + 1
        if is_high(point) or (trials > 1 and point.loss >= former.loss) or point.slope >= 0:
            ends = [former, point]
            break
        bounds = (point.length + 0.01 * (point.length - former.length), 10 * point.length)
        former, point = point, evaluate(_least(former, point, bounds))
        trials += 1
    was_close, low = False, int(ends[0].loss > ends[1].loss)
    while trials < budget and abs(ends[1].length - ends[0].length) * extent >= _SMALLEST:
        place = _least(*ends)
        first, last = sorted(end.length for end in ends)
        margin = 0.1 * (last - first)
        # A point close to an end is tried once; the next time, one at a tenth of the distance is tried.
        is_close = min(last - place, place - first) < margin
        moves = is_close and (was_close or place >= last or place <= first)
        if moves:
            place = last - margin if abs(place - last) < abs(place - first) else first + margin
        was_close = is_close and not moves
        point = evaluate(place)
        trials += 1
        if is_high(point) or point.loss >= ends[low].loss:
            ends[1 - low] = point
            low = int(ends[0].loss > ends[1].loss)
            continue
        if not is_flat(point) and point.slope * (ends[1 - low].length - ends[low].length) >= 0:
            ends[1 - low] = ends[low]
        ends[low] = point
        if is_flat(point):
            break
    return ends[low], trials + 1


class LBFGS(Optimizer):
    """The limited-memory method of Broyden, Fletcher, Goldfarb and Shanno. `step` takes a closure that clears the gradients,
    computes the loss and the gradients, and returns the loss. It is called for every point that is tried. All parameters are in
    one group."""

    def __init__(self, params, lr=1, max_iter=20, max_eval=None, tolerance_grad=1e-7, tolerance_change=1e-9, history_size=100,
                 line_search_fn=None):
        if not 0.0 <= lr:
            raise ValueError(f"Invalid learning rate: {lr}")
        if line_search_fn not in (None, "strong_wolfe"):
            raise RuntimeError("only 'strong_wolfe' is supported")
        super().__init__(params, dict(
            lr=lr, max_iter=max_iter, max_eval=max_iter * 5 // 4 if max_eval is None else max_eval, tolerance_grad=tolerance_grad,
            tolerance_change=tolerance_change, history_size=history_size, line_search_fn=line_search_fn))

    def add_param_group(self, param_group):
        """Adds the parameters. Only one group is allowed."""
        if self.param_groups:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")
        super().add_param_group(param_group)

    def step(self, closure=None):
        """Takes up to `max_iter` steps, and returns the first loss. Blocks to read numbers from the device."""
        if closure is None:
            raise TypeError("LBFGS.step() needs a closure that computes the loss and its gradients and returns the loss")
        former = _core._set_grad_enabled(False)
        try:
            return self._walk(lambda: self._evaluated(closure))
        finally:
            _core._set_grad_enabled(former)

    def _evaluated(self, closure):
        _core._set_grad_enabled(True)
        try:
            return closure()
        finally:
            _core._set_grad_enabled(False)

    def _walk(self, closure):
        group = self.param_groups[0]
        state = self.state[group["params"][0]]
        first = closure()
        loss, gradient, evaluations = _number(first), self._gradient(), 1
        state.setdefault("n_iter", 0)
        state["func_evals"] = state.get("func_evals", 0) + 1
        if _greatest(gradient) <= group["tolerance_grad"]:
            return first
        for iteration in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            is_first = state["n_iter"] == 1
            direction = state["d"] = self._direction(state, gradient)
            length = float(group["lr"]) * (1.0 / max(1.0, gradient.abs().sum().item()) if is_first else 1.0)
            slope = gradient.dot(direction).item()
            state.update(t=length, prev_flat_grad=gradient, prev_loss=loss)
            if slope > -group["tolerance_change"]:
                break
            tried = 0
            if group["line_search_fn"]:
                found, tried = self._searched(closure, direction, _Point(0.0, loss, gradient, slope), length, group["max_eval"] - evaluations)
                length, loss, gradient, _ = found
                state["t"] = length
                self._move(direction, length)
            else:
                self._move(direction, length)
                # The result of the last step is evaluated by the next call.
                if iteration < group["max_iter"]:
                    loss, gradient, tried = _number(closure()), self._gradient(), 1
            evaluations += tried
            state["func_evals"] += tried
            if (evaluations >= group["max_eval"] or _greatest(gradient) <= group["tolerance_grad"]
                    or _greatest(direction) * abs(length) <= group["tolerance_change"]
                    or abs(loss - state["prev_loss"]) < group["tolerance_change"]):
                break
        return first

    def _searched(self, closure, direction, start, length, budget):
        """Returns a point along a direction, without changing the parameters."""
        # Subtracting what was added does not restore the values exactly, so they are copied.
        places = [parameter.detach().clone() for parameter in self._parameters()]

        def evaluate(length):
            self._move(direction, length)
            try:
                loss, gradient = _number(closure()), self._gradient()
            finally:
                for parameter, place in zip(self._parameters(), places):
                    parameter.copy_(place)
            return _Point(length, loss, gradient, gradient.dot(direction).item())
        return _strong_wolfe(start, length, _greatest(direction), budget, evaluate)

    def _direction(self, state, gradient):
        """Returns the direction for a gradient from the remembered steps, after adding the last one to them."""
        if "d" not in state:
            state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1.0)
            return -gradient
        changes, steps, inverses = state["old_dirs"], state["old_stps"], state["ro"]
        change, step = gradient - state["prev_flat_grad"], state["d"] * state["t"]
        product = change.dot(step).item()
        if product > 1e-10:
            if len(changes) == self.param_groups[0]["history_size"]:
                del changes[0], steps[0], inverses[0]
            changes.append(change)
            steps.append(step)
            inverses.append(1.0 / product)
            state["H_diag"] = product / change.dot(change).item()
        direction, parts = -gradient, []
        for change, step, inverse in zip(reversed(changes), reversed(steps), reversed(inverses)):
            parts.append(step.dot(direction).item() * inverse)
            direction = direction - parts[-1] * change
        direction = direction * state["H_diag"]
        for change, step, inverse, part in zip(changes, steps, inverses, reversed(parts)):
            direction = direction + (part - change.dot(direction).item() * inverse) * step
        return direction

    def _gradient(self):
        """Returns the gradients concatenated, with zeros for missing ones."""
        return _core.cat([
            _flat(_core.zeros_like(parameter.detach()) if parameter.grad is None else _dense(parameter.grad).to(parameter.dtype))
            for parameter in self._parameters()])

    def _move(self, direction, length):
        start = 0
        for parameter in self._parameters():
            place = _core.view_as_real(parameter) if parameter.is_complex() else parameter
            count = place.numel()
            place.add_(direction[start:start + count].view(place.shape), alpha=length)
            start += count


def _dense(gradient):
    """Returns a gradient with all its elements, outside the graph."""
    return gradient.to_dense().detach() if _external.may_exist and _external.is_sparse(gradient) else gradient.detach()


def _flat(tensor):
    """Returns the elements as a vector, with both parts of complex numbers."""
    return (_core.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)


def _number(loss):
    """Returns a loss as a number, without the warning that it requires a gradient."""
    return float(loss.detach() if isinstance(loss, _core.Tensor) else loss)


def _greatest(vector):
    """Returns the greatest magnitude of a vector's elements."""
    return vector.abs().max().item() if vector.numel() else 0.0
