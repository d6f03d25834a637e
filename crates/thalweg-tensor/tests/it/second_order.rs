//! Gradients of gradients (`create_graph`).

use std::slice::from_ref;

use thalweg_ir::DType;
use thalweg_ops::{DTypeRule, elementwise};
use thalweg_runtime::Label;
use thalweg_tensor::Tensor;
use thalweg_tensor::autograd::{BackwardOptions, GradcheckOptions, gradgradcheck, gradients_with};
use thalweg_tensor::dispatch::{Argument, find_operator};

use crate::support::{assert_close, random, tensor, values};

const CREATE: BackwardOptions = BackwardOptions { retain_graph: true, create_graph: true };

/// Returns the gradient of the sum of a result, as a part of the graph.
fn gradient(result: &Tensor, input: &Tensor) -> Tensor {
    let ones = Tensor::ones(result.shape(), result.dtype(), result.device()).unwrap();
    let mut found = gradients_with(from_ref(result), &[Some(ones)], from_ref(input), CREATE).unwrap();
    found.remove(0).unwrap_or_else(|| Tensor::zeros(input.shape(), input.dtype(), input.device()).unwrap())
}

#[test]
fn powers_have_every_derivative() {
    let x = tensor(&[1.5, -2.0], &[2], DType::F64).requires_grad_().unwrap();
    let mut y = x.mul(&x).unwrap().mul(&x).unwrap().mul(&x).unwrap();
    for expected in [|x: f64| 4.0 * x.powi(3), |x: f64| 12.0 * x * x, |x: f64| 24.0 * x, |_| 24.0] {
        y = gradient(&y, &x);
        assert_close(&values(&y), &[expected(1.5), expected(-2.0)], 1e-12);
    }
}

#[test]
fn a_second_gradient_is_that_of_its_own_dtypes() {
    for (from, to) in [
        (DType::F64, DType::F16),
        (DType::F32, DType::F16),
        (DType::F64, DType::C64),
        (DType::F32, DType::C64),
        (DType::F32, DType::C128),
    ] {
        let x = tensor(&[1.5, -2.0], &[2], from).requires_grad_().unwrap();
        let converted = x.to_dtype(to).unwrap();
        let square = match to.is_complex() {
            true => converted.view_as_real().unwrap().square().unwrap().sum(&[-1], false).unwrap(),
            false => converted.square().unwrap(),
        };
        let first = gradient(&square, &x);
        let second = gradient(&first, &x);
        assert_eq!((first.dtype(), second.dtype()), (from, from));
        assert_eq!((values(&first), values(&second)), (vec![3.0, -4.0], vec![2.0, 2.0]), "{from} to {to}");
    }
}

#[test]
fn every_elementwise_operator_agrees_with_differences_of_its_gradient() {
    for entry in elementwise()
        .filter(|entry| matches!(entry.rule, DTypeRule::Numeric | DTypeRule::Negation | DTypeRule::Floating))
    {
        let examples = entry.examples.unwrap();
        let column = |input: usize, moved: f64| {
            let list: Vec<f64> = examples.inputs.iter().map(|point| point[input] + moved).collect();
            tensor(&list, &[list.len()], DType::F64)
        };
        let operator = find_operator(&entry.operator_name()).unwrap();
        // The gradient of the first input, with the graph that it is part of.
        let of = |moved: f64| {
            let inputs: Vec<Tensor> = (0..entry.input_count)
                .map(|input| column(input, if input == 0 { moved } else { 0.0 }).requires_grad_().unwrap())
                .collect();
            let numbers = examples.scalars.iter().map(|&number| Argument::Scalar(number.into()));
            let arguments: Vec<_> = inputs.iter().map(Argument::Tensor).chain(numbers).collect();
            let result = operator.call(&arguments, None, Label::here("second")).unwrap().swap_remove(0);
            (gradient(&result, &inputs[0]), inputs)
        };
        let (first, inputs) = of(0.0);
        let second = if first.requires_grad() {
            values(&gradient(&first, &inputs[0]))
        } else {
            vec![0.0; examples.inputs.len()]
        };
        let step = 1e-6;
        let differences: Vec<f64> = (values(&of(step).0).iter().zip(values(&of(-step).0)))
            .map(|(above, below)| (above - below) / (2.0 * step))
            .collect();
        println!("{}", entry.name);
        assert_close(&second, &differences, 1e-4);
    }
}

#[test]
fn products_and_reductions_are_differentiated_twice() {
    let a = random(&[3, 4], 1).requires_grad_().unwrap();
    let b = random(&[4, 2], 2).requires_grad_().unwrap();
    let function = |inputs: &[Tensor]| {
        let product = inputs[0].matmul(&inputs[1])?.tanh()?;
        Ok(vec![product.softmax(-1)?.mul(&product)?, product.sum(&[1], false)?])
    };
    gradgradcheck(
        function,
        &[a, b],
        None,
        GradcheckOptions { atol: 1e-6, rtol: 1e-6, ..GradcheckOptions::default() },
    )
    .unwrap();
}

#[test]
fn sums_over_some_dimensions_are_differentiated_twice() {
    let x = random(&[3, 2, 1, 2], 6).requires_grad_().unwrap();
    let list = values(&x);
    for (dimensions, keepdim) in [(&[-1][..], false), (&[2], true), (&[0, -1], true), (&[1, 3], false)] {
        let sum = x.sum(dimensions, keepdim).unwrap();
        // Σ s², whose gradient is 2s at each point, and that of the gradient's sum 2 per point that shares the sum.
        let first = gradient(&sum.mul(&sum).unwrap(), &x);
        let shared = list.len() / sum.elements();
        assert_eq!(values(&gradient(&first, &x)), vec![2.0 * shared as f64; list.len()], "{dimensions:?}");
    }
}

/// The gradient flows through mean and deviation, which the forward pass saves.
#[test]
fn normalized_rows_are_differentiated_twice() {
    let inputs = [(&[2, 6][..], 3), (&[6], 4), (&[6], 5)]
        .map(|(shape, seed)| random(shape, seed).requires_grad_().unwrap());
    let cube = |inputs: &[Tensor]| {
        let [x, weight, bias] = inputs else { unreachable!() };
        let y = thalweg_nn::functional::layer_norm(x, &[6], Some(weight), Some(bias), 1e-5)?;
        Ok(vec![y.mul(&y)?.mul(&y)?])
    };
    gradgradcheck(cube, &inputs, None, GradcheckOptions { rtol: 1e-4, ..GradcheckOptions::default() })
        .unwrap();
}
