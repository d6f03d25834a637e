"""How a module is called: the hooks around its `forward`, its own and those of all modules (`torch.nn.modules.module`)."""

import warnings

from ..utils.hooks import BackwardHook, RemovableHandle, in_order

_global_forward_pre_hooks, _global_forward_hooks, _global_backward_pre_hooks, _global_backward_hooks = {}, {}, {}, {}
_global_forward_hooks_with_kwargs, _global_forward_hooks_always_called = {}, {}
_global_buffer_registration_hooks, _global_parameter_registration_hooks, _global_module_registration_hooks = {}, {}, {}


def added(hooks, hook, prepend=False, **marks):
    """Adds a hook, before the others or after them; `marks` are dictionaries of hooks of one kind by whether this is one."""
    marked = [kind for kind, is_so in marks.values() if is_so]
    handle = RemovableHandle(hooks, extra_dict=marked, prepend=prepend)
    for kind in marked:
        kind[handle.id] = True
    hooks[handle.id] = hook
    return handle


def register_module_forward_pre_hook(hook):
    """Has a function `hook(module, args)` called before each `forward` of every module."""
    return added(_global_forward_pre_hooks, hook)


def register_module_forward_hook(hook, *, with_kwargs=False, always_call=False):
    """Has a function `hook(module, args, output)` called after each `forward` of every module."""
    return added(_global_forward_hooks, hook, with_kwargs=(_global_forward_hooks_with_kwargs, with_kwargs),
                 always=(_global_forward_hooks_always_called, always_call))


def register_module_full_backward_pre_hook(hook):
    """Has a function `hook(module, grad_output)` called by backward passes of every module."""
    return added(_global_backward_pre_hooks, hook)


def register_module_full_backward_hook(hook):
    """Has a function `hook(module, grad_input, grad_output)` called by backward passes of every module."""
    return added(_global_backward_hooks, hook)


def register_module_buffer_registration_hook(hook):
    """Has a function `hook(module, name, buffer)` called for each new buffer, in whose place it may return another."""
    return added(_global_buffer_registration_hooks, hook)


def register_module_parameter_registration_hook(hook):
    """Has a function `hook(module, name, parameter)` called for each new parameter, in whose place it may return another."""
    return added(_global_parameter_registration_hooks, hook)


def register_module_module_registration_hook(hook):
    """Has a function `hook(module, name, submodule)` called for each new module of a module, in whose place it may return another."""
    return added(_global_module_registration_hooks, hook)


def replaced(hooks, module, name, value):
    """Returns what registration hooks make of a value."""
    for _, hook in in_order(hooks):
        given = hook(module, name, value)
        value = value if given is None else given
    return value


def is_hooked(module):
    """Returns whether hooks are called around a module's `forward`."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
                or _global_forward_hooks or _global_forward_pre_hooks or _global_backward_hooks or _global_backward_pre_hooks)


def _before(module, args, kwargs):
    """Returns the arguments of a call, as the hooks before it leave them."""
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
    """Returns the hooks that are called after a module's `forward`: each with its number, whether it takes keywords, and whether it is always
    called."""
    return [(number, hook, number in with_kwargs, number in always) for hooks, with_kwargs, always in (
        (_global_forward_hooks, _global_forward_hooks_with_kwargs, _global_forward_hooks_always_called),
        (module._forward_hooks, module._forward_hooks_with_kwargs, module._forward_hooks_always_called)) for number, hook in in_order(hooks)]


def hooked_call(module, args, kwargs):
    """Calls a module's `forward` with the hooks around it."""
    called = set()
    try:
        args, kwargs = _before(module, args, kwargs)
        backward = None
        full, before = ([hook for _, hook in in_order(every)] + [hook for _, hook in in_order(own)] for every, own in (
            (_global_backward_hooks, module._backward_hooks), (_global_backward_pre_hooks, module._backward_pre_hooks)))
        if full or before:
            backward = BackwardHook(module, full, before)
            args = backward.setup_input_hook(args)
        result = module.forward(*args, **kwargs)
        for number, hook, with_kwargs, _ in _after(module):
            called.add(number)
            changed = hook(module, args, kwargs, result) if with_kwargs else hook(module, args, result)
            result = result if changed is None else changed
        return result if backward is None else backward.setup_output_hook(result)
    except Exception:
        for number, hook, with_kwargs, always in _after(module):
            if always and number not in called:
                _called_after_failure(module, hook, args, kwargs if with_kwargs else None)
        raise


def _called_after_failure(module, hook, args, kwargs):
    """Calls a hook that is always called, whose own failure is a warning."""
    try:
        hook(module, args, None) if kwargs is None else hook(module, args, kwargs, None)
    except Exception as error:
        warnings.warn(f"module forward hook with `always_call=True` raised an exception that was silenced as another error was raised in "
                      f"forward: {error}")
