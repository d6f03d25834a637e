//! The forms of operators in place (`add_`). Every operator of one result has one; none is written by hand.
//!
//! Operators that return views have one where PyTorch has (`squeeze_`): the tensor itself is seen by the layout of the view from then on.
//!
//! Where nothing is recorded and a loop computes the result, the loop writes into the tensor itself. Else the result is computed
//! and copied, which autograd records as any write in place.

use smallvec::SmallVec;
use thalweg_ops::schema::{Alias, Kind, Schema, Type};
use thalweg_runtime::{Error, Result};

use super::body::{Body, single};
use crate::autograd::is_grad_enabled;
use crate::dispatch::{Argument, Arguments, Call, DispatchKey, ExcludeKeyGuard, Operator};
use crate::kernels::loops::{LoopCall, run_into};
use crate::tensor::{Tensor, Tensors};

/// Returns the name of the operator whose form in place has this name, if no entry names that form: `add.Tensor` of `add_.Tensor`.
pub(crate) fn functional_name(name: &str) -> Option<String> {
    let (base, overload) =
        name.split_once('.').map_or((name, None), |(base, overload)| (base, Some(overload)));
    let base = base.strip_suffix('_').filter(|base| !base.is_empty())?;
    Some(overload.map_or_else(|| base.to_owned(), |overload| format!("{base}.{overload}")))
}

/// Returns the name of an operator's form in place: `add_.Tensor` of `add.Tensor`.
pub(crate) fn name(functional: &Operator) -> String {
    if let Some(name) = functional.in_place_name() {
        return name.to_owned();
    }
    let name = functional.name();
    name.split_once('.').map_or_else(|| format!("{name}_"), |(base, overload)| format!("{base}_.{overload}"))
}

/// Returns the schema of the form in place of this name; `None` where an operator has none.
pub(crate) fn schema(functional: &Operator, name: &str) -> Option<Schema> {
    let mut schema = functional.schema().clone();
    let is_view = is_view(functional);
    let [result] = schema.returns.as_mut_slice() else { return None };
    let first = schema.parameters.first_mut().filter(|first| first.name == "self")?;
    let is_tensor = |ty: &Type| ty.kind == Kind::Tensor && !ty.list && (ty.alias.is_none() || is_view);
    if !is_tensor(&first.ty) || !is_tensor(result) {
        return None;
    }
    let alias = Some(Alias { set: "a".into(), writes: true });
    first.ty.alias.clone_from(&alias);
    result.alias = alias;
    name.clone_into(&mut schema.name);
    Some(schema)
}

/// Returns whether an operator returns a view that its form in place lets the tensor itself be.
pub(crate) fn is_view(functional: &Operator) -> bool {
    let returns_view = functional.schema().returns.iter().any(|result| result.alias.is_some());
    returns_view && functional.in_place_name().is_some()
}

/// Runs the form in place of an operator that returns a view: the tensor is seen by the view's layout.
pub(crate) fn run_view(functional: &'static Operator, call: &Call<'_>) -> Result<Tensors> {
    let target = call.tensor(0);
    if is_grad_enabled() && target.requires_grad() && target.is_leaf() {
        return Err(Error::invalid(
            "a leaf Variable that requires grad is being used in an in-place operation.",
        ));
    }
    let view = functional.call(call.arguments, None, call.label)?.swap_remove(0);
    target.set_layout(view.layout().clone());
    target.take_history(&view);
    Ok(single(target.clone()))
}

/// Runs the form in place of an operator.
pub(crate) fn run(functional: &'static Operator, call: &Call<'_>) -> Result<Tensors> {
    let target = call.tensor(0);
    // As in PyTorch, autocast casts for no form in place.
    let _without_autocast = ExcludeKeyGuard::new(DispatchKey::Autocast);
    if !written_by_loop(functional, call)? {
        let before =
            if is_kept(functional, call)? { Some(target.copied(call.label.location)?) } else { None };
        let mut arguments: SmallVec<[Argument<'_>; 6]> = call.arguments.into();
        if let Some(before) = &before {
            arguments[0] = Argument::Tensor(before);
        }
        let result = functional.call(&arguments, None, call.label)?.swap_remove(0);
        check_result(&result, target)?;
        target.copy_(&result)?;
    }
    Ok(single(target.clone()))
}

/// Returns whether backward reads what the target was before it is written.
fn is_kept(functional: &'static Operator, call: &Call<'_>) -> Result<bool> {
    if !is_grad_enabled() || !call.tensors.iter().any(|tensor| tensor.requires_grad()) {
        return Ok(false);
    }
    let functional_call = Call { operator: functional, ..*call };
    if is_by_parts(functional, call) {
        return Ok(true);
    }
    match functional.body() {
        Body::Loop(entry) => LoopCall::of(entry, &functional_call)?.saves_first_input(),
        Body::Lowered(lower) => lower(&functional_call)?.saves_first_input(),
        Body::Differentiable(_, formula) => Ok(formula.inputs.contains(&0)),
        Body::Kernel(_) => Ok(false),
        _ => Ok(true),
    }
}

/// Returns whether complex numbers make other operators compute the result.
fn is_by_parts(functional: &Operator, call: &Call<'_>) -> bool {
    functional.has_built_in(DispatchKey::Complex)
        && call.tensors.iter().any(|tensor| tensor.dtype().is_complex())
}

/// Writes the result of a loop right into the target, if a loop computes it and the elements are those that a copy would give.
/// Returns whether it was written.
fn written_by_loop(functional: &'static Operator, call: &Call<'_>) -> Result<bool> {
    let target = call.tensor(0);
    let is_recorded = is_grad_enabled() && call.tensors.iter().any(|tensor| tensor.requires_grad());
    if is_recorded || target.layout().may_overlap() || is_by_parts(functional, call) {
        return Ok(false);
    }
    let functional_call = Call { operator: functional, ..*call };
    let lowered = match functional.body() {
        Body::Loop(entry) => LoopCall::of(entry, &functional_call)?,
        Body::Lowered(lower) => lower(&functional_call)?,
        _ => return Ok(false),
    };
    target.check_inference_write()?;
    // An input that overlaps the target elsewhere would be read after it was written.
    let is_apart =
        |tensor: &&Tensor| !tensor.shares_storage_with(target) || tensor.layout() == target.layout();
    let Some((shape, dtype)) = lowered.result()? else { return Ok(false) };
    if shape.as_slice() != target.shape() || dtype != target.dtype() || !lowered.tensors.iter().all(is_apart)
    {
        return Ok(false);
    }
    let outputs = [target.detach()];
    run_into(lowered.operator, &lowered.tensors, &lowered.arguments, &outputs, call.label)?;
    Ok(true)
}

/// Refuses a result that does not fit the tensor that it is written into, in PyTorch's words.
pub(super) fn check_result(result: &Tensor, target: &Tensor) -> Result<()> {
    if result.shape() != target.shape() {
        return Err(Error::invalid(format!(
            "output with shape {:?} doesn't match the broadcast shape {:?}",
            target.shape(),
            result.shape()
        )));
    }
    check_cast(result, target)
}

/// Refuses a tensor whose dtype is of a lower category than that of the result that is written into it, in PyTorch's words.
pub(super) fn check_cast(result: &Tensor, target: &Tensor) -> Result<()> {
    if result.dtype().category() > target.dtype().category() {
        return Err(Error::invalid(format!(
            "result type {} can't be cast to the desired output type {}",
            result.dtype(),
            target.dtype()
        )));
    }
    Ok(())
}
