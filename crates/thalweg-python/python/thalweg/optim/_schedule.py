"""The base class of learning rate schedules, and functions that read and write the rates of groups."""

import contextlib
import types
import warnings

from .. import _core
from .optimizer import Optimizer

EPOCH_DEPRECATION_WARNING = (
    "The epoch parameter in `scheduler.step()` is not needed and is deprecated: call `scheduler.step()` without it where you can. "
    "A schedule that has a formula of the epoch is evaluated by it, others go on from where they are.")


def _check_optimizer(optimizer):
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")


def _copied(value):
    return value.clone() if isinstance(value, _core.Tensor) else value


def _format_param(name, optimizer, param):
    """Returns one value per group: a list unchanged, or a number repeated."""
    count = len(optimizer.param_groups)
    if isinstance(param, (list, tuple)):
        if len(param) != count:
            raise ValueError(f"{name} must have the same length as optimizer.param_groups. {name} has {len(param)} values, "
                             f"param_groups has {count}.")
    else:
        param = [param] * count
    return [_copied(value) for value in param]


def _param_groups_val_list(optimizer, key):
    """Returns the values of an option by group. Tensors are copied."""
    return [_copied(group[key]) for group in optimizer.param_groups]


def _update_param_group_val(param_group, key, val):
    """Sets an option of a group. A tensor is kept and filled with the new value."""
    if isinstance(param_group[key], _core.Tensor):
        param_group[key].fill_(val.item() if isinstance(val, _core.Tensor) else val)
    else:
        param_group[key] = val


def _warn_get_lr_called_within_step(lr_scheduler):
    if not lr_scheduler._get_lr_called_within_step:
        warnings.warn("To get the last learning rate computed by the scheduler, please use `get_last_lr()`.", UserWarning, stacklevel=3)


@contextlib.contextmanager
def _marked(scheduler, name):
    """Sets a flag of a schedule while a block runs."""
    setattr(scheduler, name, True)
    try:
        yield scheduler
    finally:
        setattr(scheduler, name, False)


def _enable_get_lr_call(o):
    """Returns a region in which the schedule itself calls `get_lr`."""
    return _marked(o, "_get_lr_called_within_step")


def _saved_function(function):
    """Returns the saved form of a function: the attributes of a callable object, or None for a plain function."""
    return None if isinstance(function, types.FunctionType) else dict(function.__dict__)


# The page on which PyTorch explains the order of steps.
_SEE = " See more details at https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate"


class LRScheduler:
    """Sets the learning rate of each group by the number of steps."""

    _get_lr_called_within_step = False
    _is_initial = False

    def __init__(self, optimizer, last_epoch=-1):
        _check_optimizer(optimizer)
        self.optimizer = optimizer
        for place, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", _copied(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(f"param 'initial_lr' is not specified in param_groups[{place}] when resuming scheduler with last_epoch >= 0. "
                               "Load the optimizer's state before you make the scheduler, or start with last_epoch=-1")
        self.base_lrs = _param_groups_val_list(optimizer, "initial_lr")
        self.last_epoch = last_epoch
        optimizer._scheduled_step = vars(optimizer).get("step")
        self._initial_step()

    def _initial_step(self):
        """Sets the initial rates of the schedule."""
        self._step_count = 0
        with _marked(self, "_is_initial"):
            self.step()

    def state_dict(self):
        """Returns the state without the optimizer."""
        return {name: value for name, value in self.__dict__.items() if name != "optimizer"}

    def load_state_dict(self, state_dict):
        """Continues from a saved state."""
        self.__dict__.update(state_dict)

    def get_last_lr(self):
        """Returns the learning rates that were set last."""
        return self._last_lr

    def get_lr(self):
        """Returns the learning rate of each group at `last_epoch`. Subclasses implement it."""
        raise NotImplementedError

    def _rates(self):
        return _param_groups_val_list(self.optimizer, "lr")

    def step(self, epoch=None):
        """Advances by one step, or to a given one."""
        if self._step_count == 1:
            self._warn_of_order()
        self._step_count += 1
        if epoch is not None:
            warnings.warn(EPOCH_DEPRECATION_WARNING, UserWarning, stacklevel=2)
        self._update_lr(epoch)

    def _warn_of_order(self):
        if vars(self.optimizer).get("step") is not vars(self.optimizer).get("_scheduled_step"):
            warnings.warn("Seems like `optimizer.step()` has been overridden after learning rate scheduler initialization. Please, make sure to "
                          "call `optimizer.step()` before `lr_scheduler.step()`." + _SEE, UserWarning, stacklevel=3)
        elif not getattr(self.optimizer, "_opt_called", False):
            warnings.warn("Detected call of `lr_scheduler.step()` before `optimizer.step()`. Call them in the opposite order: `optimizer.step()` "
                          "before `lr_scheduler.step()`. Failure to do this skips the first value of the learning rate schedule." + _SEE,
                          UserWarning, stacklevel=3)

    def _update_lr(self, epoch=None):
        """Sets the rates of the next step from the previous ones, or those of a given step by the closed form of the schedule, if
        it has one."""
        former = self.last_epoch
        self.last_epoch = former + 1 if epoch is None else epoch
        try:
            with _enable_get_lr_call(self):
                formula = None if epoch is None else getattr(self, "_get_closed_form_lr", None)
                values = self.get_lr() if formula is None else formula()
        except BaseException:
            self.last_epoch = former
            raise
        self._set_rates(values)

    def _set_rates(self, values):
        if len(values) != len(self.optimizer.param_groups):
            raise ValueError(f"{type(self).__name__} gives {len(values)} learning rates for {len(self.optimizer.param_groups)} groups of parameters")
        for group, value in zip(self.optimizer.param_groups, values):
            _update_param_group_val(group, "lr", value)
        self._last_lr = self._rates()


