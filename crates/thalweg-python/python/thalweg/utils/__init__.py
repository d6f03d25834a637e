"""Helpers (`torch.utils`)."""

from . import checkpoint, data, deterministic, dlpack, hooks
