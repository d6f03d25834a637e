//! Recurrent networks, with PyTorch's names and layouts: the gates of a weight are consecutive blocks of its rows.
//!
//! [`thalweg_tensor::recurrent`] computes them.

use std::sync::Arc;

use thalweg_derive::{enter, in_call, in_function};
use thalweg_runtime::{Device, Error, Result, invalid, refuse, refuse_if};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::{DeviceGenerator, Generator};
use thalweg_tensor::recurrent::{Between, LayerWeights, Network, RecurrentKind, of_input, states, step};

use super::{Entry, EntryMut, Module, PackedSequence, uniform};
use crate::functional;

/// A kind of recurrent network.
pub trait RecurrentStep {
    /// Returns the function of a step.
    fn kind(&self) -> RecurrentKind;
}

/// Long short-term memory: gates i, f, g, o; states h and c.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LongShortTerm;

impl RecurrentStep for LongShortTerm {
    fn kind(&self) -> RecurrentKind {
        RecurrentKind::LongShortTerm
    }
}

/// Gated recurrent unit: gates r, z, n; state h.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Gated;

impl RecurrentStep for Gated {
    fn kind(&self) -> RecurrentKind {
        RecurrentKind::Gated
    }
}

/// Elman's network: one gate, state h.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Elman {
    /// Whether max(0, x) replaces tanh (`nonlinearity='relu'`).
    pub relu: bool,
}

impl RecurrentStep for Elman {
    fn kind(&self) -> RecurrentKind {
        if self.relu { RecurrentKind::Relu } else { RecurrentKind::Tanh }
    }
}

/// The options of a [`Recurrent`] network.
#[derive(Clone, Debug)]
pub struct RecurrentOptions {
    /// The number of layers, each over the results of the previous one.
    pub num_layers: usize,
    /// Whether there are biases.
    pub bias: bool,
    /// Whether the batch comes before the sequence.
    pub batch_first: bool,
    /// The probability with which elements between layers are dropped in training, and its generator.
    pub dropout: Option<(f64, Arc<DeviceGenerator>)>,
    /// Whether each layer runs in both directions.
    pub bidirectional: bool,
    /// The number of features to which hidden states are projected; 0 for no projection. Only for an LSTM.
    pub proj_size: usize,
}

impl Default for RecurrentOptions {
    /// Returns PyTorch's options.
    fn default() -> Self {
        let (num_layers, proj_size) = (1, 0);
        Self { num_layers, bias: true, batch_first: false, dropout: None, bidirectional: false, proj_size }
    }
}

/// The tensors of one layer in one direction, or of a cell.
#[derive(Module, Clone, Debug)]
struct Weights {
    /// The weight of the input, (gates · hidden, in).
    #[module(parameter)]
    weight_ih: Tensor,
    /// The weight of the hidden state, (gates · hidden, hidden or projected).
    #[module(parameter)]
    weight_hh: Tensor,
    #[module(parameter)]
    bias_ih: Option<Tensor>,
    #[module(parameter)]
    bias_hh: Option<Tensor>,
    /// The weight of the projection, (projected, hidden).
    #[module(parameter)]
    weight_hr: Option<Tensor>,
}

impl Weights {
    fn new(
        [gates, inputs, hidden, projected]: [usize; 4],
        bias: bool,
        generator: &mut Generator,
        device: &Device,
    ) -> Result<Self> {
        let bound = if hidden > 0 { 1.0 / (hidden as f64).sqrt() } else { 0.0 };
        let rows = gates
            .checked_mul(hidden)
            .ok_or_else(|| invalid!("a hidden state of {hidden} features is too large"))?;
        let out = if projected > 0 { projected } else { hidden };
        let mut tensor = |shape: &[usize]| uniform(shape, bound, generator, device);
        Ok(Self {
            weight_ih: tensor(&[rows, inputs])?,
            weight_hh: tensor(&[rows, out])?,
            bias_ih: bias.then(|| tensor(&[rows])).transpose()?,
            bias_hh: bias.then(|| tensor(&[rows])).transpose()?,
            weight_hr: (projected > 0).then(|| tensor(&[projected, hidden])).transpose()?,
        })
    }

