"""Devices as context managers (`with torch.device("meta"):`), and `*_like` functions across devices."""

import functools

from . import _core
from ._regions import Open

_open = Open()


def _enter(self):
    """Makes the device the default for tensors that this thread creates, until the end of the region."""
    _open.enter(_core.get_default_device())
    _core._set_current_device(self)
    return self


def _exit(self, *_):
    _core._set_current_device(_open.leave())


_core.device.__enter__, _core.device.__exit__ = _enter, _exit


def _like(name):
    """Returns an operator that creates a tensor like another, which may be on another device."""
    operator = getattr(_core, name)

    @functools.wraps(operator)
    def like(input, *args, **kwargs):
        if _core._is_overridden((input, *args), kwargs):
            from ._torch_functions import take
            return take(like, _core._overriding((input, *args), kwargs), (input, *args), kwargs)
        device = kwargs.pop("device", None)
        if device is not None and isinstance(input, _core.Tensor):
            device = device if isinstance(device, _core.device) else _core.device(device)
            if device != input.device:
                shaped = _core.empty_like(input)
                input = _core.empty_strided(list(shaped.shape), list(shaped.stride()), dtype=input.dtype, device=device)
        return operator(input, *args, **kwargs)
    return like


NAMES = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")
globals().update({_name: _like(_name) for _name in NAMES if hasattr(_core, _name)})
__all__ = [_name for _name in NAMES if hasattr(_core, _name)]
