"""Optimizers (`torch.optim`): most step all parameters of a group in one kernel; `LBFGS`, `Muon` and `Adafactor` are made of operators."""

from . import lr_scheduler
from .composed import Adafactor, Muon
from .lbfgs import LBFGS
from .optimizer import (
    ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, Lion, NAdam, Optimizer, RAdam, RMSprop, Rprop)

_LEFT_OUT = {
    "SparseAdam": "there are no sparse tensors",
}


def __getattr__(name):
    if name in _LEFT_OUT:
        raise AttributeError(f"thalweg.optim.{name} is left out: {_LEFT_OUT[name]}")
    raise AttributeError(f"module 'thalweg.optim' has no attribute '{name}'")
