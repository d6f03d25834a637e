"""Schedules that also change the momentum: `OneCycleLR` and `CyclicLR`."""

import functools
import math

from ._schedule import (
    LRScheduler, _check_optimizer, _format_param, _saved_function, _update_param_group_val, _warn_get_lr_called_within_step)


class _WithMomentum(LRScheduler):
    """A schedule that moves the momentum, or the first beta, in the opposite direction to the rate."""

    def _start_momenta(self, optimizer, base_momentum, max_momentum, last_epoch):
        """Returns the least and the greatest momentum of each group. The groups start with the greatest."""
        if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
            raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")
        self.use_beta1 = "betas" in optimizer.defaults
        least, greatest = _format_param("base_momentum", optimizer, base_momentum), _format_param("max_momentum", optimizer, max_momentum)
        if last_epoch == -1:
            for low, high, group in zip(least, greatest, optimizer.param_groups):
                self._set_momentum(group, high)
                group["max_momentum"], group["base_momentum"] = high, low
        return least, greatest

    def _set_momentum(self, group, momentum):
        if self.use_beta1:
            group["betas"] = (momentum, *group["betas"][1:])
        else:
            group["momentum"] = momentum


def _check_positive(**numbers):
    for name, number in numbers.items():
        if not isinstance(number, int) or number <= 0:
            raise ValueError(f"Expected positive integer {name}, but got {number}")


class OneCycleLR(_WithMomentum):
    """A rate that rises to a maximum and then falls far below its start, with the momentum moving in the opposite direction."""

    def __init__(self, optimizer, max_lr, total_steps=None, epochs=None, steps_per_epoch=None, pct_start=0.3, anneal_strategy="cos",
                 cycle_momentum=True, base_momentum=0.85, max_momentum=0.95, div_factor=25.0, final_div_factor=1e4, three_phase=False, last_epoch=-1):
        _check_optimizer(optimizer)
        if total_steps is not None:
            _check_positive(total_steps=total_steps)
        elif epochs is None or steps_per_epoch is None:
            raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
        else:
            _check_positive(epochs=epochs, steps_per_epoch=steps_per_epoch)
            total_steps = epochs * steps_per_epoch
        if not isinstance(pct_start, float) or not 0 <= pct_start <= 1:
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        max_lrs = _format_param("max_lr", optimizer, max_lr)
        self.optimizer, self.total_steps = optimizer, total_steps
        self._anneal_func_type, self.cycle_momentum = anneal_strategy, cycle_momentum
        self._schedule_phases = _phases(total_steps, pct_start, three_phase)
        if cycle_momentum:
            self._start_momenta(optimizer, base_momentum, max_momentum, last_epoch)
        if last_epoch == -1:
            for group, greatest in zip(optimizer.param_groups, max_lrs):
                group["initial_lr"] = greatest / div_factor
                group["max_lr"], group["min_lr"] = greatest, group["initial_lr"] / final_div_factor
        super().__init__(optimizer, last_epoch)

    def _anneal_func(self, start, end, part):
        if self._anneal_func_type == "linear":
            return (end - start) * part + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * part) + 1)

    def get_lr(self):
        """Returns the rates at `last_epoch`, and sets the momenta."""
        _warn_get_lr_called_within_step(self)
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(f"Tried to step {step} times. The specified number of total steps is {self.total_steps}")
        place = next((place for place, phase in enumerate(self._schedule_phases) if step <= phase["end_step"]), len(self._schedule_phases) - 1)
        phase, start = self._schedule_phases[place], self._schedule_phases[place - 1]["end_step"] if place else 0.0
        part = (step - start) / (phase["end_step"] - start)
        rates = []
        for group in self.optimizer.param_groups:
            rates.append(self._anneal_func(group[phase["start_lr"]], group[phase["end_lr"]], part))
            if self.cycle_momentum:
                self._set_momentum(group, self._anneal_func(group[phase["start_momentum"]], group[phase["end_momentum"]], part))
        return rates


