"""The class of all fused optimizers: one kernel steps all parameters of a group, and the states are on the device."""

import math

from .. import _core, _external
from ..nn import _parameters
from . import _composing, _sparse
from .optimizer import Optimizer, check_rate, evaluated, recording

_RULES = _core._optimizers()
# Options that choose between PyTorch's implementations of a step. There is only one here, and it can be captured.
_WAYS = ("foreach", "fused", "capturable", "differentiable")
# Options that decide which states and kernels are used.
_FLAGS = ("maximize", "nesterov", "amsgrad", "centered", "decoupled_weight_decay")


def _numbers(rule, group, former=None):
    """Returns the options of a group as numbers, by their names in the optimizer table. A learning rate that is a tensor is read
    once: its number from `former` is kept, and steps follow the tensor."""
    numbers = {}
    if former is not None and isinstance(group["lr"], _core.Tensor):
        group = {**group, "lr": former["lr"]}
    for name in _RULES[rule]:
        pair, _, part = name.partition(".")
        value = group[pair][int(part)] if part else group[pair]
        numbers[name] = float(value.item() if isinstance(value, _core.Tensor) else value)
    return numbers


def _kind(numbers):
    """Returns the options that decide which states and kernels are used: the flags, and whether there is momentum."""
    return [numbers.get(name) for name in _FLAGS] + [numbers.get("momentum", 0.0) != 0.0]


def _without_rate(numbers):
    return {name: value for name, value in numbers.items() if name != "lr"}


