//! Every elementwise operator of the table, from only its entry: the checks of `thalweg_tensor::testing`, and integer dtypes. A
//! new entry is tested here without further code.

use thalweg_ir::{Binary, DType, Node, Scalar, Unary};
use thalweg_ops::{DTypeRule, Examples, LoopOp, elementwise, parts};
use thalweg_runtime::{Device, Label};
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::{Argument, find_operator};
use thalweg_tensor::random::Generator;
use thalweg_tensor::testing::check_entry;

use crate::support::{assert_close, tensor, values};

fn examples(operator: &LoopOp) -> Examples {
    operator.examples.unwrap_or_else(|| panic!("{}: an elementwise entry has samples", operator.name))
}

/// Returns the entries: those that are operators, and the parts of others.
fn entries() -> impl Iterator<Item = &'static LoopOp> {
    elementwise().chain(parts())
}

/// Returns whether an entry takes integers and no floats.
fn is_of_bits(operator: &LoopOp) -> bool {
    matches!(operator.rule, DTypeRule::Bits | DTypeRule::Integers)
}

/// Returns the entries that take floats.
fn of_floats() -> impl Iterator<Item = &'static LoopOp> {
    entries().filter(|operator| !is_of_bits(operator))
}

/// Returns one tensor per input, with that input's values of all samples.
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
    let found = find_operator(&operator.operator_name()).expect("an entry of the table is an operator");
    let numbers = examples(operator).scalars.iter().map(|&number| Argument::Scalar(Scalar::F64(number)));
    let arguments: Vec<_> = inputs.iter().map(|&input| Argument::Tensor(input)).chain(numbers).collect();
    let mut results = found
        .call(&arguments, None, Label::here(operator.name))
        .unwrap_or_else(|error| panic!("{}: {error}", operator.name));
    results.swap_remove(0)
}

#[test]
fn entries_hold_what_is_checked_of_every_operator() {
    let wrong: Vec<String> =
        entries().filter_map(|entry| Some(check_entry(entry).err()?.to_string())).collect();
    assert!(wrong.is_empty(), "{} entries:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn integers_follow_the_rule() {
    for operator in entries().filter(|operator| operator.scalars.is_empty()) {
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_integer()) {
            let inputs = sample_tensors(operator, dtype);
            let result = run(operator, &inputs.iter().collect::<Vec<_>>());
            let expected = match operator.rule {
                DTypeRule::Numeric
                | DTypeRule::Negation
                | DTypeRule::NumericOrBool
                | DTypeRule::Condition
                | DTypeRule::Bits
                | DTypeRule::Integers => dtype,
                DTypeRule::Floating => DType::F32,
                _ => DType::Bool,
            };
            assert_eq!(result.dtype(), expected, "{} of {dtype}", operator.name);
        }
    }
}

#[test]
fn the_table_names_each_operator_once() {
    let all: Vec<&LoopOp> = entries().chain(thalweg_ops::structured::structured()).collect();
    for (index, operator) in all.iter().enumerate() {
        for other in &all[..index] {
            assert_ne!(operator.name, other.name);
            assert_ne!(operator.id(), other.id(), "{} and {} have one number", operator.name, other.name);
        }
        assert!(!operator.doc.trim().is_empty(), "{} says what it computes", operator.name);
    }
}

/// Returns whether a body consists only of correctly rounded primitives, so that every executor must compute the same bits.
fn is_exact(operator: &LoopOp, dtype: DType) -> bool {
    let mut inputs = vec![dtype; operator.input_count];
    if operator.rule == DTypeRule::Condition {
        inputs[0] = DType::Bool;
    }
    let signature = operator.signature(&inputs, true, None).expect("the table takes floats");
    operator.body(&signature).nodes.iter().all(|node| match node {
        Node::Unary(op, _) => {
            use Unary::{Abs, Ceil, Floor, Neg, Not, Round, Sqrt, Trunc};
            matches!(op, Neg | Abs | Not | Sqrt | Floor | Ceil | Trunc | Round)
        }
        Node::Binary(op, ..) => !matches!(op, Binary::Pow | Binary::Atan2),
        _ => true,
    })
}

#[test]
fn a_gpu_agrees_with_the_host_functions() {
    let gpu = crate::support::device();
    let simulator = Device::sim(0).expect("there is always a simulator");
    if gpu.is_simulated() {
        println!(
            "skipped: both sides are the simulator; set THALWEG_TEST_DEVICE=cuda to compare a GPU with it"
        );
    }
    let mut exact = 0;
    for operator in of_floats() {
        let mut generator = Generator::new(operator.id());
        // Positive, so that logarithms and roots are defined.
        let columns: Vec<Vec<f32>> = (0..operator.input_count)
            .map(|_| (0..10_000).map(|_| 0.1 + 3.0 * generator.uniform()).collect())
            .collect();
        let on = |device: &Device| -> Vec<f64> {
            let made = |(place, column): (usize, &Vec<f32>)| {
                let tensor = Tensor::from_slice(column, &[column.len()], device)?;
                let is_condition = operator.rule == DTypeRule::Condition && place == 0;
                if is_condition { tensor.gt_scalar(1.5) } else { Ok(tensor) }
            };
            let tensors: Vec<Tensor> =
                columns.iter().enumerate().map(|column| made(column).expect("the tensor is made")).collect();
            values(&run(operator, &tensors.iter().collect::<Vec<_>>()))
        };
        let (found, expected) = (on(&gpu), on(&simulator));
        if is_exact(operator, DType::F32) {
            exact += 1;
            assert_eq!(found, expected, "{} is made of correctly rounded primitives", operator.name);
        } else {
            println!(
                "{}: {} of {} differ",
                operator.name,
                found.iter().zip(&expected).filter(|(a, b)| a != b).count(),
                found.len()
            );
            assert_close(&found, &expected, 2e-6);
        }
    }
    println!("{gpu} and {simulator}: {exact} of {} operators agree bit for bit", entries().count());
    assert!(exact > 25, "most operators are exact");
}