def _phases(total_steps, pct_start, three_phase):
    """Returns the phases of a cycle: the end of each, and the options of groups that it starts from and leads to."""
    rates, momenta = ["initial_lr", "max_lr", "min_lr"], ["max_momentum", "base_momentum", "max_momentum"]
    ends = [float(pct_start * total_steps) - 1, total_steps - 1]
    if three_phase:
        rates.insert(2, "initial_lr")
        momenta.append("max_momentum")
        ends.insert(1, float(2 * pct_start * total_steps) - 2)
    return [{"end_step": end, "start_lr": rates[place], "end_lr": rates[place + 1], "start_momentum": momenta[place],
             "end_momentum": momenta[place + 1]} for place, end in enumerate(ends)]


class CyclicLR(_WithMomentum):
    """A rate between two bounds, up in `step_size_up` steps and down in `step_size_down`, with the momentum moving in the
    opposite direction."""

    def __init__(self, optimizer, base_lr, max_lr, step_size_up=2000, step_size_down=None, mode="triangular", gamma=1.0, scale_fn=None,
                 scale_mode="cycle", cycle_momentum=True, base_momentum=0.8, max_momentum=0.9, last_epoch=-1):
        _check_optimizer(optimizer)
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError("mode is invalid and scale_fn is None")
        base_lrs, self.max_lrs = _format_param("base_lr", optimizer, base_lr), _format_param("max_lr", optimizer, max_lr)
        self.optimizer = optimizer
        up = float(step_size_up)
        self.total_size = up + (up if step_size_down is None else float(step_size_down))
        self.step_ratio, self.mode, self.gamma = up / self.total_size, mode, gamma
        self._scale_fn_custom, self.scale_mode = scale_fn, scale_mode
        self._init_scale_fn()
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.base_momentums, self.max_momentums = self._start_momenta(optimizer, base_momentum, max_momentum, last_epoch)
        if last_epoch == -1:
            for group, rate in zip(optimizer.param_groups, base_lrs):
                _update_param_group_val(group, "lr", rate)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def _init_scale_fn(self):
        if self._scale_fn_custom is None:
            functions = {"triangular": _unscaled, "triangular2": _halved, "exp_range": functools.partial(_decayed, self.gamma)}
            self._scale_fn_ref = functions[self.mode]
            self.scale_mode = "iterations" if self.mode == "exp_range" else "cycle"

    def scale_fn(self, x):
        """Returns the scale factor of a cycle, or of a step."""
        return (self._scale_fn_ref if self._scale_fn_custom is None else self._scale_fn_custom)(x)

    def get_lr(self):
        """Returns the rates at `last_epoch`, and sets the momenta."""
        _warn_get_lr_called_within_step(self)
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        height = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        factor = self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            for group, low, high in zip(self.optimizer.param_groups, self.base_momentums, self.max_momentums):
                self._set_momentum(group, high - (high - low) * height * factor)
        return [low + (high - low) * height * factor for low, high in zip(self.base_lrs, self.max_lrs)]

    def state_dict(self):
        """Returns the state without the optimizer. Of a user-defined function, only the attributes of a callable object are
        included."""
        state = {name: value for name, value in super().state_dict().items() if name != "_scale_fn_ref"}
        own = self._scale_fn_custom
        return {**state, "_scale_fn_custom": None if own is None else _saved_function(own)}

    def load_state_dict(self, state_dict):
        """Continues from a saved state. A user-defined function is kept, with the saved attributes."""
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "_scale_fn_custom"})
        if state_dict["_scale_fn_custom"] is not None:
            self._scale_fn_custom.__dict__.update(state_dict["_scale_fn_custom"])
        self._init_scale_fn()


def _unscaled(x):
    return 1.0


def _halved(x):
    return 1 / 2.0 ** (x - 1)


def _decayed(gamma, x):
    return gamma**x
