"""Modules, functions and initial values (`torch.nn`)."""

from .._left_out import attributes as _attributes
from . import _reduction, attention, functional, init, utils
from ._parameters import factory_kwargs
from .activations import *  # noqa: F401,F403
from .activations import MultiheadAttention, PReLU, RReLU, Softmax2d, Threshold
from .adaptive import AdaptiveLogSoftmaxWithLoss
from .containers import ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential
from .layers import *  # noqa: F401,F403
from .lazy import *  # noqa: F401,F403
from .losses import *  # noqa: F401,F403
from .module import Module
from . import grad, modules, parallel
from .parallel import DataParallel
from .padding import *  # noqa: F401,F403
from .parameter import Buffer, Parameter, UninitializedBuffer, UninitializedParameter
from .pooling import *  # noqa: F401,F403
from .recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNBase, RNNCell, RNNCellBase
from .transformer import (
    Transformer, TransformerDecoder, TransformerDecoderLayer, TransformerEncoder, TransformerEncoderLayer)

__getattr__ = _attributes(__name__)
