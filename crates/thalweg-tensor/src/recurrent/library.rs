//! Recurrent networks as calls of the vendor's library; on the simulator as a host function.
//!
//! The library reads all weights from one buffer, in a layout of its own. The buffer is a concatenation of the weights, so their
//! gradients are parts of the buffer's gradient.

use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_execute::backends::cudnn;
use thalweg_execute::if_supported;
use thalweg_execute::library::{pass_recurrent, recurrent_memory};
use thalweg_ir::DType;
use thalweg_runtime::{
    DevicePointer, Error, RecurrentCall, RecurrentKind, RecurrentMemory, RecurrentPart, RecurrentPass,
    RecurrentShape, RecurrentStates, Result, Stream, element_format, invalid, refuse, refuse_if,
};

use super::{LayerWeights, Network, states, steps};
use crate::argument::{Argument, Arguments};
use crate::autograd::formula::{Formula, GradientCall};
use crate::autograd::{Gradients, is_grad_enabled};
use crate::caller::label_at;
use crate::dispatch::{Call, Ints, built_in};
use crate::tensor::{Tensor, Tensors};

/// Returns the number of a kind in the library and in PyTorch's operators.
pub(crate) const fn number_of(kind: RecurrentKind) -> i64 {
    match kind {
        RecurrentKind::Relu => 0,
        RecurrentKind::Tanh => 1,
        RecurrentKind::LongShortTerm => 2,
        RecurrentKind::Gated => 3,
    }
}

/// Returns the kind with a number.
pub(crate) fn kind_of(number: i64) -> Result<RecurrentKind> {
    match number {
        0 => Ok(RecurrentKind::Relu),
        1 => Ok(RecurrentKind::Tanh),
        2 => Ok(RecurrentKind::LongShortTerm),
        3 => Ok(RecurrentKind::Gated),
        _ => Err(invalid!("unknown mode {number} of a recurrent network: it is 0 to 3")),
    }
}

/// Returns the lengths of sequences from the number of sequences of each step; `None` if it increases.
fn lengths_of(batch_sizes: &[usize]) -> Option<Arc<[u32]>> {
    if batch_sizes.last() == Some(&0) || !batch_sizes.is_sorted_by(|one, next| one >= next) {
        return None;
    }
    let count = *batch_sizes.first()?;
    Some((0..count).map(|sequence| batch_sizes.partition_point(|&size| size > sequence) as u32).collect())
}

/// Returns the shape of a network over its rows, if all tensors agree and the library may compute it.
fn shape_of(
    network: &Network<'_>,
    input: &Tensor,
    first: &[Tensor],
    batch_sizes: Option<&[usize]>,
) -> Option<RecurrentShape> {
    let all = || first.iter().chain(network.weights.iter().flat_map(LayerWeights::tensors));
    let can = input.device().properties().libraries.recurrent && cudnn::enabled();
    // In a region of autocast the weights are cast together.
    let is_one_dtype = first.iter().all(|state| state.dtype() == input.dtype())
        && all().all(|tensor| tensor.dtype().is_differentiable() && tensor.device() == input.device());
    let weight_dtype = network.weights[0].of_input.dtype();
    let is_weights =
        network.weights.iter().flat_map(LayerWeights::tensors).all(|w| w.dtype() == weight_dtype);
    let casts = crate::autocast::is_autocast_enabled();
    if !can || !is_one_dtype || !is_weights || !(casts || weight_dtype == input.dtype()) {
        return None;
    }
    let (lengths, inputs) = match (batch_sizes, input.shape()) {
        (None, &[length, batch, inputs]) => (vec![u32::try_from(length).ok()?; batch].into(), inputs),
        (Some(sizes), &[rows, inputs]) if sizes.iter().sum::<usize>() == rows => (lengths_of(sizes)?, inputs),
        _ => return None,
    };
    let head = &network.weights[0];
    let rows = head.of_input.shape().first().copied()? as u64;
    let shape = RecurrentShape {
        kind: network.kind,
        inputs: inputs as u64,
        hidden: rows / network.kind.gates(),
        projected: head.projection.as_ref().map_or(0, |weight| weight.shape().first().copied().unwrap_or(0))
            as u64,
        layers: (network.weights.len() / network.directions()) as u64,
        bidirectional: network.bidirectional,
        has_biases: head.biases.is_some(),
        lengths,
        format: element_format(input.dtype())?,
        allow_tf32: cudnn::allow_tf32(),
    };
    let fits = shape.fault().is_none() && first.len() == states(network.kind) && fits(network, &shape, first);
    fits.then_some(shape)
}

