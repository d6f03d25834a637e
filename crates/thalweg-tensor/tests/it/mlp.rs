//! Two linear layers with GELU or the rectified linear unit between them as one operator, compared with separate layers.

use std::slice::from_ref;

use thalweg_ir::DType;
use thalweg_nn::functional::{gelu_mlp, linear, relu_mlp};
use thalweg_runtime::Label;
use thalweg_tensor::Tensor;
use thalweg_tensor::autocast::autocast;
use thalweg_tensor::autograd::{BackwardOptions, gradients_with};
use thalweg_tensor::dispatch::{find_operator, trace};

use crate::support::{assert_close, random, values};

/// Input, weights and biases of 24 rows from 8 to 16 to 5 features.
const SHAPES: [&[usize]; 5] = [&[4, 6, 8], &[16, 8], &[5, 16], &[16], &[5]];

/// Returns leaves whose numbers are exact in 16 bits.
fn leaves(dtype: DType) -> Vec<Tensor> {
    let leaf = |(seed, shape): (usize, &&[usize])| {
        let held = random(shape, seed as u64).to_dtype(DType::Bf16).unwrap().to_dtype(DType::F64).unwrap();
        held.to_dtype(dtype).unwrap().detach().requires_grad_().unwrap()
    };
    SHAPES.iter().enumerate().map(leaf).collect()
}

fn whole(leaves: &[Tensor], has_biases: bool) -> Tensor {
    let bias = |place: usize| has_biases.then_some(&leaves[place]);
    gelu_mlp(&leaves[0], [&leaves[1], &leaves[2]], [bias(3), bias(4)]).unwrap()
}

fn whole_relu(leaves: &[Tensor], has_biases: bool) -> Tensor {
    let bias = |place: usize| has_biases.then_some(&leaves[place]);
    relu_mlp(&leaves[0], [&leaves[1], &leaves[2]], [bias(3), bias(4)]).unwrap()
}

fn relu_by_layers(leaves: &[Tensor], has_biases: bool) -> Tensor {
    let bias = |place: usize| has_biases.then_some(&leaves[place]);
    let hidden = linear(&leaves[0], &leaves[1], bias(3)).unwrap().relu().unwrap();
    linear(&hidden, &leaves[2], bias(4)).unwrap()
}

fn layer_by_layer(leaves: &[Tensor], has_biases: bool) -> Tensor {
    let bias = |place: usize| has_biases.then_some(&leaves[place]);
    let hidden = linear(&leaves[0], &leaves[1], bias(3)).unwrap().gelu_tanh().unwrap();
    linear(&hidden, &leaves[2], bias(4)).unwrap()
}

/// Returns the numbers of a result and of the leaves' gradients.
fn results(leaves: &[Tensor], result: &Tensor) -> Vec<Vec<f64>> {
    let gradient = random(result.shape(), 9).to_dtype(DType::Bf16).unwrap();
    result.backward_with(&gradient.to_dtype(result.dtype()).unwrap()).unwrap();
    let gradients = leaves.iter().map(|leaf| leaf.grad().map_or(Vec::new(), |gradient| values(&gradient)));
    std::iter::once(values(result)).chain(gradients).collect()
}

/// Returns whether a function calls the operator.
fn is_fused(function: impl FnOnce()) -> bool {
    let ((), trace) = trace(|| {
        function();
        Ok(())
    })
    .unwrap();
    trace.to_string().contains("thalweg::mlp")
}

#[test]
fn one_operator_and_its_gradients_are_those_of_the_layers_in_f64() {
    for (dtype, tolerance) in [(DType::Bf16, 0.04), (DType::F16, 0.006)] {
        for has_biases in [true, false] {
            let [short, wide] = [leaves(dtype), leaves(DType::F64)];
            let found = results(&short, &whole(&short, has_biases));
            let expected = results(&wide, &layer_by_layer(&wide, has_biases));
            for (found, expected) in found.iter().zip(&expected) {
                assert_close(found, expected, tolerance);
            }
            let [short, wide] = [leaves(dtype), leaves(DType::F64)];
            let found = results(&short, &whole_relu(&short, has_biases));
            let expected = results(&wide, &relu_by_layers(&wide, has_biases));
            for (found, expected) in found.iter().zip(&expected) {
                assert_close(found, expected, tolerance);
            }
        }
    }
}

#[test]
fn gradients_that_are_not_wanted_are_left_out() {
    let short = leaves(DType::Bf16);
    for wanted in 0..5 {
        let some: Vec<Tensor> = short
            .iter()
            .enumerate()
            .map(|(place, leaf)| match place == wanted {
                true => leaf.detach().requires_grad_().unwrap(),
                false => leaf.detach(),
            })
            .collect();
        results(&some, &whole(&some, true));
        let all = leaves(DType::Bf16);
        let expected = results(&all, &whole(&all, true));
        for (place, leaf) in some.iter().enumerate() {
            assert_eq!(leaf.grad().is_some(), place == wanted);
        }
        assert_eq!(values(&some[wanted].grad().unwrap()), expected[wanted + 1]);
    }
}

