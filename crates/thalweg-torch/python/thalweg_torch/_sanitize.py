"""The sanitizer: finds missing waits and missing `record_stream` calls of a PyTorch program while it runs.

The allocator uses a checker that knows the owner of each block and when it may be reused. This module reports the rest: the reads
and writes of each operator, with stream and line (by a mode of PyTorch's dispatcher), and the operations on events and streams
(by PyTorch's own trace, which `torch.cuda._sanitizer` uses, too).
"""

import ctypes
import os
import re
import sys
import threading

from . import _library

_FOLDERS = (os.path.dirname(os.path.abspath(__file__)) + os.sep,)

RECORDED, WAITED, SEEN_COMPLETE, DESTROYED = range(4)
READ, WRITE = 0, 1

# Their outputs are uninitialized, and of their inputs they only use shape and dtype.
_MAKES_EMPTY = re.compile(r"^aten::(new_)?empty(_like|_strided|_permuted|_quantized)?$")
_WANTS_THE_FORM = re.compile(r"^aten::(new_\w+|\w+_like)$")
# They change a tensor's metadata, and no memory.
_CHANGES_THE_FORM = {"aten::resize_", "aten::resize_as_", "aten::set_", "aten::record_stream"}


class Sanitizer:
    """Reports a program's work to the checker of the process, from `start` on, and prints the findings."""

    def __init__(self, library):
        import torch

        self.torch, self.library = torch, library
        self.folders = _FOLDERS + (os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,)
        self.functions, self.handle = library.functions, library.handle
        self.here = threading.local()
        self.lock = threading.Lock()
        self.findings = []
        self.operators = 0
        self.devices = {}

    def start(self):
        """Watches the calling thread and those that are started from now on."""
        torch = self.torch
        import torch.cuda._gpu_trace as trace

        torch._C._activate_gpu_trace()
        trace.register_callback_for_event_record(lambda event, stream: self.event(RECORDED, event, stream))
        trace.register_callback_for_event_wait(lambda event, stream: self.event(WAITED, event, stream))
        trace.register_callback_for_event_synchronization(lambda event: self.event(SEEN_COMPLETE, event))
        trace.register_callback_for_event_deletion(lambda event: self.event(DESTROYED, event))
        trace.register_callback_for_stream_creation(self.stream_created)
        trace.register_callback_for_stream_synchronization(self.stream_done)
        trace.register_callback_for_device_synchronization(self.device_done)
        self.follow_questions()
        self.name_streams()
        mode = _mode()
        mode(self).__enter__()
        self.follow_threads(mode)

    # ---- Events missing from the trace ------------------------------------------------------------------------------------

    def follow_questions(self):
        """Checks that a query that returns true orders work like a wait."""
        stream_class, event_class = self.torch.cuda.Stream, self.torch.cuda.Event
        ask_stream, ask_event = stream_class.query, event_class.query

        def query_stream(stream):
            is_done = ask_stream(stream)
            if is_done:
                self.call("thalweg_sanitizer_stream_done", stream.device.index, stream.cuda_stream)
            return is_done

        def query_event(event):
            is_done = ask_event(event)
            if is_done and event.cuda_event:
                self.event(SEEN_COMPLETE, event.cuda_event)
            return is_done

        stream_class.query, event_class.query = query_stream, query_event

    def name_streams(self):
        """Names a stream by the line that made it."""
        stream_class = self.torch.cuda.Stream
        make = stream_class.__new__

        def make_named(cls, *arguments, **keywords):
            stream = make(cls, *arguments, **keywords)
            place = None if "stream_id" in keywords or "stream_ptr" in keywords else self.line(sys._getframe(1))
            if place is not None:
                device, cuda_stream = stream.device.index, stream.cuda_stream
                self.devices[cuda_stream] = device
                name = f"stream {cuda_stream:#x} of device {device} (made at {os.path.basename(place[0])}:{place[1]})"
                self.call("thalweg_sanitizer_name_stream", device, cuda_stream, name.encode())
            return stream

        stream_class.__new__ = staticmethod(make_named)

    def follow_threads(self, mode):
        """Makes threads that are started later enter a dispatcher mode of their own, because a mode belongs to its
        thread."""
        run = threading.Thread.run

        def run_watched(thread):
            with mode(self):
                run(thread)

        threading.Thread.run = run_watched

    # ---- Events and streams ----------------------------------------------------------------------------------------------

    def call(self, name, *arguments):
        # A failed report must not stop the program; it is mentioned once.
        status = getattr(self.functions, name)(self.handle, *arguments)
        if status != _library.OK and not getattr(self, "has_complained", False):
            self.has_complained = True
            message = self.functions.thalweg_error_message().decode()
            print(f"thalweg_torch: the sanitizer could not be told of something: {message}", file=sys.stderr)

    def device_of(self, cuda_stream):
        if cuda_stream == 0:
            return self.torch._C._cuda_getDevice()
        return self.devices.setdefault(cuda_stream, self.torch._C._cuda_getDevice())

    def event(self, what, event, cuda_stream=0):
        self.tell_pending()
        device = self.device_of(cuda_stream) if what in (RECORDED, WAITED) else 0
        self.call("thalweg_sanitizer_event", what, event, device, cuda_stream)

    def stream_created(self, cuda_stream):
        self.devices[cuda_stream] = self.torch._C._cuda_getDevice()

    def stream_done(self, cuda_stream):
        self.tell_pending()
        self.call("thalweg_sanitizer_stream_done", self.device_of(cuda_stream), cuda_stream)

    def device_done(self):
        self.tell_pending()
        self.call("thalweg_sanitizer_device_done", self.torch._C._cuda_getDevice())

    # ---- Operators -------------------------------------------------------------------------------------------------------

    def line(self, frame):
        """Returns file and line of the innermost frame of the program's own code."""
        while frame is not None:
            file = frame.f_code.co_filename
            if not file.startswith(self.folders) and not file.startswith("<"):
                return file, frame.f_lineno
            frame = frame.f_back
        return None

    def site(self, function):
        """Returns the operator's name and its line: for a backward operator, the current line of the main thread, which called
        backward."""
        name = str(function)
        node = self.torch._C._current_autograd_node()
        if node is not None:
            name = f"{name} ({node.name()})"
        place = self.line(sys._getframe(3))
        if place is None:
            place = self.line(sys._current_frames().get(threading.main_thread().ident))
        return name.encode(), place[0].encode() if place else None, place[1] if place else 0

    def at(self, site):
        """Sets this thread's location, and returns the previous one."""
        former = getattr(self.here, "site", None)
        self.here.site = site
        self.call("thalweg_sanitizer_at", *(site or (None, None, 0)))
        return former

    def work(self, site, accesses):
        """Returns the calls that report accesses, each with a tensor and the kind of access."""
        by_device = {}
        for tensor, how in accesses:
            by_device.setdefault(tensor.device.index, []).extend(operand(tensor, how))
        calls = []
        for device, numbers in by_device.items():
            stream = self.torch._C._cuda_getCurrentRawStream(device)
            words = (ctypes.c_int64 * len(numbers))(*numbers)
            calls.append((device, stream, *site, words, len(numbers)))
        return calls

    def tell(self, calls):
        for arguments in calls:
            self.call("thalweg_sanitizer_work", *arguments)
        if calls:
            self.report()

    def tell_pending(self):
        """Reports the work of the operator that this thread is in, before a report of a later operation."""
        calls = getattr(self.here, "pending", None)
        if calls:
            self.here.pending = None
            self.tell(calls)

    def report(self):
        with self.lock:
            count = ctypes.c_uint64()
            new = []
            write = _library.WRITE(lambda _user, address, size: new.append(ctypes.string_at(address, size).decode()))
            self.call("thalweg_sanitizer_findings", len(self.findings), ctypes.byref(count), write, None)
            for text in new:
                self.findings.append(text)
                print(f"\nthalweg_torch: finding {len(self.findings)}\n{text}", file=sys.stderr, flush=True)

    def summary(self):
        """Returns one line for the end of the program."""
        self.report()
        count = len(self.findings)
        found = "nothing found" if count == 0 else f"{count} finding{'s' if count > 1 else ''}"
        return f"thalweg_torch: {self.operators} operators watched: {found}"

    def run(self, function, arguments, keywords):
        """Runs an operator, and reports it to the sanitizer. Its reads and writes are reported as late as possible:
        when it orders streams or waits, because its work precedes that, or else when it returns. (Its allocations
        precede its work, and the allocator may wait for the device in them.) Its results are known only afterwards."""
        schema = getattr(function, "_schema", None)
        if schema is None:
            return function(*arguments, **keywords)
        self.operators += 1
        site = self.site(function)
        former = self.at(site)
        try:
            self.here.pending = self.work(site, inputs(schema, arguments, keywords))
            result = function(*arguments, **keywords)
            self.tell_pending()
            self.tell(self.work(site, outputs(schema, result)))
            return result
        finally:
            self.tell_pending()
            self.at(former)


