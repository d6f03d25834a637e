"""Schedules of learning rates (`torch.optim.lr_scheduler`)."""

import bisect
import math


class LRScheduler:
    """Sets the learning rate of each group by the number of steps."""

    def __init__(self, optimizer, last_epoch=-1):
        self.optimizer = optimizer
        self.last_epoch = last_epoch
        for group in optimizer.param_groups:
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise KeyError("param 'initial_lr' is not specified in param_groups when resuming an optimizer")
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.step()

    def _rates(self):
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_lr(self):
        """Returns the learning rate of each group at `last_epoch`; a subclass says how."""
        raise NotImplementedError

    def _closed_form(self):
        """Returns the rates at `last_epoch` from the first ones, where the schedule has such a formula."""
        return self.get_lr()

    def get_last_lr(self):
        """Returns the learning rates that were set last."""
        return self._last_lr

    def step(self, epoch=None):
        """Goes on by one step, or to a given one."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        # A step that is named takes the rate from the first one, any other from the last: so schedules can be chained.
        rates = self.get_lr() if epoch is None else self._closed_form()
        for group, rate in zip(self.optimizer.param_groups, rates):
            group["lr"] = rate
        self._last_lr = self._rates()

    def state_dict(self):
        """Returns all but the optimizer and functions."""
        return {name: value for name, value in self.__dict__.items() if name != "optimizer" and not callable(value)}

    def load_state_dict(self, state_dict):
        """Goes on from a saved state."""
        self.__dict__.update(state_dict)


class LambdaLR(LRScheduler):
    """The first rate times a function of the step."""

    def __init__(self, optimizer, lr_lambda, last_epoch=-1):
        count = len(optimizer.param_groups)
        self._functions = list(lr_lambda) if isinstance(lr_lambda, (list, tuple)) else [lr_lambda] * count
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        return [base * function(self.last_epoch) for base, function in zip(self.base_lrs, self._functions)]

    def state_dict(self):
        state = super().state_dict()
        state.pop("_functions", None)
        return state


class MultiplicativeLR(LambdaLR):
    """The last rate times a function of the step."""

    def get_lr(self):
        if self.last_epoch == 0:
            return self._rates()
        return [rate * function(self.last_epoch) for rate, function in zip(self._rates(), self._functions)]


class StepLR(LRScheduler):
    """The rate times gamma at every `step_size`-th step."""

    def __init__(self, optimizer, step_size, gamma=0.1, last_epoch=-1):
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        if self.last_epoch == 0 or self.last_epoch % self.step_size:
            return self._rates()
        return [rate * self.gamma for rate in self._rates()]


class MultiStepLR(LRScheduler):
    """The rate times gamma at each of some steps."""

    def __init__(self, optimizer, milestones, gamma=0.1, last_epoch=-1):
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        times = self.milestones.count(self.last_epoch)
        return [rate * self.gamma**times for rate in self._rates()]


class ExponentialLR(LRScheduler):
    """The rate times gamma at every step."""

    def __init__(self, optimizer, gamma, last_epoch=-1):
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        return self._rates() if self.last_epoch == 0 else [rate * self.gamma for rate in self._rates()]


class ConstantLR(LRScheduler):
    """The first rate times a factor until a step."""

    def __init__(self, optimizer, factor=1.0 / 3, total_iters=5, last_epoch=-1):
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        factor = {0: self.factor, self.total_iters: 1.0 / self.factor}.get(self.last_epoch, 1.0)
        return [rate * factor for rate in self._rates()]

    def _closed_form(self):
        factor = self.factor if self.last_epoch < self.total_iters else 1.0
        return [base * factor for base in self.base_lrs]


class LinearLR(LRScheduler):
    """The first rate times a factor that goes from one number to another."""

    def __init__(self, optimizer, start_factor=1.0 / 3, end_factor=1.0, total_iters=5, last_epoch=-1):
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        if self.last_epoch == 0:
            return [rate * self.start_factor for rate in self._rates()]
        if self.last_epoch > self.total_iters:
            return self._rates()
        slope = self.end_factor - self.start_factor
        factor = 1.0 + slope / (self.total_iters * self.start_factor + (self.last_epoch - 1) * slope)
        return [rate * factor for rate in self._rates()]

    def _closed_form(self):
        part = min(self.last_epoch, self.total_iters) / self.total_iters
        return [base * (self.start_factor + (self.end_factor - self.start_factor) * part) for base in self.base_lrs]


class PolynomialLR(LRScheduler):
    """The first rate times (1 − step / total) to a power."""

    def __init__(self, optimizer, total_iters=5, power=1.0, last_epoch=-1):
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        if self.last_epoch == 0 or self.last_epoch > self.total_iters:
            return self._rates()
        left, before = (1.0 - step / self.total_iters for step in (self.last_epoch, self.last_epoch - 1))
        return [rate * (left / before) ** self.power for rate in self._rates()]

    def _closed_form(self):
        left = 1.0 - min(self.last_epoch, self.total_iters) / self.total_iters
        return [base * left**self.power for base in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """A rate that falls along half a cosine."""

    def __init__(self, optimizer, T_max, eta_min=0.0, last_epoch=-1):
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        step, angle = self.last_epoch, math.pi / self.T_max
        if step == 0:
            return self._rates()
        if (step - 1 - self.T_max) % (2 * self.T_max) == 0:
            # The rate was the least one, of which no factor leads away.
            return [rate + (base - self.eta_min) * (1 - math.cos(angle)) / 2 for rate, base in zip(self._rates(), self.base_lrs)]
        factor = (1 + math.cos(angle * step)) / (1 + math.cos(angle * (step - 1)))
        return [factor * (rate - self.eta_min) + self.eta_min for rate in self._rates()]

    def _closed_form(self):
        part = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * part for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """A rate that falls along half a cosine, again and again."""

    def __init__(self, optimizer, T_0, T_mult=1, eta_min=0.0, last_epoch=-1):
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        step, length = self.last_epoch, self.T_0
        while step >= length:
            step, length = step - length, length * self.T_mult
        part = (1 + math.cos(math.pi * step / length)) / 2
        return [self.eta_min + (base - self.eta_min) * part for base in self.base_lrs]


class OneCycleLR(LRScheduler):
    """A rate that rises to a maximum and falls far below its start; the momentum the other way round."""

    def __init__(self, optimizer, max_lr, total_steps=None, epochs=None, steps_per_epoch=None, pct_start=0.3, anneal_strategy="cos",
                 cycle_momentum=True, base_momentum=0.85, max_momentum=0.95, div_factor=25.0, final_div_factor=1e4, three_phase=False, last_epoch=-1):
        if total_steps is None and (epochs is None or steps_per_epoch is None):
            raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        if not 0 <= pct_start <= 1 or not isinstance(pct_start, float):
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        self.total_steps = total_steps or epochs * steps_per_epoch
        self.anneal_strategy, self.cycle_momentum = anneal_strategy, cycle_momentum
        count = len(optimizer.param_groups)
        ends = [pct_start * self.total_steps - 1, self.total_steps - 1]
        if three_phase:
            ends.insert(1, 2 * pct_start * self.total_steps - 2)
        # The steps at which phases end; rates and momenta of each group where phases meet.
        self._ends = ends
        self._lrs = [[greatest / div_factor, greatest, *([greatest / div_factor] if three_phase else []), greatest / div_factor / final_div_factor]
                     for greatest in _for_each(max_lr, count)]
        self._momenta = [[top, base, *([top] if three_phase else []), top]
                         for base, top in zip(_for_each(base_momentum, count), _for_each(max_momentum, count))]
        if cycle_momentum:
            _check_momentum(optimizer)
        if last_epoch == -1:
            for group, rates in zip(optimizer.param_groups, self._lrs):
                group["lr"] = rates[0]
        super().__init__(optimizer, last_epoch)

    def _between(self, start, end, part):
        return start + (end - start) * part if self.anneal_strategy == "linear" else end + (start - end) / 2 * (1 + math.cos(math.pi * part))

    def get_lr(self):
        if self.last_epoch >= self.total_steps:
            raise ValueError(f"Tried to step {self.last_epoch + 1} times. The specified number of total steps is {self.total_steps}")
        phase = next((place for place, end in enumerate(self._ends) if self.last_epoch <= end), len(self._ends) - 1)
        start = self._ends[phase - 1] if phase else 0
        part = (self.last_epoch - start) / (self._ends[phase] - start)
        if self.cycle_momentum:
            for group, momenta in zip(self.optimizer.param_groups, self._momenta):
                _set_momentum(group, self._between(*momenta[phase:phase + 2], part))
        return [self._between(*rates[phase:phase + 2], part) for rates in self._lrs]


class SequentialLR(LRScheduler):
    """Schedules one after the other."""

    def __init__(self, optimizer, schedulers, milestones, last_epoch=-1):
        self.optimizer, self._schedulers, self._milestones = optimizer, schedulers, milestones
        self.last_epoch = last_epoch + 1
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        for scheduler in schedulers:
            scheduler.last_epoch -= 1
        schedulers[0].step()
        self._last_lr = schedulers[0].get_last_lr()

    def step(self):
        """Goes on by one step."""
        self.last_epoch += 1
        place = bisect.bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[place]
        if place > 0 and self._milestones[place - 1] == self.last_epoch:
            scheduler.step(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


class CyclicLR(LRScheduler):
    """Between two rates, up in `step_size_up` steps and down in `step_size_down`; the momentum the other way round."""

    def __init__(self, optimizer, base_lr, max_lr, step_size_up=2000, step_size_down=None, mode="triangular", gamma=1.0, scale_fn=None,
                 scale_mode="cycle", cycle_momentum=True, base_momentum=0.8, max_momentum=0.9, last_epoch=-1):
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError("mode is invalid and scale_fn is None")
        count = len(optimizer.param_groups)
        self.total_size = float(step_size_up + (step_size_up if step_size_down is None else step_size_down))
        self.step_ratio, self.mode, self.gamma = step_size_up / self.total_size, mode, gamma
        self._scale = scale_fn
        self.scale_mode = scale_mode if scale_fn else "iterations" if mode == "exp_range" else "cycle"
        self.max_lrs = _for_each(max_lr, count)
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            _check_momentum(optimizer)
            self.base_momentums, self.max_momentums = _for_each(base_momentum, count), _for_each(max_momentum, count)
        if last_epoch == -1:
            for group, rate in zip(optimizer.param_groups, _for_each(base_lr, count)):
                group["lr"] = rate
        super().__init__(optimizer, last_epoch)

    def _factor(self, place):
        if self._scale is not None:
            return self._scale(place)
        return {"triangular": 1.0, "triangular2": 0.5 ** (place - 1), "exp_range": self.gamma**place}[self.mode]

    def get_lr(self):
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        height = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        height *= self._factor(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            for group, base, top in zip(self.optimizer.param_groups, self.base_momentums, self.max_momentums):
                _set_momentum(group, top - (top - base) * height)
        return [base + (top - base) * height for base, top in zip(self.base_lrs, self.max_lrs)]


class ChainedScheduler(LRScheduler):
    """Several schedules, each applied to what the one before it set."""

    def __init__(self, schedulers, optimizer=None):
        schedulers = list(schedulers)
        if not schedulers:
            raise ValueError("ChainedScheduler expects at least one scheduler to be chained, but got no scheduler.")
        if any(one.optimizer is not schedulers[0].optimizer for one in schedulers):
            raise ValueError("ChainedScheduler expects all schedulers to belong to the same optimizer")
        self._schedulers, self.optimizer = schedulers, schedulers[0].optimizer
        self._last_lr = self._rates()

    def step(self, epoch=None):
        """Goes on by one step."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._rates()

    def state_dict(self):
        return {"_last_lr": self._last_lr, "_schedulers": [scheduler.state_dict() for scheduler in self._schedulers]}

    def load_state_dict(self, state_dict):
        self._last_lr = state_dict["_last_lr"]
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"]):
            scheduler.load_state_dict(state)


