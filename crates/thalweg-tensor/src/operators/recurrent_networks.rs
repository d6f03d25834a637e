//! Recurrent networks under PyTorch's names.

use std::panic::Location;

use thalweg_ir::DType;
use thalweg_runtime::{Error, RecurrentKind, Result, invalid, refuse, refuse_if};

use super::Body::{Composite, Kernel};
use super::operators;
use crate::argument::Argument;
use crate::dispatch::{Arguments, Call, built_in};
use crate::recurrent::library::{self, Kept};
use crate::recurrent::{Between, LayerWeights, Network};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the output of long short-term memory over sequences, and the last hidden states and cells.
    "lstm.input(Tensor input, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor, Tensor)"
        = Composite(|call| even(call, RecurrentKind::LongShortTerm)), autocast: Parts;
    /// Returns the output of long short-term memory over packed sequences, and the last hidden states and cells.
    "lstm.data(Tensor data, Tensor batch_sizes, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional) -> (Tensor, Tensor, Tensor)"
        = Composite(|call| packed(call, RecurrentKind::LongShortTerm)), autocast: Parts;
    /// Returns the output of gated recurrent units over sequences, and the last hidden states.
    "gru.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor)"
        = Composite(|call| even(call, RecurrentKind::Gated)), autocast: Parts;
    /// Returns the output of gated recurrent units over packed sequences, and the last hidden states.
    "gru.data(Tensor data, Tensor batch_sizes, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional) -> (Tensor, Tensor)"
        = Composite(|call| packed(call, RecurrentKind::Gated)), autocast: Parts;
    /// Returns the output of Elman's network with tanh over sequences, and the last hidden states.
    "rnn_tanh.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor)"
        = Composite(|call| even(call, RecurrentKind::Tanh)), autocast: Parts;
    /// Returns the output of Elman's network with tanh over packed sequences, and the last hidden states.
    "rnn_tanh.data(Tensor data, Tensor batch_sizes, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional) -> (Tensor, Tensor)"
        = Composite(|call| packed(call, RecurrentKind::Tanh)), autocast: Parts;
    /// Returns the output of Elman's network with the rectified linear unit over sequences, and the last hidden states.
    "rnn_relu.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor)"
        = Composite(|call| even(call, RecurrentKind::Relu)), autocast: Parts;
    /// Returns the output of Elman's network with the rectified linear unit over packed sequences, and the last hidden states.
    "rnn_relu.data(Tensor data, Tensor batch_sizes, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional) -> (Tensor, Tensor)"
        = Composite(|call| packed(call, RecurrentKind::Relu)), autocast: Parts;
    /// Returns the output of a recurrent network of a mode over sequences, or over packed rows with the number of sequences of each
    /// step in `batch_sizes`, and the last hidden states and cells, which only long short-term memory has.
    "thalweg::network(Tensor input, Tensor[] hx, Tensor[] params, int mode, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first, int[] batch_sizes) -> (Tensor, Tensor, Tensor)"
        = Composite(|call| {
            let kind = library::kind_of(call.int(3))?;
            let sizes = batch_sizes(call, 10);
            let (input, turns) = (call.tensor(0), call.bool(9) && sizes.is_none());
            let input = if turns { input.transpose(0, 1)? } else { input.clone() };
            let named = (&input, call.operator.base_name());
            let mut results = run(named, kind, &Options::at(call, 4), call.tensor_list(1), call.tensor_list(2), sizes.as_deref())?;
            if turns {
                results[0] = results[0].transpose(0, 1)?;
            }
            if !kind.has_cell() {
                results.push(Tensor::zeros(&[0], results[1].dtype(), results[1].device())?);
            }
            Ok(results)
        }), autocast: Parts;
    /// Returns the output of a recurrent network, its last states, and the memory that its gradient reads. The weights are in the order
    /// of layers, and of directions within a layer.
    "_cudnn_rnn(Tensor input, Tensor[] weight, int weight_stride0, Tensor? weight_buf, Tensor hx, Tensor? cx, int mode, SymInt hidden_size, SymInt proj_size, int num_layers, bool batch_first, float dropout, bool train, bool bidirectional, SymInt[] batch_sizes, Tensor? dropout_state) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
        = Composite(by_library), autocast: Parts;
    /// Returns the gradients of input, first states and weights of `_cudnn_rnn`, those that the mask selects; the others are empty.
    /// What the forward pass kept is overwritten.
    "_cudnn_rnn_backward(Tensor input, Tensor[] weight, int weight_stride0, Tensor weight_buf, Tensor hx, Tensor? cx, Tensor output, Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, int mode, SymInt hidden_size, SymInt proj_size, int num_layers, bool batch_first, float dropout, bool train, bool bidirectional, SymInt[] batch_sizes, Tensor? dropout_state, Tensor reserve, bool[4] output_mask) -> (Tensor, Tensor, Tensor, Tensor[])"
        = Kernel(by_library_backward);
}

