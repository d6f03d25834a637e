//! Loop operators: from a call with tensors to a launch, and the node that it records. [`thalweg_ops::lower`] decides what runs;
//! this module handles tensors, the memory of results, and each thread's cache of calls.

mod backward;
mod call;
mod gradient_plans;
mod launch;
mod resolved;

use smallvec::SmallVec;
use thalweg_execute::{Lowered, execute, to_runtime_error};
use thalweg_ops::lower::LoopLaunch;
pub(crate) use thalweg_ops::lower::widen;
use thalweg_ops::{DTypeRule, LoopOp};
use thalweg_runtime::{Label, OutOfRangeReport, RangeOf, Result};

use self::launch::put_off;
use crate::tensor::{Tensor, Tensors, check_memory};

pub(crate) use self::backward::{autograd, node};
pub(crate) use self::call::{LoopArguments, LoopCall, Points};
pub(crate) use self::launch::{launch, launch_placed, launch_steps, operands};
pub(crate) use self::resolved::{Resolved, signature};

/// Runs a loop operator below autograd: allocates the results and launches. `resolved` is the resolved call, if an earlier kernel
/// has it.
pub(crate) fn run(call: &LoopCall<'_>, resolved: Option<&Resolved>) -> Result<Tensors> {
    let own;
    let resolved = match resolved {
        Some(resolved) => resolved,
        None => {
            own = Resolved::of(call)?;
            &own
        }
    };
    let (stream, lowered) = (call.device.current_stream(), &resolved.lowered);
    let (outputs, are_as_planned) = resolved.results(call, &stream)?;
    let _report = out_of_range_report(call);
    if !are_as_planned {
        let into = {
            let (read, written) = (operands(call.tensors.iter().copied()), operands(&outputs));
            lowered.launch_into(&read, &written, &call.arguments).map_err(to_runtime_error)?
        };
        launch(&into, &call.tensors, &outputs, call.label)?;
        return Ok(outputs);
    }
    let numbers = lowered.numbers(&call.arguments);
    if put_off(
        lowered.launch(),
        |device| resolved.shared(device),
        &numbers,
        &call.tensors,
        &outputs,
        call.label,
    )? {
        return Ok(outputs);
    }
    let (mut inputs, mut results) = (SmallVec::<[_; 8]>::new(), SmallVec::<[_; 4]>::new());
    call.tensors.iter().for_each(|tensor| inputs.push(tensor.pointer()));
    outputs.iter().for_each(|tensor| results.push(tensor.pointer()));
    let kept = Some(&resolved.kept);
    let lowered = Lowered { launch: lowered.launch(), steps: lowered.steps(), numbers: &numbers, kept };
    execute(&lowered, (&inputs[..], &results[..]), &stream, call.label)?;
    Ok(outputs)
}

/// Makes the kernel report classes that are out of range, if the operator reads classes.
fn out_of_range_report(call: &LoopCall<'_>) -> Option<OutOfRangeReport> {
    let has_classes = matches!(call.operator.rule, DTypeRule::Classes | DTypeRule::WideClasses);
    has_classes.then(|| OutOfRangeReport::of(call.label.operator, RangeOf::Classes))
}

/// Runs an operator into given tensors, which may also be inputs if the layouts agree and each thread reads a point before it
/// writes it.
pub(crate) fn run_into(
    operator: &'static LoopOp,
    tensors: &[&Tensor],
    arguments: &LoopArguments,
    outputs: &[Tensor],
    label: Label,
) -> Result<()> {
    tensors.iter().copied().chain(outputs).try_for_each(check_memory)?;
    let (read, written) = (operands(tensors.iter().copied()), operands(outputs));
    let into = LoopLaunch::into_outputs(operator, &read, &written, arguments).map_err(to_runtime_error)?;
    launch(&into, tensors, outputs, label)?;
    outputs.iter().for_each(Tensor::bump_version);
    Ok(())
}
