"""Helpers (`torch.utils`)."""

from . import checkpoint, data, dlpack, hooks
