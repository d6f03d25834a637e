"""`Optimizer`: the base class of all optimizers, including user-defined ones (`torch.optim.Optimizer`)."""

import collections
import contextlib
import copy
import functools
import itertools
import typing
import warnings

from .. import _core, _external
from ..utils.hooks import RemovableHandle

ParamsT = params_t = _params_t = typing.Union[typing.Iterable[_core.Tensor], typing.Iterable[typing.Dict[str, typing.Any]]]

# The default of an option that every group must specify.
required = type("_Required", (), {"__repr__": lambda self: "<required parameter>"})()

_every_pre_hook, _every_post_hook = collections.OrderedDict(), collections.OrderedDict()
_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks",
          "_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks")


def register_optimizer_step_pre_hook(hook):
    """Registers a function that is called before each step of every optimizer."""
    return _registered(_every_pre_hook, hook)


def register_optimizer_step_post_hook(hook):
    """Registers a function that is called after each step of every optimizer."""
    return _registered(_every_post_hook, hook)


def _registered(hooks, hook, prepend=False):
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    if prepend:
        hooks.move_to_end(handle.id, last=False)
    return handle


def _hooked(step):
    """Returns the `step` of a class with the optimizer's hooks before and after it."""
    @functools.wraps(step)
    def hooked(self, *args, **kwargs):
        return self._around(functools.partial(step, self), args, kwargs)
    hooked.hooked = True
    return hooked


