//! The `out=` forms of operators, which write results into given tensors. Every operator has one; none is written by hand.
//!
//! A tensor of another shape is resized to that of the result, as in PyTorch, with a warning if it had elements.

use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_ir::{DType, contiguous_strides};
use thalweg_ops::schema::{Alias, Kind, Parameter, Schema, Type};
use thalweg_runtime::{Error, Label, Result, refuse, refuse_if};

use super::definition::{Body, OutRule};
use super::in_place::{check_cast, check_result, offer_to};
use super::{Argument, Call, DispatchKey, ExcludeKeyGuard, Operator};
use crate::autograd::is_grad_enabled;
use crate::caller::{enter, label_at};
use crate::destination::{Offers, are_disjoint, are_same, offered, separate_overlapping};
use crate::dtype_name::{named, unaliased_cpp_type};
use crate::storage::Storage;
use crate::tensor::{Tensor, Tensors};
use crate::warning::warn;

/// PyTorch's message about memory that an input and a given tensor share.
const SHARED: &str = "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory location. \
                      Please clone() the tensor before performing the operation.";

/// The options of a new tensor for which a form has no parameter: the given tensor determines them.
const OPTIONS: [&str; 4] = ["dtype", "layout", "device", "pin_memory"];

/// Returns the possible names of the operator whose `out=` form has this name, if no entry names that form: `add.Scalar` of
/// `add.Scalar_out`, `cat` or `cat.Tensor` of `cat.out`, `kthvalue` of `kthvalue.values`.
pub(crate) fn returning_names(name: &str) -> Vec<String> {
    let Some((base, overload)) = name.split_once('.') else { return Vec::new() };
    match overload.strip_suffix("out").map(|rest| rest.strip_suffix('_').unwrap_or(rest)) {
        Some("") => vec![base.to_owned(), format!("{base}.Tensor")],
        Some(overload) => vec![format!("{base}.{overload}")],
        None if overload == "values" => vec![base.to_owned()],
        None => Vec::new(),
    }
}

/// Returns the name of a form that an entry names, and the names of the tensors that it writes, if it names them:
/// `max.dim_max(max, max_values)`.
pub(crate) fn named_form(form: &str) -> (&str, Vec<&str>) {
    let (name, tensors) = form.split_once('(').unwrap_or((form, ""));
    (name, tensors.trim_end_matches(')').split(", ").filter(|tensor| !tensor.is_empty()).collect())
}

/// Returns the names of the tensors that a form writes.
fn out_names(returning: &Operator, name: &str) -> Vec<String> {
    let (form, named) = named_form(returning.out_form().unwrap_or(""));
    let returning = returning.schema();
    match returning.returns.len() {
        _ if form == name && !named.is_empty() => named.into_iter().map(str::to_owned).collect(),
        1 => vec!["out".to_owned()],
        _ if returning.return_names.iter().all(|name| !name.is_empty()) => {
            returning.return_names.iter().map(|name| name.to_string()).collect()
        }
        several => (0..several).map(|place| format!("out{place}")).collect(),
    }
}

/// Returns whether a parameter of an operator is missing in its form: an option of a new tensor.
fn is_given(returning: &Schema, parameter: &Parameter) -> bool {
    let makes = returning.parameters.iter().any(|parameter| parameter.name == "pin_memory");
    makes && OPTIONS.iter().any(|option| parameter.name == *option)
}

/// Returns the schema of the `out=` form of this name, which returns the tensors that it writes; `None` if there is none.
pub(crate) fn schema(operator: &Operator, name: &str) -> Option<Schema> {
    let returning = operator.schema();
    let mut schema = returning.clone();
    let is_tensor = |ty: &Type| ty.kind == Kind::Tensor && !ty.list && ty.alias.is_none();
    if returning.is_mutable() || !schema.returns.iter().all(is_tensor) {
        return None;
    }
    schema.parameters.retain(|parameter| !is_given(returning, parameter));
    for (place, name) in out_names(operator, name).into_iter().enumerate() {
        let set = char::from(b'a' + place as u8).to_string();
        let ty = Type { alias: Some(Alias { set, writes: true }), ..schema.returns.get(place)?.clone() };
        schema.returns[place] = ty.clone();
        schema.parameters.push(Parameter { name, ty, default: None, keyword_only: true });
    }
    name.clone_into(&mut schema.name);
    Some(schema)
}

