"""`Module`: the base class of networks (`torch.nn.Module`)."""

import collections
import functools
import warnings

from .. import _core
from ..utils.hooks import BackwardHook, RemovableHandle, in_order
from .parameter import Buffer, Parameter

_IncompatibleKeys = collections.namedtuple("IncompatibleKeys", ["missing_keys", "unexpected_keys"])


def _registered(hooks, entry, prepend):
    """Adds a hook to those of a module, in front of them or behind."""
    handle = RemovableHandle(hooks, prepend=prepend)
    hooks[handle.id] = entry
    return handle


def _called_after_failure(module, hook, args, kwargs):
    """Calls a hook that is always called, whose own failure is a warning."""
    try:
        hook(module, args, None) if kwargs is None else hook(module, args, kwargs, None)
    except Exception as error:
        warnings.warn(f"module forward hook with `always_call=True` raised an exception that was silenced as another error was raised in "
                      f"forward: {error}")


class Module:
    """A part of a network: parameters, buffers and modules that became attributes, and a `forward`."""

    training = True
    _version = 1

    def __init__(self, *args, **kwargs):
        if type(self).__init__ is Module.__init__ and (args or kwargs):
            raise TypeError(f"{type(self).__name__}.__init__() takes no arguments")
        for name in ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            object.__setattr__(self, name, {})
        object.__setattr__(self, "_transient", set())
        object.__setattr__(self, "training", True)

    def forward(self, *args, **kwargs):
        """Computes the output; a subclass says how."""
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    def __call__(self, *args, **kwargs):
        if not (self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks):
            return self.forward(*args, **kwargs)
        return self._hooked(args, kwargs)

    def _hooked(self, args, kwargs):
        """Calls `forward` with the hooks around it."""
        called = set()
        try:
            for _, (hook, with_kwargs) in in_order(self._forward_pre_hooks):
                changed = hook(self, args, kwargs) if with_kwargs else hook(self, args)
                if changed is None:
                    continue
                if not with_kwargs:
                    args = changed if isinstance(changed, tuple) else (changed,)
                elif isinstance(changed, tuple) and len(changed) == 2:
                    args, kwargs = changed
                else:
                    raise RuntimeError(f"forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got {changed}.")
            backward = None
            if self._backward_hooks or self._backward_pre_hooks:
                backward = BackwardHook(self, *([hook for _, hook in in_order(hooks)] for hooks in (self._backward_hooks, self._backward_pre_hooks)))
                args = backward.setup_input_hook(args)
            result = self.forward(*args, **kwargs)
            for number, (hook, with_kwargs, _) in in_order(self._forward_hooks):
                called.add(number)
                changed = hook(self, args, kwargs, result) if with_kwargs else hook(self, args, result)
                result = result if changed is None else changed
            return result if backward is None else backward.setup_output_hook(result)
        except Exception:
            for number, (hook, with_kwargs, always) in in_order(self._forward_hooks):
                if always and number not in called:
                    _called_after_failure(self, hook, args, kwargs if with_kwargs else None)
            raise

    def __setstate__(self, state):
        """Takes what a file has of the module; of one that PyTorch wrote, all but its hooks."""
        Module.__init__(self)
        is_own = "_transient" in state
        own = {"_transient": set(state.get("_non_persistent_buffers_set", ())), **state}
        for name, value in own.items():
            if is_own or not name.startswith("_") or name in ("_parameters", "_buffers", "_modules", "_transient"):
                object.__setattr__(self, name, dict(value) if name in ("_parameters", "_buffers", "_modules") else value)

    # ---- Attributes -----------------------------------------------------------------------------------------------

    def __setattr__(self, name, value):
        own = self.__dict__
        if "_parameters" not in own:
            if isinstance(value, (Parameter, Module, Buffer)):
                raise AttributeError(f"cannot assign {type(value).__name__} before Module.__init__() call")
            return object.__setattr__(self, name, value)
        if isinstance(value, Parameter):
            self._forget(name)
            self._parameters[name] = value
        elif name in self._parameters and (value is None or not isinstance(value, Module)):
            if value is not None:
                raise TypeError(f"cannot assign '{type(value).__name__}' as parameter '{name}' (torch.nn.Parameter or None expected)")
            self._parameters[name] = None
        elif isinstance(value, Module):
            self._forget(name)
            self._modules[name] = value
        elif name in self._modules and value is None:
            self._modules[name] = None
        elif isinstance(value, Buffer):
            self.register_buffer(name, value, value.persistent)
        elif name in self._buffers:
            if value is not None and not isinstance(value, _core.Tensor):
                raise TypeError(f"cannot assign '{type(value).__name__}' object to buffer '{name}' (torch.Tensor or None expected)")
            self._buffers[name] = value
        else:
            object.__setattr__(self, name, value)

    def __getattr__(self, name):
        for kind in ("_parameters", "_buffers", "_modules"):
            members = self.__dict__.get(kind)
            if members is not None and name in members:
                return members[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __delattr__(self, name):
        for kind in (self._parameters, self._buffers, self._modules):
            if name in kind:
                del kind[name]
                return
        object.__delattr__(self, name)

    def __dir__(self):
        return sorted({*super().__dir__(), *self._parameters, *self._buffers, *self._modules})

    def _forget(self, name):
        self.__dict__.pop(name, None)
        for kind in (self._parameters, self._buffers, self._modules):
            kind.pop(name, None)
        self._transient.discard(name)

    def register_parameter(self, name, param):
        """Adds a parameter, or the place of one that is left out."""
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(f"cannot assign '{type(param).__name__}' object to parameter '{name}' (torch.nn.Parameter or None required)")
        self._forget(name)
        self._parameters[name] = param

    def register_buffer(self, name, tensor, persistent=True):
        """Adds a tensor that is not a parameter and moves with the module."""
        if tensor is not None and not isinstance(tensor, _core.Tensor):
            raise TypeError(f"cannot assign '{type(tensor).__name__}' object to buffer '{name}' (torch Tensor or None required)")
        self._forget(name)
        self._buffers[name] = tensor
        if not persistent:
            self._transient.add(name)

    def register_module(self, name, module):
        """Adds a module under a name."""
        self.add_module(name, module)

    def add_module(self, name, module):
        """Adds a module under a name."""
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        self._forget(name)
        self._modules[name] = module

    def register_forward_hook(self, hook, *, prepend=False, with_kwargs=False, always_call=False):
        """Adds a function `hook(module, args, output)` that is called behind `forward` and may give another output."""
        return _registered(self._forward_hooks, (hook, with_kwargs, always_call), prepend)

    def register_forward_pre_hook(self, hook, *, prepend=False, with_kwargs=False):
        """Adds a function `hook(module, args)` that is called in front of `forward` and may give other arguments."""
        return _registered(self._forward_pre_hooks, (hook, with_kwargs), prepend)

    def register_full_backward_hook(self, hook, prepend=False):
        """Adds a function `hook(module, grad_input, grad_output)` that backward passes call, and that may give other gradients of the
        inputs."""
        return _registered(self._backward_hooks, hook, prepend)

    def register_full_backward_pre_hook(self, hook, prepend=False):
        """Adds a function `hook(module, grad_output)` that backward passes call, and that may give other gradients of the outputs."""
        return _registered(self._backward_pre_hooks, hook, prepend)

    def register_backward_hook(self, hook):
        """Raises: these hooks are deprecated in PyTorch."""
        raise NotImplementedError("Module.register_backward_hook is left out: use register_full_backward_hook")

    # ---- Walks ----------------------------------------------------------------------------------------------------

    def children(self):
        """Yields the modules that are attributes of this one."""
        return (module for _, module in self.named_children())

    def named_children(self):
        """Yields the modules that are attributes of this one, with their names."""
        seen = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def modules(self):
        """Yields this module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def named_modules(self, memo=None, prefix="", remove_duplicate=True):
        """Yields this module and all below it with their names."""
        memo = set() if memo is None else memo
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            for name, module in self._modules.items():
                if module is not None:
                    yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def _named_members(self, members, prefix, recurse, remove_duplicate):
        seen = set()
        modules = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for path, module in modules:
            for name, tensor in members(module).items():
                if tensor is None or id(tensor) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(tensor))
                yield f"{path}.{name}" if path else name, tensor

    def parameters(self, recurse=True):
        """Yields the parameters, each once."""
        return (parameter for _, parameter in self.named_parameters(recurse=recurse))

    def named_parameters(self, prefix="", recurse=True, remove_duplicate=True):
        """Yields the parameters with their names."""
        return self._named_members(lambda module: module._parameters, prefix, recurse, remove_duplicate)

    def buffers(self, recurse=True):
        """Yields the buffers, each once."""
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    def named_buffers(self, prefix="", recurse=True, remove_duplicate=True):
        """Yields the buffers with their names."""
        return self._named_members(lambda module: module._buffers, prefix, recurse, remove_duplicate)

    def get_submodule(self, target):
        """Returns the module of a path of names."""
        return functools.reduce(getattr, target.split("."), self) if target else self

    def get_parameter(self, target):
        """Returns the parameter of a path of names."""
        path, _, name = target.rpartition(".")
        return self.get_submodule(path)._parameters[name]

    def get_buffer(self, target):
        """Returns the buffer of a path of names."""
        path, _, name = target.rpartition(".")
        return self.get_submodule(path)._buffers[name]

    def apply(self, fn):
        """Calls a function with every module below this one, and with this one last."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    # ---- Modes and places -----------------------------------------------------------------------------------------

    def train(self, mode=True):
        """Sets whether this module and all below it train."""
        for module in self.modules():
            object.__setattr__(module, "training", bool(mode))
        return self

    def eval(self):
        """Sets that this module and all below it do not train."""
        return self.train(False)

    def requires_grad_(self, requires_grad=True):
        """Sets whether gradients flow to the parameters."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none=True):
        """Removes the gradients of the parameters, or sets them to 0."""
        for parameter in self.parameters():
            if parameter.grad is not None:
                if set_to_none:
                    parameter.grad = None
                else:
                    parameter.grad.detach().zero_()

    def _apply(self, change):
        for module in self.modules():
            for parameter in module._parameters.values():
                if parameter is not None:
                    gradient = parameter.grad
                    parameter.data = change(parameter.data)
                    if gradient is not None:
                        parameter.grad = change(gradient.detach())
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = change(buffer)
        return self

    def to(self, *args, **kwargs):
        """Moves parameters and buffers to a device, and those of floats to a dtype, in place."""
        values = (*args, *kwargs.values())
        wanted = [value for value in values if isinstance(value, _core.dtype)]
        if any(not dtype.is_floating_point for dtype in wanted):
            raise TypeError(f"nn.Module.to only accepts floating point or complex dtypes, but got desired dtype={wanted[0]}")
        places = tuple(value for value in args if not isinstance(value, _core.dtype))
        names = {name: value for name, value in kwargs.items() if name != "dtype"}

        def change(tensor):
            if tensor.is_floating_point():
                return tensor.to(*args, **kwargs)
            return tensor.to(*places, **names) if places or names else tensor
        return self._apply(change)

    def cuda(self, device=None):
        """Moves parameters and buffers to a GPU, in place."""
        return self._apply(lambda tensor: tensor.cuda(device))

    def cpu(self):
        """Moves parameters and buffers to the simulated GPU, in place."""
        return self._apply(lambda tensor: tensor.cpu())

    def type(self, dst_type):
        """Converts parameters and buffers, in place."""
        return self._apply(lambda tensor: tensor.to(dst_type))

    def float(self):
        """Converts parameters and buffers of floats to float32, in place."""
        return self.to(_core.float32)

    def double(self):
        """Converts parameters and buffers of floats to float64, in place."""
        return self.to(_core.float64)

    def half(self):
        """Converts parameters and buffers of floats to float16, in place."""
        return self.to(_core.float16)

    def bfloat16(self):
        """Converts parameters and buffers of floats to bfloat16, in place."""
        return self.to(_core.bfloat16)

    # ---- States ---------------------------------------------------------------------------------------------------

    def state_dict(self, *args, destination=None, prefix="", keep_vars=False):
        """Returns parameters and persistent buffers by their names; they share memory with the module."""
        state = collections.OrderedDict() if destination is None else destination
        for name, parameter in self._parameters.items():
            if parameter is not None:
                state[prefix + name] = parameter if keep_vars else parameter.detach()
        for name, buffer in self._buffers.items():
            if buffer is not None and name not in self._transient:
                state[prefix + name] = buffer if keep_vars else buffer.detach()
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination=state, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        return state

    def load_state_dict(self, state_dict, strict=True, assign=False):
        """Overwrites parameters and persistent buffers with saved ones, converted and moved."""
        own = self.state_dict(keep_vars=True)
        missing = [name for name in own if name not in state_dict]
        unexpected = [name for name in state_dict if name not in own]
        errors = []
        if strict and unexpected:
            errors.append(f"Unexpected key(s) in state_dict: {', '.join(map(repr, unexpected))}. ")
        if strict and missing:
            errors.append(f"Missing key(s) in state_dict: {', '.join(map(repr, missing))}. ")
        for name, tensor in own.items():
            saved = state_dict.get(name)
            if saved is not None and tuple(saved.shape) != tuple(tensor.shape):
                errors.append(f"size mismatch for {name}: copying a param with shape {saved.shape} from checkpoint, "
                              f"the shape in current model is {tensor.shape}.")
        if errors:
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n\t" + "\n\t".join(errors))
        former = _core._set_grad_enabled(False)
        try:
            for name, tensor in own.items():
                if name in state_dict:
                    if assign:
                        tensor.data = state_dict[name]
                    else:
                        tensor.copy_(state_dict[name])
        finally:
            _core._set_grad_enabled(former)
        return _IncompatibleKeys(missing, unexpected)

    # ---- Text -----------------------------------------------------------------------------------------------------

    def extra_repr(self):
        """Returns what stands in the parentheses of the printed module."""
        return ""

    def _get_name(self):
        return type(self).__name__

    def __repr__(self):
        extra = self.extra_repr()
        lines = extra.split("\n") if extra else []
        children = [f"({name}): " + repr(module).replace("\n", "\n  ") for name, module in self._modules.items()]
        if not children:
            return f"{self._get_name()}({', '.join(lines)})" if len(lines) <= 1 else \
                f"{self._get_name()}(\n  " + "\n  ".join(lines) + "\n)"
        return f"{self._get_name()}(\n  " + "\n  ".join(lines + children) + "\n)"
