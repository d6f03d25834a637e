//! Steps of recurrent networks: one kernel after the products of the input and of the hidden state, and one for its gradient.

use smallvec::SmallVec;
use thalweg_ops::LoopOp;
use thalweg_ops::structured::{GRU_STEP, GRU_STEP_BACKWARD, LSTM_STEP, LSTM_STEP_BACKWARD};
use thalweg_runtime::{Error, Label, Result, refuse_if};

use super::Body::Differentiable;
use super::operators;
use crate::autograd::formula::{Formula, GradientCall};
use crate::autograd::{Gradients, is_grad_enabled};
use crate::dispatch::{Arguments, Call};
use crate::loops::{LoopArguments, run_into, signature};
use crate::recurrent::library;
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the hidden state and the cell of long short-term memory after a step, from the contributions of the input and of
    /// the hidden state to the consecutive gates i, f, g, o, and the cell; and the gates after their functions.
    "thalweg::lstm_step(Tensor of_input, Tensor of_hidden, Tensor cell) -> (Tensor, Tensor, Tensor)"
        = Differentiable(|call| {
            let ([hidden, next], gates) = step(call, &LSTM_STEP, 4)?;
            Ok(Tensors::from_iter([hidden, next, gates]))
        }, &LSTM), autocast: Lower;
    /// Returns the hidden state of a gated recurrent unit after a step, from the contributions of the input and of the hidden
    /// state to the consecutive gates r, z, n, and the hidden state; and the gates after their functions.
    "thalweg::gru_step(Tensor of_input, Tensor of_hidden, Tensor hidden) -> (Tensor, Tensor)"
        = Differentiable(|call| {
            let ([hidden], gates) = step(call, &GRU_STEP, 3)?;
            Ok(Tensors::from_iter([hidden, gates]))
        }, &GRU), autocast: Lower;
    /// Returns the output of a recurrent network, its last states and what its gradient reads, from the input, all weights in the
    /// library's layout and the first states. The mode is 0 for the rectified linear unit, 1 for tanh, 2 for long short-term
    /// memory, 3 for a gated recurrent unit. `keeps` says whether there will be a gradient.
    "thalweg::recurrent(Tensor input, Tensor weights, Tensor hidden, Tensor? cell, int mode, int hidden_size, int proj_size, int num_layers, bool bidirectional, bool has_biases, int[] lengths, bool keeps) -> (Tensor output, Tensor last_hidden, Tensor last_cell, Tensor reserve)"
        = Differentiable(library::forward, &library::GRADIENT);
}

/// The tensors of a launch.
type Operands = SmallVec<[Tensor; 9]>;

/// Returns the gates that are consecutive in the last dimension.
fn gates(packed: &Tensor, count: usize) -> Result<Operands> {
    let packed = packed.detach();
    let (last, layout) = (packed.rank() - 1, packed.layout());
    let features = packed.shape()[last] / count;
    (0..count).map(|gate| Ok(packed.viewed(layout.narrow(last, gate * features, features)?))).collect()
}

/// Launches a loop over the points of a step.
fn launch(operator: &'static LoopOp, inputs: &[Tensor], outputs: &[Tensor], label: Label) -> Result<()> {
    if outputs[0].elements() == 0 {
        return Ok(());
    }
    let inputs: SmallVec<[&Tensor; 9]> = inputs.iter().collect();
    run_into(operator, &inputs, &LoopArguments::default(), outputs, label)
}

/// Computes a step: the states, and the gates after their functions.
fn step<const STATES: usize>(
    call: &Call<'_>,
    operator: &'static LoopOp,
    count: usize,
) -> Result<([Tensor; STATES], Tensor)> {
    let [of_input, of_hidden, state] = [0, 1, 2].map(|place| call.tensor(place));
    let of_gates = match state.shape().split_last() {
        Some((&features, batch)) => [batch, &[count * features]].concat(),
        None => Vec::new(),
    };
    refuse_if!(
        of_gates.is_empty() || of_input.shape() != of_gates || of_hidden.shape() != of_gates,
        "{}: a state {:?} has {count} gates by input and by hidden state, one behind the other in the last dimension, not {:?} and {:?}",
        call.operator.base_name(),
        state.shape(),
        of_input.shape(),
        of_hidden.shape()
    );
    let mut inputs = gates(of_input, count)?;
    inputs.extend(gates(of_hidden, count)?);
    inputs.push(state.detach());
    let operands: SmallVec<[&Tensor; 9]> = inputs.iter().collect();
    let dtype = signature(operator, &operands, &LoopArguments::default())?.outputs[0];
    let empty = |shape: &[usize]| call.new_empty(shape, dtype);
    let states: Operands = (0..STATES).map(|_| empty(state.shape())).collect::<Result<_>>()?;
    let after = empty(&of_gates)?;
    let outputs: Operands = states.iter().cloned().chain(gates(&after, count)?).collect();
    launch(operator, &inputs, &outputs, call.label)?;
    Ok((std::array::from_fn(|state| states[state].clone()), after))
}

/// Returns the gradients in the dtypes of the tensors of the call.
fn cast(call: &GradientCall<'_>, gradients: [&Tensor; 3]) -> Result<Gradients> {
    call.each(|place| gradients[place].to_dtype(call.dtype_of(place)).map(Some))
}