impl OutRule {
    /// Refuses tensors that do not meet the condition, with PyTorch's message.
    fn check(self, operator: &Operator, inputs: &[&Tensor], out: &[Tensor]) -> Result<()> {
        let dtype = inputs.first().map_or(DType::Bool, |input| input.dtype());
        let other_than = |dtype: DType| out.iter().map(Tensor::dtype).find(|&given| given != dtype);
        let refusal = match self {
            Self::SameDType => other_than(dtype).map(|given| {
                let [dtype, given] = [dtype, given].map(named);
                format!(
                    "Expected the dtype for input and out to match, but got {dtype} for input's dtype and {given} for out's dtype."
                )
            }),
            Self::ComplexOfFirst => other_than(dtype.complex()).map(|given| {
                let [dtype, given] = [dtype.complex(), given].map(named);
                format!(
                    "Expected object of scalar type {dtype} but got scalar type {given} for argument 'out'"
                )
            }),
            Self::Int64 => other_than(DType::I64)
                .map(|given| format!("{} expects Long tensor out, got: {given}", operator.base_name())),
            Self::EachOfFirst => (out.iter().zip(&operator.schema().return_names))
                .find(|(given, _)| given.dtype() != dtype)
                .map(|(given, name)| {
                    let [dtype, given] = [dtype, given.dtype()].map(unaliased_cpp_type);
                    format!(
                        "torch.{}(): input tensor and {name} tensor should have the same dtype, but got input {dtype} and {name} {given}",
                        operator.base_name()
                    )
                }),
            Self::Long => other_than(DType::I64).map(named).map(|given| {
                let name = operator.base_name();
                format!("{name}: Expected out tensor to have scalar type Long but got scalar type {given}")
            }),
            Self::AnyDType => None,
            Self::Unshared => {
                let shares = |out: &Tensor| inputs.iter().any(|input| !are_disjoint(input, out));
                out.iter().any(shares).then(|| SHARED.to_owned())
            }
            Self::Boolean => other_than(DType::Bool)
                .map(|_| format!("{} does not support non-boolean outputs.", operator.base_name())),
            Self::Truth => (out.iter().map(Tensor::dtype))
                .find(|given| !matches!(given, DType::Bool | DType::U8))
                .map(|given| {
                    let name = operator.base_name();
                    format!("{name} only supports bool tensor for result, got: {}", named(given))
                }),
            Self::KeepsShape | Self::GivesDType | Self::OfResult => None,
        };
        refusal.map_or(Ok(()), |why| Err(Error::invalid(why)))
    }
}

/// Runs the `out=` form of an operator.
pub(crate) fn run(returning: &'static Operator, call: &Call<'_>) -> Result<Tensors> {
    let schema = returning.schema();
    let count = call.arguments.len() - schema.returns.len();
    let (mut given, out) = call.arguments.split_at(count);
    let out: Tensors = out
        .iter()
        .filter_map(|argument| match argument {
            Argument::Tensor(tensor) => Some((*tensor).clone()),
            _ => None,
        })
        .collect();
    let arguments: SmallVec<[Argument<'_>; 8]> = schema
        .parameters
        .iter()
        .map(|parameter| match is_given(schema, parameter) {
            true if parameter.name == "dtype" => Argument::DType(out[0].dtype()),
            true => Argument::None,
            false => given.split_off_first().copied().unwrap_or(Argument::None),
        })
        .collect();
    call_out(returning, &arguments, &out, call.label.location)?;
    Ok(out)
}

impl Operator {
    /// Calls the operator and writes its results into given tensors (`out=`), converted. A tensor of another shape is resized to
    /// that of its result, with a [warning](crate::warning) if it had elements.
    ///
    /// # Errors
    /// Those of [`Operator::call`]; [`Error::is_invalid_argument`] if there is not one tensor per result, if one has a dtype of
    /// a lower category or shares some of its elements with each other or with those of an input, or if gradients would flow.
    #[track_caller]
    pub fn call_out(&'static self, arguments: &[Argument<'_>], out: &[Tensor]) -> Result<()> {
        call_out(self, arguments, out, Location::caller())
    }
}

