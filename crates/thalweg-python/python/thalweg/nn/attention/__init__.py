"""Choice of the backend for scaled dot product attention (`torch.nn.attention`)."""

import contextlib
import enum

from ... import _core


class SDPBackend(enum.IntEnum):
    """An implementation of attention."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


# The positions of the implementations: cuDNN, Flash, and a composition of operators. Flash is also the memory-efficient one.
_PLACES = {
    SDPBackend.CUDNN_ATTENTION: 0, SDPBackend.FLASH_ATTENTION: 1, SDPBackend.EFFICIENT_ATTENTION: 1, SDPBackend.MATH: 2}


def _cur_sdpa_kernel_backends(with_priority=False):
    """Returns the backends that may compute attention in this thread."""
    allowed = _replace((True, True, True))
    _replace(allowed)
    return [backend for backend, place in _PLACES.items() if allowed[place]]


def _replace(allowed):
    return _core._backends._replace_sdp(*allowed)


@contextlib.contextmanager
def sdpa_kernel(backends, set_priority=False):
    """Returns a region in which this thread's attention uses only these backends. The order is always cuDNN, Flash, operators."""
    if not isinstance(backends, (list, SDPBackend)):
        raise AssertionError("Backend must be an instance of SDPBackend or a list of SDPBackend instances")
    allowed = [False] * 3
    for backend in [backends] if isinstance(backends, SDPBackend) else backends:
        if backend not in _PLACES:
            raise RuntimeError(f"sdpa_kernel: there is no backend {backend!r} here")
        allowed[_PLACES[backend]] = True
    former = _replace(allowed)
    try:
        yield {}
    finally:
        _replace(former)


_sdpa_kernel_variadic = lambda *backends: sdpa_kernel(list(backends))  # noqa: E731
