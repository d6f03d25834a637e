"""Optimizers (`torch.optim`): each steps all parameters of a group in one kernel."""

from . import lr_scheduler
from .optimizer import (
    ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, Lion, NAdam, Optimizer, RAdam, RMSprop, Rprop)

_LEFT_OUT = {
    "LBFGS": "it needs many evaluations of the loss per step",
    "SparseAdam": "there are no sparse tensors",
    "Adafactor": "it is not in the table of optimizers",
    "Muon": "it is not in the table of optimizers",
}


def __getattr__(name):
    if name in _LEFT_OUT:
        raise AttributeError(f"thalweg.optim.{name} is left out: {_LEFT_OUT[name]}")
    raise AttributeError(f"module 'thalweg.optim' has no attribute '{name}'")
