//! Every elementwise operator of the table, from its entry alone: values against the reference in f64, gradients against
//! finite differences, in every dtype that it takes. A new entry is tested here without a line more.

use thalweg_ir::{DType, Scalar};
use thalweg_ops::{DTypeRule, ELEMENTWISE, Examples, LoopOp};
use thalweg_runtime::Label;
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::{Arguments, find_operator};

use crate::support::{assert_close, check_gradient, tensor, tolerance, values};

fn examples(operator: &LoopOp) -> Examples {
    operator.examples.unwrap_or_else(|| panic!("{}: an elementwise entry has samples", operator.name))
}

fn arguments(operator: &LoopOp) -> Arguments {
    let scalars = examples(operator).scalars.iter().map(|&number| Scalar::F64(number)).collect();
    Arguments { scalars, ..Arguments::default() }
}

/// One tensor an input, holding that input's value of every sample.
fn sample_tensors(operator: &LoopOp, dtype: DType) -> Vec<Tensor> {
    let samples = examples(operator).inputs;
    (0..operator.input_count)
        .map(|input| {
            let column: Vec<f64> = samples.iter().map(|sample| sample[input]).collect();
            let condition = operator.rule == DTypeRule::Condition && input == 0;
            tensor(&column, &[samples.len()], if condition { DType::Bool } else { dtype })
        })
        .collect()
}

fn run(operator: &LoopOp, inputs: &[&Tensor]) -> Tensor {
    let found = find_operator(operator.name).expect("an entry of the table is an operator");
    let mut results = found
        .call(inputs, &arguments(operator), None, Label::here(operator.name))
        .unwrap_or_else(|error| panic!("{}: {error}", operator.name));
    results.swap_remove(0)
}

#[test]
fn values_agree_with_the_reference() {
    for operator in ELEMENTWISE {
        let example = examples(operator);
        for dtype in [DType::F64, DType::F32, DType::F16, DType::Bf16] {
            let inputs = sample_tensors(operator, dtype);
            let found = values(&run(operator, &inputs.iter().collect::<Vec<_>>()));
            // The reference gets the inputs as the dtype rounded them.
            let columns: Vec<Vec<f64>> = inputs.iter().map(values).collect();
            let expected: Vec<f64> = (0..example.inputs.len())
                .map(|sample| {
                    let point: Vec<f64> = columns.iter().map(|column| column[sample]).collect();
                    (example.reference)(&point, example.scalars)
                })
                .collect();
            println!("{} {dtype}: {found:?} {expected:?}", operator.name);
            assert_close(&found, &expected, tolerance(dtype));
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for operator in ELEMENTWISE.iter().filter(|operator| {
        matches!(operator.rule, DTypeRule::Numeric | DTypeRule::Floating | DTypeRule::Condition)
    }) {
        let inputs = sample_tensors(operator, DType::F64);
        for wanted in (0..inputs.len()).filter(|&input| inputs[input].dtype().is_floating_point()) {
            println!("{} with respect to input {wanted}", operator.name);
            check_gradient(&inputs[wanted], |moved| {
                let mut list: Vec<&Tensor> = inputs.iter().collect();
                list[wanted] = moved;
                run(operator, &list)
            });
        }
    }
}

#[test]
fn integers_follow_the_rule() {
    for operator in ELEMENTWISE.iter().filter(|operator| operator.scalars.is_empty()) {
        for dtype in [DType::U8, DType::I32, DType::I64] {
            let inputs = sample_tensors(operator, dtype);
            let result = run(operator, &inputs.iter().collect::<Vec<_>>());
            let expected = match operator.rule {
                DTypeRule::Numeric | DTypeRule::Condition => dtype,
                DTypeRule::Floating => DType::F32,
                _ => DType::Bool,
            };
            assert_eq!(result.dtype(), expected, "{} of {dtype}", operator.name);
        }
    }
}

#[test]
fn the_table_names_each_operator_once() {
    let all: Vec<&LoopOp> = ELEMENTWISE.iter().chain(thalweg_ops::structured::STRUCTURED).copied().collect();
    for (index, operator) in all.iter().enumerate() {
        for other in &all[..index] {
            assert_ne!(operator.name, other.name);
            assert_ne!(operator.id(), other.id(), "{} and {} have one number", operator.name, other.name);
        }
        assert!(!operator.doc.trim().is_empty(), "{} says what it computes", operator.name);
    }
}
