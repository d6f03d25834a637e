"""`Optimizer`: the base of rules of one's own, and of the fused optimizers, which step all parameters of a group in one kernel."""

import collections
import functools
import inspect
import warnings

from .. import _core
from ..utils.hooks import RemovableHandle, in_order

_RULES = _core._optimizers()
_PAIRS = ("betas", "etas", "step_sizes")
_IGNORED = {"foreach": None, "fused": None, "capturable": False, "differentiable": False}


def _defaults(rule):
    """Returns the options of a rule with their defaults, as PyTorch's groups have them."""
    options, known = {}, _RULES[rule]
    for name, value in known.items():
        pair, _, part = name.partition(".")
        if part:
            options.setdefault(pair, [0.0, 0.0])[int(part)] = value
        else:
            options[name] = value
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


def _numbers(rule, group, former=None):
    """Returns the options of a group as numbers by their names in the table of optimizers. A learning rate that is a tensor is read once: its
    number among the former ones stays."""
    numbers = {}
    if former is not None and isinstance(group["lr"], _core.Tensor):
        group = {**group, "lr": former["lr"]}
    for name in _RULES[rule]:
        pair, _, part = name.partition(".")
        value = group[pair][int(part)] if part else group[pair]
        numbers[name] = float(value.item() if isinstance(value, _core.Tensor) else value)
    return numbers


def _hooked(step):
    """Returns a rule's `step` with the hooks of the optimizer around it."""
    @functools.wraps(step)
    def hooked(self, *args, **kwargs):
        return self._around(functools.partial(step, self), args, kwargs)
    return hooked


