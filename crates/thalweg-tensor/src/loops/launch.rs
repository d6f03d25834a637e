//! Launches over tensors: their operands, their addresses, and memory for the steps of a launch.

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_ops::lower::{LaunchNumbers, LoopLaunch, Operand, Place, Steps};
use thalweg_ops::{DTypes, LoopOp, Placement, forward};
use thalweg_runtime::{Device, Error, Label, Result, refuse};

use crate::deferred::{self, Deferral, SharedLaunch};
use crate::tensor::{Tensor, Tensors, check_memory};

/// The operands of a call.
pub(crate) type Operands<'a> = SmallVec<[Operand<'a>; 8]>;

/// Returns tensors as operands for lowering.
pub(crate) fn operands<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Operands<'a> {
    let operand = |tensor: &'a Tensor| Operand { dtype: tensor.dtype(), layout: tensor.layout() };
    tensors.into_iter().map(operand).collect()
}

/// Defers a launch on the current stream, if the thread defers loops and may defer this one. Returns whether it did. `shared` returns
/// the launch as loops share it.
pub(super) fn put_off(
    launch: &LoopLaunch,
    shared: impl FnOnce(&Device) -> Arc<SharedLaunch>,
    numbers: &[u64],
    inputs: &[&Tensor],
    outputs: &[Tensor],
    label: Label,
) -> Result<bool> {
    if !deferred::is_on() || launch.body.report.is_some() {
        return Ok(false);
    }
    let operand = |tensor: &Tensor| {
        let offset = tensor.layout().offset() * tensor.dtype().size_bytes();
        (Arc::clone(tensor.storage()), offset as u64)
    };
    let read = inputs.iter().map(|tensor| operand(tensor)).collect();
    let written = outputs.iter().map(operand).collect();
    let numbers = LaunchNumbers::from_slice(numbers);
    let stream = outputs[0].device().current_stream();
    deferred::put_off(Deferral { launch: shared(stream.device()), numbers, read, written, stream, label })
}

/// Launches on the current stream.
pub(crate) fn launch(
    launch: &LoopLaunch,
    inputs: &[&Tensor],
    outputs: &[Tensor],
    label: Label,
) -> Result<()> {
    if put_off(launch, |device| SharedLaunch::of(launch, device), &launch.scalars, inputs, outputs, label)? {
        return Ok(());
    }
    let stream = outputs[0].device().current_stream();
    let read: SmallVec<[_; 8]> = inputs.iter().map(|tensor| tensor.pointer()).collect();
    let written: SmallVec<[_; 4]> = outputs.iter().map(Tensor::pointer).collect();
    thalweg_execute::run(launch, &stream, (&read, &written), label)
}

/// Launches steps one after the other, whose operands begin at the first elements of these tensors and of temporaries.
pub(crate) fn launch_steps(
    steps: &Steps,
    inputs: &[&Tensor],
    outputs: &[Tensor],
    label: Label,
) -> Result<()> {
    inputs.iter().copied().chain(outputs).try_for_each(check_memory)?;
    let stream = inputs[0].device().current_stream();
    let temporary = |&(dtype, elements): &_| Tensor::empty_on(&[elements as usize], dtype, &stream, label);
    let temporaries = steps.temporaries.iter().map(temporary).collect::<Result<Tensors>>()?;
    let tensor = |&(place, element): &(Place, u64)| {
        debug_assert_eq!(element, 0, "a step begins inside a tensor");
        match place {
            Place::Input(number) => inputs[number],
            Place::Output(number) => &outputs[number],
            Place::Temporary(number) => &temporaries[number],
        }
    };
    for step in &steps.list {
        let read: SmallVec<[&Tensor; 8]> = step.inputs.iter().map(tensor).collect();
        let written: Tensors = step.outputs.iter().map(|output| tensor(output).clone()).collect();
        launch(&step.launch, &read, &written, label)?;
    }
    outputs.iter().for_each(Tensor::bump_version);
    Ok(())
}

/// Launches an operator whose operands have individual placements over rows and inner dimensions.
pub(crate) fn launch_placed(
    operator: &'static LoopOp,
    (rows, inner): (&[usize], &[usize]),
    (inputs, outputs): (&[&Tensor], &[Tensor]),
    placements: SmallVec<[Placement; 8]>,
    scalars: &[u64],
    label: Label,
) -> Result<()> {
    let dtypes: DTypes = inputs.iter().map(|tensor| tensor.dtype()).collect();
    let signature =
        operator.signature(&dtypes, false, None).map_err(|error| Error::invalid(error.to_string()))?;
    let forward = forward(operator, &signature);
    let is_written = outputs.iter().zip(&forward.body.outputs);
    if let Some((tensor, output)) =
        is_written.into_iter().find(|(tensor, output)| tensor.dtype() != output.dtype)
    {
        refuse!("a result must be {}, not {}", output.dtype, tensor.dtype());
    }
    let lowered = LoopLaunch {
        id: forward.id,
        name: operator.name.into(),
        body: Arc::clone(&forward.body),
        compute: signature.compute,
        rows: rows.into(),
        inner: inner.into(),
        placements,
        scalars: scalars.into(),
        lanes: None,
    };
    launch(&lowered, inputs, outputs, label)
}
