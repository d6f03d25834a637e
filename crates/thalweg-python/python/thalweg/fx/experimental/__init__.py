"""Parts of `torch.fx.experimental` that programs import."""

from ..._left_out import rest as _rest

__path__ = list(__path__)
__getattr__ = _rest(__name__)
