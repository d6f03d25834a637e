"""Modules of padding (`torch.nn.ConstantPad2d` and others)."""

import numbers

from . import functional as F
from .module import Module


class _Pad(Module):
    _dims, _mode = 0, "constant"

    def __init__(self, padding):
        super().__init__()
        self.padding = (padding,) * (2 * self._dims) if isinstance(padding, numbers.Integral) else tuple(padding)
        if len(self.padding) != 2 * self._dims:
            raise ValueError(f"{type(self).__name__}: padding has {2 * self._dims} numbers, not {len(self.padding)}")

    def forward(self, input):
        return F.pad(input, self.padding, self._mode)

    def extra_repr(self):
        return f"{self.padding}"


class _ConstantPad(_Pad):
    def __init__(self, padding, value):
        super().__init__(padding)
        self.value = value

    def forward(self, input):
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self):
        return f"padding={self.padding}, value={self.value}"


class _ZeroPad(_ConstantPad):
    def __init__(self, padding):
        super().__init__(padding, 0.0)

    def extra_repr(self):
        return f"{self.padding}"


class _ReflectionPad(_Pad):
    _mode = "reflect"


class _ReplicationPad(_Pad):
    _mode = "replicate"


class _CircularPad(_Pad):
    _mode = "circular"

    def forward(self, input):
        if input.dim() not in (self._dims + 1, self._dims + 2):
            raise ValueError(f"expected {self._dims + 1}D or {self._dims + 2}D input (got {input.dim()}D input)")
        return super().forward(input)


_DOCS = {"Constant": "a given value", "Zero": "zeros", "Reflection": "elements mirrored at the edge", "Replication": "the element at the edge",
         "Circular": "elements of the other end"}
_BASES = {"Constant": _ConstantPad, "Reflection": _ReflectionPad, "Replication": _ReplicationPad, "Circular": _CircularPad}


def _made(kind, dims):
    # A pad of zeros is one of a constant.
    bases = (_ZeroPad, (ConstantPad1d, ConstantPad2d, ConstantPad3d)[dims - 1]) if kind == "Zero" else (_BASES[kind],)
    name = f"{kind}Pad{dims}d"
    return type(name, bases, {"_dims": dims, "__module__": "thalweg.nn", "__qualname__": name,
                                "__doc__": f"Pads the last {dims} dimensions with {_DOCS[kind]}."})


ConstantPad1d, ConstantPad2d, ConstantPad3d = (_made("Constant", dims) for dims in (1, 2, 3))
ZeroPad1d, ZeroPad2d, ZeroPad3d = (_made("Zero", dims) for dims in (1, 2, 3))
ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = (_made("Reflection", dims) for dims in (1, 2, 3))
ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = (_made("Replication", dims) for dims in (1, 2, 3))
CircularPad1d, CircularPad2d, CircularPad3d = (_made("Circular", dims) for dims in (1, 2, 3))