class Optimizer:
    """Steps parameters by their gradients. A subclass implements `step` and keeps its states in `state[parameter]`; the
    subclasses of `thalweg.optim` name a rule that is fused."""

    profile_hook_step = staticmethod(_hooked)

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        step = vars(cls).get("step")
        if step is not None and not hasattr(step, "hooked"):
            cls.step = _hooked(step)

    def __init__(self, params, defaults):
        self.defaults = defaults
        self._add_hooks()
        if isinstance(params, _core.Tensor):
            raise TypeError(f"params argument given to the optimizer should be an iterable of Tensors or dicts, but got {type(params)}")
        self.state = collections.defaultdict(dict)
        self.param_groups = []
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        for group in groups if isinstance(groups[0], dict) else [{"params": groups}]:
            self.add_param_group(group)

    def _add_hooks(self):
        for name in _HOOKS:
            self.__dict__.setdefault(name, collections.OrderedDict())

    @staticmethod
    def _group_tensors_by_device_and_dtype(tensorlistlist, with_indices=False):
        """Returns lists of tensors of one device and dtype each."""
        from ..utils._foreach_utils import _group_tensors_by_device_and_dtype
        return _group_tensors_by_device_and_dtype(tensorlistlist, with_indices)

    def __getstate__(self):
        return {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}

    def __setstate__(self, state):
        for name, value in state.items():
            setattr(self, name, value)
        self._add_hooks()
        self.defaults.setdefault("differentiable", False)

    # ---- Groups ---------------------------------------------------------------------------------------------------

    def add_param_group(self, param_group):
        """Adds a group of parameters with its own options."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        group = self._checked(param_group)
        self._check_group(group)
        param_group.update(group)
        self.param_groups.append(param_group)

    def _checked(self, given):
        """Returns a group in the form in which it is added: its parameters as a list, and all options."""
        params = given["params"]
        if isinstance(params, set):
            raise TypeError("optimizer parameters need to be organized in ordered collections, but the ordering of tensors in sets will "
                            "change between runs. Please use a list instead.")
        params = [params] if isinstance(params, _core.Tensor) else list(params)
        names = [entry[0] for entry in params if isinstance(entry, tuple)]
        if names and len(names) != len(params):
            raise ValueError("all optimizer params should be with/without names. Some param names are missing")
        params = [entry[1] if isinstance(entry, tuple) else entry for entry in params]
        for parameter in params:
            if not isinstance(parameter, _core.Tensor):
                raise TypeError(f"optimizer can only optimize Tensors, but one of the params is {type(parameter).__name__}")
            if not self.defaults.get("differentiable") and not (parameter.is_leaf or parameter.retains_grad):
                raise ValueError("can't optimize a non-leaf Tensor")
        group = {**self.defaults, **given, "params": params}
        if names:
            group["param_names"] = names
        for name, value in group.items():
            if value is required:
                raise ValueError(f"parameter group didn't specify a value of required optimization parameter {name}")
        return group

    def _check_group(self, group):
        """Refuses a group that does not match the existing ones."""
        if len(group["params"]) != len({id(parameter) for parameter in group["params"]}):
            warnings.warn("optimizer contains a parameter group with duplicate parameters; in future, this will cause an error", stacklevel=4)
        for other in self.param_groups:
            if ("param_names" in group) != ("param_names" in other):
                kind = "with names" if "param_names" in group else "without names"
                raise ValueError("all optimizer param groups should be with/without names. cannot add param group "
                                 f"{kind} to the optimizer")
        known = {id(parameter) for parameter in self._parameters()}
        if any(id(parameter) in known for parameter in group["params"]):
            raise ValueError("some parameters appear in more than one parameter group")

    def _parameters(self):
        return [parameter for group in self.param_groups for parameter in group["params"]]

    # The learning rates that a captured step reads.
    _captured_rates = None

    def _before_replay(self):
        """Updates the learning rates of a captured step before a graph is replayed: those that are tensors are copied."""
        for place, (captured, group) in enumerate(zip(self._captured_rates or (), self.param_groups)):
            if isinstance(captured, _core.Tensor):
                if isinstance(group["lr"], _core.Tensor) and not captured._is_same(group["lr"]):
                    captured.copy_(group["lr"])
            elif captured != group["lr"]:
                self._captured_rates[place] = group["lr"]
                warnings.warn(f"a step of {type(self).__name__} was captured with another learning rate than it has now, and replays "
                              "keep the former: give the rate as a tensor", stacklevel=3)

    # ---- Steps ----------------------------------------------------------------------------------------------------

    def _patch_step_function(self):
        """Does nothing: `step` of every class calls the hooks. Optimizers around another one call it in the place of `__init__`."""

    def register_step_pre_hook(self, hook):
        """Registers a function that is called before each step, with the optimizer and the step's arguments, and may return other
        arguments."""
        return _registered(self._optimizer_step_pre_hooks, hook)

    def register_step_post_hook(self, hook):
        """Registers a function that is called after each step, with the optimizer and the step's arguments."""
        return _registered(self._optimizer_step_post_hooks, hook)

    def _around(self, step, args, kwargs):
        """Calls a step with the hooks before and after it. A nested step, of a base class, runs without hooks."""
        own = self.__dict__
        if own.get("_is_stepping"):
            return step(*args, **kwargs)
        own["_is_stepping"] = True
        try:
            for hook in [*_every_pre_hook.values(), *own.get("_optimizer_step_pre_hooks", {}).values()]:
                changed = hook(self, (self, *args), kwargs)
                if changed is None:
                    continue
                if not (isinstance(changed, tuple) and len(changed) == 2):
                    raise RuntimeError(f"{hook} must return None or a tuple of (new_args, new_kwargs), but got {changed}.")
                args, kwargs = changed
                args = args[1:] if args and args[0] is self else args
            result = step(*args, **kwargs)
            own["_opt_called"] = True
            for hook in [*own.get("_optimizer_step_post_hooks", {}).values(), *_every_post_hook.values()]:
                hook(self, (self, *args), kwargs)
            return result
        finally:
            del own["_is_stepping"]

    @_hooked
    def step(self, closure=None):
        """Updates every parameter that has a gradient. Subclasses implement it."""
        raise NotImplementedError(f"{type(self).__name__} has no `step`: a subclass of Optimizer says how parameters are updated")

    def zero_grad(self, set_to_none=True):
        """Removes the gradients, or sets them to 0."""
        for parameter in self._parameters():
            gradient = None if set_to_none else parameter.grad
            if gradient is None:
                parameter.grad = None
            elif _external.may_exist and _external.is_sparse(gradient):
                gradient.zero_()
            else:
                gradient.detach().zero_()

    # ---- States ---------------------------------------------------------------------------------------------------

    def register_state_dict_pre_hook(self, hook, prepend=False):
        """Registers a function that is called before `state_dict`, with the optimizer."""
        return _registered(self._optimizer_state_dict_pre_hooks, hook, prepend)

    def register_state_dict_post_hook(self, hook, prepend=False):
        """Registers a function that is called after `state_dict`, with the optimizer and the dictionary, and may return a
        replacement."""
        return _registered(self._optimizer_state_dict_post_hooks, hook, prepend)

    def register_load_state_dict_pre_hook(self, hook, prepend=False):
        """Registers a function that is called before `load_state_dict`, with the optimizer and the dictionary, and may return a
        replacement."""
        return _registered(self._optimizer_load_state_dict_pre_hooks, hook, prepend)

    def register_load_state_dict_post_hook(self, hook, prepend=False):
        """Registers a function that is called after `load_state_dict`, with the optimizer."""
        return _registered(self._optimizer_load_state_dict_post_hooks, hook, prepend)

    def state_dict(self):
        """Returns states and options in PyTorch's format. The tensors are not copied: later steps change them."""
        for hook in list(self._optimizer_state_dict_pre_hooks.values()):
            hook(self)
        places = {}
        for parameter in self._parameters():
            places.setdefault(id(parameter), len(places))
        groups = [{**{name: value for name, value in group.items() if name != "params"},
                   "params": [places[id(parameter)] for parameter in group["params"]]} for group in self.param_groups]
        states = {places[id(key)] if isinstance(key, _core.Tensor) else key: value for key, value in self.state.items()}
        result = {"state": states, "param_groups": groups}
        for hook in list(self._optimizer_state_dict_post_hooks.values()):
            changed = hook(self, result)
            result = result if changed is None else changed
        return result

    def load_state_dict(self, state_dict):
        """Overwrites states and options with saved ones."""
        state_dict = dict(state_dict)
        for hook in list(self._optimizer_load_state_dict_pre_hooks.values()):
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        groups, saved = self.param_groups, copy.deepcopy(state_dict["param_groups"])
        if len(groups) != len(saved):
            raise ValueError("loaded state dict has a different number of parameter groups")
        if [len(group["params"]) for group in groups] != [len(group["params"]) for group in saved]:
            raise ValueError("loaded state dict contains a parameter group that doesn't match the size of optimizer's group")
        owners = dict(zip(itertools.chain.from_iterable(group["params"] for group in saved), self._parameters()))
        states = collections.defaultdict(dict)
        for key, own in state_dict["state"].items():
            if key in owners:
                states[owners[key]] = _moved(None, own, owners[key])
            else:
                states[key] = own
        for own, loaded in zip(groups, saved):
            loaded["params"] = own["params"]
            if "param_names" in own:
                loaded.setdefault("param_names", own["param_names"])
        self.__setstate__({"state": states, "param_groups": saved})
        for hook in list(self._optimizer_load_state_dict_post_hooks.values()):
            hook(self)

    def __repr__(self):
        text = type(self).__name__ + " ("
        for number, group in enumerate(self.param_groups):
            text += f"\nParameter Group {number}\n"
            text += "".join(f"    {name}: {group[name]}\n" for name in sorted(group) if name != "params")
        return text + ")"