class Optimizer:
    """Steps parameters by their gradients. A subclass has a `step` of its own, which keeps its states in `state[parameter]`; those of
    `thalweg.optim` name a rule that is fused."""

    _rule = ""
    _flags = ("maximize", "nesterov", "amsgrad", "centered", "decoupled_weight_decay")

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "step" in vars(cls):
            cls.step = _hooked(vars(cls)["step"])

    def __init__(self, params, defaults):
        self.defaults = dict(defaults)
        self._step_pre_hooks, self._step_post_hooks = {}, {}
        self.param_groups = []
        self.state = collections.defaultdict(dict)
        self._fused = None
        self._rates = None
        self._options = None
        self._captured_rates = None
        self._loaded = None
        if isinstance(params, _core.Tensor):
            raise TypeError(f"params argument given to the optimizer should be an iterable of Tensors or dicts, but got {type(params)}")
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        for group in groups if isinstance(groups[0], dict) else [{"params": groups}]:
            self.add_param_group(group)

    def add_param_group(self, param_group):
        """Adds parameters with options of their own."""
        group = {**self.defaults, **param_group}
        params = group["params"]
        group["params"] = [params] if isinstance(params, _core.Tensor) else [
            entry[1] if isinstance(entry, tuple) else entry for entry in params]
        unknown = [name for name in group if name not in self.defaults and name not in ("params", "initial_lr", "name", "param_names")]
        if unknown and self._rule:
            raise TypeError(f"{type(self).__name__} has no option {unknown[0]!r}")
        for name, default in _IGNORED.items() if self._rule else ():
            group.setdefault(name, default)
        known = {id(parameter) for other in self.param_groups for parameter in other["params"]}
        for parameter in group["params"]:
            if not isinstance(parameter, _core.Tensor):
                raise TypeError(f"optimizer can only optimize Tensors, but one of the params is {type(parameter).__name__}")
            if not parameter.is_leaf:
                raise ValueError("can't optimize a non-leaf Tensor")
            if id(parameter) in known:
                raise ValueError("some parameters appear in more than one parameter group")
            known.add(id(parameter))
        if self._rule:
            _core_check(self._rule, group)
        if self._fused is not None:
            self._loaded = self._saved()
            self._fused = None
        self.param_groups.append(group)

    def _parameters(self):
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _made(self):
        """Returns the fused optimizer over the parameters as they are now: it is made at the first step, when they have moved where
        they stay."""
        formers = self._options if self._options and len(self._options) == len(self.param_groups) else [None] * len(self.param_groups)
        options = [_numbers(self._rule, group, former) for group, former in zip(self.param_groups, formers)]
        if self._fused is not None and not self._fused.steps(self._parameters()):
            self._loaded = self._saved()
            self._fused = None
        if self._fused is None:
            self._fused = _core._FusedOptimizer(
                self._rule, [(group["params"], numbers) for group, numbers in zip(self.param_groups, options)])
            if self._loaded is not None:
                self._load(self._loaded, options)
                self._loaded = None
            self._options = options
        elif options != self._options:
            def others(numbers):
                return {name: value for name, value in numbers.items() if name != "lr"}
            if [others(numbers) for numbers in options] != [others(numbers) for numbers in self._options]:
                self._load(self._saved(), options)
            else:
                self._fused.set_learning_rates([numbers["lr"] for numbers in options])
            self._options = options
        return self._fused

    def _follow_rates(self):
        """Takes the learning rates that are tensors as they are now; the host reads nothing."""
        for place, group in enumerate(self.param_groups):
            if isinstance(group["lr"], _core.Tensor):
                self._fused.follow_learning_rate(place, group["lr"])

    def _before_replay(self):
        """Brings the learning rates on the device up to date, before a graph is replayed in which a step was captured."""
        if self._fused is not None:
            rates = [former["lr"] if isinstance(group["lr"], _core.Tensor) else float(group["lr"])
                     for former, group in zip(self._options, self.param_groups)]
            if rates != [former["lr"] for former in self._options]:
                self._fused.set_learning_rates(rates)
                self._options = [{**former, "lr": rate} for former, rate in zip(self._options, rates)]
            self._follow_rates()
            return
        for place, (captured, group) in enumerate(zip(self._captured_rates or (), self.param_groups)):
            if isinstance(captured, _core.Tensor):
                if isinstance(group["lr"], _core.Tensor) and not captured._is_same(group["lr"]):
                    captured.copy_(group["lr"])
            elif captured != group["lr"]:
                self._captured_rates[place] = group["lr"]
                warnings.warn(f"a step of {type(self).__name__} was captured with another learning rate than it has now, and replays "
                              "keep the former: give the rate as a tensor", stacklevel=3)

    def _saved(self):
        return self._fused.state()[0]

    def _load(self, states, options):
        parameters = self._parameters()
        moved = {
            number: {name: _core.tensor(value, device=parameters[number].device) if not isinstance(value, _core.Tensor)
                     else value.to(parameters[number].device) for name, value in own.items()}
            for number, own in states.items() if number < len(parameters)
        }
        places, start = [], 0
        for group, numbers in zip(self.param_groups, options):
            count = len(group["params"])
            places.append((numbers, list(range(start, start + count))))
            start += count
        self._fused.load(moved, places)

    def register_step_pre_hook(self, hook):
        """Has a function called in front of each step, with the optimizer and the step's arguments, of which it may return others."""
        handle = RemovableHandle(self._step_pre_hooks)
        self._step_pre_hooks[handle.id] = hook
        return handle

    def register_step_post_hook(self, hook):
        """Has a function called behind each step, with the optimizer and the step's arguments."""
        handle = RemovableHandle(self._step_post_hooks)
        self._step_post_hooks[handle.id] = hook
        return handle

    def _around(self, step, args, kwargs):
        """Calls a step with the hooks around it."""
        for _, hook in in_order(self._step_pre_hooks):
            changed = hook(self, args, kwargs)
            if changed is None:
                continue
            if not (isinstance(changed, tuple) and len(changed) == 2):
                raise RuntimeError(f"{hook} must return None or a tuple of (new_args, new_kwargs), but got {changed}.")
            args, kwargs = changed
        result = step(*args, **kwargs)
        for _, hook in in_order(self._step_post_hooks):
            hook(self, args, kwargs)
        return result

    @_hooked
    def step(self, closure=None):
        """Updates every parameter that has a gradient. Asynchronous."""
        if not self._rule:
            raise NotImplementedError(f"{type(self).__name__} has no `step`: a subclass of Optimizer says how parameters are updated")
        loss = evaluated(closure)
        self._step(None)
        return loss

    def _step(self, scaler, is_unscaled=False):
        fused = self._made()
        if not _core._cuda._step_is_captured(self):
            self._follow_rates()
        fused.step(scaler, is_unscaled)

    def _unscale(self, scaler):
        self._made().unscale(scaler)

    def zero_grad(self, set_to_none=True):
        """Removes the gradients, or sets them to 0."""
        for parameter in self._parameters():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.detach().zero_()

    def state_dict(self):
        """Returns states and options in PyTorch's form; the tensors are those that later steps change."""
        if not self._rule:
            places = {id(parameter): place for place, parameter in enumerate(self._parameters())}
            states = {places.get(id(key), key): value for key, value in self.state.items()}
        elif self._fused is not None:
            states = self._saved()
        else:
            states = self._loaded or {}
        groups, start = [], 0
        for group in self.param_groups:
            count = len(group["params"])
            groups.append({**{name: value for name, value in group.items() if name != "params"},
                           "params": list(range(start, start + count))})
            start += count
        return {"state": dict(states), "param_groups": groups}

    def load_state_dict(self, state_dict):
        """Overwrites states and options with saved ones."""
        groups = state_dict["param_groups"]
        if [len(group["params"]) for group in groups] != [len(group["params"]) for group in self.param_groups]:
            raise ValueError("loaded state dict contains a parameter group that doesn't match the size of optimizer's group")
        order = [number for group in groups for number in group["params"]]
        for own, saved in zip(self.param_groups, groups):
            own.update({name: value for name, value in saved.items()
                        if name != "params" and (name in own or name == "initial_lr" or not self._rule)})
        states = {place: state_dict["state"][number] for place, number in enumerate(order) if number in state_dict["state"]}
        if not self._rule:
            parameters = self._parameters()
            self.state = collections.defaultdict(dict)
            for place, own in states.items():
                self.state[parameters[place]] = {name: _moved(name, value, parameters[place]) for name, value in own.items()}
            return
        self._loaded = states
        self._fused = None

    def __repr__(self):
        text = type(self).__name__ + " (\n"
        for number, group in enumerate(self.param_groups):
            text += f"Parameter Group {number}\n"
            text += "".join(f"    {name}: {group[name]}\n" for name in sorted(group) if name != "params")
        return text + ")"


