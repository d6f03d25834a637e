"""Dictionaries whose keys are compared by identity, and are not kept alive (`torch.utils.weak`)."""

import collections.abc
import weakref

from .. import _core

__all__ = ["TensorWeakRef", "WeakIdRef", "WeakIdKeyDictionary", "WeakTensorKeyDictionary"]
WeakRef = weakref.ref


class WeakIdRef(weakref.ref):
    """A weak reference that is equal to all weak references to the same object."""

    __slots__ = ["_id"]

    def __init__(self, key, callback=None):
        self._id = id(key)
        super().__init__(key, callback)

    def __call__(self):
        found = super().__call__()
        if found is not None and hasattr(found, "_fix_weakref"):
            found._fix_weakref()
        return found

    def __hash__(self):
        return self._id

    def __eq__(self, other):
        own, others = self(), other()
        return own is others if own is not None and others is not None else self is other


WeakTensorRefKey = _WeakHashRef = WeakIdRef


class TensorWeakRef:
    """A weak reference to a tensor."""

    def __init__(self, tensor):
        if not isinstance(tensor, _core.Tensor):
            raise AssertionError(f"expected torch.Tensor, got {type(tensor)}.")
        self.ref = weakref.ref(tensor)

    def __call__(self):
        return self.ref()


class WeakIdKeyDictionary(collections.abc.MutableMapping):
    """A dictionary by the identity of its keys. A key is removed when nothing else refers to it."""

    def __init__(self, dict=None, ref_type=WeakIdRef):
        self.data, self.ref_type = {}, ref_type
        own = weakref.ref(self)

        def removed(key):
            found = own()
            if found is not None:
                found.data.pop(key, None)
        self._remove = removed
        self.update({} if dict is None else dict)

    def _key(self, key):
        return self.ref_type(key, self._remove)

    def __getitem__(self, key):
        return self.data[self.ref_type(key)]

    def __setitem__(self, key, value):
        self.data[self._key(key)] = value

    def __delitem__(self, key):
        del self.data[self.ref_type(key)]

    def __contains__(self, key):
        try:
            return self.ref_type(key) in self.data
        except TypeError:
            return False

    def __iter__(self):
        return (key for key in [reference() for reference in list(self.data)] if key is not None)

    def __len__(self):
        return len(self.data)

    def keyrefs(self):
        """Returns the references to the keys."""
        return list(self.data)

    def copy(self):
        """Returns another dictionary with the same keys and values."""
        made = type(self)(None, self.ref_type)
        for key, value in self.items():
            made[key] = value
        return made

    __copy__ = copy

    def __deepcopy__(self, memo):
        import copy
        made = type(self)(None, self.ref_type)
        for key, value in self.items():
            made[key] = copy.deepcopy(value, memo)
        return made

    def __repr__(self):
        return f"<{type(self).__name__} at {id(self):#x}>"


WeakTensorKeyDictionary = WeakIdKeyDictionary
