"""Optimizers (`torch.optim`): most step all parameters of a group in one kernel; `LBFGS`, `Muon` and `Adafactor` are made of operators."""

from .._left_out import attributes as _attributes
from . import lr_scheduler
from .composed import Adafactor, Muon
from .lbfgs import LBFGS
from .optimizer import (
    ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, Lion, NAdam, Optimizer, RAdam, RMSprop, Rprop)

__getattr__ = _attributes(__name__)