/// Calls an operator and copies its results into given tensors.
fn call_out(
    operator: &'static Operator,
    arguments: &[Argument<'_>],
    out: &[Tensor],
    location: &'static Location<'static>,
) -> Result<()> {
    let _entered = enter(location);
    // As in PyTorch, autocast does not cast for `out=` forms.
    let _without_autocast = ExcludeKeyGuard::new(DispatchKey::Autocast);
    let mut inputs = SmallVec::new();
    arguments.iter().for_each(|argument| argument.push_tensors(&mut inputs));
    let label = label_at(operator.base_name(), location);
    let arguments = &of_dtype(operator, arguments, out)?;
    (operator.out_rules().iter())
        .try_for_each(|rule| rule.check(operator, &inputs, out))
        .map_err(|error| error.in_call(operator.base_name(), location))?;
    let (results, taken) = offered(offers(operator, &inputs, out), || {
        operator.call(arguments, out.first().map(Tensor::device), label)
    });
    let mut results = results.inspect_err(|_| {
        // A call that failed may have written a part.
        out.iter().zip(&taken).filter(|(_, taken)| **taken).for_each(|(target, _)| target.bump_version());
    })?;
    let mut run = || {
        if results.len() != out.len() {
            refuse!("there are {} results and {} tensors for them", results.len(), out.len());
        }
        refuse_if!(
            is_grad_enabled() && results.iter().chain(out).any(Tensor::requires_grad),
            "functions with out=... arguments don't support automatic differentiation, but one of the arguments requires \
             grad; call it inside `no_grad`"
        );
        let has = |wanted: fn(&OutRule) -> bool| operator.out_rules().iter().any(wanted);
        let takes_any = has(|rule| matches!(rule, OutRule::AnyDType));
        let is_exact = has(|rule| matches!(rule, OutRule::OfResult));
        if has(|rule| matches!(rule, OutRule::KeepsShape)) {
            for (result, target) in results.iter_mut().zip(out) {
                if result.elements() == target.elements() && !are_same(result, target) {
                    *result = result.reshape(target.shape())?;
                }
            }
        }
        for (result, target) in results.iter().zip(out) {
            check_target(result, target, takes_any)?;
            if is_exact && result.dtype() != target.dtype() {
                let [dtype, given] = [result, target].map(|tensor| unaliased_cpp_type(tensor.dtype()));
                refuse!("Expected out tensor to have dtype {dtype}, but got {given} instead");
            }
            if is_loop(operator) {
                check_overlap(&inputs, target)?;
            }
            if target.shape() != result.shape() && inputs.iter().any(|input| input.is_same(target)) {
                check_result(result, target)?;
            }
        }
        separate_overlapping(&mut results, out, location)?;
        results.iter().zip(out).try_for_each(|(result, target)| {
            if are_same(result, target) {
                target.bump_version();
                return Ok(());
            }
            if is_taken_over(result, target) {
                return Ok(());
            }
            fit(result, target, label)?;
            target.copy_(result)
        })
    };
    run().map_err(|error| error.in_call(operator.base_name(), location))
}

/// Returns the arguments of an operator that makes tensors, or computes in the dtype of the given ones, with that dtype added; a
/// different dtype argument is refused.
fn of_dtype<'a>(
    operator: &'a Operator,
    arguments: &[Argument<'a>],
    out: &[Tensor],
) -> Result<SmallVec<[Argument<'a>; 8]>> {
    let (schema, mut arguments) = (operator.schema(), SmallVec::<[Argument<'a>; 8]>::from(arguments));
    let Some(dtype) = out.first().map(Tensor::dtype) else { return Ok(arguments) };
    let is_computed_in = operator.out_rules().iter().any(|rule| matches!(rule, OutRule::GivesDType));
    let place = schema
        .parameters
        .iter()
        .position(|parameter| parameter.name == "dtype" && (is_computed_in || is_given(schema, parameter)));
    let Some(place) = place else { return Ok(arguments) };
    for default in operator.defaults().take(place + 1).skip(arguments.len()) {
        // The call itself refuses a missing argument.
        let Some(default) = default else { return Ok(arguments) };
        arguments.push(default.as_argument());
    }
    match arguments.get_mut(place) {
        Some(Argument::DType(wanted)) if *wanted != dtype && is_computed_in => {
            let [wanted, dtype] = [*wanted, dtype].map(unaliased_cpp_type);
            refuse!("Expected out tensor to have dtype {wanted}, but got {dtype} instead")
        }
        Some(Argument::DType(wanted)) if *wanted != dtype => {
            let [wanted, dtype] = [*wanted, dtype].map(named);
            refuse!("dtype {wanted} does not match dtype of out parameter ({dtype})")
        }
        Some(argument) => *argument = Argument::DType(dtype),
        None => {}
    }
    Ok(arguments)
}

/// Returns whether an operator reads and writes point by point.
fn is_loop(operator: &Operator) -> bool {
    matches!(operator.body(), Body::Loop(_) | Body::Lowered(_))
}

/// Returns offers of the given tensors to the operator, if each has memory of its own, and none will be refused for its overlap
/// with an input: a call that is refused has written nothing.
fn offers(operator: &'static Operator, inputs: &[&Tensor], out: &[Tensor]) -> Offers {
    let are_apart =
        out.iter().enumerate().all(|(place, one)| out[..place].iter().all(|other| are_disjoint(one, other)));
    if is_loop(operator) && out.iter().any(|target| check_overlap(inputs, target).is_err()) {
        return Offers::new();
    }
    let offers: Option<Offers> =
        out.iter().filter(|_| are_apart).map(|target| offer_to(operator, target, inputs)).collect();
    offers.unwrap_or_default()
}

/// Refuses a given tensor that does not fit its result.
fn check_target(result: &Tensor, target: &Tensor, takes_any: bool) -> Result<()> {
    refuse_if!(
        result.device() != target.device(),
        "Expected all tensors to be on the same device, but the result is on {} and out on {}",
        result.device(),
        target.device()
    );
    if !takes_any {
        check_cast(result, target)?;
    }
    refuse_if!(
        target.layout().may_overlap(),
        "unsupported operation: more than one element of the written-to tensor refers to a single memory location. Please clone() the \
         tensor before performing the operation."
    );
    Ok(())
}

/// Refuses a given tensor that shares some of its elements with an input: elements that the operator has yet to read would be
/// overwritten. Sharing all elements is allowed.
fn check_overlap(inputs: &[&Tensor], target: &Tensor) -> Result<()> {
    let range = |tensor: &Tensor| tensor.layout().offset()..tensor.layout().offset() + tensor.layout().span();
    let is_partial = |input: &&Tensor| {
        let (of_input, of_target) = (range(input), range(target));
        input.shares_storage_with(target)
            && input.elements() > 0
            && [*input, target].iter().all(|tensor| tensor.is_dense())
            && of_input.start < of_target.end
            && of_target.start < of_input.end
            && (of_input != of_target || input.layout().strides() != target.layout().strides())
    };
    if inputs.iter().any(is_partial) {
        return Err(Error::invalid(SHARED));
    }
    Ok(())
}

/// Transfers the memory of a result to a given tensor without elements, if nothing else holds it. Returns whether it did.
fn is_taken_over(result: &Tensor, target: &Tensor) -> bool {
    let is_plain = target.elements() == 0 && result.elements() > 0 && target.layout().offset() == 0;
    let is_ours = Arc::strong_count(&result.0) == 1 && Storage::holders(result.storage()) == 1;
    let fits = result.dtype() == target.dtype() && result.is_dense() && result.layout().offset() == 0;
    let may_write = !target.requires_grad() && target.check_inference_write().is_ok();
    if !(is_plain && is_ours && fits && may_write && target.storage().adopt(result.storage())) {
        return false;
    }
    target.set_layout(result.layout().clone());
    target.bump_version();
    true
}

/// Resizes a given tensor to the shape of its result, with the same order of dimensions in memory.
fn fit(result: &Tensor, target: &Tensor, label: Label) -> Result<()> {
    if target.shape() == result.shape() {
        return Ok(());
    }
    if target.elements() > 0 {
        warn(&format!(
            "An output with one or more elements was resized since it had shape {:?}, which does not match the required output shape {:?}. \
             This behavior is deprecated, and in a future PyTorch release outputs will not be resized unless they have zero elements. You \
             can explicitly reuse an out tensor t by resizing it, inplace, to zero elements with t.resize_(0).",
            target.shape(),
            result.shape()
        ));
    }
    let contiguous = contiguous_strides(result.shape());
    let strides = if result.is_dense() { result.layout().strides() } else { &contiguous };
    target.resize(result.shape(), strides, label)
}