/// The gradient of a step of long short-term memory: one kernel, or operators if it must be differentiable itself.
static LSTM: Formula = Formula {
    inputs: &[0, 1, 2],
    outputs: &[1, 2],
    backward: |call| {
        if is_grad_enabled() || call.has_gradient(2) {
            return lstm_by_operators(call);
        }
        let (cell, next, after) = (call.saved(2)?, call.result(1)?, call.result(2)?);
        let mut inputs = Operands::from_iter([call.gradient_of(0)?, call.gradient_of(1)?]);
        inputs.extend(gates(&after, 4)?);
        inputs.extend([cell.detach(), next.detach()]);
        let (of_gates, of_cell) = (after.empty_like()?, next.empty_like()?);
        let mut outputs = gates(&of_gates, 4)?;
        outputs.push(of_cell.clone());
        launch(&LSTM_STEP_BACKWARD, &inputs, &outputs, call.label())?;
        cast(call, [&of_gates, &of_gates, &of_cell])
    },
};

fn lstm_by_operators(call: &GradientCall<'_>) -> Result<Gradients> {
    let cell = call.saved(2)?;
    let parts = call.saved(0)?.add(&call.saved(1)?)?.chunk(4, -1)?;
    let (i, f, g, o) = (parts[0].sigmoid()?, parts[1].sigmoid()?, parts[2].tanh()?, parts[3].sigmoid()?);
    let y = f.mul(&cell)?.add(&i.mul(&g)?)?.tanh()?;
    let after = call.gradient_of(2)?.chunk(4, -1)?;
    let of_hidden = call.gradient_of(0)?;
    let of_cell = call.gradient_of(1)?.add(&before_tanh(&y, &of_hidden.mul(&o)?)?)?;
    let of_gates = [
        before_sigmoid(&i, &of_cell.mul(&g)?.add(&after[0])?)?,
        before_sigmoid(&f, &of_cell.mul(&cell)?.add(&after[1])?)?,
        before_tanh(&g, &of_cell.mul(&i)?.add(&after[2])?)?,
        before_sigmoid(&o, &of_hidden.mul(&y)?.add(&after[3])?)?,
    ];
    let of_gates = Tensor::cat(&of_gates, -1)?;
    cast(call, [&of_gates, &of_gates, &of_cell.mul(&f)?])
}

/// The gradient of a step of a gated recurrent unit: one kernel, or operators if it must be differentiable itself.
static GRU: Formula = Formula {
    inputs: &[0, 1, 2],
    outputs: &[1],
    backward: |call| {
        if is_grad_enabled() || call.has_gradient(1) {
            return gru_by_operators(call);
        }
        let (of_hidden, hidden, after) = (call.saved(1)?, call.saved(2)?, call.result(1)?);
        let mut inputs = Operands::from_iter([call.gradient()?]);
        inputs.extend(gates(&after, 3)?);
        inputs.extend([gates(&of_hidden, 3)?.swap_remove(2), hidden.detach()]);
        let (by_input, by_hidden) = (after.empty_like()?, after.empty_like()?);
        let of_state = inputs[0].empty_like()?;
        let mut outputs = gates(&by_input, 3)?;
        outputs.extend(gates(&by_hidden, 3)?);
        outputs.push(of_state.clone());
        launch(&GRU_STEP_BACKWARD, &inputs, &outputs, call.label())?;
        cast(call, [&by_input, &by_hidden, &of_state])
    },
};

fn gru_by_operators(call: &GradientCall<'_>) -> Result<Gradients> {
    let hidden = call.saved(2)?;
    let (x, h) = (call.saved(0)?.chunk(3, -1)?, call.saved(1)?.chunk(3, -1)?);
    let (r, z) = (x[0].add(&h[0])?.sigmoid()?, x[1].add(&h[1])?.sigmoid()?);
    let n = x[2].add(&r.mul(&h[2])?)?.tanh()?;
    let (gradient, after) = (call.gradient()?, call.gradient_of(1)?.chunk(3, -1)?);
    let of_n = gradient.sub(&gradient.mul(&z)?)?.add(&after[2])?;
    let of_n = before_tanh(&n, &of_n)?;
    let of_r = before_sigmoid(&r, &of_n.mul(&h[2])?.add(&after[0])?)?;
    let of_z = before_sigmoid(&z, &gradient.mul(&hidden.sub(&n)?)?.add(&after[1])?)?;
    let by_input = Tensor::cat(&[of_r.clone(), of_z.clone(), of_n.clone()], -1)?;
    let by_hidden = Tensor::cat(&[of_r, of_z, of_n.mul(&r)?], -1)?;
    cast(call, [&by_input, &by_hidden, &gradient.mul(&z)?])
}

/// Returns the gradient of a sigmoid's argument from that of its result.
fn before_sigmoid(y: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    gradient.mul(y)?.mul(&y.neg()?.add_scalar(1.0)?)
}

/// Returns the gradient of a hyperbolic tangent's argument from that of its result.
fn before_tanh(y: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    gradient.mul(&y.square()?.neg()?.add_scalar(1.0)?)
}
