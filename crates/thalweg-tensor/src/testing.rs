//! Tests of operators from samples, for built-in operators and a program's own.
//!
//! [`check_operator`] takes calls of an operator and a reference function that computes the same result in a different way. It
//! compares results with the reference, for contiguous inputs and inputs with gaps between their elements; dtypes, shapes and
//! strides with those on [`Device::meta`]; and gradients with finite differences. It also runs the calls on a simulated GPU that
//! finds races and lifetime bugs. [`check_entry`] does so for an elementwise [`LoopOp`], from the samples and the reference of
//! its entry.
//!
//! ```
//! use thalweg_ops::table;
//!
//! thalweg_tensor::testing::check_entry(&table::softsign)?;
//! # Ok::<(), thalweg_runtime::Error>(())
//! ```

use thalweg_ir::{DType, Scalar};
use thalweg_ops::{DTypeRule, LoopOp};
use thalweg_runtime::sim::Check;
use thalweg_runtime::{Device, Error, Result, invalid, refuse};

use crate::autograd::{GradcheckOptions, gradcheck};
use crate::dispatch::{DispatchKey, Operator, Value, find_operator};
use crate::tensor::Tensor;

/// The seeds of the simulated GPU under which each sample is run.
const SEEDS: std::ops::Range<u64> = 0..2;

/// The dtypes of floats in which an entry is checked.
const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::Bf16];

/// Checks an operator with samples, each of which is the arguments of a call. The reference takes them with floats in f64 and
/// returns the results; it must not use the operator. Gradients of f64 inputs that require them are checked against finite
/// differences. *Blocks*.
///
/// # Errors
/// [`Error::is_invalid_argument`] that names the difference and its sample, or reports a finding of the simulated GPU; and the
/// errors of the operator and the reference.
pub fn check_operator(
    operator: &'static Operator,
    samples: &[Vec<Value>],
    reference: impl Fn(&[Value]) -> Result<Vec<Tensor>>,
) -> Result<()> {
    for (place, sample) in samples.iter().enumerate() {
        let wrong = |what: String| invalid!("{}, sample {place}: {what}", operator.name());
        let wide = mapped(sample, |tensor| match tensor.dtype().is_floating_point() {
            true => tensor.detach().to_dtype(DType::F64),
            false => Ok(tensor.clone()),
        })?;
        let expected = reference(&wide)?;
        let tolerance = tensors(sample).map(|tensor| tolerance(tensor.dtype())).fold(1e-12, f64::max);
        let results = call(operator, sample)?;
        compare(&results, &expected, tolerance).map_err(|why| wrong(why.to_string()))?;
        let spread = call(operator, &mapped(sample, spread)?)?;
        compare(&spread, &expected, tolerance)
            .map_err(|why| wrong(format!("with gaps between elements, {why}")))?;
        if operator.has_kernel(DispatchKey::Meta) {
            compare_with_meta(operator, sample, &results).map_err(|why| wrong(why.to_string()))?;
        }
        check_gradients(operator, sample, &results).map_err(|why| wrong(why.to_string()))?;
    }
    let run = Check::new().seeds(SEEDS).without_shrinking().find(|gpu| -> Result<()> {
        for sample in samples {
            let moved = mapped(sample, |tensor| tensor.detach().to_device(gpu.device()))?;
            for result in [call(operator, &moved)?, call(operator, &mapped(&moved, spread)?)?].concat() {
                numbers(&result)?;
            }
        }
        Ok(())
    });
    run.map_err(|failure| invalid!("{}: {failure}", operator.name()))?;
    Ok(())
}

/// Checks an elementwise operator with the samples and the reference of its entry, in each dtype that it takes: floats of 64, 32 and 16
/// bits, or int64. *Blocks*.
///
/// # Errors
/// Those of [`check_operator`]; [`Error::is_invalid_argument`] if the entry has no samples.
pub fn check_entry(entry: &'static LoopOp) -> Result<()> {
    let operator = find_operator(&entry.operator_name())?;
    let Some(examples) = entry.examples else {
        refuse!("{} has no samples; write them into its entry", entry.name);
    };
    let is_of_integers = matches!(entry.rule, DTypeRule::Bits | DTypeRule::Integers);
    let dtypes = if is_of_integers { &[DType::I64][..] } else { &FLOATS };
    let device = Device::current()?;
    let input = |input: usize, dtype: DType| -> Result<Value> {
        let column: Vec<f64> = examples.inputs.iter().map(|sample| sample[input]).collect();
        let is_condition = entry.rule == DTypeRule::Condition && input == 0;
        let dtype = if is_condition { DType::Bool } else { dtype };
        let tensor = Tensor::from_slice(&column, &[column.len()], &device)?.to_dtype(dtype)?;
        Ok(Value::Tensor(if dtype == DType::F64 { tensor.requires_grad_()? } else { tensor }))
    };
    let number = |&number: &f64| match is_of_integers {
        true => Value::Scalar(Scalar::I64(number as i64)),
        false => Value::Scalar(Scalar::F64(number)),
    };
    let sample = |&dtype: &DType| {
        let inputs = (0..entry.input_count).map(|place| input(place, dtype));
        inputs.chain(examples.scalars.iter().map(|value| Ok(number(value)))).collect::<Result<Vec<Value>>>()
    };
    let samples = dtypes.iter().map(sample).collect::<Result<Vec<_>>>()?;
    check_operator(operator, &samples, |arguments| {
        let columns = tensors(arguments).map(numbers).collect::<Result<Vec<_>>>()?;
        let at = |place: usize| -> f64 {
            let point: Vec<f64> = columns.iter().map(|column| column[place]).collect();
            (examples.reference)(&point, examples.scalars)
        };
        let expected: Vec<f64> = (0..examples.inputs.len()).map(at).collect();
        Ok(vec![Tensor::from_slice(&expected, &[expected.len()], &device)?])
    })
}