class Fused(Optimizer):
    """Steps by a rule of the optimizer table. The states are created at the first step, when the parameters are on their final
    device. From then on `state` has views of them, and if a program replaces one, the next step uses the replacement.

    Complex parameters are stepped as their real and imaginary parts. The same rule composed of operators handles the cases that
    the kernels do not support: steps that are recorded (`differentiable`), parameters with gaps in their memory, and options that
    a program has set outside of the range that constructors allow."""

    # States that the kernels have and PyTorch's optimizer does not.
    _hidden = ()
    # The rule made of operators: a function of the options of a group, a parameter, its gradient, the number of the step and the states, all as
    # real tensors, that returns the parameter's next value and those of the states that it changes, and writes nothing.
    _formula = None
    # The states that the formula needs from the start: a name alone starts at 0; with `:option` it is there if the option is set, with
    # `=option` it starts at the option's value.
    _starts = ""
    # The step by a sparse gradient, of rules that have one: a function of the options of a group, a parameter, its gradient and the states.
    _sparse_step = None
    # The states of one number, beside the number of steps, with their initial values: None for the learning rate.
    _scalars = {}

    def __init__(self, params, defaults):
        self._fused = self._options = self._asks_operators = None
        self._check_options(defaults)
        # Parameters that have not had a gradient in any step, and the states that `state` has shown, by the identity of the
        # parameter.
        self._waiting, self._shown, self._reals = {}, {}, {}
        super().__init__(params, defaults)
        if defaults.get("fused"):
            if defaults.get("differentiable"):
                raise RuntimeError("`fused` does not support `differentiable`")
            if defaults.get("foreach"):
                raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
            self._step_supports_amp_scaling = True

    def _checked(self, given):
        group = super()._checked(given)
        self._check_options(group)
        return group

    def _check_options(self, group):
        """Refuses options that are invalid for the rule, as its constructor in PyTorch does."""
        check_rate(group["lr"])
        for place, beta in enumerate(group.get("betas", ())):
            if isinstance(beta, _core.Tensor) and beta.numel() != 1:
                raise ValueError(f"Tensor betas[{place}] must be 1-element")
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"Invalid beta parameter at index {place}: {beta}")
        for name, text in (("eps", "epsilon"), *((name, name) for name in (
                "weight_decay", "momentum", "momentum_decay", "lr_decay", "initial_accumulator_value"))):
            if not 0.0 <= group.get(name, 0.0):
                raise ValueError(f"Invalid {text} value: {group[name]}")
        if not 0.0 <= group.get("rho", 0.0) <= 1.0:
            raise ValueError(f"Invalid rho value: {group['rho']}")
        if group.get("nesterov") and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")

    def add_param_group(self, param_group):
        """Adds a group of parameters with its own options."""
        super().add_param_group(param_group)
        self._asks_operators = None
        self._give_up()
        self._waiting.update((id(parameter), parameter) for parameter in param_group["params"])

    def __setstate__(self, state):
        """Restores defaults, groups and states. Options that groups of older files lack get their defaults."""
        self._fused = self._options = self._asks_operators = None
        self._shown, self._reals = {}, {}
        super().__setstate__(state)
        for group in self.param_groups:
            for name, default in self.defaults.items():
                group.setdefault(name, default)
        self._wait()

    def _wait(self):
        self._waiting = {id(parameter): parameter for parameter in self._parameters() if not self._state.get(parameter)}

    # ---- States ---------------------------------------------------------------------------------------------------

    @property
    def state(self):
        """The states of each parameter by name."""
        if self._fused is not None:
            self._show()
        return self._state

    @state.setter
    def state(self, value):
        self._fused, self._shown, self._state = None, {}, value
        if "param_groups" in self.__dict__:
            self._wait()

    def _show(self):
        """Adds the states of parameters that have been stepped to `state`."""
        if all(id(parameter) in self._shown or id(parameter) in self._waiting for parameter in self._parameters()):
            return
        states, parameters = self._fused.state()[0], self._parameters()
        for number, parameter in enumerate(parameters):
            if id(parameter) in self._waiting or not states.get(number):
                continue
            if id(parameter) not in self._shown:
                # The number of steps is the first, as in PyTorch.
                shown = {name: _core.view_as_complex(tensor) if parameter.is_complex() and tensor.dim() else tensor
                         for name, tensor in sorted(states[number].items(), key=lambda state: state[0] != "step") if name not in self._hidden}
                if hasattr(parameter, "_divided"):
                    shown = {name: parameter._divided(tensor) if tensor.dim() else tensor for name, tensor in shown.items()}
                self._shown[id(parameter)], self._state[parameter] = shown, dict(shown)

    def _is_touched(self):
        """Returns whether a program has replaced states in `state`."""
        if not (self._state or self._shown):
            return False
        for parameter in self._parameters():
            own, shown = self._state.get(parameter), self._shown.get(id(parameter))
            if (shown is None and own) or (shown is not None and (
                    own is None or any(own.get(name) is not tensor for name, tensor in shown.items()))):
                return True
        return False

    def _give_up(self):
        """Drops the fused optimizer and leaves the states in `state`, from which the next step creates a new one."""
        if self._fused is not None:
            self._show()
            self._fused, self._shown = None, {}

    def _made(self):
        """Returns the fused optimizer over the current parameters, options and states."""
        is_known = self._options is not None and len(self._options) == len(self.param_groups)
        formers = self._options if is_known else [None] * len(self.param_groups)
        options = [_numbers(self._rule, group, former) for group, former in zip(self.param_groups, formers)]
        if self._fused is not None:
            is_same = (self._fused.steps([self._real(parameter) for parameter in self._parameters()])
                       and [_kind(one) for one in options] == [_kind(one) for one in self._options])
            if self._is_touched():
                self._give_up()
                self._wait()
            elif not is_same:
                self._give_up()
        if self._fused is None:
            self._fused = self._new(options)
            for parameter in self._parameters():
                self._state.pop(parameter, None)
        elif options != self._options:
            if [_without_rate(one) for one in options] == [_without_rate(one) for one in self._options]:
                self._fused.set_learning_rates([numbers["lr"] for numbers in options])
            else:
                self._fused.set_options(options)
        self._options = options
        return self._fused

    def _real(self, parameter):
        """Returns a parameter in the form that the kernels use, with its gradient."""
        if not parameter.is_complex():
            return parameter
        real = self._reals.get(id(parameter))
        if real is None or real.data_ptr() != parameter.data_ptr():
            real = self._reals[id(parameter)] = _core.view_as_real(parameter.detach())
        real.grad = None if parameter.grad is None else _core.view_as_real(parameter.grad.detach().resolve_conj())
        return real

    def _composes(self):
        """Returns whether steps are composed of operators. If so, moves the states to `state`."""
        if self._asks_operators is None:
            self._asks_operators = any(group.get("differentiable") for group in self.param_groups) or any(
                _composing.has_gaps(parameter) for parameter in self._parameters()) or _composing.share_memory(self._parameters())
        composes = self._asks_operators or self._has_external_gradients() or any(not self._is_allowed(group) for group in self.param_groups)
        if composes:
            self._give_up()
        return composes

    def _has_external_gradients(self):
        """Returns whether a gradient is not made of elements, as sparse ones are."""
        return _external.may_exist and any(
            type(_external.own_gradient(parameter)) not in (_core.Tensor, type(None)) for parameter in self._parameters())

    def _is_allowed(self, group):
        """Returns whether the kernels accept the options of a group."""
        numbers = [group["lr"], *group.get("betas", ())]
        return all(isinstance(number, _core.Tensor) or 0 <= number < bound for number, bound in zip(numbers, (math.inf, 1, 1)))

    def _step_by_operators(self):
        if _core._cuda._step_is_captured(self):
            self._captured_rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            with recording(bool(group.get("differentiable"))):
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        gradient = parameter.grad if group.get("differentiable") else parameter.grad.detach()
                        step = _sparse.step if _external.may_exist and _external.is_sparse(gradient) else _composing.step
                        step(self, group, parameter, gradient, self._state[parameter])

    def _new(self, options):
        """Returns a new fused optimizer with the states of `state`."""
        unique = [list({id(parameter): parameter for parameter in group["params"]}.values()) for group in self.param_groups]
        made = _core._FusedOptimizer(self._rule, [([self._real(parameter) for parameter in group], one) for group, one in zip(unique, options)])
        parameters = [parameter for group in unique for parameter in group]
        states = {number: _tensors(self._state[parameter], parameter) for number, parameter in enumerate(parameters)
                  if self._state.get(parameter)}
        states = {number: own for number, own in states.items() if own}
        if states:
            counts = iter(range(len(parameters)))
            made.load(states, [(numbers, [next(counts) for _ in group]) for group, numbers in zip(unique, options)])
        return made

    # ---- Steps ----------------------------------------------------------------------------------------------------

    def step(self, closure=None):
        """Updates every parameter that has a gradient. Asynchronous."""
        loss = evaluated(closure)
        if self._composes():
            self._step_by_operators()
        else:
            self._step(None)
        return loss

    def _follow_rates(self):
        """Passes the current values of learning rates that are tensors to the kernels. The host does not read them."""
        for place, group in enumerate(self.param_groups):
            if isinstance(group["lr"], _core.Tensor):
                self._fused.follow_learning_rate(place, group["lr"])

    def _before_replay(self):
        """Updates the learning rates on the device before the replay of a graph in which a step was captured."""
        if self._fused is None:
            return super()._before_replay()
        rates = [former["lr"] if isinstance(group["lr"], _core.Tensor) else float(group["lr"])
                 for former, group in zip(self._options, self.param_groups)]
        if rates != [former["lr"] for former in self._options]:
            self._fused.set_learning_rates(rates)
            self._options = [{**former, "lr": rate} for former, rate in zip(self._options, rates)]
        self._follow_rates()

    def _step(self, scaler, is_unscaled=False):
        made = self._made()
        if not _core._cuda._step_is_captured(self):
            self._follow_rates()
        made.step(scaler, is_unscaled)
        if self._waiting:
            self._waiting = {key: parameter for key, parameter in self._waiting.items() if parameter.grad is None}

    def _unscale(self, scaler):
        self._made().unscale(scaler)