#[test]
fn second_derivatives_are_those_of_the_layers() {
    let second = |dtype: DType, function: fn(&[Tensor], bool) -> Tensor| {
        let leaves = leaves(dtype);
        let result = function(&leaves, true);
        let along = random(result.shape(), 9).to_dtype(DType::Bf16).unwrap().to_dtype(dtype).unwrap();
        let create = BackwardOptions { retain_graph: true, create_graph: true };
        let first = gradients_with(from_ref(&result), &[Some(along)], &leaves, create).unwrap();
        let squares: Vec<Tensor> = first
            .into_iter()
            .map(|gradient| gradient.unwrap().square().unwrap().sum(&[], false).unwrap())
            .collect();
        let ones: Vec<Option<Tensor>> =
            squares.iter().map(|of| Some(Tensor::ones(&[], dtype, of.device()).unwrap())).collect();
        let found = gradients_with(&squares, &ones, &leaves, BackwardOptions::default()).unwrap();
        // The last bias has no second derivative.
        found.into_iter().flatten().map(|gradient| values(&gradient)).collect::<Vec<_>>()
    };
    let gelu = (second(DType::F16, whole), second(DType::F64, layer_by_layer));
    let relu = (second(DType::F16, whole_relu), second(DType::F64, relu_by_layers));
    let both = gelu.0.iter().zip(&gelu.1).chain(relu.0.iter().zip(&relu.1));
    for (found, expected) in both {
        let largest = expected.iter().fold(0.0, |largest: f64, number| largest.max(number.abs()));
        let [found, expected] =
            [found, expected].map(|all| all.iter().map(|x| x / largest).collect::<Vec<_>>());
        assert_close(&found, &expected, 0.02);
    }
}

#[test]
fn autocast_makes_it_one_operator_and_other_dtypes_do_not() {
    let single = leaves(DType::F32);
    assert!(!is_fused(|| drop(whole(&single, true))));
    assert!(is_fused(|| {
        let result = autocast(DType::Bf16, || Ok(whole(&single, true))).unwrap();
        assert_eq!(result.dtype(), DType::Bf16);
    }));
    let short = leaves(DType::Bf16);
    assert!(is_fused(|| drop(whole(&short, false))));
    let one = [Some(&short[3]), None];
    assert!(!is_fused(|| drop(gelu_mlp(&short[0], [&short[1], &short[2]], one).unwrap())));
    let narrow = [short[1].narrow(0, 0, 12).unwrap(), short[2].narrow(1, 0, 12).unwrap()];
    assert!(!is_fused(|| drop(gelu_mlp(&short[0], narrow.each_ref(), [None, None]).unwrap())));
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let short = leaves(DType::Bf16);
    let refused = gelu_mlp(&short[0], [&short[2], &short[1]], [None, None]);
    assert!(refused.unwrap_err().is_invalid_argument());
    let rows = short[0].reshape(&[24, 8]).unwrap();
    let operator = find_operator("thalweg::mlp").unwrap();
    let call = |first: &Tensor, second: &Tensor| {
        let none = || None::<&Tensor>.into();
        let arguments = [(&rows).into(), first.into(), second.into(), none(), none(), false.into()];
        operator.call(&arguments, None, Label::here("mlp")).map(drop)
    };
    call(&short[1], &short[2]).unwrap();
    for (first, second) in [(&short[2], &short[1]), (&short[1], &short[1]), (&short[3], &short[2])] {
        assert!(call(first, second).unwrap_err().is_invalid_argument());
    }
}

#[test]
fn what_is_not_above_0_has_no_gradient_and_takes_a_bit() {
    // 130 hidden features: two rows of 128 bits, and no multiple of 8.
    let (rows, inputs, hidden) = (3, 4, 130);
    let input = random(&[rows, inputs], 1).to_dtype(DType::Bf16).unwrap().detach().requires_grad_().unwrap();
    // A third of the weights is 0: their results are 0 and not above it.
    let numbers: Vec<f64> =
        (0..hidden * inputs).map(|at| [0.0, 0.5, -0.5][at / inputs % 3] * (1.0 + (at % 5) as f64)).collect();
    let first = crate::support::tensor(&numbers, &[hidden, inputs], DType::Bf16);
    let second = random(&[2, hidden], 3).to_dtype(DType::Bf16).unwrap();
    let run = |input: &Tensor, function: &dyn Fn(&Tensor) -> Tensor| {
        let leaf = input.detach().requires_grad_().unwrap();
        let result = function(&leaf);
        result.backward_with(&Tensor::ones(&[rows, 2], result.dtype(), result.device()).unwrap()).unwrap();
        (values(&result), values(&leaf.grad().unwrap()))
    };
    assert!(is_fused(|| drop(relu_mlp(&input, [&first, &second], [None, None]).unwrap())));
    let (found, gradient) = run(&input, &|x| relu_mlp(x, [&first, &second], [None, None]).unwrap());
    let wide = [&first, &second].map(|weight| weight.to_dtype(DType::F64).unwrap());
    let (expected, of_expected) = run(&input.to_dtype(DType::F64).unwrap(), &|x| {
        linear(&linear(x, &wide[0], None).unwrap().relu().unwrap(), &wide[1], None).unwrap()
    });
    let scale = |all: &[f64]| all.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    for (found, expected) in [(&found, &expected), (&gradient, &of_expected)] {
        let largest = scale(expected);
        let [found, expected] =
            [found, expected].map(|all| all.iter().map(|x| x / largest).collect::<Vec<_>>());
        assert_close(&found, &expected, 0.02);
    }
    let operator = find_operator("thalweg::mlp").unwrap();
    let none = || None::<&Tensor>.into();
    let rows_of = input.detach();
    let arguments = [(&rows_of).into(), (&first).into(), (&second).into(), none(), none(), true.into()];
    let results = operator.call(&arguments, None, Label::here("mlp")).unwrap();
    assert_eq!((results[1].dtype(), results[1].shape()), (DType::U8, &[rows, 32][..]));
}
