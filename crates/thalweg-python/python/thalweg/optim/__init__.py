"""Optimizers (`torch.optim`), most of which step all parameters of a group in one kernel.
`LBFGS`, `Muon` and `Adafactor` are composed of operators."""

import sys as _sys
import types as _types

from .._left_out import attributes as _attributes
from . import _functional, lr_scheduler, swa_utils
from .composed import Adafactor, Muon
from .lbfgs import LBFGS
from .optimizer import Optimizer
from .rules import *  # noqa: F403
from .rules import __all__ as _fused


def _placed(*classes):
    """Creates the modules in which PyTorch defines its optimizers, whose names files and programs use."""
    for one in classes:
        name = f"_{one.__name__.lower()}" if one in (Adafactor, Muon) else one.__name__.lower()
        if f"{__name__}.{name}" not in _sys.modules:
            made = _types.ModuleType(f"{__name__}.{name}", f"What PyTorch has in `torch.optim.{name}`.")
            vars(made).update({one.__name__: one, "Optimizer": Optimizer})
            if hasattr(_functional, name):
                setattr(made, name, getattr(_functional, name))
            _sys.modules[made.__name__] = globals()[name] = made


_placed(Adafactor, Muon, *(globals()[name] for name in _fused))

__getattr__ = _attributes(__name__)
