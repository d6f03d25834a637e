"""Calls of modules, with the module's own and the global hooks before and after `forward` (`torch.nn.modules.module`)."""

import collections
import warnings

from .. import _core
from ..utils.hooks import BackwardHook, RemovableHandle, in_order

_global_forward_pre_hooks, _global_forward_hooks = collections.OrderedDict(), collections.OrderedDict()
_global_backward_pre_hooks, _global_backward_hooks = collections.OrderedDict(), collections.OrderedDict()
_global_forward_hooks_with_kwargs, _global_forward_hooks_always_called = collections.OrderedDict(), collections.OrderedDict()
_global_buffer_registration_hooks, _global_parameter_registration_hooks = collections.OrderedDict(), collections.OrderedDict()
_global_module_registration_hooks = collections.OrderedDict()
# Whether the global backward hooks are full ones; None if none was registered yet.
_global_is_full_backward_hook = None


def added(hooks, hook, prepend=False, **marks):
    """Adds a hook before or after the others. `marks` maps the dictionary of each kind of hook to whether this hook is of that
    kind."""
    marked = [kind for kind, is_so in marks.values() if is_so]
    handle = RemovableHandle(hooks, extra_dict=marked, prepend=prepend)
    for kind in marked:
        kind[handle.id] = True
    hooks[handle.id] = hook
    return handle


def register_module_forward_pre_hook(hook):
    """Registers `hook(module, args)`, which is called before each `forward` of every module."""
    return added(_global_forward_pre_hooks, hook)


def register_module_forward_hook(hook, *, with_kwargs=False, always_call=False):
    """Registers `hook(module, args, output)`, which is called after each `forward` of every module."""
    return added(_global_forward_hooks, hook, with_kwargs=(_global_forward_hooks_with_kwargs, with_kwargs),
                 always=(_global_forward_hooks_always_called, always_call))


def register_module_full_backward_pre_hook(hook):
    """Registers `hook(module, grad_output)`, which backward passes call for every module."""
    return added(_global_backward_pre_hooks, hook)


def register_module_full_backward_hook(hook):
    """Registers `hook(module, grad_input, grad_output)`, which backward passes call for every module."""
    _say_full(True)
    return added(_global_backward_hooks, hook)


def register_module_backward_hook(hook):
    """Registers `hook(module, grad_input, grad_output)`, which the last node of each call of every module calls: the deprecated
    form of `register_module_full_backward_hook`."""
    _say_full(False)
    return added(_global_backward_hooks, hook)


def _say_full(is_full):
    global _global_is_full_backward_hook
    if _global_is_full_backward_hook is (not is_full):
        raise RuntimeError("Cannot use both regular backward hooks and full backward hooks as a global Module hook. Please use only one of them.")
    _global_is_full_backward_hook = is_full


def register_module_buffer_registration_hook(hook):
    """Registers `hook(module, name, buffer)`, which is called for each new buffer and may return a replacement."""
    return added(_global_buffer_registration_hooks, hook)


def register_module_parameter_registration_hook(hook):
    """Registers `hook(module, name, parameter)`, which is called for each new parameter and may return a replacement."""
    return added(_global_parameter_registration_hooks, hook)


def register_module_module_registration_hook(hook):
    """Registers `hook(module, name, submodule)`, which is called for each new submodule and may return a replacement."""
    return added(_global_module_registration_hooks, hook)


def replaced(hooks, module, name, value):
    """Returns the value after all registration hooks have been applied to it."""
    for _, hook in in_order(hooks):
        given = hook(module, name, value)
        value = value if given is None else given
    return value


