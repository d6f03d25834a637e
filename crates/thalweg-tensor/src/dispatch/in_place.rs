//! The in-place forms of operators (`add_`). Every operator with one result has one; none is written by hand.
//!
//! Operators that return views have an in-place form if PyTorch has one (`squeeze_`): it changes the layout of the tensor itself
//! to that of the view.
//!
//! The kernels write into the tensor itself where they can ([`destination`](crate::destination)). If autograd records the call, only
//! an operator that is one loop can: the tensor then becomes the result of the operator's node. Otherwise the result is computed and
//! copied, which autograd records like any write in place.

use smallvec::SmallVec;
use thalweg_ops::schema::{Alias, Kind, Schema, Type};
use thalweg_runtime::{Error, Result, refuse_if};

use super::definition::{Body, single};
use super::offers::{Taker, offer, recorded_offer};
use super::{Argument, Arguments, Call, DispatchKey, ExcludeKeyGuard, Operator};
use crate::autograd::is_grad_enabled;
use crate::destination::{First, Offer, are_same, offered};
use crate::dtype_name::named;
use crate::loops::LoopCall;
use crate::tensor::{Tensor, Tensors};

/// Returns the name of the operator whose in-place form has this name, if no entry names that form: `add.Tensor` of
/// `add_.Tensor`.
pub(crate) fn functional_name(name: &str) -> Option<String> {
    let (base, overload) =
        name.split_once('.').map_or((name, None), |(base, overload)| (base, Some(overload)));
    let base = base.strip_suffix('_').filter(|base| !base.is_empty())?;
    Some(overload.map_or_else(|| base.to_owned(), |overload| format!("{base}.{overload}")))
}

/// Returns the name of an operator's in-place form: `add_.Tensor` of `add.Tensor`.
pub(crate) fn name(functional: &Operator) -> String {
    if let Some(name) = functional.in_place_name() {
        return name.to_owned();
    }
    let name = functional.name();
    name.split_once('.').map_or_else(|| format!("{name}_"), |(base, overload)| format!("{base}_.{overload}"))
}

