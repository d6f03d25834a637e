"""Process groups of Python: ranks that exchange tensors through the host (`_hub.py`)."""

import enum
import pickle

from .. import _core
from ._hub import Gone
from ._stores import seconds

Tensor = _core.Tensor


class ReduceOp:
    """The operations of reductions."""

    class RedOpType(enum.Enum):
        """The operations of reductions, by name."""

        SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM = range(9)

    SUM, AVG, PRODUCT, MIN, MAX = RedOpType.SUM, RedOpType.AVG, RedOpType.PRODUCT, RedOpType.MIN, RedOpType.MAX
    BAND, BOR, BXOR, PREMUL_SUM = RedOpType.BAND, RedOpType.BOR, RedOpType.BXOR, RedOpType.PREMUL_SUM

    def __new__(cls, op):
        return op


class _PremulSum:
    """A sum in which each rank multiplies by a factor of its own."""

    def __init__(self, factor):
        self.factor = factor


def _make_nccl_premul_sum(factor):
    """Returns the operation of a sum in which each rank multiplies by a factor of its own."""
    return _PremulSum(factor)


def reduced(tensors, op):
    """Returns the reduction of tensors, in the order of ranks."""
    kinds = ReduceOp.RedOpType
    functions = {kinds.SUM: _core.add, kinds.AVG: _core.add, kinds.PREMUL_SUM: _core.add, kinds.PRODUCT: _core.mul, kinds.MIN: _core.minimum,
                 kinds.MAX: _core.maximum, kinds.BAND: _core.bitwise_and, kinds.BOR: _core.bitwise_or, kinds.BXOR: _core.bitwise_xor}
    kind = kinds.PREMUL_SUM if isinstance(op, _PremulSum) else op
    if kind not in functions:
        raise ValueError(f"{op} is not an operation of a reduction")
    total = tensors[0]
    for tensor in tensors[1:]:
        total = functions[kind](total, tensor)
    if kind is kinds.AVG:
        total = total / len(tensors) if total.is_floating_point() else total.div(len(tensors), rounding_mode="trunc")
    return total


def packed(tensor):
    """Returns a tensor as a message."""
    return bytes(tensor.detach()._bytes()), tuple(tensor.shape), tensor.dtype


def unpacked(message, device):
    """Returns the tensor of a message."""
    elements, shape, dtype = message
    return _core._from_bytes(elements, list(shape), dtype, device)


class Work:
    """A collective in progress. It is complete, unless it waits for a message, or for GPUs."""

    def __init__(self, finish=None, result=None, between_gpus=None):
        self._finish, self._result, self._error, self._between_gpus = finish, result, None, between_gpus

    def wait(self, timeout=None):
        """Waits until the collective is complete, and returns True."""
        if self._finish is not None:
            finish, self._finish = self._finish, None
            finish()
        if self._between_gpus is not None:
            # The current stream waits, and not the host.
            self._between_gpus.wait()
        return True

    def is_completed(self):
        """Returns whether the collective is complete."""
        return self._finish is None and (self._between_gpus is None or self._between_gpus.is_completed())

    is_success = is_completed

    def result(self):
        """Returns the results."""
        return self._result or []

    def synchronize(self):
        """Waits until the collective is complete."""
        self.wait()
        if self._between_gpus is not None:
            self._between_gpus.synchronize()

    def exception(self):
        """Returns None: errors are raised by `wait`."""
        return self._error

    def get_future(self):
        """Returns the results as a future, which is done."""
        from ..futures import Future
        self.wait()
        made = Future()
        made.set_result(self._result)
        return made


class ProcessGroup:
    """Ranks that exchange tensors."""

    def __init__(self, hub, ranks, rank, name, timeout, backend, store=None, device=None):
        self._hub, self._ranks, self._own, self._store, self._device = hub, list(ranks), rank, store, device
        self._communicators = {}
        self._group_name, self._timeout, self._backend = name, timeout, backend
        self._round, self._counts = 0, {}

    group_name = property(lambda self: self._group_name)
    group_desc = property(lambda self: self._group_name)

    def rank(self):
        """Returns this rank's number in the group."""
        return self._ranks.index(self._own)

    def size(self):
        """Returns the number of ranks."""
        return len(self._ranks)

    def name(self):
        """Returns the name of the backend."""
        return self._backend

    def _place(self, rank, what):
        """Returns the number in the group of a rank of the whole."""
        if rank not in self._ranks:
            raise ValueError(f"{what} is rank {rank}, which is not in the group of the ranks {self._ranks}")
        return self._ranks.index(rank)

    def communicator(self, *tensors):
        """Returns the communicator of the ranks' GPUs, or None for tensors that go through the host. It is made by the
        first collective of all ranks that needs it."""
        device = tensors[0].device
        if len(tensors) > 1 and not all(tensor.device == device for tensor in tensors):
            return None
        known = self._communicators.get(device)
        if known is not None:
            return known
        if len(self._ranks) == 1 or self._store is None or self._backend == "gloo" or (device != self._device and not tensors[0]._is_on_gpu):
            return None
        made = _core._Communicator(self._store, f"{self._group_name}/{device.type}", self.rank(), self.size(), device, seconds(self._timeout))
        self._communicators[device] = made
        return made

    def exchange(self, value, what):
        """Returns the values of all ranks, in their order. All must call it, for the same collective."""
        if len(self._ranks) == 1:
            return [value]
        self._round += 1
        try:
            found = self._hub.exchange(f"{self._group_name}/{self._round}", self._own, self._ranks, (what, value), seconds(self._timeout))
        except Gone as error:
            raise RuntimeError(f"{what}: {error}") from None
        except TimeoutError as error:
            raise RuntimeError(f"{what}: {error} (group {self._group_name!r}, collective {self._round})") from None
        called = {other: one for other, (one, _) in zip(self._ranks, found)}
        if len(set(called.values())) > 1:
            raise RuntimeError(f"the ranks of the group {self._group_name!r} call different collectives: "
                               + ", ".join(f"rank {other} {one}" for other, one in called.items()))
        return [one for _, one in found]

    def tensors(self, tensor, what):
        """Returns the tensors of all ranks."""
        if len(self._ranks) == 1:
            return [tensor.detach()]
        found = self.exchange(packed(tensor), what)
        return [unpacked(message, tensor.device) for message in found]

    def post(self, value, destination, tag):
        """Leaves a message for a rank."""
        key = f"{self._group_name}/{self._own}>{destination}/{tag}"
        self._hub.post(key, value)

    def take(self, source, tag, what):
        """Returns the next message from a rank, or from any, with that rank."""
        sources = self._ranks if source is None else [source]
        keys = [f"{self._group_name}/{one}>{self._own}/{tag}" for one in sources]
        try:
            key, value = self._hub.take(keys, source, seconds(self._timeout))
        except Gone as error:
            raise RuntimeError(f"{what}: {error}") from None
        except TimeoutError as error:
            raise RuntimeError(f"{what}: {error} (from rank {source})") from None
        return sources[keys.index(key)], value

    def __repr__(self):
        return f"<ProcessGroup {self._group_name!r} of the ranks {self._ranks}>"


def pickled(value):
    """Returns an object as a message."""
    return pickle.dumps(value)


def unpickled(message):
    """Returns the object of a message."""
    return pickle.loads(message)
