"""Shapes, and the named tuples of operators with several results."""

import collections
import math


class Size(tuple):
    """A shape (`torch.Size`): a tuple of extents."""

    __slots__ = ()

    def numel(self):
        """Returns the number of elements of a tensor of this shape."""
        return math.prod(self)

    def __repr__(self):
        return f"torch.Size({list(self)})"

    def __getitem__(self, place):
        part = tuple.__getitem__(self, place)
        return Size(part) if isinstance(place, slice) else part

    def __add__(self, other):
        return Size(tuple.__add__(self, tuple(other)))


def results_class(name, fields):
    """Returns the class of the results of an operator (`torch.return_types.NAME`)."""
    safe = [field if field.isidentifier() else f"result{place}" for place, field in enumerate(fields)]
    made = collections.namedtuple(name, safe, rename=True, module="thalweg.return_types")
    made.__doc__ = f"The results of `{name}`."
    made.__repr__ = _printed
    return made


def _printed(self):
    """Returns the results as PyTorch prints them, each on lines of its own."""
    lines = ",\n".join(f"{field}={value!r}" for field, value in zip(self._fields, self))
    return f"torch.return_types.{type(self).__name__}(\n{lines})"
