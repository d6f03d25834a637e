"""Sizes that are not known before a call, as computations of a program."""

import sympy

from thalweg._core import Place

# By the names of the classes of SymPy and of PyTorch's functions.
NAMES = {
    "Add": "add", "Mul": "mul", "FloorDiv": "floordiv", "CleanDiv": "floordiv", "Mod": "mod", "PythonMod": "mod",
    "Max": "max", "Min": "min",
}  # fmt: skip


class Unknown(Exception):
    """The exception for an expression that is not a computation with known integers."""


class Integers:
    """The integers of a graph, each computed once. None is ever compared, so that no guard is added."""

    def __init__(self, description):
        self._description, self._known, self._sources = description, {}, {}

    def define(self, number, value):
        """Notes that a symbolic number has a value: a reference to a slot."""
        self._known.setdefault(number.node.expr, value)

    def note_sizes(self, tensor, slot):
        """Notes the symbols that are sizes of a tensor."""
        for place, size in enumerate(tensor.shape):
            if not isinstance(size, int) and size.node.expr.is_Symbol:
                self._sources.setdefault(size.node.expr, (slot, place))

    def of(self, number):
        """Returns an integer, or a reference to the slot with it."""
        return number if isinstance(number, int) else self._of(number.node.expr)

    def _of(self, expression):
        if expression.is_Integer:
            return int(expression)
        if expression not in self._known:
            self._known[expression] = self._computed(expression)
        return self._known[expression]

    def _computed(self, expression):
        if expression.is_Symbol:
            if expression not in self._sources:
                raise Unknown(f"{expression} is not a size of an input")
            slot, place = self._sources[expression]
            return self._description.integer("size", [Place(slot), place])
        if isinstance(expression, sympy.Pow) and expression.exp.is_Integer and expression.exp > 0:
            return self._description.integer("mul", [self._of(expression.base)] * int(expression.exp))
        name = NAMES.get(type(expression).__name__)
        if name is None:
            raise Unknown(f"{type(expression).__name__} is not a computation with integers here")
        return self._description.integer(name, [self._of(argument) for argument in expression.args])


def require(found, expected):
    """Checks a number that depends on elements, and that a graph was compiled for."""
    if found != expected:
        raise RuntimeError(f"a size or a number of the function is {found}, and must be {expected}")