/// Returns whether weights and states have the shapes that a network wants.
fn fits(network: &Network<'_>, shape: &RecurrentShape, first: &[Tensor]) -> bool {
    let is = |tensor: &Tensor, sizes: &[u64]| {
        tensor.rank() == sizes.len() && tensor.shape().iter().zip(sizes).all(|(&one, &two)| one as u64 == two)
    };
    let rows = shape.kind.gates() * shape.hidden;
    let of_states = [shape.outputs(), shape.hidden]
        .map(|features| [shape.layers * shape.directions(), shape.sequences(), features]);
    first.iter().zip(of_states).all(|(state, sizes)| is(state, &sizes))
        && network.weights.iter().enumerate().all(|(place, weights)| {
            let inputs = shape.inputs_of(place as u64 / shape.directions());
            is(&weights.of_input, &[rows, inputs])
                && is(&weights.of_hidden, &[rows, shape.outputs()])
                && weights.biases.is_some() == shape.has_biases
                && weights.biases.iter().flatten().all(|bias| is(bias, &[rows]))
                && weights.projection.is_some() == (shape.projected > 0)
                && weights.projection.iter().all(|weight| is(weight, &[shape.projected, shape.hidden]))
        })
}

/// Returns the memory of a shape; `None` if there is no library that supports it.
fn memory_of(stream: &Stream, shape: &RecurrentShape) -> Result<Option<RecurrentMemory>> {
    if_supported(recurrent_memory(shape, stream))
}

/// Returns the starts and shapes of the parts of the buffer of weights, in PyTorch's order.
fn places(shape: &RecurrentShape, memory: &RecurrentMemory) -> Vec<(u64, SmallVec<[u64; 2]>)> {
    let rows = shape.kind.gates() * shape.hidden;
    let mut places = Vec::new();
    for (place, part) in memory.parts.iter().enumerate() {
        let RecurrentPart { of_input, of_hidden, biases, projection } = *part;
        let inputs = shape.inputs_of(place as u64 / shape.directions());
        places.push((of_input, SmallVec::from_slice(&[rows, inputs])));
        places.push((of_hidden, SmallVec::from_slice(&[rows, shape.outputs()])));
        places.extend(biases.into_iter().flatten().map(|start| (start, SmallVec::from_slice(&[rows]))));
        places
            .extend(projection.map(|start| (start, SmallVec::from_slice(&[shape.projected, shape.hidden]))));
    }
    places
}

/// Returns all weights in one buffer.
fn buffer(
    network: &Network<'_>,
    shape: &RecurrentShape,
    memory: &RecurrentMemory,
    dtype: DType,
) -> Result<Tensor> {
    let weights = network.weights.iter().flat_map(LayerWeights::tensors);
    let mut list: Vec<(u64, &Tensor)> =
        places(shape, memory).into_iter().map(|(start, _)| start).zip(weights).collect();
    list.sort_by_key(|(start, _)| *start);
    let (mut parts, mut end) = (Vec::new(), 0);
    let gap = |elements: u64, like: &Tensor| Tensor::zeros(&[elements as usize], like.dtype(), like.device());
    for (start, tensor) in &list {
        if *start > end {
            parts.push(gap(start - end, tensor)?);
        }
        parts.push(tensor.reshape(&[tensor.elements()])?);
        end = start + tensor.elements() as u64;
    }
    if memory.weight_elements > end {
        parts.push(gap(memory.weight_elements - end, list[0].1)?);
    }
    Tensor::cat(&parts, 0)?.to_dtype(dtype)
}

/// Returns the weights as views of their buffer.
fn unpacked(shape: &RecurrentShape, memory: &RecurrentMemory, buffer: &Tensor) -> Result<Vec<LayerWeights>> {
    let mut views = places(shape, memory).into_iter().map(|(start, sizes)| {
        let sizes: SmallVec<[usize; 2]> = sizes.iter().map(|&size| size as usize).collect();
        buffer.narrow(0, start as usize, sizes.iter().product())?.reshape(&sizes)
    });
    let mut next = || views.next().expect("each part has its place");
    (memory.parts.iter())
        .map(|part| {
            Ok(LayerWeights {
                of_input: next()?,
                of_hidden: next()?,
                biases: part.biases.map(|_| Ok::<_, Error>([next()?, next()?])).transpose()?,
                projection: part.projection.map(|_| next()).transpose()?,
            })
        })
        .collect()
}

