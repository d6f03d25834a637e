"""Helpers (`torch.utils`)."""

from . import data, dlpack
