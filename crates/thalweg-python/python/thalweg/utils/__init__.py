"""Helpers (`torch.utils`)."""

import weakref as _weakref

from .. import _core
from .._left_out import attributes as _attributes
from . import _device, _import_utils, _mode_utils, _pytree, checkpoint, deterministic, dlpack, hooks

def swap_tensors(t1, t2):
    """Exchanges two tensors with their classes and attributes: each object is then the other tensor."""
    for tensor in (t1, t2):
        if _weakref.getweakrefs(tensor):
            raise RuntimeError("Cannot swap t1 and t2: a tensor that has a weakref has to stay as it is")
    kept, kind, own = _core.empty(0), type(t1), dict(vars(t1))
    _core.Tensor._share(kept, t1)
    _core.Tensor._share(t1, t2)
    _core.Tensor._share(t2, kept)
    t1.__class__, t2.__class__ = type(t2), kind
    theirs = dict(vars(t2))
    for tensor, attributes in ((t1, theirs), (t2, own)):
        vars(tensor).clear()
        vars(tensor).update(attributes)


__getattr__ = _attributes(__name__)
