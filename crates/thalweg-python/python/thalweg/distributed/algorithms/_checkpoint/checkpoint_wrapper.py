"""Wrappers of modules whose intermediate results are computed again in the backward pass (`checkpoint_wrapper`)."""

import enum
import functools

from ...._left_out import attributes
from ....autograd.graph import save_on_cpu
from ....nn.module import Module
from ....utils.checkpoint import checkpoint

_CHECKPOINT_WRAPPED_MODULE = "_checkpoint_wrapped_module"
_CHECKPOINT_PREFIX = f"{_CHECKPOINT_WRAPPED_MODULE}."


class CheckpointImpl(enum.Enum):
    """The ways of computing again, which do not differ here."""

    REENTRANT = enum.auto()
    NO_REENTRANT = enum.auto()


class ActivationWrapper(Module):
    """A wrapper of a module, whose state has the names of the module."""

    def __init__(self, module):
        super().__init__()
        self._checkpoint_wrapped_module = module
        self._register_state_dict_hook(_without_prefix)
        self._register_load_state_dict_pre_hook(_with_prefix)

    def forward(self, *args, **kwargs):
        """Raises: subclasses compute."""
        raise ValueError("Subclasses should implement this")

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__(_CHECKPOINT_WRAPPED_MODULE), name)

    def __getitem__(self, key):
        return self._checkpoint_wrapped_module[key]

    def named_parameters(self, *args, **kwargs):
        """Yields the parameters by the names of the module."""
        for name, parameter in super().named_parameters(*args, **kwargs):
            yield name.replace(_CHECKPOINT_PREFIX, ""), parameter


def _without_prefix(module, state, prefix, *_):
    for name in list(state):
        if name.startswith(prefix + _CHECKPOINT_PREFIX):
            state[prefix + name[len(prefix + _CHECKPOINT_PREFIX):]] = state.pop(name)
    return state


def _with_prefix(state, prefix, *_):
    for name in list(state):
        if name.startswith(prefix) and not name.startswith(prefix + _CHECKPOINT_PREFIX):
            state[prefix + _CHECKPOINT_PREFIX + name[len(prefix):]] = state.pop(name)


class CheckpointWrapper(ActivationWrapper):
    """A module whose intermediate results are computed again in the backward pass."""

    def __init__(self, mod, checkpoint_impl=CheckpointImpl.NO_REENTRANT, checkpoint_fn=None, **checkpoint_fn_kwargs):
        super().__init__(mod)
        self.checkpoint_impl = checkpoint_impl
        self.checkpoint_fn = functools.partial(checkpoint_fn, **checkpoint_fn_kwargs) if checkpoint_fn is not None else functools.partial(
            checkpoint, use_reentrant=False, **checkpoint_fn_kwargs)

    def forward(self, *args, **kwargs):
        """Computes the output. The backward pass computes it again."""
        return self.checkpoint_fn(self._checkpoint_wrapped_module, *args, **kwargs)


class OffloadWrapper(ActivationWrapper):
    """A module whose intermediate results are in the host's memory until the backward pass."""

    def forward(self, *args, **kwargs):
        """Computes the output."""
        with save_on_cpu(pin_memory=True):
            return self._checkpoint_wrapped_module(*args, **kwargs)


def checkpoint_wrapper(module, checkpoint_impl=CheckpointImpl.NO_REENTRANT, checkpoint_fn=None, **checkpoint_fn_kwargs):
    """Returns a module that computes intermediate results again in the backward pass."""
    return CheckpointWrapper(module, checkpoint_impl, checkpoint_fn, **checkpoint_fn_kwargs)


def offload_wrapper(module):
    """Returns a module that keeps intermediate results in the host's memory."""
    return OffloadWrapper(module)


def apply_activation_checkpointing(model, checkpoint_wrapper_fn=checkpoint_wrapper, check_fn=lambda _: True, auto_wrap_policy=None):
    """Wraps the submodules of a model that a function, or a policy, chooses."""
    from ...fsdp.wrap import chosen
    chosen_parts = {id(part) for part in chosen(model, auto_wrap_policy, [])[0]} if auto_wrap_policy is not None else None

    def wrap(module):
        for name, child in list(module._modules.items()):
            if child is None:
                continue
            wrap(child)
            if id(child) in chosen_parts if chosen_parts is not None else check_fn(child):
                setattr(module, name, checkpoint_wrapper_fn(child))
    wrap(model)


__getattr__ = attributes(__name__)