/// The options of a network.
struct Options {
    has_biases: bool,
    layers: i64,
    /// The probability with which elements between layers are dropped; 0 outside of training.
    dropout: f64,
    bidirectional: bool,
}

impl Options {
    /// Reads the options of a call from a position on.
    fn at(call: &Call<'_>, place: usize) -> Self {
        let train = call.bool(place + 3);
        Self {
            has_biases: call.bool(place),
            layers: call.int(place + 1),
            dropout: if train { call.float(place + 2) } else { 0.0 },
            bidirectional: call.bool(place + 4),
        }
    }
}

/// Returns the weights by layer and direction from PyTorch's list, in which those of a projection are the last of each.
fn weights(params: &[Tensor], has_biases: bool, count: usize) -> Result<Vec<LayerWeights>> {
    let width = params.len().checked_div(count).unwrap_or(0);
    let least = if has_biases { 4 } else { 2 };
    refuse_if!(
        count == 0 || params.len() != width * count || !(least..=least + 1).contains(&width),
        "got an incorrect number of RNN parameters: {} for {count} layers and directions",
        params.len()
    );
    let each = params.chunks(width).map(|of| LayerWeights {
        of_input: of[0].clone(),
        of_hidden: of[1].clone(),
        biases: has_biases.then(|| [of[2].clone(), of[3].clone()]),
        projection: (width > least).then(|| of[least].clone()),
    });
    Ok(each.collect())
}

/// Runs a network: output and last states.
fn run(
    (input, name): (&Tensor, &str),
    kind: RecurrentKind,
    options: &Options,
    first: &[Tensor],
    params: &[Tensor],
    batch_sizes: Option<&[usize]>,
) -> Result<Tensors> {
    let directions = 1 + i64::from(options.bidirectional);
    let count = usize::try_from(options.layers.saturating_mul(directions)).unwrap_or(0);
    let weights = weights(params, options.has_biases, count)?;
    if first.len() != crate::recurrent::states(kind) {
        let expected = if kind.has_cell() { "two hidden states" } else { "one hidden state" };
        refuse!("{name} expects {expected}");
    }
    let dropped = |rows: &Tensor| {
        let arguments = [rows.into(), options.dropout.into(), true.into()];
        super::call(built_in!("dropout")?, &arguments, None, Location::caller())
    };
    let between: Option<Between<'_>> = if options.dropout > 0.0 { Some(&dropped) } else { None };
    let network = Network { kind, bidirectional: options.bidirectional, weights: &weights };
    let (output, last) = network.run(input, first, batch_sizes, between)?;
    Ok([output].into_iter().chain(last).collect())
}

/// Returns the first states of a call: one tensor, or a list for a network with cells.
fn first<'c>(call: &'c Call<'_>, kind: RecurrentKind, place: usize) -> &'c [Tensor] {
    if kind.has_cell() { call.tensor_list(place) } else { std::slice::from_ref(call.tensor(place)) }
}

/// Runs a network over sequences of one length.
fn even(call: &Call<'_>, kind: RecurrentKind) -> Result<Tensors> {
    let (options, batch_first) = (Options::at(call, 3), call.bool(8));
    let input = call.tensor(0);
    refuse_if!(input.rank() != 3, "input must have 3 dimensions, got {}", input.rank());
    let turned = if batch_first { input.transpose(0, 1)? } else { input.clone() };
    let mut results = run(
        (&turned, call.operator.base_name()),
        kind,
        &options,
        first(call, kind, 1),
        call.tensor_list(2),
        None,
    )?;
    if batch_first {
        results[0] = results[0].transpose(0, 1)?;
    }
    Ok(results)
}

