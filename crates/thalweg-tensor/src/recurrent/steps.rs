//! Recurrent networks of operators, one step of time after another.

use std::panic::Location;

use smallvec::SmallVec;
use thalweg_runtime::{RecurrentKind, Result};

use super::{LayerWeights, Network, states};
use crate::argument::Argument;
use crate::caller::label_at;
use crate::dispatch::{Operator, built_in};
use crate::tensor::Tensor;

/// Returns x · wᵀ with a bias.
fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let arguments = [x.into(), weight.into(), bias.map_or(Argument::None, Argument::from)];
    let label = label_at("linear", Location::caller());
    Ok(built_in!("linear")?.call(&arguments, None, label)?.swap_remove(0))
}

/// Returns the contribution of rows of the input to the gates.
pub fn of_input(weights: &LayerWeights, rows: &Tensor) -> Result<Tensor> {
    linear(rows, &weights.of_input, weights.biases.as_ref().map(|biases| &biases[0]))
}

/// Returns the states after a step, from the input's contribution to the gates, and the states.
pub fn step(
    kind: RecurrentKind,
    weights: &LayerWeights,
    of_input: &Tensor,
    former: &[Tensor],
) -> Result<Vec<Tensor>> {
    let of_hidden = linear(&former[0], &weights.of_hidden, weights.biases.as_ref().map(|biases| &biases[1]))?;
    let fused = |operator: Result<&'static Operator>, name, state: &Tensor| -> Result<Vec<Tensor>> {
        let arguments = [of_input.into(), (&of_hidden).into(), state.into()];
        let results = operator?.call(&arguments, None, label_at(name, Location::caller()))?;
        Ok(results.into_iter().take(states(kind)).collect())
    };
    let mut next = match kind {
        RecurrentKind::Relu => vec![of_input.add(&of_hidden)?.relu()?],
        RecurrentKind::Tanh => vec![of_input.add(&of_hidden)?.tanh()?],
        RecurrentKind::LongShortTerm => fused(built_in!("thalweg::lstm_step"), "lstm", &former[1])?,
        RecurrentKind::Gated => fused(built_in!("thalweg::gru_step"), "gru", &former[0])?,
    };
    if let Some(projection) = &weights.projection {
        next[0] = linear(&next[0], projection, None)?;
    }
    Ok(next)
}

/// Runs all layers over a sequence (length, batch, features), or over packed rows with the sizes of its batches.
pub(super) fn run(
    network: &Network<'_>,
    input: &Tensor,
    first: &[Tensor],
    batch_sizes: Option<&[usize]>,
) -> Result<(Tensor, Vec<Tensor>)> {
    let (mut rows, mut last) = (input.clone(), vec![Vec::new(); first.len()]);
    let directions = network.directions();
    for (layer, both) in network.weights.chunks(directions).enumerate() {
        let mut results = Vec::new();
        for (direction, weights) in both.iter().enumerate() {
            let place = layer * directions + direction;
            let states = first.iter().map(|state| state.select(0, place)).collect::<Result<_>>()?;
            let of = (network.kind, weights);
            let (result, states) = match batch_sizes {
                None => run_layer(of, &rows, states, direction == 1)?,
                Some(sizes) => run_packed(of, &rows, sizes, states, direction == 1)?,
            };
            results.push(result);
            last.iter_mut().zip(states).for_each(|(list, state)| list.push(state));
        }
        rows = if directions == 1 { results.remove(0) } else { Tensor::cat(&results, -1)? };
    }
    let last = last.iter().map(|list| Tensor::stack(list, 0)).collect::<Result<_>>()?;
    Ok((rows, last))
}

/// Runs one layer in one direction over a sequence.
fn run_layer(
    (kind, weights): (RecurrentKind, &LayerWeights),
    sequence: &Tensor,
    mut states: Vec<Tensor>,
    backwards: bool,
) -> Result<(Tensor, Vec<Tensor>)> {
    let mut steps: SmallVec<[Tensor; 8]> = of_input(weights, sequence)?.unbind(0)?.into_iter().collect();
    if backwards {
        steps.reverse();
    }
    let mut results = Vec::with_capacity(steps.len());
    for of_input in &steps {
        states = step(kind, weights, of_input, &states)?;
        results.push(states[0].clone());
    }
    if backwards {
        results.reverse();
    }
    Ok((Tensor::stack(&results, 0)?, states))
}

/// Runs one layer in one direction over a packed sequence. A sequence that has ended keeps its states; backwards, a sequence
/// begins at its end with the initial states.
fn run_packed(
    (kind, weights): (RecurrentKind, &LayerWeights),
    data: &Tensor,
    batch_sizes: &[usize],
    first: Vec<Tensor>,
    backwards: bool,
) -> Result<(Tensor, Vec<Tensor>)> {
    let sizes: Vec<i64> = batch_sizes.iter().map(|&size| size as i64).collect();
    let mut steps: Vec<_> = of_input(weights, data)?.split_with_sizes(&sizes, 0)?.into_iter().collect();
    if backwards {
        steps.reverse();
    }
    let mut results = Vec::with_capacity(steps.len());
    // The states of sequences that have ended, the latest end first.
    let mut ended: Vec<Vec<Tensor>> = vec![Vec::new(); first.len()];
    let start = if backwards { steps[0].shape()[0] } else { batch_sizes[0] };
    let mut states = first.iter().map(|state| state.narrow(0, 0, start)).collect::<Result<Vec<_>>>()?;
    for of_input in &steps {
        let (active, running) = (of_input.shape()[0], states[0].shape()[0]);
        for ((state, first), ended) in states.iter_mut().zip(&first).zip(&mut ended) {
            if active < running {
                ended.insert(0, state.narrow(0, active, running - active)?);
                *state = state.narrow(0, 0, active)?;
            } else if active > running {
                *state = Tensor::cat(&[state.clone(), first.narrow(0, running, active - running)?], 0)?;
            }
        }
        states = step(kind, weights, of_input, &states)?;
        results.push(states[0].clone());
    }
    if backwards {
        results.reverse();
    }
    let whole = states.into_iter().zip(ended).map(|(state, ended)| {
        let parts: Vec<Tensor> = [state].into_iter().chain(ended).collect();
        Tensor::cat(&parts, 0)
    });
    Ok((Tensor::cat(&results, 0)?, whole.collect::<Result<_>>()?))
}
