//! The forms of an operator that write into given tensors: in place (`add_`), and `out=`. Every operator has them; none is written
//! by hand.
//!
//! Where nothing is recorded and a loop computes the result, the loop writes into the tensor itself. Else the result is computed
//! and copied, which autograd records as any write in place.

use std::panic::Location;

use smallvec::SmallVec;
use thalweg_ir::DType;
use thalweg_ops::schema::{Alias, Kind, Parameter, Schema, Type};
use thalweg_runtime::{Error, Result};

use super::body::{Body, single};
use crate::autograd::is_grad_enabled;
use crate::caller::{enter, label_at};
use crate::dispatch::{Argument, Arguments, Call, DispatchKey, Operator};
use crate::kernels::loops::{LoopCall, run_into};
use crate::tensor::{Tensor, Tensors};

/// Forms in place that PyTorch names otherwise than their operators.
const RENAMED: [(&str, &str); 4] = [
    ("ldexp_", "ldexp.Tensor"),
    ("floor_divide_.Tensor", "floor_divide"),
    ("pow_.Tensor", "pow.Tensor_Tensor"),
    ("pow_.Scalar", "pow.Tensor_Scalar"),
];

/// Returns the name of the operator whose form in place has this name: `add.Tensor` of `add_.Tensor`.
pub(crate) fn functional_name(name: &str) -> Option<String> {
    if let Some((_, functional)) = RENAMED.iter().find(|(renamed, _)| *renamed == name) {
        return Some((*functional).to_owned());
    }
    let (base, overload) =
        name.split_once('.').map_or((name, None), |(base, overload)| (base, Some(overload)));
    let base = base.strip_suffix('_').filter(|base| !base.is_empty())?;
    Some(overload.map_or_else(|| base.to_owned(), |overload| format!("{base}.{overload}")))
}

/// Returns the name of an operator's form in place: `add_.Tensor` of `add.Tensor`.
pub(crate) fn name(functional: &str) -> String {
    if let Some((renamed, _)) = RENAMED.iter().find(|(_, named)| *named == functional) {
        return (*renamed).to_owned();
    }
    functional
        .split_once('.')
        .map_or_else(|| format!("{functional}_"), |(base, overload)| format!("{base}_.{overload}"))
}

/// Returns the schema of the form in place of this name; `None` where an operator has none.
pub(crate) fn schema(functional: &Schema, name: &str) -> Option<Schema> {
    let mut schema = functional.clone();
    let [result] = schema.returns.as_mut_slice() else { return None };
    let first = schema.parameters.first_mut().filter(|first| first.name == "self")?;
    let is_tensor = |ty: &Type| ty.kind == Kind::Tensor && !ty.list && ty.alias.is_none();
    if !is_tensor(&first.ty) || !is_tensor(result) {
        return None;
    }
    let alias = Some(Alias { set: "a".into(), writes: true });
    first.ty.alias.clone_from(&alias);
    result.alias = alias;
    name.clone_into(&mut schema.name);
    Some(schema)
}

/// Returns the names that the operator may have whose `out=` form has this name: `add.Tensor` of `add.Tensor_out`, `cat` of
/// `cat.out`, `kthvalue` of `kthvalue.values`.
pub(crate) fn returning_name(name: &str) -> Option<String> {
    let (base, overload) = name.split_once('.')?;
    match overload.strip_suffix("out").map(|rest| rest.strip_suffix('_').unwrap_or(rest)) {
        Some("") => Some(base.to_owned()),
        Some(overload) => Some(format!("{base}.{overload}")),
        None => (overload == "values").then(|| base.to_owned()),
    }
}

/// Returns the schema of the `out=` form of this name, which gives the tensors that it writes; `None` where there is none.
pub(crate) fn out_schema(returning: &Schema, name: &str) -> Option<Schema> {
    let mut schema = returning.clone();
    let is_tensor = |ty: &Type| ty.kind == Kind::Tensor && !ty.list && ty.alias.is_none();
    if returning.is_mutable() || !schema.returns.iter().all(is_tensor) {
        return None;
    }
    let names: Vec<&str> = match schema.returns.len() {
        1 => vec!["out"],
        _ => returning.return_names.iter().map(String::as_str).collect(),
    };
    for (place, name) in names.into_iter().enumerate().filter(|(_, name)| !name.is_empty()) {
        let set = char::from(b'a' + place as u8).to_string();
        let ty = Type { alias: Some(Alias { set, writes: true }), ..schema.returns[place].clone() };
        schema.returns[place] = ty.clone();
        schema.parameters.push(Parameter { name: name.into(), ty, default: None, keyword_only: true });
    }
    name.clone_into(&mut schema.name);
    (schema.parameters.len() == returning.parameters.len() + returning.returns.len()).then_some(schema)
}

