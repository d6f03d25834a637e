"""Recordings of device activity (`torch.profiler`): timelines in Kineto's format, and sums per operator.

Recorded are the commands of the current device, with the driver calls that submitted them, and named regions. The host's own work
is not recorded.
"""

import enum
import functools
import os
import time
import types

from . import _core
from ._absent import _Absent
from ._regions import Open
from ._left_out import attributes as _attributes
from ._profiler_events import DeviceType, EventList  # noqa: F401
from .autograd import kineto_available  # noqa: F401


class ProfilerActivity(enum.Enum):
    """The kinds of events that PyTorch can record. Here commands and driver calls are always recorded together."""

    CPU = 0
    XPU = 1
    CUDA = 2
    MTIA = 3
    HPU = 4
    PrivateUse1 = 5


class ProfilerAction(enum.Enum):
    """The ways in which the profiler treats a step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


_RECORDS = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


def supported_activities():
    """Returns the kinds of events that are recorded: calls and commands together."""
    return {ProfilerActivity.CPU, ProfilerActivity.CUDA}


def schedule(*, wait, warmup, active, repeat=0, skip_first=0, skip_first_wait=0):
    """Returns a function of a step's number: some steps are skipped, then cycles wait, warm up and record; `repeat` limits the
    cycles, 0 means no limit."""
    if min(wait, warmup, repeat, skip_first) < 0 or active < 1:
        raise AssertionError("Invalid profiler schedule arguments")

    def action(step):
        if step < skip_first:
            return ProfilerAction.NONE
        step -= skip_first
        if skip_first_wait:
            step += wait
        cycle, place = divmod(step, wait + warmup + active)
        if (repeat and cycle >= repeat) or place < wait:
            return ProfilerAction.NONE
        if place < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD_AND_SAVE if place == wait + warmup + active - 1 else ProfilerAction.RECORD
    return action


def tensorboard_trace_handler(dir_name, worker_name=None, use_gzip=False):
    """Returns a function for `on_trace_ready` that writes each trace to a separate file in a folder."""
    def write(prof):
        import socket
        os.makedirs(dir_name, exist_ok=True)
        name = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        prof.export_chrome_trace(os.path.join(dir_name, f"{name}.{time.time_ns()}.pt.trace.json{'.gz' if use_gzip else ''}"))
    return write


class record_function:
    """A named region in recordings: a context manager and a decorator."""

    def __init__(self, name, args=None):
        self.name = name
        self._regions = Open()

    def __enter__(self):
        self._regions.enter(_core._RecordFunction(self.name))
        return self

    def __exit__(self, *_):
        self._regions.leave().close()

    def __call__(self, function):
        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            with record_function(self.name):
                return function(*args, **kwargs)
        return wrapped


class emit_nvtx:
    """A region in which operators and `record_function` are NVTX ranges, for Nsight Systems (`torch.autograd.profiler.emit_nvtx`)."""

    def __init__(self, enabled=True, record_shapes=False):
        if record_shapes:
            raise NotImplementedError("emit_nvtx(record_shapes=True): ranges have the names of operators alone")
        self._enabled, self._emitter = enabled, None

    def __enter__(self):
        if self._emitter is not None:
            raise RuntimeError("NVTX annotation context manager is not reentrant")
        self._emitter = _core._EmitNvtx() if self._enabled else None
        return self

    def __exit__(self, *_):
        if self._emitter is not None:
            self._emitter.close()
            self._emitter = None


class KeyAverages(list):
    """Sums per operator, those with the most device time first: `key`, `count`, and times in microseconds."""

    def __init__(self, trace):
        super().__init__(types.SimpleNamespace(**row) for row in trace.averages())
        self._trace = trace

    def table(self, sort_by=None, row_limit=100, **options):
        """Returns the sums as a table, sorted by a column of PyTorch's name."""
        return self._trace.table(sort_by, row_limit)

    def __str__(self):
        return self.table()


class profile:
    """Records a region, or steps of a loop by a schedule. `on_trace_ready` is called with this object whenever a recording has
    ended."""

    def __init__(self, *, activities=None, schedule=None, on_trace_ready=None, record_shapes=False, profile_memory=False, with_stack=False,
                 with_flops=False, with_modules=False, experimental_config=None, execution_trace_observer=None, acc_events=False, use_cuda=None,
                 custom_trace_id_callback=None):
        self._schedule = schedule or (lambda step: ProfilerAction.RECORD_AND_SAVE)
        self._is_scheduled = schedule is not None
        self._profile_memory = profile_memory
        self.on_trace_ready = on_trace_ready
        self.step_num = 0
        self._action, self._is_recording, self._device, self._trace, self._region = ProfilerAction.NONE, False, None, None, None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        """Starts the recording, or the first step of the schedule."""
        self._action = self._schedule(self.step_num)
        self._follow()
        self._begin_step()

    def stop(self):
        """Ends the recording, which is passed to `on_trace_ready`. Blocks until the device is idle."""
        self._end_step()
        if self._is_recording:
            self._finish()

    def step(self):
        """Marks the beginning of the next step of the loop."""
        self._end_step()
        if self._is_recording and self._action is ProfilerAction.RECORD_AND_SAVE and self._is_scheduled:
            self._finish()
        self.step_num += 1
        self._action = self._schedule(self.step_num)
        self._follow()
        self._begin_step()

    def _begin_step(self):
        if self._is_scheduled:
            self._region = record_function(f"ProfilerStep#{self.step_num}")
            self._region.__enter__()

    def _end_step(self):
        if self._region is not None:
            self._region.__exit__()
            self._region = None

    def _follow(self):
        wanted = self._action in _RECORDS
        if wanted and not self._is_recording:
            self._device = _core.get_default_device()
            _core._profiler_start(self._device, self._profile_memory)
        elif self._is_recording and not wanted:
            _core._profiler_stop(self._device)
        self._is_recording = wanted

    def _finish(self):
        self._is_recording = False
        self._trace = _core._profiler_stop(self._device)
        if self.on_trace_ready is not None:
            self.on_trace_ready(self)

    def _recorded(self):
        if self._trace is None:
            raise AssertionError("Profiler didn't finish running: nothing was recorded yet, or the recording has not ended")
        return self._trace

    def export_chrome_trace(self, path):
        """Writes the timeline of the last recording in Kineto's format, for Perfetto and `chrome://tracing`; compressed, if the name ends with `.gz`."""
        path = os.fspath(path)
        if not path.endswith(".gz"):
            self._recorded().export(path)
            return
        import gzip
        import shutil
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            plain = os.path.join(folder, "trace.json")
            self._recorded().export(plain)
            with open(plain, "rb") as read, gzip.open(path, "wb") as write:
                shutil.copyfileobj(read, write)

    def events(self):
        """Returns the single events of the last recording."""
        self._recorded()
        return EventList(self)

    def key_averages(self, group_by_input_shape=False, group_by_stack_n=0, group_by_overload_name=False):
        """Returns the sums per operator of the last recording."""
        if group_by_input_shape or group_by_stack_n:
            raise NotImplementedError("key_averages() groups by operator alone")
        return KeyAverages(self._recorded())


itt = _Absent(f"{__name__}.itt", "Intel's marks of time, which there are none of here.")
_LEFT_OUT = {
    "ExecutionTraceObserver": "a timeline has the commands", 
}

__getattr__ = _attributes(__name__, _LEFT_OUT)