    /// Returns the tensors, which share the memory of the parameters.
    fn tensors(&self) -> LayerWeights {
        LayerWeights {
            of_input: self.weight_ih.clone(),
            of_hidden: self.weight_hh.clone(),
            biases: self.bias_ih.clone().zip(self.bias_hh.clone()).map(|(input, hidden)| [input, hidden]),
            projection: self.weight_hr.clone(),
        }
    }
}

/// A network of recurrent layers.
#[derive(Clone, Debug)]
pub struct Recurrent<K> {
    kind: K,
    options: RecurrentOptions,
    hidden: usize,
    /// The weights of each layer, forwards and then backwards.
    layers: Vec<Weights>,
    training: bool,
}

/// A network of long short-term memory (`torch.nn.LSTM`): states h and c.
pub type LSTM = Recurrent<LongShortTerm>;
/// A network of gated recurrent units (`torch.nn.GRU`): state h.
pub type GRU = Recurrent<Gated>;
/// Elman's network (`torch.nn.RNN`): state h.
pub type RNN = Recurrent<Elman>;

impl<K: RecurrentStep + Default> Recurrent<K> {
    /// Makes a network from `inputs` features to hidden states of `hidden` features, with random parameters.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if an option does not fit.
    #[track_caller]
    pub fn new(
        inputs: usize,
        hidden: usize,
        options: RecurrentOptions,
        generator: &mut Generator,
        device: &Device,
    ) -> Result<Self> {
        Self::with_kind(K::default(), inputs, hidden, options, generator, device)
    }
}

impl<K: RecurrentStep> Recurrent<K> {
    /// Makes a network with the steps of `kind`.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if an option does not fit.
    #[in_function("Recurrent::with_kind")]
    pub fn with_kind(
        kind: K,
        inputs: usize,
        hidden: usize,
        options: RecurrentOptions,
        generator: &mut Generator,
        device: &Device,
    ) -> Result<Self> {
        if options.proj_size > 0 && (!kind.kind().has_cell() || options.proj_size >= hidden) {
            refuse!("proj_size is only supported for LSTM, and has to be smaller than hidden_size");
        }
        if hidden == 0 || options.num_layers == 0 {
            refuse!("hidden_size and num_layers must be greater than zero");
        }
        let directions = 1 + usize::from(options.bidirectional);
        let out = if options.proj_size > 0 { options.proj_size } else { hidden };
        let layers = (0..options.num_layers * directions)
            .map(|index| {
                let inputs = if index < directions { inputs } else { out * directions };
                let sizes = [kind.kind().gates() as usize, inputs, hidden, options.proj_size];
                Weights::new(sizes, options.bias, generator, device)
            })
            .collect::<Result<_>>()?;
        Ok(Self { kind, options, hidden, layers, training: true })
    }

    fn directions(&self) -> usize {
        1 + usize::from(self.options.bidirectional)
    }

    /// Returns the hidden states of the last layer at each step, and the last states: `h_n`, and `c_n` of an LSTM.
    ///
    /// The input is (length, batch, features), or (batch, length, features) with `batch_first`, or (length, features); states are
    /// (layers · directions, batch, hidden), by default zeros. Asynchronous.
    #[in_call("Recurrent", &[input])]
    pub fn forward(&self, input: &Tensor, states: Option<&[Tensor]>) -> Result<(Tensor, Vec<Tensor>)> {
        let is_batched = match input.rank() {
            2 => false,
            3 => true,
            rank => {
                refuse!("Expected input to be 2D or 3D, got {rank}D instead");
            }
        };
        let batch_first = is_batched && self.options.batch_first;
        let sequence = match (is_batched, batch_first) {
            (false, _) => input.unsqueeze(1)?,
            (_, true) => input.transpose(0, 1)?,
            _ => input.clone(),
        };
        refuse_if!(sequence.shape()[0] == 0, "a sequence has at least one step");
        let states = self.states(&sequence, sequence.shape()[1], states, is_batched)?;
        let (mut result, mut last) = self.run(&sequence, &states, None)?;
        if !is_batched {
            result = result.squeeze(1)?;
            last = last.iter().map(|state| state.squeeze(1)).collect::<Result<_>>()?;
        } else if batch_first {
            result = result.transpose(0, 1)?;
        }
        Ok((result, last))
    }

