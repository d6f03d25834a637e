"""Recurrent networks (`torch.nn.LSTM`, `GRU`, `RNN`)."""

import math
import numbers
import weakref

from .. import _core
from ..amp import get_autocast_dtype
from . import functional as F
from . import init
from .module import Module
from .utils.rnn import PackedSequence

# The functions over sequences, by the library's numbers.
_MODES = ("rnn_relu", "rnn_tanh", "lstm", "gru")
# The rows of a weight, in multiples of the hidden size.
_GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}


def _in_region(state):
    """Returns a state in the dtype that autocast chooses for the products of a step, if autocast is on."""
    if _core.is_autocast_enabled() and state.dtype in (_core.float32, _core.float16, _core.bfloat16):
        return state.to(get_autocast_dtype())
    return state


def _ordered(state, indices):
    """Returns a state, or a pair of them, with its sequences in another order."""
    if state is None or indices is None:
        return state
    return tuple(_ordered(one, indices) for one in state) if isinstance(state, tuple) else state.index_select(1, indices)


def _draw(module):
    """Draws the initial values of a recurrent network or cell."""
    bound = 1.0 / math.sqrt(module.hidden_size) if module.hidden_size else 0.0
    for parameter in module.parameters():
        init.uniform_(parameter, -bound, bound)


