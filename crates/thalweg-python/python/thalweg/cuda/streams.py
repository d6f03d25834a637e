"""Streams and events (`torch.cuda.streams`)."""

from .. import _core

Event = _core._cuda.Event
Stream = _core._cuda.Stream

__all__ = ["Event", "ExternalStream", "Stream"]


class ExternalStream(Stream):
    """A stream that another library created, by its handle (`cuda_stream`). Its owner must keep it as long as this object exists;
    wrap it only once."""

    def __new__(cls, stream_ptr, device=None, **kwargs):
        return super().__new__(cls, device, stream_ptr=stream_ptr)


def get_stream_from_external(data_ptr, device=None):
    """Returns a stream that another library created, by its handle."""
    return ExternalStream(data_ptr, device)
