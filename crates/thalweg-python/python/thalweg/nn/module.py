"""`Module`: the base class of networks (`torch.nn.Module`)."""

import collections
import functools
import inspect
import warnings

from .. import _compiling, _core
from .._devices import empty_like
from . import _calls
from ._states import States, WithModule, _IncompatibleKeys  # noqa: F401
from .parameter import Buffer, Parameter

_MEMBERS = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs",
          "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
          "_load_state_dict_post_hooks")


class Module(States):
    """A part of a network: parameters, buffers and submodules as attributes, and a `forward`."""

    # Libraries read the annotations of modules, which subclasses without their own have from here.
    training: bool = True
    dump_patches: bool = False
    call_super_init: bool = False
    _version: int = 1
    _compiled_call_impl = None

    def __init__(self, *args, **kwargs):
        if not self.call_super_init and (args or kwargs):
            name = type(self).__name__
            raise TypeError(f"{name}.__init__() got an unexpected keyword argument '{next(iter(kwargs))}'" if kwargs
                            else f"{name}.__init__() takes 1 positional argument but {len(args) + 1} were given")
        own = self.__dict__
        for name in _MEMBERS:
            own[name] = {}
        for name in _HOOKS:
            own[name] = collections.OrderedDict()
        own.update(training=True, _non_persistent_buffers_set=set(), _is_full_backward_hook=None)
        if self.call_super_init:
            super().__init__(*args, **kwargs)

    def forward(self, *args, **kwargs):
        """Computes the output. Subclasses implement it."""
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    def __call__(self, *args, **kwargs):
        if self._compiled_call_impl is not None:
            return self._compiled_call_impl(*args, **kwargs)
        if not _calls.is_hooked(self):
            return self.forward(*args, **kwargs)
        return _calls.hooked_call(self, args, kwargs)

    def _call_impl(self, *args, **kwargs):
        """Calls `forward` with the hooks, uncompiled."""
        return _calls.hooked_call(self, args, kwargs) if _calls.is_hooked(self) else self.forward(*args, **kwargs)

    def __getstate__(self):
        """Returns the module's state, for copies and files."""
        state = self.__dict__.copy()
        state.pop("_compiled_call_impl", None)
        return state

    def __setstate__(self, state):
        """Restores the module's state from a file, which PyTorch may have written."""
        self.__dict__.update(state)
        for name in _MEMBERS:
            self.__dict__.setdefault(name, {})
        for name in _HOOKS:
            self.__dict__.setdefault(name, collections.OrderedDict())
        self.__dict__.setdefault("_non_persistent_buffers_set", set())
        self.__dict__.setdefault("_is_full_backward_hook", None)

    # ---- Attributes -----------------------------------------------------------------------------------------------

    def __setattr__(self, name, value):
        own = self.__dict__
        kind = "parameters" if isinstance(value, Parameter) else "module" if isinstance(value, Module) else \
            "buffer" if isinstance(value, Buffer) else None
        if "_parameters" not in own:
            if kind is not None:
                raise AttributeError(f"cannot assign {kind} before Module.__init__() call")
            return object.__setattr__(self, name, value)
        if kind == "parameters":
            self._check_leaf(name, value)
            self._forget(name, self._parameters)
            self.register_parameter(name, value)
        elif name in self._parameters and kind != "module":
            if value is not None:
                raise TypeError(f"cannot assign '{_typename(value)}' as parameter '{name}' (torch.nn.Parameter or None expected)")
            self.register_parameter(name, value)
        elif kind == "module":
            self._forget(name, self._modules)
            self._modules[name] = _calls.replaced(_calls._global_module_registration_hooks, self, name, value)
        elif name in self._modules:
            if value is not None:
                raise TypeError(f"cannot assign '{_typename(value)}' as child module '{name}' (torch.nn.Module or None expected)")
            self._modules[name] = _calls.replaced(_calls._global_module_registration_hooks, self, name, value)
        elif kind == "buffer" or name in self._buffers:
            self._set_buffer(name, value)
        else:
            object.__setattr__(self, name, value)

    def _set_buffer(self, name, value):
        if value is not None and not isinstance(value, _core.Tensor):
            raise TypeError(f"cannot assign '{_typename(value)}' as buffer '{name}' (torch.nn.Buffer, torch.Tensor or None expected)")
        persistent = value.persistent if isinstance(value, Buffer) else name not in self._non_persistent_buffers_set
        if "persistent" in inspect.signature(self.register_buffer).parameters:
            self.register_buffer(name, value, persistent)
        elif persistent:
            self.register_buffer(name, value)
        else:
            raise RuntimeError("Registering a non-persistent buffer on a Module subclass that implements register_buffer() without the persistent "
                               "argument is not allowed.")

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
                self._non_persistent_buffers_set.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self):
        names = {*super().__dir__(), *self._parameters, *self._buffers, *self._modules}
        return sorted(name for name in names if not name[0].isdigit())

    def _forget(self, name, kept):
        """Removes an attribute from every dictionary but `kept`, in which it keeps its position."""
        self.__dict__.pop(name, None)
        for kind in (self._parameters, self._buffers, self._modules):
            if kind is not kept:
                kind.pop(name, None)
        self._non_persistent_buffers_set.discard(name)

    def _check_name(self, kind, name, members):
        """Refuses a name that a member cannot have."""
        if "_parameters" not in self.__dict__:
            raise AttributeError(f"cannot assign {kind} before Module.__init__() call")
        if not isinstance(name, str):
            raise TypeError(f"{kind} name should be a string. Got {_typename(name)}")
        if "." in name:
            raise KeyError(f'{kind} name can\'t contain "."' + (f", got: {name}" if kind == "module" else ""))
        if name == "":
            raise KeyError(f'{kind} name can\'t be empty string ""')
        if name not in members and hasattr(self, name):
            raise KeyError(f"attribute '{name}' already exists")

    @staticmethod
    def _check_leaf(name, parameter):
        if parameter is not None and parameter.grad_fn is not None:
            raise ValueError(f"Cannot assign non-leaf Tensor to parameter '{name}'. Model parameters must be created explicitly. To express '{name}' "
                             "as a function of another Tensor, compute the value in the forward() method.")

    def register_parameter(self, name, param):
        """Adds a parameter, or reserves the name with None."""
        self._check_name("parameter", name, self.__dict__.get("_parameters", ()))
        if param is not None:
            if not isinstance(param, Parameter):
                raise TypeError(f"cannot assign '{_typename(param)}' object to parameter '{name}' (torch.nn.Parameter or None required)")
            self._check_leaf(name, param)
            param = _calls.replaced(_calls._global_parameter_registration_hooks, self, name, param)
        self._parameters[name] = param

    def register_buffer(self, name, tensor, persistent=True):
        """Adds a tensor that is not a parameter but moves with the module."""
        self._check_name("buffer", name, self.__dict__.get("_buffers", ()))
        if tensor is not None and not isinstance(tensor, _core.Tensor):
            raise TypeError(f"cannot assign '{_typename(tensor)}' object to buffer '{name}' (torch Tensor or None required)")
        self._buffers[name] = _calls.replaced(_calls._global_buffer_registration_hooks, self, name, tensor)
        if persistent:
            self._non_persistent_buffers_set.discard(name)
        else:
            self._non_persistent_buffers_set.add(name)

    def register_module(self, name, module):
        """Adds a module under a name."""
        self.add_module(name, module)

    def add_module(self, name, module):
        """Adds a module under a name."""
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{_typename(module)} is not a Module subclass")
        self._check_name("module", name, self.__dict__.get("_modules", ()))
        self._modules[name] = _calls.replaced(_calls._global_module_registration_hooks, self, name, module)

    # ---- Hooks ----------------------------------------------------------------------------------------------------

    def register_forward_hook(self, hook, *, prepend=False, with_kwargs=False, always_call=False):
        """Registers `hook(module, args, output)`, which is called after `forward` and may return another output."""
        return _calls.added(self._forward_hooks, hook, prepend, with_kwargs=(self._forward_hooks_with_kwargs, with_kwargs),
                            always=(self._forward_hooks_always_called, always_call))

    def register_forward_pre_hook(self, hook, *, prepend=False, with_kwargs=False):
        """Registers `hook(module, args)`, which is called before `forward` and may return other arguments."""
        return _calls.added(self._forward_pre_hooks, hook, prepend, with_kwargs=(self._forward_pre_hooks_with_kwargs, with_kwargs))

    def register_full_backward_hook(self, hook, prepend=False):
        """Registers `hook(module, grad_input, grad_output)`, which backward passes call and which may return other gradients of
        the inputs."""
        self._say_full(True)
        return _calls.added(self._backward_hooks, hook, prepend)

    def register_full_backward_pre_hook(self, hook, prepend=False):
        """Registers `hook(module, grad_output)`, which backward passes call and which may return other gradients of the
        outputs."""
        return _calls.added(self._backward_pre_hooks, hook, prepend)

    def register_backward_hook(self, hook):
        """Registers `hook(module, grad_input, grad_output)`, which the last node of each call calls in backward passes: the
        deprecated form of `register_full_backward_hook`, which sees the gradients of the inputs only if the call is a single
        node."""
        self._say_full(False)
        return _calls.added(self._backward_hooks, hook)

    def _say_full(self, is_full):
        if self._is_full_backward_hook is (not is_full):
            raise RuntimeError("Cannot use both regular backward hooks and full backward hooks on a single Module. Please use only one of them.")
        self._is_full_backward_hook = is_full

    def register_state_dict_pre_hook(self, hook):
        """Registers `hook(module, prefix, keep_vars)`, which is called before the module's state is collected."""
        return _calls.added(self._state_dict_pre_hooks, hook)

    def register_state_dict_post_hook(self, hook):
        """Registers `hook(module, state_dict, prefix, local_metadata)`, which may change the collected state."""
        hook._from_public_api = True
        return _calls.added(self._state_dict_hooks, hook)

    def _register_state_dict_hook(self, hook):
        """Registers a hook as `register_state_dict_post_hook` does, which may also return another state."""
        if getattr(hook, "_from_public_api", False):
            raise RuntimeError("Cannot register the same function as the state dict post hook that was previously registered via "
                               "register_state_dict_post_hook")
        return _calls.added(self._state_dict_hooks, hook)

    def register_load_state_dict_pre_hook(self, hook):
        """Registers a hook that is called before the module's own tensors are loaded, with the module and the arguments of
        `_load_from_state_dict`."""
        return self._register_load_state_dict_pre_hook(hook, with_module=True)

    def _register_load_state_dict_pre_hook(self, hook, with_module=False):
        return _calls.added(self._load_state_dict_pre_hooks, WithModule(hook, self) if with_module else hook)

    def register_load_state_dict_post_hook(self, hook):
        """Registers `hook(module, incompatible_keys)`, which is called after states have been loaded and may change the lists of
        keys."""
        return _calls.added(self._load_state_dict_post_hooks, hook)

    # ---- Walks ----------------------------------------------------------------------------------------------------

    def children(self):
        """Yields the direct submodules."""
        return (module for _, module in self.named_children())

    def named_children(self):
        """Yields the direct submodules with their names."""
        seen = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def modules(self, remove_duplicate=True):
        """Yields this module and all its submodules, each once."""
        return (module for _, module in self.named_modules(remove_duplicate=remove_duplicate))

    def named_modules(self, memo=None, prefix="", remove_duplicate=True):
        """Yields this module and all its submodules with their names."""
        memo = set() if memo is None else memo
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            for name, module in self._modules.items():
                if module is not None:
                    yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def _named_members(self, get_members_fn, prefix="", recurse=True, remove_duplicate=True):
        seen = set()
        modules = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for path, module in modules:
            for name, tensor in get_members_fn(module):
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
        return self._named_members(lambda module: module._parameters.items(), prefix, recurse, remove_duplicate)

    def buffers(self, recurse=True):
        """Yields the buffers, each once."""
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    def named_buffers(self, prefix="", recurse=True, remove_duplicate=True):
        """Yields the buffers with their names."""
        return self._named_members(lambda module: module._buffers.items(), prefix, recurse, remove_duplicate)

    def get_submodule(self, target):
        """Returns the submodule at a dotted path."""
        module = self
        for name in target.split(".") if target else ():
            module = module._member(name, Module, "Module")
        return module

    def _member(self, name, kind, title):
        if not hasattr(self, name):
            raise AttributeError(f"{self._get_name()} has no attribute `{name}`")
        member = getattr(self, name)
        if not isinstance(member, kind):
            raise AttributeError(f"`{name}` is not an nn.{title}")
        return member

    def set_submodule(self, target, module, strict=False):
        """Sets the submodule at a dotted path. With `strict`, there must already be one."""
        if target == "":
            raise ValueError("Cannot set the submodule without a target name!")
        if not isinstance(module, Module):
            raise ValueError(f"`module` is not an nn.Module, found {type(module)}")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if strict or hasattr(parent, name):
            parent._member(name, Module, "Module")
        setattr(parent, name, module)

    def get_parameter(self, target):
        """Returns the parameter at a dotted path."""
        path, _, name = target.rpartition(".")
        return self.get_submodule(path)._member(name, Parameter, "Parameter")

    def get_buffer(self, target):
        """Returns the buffer at a dotted path."""
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        member = module._member(name, _core.Tensor, "Buffer")
        if name not in module._buffers:
            raise AttributeError(f"`{name}` is not a buffer")
        return member

    def apply(self, fn):
        """Calls a function with every submodule, and with this module last."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    # ---- Modes and places -----------------------------------------------------------------------------------------

    def train(self, mode=True):
        """Sets whether this module and all its submodules are in training mode."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self):
        """Sets this module and all its submodules to evaluation mode."""
        return self.train(False)

    def requires_grad_(self, requires_grad=True):
        """Sets whether gradients are computed for the parameters."""
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

    def _apply(self, fn, recurse=True):
        """Applies a function to parameters, their gradients and buffers: to all, or to none if the function raises for one."""
        modules = [self]
        if recurse:
            # Modules that override `_apply` change their submodules themselves.
            below = list(self.children())
            while below:
                module = below.pop()
                if type(module)._apply is Module._apply:
                    modules.append(module)
                    below.extend(module.children())
                else:
                    module._apply(fn)
        parameters = {id(parameter): parameter for module in modules for parameter in module._parameters.values() if parameter is not None}
        mode = _core._set_grad_enabled(False)
        try:
            changed = [(parameter, fn(parameter), None if parameter.grad is None else fn(parameter.grad.detach()))
                       for parameter in parameters.values()]
            buffers = [(module, name, fn(buffer)) for module in modules for name, buffer in module._buffers.items() if buffer is not None]
        finally:
            _core._set_grad_enabled(mode)
        replaced = {}
        for parameter, data, gradient in changed:
            # A function that works in place has already made the change.
            if data is not parameter:
                if type(parameter).__torch_function__ is Parameter.__torch_function__ or hasattr(parameter, "_outer"):
                    parameter.data = data
                else:
                    parameter = replaced[id(parameter)] = Parameter(data, parameter.requires_grad)
            if gradient is not None:
                parameter.grad = gradient
        for module in modules if replaced else ():
            module._parameters.update({name: replaced[id(own)] for name, own in module._parameters.items() if id(own) in replaced})
        for module, name, buffer in buffers:
            module._buffers[name] = buffer
        return self

    def to(self, *args, **kwargs):
        """Moves parameters and buffers to a device, converts floats to a dtype, and changes tensors of rank 4 or 5 to a memory
        format, in place."""
        memory_format = kwargs.pop("memory_format", None)
        _check_destination(args, kwargs)
        values = (*args, *kwargs.values())
        wanted = [value for value in values if isinstance(value, _core.dtype)]
        wanted += [value.dtype for value in values if isinstance(value, _core.Tensor)]
        if any(not (dtype.is_floating_point or dtype.is_complex) for dtype in wanted):
            raise TypeError(f"nn.Module.to only accepts floating point or complex dtypes, but got desired dtype={wanted[0]}")
        if any(dtype.is_complex for dtype in wanted):
            warnings.warn("Complex modules are a new feature under active development whose design may change, and some modules might not work as "
                          "expected when using complex tensors as parameters or buffers.", stacklevel=2)
        places = tuple(value.device if isinstance(value, _core.Tensor) else value for value in args if not isinstance(value, _core.dtype))
        names = {name: value for name, value in kwargs.items() if name != "dtype"}

        def change(tensor):
            if tensor.is_floating_point() or tensor.is_complex():
                tensor = tensor.to(*args, **kwargs) if args or kwargs else tensor
            elif places or names:
                tensor = tensor.to(*places, **names)
            if memory_format is not None and tensor.dim() in (4, 5):
                tensor = tensor.to(memory_format=memory_format)
            return tensor
        return self._apply(change)

    def to_empty(self, *, device, recurse=True):
        """Moves parameters and buffers to a device, in place, without copying their elements, which are uninitialised."""
        return self._apply(lambda tensor: empty_like(tensor, device=device), recurse)

    def share_memory(self):
        """Moves parameters and buffers to memory that processes can share, and returns the module."""
        return self._apply(lambda tensor: tensor.share_memory_())

    def compile(self, *args, **kwargs):
        """Compiles the module's calls in place, with the arguments of `torch.compile`. Copies of the module are not compiled."""
        self._compiled_call_impl = _compiling.compile(self._call_impl, *args, **kwargs)

    def cuda(self, device=None):
        """Moves parameters and buffers to a GPU, in place."""
        return self._apply(lambda tensor: tensor.cuda(device))

    def xpu(self, device=None):
        """Raises: there are no devices of this kind."""
        raise NotImplementedError("Module.xpu is left out: there is no backend of it")

    ipu = mtia = xpu

    def cpu(self):
        """Moves parameters and buffers to the simulated GPU, in place."""
        return self._apply(lambda tensor: tensor.cpu())

    def type(self, dst_type):
        """Converts parameters and buffers, in place."""
        return self._apply(lambda tensor: tensor.to(dst_type))

    def float(self):
        """Converts floating-point parameters and buffers to float32, in place."""
        return self.to(_core.float32)

    def double(self):
        """Converts floating-point parameters and buffers to float64, in place."""
        return self.to(_core.float64)

    def half(self):
        """Converts floating-point parameters and buffers to float16, in place."""
        return self.to(_core.float16)

    def bfloat16(self):
        """Converts floating-point parameters and buffers to bfloat16, in place."""
        return self.to(_core.bfloat16)

    # ---- Text -----------------------------------------------------------------------------------------------------

    def extra_repr(self):
        """Returns the text in the parentheses of the printed module."""
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