/// Runs a network by the library, if the library is present and supports these tensors.
pub(super) fn attempt(
    network: &Network<'_>,
    input: &Tensor,
    first: &[Tensor],
    batch_sizes: Option<&[usize]>,
) -> Result<Option<(Tensor, Vec<Tensor>)>> {
    let Some(results) = whole(network, input, first, batch_sizes, false)? else { return Ok(None) };
    let mut results = results.into_iter();
    let output = results.next().expect("it has an output");
    Ok(Some((output, results.take(states(network.kind)).collect())))
}

/// Runs a network by the library, if the library is present and supports these tensors. Returns output, last hidden states and cells,
/// the memory that the gradient reads (empty unless there will be a gradient or `keeps` is set), and the buffer of all weights.
pub(crate) fn whole(
    network: &Network<'_>,
    input: &Tensor,
    first: &[Tensor],
    batch_sizes: Option<&[usize]>,
    keeps: bool,
) -> Result<Option<Tensors>> {
    let Some(shape) = shape_of(network, input, first, batch_sizes) else { return Ok(None) };
    let Some(memory) = memory_of(&input.device().current_stream(), &shape)? else { return Ok(None) };
    let weights = buffer(network, &shape, &memory, input.dtype())?;
    let keeps = keeps
        || is_grad_enabled()
            && [input, &weights].into_iter().chain(first).any(|tensor| tensor.requires_grad());
    let lengths: Ints = shape.lengths.iter().map(|&length| i64::from(length)).collect();
    let arguments = [
        input.into(),
        (&weights).into(),
        (&first[0]).into(),
        first.get(1).map_or(Argument::None, Argument::from),
        number_of(shape.kind).into(),
        (shape.hidden as i64).into(),
        (shape.projected as i64).into(),
        (shape.layers as i64).into(),
        shape.bidirectional.into(),
        shape.has_biases.into(),
        Argument::Ints(&lengths),
        keeps.into(),
    ];
    let label = label_at(name(shape.kind), Location::caller());
    let mut results = built_in!("thalweg::recurrent")?.call(&arguments, None, label)?;
    results.push(weights);
    Ok(Some(results))
}

const fn name(kind: RecurrentKind) -> &'static str {
    match kind {
        RecurrentKind::Relu => "rnn_relu",
        RecurrentKind::Tanh => "rnn_tanh",
        RecurrentKind::LongShortTerm => "lstm",
        RecurrentKind::Gated => "gru",
    }
}

/// Returns the shape that the arguments of a call, or of its gradient, describe.
fn described(call: &impl Arguments, dtype: DType, inputs: usize) -> Result<RecurrentShape> {
    let size = |place: usize| u64::try_from(call.int(place)).unwrap_or(0);
    let lengths = call.ints(10);
    Ok(RecurrentShape {
        kind: kind_of(call.int(4))?,
        inputs: inputs as u64,
        hidden: size(5),
        projected: size(6),
        layers: size(7),
        bidirectional: call.bool(8),
        has_biases: call.bool(9),
        lengths: lengths.iter().map(|&length| u32::try_from(length).unwrap_or(0)).collect(),
        format: element_format(dtype).ok_or_else(|| invalid!("a recurrent network of {dtype}"))?,
        allow_tf32: cudnn::allow_tf32(),
    })
}

/// Returns a tensor whose elements are laid out as the library reads them.
fn readable(tensor: &Tensor) -> Result<Tensor> {
    let tensor = tensor.detach().contiguous()?;
    if tensor.pointer().address().is_multiple_of(16) { Ok(tensor) } else { tensor.copied(Location::caller()) }
}

fn states_at(hidden: &Tensor, cell: Option<&Tensor>) -> RecurrentStates {
    RecurrentStates { hidden: hidden.pointer(), cell: cell.map(Tensor::pointer) }
}

fn reserve_at(reserve: &Tensor) -> Option<(DevicePointer, u64)> {
    (reserve.elements() > 0).then(|| (reserve.pointer(), reserve.elements() as u64))
}

/// Checks the sizes of a call's tensors against its shape, and returns the memory that it needs.
fn checked(
    stream: &Stream,
    shape: &RecurrentShape,
    [input, weights, hidden]: [&Tensor; 3],
    cell: Option<&Tensor>,
) -> Result<RecurrentMemory> {
    if let Some(fault) = shape.fault() {
        refuse!("{}: {fault}", name(shape.kind));
    }
    let memory = recurrent_memory(shape, stream)?;
    let [of_input, _, of_hidden, of_cell] = shape.elements();
    let wanted = [of_input, memory.weight_elements, of_hidden];
    let agree = [input, weights, hidden].iter().zip(wanted).all(|(tensor, wanted)| {
        tensor.elements() as u64 == wanted
            && tensor.dtype() == input.dtype()
            && tensor.device() == input.device()
    });
    let is_cell = cell.is_some() == shape.kind.has_cell()
        && cell.is_none_or(|cell| cell.elements() as u64 == of_cell && cell.dtype() == input.dtype());
    refuse_if!(
        !agree || !is_cell,
        "{}: an input {input:?}, weights {weights:?} and states {hidden:?}, {cell:?} do not fit a network of {shape:?}",
        name(shape.kind)
    );
    Ok(memory)
}

