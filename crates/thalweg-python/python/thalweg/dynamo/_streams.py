"""The streams of a graph: nodes that switch and order streams, and nodes that run on a different stream than the graph's.

A graph names streams and events by numbers, for which PyTorch has the objects of the current call. Without a GPU they are streams and
events of the simulated GPU.
"""

import threading

import torch

import thalweg

_running = threading.local()


def number_of(node):
    """Returns the number of the stream that a node runs on; `None` if it is the stream of the call."""
    return (node.meta.get("custom") or {}).get("stream")


def is_of_streams(target):
    """Returns whether an operator switches or orders streams."""
    return getattr(target, "namespace", None) == "streams"


def follow(index):
    """Makes PyTorch's current stream of a GPU the current one here, too."""
    thalweg.cuda.set_stream(external(index, torch.cuda.current_stream(index).cuda_stream))


def external(index, number):
    """Returns one of PyTorch's streams, always the same object for one stream."""
    key = (index, number)
    stream = _EXTERNAL.get(key)
    if stream is None:
        stream = _EXTERNAL[key] = thalweg.cuda.ExternalStream(number, thalweg.device("cuda", index))
    return stream


_EXTERNAL = {}


def streams_of(device):
    """Returns the streams of a graph on a device."""
    if device.type == "cuda" and torch.cuda.is_available():
        return OfPyTorch(device.index or 0)
    return Simulated(thalweg.device("sim", 0))


class OfPyTorch:
    """The streams and events that PyTorch has for a call."""

    is_simulated = False

    def __init__(self, index):
        self._index = index

    def begin(self):
        """Notes the stream of a call, and returns this package's stream for it."""
        former, _running.stream = getattr(_running, "stream", None), torch.cuda.current_stream(self._index)
        return former, external(self._index, _running.stream.cuda_stream)

    def end(self, former):
        """Forgets the stream of a call."""
        torch.accelerator.set_stream(_running.stream)
        _running.stream = former

    def _stream(self, number):
        return _running.stream if number is None else torch._dynamo.graph_bytecode_inputs.get_external_object_by_index(number)

    def switch(self, number):
        """Makes a stream current."""
        torch.accelerator.set_stream(self._stream(number))
        follow(self._index)

    def call(self, target, *arguments):
        """Calls an operator of streams."""
        target(*arguments)
        follow(self._index)

    def join(self, number):
        """Makes the stream of the call wait for another one."""
        self._stream(None).wait_stream(self._stream(number))


class Simulated:
    """Streams and events of the simulated GPU, one for each number; 0 is the stream of the call."""

    is_simulated = True

    def __init__(self, device):
        self._device, self._streams, self._events = device, {}, {}

    def begin(self):
        """Notes the stream of a call."""
        former, _running.stream = getattr(_running, "stream", None), thalweg.cuda.current_stream(self._device)
        return former, _running.stream

    def end(self, former):
        """Forgets the stream of a call."""
        _running.stream = former

    def _stream(self, number):
        if not number:
            return _running.stream
        if number not in self._streams:
            self._streams[number] = thalweg.cuda.Stream(self._device)
        return self._streams[number]

    def switch(self, number):
        """Makes a stream current."""
        thalweg.cuda.set_stream(self._stream(number))

    def call(self, target, *arguments):
        """Executes an operator of streams."""
        name = target._schema.name.removeprefix("streams::")
        if name in ("fork", "join"):
            self.switch(arguments[1])
        elif name == "record_event":
            self._events[arguments[0]] = self._stream(arguments[1]).record_event()
        elif name in ("wait_event", "sync_dealloc"):
            self._stream(arguments[1]).wait_event(self._events[arguments[0]])
        elif name == "wait_stream":
            self._stream(arguments[0]).wait_stream(self._stream(arguments[1]))

    def join(self, number):
        """Makes the stream of the call wait for another one."""
        self._stream(None).wait_stream(self._stream(number))
