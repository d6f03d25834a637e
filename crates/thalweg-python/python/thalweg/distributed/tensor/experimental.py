"""Regions of tensors that are divided among ranks (`torch.distributed.tensor.experimental`)."""

import contextlib

from . import _rules
from ..._left_out import attributes


@contextlib.contextmanager
def implicit_replication():
    """Returns a region in which plain tensors are taken as entire ones on every rank."""
    former, _rules.local.takes_plain = _rules.local.takes_plain, True
    try:
        yield
    finally:
        _rules.local.takes_plain = former


__getattr__ = attributes(__name__)