def _check_destination(args, kwargs):
    """Refuses arguments that `Module.to` does not accept: besides a device, a dtype or a tensor it accepts `non_blocking`."""
    if kwargs.get("copy"):
        raise RuntimeError(".to() does not accept copy argument")
    kinds = {"device": (str, int, _core.device, type(None)), "dtype": (_core.dtype, type(None)), "tensor": _core.Tensor, "non_blocking": bool, "copy": bool}
    first = args[0] if args else None
    order = ("tensor", "non_blocking") if isinstance(first, _core.Tensor) else ("dtype", "non_blocking") if isinstance(first, _core.dtype) else \
        ("device", "dtype", "non_blocking")
    given = [*zip(order, args), *kwargs.items()]
    if len(args) > len(order) or not all(isinstance(value, kinds.get(name, ())) for name, value in given) or (
            isinstance(first, bool)):
        found = [_typename(value) for value in args] + [f"{name}={_typename(value)}" for name, value in kwargs.items()]
        raise TypeError(f"to() received an invalid combination of arguments - got ({', '.join(found)}), but expected one of:\n"
                        " * (torch.device device = None, torch.dtype dtype = None, bool non_blocking = False, *, torch.memory_format memory_format)\n"
                        " * (torch.dtype dtype, bool non_blocking = False, *, torch.memory_format memory_format)\n"
                        " * (Tensor tensor, bool non_blocking = False, *, torch.memory_format memory_format)")


def _typename(value):
    """Returns the name of a value's class for messages."""
    kind = type(value)
    module = kind.__module__
    return kind.__name__ if module == "builtins" else f"{module}.{kind.__qualname__}"