def operand(tensor, how):
    """Returns the numbers that `thalweg_sanitizer_work` takes for a tensor."""
    address = tensor.untyped_storage().data_ptr() + tensor.storage_offset() * tensor.element_size()
    return [address, tensor.element_size(), how, tensor.dim(), *tensor.shape, *tensor.stride()]


def is_watched(value):
    """Returns whether this is a tensor with memory on a GPU whose address is known."""
    import torch

    return (
        isinstance(value, torch.Tensor)
        and value.is_cuda
        and value.layout is torch.strided
        and type(value).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        and value.untyped_storage().data_ptr() != 0
    )


def tensors(value):
    """Returns the watched tensors in an argument or a result."""
    from torch.utils._pytree import tree_iter

    return [leaf for leaf in tree_iter(value) if is_watched(leaf)]


def inputs(schema, arguments, keywords):
    """Returns the accesses of an operator to its arguments."""
    if schema.name in _CHANGES_THE_FORM or _WANTS_THE_FORM.match(schema.name) or _MAKES_EMPTY.match(schema.name):
        return
    for place, argument in enumerate(schema.arguments):
        if place < len(arguments):
            value = arguments[place]
        elif argument.name in keywords:
            value = keywords[argument.name]
        else:
            continue
        alias = argument.alias_info
        if alias is None or alias.is_write:
            for tensor in tensors(value):
                yield tensor, READ if alias is None else WRITE


def outputs(schema, result):
    """Returns the accesses of an operator to its results."""
    if _MAKES_EMPTY.match(schema.name):
        return
    results = result if len(schema.returns) > 1 and isinstance(result, (tuple, list)) else (result,)
    for returned, value in zip(schema.returns, results):
        if returned.alias_info is None:
            for tensor in tensors(value):
                yield tensor, WRITE


def _mode():
    from torch.utils._python_dispatch import TorchDispatchMode

    class SanitizerMode(TorchDispatchMode):
        # Compiled functions run uncompiled under a mode; those must be watched, too.
        supports_higher_order_operators = True

        @classmethod
        def _should_skip_dynamo(cls):
            return True

        def __init__(self, sanitizer):
            super().__init__()
            self.sanitizer = sanitizer

        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            return self.sanitizer.run(function, arguments, keywords or {})

    return SanitizerMode
