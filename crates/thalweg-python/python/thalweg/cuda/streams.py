"""Streams and events (`torch.cuda.streams`)."""

from .. import _core

Event = _core._cuda.Event
Stream = _core._cuda.Stream

__all__ = ["Event", "Stream"]

_LEFT_OUT = {"ExternalStream": "streams of other libraries come with DLPack"}


def __getattr__(name):
    if name in _LEFT_OUT:
        raise AttributeError(f"thalweg.cuda.streams.{name} is left out: {_LEFT_OUT[name]}")
    raise AttributeError(f"module 'thalweg.cuda.streams' has no attribute '{name}'")
