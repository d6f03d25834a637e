"""Tensors of a process that was forked from one that has used a device. The child cannot use that device, so its
tensors are moved to a device of its own.

What counts are the objects that the child reaches from some roots, such as the attributes of its process object. Shared memory is shared
with the parent. Other memory is copied as it was before the fork, once for all tensors over it.
"""

import gc
import sys
import types

from . import _core, _host_memory
from ._storages import has_memory

Tensor = _core.Tensor
# Objects that are passed over: their contents are not the program's, or have no tensors.
_LEAVES = (types.ModuleType, types.CodeType, types.BuiltinFunctionType, types.FrameType, str, bytes, int, float, Tensor)


def _is_of_a_library(value):
    """Returns whether a function or class is of Python's library or of this package, whose globals are not the program's."""
    root = (getattr(value, "__module__", None) or "").partition(".")[0]
    return root in ("torch", __package__) or root in sys.stdlib_module_names


def _globals_of(function):
    """Returns the values of the global names that a function's code mentions, in its nested functions, too."""
    if _is_of_a_library(function):
        return []
    codes, found = [function.__code__], []
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        found += [function.__globals__[name] for name in code.co_names if name in function.__globals__]
    return found


def _parts_of(value):
    """Returns the objects that an object refers to, as far as they may lead to tensors."""
    if isinstance(value, type):
        return [part for part in vars(value).values() if isinstance(part, types.FunctionType)] if value.__module__ == "__main__" else []
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        return _globals_of(value) + cells + list(value.__defaults__ or ()) + list((value.__kwdefaults__ or {}).values())
    return gc.get_referents(value)


def _is_filled(cell):
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True


def reached(roots):
    """Returns the tensors that can be reached from some objects."""
    found, seen, waiting = [], set(), list(roots)
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            found.append(value)
            waiting += [part for part in (value.__dict__, value.grad if value.is_leaf else None) if part]
        elif not isinstance(value, _LEAVES):
            waiting += _parts_of(value)
    return found


class Carried:
    """The tensors that can be reached from some objects, to be moved across a fork."""

    def __init__(self, roots):
        self._tensors, self._memories = [], {}
        for tensor in reached(roots):
            plain = Tensor.detach(tensor)
            if not _host_memory.is_host(plain.device) or not has_memory(plain):
                continue
            key = plain._storage_identity()
            if key not in self._memories:
                region = _host_memory.region_of(plain)
                self._memories[key] = region or bytes(plain._storage_as_bytes()._bytes())
            place = plain.dtype, tuple(plain.shape), plain.stride(), plain.storage_offset()
            self._tensors.append((tensor, key, place, tensor.requires_grad and tensor.is_leaf))

    def arrive(self):
        """Gives each tensor memory of this process, and detaches it from the graphs of the parent."""
        rows = {}
        for key, memory in self._memories.items():
            if isinstance(memory, bytes):
                rows[key] = _core._from_bytes(memory, [len(memory)], _core.uint8, "cpu")
            else:
                rows[key] = _core._over_process(memory, memory.address, ([memory.size], [1]), _core.uint8, "cpu")
        gradients = [(tensor, tensor.grad) for tensor, *_ in self._tensors if tensor.is_leaf and tensor.grad is not None]
        for tensor, key, (dtype, shape, strides, offset), is_leaf in self._tensors:
            row = rows[key]
            row = row[:row.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
            tensor._become(row.as_strided(list(shape), list(strides), offset).detach().requires_grad_(is_leaf))
        for tensor, gradient in gradients:
            tensor.grad = gradient


def start(carried):
    """Begins the work of a forked process: creates its simulated GPU and generators, and moves the tensors over."""
    from . import random
    _core._start_in_child()
    # Generators from before the fork belong to devices that are not there.
    vars(sys.modules[__package__]).pop("default_generator", None)
    random._is_forked = True
    carried.arrive()
    random.manual_seed(random._seed)
