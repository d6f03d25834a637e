"""Extents of inputs that may change (`torch.export.dynamic_shapes`)."""

import enum

from .. import _core
from ..utils import _pytree

Tensor = _core.Tensor


class _DimHint(enum.Enum):
    AUTO, STATIC, DYNAMIC = range(3)


class Dim:
    """An extent with a name, which may be any from `min` to `max`."""

    AUTO, STATIC, DYNAMIC = _DimHint.AUTO, _DimHint.STATIC, _DimHint.DYNAMIC

    def __init__(self, name, *, min=None, max=None):
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"Dim name must be a valid Python identifier, got {name!r}")
        low, high = 0 if min is None else min, (1 << 63) - 1 if max is None else max
        if high <= low:
            raise ValueError(f"Cannot create Dim with inconsistent min={low}, max={high}")
        self.__name__, self.min, self.max, self._factor, self._offset, self._root = name, low, high, 1, 0, self

    def _derived(self, factor, offset):
        made = Dim.__new__(Dim)
        made.min, made.max, made._root = self.min * factor + offset, self.max * factor + offset, self._root
        made._factor, made._offset = self._factor * factor, self._offset * factor + offset
        made.__name__ = (f"{made._factor}*" if made._factor != 1 else "") + self._root.__name__ + (f" + {made._offset}" if made._offset else "")
        return made

    def __mul__(self, factor):
        return self._derived(factor, 0)

    __rmul__ = __mul__

    def __add__(self, offset):
        return self._derived(1, offset)

    __radd__ = __add__

    def __sub__(self, offset):
        return self._derived(1, -offset)

    def __repr__(self):
        return f"Dim('{self.__name__}', min={self.min}, max={self.max})"


def dims(*names, min=None, max=None):
    """Returns several extents with names."""
    return tuple(Dim(name, min=min, max=max) for name in names)


class ShapesCollection(dict):
    """Extents that may change, by tensors or numbers among the arguments."""

    def __init__(self):
        super().__init__()
        self._shapes = {}

    def __setitem__(self, value, shape):
        self._shapes[id(value)] = shape

    def dynamic_shapes(self, m, args, kwargs=None):
        """Returns the extents as nested as the arguments are."""
        from ._program import bound
        return _pytree.tree_map(lambda value: self._shapes.get(id(value)), bound(m, args, kwargs or {}))


def of_leaves(given, bound_args):
    """Returns for each leaf of the arguments its extents that may change, by dimension."""
    values = list(bound_args.values())
    if isinstance(given, ShapesCollection):
        raise TypeError("pass `collection.dynamic_shapes(model, args)`")
    if isinstance(given, dict):
        unknown = set(given) - set(bound_args)
        if unknown and given:
            raise RuntimeError(f"When `dynamic_shapes` is specified as a dict, its top-level keys must be the arg names {list(bound_args)} of `inputs`, but "
                               f"here they are {list(given)}")
        given = [given.get(name) for name in bound_args]
    given = list(given or [])
    given += [None] * (len(values) - len(given))
    found = []
    for value, shape in zip(values, given):
        _collect(value, shape, found)
    return found


def _collect(value, shape, found):
    if isinstance(value, Tensor):
        pairs = shape.items() if isinstance(shape, dict) else enumerate(shape or ())
        found.append({dim % max(value.dim(), 1): one for dim, one in pairs if one is not None and not isinstance(one, int) and one is not Dim.STATIC})
        return
    children, spec = _pytree.tree_flatten(value, is_leaf=lambda part: part is not value)
    if not children or (len(children) == 1 and children[0] is value):
        found.append({})
        return
    if isinstance(shape, dict) and isinstance(value, dict):
        parts = [shape.get(key) for key in value]
    else:
        parts = list(shape) if isinstance(shape, (list, tuple)) else [None] * len(children)
    for child, part in zip(children, parts):
        _collect(child, part, found)
