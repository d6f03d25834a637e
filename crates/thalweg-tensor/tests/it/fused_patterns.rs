//! The table of patterns: the operator of each row has the results of the calls that it replaces.

use thalweg_ir::DType;
use thalweg_ops::fused::{Argument as Part, Call, Extents, PATTERNS, Pattern};
use thalweg_runtime::Label;
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::{Argument, find_operator};

use crate::support::{assert_close, random, values};

const EPSILON: f64 = 1e-5;

/// Returns the extents of the letters of all patterns.
fn extent(letter: char) -> usize {
    match letter {
        'm' => 3,
        'k' => 64,
        'h' => 48,
        'n' => 40,
        other => panic!("no extent for {other}"),
    }
}

/// Makes a call of a pattern, and returns its first result.
fn run(call: &Call, extents: &Extents, inputs: &[Option<Tensor>], results: &[Tensor]) -> Tensor {
    let lists: Vec<Vec<i64>> = (call.arguments.iter())
        .map(|part| match part {
            Part::Extents(letters) => letters.chars().map(|letter| extents.get(letter) as i64).collect(),
            _ => Vec::new(),
        })
        .collect();
    let arguments: Vec<Argument<'_>> = (call.arguments.iter().zip(&lists))
        .map(|(part, list)| match *part {
            Part::Input(input) => inputs[input].as_ref().into(),
            Part::Result(result) => (&results[result]).into(),
            Part::Number(_) => EPSILON.into(),
            Part::Extents(_) => Argument::Ints(list),
            Part::Flag(flag) => flag.into(),
            Part::Text(text) => text.into(),
            Part::None => Argument::None,
        })
        .collect();
    let operator = find_operator(call.operator).unwrap();
    operator.call(&arguments, None, Label::here("pattern")).unwrap().swap_remove(0)
}

fn check(pattern: &Pattern, has_optional: bool, dtype: DType, tolerance: f64) {
    let inputs: Vec<Option<Tensor>> = (pattern.inputs.iter().enumerate())
        .filter(|(_, input)| has_optional || !input.is_optional)
        .fold(vec![None; pattern.inputs.len()], |mut inputs, (place, input)| {
            let shape: Vec<usize> = input.shape.chars().map(extent).collect();
            inputs[place] = Some(random(&shape, place as u64).to_dtype(dtype).unwrap());
            inputs
        });
    let shapes = inputs.iter().map(|input| input.as_ref().map(Tensor::shape));
    let extents = pattern.extents(shapes).expect("the inputs have the pattern's shapes");
    let mut results = Vec::new();
    for call in pattern.calls {
        results.push(run(call, &extents, &inputs, &results));
    }
    let fused = run(&pattern.fused, &extents, &inputs, &[]);
    let expected = results.last().expect("a pattern has calls");
    assert_eq!(fused.shape(), expected.shape(), "{}", pattern.name);
    let expected = values(expected);
    let largest = expected.iter().fold(1.0f64, |largest, element| largest.max(element.abs()));
    assert_close(&values(&fused), &expected, tolerance * largest);
}

#[test]
fn the_fused_operator_of_each_row_gives_the_result_of_the_calls() {
    for pattern in PATTERNS {
        for (dtype, tolerance) in [(DType::F16, 4e-3), (DType::Bf16, 3e-2)] {
            check(pattern, true, dtype, tolerance);
            check(pattern, false, dtype, tolerance);
        }
    }
}