/// Returns the relative error that is allowed for a handful of operations in a dtype.
pub fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 4e-3,
        DType::Bf16 => 3e-2,
        DType::F32 => 2e-6,
        _ => 1e-12,
    }
}

/// Calls an operator and returns the tensors among its results.
fn call(operator: &'static Operator, arguments: &[Value]) -> Result<Vec<Tensor>> {
    let results = operator.call_boxed(arguments, None)?;
    Ok(tensors(&results).cloned().collect())
}

/// Returns the tensors among values, including those in lists.
fn tensors(values: &[Value]) -> impl Iterator<Item = &Tensor> {
    values.iter().flat_map(|value| -> Box<dyn Iterator<Item = &Tensor>> {
        match value {
            Value::Tensor(tensor) => Box::new(std::iter::once(tensor)),
            Value::Tensors(list) => Box::new(list.iter()),
            Value::OptionalTensors(list) => Box::new(list.iter().flatten()),
            _ => Box::new(std::iter::empty()),
        }
    })
}

/// Returns the values with each tensor replaced by the result of a function.
fn mapped(values: &[Value], change: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Vec<Value>> {
    let change = &change;
    let map = |value: &Value| {
        Ok(match value {
            Value::Tensor(tensor) => Value::Tensor(change(tensor)?),
            Value::Tensors(list) => Value::Tensors(list.iter().map(change).collect::<Result<_>>()?),
            Value::OptionalTensors(list) => {
                let change = |tensor: &Option<Tensor>| tensor.as_ref().map(change).transpose();
                Value::OptionalTensors(list.iter().map(change).collect::<Result<_>>()?)
            }
            other => other.clone(),
        })
    };
    values.iter().map(map).collect()
}

/// Returns a tensor's elements as every second element of a tensor that is twice as long.
fn spread(tensor: &Tensor) -> Result<Tensor> {
    Tensor::stack(&[tensor.detach(), tensor.detach()], -1)?.select(-1, 0)
}

/// Returns the elements in f64.
fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.detach().to_dtype(DType::F64)?.to_vec()
}

/// Compares results with the expected ones.
fn compare(found: &[Tensor], expected: &[Tensor], tolerance: f64) -> Result<()> {
    if found.len() != expected.len() {
        refuse!("{} results, the reference has {}", found.len(), expected.len());
    }
    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
        if found.shape() != expected.shape() {
            let (found, expected) = (found.shape(), expected.shape());
            refuse!("result {place} is {found:?}, the reference {expected:?}");
        }
        for (index, (found, expected)) in numbers(found)?.into_iter().zip(numbers(expected)?).enumerate() {
            let is_same = found == expected || found.is_nan() && expected.is_nan();
            if !is_same && (found - expected).abs() > tolerance * expected.abs().max(1.0) {
                refuse!("element {index} of result {place} is {found}, the reference gives {expected}");
            }
        }
    }
    Ok(())
}

/// Compares dtypes, shapes and strides of results with those on the meta device.
fn compare_with_meta(operator: &'static Operator, sample: &[Value], results: &[Tensor]) -> Result<()> {
    let meta = Device::meta()?;
    let planned =
        call(operator, &mapped(sample, |tensor| Tensor::empty(tensor.shape(), tensor.dtype(), &meta))?)?;
    let described = |tensor: &Tensor| {
        let strides = tensor.layout().strides();
        format!("{} {:?} with strides {strides:?}", tensor.dtype(), tensor.shape())
    };
    let [planned, found] = [&planned[..], results].map(|list| list.iter().map(described).collect::<Vec<_>>());
    match planned == found {
        true => Ok(()),
        false => {
            Err(invalid!("the results are {}, on the meta device {}", found.join(", "), planned.join(", ")))
        }
    }
}

/// Checks the gradients of results with respect to the f64 inputs that require them.
fn check_gradients(operator: &'static Operator, sample: &[Value], results: &[Tensor]) -> Result<()> {
    let inputs: Vec<Tensor> = tensors(sample).cloned().collect();
    let are_wide = inputs.iter().all(|input| !input.requires_grad() || input.dtype() == DType::F64);
    if !are_wide || !results.iter().any(Tensor::requires_grad) {
        return Ok(());
    }
    let options = GradcheckOptions { eps: 1e-5, atol: 1e-7, rtol: 1e-7, ..GradcheckOptions::default() };
    gradcheck(
        |inputs| {
            let place = std::cell::Cell::new(0);
            let next = |_: &Tensor| Ok(inputs[place.replace(place.get() + 1)].clone());
            let results = call(operator, &mapped(sample, next)?)?;
            Ok(results.into_iter().filter(|result| result.dtype().is_floating_point()).collect())
        },
        &inputs,
        options,
    )
}