    /// Returns the hidden states of the last layer, packed like the input, and the last states of every sequence, in the order of
    /// the batch. States are those of [`Self::forward`]. Asynchronous.
    #[in_call("Recurrent", &[&input.data])]
    pub fn forward_packed(
        &self,
        input: &PackedSequence,
        states: Option<&[Tensor]>,
    ) -> Result<(PackedSequence, Vec<Tensor>)> {
        if input.data.rank() != 2 {
            let rank = input.data.rank();
            refuse!("Expected packed input to be 2D, got {rank}D instead");
        }
        let reorder = |states: &[Tensor], order: Option<&Tensor>| match order {
            Some(order) => states.iter().map(|state| state.index_select(1, order)).collect(),
            None => Ok(states.to_vec()),
        };
        let states = self.states(&input.data, input.batch()?, states, true)?;
        let states: Vec<Tensor> = reorder(&states, input.sorted_indices.as_ref())?;
        let (data, last) = self.run(&input.data, &states, Some(&input.batch_sizes))?;
        let last = reorder(&last, input.unsorted_indices.as_ref())?;
        Ok((PackedSequence { data, ..input.clone() }, last))
    }

    /// Returns the states before the first step, of a batch.
    fn states(
        &self,
        sequence: &Tensor,
        batch: usize,
        given: Option<&[Tensor]>,
        is_batched: bool,
    ) -> Result<Vec<Tensor>> {
        let features = self.layers[0].weight_ih.shape()[1];
        let found = sequence.shape().last().copied().unwrap_or(0);
        if found != features {
            refuse!("input.size(-1) must be equal to input_size. Expected {features}, got {found}");
        }
        let out = if self.options.proj_size > 0 { self.options.proj_size } else { self.hidden };
        let shapes = [out, self.hidden].map(|features| [self.layers.len(), batch, features]);
        let count = states(self.kind.kind());
        let Some(given) = given else {
            let zeros = |shape: &[usize; 3]| Tensor::zeros(shape, sequence.dtype(), sequence.device());
            return shapes[..count].iter().map(zeros).collect();
        };
        refuse_if!(given.len() != count, "it has {count} states, not {}", given.len());
        let mut states = Vec::new();
        for (state, shape) in given.iter().zip(&shapes) {
            let state = if is_batched { state.clone() } else { state.unsqueeze(1)? };
            if state.shape() != shape {
                refuse!("Expected hidden size {shape:?}, got {:?}", state.shape());
            }
            states.push(state);
        }
        Ok(states)
    }

    /// Runs all layers over a sequence (length, batch, features), or over a packed one with the sizes of its batches.
    fn run(
        &self,
        sequence: &Tensor,
        first: &[Tensor],
        batch_sizes: Option<&[usize]>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let weights: Vec<LayerWeights> = self.layers.iter().map(Weights::tensors).collect();
        let network =
            Network { kind: self.kind.kind(), bidirectional: self.options.bidirectional, weights: &weights };
        let dropped = |rows: &Tensor| match &self.options.dropout {
            Some((p, generator)) => functional::dropout(rows, *p, self.training, generator),
            None => Ok(rows.clone()),
        };
        let drops = self.training && self.options.dropout.as_ref().is_some_and(|(p, _)| *p > 0.0);
        let between: Option<Between<'_>> = if drops { Some(&dropped) } else { None };
        network.run(sequence, first, batch_sizes, between)
    }

    /// Returns the name of a tensor of a layer.
    fn name(&self, name: &str, index: usize) -> String {
        let (layer, direction) = (index / self.directions(), index % self.directions());
        format!("{name}_l{layer}{}", if direction == 1 { "_reverse" } else { "" })
    }
}

