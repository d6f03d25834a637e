"""Helpers (`torch.utils`)."""

from .._left_out import attributes as _attributes
from . import _device, _import_utils, _mode_utils, _pytree, checkpoint, deterministic, dlpack, hooks

__getattr__ = _attributes(__name__)
