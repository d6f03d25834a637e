//! Recurrent networks, as data: calls of a vendor's library ([`GpuCall::Recurrent`](crate::GpuCall::Recurrent)).
//!
//! A layer in one direction reads rows `x[t]` of its sequences and writes rows `y[t]`. With `W` and `b` of the input, `R` and
//! `d` of the hidden state `h` before the step, and gates in consecutive blocks of rows:
//!
//! ```text
//! relu, tanh:  h' = f(W x + b + R h + d)
//! gated:       r = σ(Wᵣ x + bᵣ + Rᵣ h + dᵣ)    z = σ(W_z x + b_z + R_z h + d_z)
//!              n = tanh(Wₙ x + bₙ + r · (Rₙ h + dₙ))         h' = (1 − z) · n + z · h
//! long short-term memory, gates i, f, g, o (σ, σ, tanh, σ):
//!              c' = f · c + i · g        h' = P (o · tanh(c')), without P if hidden states are not projected
//! ```
//!
//! A layer's output is that of its direction, or both directions side by side; it is the input of the next layer. Rows of a
//! sequence are ordered by time, and of one time step by sequence. Sequences are ordered by length, the longest first, so the
//! sequences that a step includes are the first ones.

use std::sync::Arc;

use crate::library::ElementFormat;
use crate::{DevicePointer, GpuCall};

/// The function of a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RecurrentKind {
    /// One gate with the rectified linear unit.
    Relu,
    /// One gate with the hyperbolic tangent.
    Tanh,
    /// Long short-term memory.
    LongShortTerm,
    /// A gated recurrent unit.
    Gated,
}

impl RecurrentKind {
    /// Returns the number of gates: blocks of rows in a weight.
    pub const fn gates(self) -> u64 {
        match self {
            Self::Relu | Self::Tanh => 1,
            Self::LongShortTerm => 4,
            Self::Gated => 3,
        }
    }

    /// Returns whether it has a cell besides the hidden state.
    pub const fn has_cell(self) -> bool {
        matches!(self, Self::LongShortTerm)
    }
}

/// The sizes of a recurrent network and of its sequences.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RecurrentShape {
    /// The function of a step.
    pub kind: RecurrentKind,
    /// Features of the input.
    pub inputs: u64,
    /// Features of a cell, and of a hidden state that is not projected.
    pub hidden: u64,
    /// Features of a projected hidden state; 0 for no projection. Only of long short-term memory.
    pub projected: u64,
    /// The number of layers.
    pub layers: u64,
    /// Whether each layer has a second direction.
    pub bidirectional: bool,
    /// Whether there are biases.
    pub has_biases: bool,
    /// The length of each sequence, at least 1, in descending order.
    pub lengths: Arc<[u32]>,
    /// The format of all elements: floats of 16, 32 or 64 bits.
    pub format: ElementFormat,
    /// Whether 32-bit floats may be rounded to TF32 before they are multiplied.
    pub allow_tf32: bool,
}

/// The parts of one layer in one direction, in the buffer of weights: offsets in elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecurrentPart {
    /// The weight of the input, (gates · hidden, features of the layer's input), row-major like the others.
    pub of_input: u64,
    /// The weight of the hidden state, (gates · hidden, features of a hidden state).
    pub of_hidden: u64,
    /// The biases of input and hidden state, gates · hidden each.
    pub biases: Option<[u64; 2]>,
    /// The weight of the projection, (projected, hidden).
    pub projection: Option<u64>,
}

/// The memory that calls for a shape need, in the library's layout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecurrentMemory {
    /// Elements of the buffer of weights.
    pub weight_elements: u64,
    /// The parts of the buffer: by layer, and in a layer by direction.
    pub parts: Vec<RecurrentPart>,
    /// Bytes that a forward pass for training leaves to the backward pass.
    pub reserve_bytes: u64,
    /// Bytes of the workspace of any pass.
    pub workspace_bytes: u64,
}

/// The states of a network: contiguous (layers · directions, sequences, features).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecurrentStates {
    /// The hidden states.
    pub hidden: DevicePointer,
    /// The cells, of long short-term memory.
    pub cell: Option<DevicePointer>,
}

/// One of the passes of a network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecurrentPass {
    /// Writes the output, the last states and, if it is given, the reserve.
    Forward {
        /// The states after the last step of each sequence.
        last: RecurrentStates,
    },
    /// Writes the gradients of input and first states, and updates the reserve.
    Backward {
        /// The gradient of the output: read.
        output: DevicePointer,
        /// The gradients of the last states: read. `None` for zeros.
        last: Option<RecurrentStates>,
        /// The gradient of the input.
        input: DevicePointer,
        /// The gradients of the first states.
        first: RecurrentStates,
    },
    /// Adds the gradient of the weights to a buffer in their layout, after the `Backward` pass with the same reserve.
    Weights {
        /// The buffer.
        weights: DevicePointer,
    },
}

