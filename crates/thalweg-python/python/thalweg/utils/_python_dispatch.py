"""Modes that receive each operator below autograd (`torch.utils._python_dispatch`)."""

import contextlib

from .. import _core
from .. import _dispatching

Tensor = _core.Tensor


class TorchDispatchMode:
    """A region in which `__torch_dispatch__` receives each operator, in backward passes those that gradients are made of."""

    _is_infra_mode = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise NotImplementedError("a mode needs a method __torch_dispatch__")

    def __enter__(self):
        _dispatching.push(self)
        return self

    def __exit__(self, exc_type, exc_val, exc_tb):
        _dispatching.pop()

    @classmethod
    def push(cls, *args, **kwargs):
        """Returns a new mode."""
        return cls(*args, **kwargs)

    @classmethod
    def is_infra_mode(cls):
        """Returns whether the mode is part of PyTorch's own machinery."""
        return cls._is_infra_mode

    @classmethod
    def ignore_compile_internals(cls):
        """Returns False: calls of compiled programs are seen."""
        return False


class BaseTorchDispatchMode(TorchDispatchMode):
    """A mode that runs each operator."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def _get_current_dispatch_mode():
    """Returns the innermost mode of this thread, or None."""
    modes = _dispatching.modes()
    return modes[-1] if modes else None


def _get_current_dispatch_mode_stack():
    """Returns the modes of this thread, the innermost last."""
    return list(_dispatching.modes())


_len_torch_dispatch_stack = lambda: len(_dispatching.modes())  # noqa: E731


@contextlib.contextmanager
def _pop_mode_temporarily(k=None):
    """Returns a region without the innermost mode."""
    mode = _dispatching.pop()
    try:
        yield mode
    finally:
        _dispatching.push(mode)


@contextlib.contextmanager
def _disable_current_modes():
    """Returns a region without modes."""
    former = [_dispatching.pop() for _ in range(len(_dispatching.modes()))]
    try:
        yield former
    finally:
        for mode in reversed(former):
            _dispatching.push(mode)


def is_in_torch_dispatch_mode(include_infra_modes=True):
    """Returns whether a mode is open on this thread."""
    return bool(_dispatching.modes())


is_in_any_mode_without_ignore_compile_internals = is_in_torch_dispatch_mode


def is_traceable_wrapper_subclass(t):
    """Returns whether an object is a tensor that wraps others, and can be flattened to them and rebuilt."""
    return isinstance(t, Tensor) and type(t) is not Tensor and hasattr(t, "__tensor_flatten__") and hasattr(t, "__tensor_unflatten__")


def is_traceable_wrapper_subclass_type(t):
    """Returns whether a class is one of tensors that wrap others, and can be flattened to them and rebuilt."""
    return issubclass(t, Tensor) and t is not Tensor and hasattr(t, "__tensor_flatten__") and hasattr(t, "__tensor_unflatten__")


def transform_subclass(t, callback, outer_size=None, outer_stride=None):
    """Returns a wrapper around the results of a function for each tensor that it wraps, by its name."""
    names, context = t.__tensor_flatten__()
    inner = {name: callback(name, getattr(t, name)) for name in names}
    return type(t).__tensor_unflatten__(inner, context, outer_size or t.size(), outer_stride or t.stride())


def return_and_correct_aliasing(func, args, kwargs, out):
    """Returns the result of an operator: in the first argument's place if the operator writes into that."""
    if func._schema.is_mutable and args:
        return args[0]
    return out
