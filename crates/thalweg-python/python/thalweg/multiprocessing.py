"""Processes (`torch.multiprocessing`): Python's own, between which tensors are sent by value. Memory is not shared."""

import multiprocessing
import sys
from multiprocessing import *  # noqa: F401,F403
from multiprocessing import connection, managers, pool, process, queues, reduction, synchronize  # noqa: F401


class ProcessException(Exception):
    """The exception of a process that failed."""

    def __init__(self, msg, error_index, pid):
        super().__init__(msg)
        self.msg, self.error_index, self.pid = msg, error_index, pid


class ProcessRaisedException(ProcessException):
    """The exception for a process in which an exception was raised."""


class ProcessExitedException(ProcessException):
    """The exception for a process that ended abnormally without an exception."""

    def __init__(self, msg, error_index, error_pid, exit_code, signal_name=None):
        super().__init__(msg, error_index, error_pid)
        self.exit_code, self.signal_name = exit_code, signal_name


def _run(function, number, args, errors, is_torch):
    """Calls a function in a process, and sends its exception to the parent as text."""
    if is_torch:
        from . import install_as_torch
        install_as_torch()
    try:
        function(number, *args)
    except KeyboardInterrupt:
        pass
    except Exception:
        import traceback
        errors.put((number, traceback.format_exc()))
        sys.exit(1)


class ProcessContext:
    """A group of processes that were started together."""

    def __init__(self, processes, errors):
        self.processes, self._errors = processes, errors

    def pids(self):
        """Returns the process ids."""
        return [int(one.pid) for one in self.processes]

    def join(self, timeout=None, grace_period=None):
        """Waits for the processes. Returns whether all have finished, and raises if one has failed."""
        alive = [one.sentinel for one in self.processes if one.exitcode is None]
        if alive:
            connection.wait(alive, timeout)
        failed = next((number for number, one in enumerate(self.processes) if one.exitcode not in (None, 0)), None)
        if failed is None:
            return all(one.exitcode == 0 for one in self.processes)
        for one in self.processes:
            if one.is_alive():
                one.terminate()
            one.join()
        code = self.processes[failed].exitcode
        if not self._errors.empty():
            number, text = self._errors.get()
            raise ProcessRaisedException(f"\n\n-- Process {number} terminated with the following error:\n{text}", number, self.processes[number].pid)
        raise ProcessExitedException(f"process {failed} terminated with exit code {code}", failed, self.processes[failed].pid, code)


SpawnContext = ProcessContext


def start_processes(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"):
    """Starts processes that call a function with their index, and waits for them unless `join` is false."""
    context = multiprocessing.get_context(start_method)
    errors = context.SimpleQueue()
    is_torch = sys.modules.get("torch") is sys.modules[__package__]
    processes = [context.Process(target=_run, args=(fn, number, args, errors, is_torch), daemon=daemon) for number in range(nprocs)]
    for one in processes:
        one.start()
    made = ProcessContext(processes, errors)
    if not join:
        return made
    while not made.join():
        pass
    return None


def spawn(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"):
    """Spawns processes that call a function with their index, and waits for them unless `join` is false."""
    return start_processes(fn, args, nprocs, join, daemon, start_method)


def get_all_sharing_strategies():
    """Returns the names of the sharing strategies, none of which is used."""
    return {"file_descriptor", "file_system"}


def get_sharing_strategy():
    """Returns the sharing strategy that was set."""
    return _strategy[0]


def set_sharing_strategy(new_strategy):
    """Stores the sharing strategy. It has no effect: tensors are sent by value."""
    if new_strategy not in get_all_sharing_strategies():
        raise AssertionError(f"invalid sharing strategy {new_strategy}")
    _strategy[0] = new_strategy


_strategy = ["file_descriptor"]
# `torch.multiprocessing.reductions` and others can be imported as if they existed.
__path__ = []