def evaluated(closure):
    """Returns the loss of a step's closure, computed with gradients; None where there is no closure."""
    if closure is None:
        return None
    former = _core._set_grad_enabled(True)
    try:
        return closure()
    finally:
        _core._set_grad_enabled(former)


def refuse_below(least, **options):
    """Refuses options that are below a bound, as constructors of PyTorch do."""
    for name, value in options.items():
        if not least <= value:
            raise ValueError(f"{name} should be >= {least:g} but is: {value}")


def _moved(name, value, parameter):
    """Returns a copy of a saved state where its parameter is; of the parameter's dtype, unless it counts steps."""
    if isinstance(value, list):
        return [_moved(name, element, parameter) for element in value]
    if not isinstance(value, _core.Tensor):
        return value
    dtype = parameter.dtype if name != "step" and parameter.is_floating_point() else value.dtype
    return value.detach().to(device=parameter.device, dtype=dtype).clone()


def _core_check(rule, group):
    """Refuses options that the rule cannot have, as its constructor in PyTorch does."""
    numbers = _numbers(rule, group)
    if numbers["lr"] < 0.0:
        raise ValueError(f"Invalid learning rate: {group['lr']}")
    for place, beta in enumerate(group.get("betas", ())):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {place}: {beta}")
    for name in ("eps", "weight_decay", "momentum"):
        if numbers.get(name, 0.0) < 0.0:
            raise ValueError(f"Invalid {name} value: {group[name]}")


def _signature(order, defaults):
    """Returns the signature of a rule's constructor, for `help`, editors and stubs."""
    kinds = inspect.Parameter
    places = [kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in ("self", "params")]
    places += [kinds(name, kinds.POSITIONAL_OR_KEYWORD, default=defaults[name]) for name in order]
    rest = {**{name: value for name, value in defaults.items() if name not in order}, **_IGNORED}
    return inspect.Signature(places + [kinds(name, kinds.KEYWORD_ONLY, default=value) for name, value in rest.items()])


def _optimizer(rule, order, overrides=None):
    """Makes the class of a rule; `order` are the options that may be passed by their places."""
    overrides = overrides or {}
    defaults = {**_defaults(rule), **overrides}
    flags = [name for name in Optimizer._flags if name in defaults]
    for name in flags:
        defaults[name] = bool(defaults[name])

    def __init__(self, params, *args, **kwargs):
        options = dict(defaults)
        if len(args) > len(order):
            raise TypeError(f"{rule}() takes {len(order)} options by their places")
        options.update(zip(order, args))
        for name, value in kwargs.items():
            if name in _IGNORED:
                if name == "differentiable" and value:
                    raise NotImplementedError(f"{rule}(differentiable=True) is left out: steps record nothing")
            elif name in defaults:
                options[name] = value
            else:
                raise TypeError(f"{rule}.__init__() got an unexpected keyword argument {name!r}")
        Optimizer.__init__(self, params, options)
    __init__.__signature__ = _signature(order, defaults)
    return type(rule, (Optimizer,), {
        "_rule": rule, "__init__": __init__, "__module__": "thalweg.optim", "__qualname__": rule,
        "__doc__": f"{rule}, fused: options {', '.join(f'{name}={value}' for name, value in defaults.items())}.",
    })


_DECAY = ("lr", "betas", "eps", "weight_decay")
SGD = _optimizer("SGD", ("lr", "momentum", "dampening", "weight_decay", "nesterov"))
Adam = _optimizer("Adam", (*_DECAY, "amsgrad"))
AdamW = _optimizer("AdamW", (*_DECAY, "amsgrad"))
Adamax = _optimizer("Adamax", _DECAY)
NAdam = _optimizer("NAdam", (*_DECAY, "momentum_decay"))
RAdam = _optimizer("RAdam", _DECAY)
Adadelta = _optimizer("Adadelta", ("lr", "rho", "eps", "weight_decay"))
Adagrad = _optimizer("Adagrad", ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"))
ASGD = _optimizer("ASGD", ("lr", "lambd", "alpha", "t0", "weight_decay"))
RMSprop = _optimizer("RMSprop", ("lr", "alpha", "eps", "weight_decay", "momentum", "centered"))
Rprop = _optimizer("Rprop", ("lr", "etas", "step_sizes"))
Lion = _optimizer("Lion", ("lr", "betas", "weight_decay"))