class RNNBase(Module):
    """The base class of recurrent networks. By itself it has the parameters of a kind of network, and no `forward`."""

    _gates = property(lambda self: _GATES[self._mode()])
    mode = property(lambda self: self._mode().upper(), doc="The kind of network.")
    _flat_weight_refs = property(lambda self: [weakref.ref(parameter) for parameter in self._parameters.values()])

    def __init__(self, mode, input_size, hidden_size, num_layers=1, bias=True, batch_first=False, dropout=0.0, bidirectional=False,
                 proj_size=0, device=None, dtype=None):
        if mode.lower() not in _GATES or mode != mode.upper():
            raise ValueError(f"Unrecognized RNN mode: {mode}")
        self.__dict__["_kind"] = mode.lower()
        self._make(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype)

    def _mode(self):
        return self._kind

    def _begin(self, input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype, others):
        """Creates the parameters of a network whose class names its kind. `others` are the remaining arguments."""
        if "proj_size" in others:
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        if others:
            raise TypeError(f"{type(self).__name__}.__init__() got an unexpected keyword argument '{next(iter(others))}'")
        self._make(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype)

    def _make(self, input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype):
        """Creates the parameters of all layers. Projected hidden states have an additional weight."""
        super().__init__()
        self._check_options(input_size, hidden_size, num_layers, bias, batch_first, dropout, proj_size)
        self.proj_size = proj_size
        outputs = proj_size or hidden_size
        self.input_size, self.hidden_size, self.num_layers, self.bias = input_size, hidden_size, num_layers, bias
        self.batch_first, self.dropout, self.bidirectional = batch_first, dropout, bidirectional
        from .layers import _empty
        for layer in range(num_layers):
            for direction in range(2 if bidirectional else 1):
                width = input_size if layer == 0 else outputs * (2 if bidirectional else 1)
                suffix = f"l{layer}" + ("_reverse" if direction else "")
                rows = self._gates * hidden_size
                setattr(self, f"weight_ih_{suffix}", _empty((rows, width), device, dtype))
                setattr(self, f"weight_hh_{suffix}", _empty((rows, outputs), device, dtype))
                if bias:
                    setattr(self, f"bias_ih_{suffix}", _empty((rows,), device, dtype))
                    setattr(self, f"bias_hh_{suffix}", _empty((rows,), device, dtype))
                if proj_size:
                    setattr(self, f"weight_hr_{suffix}", _empty((proj_size, hidden_size), device, dtype))
        self.reset_parameters()

    def _check_options(self, input_size, hidden_size, num_layers, bias, batch_first, dropout, proj_size):
        if isinstance(dropout, bool) or not isinstance(dropout, numbers.Number) or not 0 <= dropout <= 1:
            raise ValueError("dropout should be a number in range [0, 1] representing the probability of an element being zeroed")
        for name, value, kind in (("bias", bias, bool), ("batch_first", batch_first, bool), ("input_size", input_size, int),
                                  ("hidden_size", hidden_size, int)):
            if not isinstance(value, kind):
                raise TypeError(f"{name} should be of type {kind.__name__}, got: {type(value).__name__}")
        for name, value in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
            if value <= 0:
                raise ValueError(f"{name} must be greater than zero")
        if proj_size < 0:
            raise ValueError("proj_size should be a positive integer or zero to disable projections")
        if proj_size >= hidden_size:
            raise ValueError("proj_size has to be smaller than hidden_size")

    def _check_call(self, input, states):
        """Refuses inputs and initial states whose shapes do not match the network. `states` are pairs of a name and a state."""
        if input.dim() not in (2, 3):
            raise ValueError(f"{type(self).__name__}: Expected input to be 2D or 3D, got {input.dim()}D instead")
        ranks = [state.dim() for _, state in states]
        if any(rank != input.dim() for rank in ranks):
            found = f"{ranks[0]}-D tensor" if len(ranks) == 1 else f"({', '.join(f'{rank}-D' for rank in ranks)}) tensors"
            title = "For batched 3-D input, " if input.dim() == 3 else "For unbatched 2-D input, "
            raise RuntimeError(f"{title}{'hx' if len(ranks) == 1 else 'hx and cx'} should also be {input.dim()}-D but got {found}")
        weight = self.weight_ih_l0
        if input.dtype != weight.dtype and not _core.is_autocast_enabled():
            raise ValueError(f"RNN input dtype ({input.dtype}) does not match weight dtype ({weight.dtype}). Convert input: input.to({weight.dtype}), "
                             f"or convert model: model.to({input.dtype})")
        if input.shape[-1] != self.input_size:
            raise RuntimeError(f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {input.shape[-1]}")
        if input.shape[1 if self.batch_first and input.dim() == 3 else 0] == 0:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
        batch = () if input.dim() == 2 else (input.shape[0 if self.batch_first else 1],)
        self._check_states(states, batch)

    def _check_states(self, states, batch):
        for place, (name, state) in enumerate(states):
            self.check_hidden_size(state, self._state_size(batch, place), f"Expected {name} size {{}}, got {{}}")

    def _state_size(self, batch, place):
        """Returns the shape of the hidden state, or of the cells."""
        return (self.num_layers * (2 if self.bidirectional else 1), *batch, (self.proj_size or self.hidden_size) if place == 0 else self.hidden_size)

    # The checks of PyTorch's classes, for classes that derive from these.

    def check_input(self, input, batch_sizes):
        """Refuses an input whose shape does not match the network."""
        rank = 3 if batch_sizes is None else 2
        if input.dim() != rank:
            raise RuntimeError(f"input must have {rank} dimensions, got {input.dim()}")
        if input.shape[-1] != self.input_size:
            raise RuntimeError(f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {input.shape[-1]}")

    def get_expected_hidden_size(self, input, batch_sizes):
        """Returns the shape of the hidden state for an input."""
        batch = int(batch_sizes[0]) if batch_sizes is not None else input.shape[0 if self.batch_first else 1]
        return self._state_size((batch,), 0)

    def check_hidden_size(self, hx, expected_hidden_size, msg="Expected hidden size {}, got {}"):
        """Refuses a state with a different shape than the expected one."""
        if tuple(hx.shape) != tuple(expected_hidden_size):
            raise RuntimeError(msg.format(expected_hidden_size, list(hx.shape)))

    def check_forward_args(self, input, hidden, batch_sizes):
        """Refuses an input and a state whose shapes do not match the network."""
        self.check_input(input, batch_sizes)
        self.check_hidden_size(hidden, self.get_expected_hidden_size(input, batch_sizes))

    def permute_hidden(self, hx, permutation):
        """Returns a state with its sequences in another order."""
        return _ordered(hx, permutation)

    def reset_parameters(self):
        """Draws new initial values."""
        _draw(self)

    @property
    def _all_weights(self):
        """The names of the parameters, by layer and direction."""
        parts = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if self.bias else ()), *(("weight_hr",) if self.proj_size else ()))
        ends = ("", "_reverse") if self.bidirectional else ("",)
        return [[f"{part}_l{layer}{end}" for part in parts] for layer in range(self.num_layers) for end in ends]

    @property
    def all_weights(self):
        """The parameters, by layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    @property
    def _flat_weights_names(self):
        return [name for names in self._all_weights for name in names]

    @property
    def _flat_weights(self):
        return [getattr(self, name, None) for name in self._flat_weights_names]

    def flatten_parameters(self):
        """Does nothing: each call collects the parameters in the order that the library reads."""

    def extra_repr(self):
        usual = {"proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False}
        unusual = [f", {name}={getattr(self, name)}" for name, value in usual.items() if getattr(self, name, value) != value]
        return f"{self.input_size}, {self.hidden_size}" + "".join(unusual)

    def _start(self, input, batch, state, size=None):
        """Returns the states before the first step."""
        if state is not None:
            return state
        layers = self.num_layers * (2 if self.bidirectional else 1)
        return _core.zeros([layers, batch, size or self.hidden_size], dtype=input.dtype, device=input.device)

    def _run(self, input, states, sizes=None):
        """Runs all layers over an input (time, batch, features), or over packed rows with the number of sequences of each step, and
        returns the output and the last states."""
        mode = self._mode()
        options = self.bias, self.num_layers, float(self.dropout), self.training, self.bidirectional, False
        if sizes is not None:
            arguments = input, states, self._flat_weights, _MODES.index(mode), *options, sizes
            # Only long short-term memory has cells.
            return _core._call_overload("thalweg::network", arguments, {})[:1 + len(states)]
        return getattr(_core, mode)(input, states if mode == "lstm" else states[0], self._flat_weights, *options)

    def _turned(self, input, hx):
        """Returns the input as (time, batch, features), and a function that restores the layout of the output."""
        unbatched = input.dim() == 2
        if unbatched:
            return input.unsqueeze(1), lambda output: output.squeeze(1), True
        if self.batch_first:
            return input.transpose(0, 1), lambda output: output.transpose(0, 1), False
        return input, lambda output: output, False

    def _packed(self, packed, hx):
        """Runs over packed sequences of different lengths."""
        sizes = packed.batch_sizes.tolist()
        output, state = self._over(packed.data, sizes[0], _ordered(hx, packed.sorted_indices), sizes)
        return PackedSequence(output, *packed[1:]), _ordered(state, packed.unsorted_indices)

    def _over(self, input, batch, hx, sizes=None):
        """Returns the outputs and the last states of a batch of sequences."""
        output, last, *_ = self._run(input, [self._start(input, batch, hx)], sizes)
        return output, last


def _of_one_state(self, input, hx=None):
    """Returns the outputs of all time steps, and the last state of each layer."""
    if isinstance(input, PackedSequence):
        self._check_states([] if hx is None else [("hidden", hx)], (int(input.batch_sizes[0]),))
        return self._packed(input, hx)
    self._check_call(input, [] if hx is None else [("hidden", hx)])
    input, back, unbatched = self._turned(input, hx)
    if unbatched and hx is not None:
        hx = hx.unsqueeze(1)
    output, last = self._over(input, input.shape[1], hx)
    return back(output), last.squeeze(1) if unbatched else last


class RNN(RNNBase):
    """h = tanh(W · x + U · h + b), over time."""

    _gates, forward = 1, _of_one_state

    def __init__(self, input_size, hidden_size, num_layers=1, nonlinearity="tanh", bias=True, batch_first=False, dropout=0.0,
                 bidirectional=False, device=None, dtype=None, **others):
        self._begin(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype, others)
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")
        self.nonlinearity = nonlinearity

    def _mode(self):
        return f"rnn_{self.nonlinearity}"

    def _cell(self, input, weight, bias, state):
        total = input + F.linear(state, weight, bias)
        return total.tanh() if self.nonlinearity == "tanh" else total.relu()


class GRU(RNNBase):
    """Gated recurrent units, over time."""

    _gates, forward = 3, _of_one_state

    def __init__(self, input_size, hidden_size, num_layers=1, bias=True, batch_first=False, dropout=0.0, bidirectional=False,
                 device=None, dtype=None, **others):
        self._begin(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype, others)

    def _mode(self):
        return "gru"

    def _cell(self, input, weight, bias, state):
        reset, update, new = input.chunk(3, -1)
        own_reset, own_update, own_new = F.linear(state, weight, bias).chunk(3, -1)
        reset, update = (reset + own_reset).sigmoid(), (update + own_update).sigmoid()
        new = (new + reset * own_new).tanh()
        return new + update * (state - new)


class LSTM(RNNBase):
    """Long short-term memory, over time. Hidden states are projected to `proj_size` numbers unless that is 0."""

    _gates = 4

    def __init__(self, input_size, hidden_size, num_layers=1, bias=True, batch_first=False, dropout=0.0, bidirectional=False, proj_size=0,
                 device=None, dtype=None):
        self._make(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype)

    def _cell(self, input, weight, bias, state):
        hidden, cell = state
        enter, forget, new, leave = (input + F.linear(hidden, weight, bias)).chunk(4, -1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        return leave.sigmoid() * cell.tanh(), cell

    def _mode(self):
        return "lstm"

    def get_expected_cell_size(self, input, batch_sizes):
        """Returns the shape of the cells for an input."""
        return self.get_expected_hidden_size(input, batch_sizes)[:2] + (self.hidden_size,)

    def check_forward_args(self, input, hidden, batch_sizes):
        """Refuses an input and states whose shapes do not match the network."""
        self.check_input(input, batch_sizes)
        self.check_hidden_size(hidden[0], self.get_expected_hidden_size(input, batch_sizes), "Expected hidden[0] size {}, got {}")
        self.check_hidden_size(hidden[1], self.get_expected_cell_size(input, batch_sizes), "Expected hidden[1] size {}, got {}")

    def _over(self, input, batch, hx, sizes=None):
        hidden, cell = (None, None) if hx is None else hx
        states = [self._start(input, batch, hidden, self.proj_size), self._start(input, batch, cell)]
        output, *last = self._run(input, states, sizes)
        return output, tuple(last)

    def forward(self, input, hx=None):
        """Returns the outputs of all time steps, and the last hidden and cell states of each layer."""
        if isinstance(input, PackedSequence):
            self._check_states([] if hx is None else [("hidden[0]", hx[0]), ("hidden[1]", hx[1])], (int(input.batch_sizes[0]),))
            return self._packed(input, hx)
        self._check_call(input, [] if hx is None else [("hidden[0]", hx[0]), ("hidden[1]", hx[1])])
        input, back, unbatched = self._turned(input, hx)
        if unbatched and hx is not None:
            hx = tuple(state.unsqueeze(1) for state in hx)
        output, (hidden, cell) = self._over(input, input.shape[1], hx)
        if unbatched:
            hidden, cell = hidden.squeeze(1), cell.squeeze(1)
        return back(output), (hidden, cell)


class RNNCellBase(Module):
    _gates = 1

    def __init__(self, input_size, hidden_size, bias=True, device=None, dtype=None):
        super().__init__()
        from .layers import _empty
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = self._gates * hidden_size
        self.weight_ih = _empty((rows, input_size), device, dtype)
        self.weight_hh = _empty((rows, hidden_size), device, dtype)
        self.register_parameter("bias_ih", _empty((rows,), device, dtype) if bias else None)
        self.register_parameter("bias_hh", _empty((rows,), device, dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self):
        """Draws new initial values."""
        _draw(self)

    def extra_repr(self):
        nonlinearity = getattr(self, "nonlinearity", "tanh")
        unusual = ("" if self.bias else ", bias=False") + ("" if nonlinearity == "tanh" else f", nonlinearity={nonlinearity}")
        return f"{self.input_size}, {self.hidden_size}" + unusual

    def _check_call(self, input, **states):
        name = type(self).__name__
        for title, tensor in {"input": input, **states}.items():
            if tensor is not None and tensor.dim() not in (1, 2):
                raise ValueError(f"{name}: Expected {title} to be 1D or 2D, got {tensor.dim()}D instead")
        for place, (title, state) in enumerate(states.items()):
            if state is None:
                continue
            if state.dim() == input.dim() == 2 and state.shape[0] != input.shape[0]:
                raise RuntimeError(f"Input batch size {input.shape[0]} doesn't match hidden{place} batch size {state.shape[0]}")
            if state.shape[-1] != self.hidden_size:
                raise RuntimeError(f"hidden{place} has inconsistent hidden_size: got {state.shape[-1]}, expected {self.hidden_size}")
        if input.shape[-1] != self.input_size:
            raise RuntimeError(f"input has inconsistent input_size: got {input.shape[-1]} expected {self.input_size}")

    def _next(self, input, state):
        return self._cell(F.linear(input, self.weight_ih, self.bias_ih), self.weight_hh, self.bias_hh, state)

    def _zeros(self, input):
        return _core.zeros([*input.shape[:-1], self.hidden_size], dtype=input.dtype, device=input.device)

    def forward(self, input, hx=None):
        """Returns the next state."""
        self._check_call(input, hidden=hx)
        return self._next(input, _in_region(self._zeros(input) if hx is None else hx))


class RNNCell(RNNCellBase):
    """One step of `RNN`."""

    _cell = RNN._cell

    def __init__(self, input_size, hidden_size, bias=True, nonlinearity="tanh", device=None, dtype=None):
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input, hx=None):
        """Returns the next state."""
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        return super().forward(input, hx)


class GRUCell(RNNCellBase):
    """One step of `GRU`."""

    _gates, _cell = 3, GRU._cell


class LSTMCell(RNNCellBase):
    """One step of `LSTM`. The state is a pair of hidden state and cell state."""

    _gates, _cell = 4, LSTM._cell

    def forward(self, input, hx=None):
        """Returns the next hidden state and cell state."""
        states = (None, None) if hx is None else hx
        self._check_call(input, **{"hx[0]": states[0], "hx[1]": states[1]})
        return self._next(input, tuple(map(_in_region, (self._zeros(input),) * 2 if hx is None else hx)))
