"""Modules whose intermediate results are computed again in the backward pass, or kept in the host's memory."""

from ...._left_out import attributes

__getattr__ = attributes(__name__)
