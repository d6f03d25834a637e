"""Loops of different lengths on several ranks (`torch.distributed.algorithms.join`)."""

from ...nn._joining import Join, Joinable, JoinHook  # noqa: F401