def _check_momentum(optimizer):
    if not ({"momentum", "betas"} & set(optimizer.defaults)):
        raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")


def _set_momentum(group, momentum):
    """Sets the momentum of a group, or its first beta."""
    if "betas" in group:
        group["betas"] = (momentum, *group["betas"][1:])
    else:
        group["momentum"] = momentum


def _for_each(value, count):
    """Returns a value for each group: a list as it is, a number for all."""
    if isinstance(value, (list, tuple)):
        if len(value) != count:
            raise ValueError(f"expected {count} values, one per parameter group, but got {len(value)}")
        return list(value)
    return [value] * count


class ReduceLROnPlateau:
    """A rate that is cut when a number stops to improve."""

    def __init__(self, optimizer, mode="min", factor=0.1, patience=10, threshold=1e-4, threshold_mode="rel", cooldown=0, min_lr=0.0,
                 eps=1e-8):
        if factor >= 1.0:
            raise ValueError("Factor should be < 1.0.")
        self.optimizer, self.mode, self.factor, self.patience = optimizer, mode, factor, patience
        self.threshold, self.threshold_mode, self.cooldown, self.min_lr, self.eps = threshold, threshold_mode, cooldown, min_lr, eps
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = 0
        self.last_epoch = 0
        self._last_lr = [group["lr"] for group in optimizer.param_groups]

    def _is_better(self, value):
        sign = -1 if self.mode == "min" else 1
        margin = self.threshold * abs(self.best) if self.threshold_mode == "rel" and math.isfinite(self.best) else self.threshold
        return sign * value > sign * self.best + (margin if math.isfinite(self.best) else 0)

    def step(self, metrics):
        """Takes note of a number, and cuts the rate where it has not improved for long."""
        value = float(metrics)
        self.last_epoch += 1
        if self._is_better(value):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group in self.optimizer.param_groups:
                rate = max(group["lr"] * self.factor, self.min_lr)
                if group["lr"] - rate > self.eps:
                    group["lr"] = rate
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def get_last_lr(self):
        """Returns the learning rates that were set last."""
        return self._last_lr
