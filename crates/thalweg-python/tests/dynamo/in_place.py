"""Programs inside PyTorch whose calls are recorded and repeated, as on a GPU, where there is none.

Tensors of the CPU are copied to memory of the simulated GPU before each call, each storage once, and back after it, with whatever the call
has written there. A program sees them as it sees PyTorch's tensors on a GPU: as memory in its place.
"""

import contextlib
import ctypes
import sys
from unittest import mock

import thalweg
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from thalweg import _core
from thalweg.dynamo import _code, _entry

SIMULATED = thalweg.device("sim", 0)


def bytes_of(storage):
    """Returns the memory of a storage of the CPU."""
    return (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())


class Copy:
    """The copy of a storage. It does not keep the storage alive, so that the last tensor that uses it may be known as such. Memory of another
    library stays its own, whatever becomes of the storage: a program in its place would write it."""

    def __init__(self, storage, flat=None):
        self.bytes, self.reference = storage.nbytes(), StorageWeakRef(storage)
        self.external = bytes_of(storage) if self.bytes and not storage.resizable() else None
        self.flat = thalweg.empty(max(self.bytes, 1), dtype=thalweg.uint8, device=SIMULATED) if flat is None else flat
        if flat is None:
            self.read()

    def _memory(self):
        if self.external is not None or self.reference.expired() or not self.bytes:
            return self.external
        return bytes_of(torch.UntypedStorage._new_with_weak_ptr(self.reference.cdata))

    def read(self):
        """Copies the storage."""
        if self.bytes and (memory := self._memory()) is not None:
            self.flat[: self.bytes].copy_(thalweg.frombuffer(bytearray(memory), dtype=thalweg.uint8).to(SIMULATED))

    def write(self):
        """Copies the memory back to the storage, if that still lives."""
        if self.bytes and (memory := self._memory()) is not None:
            memory[:] = bytes(self.flat[: self.bytes].tolist())


class Mirrored:
    """A tensor whose memory is that of the simulated GPU, with the methods of PyTorch that a program calls."""

    def __init__(self, flat, form, tensor=None, base=None):
        self.flat, self.tensor, self.base = flat, tensor, base
        self.dtype, self.shape, self._strides, self._offset = form

    def stride(self):
        return self._strides

    def storage_offset(self):
        return self._offset

    def element_size(self):
        return self.dtype.itemsize

    def untyped_storage(self):
        return self.flat.untyped_storage()

    def data_ptr(self):
        return self.flat.data_ptr() + self._offset * self.dtype.itemsize

    def is_conj(self):
        return False

    is_neg = is_conj


class InPlace:
    """A program whose inputs and results are mirrored."""

    programs = []

    def __init__(self, description, device, streams=None, may_repeat=True):
        self._copies = {}
        # The places of the inputs that are given away, and the number of those that calls have written.
        self._given, self.writes = [place for place, slot in enumerate(description.inputs) if slot in description.given_away], 0
        exchange = {
            "dtypes": _entry.dtypes(),
            "empty_strided": self._made,
            "alias": lambda base, shape, strides, offset: Mirrored(base.flat, (base.dtype, shape, strides, offset), base=base.base or base),
            "addresses": lambda tensors: [one.data_ptr() for one in tensors],
            "is_alone": lambda one: _entry.adapter().is_alone(one.tensor),
            "is_in_place": True,
        }
        steps, slots, inputs, outputs = description.parts()
        steps = [(kind, (self._function(parts[0]), *parts[1:]) if kind == "external" else parts, *rest) for kind, parts, *rest in steps]
        options = {name: getattr(description, name) for name in ("kept", "varying", "given_away")}
        constants = [(slot, self._mirrored(one)) for slot, one in description.constants]
        options |= {"constants": constants, "may_repeat": may_repeat and description.may_repeat}
        self.program = _core.Program(steps, slots, inputs, outputs, device=SIMULATED, exchange=exchange, **options)
        self.programs.append(self)

    def _made(self, shape, strides, dtype):
        """Returns a new tensor, of which PyTorch's is made when it is needed."""
        span = 0 if 0 in shape else sum((size - 1) * stride for size, stride in zip(shape, strides)) + 1
        return Mirrored(thalweg.empty(max(span * dtype.itemsize, 1), dtype=thalweg.uint8, device=SIMULATED), (dtype, shape, strides, 0))

    def _mirrored(self, one):
        if not isinstance(one, torch.Tensor):
            return one
        storage = one.untyped_storage()
        if storage._cdata not in self._copies:
            self._copies[storage._cdata] = Copy(storage)
        return Mirrored(self._copies[storage._cdata].flat, (one.dtype, tuple(one.shape), one.stride(), one.storage_offset()), one)

    def _theirs(self, one):
        """Returns the tensor of PyTorch."""
        if not isinstance(one, Mirrored) or one.tensor is not None:
            return one.tensor if isinstance(one, Mirrored) else one
        if one.base is not None:
            one.tensor = self._theirs(one.base).as_strided(one.shape, one._strides, one._offset)
        else:
            one.tensor = torch.empty_strided(one.shape, one._strides, dtype=one.dtype)
            storage = one.tensor.untyped_storage()
            self._copies[storage._cdata] = Copy(storage, one.flat)
        return one.tensor

    def _function(self, function):
        def run(*given):
            values = [self._theirs(one) for one in given]
            for copy in self._copies.values():
                copy.write()
            answer = function(*values)
            for copy in self._copies.values():
                copy.read()
            answers = answer if isinstance(answer, (list, tuple)) else [answer]
            known = {id(value): one for value, one in zip(values, given)}
            answers = [known.get(id(one)) or self._mirrored(one) for one in answers]
            return answers if isinstance(answer, (list, tuple)) else answers[0]

        return run

    def __call__(self, inputs):
        lasting, self._copies = self._copies, dict(self._copies)
        passed, held, known = [], [], {}
        while inputs:
            one = inputs.pop(0)
            place = known.setdefault(id(one), len(passed)) if isinstance(one, torch.Tensor) else len(passed)
            passed.append(passed[place] if place < len(passed) else self._mirrored(one))
            # Something else than this function holds the tensor: its mirror is held, too.
            if isinstance(one, torch.Tensor) and sys.getrefcount(one) > 3:
                held.append(passed[-1])
        one = None
        given = [(passed[place].flat, passed[place].flat.clone()) for place in self._given if isinstance(passed[place], Mirrored)]
        try:
            results = [self._theirs(one) for one in self.program(passed)]
            for copy in self._copies.values():
                copy.write()
        finally:
            self._copies = lasting
        self.writes += sum(not thalweg.equal(now, before) for now, before in given)
        return results


@contextlib.contextmanager
def in_place():
    """Returns a region in which graphs are compiled to programs whose calls are repeated. It has the list of these programs."""
    InPlace.programs.clear()
    with mock.patch.object(_entry, "program", InPlace), mock.patch.object(_code, "program", InPlace):
        yield InPlace.programs
