"""The single events of a recording (`profile.events()`)."""

import enum
import json
import os
import tempfile


class DeviceType(enum.Enum):
    """The kind of device that an event belongs to."""

    CPU = 0
    CUDA = 1


class Interval:
    """A range of time, in microseconds."""

    def __init__(self, start, end):
        self.start, self.end = start, end

    def elapsed_us(self):
        """Returns the length of the range."""
        return self.end - self.start


# The categories of events on a GPU; the others are calls of the host.
_OF_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
_OF_HOST = ("cpu_op", "cuda_driver", "cuda_runtime", "user_annotation")


class FunctionEvent:
    """An operator, a region or a call of the driver on the host, or a command of a GPU."""

    def __init__(self, number, event):
        self.id, self.name, self.count = number, event["name"], 1
        self.trace_name = self.key = self.name
        is_of_device = event["cat"] in _OF_DEVICE
        self.device_type = DeviceType.CUDA if is_of_device else DeviceType.CPU
        self.is_user_annotation = event["cat"].endswith("user_annotation")
        self.time_range = Interval(event["ts"], event["ts"] + event["dur"])
        self.thread, self.arguments = event["tid"], event.get("args", {})
        self.device_index = self.arguments.get("device", 0)
        self.kernels, self.is_async = [], False

    def _own(self, kind):
        return self.time_range.elapsed_us() if self.device_type is kind else 0.0

    @property
    def cpu_time_total(self):
        """The microseconds on the host."""
        return self._own(DeviceType.CPU)

    @property
    def device_time_total(self):
        """The microseconds of a command on the GPU; of a call, those of the commands that it submitted."""
        return self._own(DeviceType.CUDA) + sum(command.device_time_total for command in self.kernels)

    cpu_time, device_time, self_device_time_total = cpu_time_total, device_time_total, device_time_total

    def __repr__(self):
        times = f"start_us={self.time_range.start:.3f} end_us={self.time_range.end:.3f}"
        return f"<FunctionEvent id={self.id} name={self.name} device_type=DeviceType.{self.device_type.name} {times} thread={self.thread}>"


class EventList(list):
    """The events of a recording, in the order in which they began."""

    def __init__(self, recording):
        self._recording = recording
        timed = [event for event in read(recording) if event.get("ph") == "X" and event.get("cat") in (*_OF_DEVICE, *_OF_HOST)]
        super().__init__(FunctionEvent(number, event) for number, event in enumerate(sorted(timed, key=lambda event: event["ts"]), 1))
        calls = {}
        for event in self:
            if event.device_type is DeviceType.CPU and "External id" in event.arguments:
                calls.setdefault(event.arguments["External id"], event)
        for event in self:
            call = calls.get(event.arguments.get("External id")) if event.device_type is DeviceType.CUDA else None
            if call is not None:
                call.kernels.append(event)

    def key_averages(self, **options):
        """Returns the sums per operator."""
        return self._recording.key_averages(**options)

    def table(self, sort_by=None, row_limit=100, **options):
        """Returns the sums per operator as a table."""
        return self.key_averages().table(sort_by, row_limit)

    def export_chrome_trace(self, path):
        """Writes the timeline."""
        self._recording.export_chrome_trace(path)


def read(recording):
    """Returns the events of a recording's timeline."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        recording.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    return found["traceEvents"] if isinstance(found, dict) else found
