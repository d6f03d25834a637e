"""Helpers (`torch.utils`)."""

from .._left_out import attributes as _attributes
from . import _device, _import_utils, _mode_utils, _pytree, checkpoint, data, deterministic, dlpack, flop_counter, hooks

__getattr__ = _attributes(__name__)