/// A pass of a recurrent network. Operands are contiguous and aligned to 16 bytes.
///
/// [`Driver::recurrent_memory`](crate::Driver::recurrent_memory) returns the sizes of weights, reserve and workspace.
#[derive(Clone, PartialEq, Debug)]
pub struct RecurrentCall {
    /// The sizes.
    pub shape: RecurrentShape,
    /// The pass.
    pub pass: RecurrentPass,
    /// The input, (rows, inputs).
    pub input: DevicePointer,
    /// The buffer of weights.
    pub weights: DevicePointer,
    /// The states before the first step of each sequence.
    pub first: RecurrentStates,
    /// The output, (rows, features of a hidden state · directions): written by the forward pass, read by the others.
    pub output: DevicePointer,
    /// The memory in which a forward pass keeps values for the others, by address and bytes; without it nothing is kept.
    pub reserve: Option<(DevicePointer, u64)>,
    /// The workspace that the library may use while this command runs: address, aligned to 256 bytes, and bytes.
    pub workspace: Option<(DevicePointer, u64)>,
}

impl RecurrentShape {
    /// Returns the number of directions.
    pub const fn directions(&self) -> u64 {
        1 + self.bidirectional as u64
    }

    /// Returns the features of a hidden state.
    pub const fn outputs(&self) -> u64 {
        if self.projected > 0 { self.projected } else { self.hidden }
    }

    /// Returns the features of a layer's input.
    pub const fn inputs_of(&self, layer: u64) -> u64 {
        if layer == 0 { self.inputs } else { self.outputs() * self.directions() }
    }

    /// Returns the number of sequences.
    pub fn sequences(&self) -> u64 {
        self.lengths.len() as u64
    }

    /// Returns the rows of all sequences.
    pub fn rows(&self) -> u64 {
        self.lengths.iter().map(|&length| u64::from(length)).sum()
    }

    /// Returns the elements of input, output, hidden states and cells.
    pub fn elements(&self) -> [u64; 4] {
        let (rows, states) = (self.rows(), self.layers * self.directions() * self.sequences());
        let output = rows * self.outputs() * self.directions();
        [rows * self.inputs, output, states * self.outputs(), states * self.hidden]
    }

    /// Returns the parts of a layer's weights in the order (input, hidden state, two biases, projection): elements of each; 0
    /// for a part that the network lacks.
    pub const fn part_elements(&self, layer: u64) -> [u64; 5] {
        let rows = self.kind.gates() * self.hidden;
        let bias = if self.has_biases { rows } else { 0 };
        [rows * self.inputs_of(layer), rows * self.outputs(), bias, bias, self.projected * self.hidden]
    }

    /// Returns the memory for host functions: parts follow one another without gaps by layer and direction, and the reserve
    /// holds the gradients of all gates and outputs in 64-bit floats.
    pub fn dense(&self) -> RecurrentMemory {
        let mut end = 0;
        let mut next = |elements: u64| {
            let start = end;
            end += elements;
            start
        };
        let layers = (0..self.layers).flat_map(|layer| (0..self.directions()).map(move |_| layer));
        let parts = layers.map(|layer| {
            let [input, hidden, bias, _, projection] = self.part_elements(layer);
            RecurrentPart {
                of_input: next(input),
                of_hidden: next(hidden),
                biases: self.has_biases.then(|| [next(bias), next(bias)]),
                projection: (projection > 0).then(|| next(projection)),
            }
        });
        let parts = parts.collect();
        let kept = 2 * self.kind.gates() * self.hidden + self.outputs();
        let reserve_bytes = 8 * self.layers * self.directions() * self.rows() * kept;
        RecurrentMemory { weight_elements: end, parts, reserve_bytes, workspace_bytes: 0 }
    }

    /// Returns why these sizes are not a valid network; `None` if they are valid.
    pub fn fault(&self) -> Option<String> {
        let sizes = [self.inputs, self.hidden, self.layers, self.sequences()];
        if sizes.iter().any(|&size| size == 0 || size > i32::MAX as u64) {
            return Some("a size is 0, or more than 2^31 - 1".to_owned());
        }
        if self.lengths.last() == Some(&0) || !self.lengths.is_sorted_by(|one, next| one >= next) {
            return Some("lengths of sequences are at least 1, in descending order".to_owned());
        }
        if self.projected > 0 && (!self.kind.has_cell() || self.projected >= self.hidden) {
            return Some(format!(
                "hidden states of {} features cannot be projected to {}: only those of long short-term memory, to fewer",
                self.hidden, self.projected
            ));
        }
        let width = self.inputs.max(2 * self.hidden);
        let most = [8, self.rows().max(2 * self.layers * self.sequences()).max(4 * self.hidden), width];
        let bytes = most.iter().try_fold(self.layers, |bytes, &factor| bytes.checked_mul(factor));
        bytes
            .is_none_or(|bytes| bytes >= 1 << 60)
            .then(|| "the operands are larger than any memory".to_owned())
    }
}

impl From<RecurrentCall> for GpuCall {
    fn from(call: RecurrentCall) -> Self {
        Self::Recurrent(call)
    }
}