def is_hooked(module):
    """Returns whether a module has hooks that are called before or after its `forward`."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
                or _global_forward_hooks or _global_forward_pre_hooks or _global_backward_hooks or _global_backward_pre_hooks)


def _before(module, args, kwargs):
    """Returns the arguments of a call after the hooks before `forward` have been applied."""
    hooks = [(hook, False) for _, hook in in_order(_global_forward_pre_hooks)]
    hooks += [(hook, number in module._forward_pre_hooks_with_kwargs) for number, hook in in_order(module._forward_pre_hooks)]
    for hook, with_kwargs in hooks:
        changed = hook(module, args, kwargs) if with_kwargs else hook(module, args)
        if changed is None:
            continue
        if not with_kwargs:
            args = changed if isinstance(changed, tuple) else (changed,)
        elif isinstance(changed, tuple) and len(changed) == 2:
            args, kwargs = changed
        else:
            raise RuntimeError(f"forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got {changed}.")
    return args, kwargs


def _after(module):
    """Returns the hooks that are called after a module's `forward`, each with its number, whether it takes keyword arguments, and
    whether it is always called."""
    return [(number, hook, number in with_kwargs, number in always) for hooks, with_kwargs, always in (
        (_global_forward_hooks, _global_forward_hooks_with_kwargs, _global_forward_hooks_always_called),
        (module._forward_hooks, module._forward_hooks_with_kwargs, module._forward_hooks_always_called)) for number, hook in in_order(hooks)]


def hooked_call(module, args, kwargs):
    """Calls a module's `forward` with the hooks before and after it."""
    called = set()
    try:
        args, kwargs = _before(module, args, kwargs)
        backward, (full, last) = None, _backward_hooks(module)
        before = [hook for hooks in (_global_backward_pre_hooks, module._backward_pre_hooks) for _, hook in in_order(hooks)]
        if full or before:
            backward = BackwardHook(module, full, before)
            args = backward.setup_input_hook(args)
        result = module.forward(*args, **kwargs)
        for number, hook, with_kwargs, _ in _after(module):
            called.add(number)
            changed = hook(module, args, kwargs, result) if with_kwargs else hook(module, args, result)
            result = result if changed is None else changed
        result = result if backward is None else backward.setup_output_hook(result)
        if last:
            _hook_last_node(module, last, args, result)
        return result
    except Exception:
        for number, hook, with_kwargs, always in _after(module):
            if always and number not in called:
                _called_after_failure(module, hook, args, kwargs if with_kwargs else None)
        raise


def _backward_hooks(module):
    """Returns the backward hooks: those that see the gradients of inputs and outputs, and those of the last node."""
    full, last = [], []
    for hooks, is_full in ((_global_backward_hooks, _global_is_full_backward_hook), (module._backward_hooks, module._is_full_backward_hook)):
        (last if is_full is False else full).extend(hook for _, hook in in_order(hooks))
    return full, last


def _hook_last_node(module, hooks, args, result):
    """Registers hooks with the node of a call's result, whichever operator it is. Warns if that node is not the entire call."""
    tensor = result
    while not isinstance(tensor, _core.Tensor):
        tensor = next(value for value in tensor.values() if isinstance(value, _core.Tensor)) if isinstance(tensor, dict) else tensor[0]
    node = tensor.grad_fn
    if node is None:
        return
    for hook in hooks:
        node.register_hook(lambda inputs, outputs, hook=hook: hook(module, inputs, outputs))
    text = _what_is_missed(args, result, node)
    if text is not None:
        warnings.warn(f"Using {text}. Please use register_full_backward_hook to get the documented behavior.", FutureWarning, stacklevel=4)


def _what_is_missed(args, result, node):
    """Returns the reason why the node of a result does not see all gradients of a call, or None."""
    ends = "is deprecated and will be removed in future versions. This hook will be missing some"
    results, inputs = ((values,) if isinstance(values, _core.Tensor) else values for values in (result, args))
    for values, verb, missing in ((results, "return", "grad_output"), (inputs, "take as input", "grad_input")):
        if not (isinstance(values, tuple) and all(isinstance(value, _core.Tensor) for value in values)):
            return f"non-full backward hooks on a Module that does not {verb} a single Tensor or a tuple of Tensors {ends} of the {missing}"
    nodes = {value.grad_fn for value in results if value.grad_fn is not None}
    if len(nodes) > 1:
        return f"a non-full backward hook when outputs are generated by different autograd Nodes {ends} grad_output"
    own = {value.grad_fn for value in inputs if value.grad_fn is not None}
    if any(following is not None and following not in own and hasattr(following, "next_functions") and following.next_functions
           for following, _ in node.next_functions):
        return f"a non-full backward hook when the forward contains multiple autograd Nodes {ends} grad_input"
    return None


def _called_after_failure(module, hook, args, kwargs):
    """Calls a hook that is always called. If it fails as well, its failure is shown as a warning."""
    try:
        hook(module, args, None) if kwargs is None else hook(module, args, kwargs, None)
    except Exception as error:
        warnings.warn(f"module forward hook with `always_call=True` raised an exception that was silenced as another error was raised in "
                      f"forward: {error}")
