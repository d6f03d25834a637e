"""Streams and events (`torch.cuda.streams`)."""

from .. import _core

Event = _core._cuda.Event
Stream = _core._cuda.Stream

__all__ = ["Event", "ExternalStream", "Stream"]


class ExternalStream(Stream):
    """A stream that another library made, by its number (`cuda_stream`). Its owner keeps it while this object is there; wrap it once."""

    def __new__(cls, stream_ptr, device=None, **kwargs):
        return super().__new__(cls, device, stream_ptr=stream_ptr)


def get_stream_from_external(data_ptr, device=None):
    """Returns a stream that another library made, by its number."""
    return ExternalStream(data_ptr, device)
