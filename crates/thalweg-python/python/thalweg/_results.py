"""Shapes, and the named tuples of operators with several results."""

import collections
import functools
import math
import operator


class Size(tuple):
    """A shape (`torch.Size`): a tuple of extents."""

    __slots__ = ()

    def __new__(cls, sizes=()):
        sizes = tuple(sizes)
        if not all(type(size) is int for size in sizes):
            sizes = tuple(_extent(place, size) for place, size in enumerate(sizes))
        return tuple.__new__(cls, sizes)

    def numel(self):
        """Returns the number of elements of a tensor of this shape."""
        return math.prod(self)

    def __repr__(self):
        return f"torch.Size({list(self)})"

    def __getitem__(self, place):
        part = tuple.__getitem__(self, place)
        return Size(part) if isinstance(place, slice) else part

    def __add__(self, other):
        if isinstance(other, tuple):
            return Size(tuple.__add__(self, other))
        if hasattr(type(other), "__radd__"):
            return NotImplemented
        raise TypeError(f"can only concatenate tuple (not {type(other).__name__}) to torch.Size")

    def __radd__(self, other):
        return Size(tuple.__add__(other, self)) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, count):
        return Size(tuple.__mul__(self, count))

    __rmul__ = __mul__


def _extent(place, size):
    """Returns an extent of a shape from an integer or an object that converts to one."""
    whole = getattr(getattr(size, "dtype", None), "is_floating_point", None) is False and size.dim() == 0
    if isinstance(size, bool) or whole:
        return int(size)
    if isinstance(size, int):
        # An extent of a program that is being exported knows how it follows from the inputs.
        return size
    try:
        return operator.index(size)
    except TypeError:
        pass
    raise TypeError(f"torch.Size() takes an iterable of 'int' (item {place} is '{type(size).__name__}')")


# Makes a shape from integers, without checks.
plain_size = functools.partial(tuple.__new__, Size)


def results_class(name, fields):
    """Returns the class of the results of an operator (`torch.return_types.NAME`)."""
    safe = [field if field.isidentifier() else f"result{place}" for place, field in enumerate(fields)]
    made = collections.namedtuple(name, safe, rename=True, module="thalweg.return_types")
    made.__doc__ = f"The results of `{name}`."
    made.__new__, made.__repr__ = _of_results, _printed
    made.n_fields = made.n_sequence_fields = len(safe)
    made.n_unnamed_fields = 0
    return made


def _of_results(cls, *results):
    """Returns results, which are passed one by one or as one sequence, as in PyTorch."""
    return tuple.__new__(cls, results if len(results) == len(cls._fields) else results[0])


def _printed(self):
    """Returns the results as PyTorch prints them, each on its own lines."""
    lines = ",\n".join(f"{field}={value!r}" for field, value in zip(self._fields, self))
    return f"torch.return_types.{type(self).__name__}(\n{lines})"
