//! The probability of sequences of labels, summed over their alignments with time ([`Alignments`]).

use thalweg_ir::DType;
use thalweg_kernels::alignments::Alignments;
use thalweg_runtime::{DevicePointer, Error, Result, refuse, refuse_if};

use crate::autograd::formula::Formula;
use crate::dispatch::{Arguments, Call, built_in};
use crate::tensor::{Tensor, Tensors};

/// Returns −ln of the probability of each sequence, and the logarithms of the sums over the ways to each state, from what the states emit
/// (times, batch, states), the sum of all probabilities (batch), whether a state may follow the one two before it (batch, states), and the
/// steps in time and the labels of each sequence (2, batch). The sum of all probabilities is the number of steps and not read, but
/// has the gradient that it has where each probability is divided by the sum of its step, as PyTorch's.
pub(crate) fn forward(call: &Call<'_>) -> Result<Tensors> {
    let emitted = call.tensor(0).detach().contiguous()?;
    check(&emitted, [call.tensor(2), call.tensor(3)], &[call.tensor(1)])?;
    let losses = call.new_empty(&emitted.shape()[1..2], DType::F64)?;
    let sums = call.new_empty(emitted.shape(), DType::F64)?;
    launch(call, [&emitted, call.tensor(2), call.tensor(3), &sums, &losses], None)?;
    Ok(Tensors::from_iter([losses, sums]))
}

/// Returns the gradient of what the states emit, from that of the losses, the inputs of [`forward`], and its results.
pub(crate) fn backward(call: &Call<'_>) -> Result<Tensors> {
    let [gradient, emitted] = [call.tensor(0), call.tensor(1)].map(|tensor| tensor.detach().contiguous());
    let (gradient, emitted) = (gradient?, emitted?);
    let [skips, lengths, losses, sums] = [2, 3, 4, 5].map(|at| call.tensor(at));
    check(&emitted, [skips, lengths], &[&gradient, losses])?;
    refuse_if!(
        sums.shape() != emitted.shape() || sums.dtype() != DType::F64,
        "{sums:?} does not fit {emitted:?}"
    );
    let result = call.new_empty(emitted.shape(), DType::F64)?;
    launch(call, [&emitted, skips, lengths, sums, losses], Some([&gradient, &result]))?;
    Ok([result].into_iter().collect())
}

/// Refuses tensors that do not fit what the states emit; the last ones have a number for each sequence.
fn check(emitted: &Tensor, [skips, lengths]: [&Tensor; 2], numbers: &[&Tensor]) -> Result<()> {
    let &[_, batch, states] = emitted.shape() else {
        refuse!("what states emit is (times, batch, states), not {emitted:?}");
    };
    let fits = |tensor: &Tensor, shape: &[usize], dtype| *tensor.shape() == *shape && tensor.dtype() == dtype;
    let all = fits(skips, &[batch, states], DType::Bool)
        && fits(lengths, &[2, batch], DType::I64)
        && emitted.dtype() == DType::F64
        && numbers.iter().all(|tensor| fits(tensor, &[batch], DType::F64));
    refuse_if!(!all, "{skips:?}, {lengths:?} or {numbers:?} do not fit {emitted:?}");
    Ok(())
}

/// Queues the launch over its operands, and, for the gradient, over that of the losses and the result.
fn launch(call: &Call<'_>, operands: [&Tensor; 5], of_gradient: Option<[&Tensor; 2]>) -> Result<()> {
    let [times, batch, states] = [0, 1, 2].map(|dim| operands[0].shape()[dim] as u64);
    let kernel = Alignments { times, batch, states, is_gradient: of_gradient.is_some() };
    let mut at = [DevicePointer::new(0); 7];
    let operands = operands.into_iter().chain(of_gradient.into_iter().flatten());
    at.iter_mut().zip(operands).for_each(|(at, operand)| *at = operand.pointer());
    call.launch(kernel, (call.device, at))
}

/// The gradient of [`forward`].
pub(crate) static GRADIENT: Formula = Formula {
    inputs: &[0, 2, 3],
    outputs: &[0, 1],
    backward: |call| {
        refuse_if!(call.has_gradient(1), "the sums over the ways to states have no gradient");
        let (emitted, skips, lengths) = (call.saved(0)?, call.saved(2)?, call.saved(3)?);
        let (losses, sums, gradient) = (call.result(0)?, call.result(1)?, call.gradient()?);
        call.each(|at| match at {
            // Of an impossible sequence it is not a number.
            1 => {
                let asked = losses.eq_scalar(f64::INFINITY)?.logical_and(&gradient.ne_scalar(0)?)?;
                let nothing = Tensor::full(&[], f64::NAN, DType::F64, losses.device())?;
                asked.select_where(&nothing, &gradient).map(Some)
            }
            _ => {
                let operands = [&gradient, &emitted, &skips, &lengths, &losses, &sums].map(Into::into);
                let operator = built_in!("thalweg::alignments_backward")?;
                Ok(Some(operator.call(&operands, None, call.label())?.remove(0)))
            }
        })
    },
};

/// The gradient of [`backward`], which PyTorch does not have either.
pub(crate) static SECOND: Formula = Formula {
    inputs: &[],
    outputs: &[],
    backward: |_| refuse!("derivative for aten::_ctc_loss_backward is not implemented"),
};
