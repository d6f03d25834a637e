"""Automatic mixed precision under its deprecated name (`torch.cuda.amp`)."""

from .._left_out import attributes as _attributes
from ..amp import GradScaler as _GradScaler
from ..amp import autocast as _autocast
from ..amp import _deprecated
from ..amp import custom_bwd, custom_fwd  # noqa: F401


class autocast(_autocast):
    """A region whose operators choose the dtype that they compute in."""

    def __init__(self, enabled=True, dtype=None, cache_enabled=True):
        _deprecated("cuda", "autocast")
        super().__init__("cuda", dtype, enabled, cache_enabled)


class GradScaler(_GradScaler):
    """Scales losses so that small gradients of low precision do not vanish."""

    def __init__(self, init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, enabled=True):
        _deprecated("cuda", "GradScaler")
        super().__init__("cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


def amp_definitely_not_available():
    """Returns whether there is no GPU."""
    from . import is_available
    return not is_available()


__getattr__ = _attributes(__name__)
