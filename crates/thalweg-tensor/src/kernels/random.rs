//! Numbers of a device's generator, and dropout: the draws of [`thalweg_kernels::random`].

use smallvec::SmallVec;
use thalweg_ir::{DType, Scalar, element_count};
use thalweg_kernels::random::{Distribution, Draw};
use thalweg_runtime::{Error, Result, invalid, refuse_if};

use crate::autograd::formula::Formula;
use crate::dispatch::{Arguments, Call, built_in};
use crate::loops::LoopArguments;
use crate::tensor::{Tensor, Tensors};

/// Draws numbers of a distribution, from a seed and an offset on the device, a number of threads, and two numbers.
pub(crate) fn drawn(call: &Call<'_>, distribution: Distribution) -> Result<Tensors> {
    let (dtype, elements) = (call.dtype(6), count(call, 5)?);
    let numbers = [3, 4].map(|place| call.scalar(place).to_f64());
    let result = call.new_result(&[elements], dtype)?;
    let draw = Draw { distribution, elements: elements as u64, threads: threads(call, 2)?, numbers, dtype };
    let [seed, offset] = state(call, 0)?;
    call.launch(draw, [Some(seed), Some(offset), None, Some(&result), None])?;
    Ok(Tensors::from_iter([result]))
}

/// Draws which elements dropout keeps, each with a probability.
pub(crate) fn kept(call: &Call<'_>) -> Result<Tensors> {
    let (elements, keep) = (count(call, 4)?, call.scalar(3).to_f64());
    let result = call.new_result(&[elements], DType::Bool)?;
    let draw = Draw {
        distribution: Distribution::Kept,
        elements: elements as u64,
        threads: threads(call, 2)?,
        numbers: [keep, 0.0],
        dtype: DType::Bool,
    };
    let [seed, offset] = state(call, 0)?;
    call.launch(draw, [Some(seed), Some(offset), None, Some(&result), None])?;
    Ok(Tensors::from_iter([result]))
}

/// Keeps each element with a probability, divided by it, and sets the others to 0; also returns which were kept.
pub(crate) fn dropout(call: &Call<'_>) -> Result<Tensors> {
    let (source, elements, keep) =
        (call.tensor(0).detach().contiguous()?, count(call, 5)?, call.scalar(4).to_f64());
    refuse_if!(source.shape() != [elements], "it drops of {elements} elements, not of {:?}", source.shape());
    let result = call.new_result(&[elements], source.dtype())?;
    let mask = call.new_result(&[elements], DType::Bool)?;
    let draw = Draw {
        distribution: Distribution::Dropout,
        elements: elements as u64,
        threads: threads(call, 3)?,
        numbers: [keep, 1.0 / keep],
        dtype: source.dtype(),
    };
    let [seed, offset] = state(call, 1)?;
    call.launch(draw, [seed, offset, &source, &result, &mask])?;
    Ok(Tensors::from_iter([result, mask]))
}

/// The gradient of [`dropout`]: the same elements, times the same scale. It reads which were kept, since the generator has advanced.
pub(crate) static DROPOUT: Formula = Formula {
    inputs: &[],
    outputs: &[1],
    backward: |call| {
        call.one(0, || {
            let scale = Scalar::F64(1.0 / call.scalar(4).to_f64());
            let arguments =
                LoopArguments { scalars: SmallVec::from_slice(&[scale]), ..LoopArguments::default() };
            let scaled = built_in!("thalweg::masked_scale")?.call_loop(
                &[&call.gradient()?, &call.result(1)?],
                &arguments,
                None,
                call.label(),
            )?;
            scaled[0].sum_to_shape(call.shape(0))
        })
    },
};

/// Returns the number of elements to draw.
fn count(call: &Call<'_>, place: usize) -> Result<usize> {
    let sizes = call.ints(place);
    let sizes: Option<Vec<usize>> = sizes.iter().map(|&size| usize::try_from(size).ok()).collect();
    let sizes = sizes.ok_or_else(|| invalid!("it draws no negative number of elements"))?;
    Ok(element_count(&sizes)?)
}

fn threads(call: &Call<'_>, place: usize) -> Result<u64> {
    let threads = call.scalar(place).to_i64();
    u64::try_from(threads).map_err(|_| invalid!("random numbers of {threads} threads"))
}

/// Returns seed and offset, the tensors from a position on.
fn state<'c>(call: &'c Call<'_>, place: usize) -> Result<[&'c Tensor; 2]> {
    let state = [place, place + 1].map(|place| call.tensor(place));
    match state.iter().all(|number| number.dtype() == DType::I64 && number.elements() == 1) {
        true => Ok(state),
        false => Err(invalid!("seed and offset are an int64 each")),
    }
}