/// Computes output, last states, and the memory that the backward pass reads.
pub(crate) fn forward(call: &Call<'_>) -> Result<Tensors> {
    let (input, weights, hidden) = (call.tensor(0), call.tensor(1), call.tensor(2));
    let inputs = input.shape().last().copied().unwrap_or(0);
    let shape = described(call, input.dtype(), inputs)?;
    let stream = call.device.current_stream();
    let memory = checked(&stream, &shape, [input, weights, hidden], call.optional_tensor(3))?;
    let [input, weights, hidden] = [readable(input)?, readable(weights)?, readable(hidden)?];
    let cell = call.optional_tensor(3).map(readable).transpose()?;
    let empty = |sizes: &[usize]| call.new_empty(sizes, input.dtype());
    let mut sizes = input.shape().to_vec();
    sizes.pop();
    sizes.push((shape.outputs() * shape.directions()) as usize);
    let output = empty(&sizes)?;
    let last_hidden = empty(hidden.shape())?;
    let last_cell = empty(cell.as_ref().map_or(&[0], |cell| cell.shape()))?;
    let bytes = if call.bool(11) { memory.reserve_bytes as usize } else { 0 };
    let reserve = call.new_empty(&[bytes], DType::U8)?;
    let last = states_at(&last_hidden, cell.is_some().then_some(&last_cell));
    let pass = RecurrentCall {
        pass: RecurrentPass::Forward { last },
        input: input.pointer(),
        weights: weights.pointer(),
        first: states_at(&hidden, cell.as_ref()),
        output: output.pointer(),
        reserve: reserve_at(&reserve),
        workspace: None,
        shape,
    };
    pass_recurrent(&pass, &memory, &stream, call.label)?;
    Ok(Tensors::from_iter([output, last_hidden, last_cell, reserve]))
}

/// The tensors of a forward pass that its backward pass reads.
pub(crate) struct Kept<'k> {
    pub(crate) input: &'k Tensor,
    pub(crate) weights: &'k Tensor,
    pub(crate) hidden: &'k Tensor,
    pub(crate) cell: Option<&'k Tensor>,
    pub(crate) output: &'k Tensor,
    /// Scratch memory of the forward pass, which the backward pass overwrites.
    pub(crate) reserve: &'k Tensor,
}

/// Computes the gradients of input, weights if they are wanted, and first states, from those of output and last states.
pub(crate) fn backward(
    shape: &RecurrentShape,
    kept: &Kept<'_>,
    output: &Tensor,
    last: [Option<Tensor>; 2],
    wants_weights: bool,
    label: thalweg_runtime::Label,
) -> Result<[Option<Tensor>; 4]> {
    let stream = kept.input.device().current_stream();
    let memory = checked(&stream, shape, [kept.input, kept.weights, kept.hidden], kept.cell)?;
    let [input, weights, hidden] = [readable(kept.input)?, readable(kept.weights)?, readable(kept.hidden)?];
    let cell = kept.cell.map(readable).transpose()?;
    let (result, output) = (readable(kept.output)?, readable(output)?);
    let like = |tensor: &Tensor| Tensor::empty_on(tensor.shape(), tensor.dtype(), &stream, label);
    let (of_input, of_hidden) = (like(&input)?, like(&hidden)?);
    let of_cell = cell.as_ref().map(like).transpose()?;
    let zeros = |like: &Tensor| Tensor::zeros(like.shape(), like.dtype(), like.device());
    let last = match last {
        [None, None] => None,
        [of_last, of_last_cell] => {
            let whole = |given: Option<Tensor>, like: &Tensor| {
                given.map_or_else(|| zeros(like), |given| readable(&given))
            };
            let of_last_cell = cell.as_ref().map(|cell| whole(of_last_cell, cell)).transpose()?;
            Some((whole(of_last, &hidden)?, of_last_cell))
        }
    };
    let call = RecurrentCall {
        shape: shape.clone(),
        pass: RecurrentPass::Backward {
            output: output.pointer(),
            last: last.as_ref().map(|(hidden, cell)| states_at(hidden, cell.as_ref())),
            input: of_input.pointer(),
            first: states_at(&of_hidden, of_cell.as_ref()),
        },
        input: input.pointer(),
        weights: weights.pointer(),
        first: states_at(&hidden, cell.as_ref()),
        output: result.pointer(),
        reserve: reserve_at(kept.reserve),
        workspace: None,
    };
    pass_recurrent(&call, &memory, &stream, label)?;
    let mut of_weights = None;
    if wants_weights {
        let gradient = zeros(&weights)?;
        let pass = RecurrentPass::Weights { weights: gradient.pointer() };
        pass_recurrent(&RecurrentCall { pass, ..call }, &memory, &stream, label)?;
        of_weights = Some(gradient);
    }
    Ok([Some(of_input), of_weights, Some(of_hidden), of_cell])
}

