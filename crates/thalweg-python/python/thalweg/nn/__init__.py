"""Modules, functions and initial values (`torch.nn`)."""

from . import functional, init, utils
from .activations import *  # noqa: F401,F403
from .activations import MultiheadAttention, PReLU, RReLU, Softmax2d, Threshold
from .adaptive import AdaptiveLogSoftmaxWithLoss
from .containers import ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential
from .layers import *  # noqa: F401,F403
from .losses import *  # noqa: F401,F403
from .module import Module
from . import modules, parallel
from .padding import *  # noqa: F401,F403
from .parameter import Buffer, Parameter
from .pooling import *  # noqa: F401,F403
from .recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from .transformer import (
    Transformer, TransformerDecoder, TransformerDecoderLayer, TransformerEncoder, TransformerEncoderLayer)

_LEFT_OUT = {
    "DataParallel": "it replicates a module per thread; run a process per GPU",
}


def __getattr__(name):
    if name in _LEFT_OUT:
        raise AttributeError(f"thalweg.nn.{name} is left out: {_LEFT_OUT[name]}")
    raise AttributeError(f"module 'thalweg.nn' has no attribute '{name}'")