def _moved(name, value, parameter):
    """Returns a saved state on its parameter's device, in the parameter's dtype unless it counts steps."""
    if isinstance(value, _core.Tensor):
        if name == "step":
            return value
        return value.to(device=parameter.device, dtype=parameter.dtype if parameter.is_floating_point() else value.dtype)
    if isinstance(value, dict):
        return {key: _moved(key, element, parameter) for key, element in value.items()}
    if isinstance(value, (list, tuple, set)):
        return type(value)(_moved(None, element, parameter) for element in value)
    return value


def evaluated(closure):
    """Returns the loss of a step's closure, computed with gradients, or None without a closure."""
    if closure is None:
        return None
    with recording(True):
        return closure()


@contextlib.contextmanager
def recording(mode):
    """Sets whether operators are recorded while a block runs."""
    former = _core._set_grad_enabled(mode)
    try:
        yield
    finally:
        _core._set_grad_enabled(former)


def refuse_below(least, **options):
    """Refuses options that are below a bound, as PyTorch's constructors do."""
    for name, value in options.items():
        if not least <= value:
            raise ValueError(f"{name} should be >= {least:g} but is: {value}")


def check_rate(rate, text="Invalid learning rate: {}"):
    """Refuses a negative learning rate, or a tensor with several elements."""
    if isinstance(rate, _core.Tensor) and rate.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    if not 0.0 <= rate:
        raise ValueError(text.format(rate))
