"""Functions of the standard that search, choose, sort and find distinct elements."""

from collections import namedtuple

from .. import _core, _functions
from .._core import Tensor, int64
from ._dtypes import result_type
from ._manipulation import axes_of
from ._object import array, pair

UniqueAllResult = namedtuple("UniqueAllResult", "values indices inverse_indices counts")
UniqueCountsResult = namedtuple("UniqueCountsResult", "values counts")
UniqueInverseResult = namedtuple("UniqueInverseResult", "values inverse_indices")


def _extreme(name):
    operator = getattr(_core, name)

    def function(x, /, *, axis=None, keepdims=False):
        if axis is None:
            found = operator(_core.reshape(x, [-1]), 0)
            return array(_core.reshape(found, [1] * x.ndim) if keepdims else found)
        return array(operator(x, axis, keepdims))
    function.__name__ = function.__qualname__ = name
    function.__doc__ = operator.__doc__
    return function


argmax, argmin = _extreme("argmax"), _extreme("argmin")


def count_nonzero(x, /, *, axis=None, keepdims=False):
    """Returns the number of elements that are not 0."""
    axes = axes_of(axis, x.ndim)
    found = _core.ne(x, 0).to(int64)
    return array(_core.sum(found, axes, keepdims) if axes else found)


def nonzero(x, /):
    """Returns the indices of elements that are not 0, with one array per dimension. The host waits for their number."""
    if x.ndim == 0:
        raise ValueError("nonzero: expected an array of at least one dimension, got none")
    return tuple(array(part) for part in _core.unbind(_core.nonzero(x), 1))


def searchsorted(x1, x2, /, *, side="left", sorter=None):
    """Returns the indices at which elements would be inserted into a sorted array."""
    dtype = result_type(x1, x2)
    x1, x2 = x1.to(dtype), x2.to(dtype)
    if sorter is not None:
        x1 = _core.index_select(x1, 0, sorter.to(int64))
    return array(_core.searchsorted(x1, x2, right=side == "right"))


def where(condition, x1, x2, /):
    """Returns elements of one array or of the other, by a condition."""
    return array(_core.where(condition, *pair(x1, x2)))


def take(x, indices, /, *, axis=None):
    """Returns the elements at the given indices of a dimension."""
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"take: axis has to be given for an array of {x.ndim} dimensions")
        axis = 0
    return array(_core.index_select(x, axis, _from_front(indices, x.shape[axes_of(axis, x.ndim)[0]])))


def take_along_axis(x, indices, /, *, axis=-1):
    """Returns the elements at indices of a dimension that differ along the other dimensions."""
    place = axes_of(axis, x.ndim)[0]
    shape = list(_core.broadcast_tensors([x.narrow(place, 0, 1), indices.narrow(place, 0, 1)])[0].shape) if x.shape[place] and indices.shape[place] else None
    if shape is not None:
        x = _core.broadcast_to(x, [*shape[:place], x.shape[place], *shape[place + 1:]])
        indices = _core.broadcast_to(indices, [*shape[:place], indices.shape[place], *shape[place + 1:]])
    return array(_core.gather(x, place, _from_front(indices, x.shape[place])))


def _from_front(indices, extent):
    indices = indices.to(int64)
    return _core.where(_core.lt(indices, 0), _core.add(indices, extent), indices)


def sort(x, /, *, axis=-1, descending=False, stable=True):
    """Returns the elements of each row along a dimension, sorted."""
    return array(_core.sort(x, stable=stable, dim=axis, descending=descending)[0])


def argsort(x, /, *, axis=-1, descending=False, stable=True):
    """Returns the indices that sort each row along a dimension."""
    return array(_core.sort(x, stable=stable, dim=axis, descending=descending)[1])


def unique_values(x, /):
    """Returns the distinct elements. The host waits for their number."""
    return array(_functions.unique(_core.reshape(x, [-1])))


def unique_counts(x, /):
    """Returns the distinct elements and their counts."""
    return UniqueCountsResult(*array(_functions.unique(_core.reshape(x, [-1]), return_counts=True)))


def unique_inverse(x, /):
    """Returns the distinct elements, and the index of each element among them."""
    values, inverse = _functions.unique(_core.reshape(x, [-1]), return_inverse=True)
    return UniqueInverseResult(array(values), array(_core.reshape(inverse, list(x.shape))))


def unique_all(x, /):
    """Returns the distinct elements, their first indices, the index of each element among them, and their counts."""
    values, inverse, counts = _functions.unique(_core.reshape(x, [-1]), return_inverse=True, return_counts=True)
    # In a stable sort by class, the first element of each class has the lowest index.
    order = _core.sort(inverse, stable=True, dim=0, descending=False)[1]
    begins = _core.sub(_core.cumsum(counts, 0), counts)
    return UniqueAllResult(*array([values, _core.index_select(order, 0, begins), _core.reshape(inverse, list(x.shape)), counts]))