def _tensors(own, parameter):
    """Returns the states of a parameter as tensors on its device, of this rank's part for a divided one."""
    if hasattr(parameter, "_divided"):
        own = {name: value._local if hasattr(value, "_outer") else value for name, value in ((name, parameter._state(value)) for name, value in own.items())}
    return {name: _composing.real(value.detach().to(parameter.device)) if isinstance(value, _core.Tensor)
            else _core.tensor(float(value), device=parameter.device) for name, value in own.items() if isinstance(value, (_core.Tensor, int, float))}


def _begin(optimizer, given):
    params = given.pop("params")
    if isinstance(given.get("betas"), (list, tuple)):
        given["betas"] = tuple(given["betas"])
    Fused.__init__(optimizer, params, given)


_DEFAULTS = {"foreach": None, "fused": None, "capturable": False, "differentiable": False, "maximize": False}


def optimizer(rule, formula, starts, places, names, **attributes):
    """Makes the class of a rule of the optimizer table, from its formula and its initial states. `places` are the
    options that may be passed by position, `names` those that are passed by name. A class from which others derive has
    the prefix `Fused`."""
    name, rule = rule, rule.removeprefix("Fused")
    places, names = ({name: _DEFAULTS.get(name) for name in part.split()} if isinstance(part, str) else part for part in (places, names))
    # Programs read the names of the options from the constructor's code.
    by_place, by_name = ([f"{option}={default!r}" for option, default in part.items()] for part in (places, names))
    parameters = ", ".join(["params", *by_place, *(["*", *by_name] if by_name else ())])
    return type(name, (Fused,), {
        "_rule": rule, "_formula": staticmethod(formula), "_starts": starts, **attributes, "__module__": "thalweg.optim", "__qualname__": name,
        "__init__": _parameters.initializer(rule, parameters, _begin),
        "__doc__": f"{rule}, fused: options {', '.join(f'{name}={value}' for name, value in {**places, **names}.items())}.",
    })