impl<K: RecurrentStep> Module for Recurrent<K> {
    fn visit<'a>(&'a self, visitor: &mut dyn FnMut(&str, Entry<'a>)) {
        for (index, layer) in self.layers.iter().enumerate() {
            layer.visit(&mut |name, entry| visitor(&self.name(name, index), entry));
        }
        visitor("training", Entry::Training(&self.training));
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut dyn FnMut(&str, EntryMut<'a>)) {
        for layer in &mut self.layers {
            layer.visit_mut(visitor);
        }
        visitor("training", EntryMut::Training(&mut self.training));
    }
}

/// One step of a recurrent network.
#[derive(Clone, Debug)]
pub struct RecurrentCell<K> {
    kind: K,
    weights: Weights,
}

/// A step of long short-term memory.
pub type LSTMCell = RecurrentCell<LongShortTerm>;
/// A step of a gated recurrent unit.
pub type GRUCell = RecurrentCell<Gated>;
/// A step of Elman's network.
pub type RNNCell = RecurrentCell<Elman>;

impl<K: RecurrentStep> Module for RecurrentCell<K> {
    fn visit<'a>(&'a self, visitor: &mut dyn FnMut(&str, Entry<'a>)) {
        self.weights.visit(visitor);
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut dyn FnMut(&str, EntryMut<'a>)) {
        self.weights.visit_mut(visitor);
    }
}

impl<K: RecurrentStep + Default> RecurrentCell<K> {
    /// Makes a cell from `inputs` features to states of `hidden` features, with random parameters.
    #[track_caller]
    pub fn new(
        inputs: usize,
        hidden: usize,
        bias: bool,
        generator: &mut Generator,
        device: &Device,
    ) -> Result<Self> {
        Self::with_kind(K::default(), inputs, hidden, bias, generator, device)
    }
}

impl<K: RecurrentStep> RecurrentCell<K> {
    /// Makes a cell with the step of `kind`.
    #[enter]
    pub fn with_kind(
        kind: K,
        inputs: usize,
        hidden: usize,
        bias: bool,
        generator: &mut Generator,
        device: &Device,
    ) -> Result<Self> {
        let sizes = [kind.kind().gates() as usize, inputs, hidden, 0];
        Ok(Self { kind, weights: Weights::new(sizes, bias, generator, device)? })
    }

    /// Returns the states after a step, from an input (batch, features) or (features) and states (batch, hidden) or (hidden), by
    /// default zeros. Asynchronous.
    #[in_call("RecurrentCell", &[input])]
    pub fn forward(&self, input: &Tensor, given: Option<&[Tensor]>) -> Result<Vec<Tensor>> {
        let features = self.weights.weight_ih.shape()[1];
        refuse_if!(
            !(1..=2).contains(&input.rank()) || input.shape().last() != Some(&features),
            "Expected input to be 1D or 2D with {features} features, got {:?} instead",
            input.shape()
        );
        let mut shape = input.shape().to_vec();
        shape[input.rank() - 1] = self.weights.weight_hh.shape()[1];
        let count = states(self.kind.kind());
        let states = match given {
            None => (0..count)
                .map(|_| Tensor::zeros(&shape, input.dtype(), input.device()))
                .collect::<Result<Vec<_>>>()?,
            Some(states) => states.to_vec(),
        };
        if states.len() != count || states.iter().any(|state| state.shape() != shape) {
            refuse!("it takes {count} states of shape {shape:?}");
        }
        let weights = self.weights.tensors();
        let next = |input: &Tensor, states: &[Tensor]| {
            step(self.kind.kind(), &weights, &of_input(&weights, input)?, states)
        };
        if input.rank() == 2 {
            return next(input, &states);
        }
        let states = states.iter().map(|state| state.unsqueeze(0)).collect::<Result<Vec<_>>>()?;
        next(&input.unsqueeze(0)?, &states)?.iter().map(|state| state.squeeze(0)).collect()
    }
}