/// Runs a network over packed sequences. The host waits for the sizes of the batches.
fn packed(call: &Call<'_>, kind: RecurrentKind) -> Result<Tensors> {
    let sizes = call.tensor(1).to_dtype(DType::I64)?.to_vec::<i64>()?;
    let sizes: Vec<usize> = sizes.into_iter().map(|size| size.max(0) as usize).collect();
    let (first, params) = (first(call, kind, 2), call.tensor_list(3));
    run((call.tensor(0), call.operator.base_name()), kind, &Options::at(call, 4), first, params, Some(&sizes))
}

/// Runs a network by the library alone: output, last states, what the gradient reads, and the buffer of all weights.
fn by_library(call: &Call<'_>) -> Result<Tensors> {
    let kind = library::kind_of(call.int(6))?;
    let (bidirectional, stride) = (call.bool(13), call.int(2));
    let has_biases = stride >= 4;
    if call.bool(12) && call.float(11) > 0.0 && call.int(9) > 1 {
        return Err(Error::not_implemented(
            "_cudnn_rnn: elements between layers are dropped by `lstm`, `gru`, `rnn_tanh` and `rnn_relu`, with this library's generator",
        ));
    }
    let count = call.int(9).saturating_mul(1 + i64::from(bidirectional));
    let weights = weights(call.tensor_list(1), has_biases, usize::try_from(count).unwrap_or(0))?;
    let network = Network { kind, bidirectional, weights: &weights };
    let sizes = batch_sizes(call, 14);
    let turns = call.bool(10) && sizes.is_none();
    let input = if turns { call.tensor(0).transpose(0, 1)? } else { call.tensor(0).clone() };
    let first: Vec<Tensor> = [call.tensor(4)].into_iter().chain(call.optional_tensor(5)).cloned().collect();
    let mut results =
        library::whole(&network, &input, &first, sizes.as_deref(), call.bool(12))?.ok_or_else(|| {
            invalid!("_cudnn_rnn: the library does not support {input:?} with these weights and states")
        })?;
    if turns {
        results[0] = results[0].transpose(0, 1)?;
    }
    Ok(results)
}

/// Returns the sizes of batches of a call, if it has packed rows.
fn batch_sizes(call: &Call<'_>, place: usize) -> Option<Vec<usize>> {
    let sizes: Vec<usize> = call.ints(place).iter().map(|&size| size.max(0) as usize).collect();
    (!sizes.is_empty()).then_some(sizes)
}

/// Computes the gradients of `_cudnn_rnn`: of input, first hidden states and cells, and each weight.
fn by_library_backward(call: &Call<'_>) -> Result<Tensors> {
    let (kind, bidirectional) = (library::kind_of(call.int(10))?, call.bool(17));
    let Argument::Bools(&[of_input, of_hidden, of_cell, of_weights]) = call.argument(21) else {
        refuse!("output_mask has four truth values: for input, states, cells and weights");
    };
    let count = call.int(13).saturating_mul(1 + i64::from(bidirectional));
    let weights = weights(call.tensor_list(1), call.int(2) >= 4, usize::try_from(count).unwrap_or(0))?;
    let network = Network { kind, bidirectional, weights: &weights };
    let sizes = batch_sizes(call, 18);
    let turns = call.bool(14) && sizes.is_none();
    let laid = |tensor: &Tensor| if turns { tensor.transpose(0, 1) } else { Ok(tensor.clone()) };
    let (input, output) = (laid(call.tensor(0))?, laid(call.tensor(6))?);
    let gradient = match call.optional_tensor(7) {
        Some(gradient) => laid(gradient)?,
        None => Tensor::zeros(output.shape(), output.dtype(), output.device())?,
    };
    let kept = Kept {
        input: &input,
        weights: call.tensor(3),
        hidden: call.tensor(4),
        cell: call.optional_tensor(5),
        output: &output,
        reserve: call.tensor(20),
    };
    let last = [8, 9].map(|place| call.optional_tensor(place).cloned());
    let gradients =
        library::gradients(&network, &kept, sizes.as_deref(), (&gradient, last), of_weights, call.label)?;
    let (mut states, of_parts) = gradients;
    if let (true, Some(input)) = (turns, &mut states[0]) {
        *input = input.transpose(0, 1)?;
    }
    let wanted = [of_input, of_hidden, of_cell].into_iter().zip(states);
    let each = wanted.map(|(is_wanted, gradient)| match gradient.filter(|_| is_wanted) {
        Some(gradient) => Ok(gradient),
        None => Tensor::empty(&[0], input.dtype(), input.device()),
    });
    each.chain(of_parts.into_iter().map(Ok)).collect()
}