/// Returns the schema of the in-place form of this name; `None` if the operator has none.
pub(crate) fn schema(functional: &Operator, name: &str) -> Option<Schema> {
    if functional.in_place_name() == Some("") {
        return None;
    }
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

impl Operator {
    /// Returns the schema of the in-place form (`add_.Tensor` of `add.Tensor`), if there is one.
    pub fn in_place_schema(&self) -> Option<Schema> {
        schema(self, &name(self))
    }
}

/// Returns whether the operator returns a view and its in-place form turns the tensor itself into that view (`squeeze_`).
pub(crate) fn is_view(functional: &Operator) -> bool {
    let returns_view = functional.schema().returns.iter().any(|result| result.alias.is_some());
    returns_view && functional.in_place_name().is_some()
}

/// Runs the in-place form of an operator that returns a view: the tensor takes the view's layout.
pub(crate) fn run_view(functional: &'static Operator, call: &Call<'_>) -> Result<Tensors> {
    let target = call.tensor(0);
    target.is_write_recorded(false)?;
    let view =
        target.update_layout(|| Ok(functional.call(call.arguments, None, call.label)?.swap_remove(0)))?;
    target.take_history(&view);
    Ok(single(target.clone()))
}

/// Runs the in-place form of an operator.
pub(crate) fn run(functional: &'static Operator, call: &Call<'_>) -> Result<Tensors> {
    let target = call.tensor(0);
    // As in PyTorch, autocast does not cast for in-place forms.
    let _without_autocast = ExcludeKeyGuard::new(DispatchKey::Autocast);
    if functional.first() == First::Filled && target.layout().may_overlap() {
        let filled = functional.call(call.arguments, None, call.label)?.swap_remove(0);
        check_cast(&filled, target)?;
        write_once(target, &filled)?;
        return Ok(single(target.clone()));
    }
    let before = if is_kept(functional, call)? { Some(target.copied(call.label.location)?) } else { None };
    let mut arguments: SmallVec<[Argument<'_>; 6]> = call.arguments.into();
    if let Some(before) = &before {
        arguments[0] = Argument::Tensor(before);
    }
    let result = || Ok(functional.call(&arguments, None, call.label)?.swap_remove(0));
    let is_recorded_loop = before.is_none() && is_one_loop(functional, call.tensors);
    let recorded = is_recorded_loop.then(|| recorded_offer(target, call.tensors)).flatten();
    write(target, recorded.or_else(|| offer_to(functional, target, call.tensors)), result)?;
    Ok(single(target.clone()))
}

/// Writes one value into all elements of a tensor, several of which may share memory. `filled` has the tensor's shape and the
/// value everywhere.
pub(crate) fn write_once(target: &Tensor, filled: &Tensor) -> Result<()> {
    let (shape, strides) = (target.shape(), target.layout().strides());
    let longer = || (0..shape.len()).filter(|&dim| shape[dim] > 1);
    let dim = longer().find(|&dim| strides[dim] == 0).or_else(|| longer().next());
    let Some(dim) = dim.filter(|_| target.layout().may_overlap()) else { return target.copy_(filled) };
    let count = if strides[dim] == 0 { 1 } else { shape[dim] };
    (0..count).try_for_each(|place| {
        write_once(&target.select(dim as i64, place)?, &filled.select(dim as i64, place)?)
    })
}

/// Writes a result into a tensor, after offering the tensor's memory for it. If the result of a recorded call is written there, the
/// tensor becomes the result of the call's node.
pub(crate) fn write(
    target: &Tensor,
    offer: Option<Offer>,
    result: impl FnOnce() -> Result<Tensor>,
) -> Result<()> {
    let is_recorded = offer.as_ref().is_some_and(Offer::is_recorded);
    let (result, taken) = offered(offer.into_iter().collect(), result);
    let is_taken = taken.contains(&true);
    let is_written = |result: &Tensor| is_taken && are_same(result, target);
    if result.as_ref().map_or(is_taken, is_written) {
        // A call that failed may have written a part. A recorded call counts its write as it takes the memory.
        if !is_recorded {
            target.bump_version();
        }
        if let Some(edge) = result?.gradient_edge() {
            target.set_history(edge);
        }
        return Ok(());
    }
    let result = result?;
    check_result(&result, target)?;
    target.copy_(&result)
}

/// Returns whether backward reads the value that the target has before the write.
fn is_kept(functional: &'static Operator, call: &Call<'_>) -> Result<bool> {
    if !is_grad_enabled() || !call.tensors.iter().any(|tensor| tensor.requires_grad()) {
        return Ok(false);
    }
    let functional_call = Call { operator: functional, ..*call };
    if is_by_parts(functional, call.tensors) {
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

/// Refuses a result that does not fit the tensor that it is written into, with PyTorch's message.
pub(super) fn check_result(result: &Tensor, target: &Tensor) -> Result<()> {
    refuse_if!(
        result.shape() != target.shape(),
        "output with shape {:?} doesn't match the broadcast shape {:?}",
        target.shape(),
        result.shape()
    );
    check_cast(result, target)
}

/// Refuses a tensor whose dtype is of a lower category than that of the result that is written into it, with PyTorch's message.
pub(super) fn check_cast(result: &Tensor, target: &Tensor) -> Result<()> {
    refuse_if!(
        result.dtype().category() > target.dtype().category(),
        "result type {} can't be cast to the desired output type {}",
        named(result.dtype()),
        named(target.dtype())
    );
    Ok(())
}

/// Returns an offer of a tensor's memory to an operator; `None` if the memory must not be written yet. `operands` are the tensors
/// that the operator reads.
pub(super) fn offer_to(operator: &Operator, target: &Tensor, operands: &[&Tensor]) -> Option<Offer> {
    let is_by_parts = is_by_parts(operator, operands);
    let is_of_loop = is_one_loop(operator, operands);
    offer(&Taker { first: operator.first(), is_of_loop, is_by_parts }, target, operands)
}

/// Returns whether an operator computes its result by one loop.
fn is_one_loop(operator: &Operator, operands: &[&Tensor]) -> bool {
    matches!(operator.body(), Body::Loop(_) | Body::Lowered(_)) && !is_by_parts(operator, operands)
}

/// Returns whether other operators compute the result because an operand is complex.
fn is_by_parts(operator: &Operator, operands: &[&Tensor]) -> bool {
    operator.has_built_in(DispatchKey::Complex) && operands.iter().any(|tensor| tensor.dtype().is_complex())
}