/// Computes the gradients of input and first states of a network, and, if they are wanted, of each weight in PyTorch's order.
pub(crate) fn gradients(
    network: &Network<'_>,
    kept: &Kept<'_>,
    batch_sizes: Option<&[usize]>,
    (output, last): (&Tensor, [Option<Tensor>; 2]),
    wants_weights: bool,
    label: thalweg_runtime::Label,
) -> Result<([Option<Tensor>; 3], Vec<Tensor>)> {
    let first: Vec<Tensor> = [kept.hidden].into_iter().chain(kept.cell).cloned().collect();
    let shape = shape_of(network, kept.input, &first, batch_sizes).ok_or_else(|| {
        invalid!("the library does not support {:?} with these weights and states", kept.input)
    })?;
    let [input, weights, hidden, cell] = backward(&shape, kept, output, last, wants_weights, label)?;
    let mut parts = Vec::new();
    if let Some(weights) = &weights {
        let memory = recurrent_memory(&shape, &kept.input.device().current_stream())?;
        parts = unpacked(&shape, &memory, weights)?.iter().flat_map(LayerWeights::tensors).cloned().collect();
    }
    Ok(([input, hidden, cell], parts))
}

/// The gradient of a network: two calls of the library; or that of its steps, if it must be differentiable itself.
pub(crate) static GRADIENT: Formula = Formula {
    inputs: &[0, 1, 2, 3],
    outputs: &[0, 3],
    backward: |call| {
        if is_grad_enabled() {
            return by_steps(call);
        }
        let cell = (call.tensor_count() > 3).then(|| call.saved(3)).transpose()?;
        let [input, weights, hidden] = [call.saved(0)?, call.saved(1)?, call.saved(2)?];
        let reserve = call.result(3)?;
        // A pass overwrites what the forward pass kept, which another pass may read.
        let reserve = if call.request().is_last() { reserve } else { reserve.copied(Location::caller())? };
        let kept = Kept {
            input: &input,
            weights: &weights,
            hidden: &hidden,
            cell: cell.as_ref(),
            output: &call.result(0)?,
            reserve: &reserve,
        };
        let last = [1, 2].map(|place| call.has_gradient(place).then(|| call.gradient_of(place)));
        let [hidden, cell] = last;
        let last = [hidden.transpose()?, cell.transpose()?];
        let inputs = input.shape().last().copied().unwrap_or(0);
        let shape = described(call, input.dtype(), inputs)?;
        let mut all = backward(&shape, &kept, &call.gradient()?, last, call.wants(1), call.label())?;
        call.each(|place| Ok(all[place].take()))
    },
};

/// Returns the gradients of a network that is computed again by operators, so that they have gradients themselves.
fn by_steps(call: &GradientCall<'_>) -> Result<Gradients> {
    let inputs = (0..call.tensor_count()).map(|place| call.saved(place)).collect::<Result<Vec<_>>>()?;
    let features = inputs[0].shape().last().copied().unwrap_or(0);
    let shape = described(call, inputs[0].dtype(), features)?;
    let memory = recurrent_memory(&shape, &call.device().current_stream())?;
    let weights = unpacked(&shape, &memory, &inputs[1])?;
    let network = Network { kind: shape.kind, bidirectional: shape.bidirectional, weights: &weights };
    let longest = shape.lengths.first().copied().unwrap_or(0);
    let sizes: Vec<usize> =
        (0..longest).map(|step| shape.lengths.partition_point(|&length| length > step)).collect();
    let batch_sizes = (inputs[0].rank() == 2).then_some(sizes.as_slice());
    let (output, last) = steps::run(&network, &inputs[0], &inputs[2..], batch_sizes)?;
    let outputs: Vec<Tensor> = [output].into_iter().chain(last).collect();
    call.recorded(&outputs, &inputs)
}