/// Runs the `out=` form of an operator.
pub(crate) fn run_out(returning: &'static Operator, call: &Call<'_>) -> Result<Tensors> {
    let (arguments, given) = call.arguments.split_at(returning.schema().parameters.len());
    let out: Tensors = given
        .iter()
        .filter_map(|argument| match argument {
            Argument::Tensor(tensor) => Some((*tensor).clone()),
            _ => None,
        })
        .collect();
    check_apart(returning.base_name(), call.tensors, &out)?;
    call_out(returning, arguments, &out, call.label.location)?;
    Ok(out)
}

/// Refuses what PyTorch refuses of some operators: results in memory of an input, or of another dtype than the operator gives.
fn check_apart(name: &str, tensors: &[&Tensor], out: &[Tensor]) -> Result<()> {
    if matches!(name, "amax" | "amin" | "aminmax" | "gather")
        && let Some(wrong) = out.iter().find(|out| out.dtype() != tensors[0].dtype())
    {
        return Err(Error::invalid(format!(
            "Expected out tensor to have dtype {}, but got {} instead",
            tensors[0].dtype(),
            wrong.dtype()
        )));
    }
    if matches!(name, "complex" | "polar")
        && let Some(wrong) = out.iter().find(|out| out.dtype() != tensors[0].dtype().complex())
    {
        return Err(Error::invalid(format!(
            "Expected object of scalar type {} but got scalar type {} for argument 'out'",
            tensors[0].dtype().complex(),
            wrong.dtype()
        )));
    }
    if name == "multinomial" && out.iter().any(|out| out.dtype() != DType::I64) {
        return Err(Error::invalid(format!("multinomial expects Long tensor out, got: {}", out[0].dtype())));
    }
    let inputs = &tensors[..tensors.len() - out.len()];
    let shares = |out: &Tensor| inputs.iter().any(|input| input.shares_storage_with(out));
    if matches!(name, "cat" | "gather" | "index_select" | "kthvalue" | "masked_select" | "take")
        && out.iter().any(shares)
    {
        return Err(Error::invalid(
            "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory location. \
             Please clone() the tensor before performing the operation.",
        ));
    }
    Ok(())
}

/// Runs the form in place of an operator.
pub(crate) fn run(functional: &'static Operator, call: &Call<'_>) -> Result<Tensors> {
    let target = call.tensor(0);
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
        Some(Body::Loop(entry)) => LoopCall::of(entry, &functional_call)?.saves_first_input(),
        Some(Body::Lowered(lower)) => lower(&functional_call)?.saves_first_input(),
        Some(Body::Differentiable(_, formula)) => Ok(formula.inputs.contains(&0)),
        Some(Body::Kernel(_)) => Ok(false),
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
        Some(Body::Loop(entry)) => LoopCall::of(entry, &functional_call)?,
        Some(Body::Lowered(lower)) => lower(&functional_call)?,
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
fn check_result(result: &Tensor, target: &Tensor) -> Result<()> {
    if result.shape() != target.shape() {
        return Err(Error::invalid(format!(
            "output with shape {:?} doesn't match the broadcast shape {:?}",
            target.shape(),
            result.shape()
        )));
    }
    if result.dtype().category() > target.dtype().category() {
        return Err(Error::invalid(format!(
            "result type {} can't be cast to the desired output type {}",
            result.dtype(),
            target.dtype()
        )));
    }
    Ok(())
}

/// Calls an operator and copies its results into given tensors.
pub(crate) fn call_out(
    operator: &'static Operator,
    arguments: &[Argument<'_>],
    out: &[Tensor],
    location: &'static Location<'static>,
) -> Result<()> {
    let _entered = enter(location);
    let results = operator.call(
        arguments,
        out.first().map(Tensor::device),
        label_at(operator.base_name(), location),
    )?;
    let run = || {
        if results.len() != out.len() {
            return Err(Error::invalid(format!(
                "there are {} results and {} tensors for them",
                results.len(),
                out.len()
            )));
        }
        if is_grad_enabled() && results.iter().chain(out).any(Tensor::requires_grad) {
            return Err(Error::invalid(
                "functions with out=... arguments don't support automatic differentiation, but one of the arguments requires \
                 grad; call it inside `no_grad`",
            ));
        }
        results.iter().zip(out).try_for_each(|(result, target)| {
            check_result(result, target)?;
            target.copy_(result)
        })
    };
    run().map_err(|error| error.in_call(operator.base_name(), location))
}
