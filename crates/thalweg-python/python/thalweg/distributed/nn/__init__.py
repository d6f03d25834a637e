"""Collectives with gradients (`torch.distributed.nn`)."""

from ..._left_out import attributes
from . import functional
from .functional import *  # noqa: F401,F403

__getattr__ = attributes(__name__)
