"""Processes (`torch.multiprocessing`): Python's own, with memory that they share.

A tensor of the simulated GPU that is sent to another process, by the arguments of the process, a queue or a pipe, is moved to shared
memory, and each process sees what the others write. A forked process has the tensors that it reaches from its process object, on a
simulated GPU of its own: those in shared memory are shared, others are copies.
"""

import multiprocessing
import sys
from multiprocessing import *  # noqa: F401,F403
from multiprocessing import connection, context, managers, pool, process, queues, reduction, synchronize  # noqa: F401

from . import _core, _host_memory, _storages
from ._carried import Carried, start
from ._storage import UntypedStorage
from ._tensor import _of_class
from .nn.parameter import Buffer, Parameter

# ---- Tensors that are sent -----------------------------------------------------------------------------------------


# Whether this process sends tensors by value: a receiver opens shared memory with the help of the sender, which may have ended by then.
_sends_values = False


def send_values():
    """Makes this process send tensors by value instead of sharing their memory."""
    global _sends_values
    _sends_values = True


def _open(descriptor, size):
    """Returns the shared memory of a descriptor that was received."""
    return _host_memory.Region(descriptor.detach(), size)


def _sent(tensor):
    """Returns how the memory of a tensor is sent, after it was moved to shared memory; None if it is sent by value."""
    if _sends_values or not _host_memory.is_host(tensor.device) or not _storages.has_memory(tensor) or tensor._is_on_gpu:
        return None
    _host_memory.share(tensor)
    region = _host_memory.region_of(tensor)
    if not isinstance(region, _host_memory.Region):
        return None
    return reduction.DupFd(region.descriptor), region.size


def _reduce_tensor(tensor):
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not support crossing process boundaries.  "
            "If you just want to transfer the data, call detach() on the tensor before serializing (e.g., putting it on the queue).")
    sent = _sent(tensor.detach())
    if sent is None:
        return tensor.__reduce_ex__(2)
    place = tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    return _receive_tensor, (type(tensor), *sent, place, tensor.requires_grad, _storages.attributes(tensor))


def _receive_tensor(cls, descriptor, size, place, requires_grad, attributes):
    tensor = _of_class(cls, _open(descriptor, size).tensor(*place).detach(), requires_grad)
    return _storages.with_attributes(tensor, attributes)


def _reduce_storage(storage):
    sent = _sent(storage._tensor)
    return storage.__reduce_ex__(2) if sent is None else (_receive_storage, sent)


def _receive_storage(descriptor, size):
    return UntypedStorage(_tensor=_open(descriptor, size).tensor(_core.uint8, [size], [1], 0))


def init_reductions():
    """Makes Python's processes send tensors and storages by shared memory."""
    for kind in (_core.Tensor, Parameter, Buffer):
        reduction.ForkingPickler.register(kind, _reduce_tensor)
    reduction.ForkingPickler.register(UntypedStorage, _reduce_storage)


init_reductions()


# ---- Processes that are forked -------------------------------------------------------------------------------------


def _fork(process_object):
    """Starts a process by a fork, with the tensors that it reaches (`_Popen` of a process of Python)."""
    from multiprocessing.popen_fork import Popen
    carried = Carried([vars(process_object), type(process_object)])

    def bootstrap(*args, **kwargs):
        del process_object._bootstrap
        start(carried)
        return process_object._bootstrap(*args, **kwargs)
    process_object._bootstrap = bootstrap
    try:
        return Popen(process_object)
    finally:
        process_object.__dict__.pop("_bootstrap", None)


if hasattr(context, "ForkProcess"):
    context.ForkProcess._Popen = staticmethod(_fork)


# ---- Groups of processes -------------------------------------------------------------------------------------------


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
    """Returns the names of the sharing strategies. Memory is always shared by a descriptor of a file without a name."""
    return {"file_descriptor", "file_system"}


def get_sharing_strategy():
    """Returns the sharing strategy that was set."""
    return _strategy[0]


def set_sharing_strategy(new_strategy):
    """Stores the sharing strategy. It has no effect: memory is always shared by descriptors."""
    if new_strategy not in get_all_sharing_strategies():
        raise AssertionError(f"invalid sharing strategy {new_strategy}")
    _strategy[0] = new_strategy


_strategy = ["file_descriptor"]
# `torch.multiprocessing.reductions` and others can be imported as if they existed.
__path__ = []