class _LRScheduler(LRScheduler):
    """`LRScheduler` under its former name."""


class _OfFunctions(LRScheduler):
    """A schedule that calls a function of the step for each group."""

    def __init__(self, optimizer, lr_lambda, last_epoch=-1):
        _check_optimizer(optimizer)
        count = len(optimizer.param_groups)
        if not isinstance(lr_lambda, (list, tuple)):
            lr_lambda = [lr_lambda] * count
        elif len(lr_lambda) != count:
            raise ValueError(f"Expected {count} lr_lambdas, but got {len(lr_lambda)}")
        self._check_functions(lr_lambda)
        self.lr_lambdas = list(lr_lambda)
        super().__init__(optimizer, last_epoch)

    def _check_functions(self, functions):
        pass

    def state_dict(self):
        """Returns the state without the optimizer. Of functions, only the attributes of callable objects are included."""
        return {**super().state_dict(), "lr_lambdas": [_saved_function(function) for function in self.lr_lambdas]}

    def load_state_dict(self, state_dict):
        """Continues from a saved state. The functions are kept, with the saved attributes."""
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "lr_lambdas"})
        for function, saved in zip(self.lr_lambdas, state_dict["lr_lambdas"]):
            if saved is not None:
                function.__dict__.update(saved)


class _OfSchedules(LRScheduler):
    """A schedule that is composed of others. Its state contains theirs."""

    def _check_schedulers(self, optimizer, schedulers):
        name = type(self).__name__
        for place, one in enumerate(schedulers):
            if not hasattr(one, "optimizer"):
                raise TypeError(f"{name} at index {place} should have `optimizer` as its attribute.")
            if getattr(one, "_needs_metrics", False):
                raise ValueError(f"{name} does not support `ReduceLROnPlateau` scheduler as it requires additional kwargs to be specified when "
                                 f"calling `step`, but got one at index {place} in the given schedulers sequence.")
            if optimizer is not one.optimizer:
                raise ValueError(f"{name} expects all schedulers to belong to the same optimizer, but got scheduler {type(one).__name__} at "
                                 f"index {place} has {one.optimizer}, which is different from {type(optimizer).__name__}.")

    def state_dict(self):
        """Returns the state without the optimizer, with the states of the schedules."""
        return {**super().state_dict(), "_schedulers": [scheduler.state_dict() for scheduler in self._schedulers]}

    def load_state_dict(self, state_dict):
        """Continues from a saved state, each schedule from its own."""
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "_schedulers"})
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"]):
            scheduler.load_state_dict(state)
