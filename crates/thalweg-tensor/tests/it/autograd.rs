//! The graph: accumulation, sharing, streams, forbidden uses.

use std::slice::from_ref;

use thalweg_ir::DType;
use thalweg_nn::module::{Forward, Linear, Module};
use thalweg_nn::optim::{Adam, AdamOptions};
use thalweg_runtime::{Device, Stream};
use thalweg_tensor::autograd::{BackwardOptions, gradients, gradients_with, is_grad_enabled};
use thalweg_tensor::random::Generator;
use thalweg_tensor::{Tensor, no_grad};

use crate::support::{assert_close, check_gradient, device, random, values};

fn leaf(numbers: &[f64]) -> Tensor {
    Tensor::from_slice(numbers, &[numbers.len()], &device()).unwrap().requires_grad_().unwrap()
}

#[test]
fn a_tensor_that_is_used_twice_gets_both_gradients() {
    let x = leaf(&[3.0]);
    // x² + x·x² through a diamond: 2x + 3x².
    let square = x.mul(&x).unwrap();
    let y = square.add(&x.mul(&square).unwrap()).unwrap();
    y.backward().unwrap();
    assert_close(&values(&x.grad().unwrap()), &[2.0 * 3.0 + 3.0 * 9.0], 1e-12);
}

#[test]
fn gradients_accumulate_until_they_are_forgotten() {
    let x = leaf(&[2.0, 5.0]);
    for _ in 0..3 {
        x.mul_scalar(4.0).unwrap().sum(&[], false).unwrap().backward().unwrap();
    }
    assert_eq!(values(&x.grad().unwrap()), [12.0, 12.0]);
    x.zero_grad();
    assert!(x.grad().is_none());
}

#[test]
fn a_gradient_that_is_given_is_not_written_through() {
    let x = leaf(&[1.0]);
    let given = leaf(&[2.0]).detach();
    x.backward_with(&given).unwrap();
    x.mul_scalar(3.0).unwrap().backward().unwrap();
    assert_eq!((values(&given), values(&x.grad().unwrap())), (vec![2.0], vec![5.0]));
}

#[test]
fn nothing_is_recorded_under_no_grad() {
    let x = leaf(&[1.0]);
    let y = no_grad(|| {
        assert!(!is_grad_enabled());
        x.mul_scalar(2.0).unwrap()
    });
    assert!(is_grad_enabled() && !y.requires_grad());
    assert!(y.backward().unwrap_err().to_string().contains("no_grad"));
    let detached = x.mul_scalar(2.0).unwrap().detach();
    assert!(!detached.requires_grad() && detached.is_leaf());
}

#[test]
fn no_grad_ends_with_a_panic() {
    let result = std::panic::catch_unwind(|| no_grad(|| panic!("as intended")));
    assert!(result.is_err() && is_grad_enabled());
}

#[test]
fn a_deep_graph_is_walked_and_dropped_without_overflow() {
    let x = leaf(&[1.0]);
    let mut y = x.clone();
    for _ in 0..20_000 {
        y = y.add_scalar(1.0).unwrap();
    }
    y.backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [1.0]);
    drop(y);
}

#[test]
fn a_tensor_written_after_it_was_saved_is_an_error() {
    let x = leaf(&[1.0, 2.0]);
    let square = x.mul(&x).unwrap();
    let y = square.mul(&square).unwrap().sum(&[], false).unwrap();
    no_grad(|| square.copy_(&Tensor::zeros(&[2], DType::F64, &device()).unwrap())).unwrap();
    let error = y.backward().unwrap_err().to_string();
    assert!(
        error.contains("modified by an inplace operation") && error.contains("backward of mul"),
        "{error}"
    );
    assert!(x.grad().is_none());
}

#[test]
fn matrix_products_have_gradients() {
    let (a, b) = (random(&[3, 4], 1), random(&[4, 5], 2));
    let weight = random(&[3, 5], 3);
    check_gradient(&a, |a| a.matmul(&b).unwrap().mul(&weight).unwrap());
    check_gradient(&b, |b| a.matmul(b).unwrap().mul(&weight).unwrap());
    let (a, b) = (random(&[2, 3, 4], 4), random(&[4, 5], 5));
    let weight = random(&[2, 3, 5], 6);
    check_gradient(&a, |a| a.matmul(&b).unwrap().mul(&weight).unwrap());
    check_gradient(&b, |b| a.matmul(b).unwrap().mul(&weight).unwrap());
    let (a, b) = (random(&[4, 3], 7), random(&[2, 5, 4], 8));
    check_gradient(&a, |a| {
        a.transpose(0, 1).unwrap().matmul(&b.transpose(1, 2).unwrap()).unwrap().square().unwrap()
    });
}

#[test]
fn the_gradient_of_a_weight_lies_like_the_weight() {
    let (x, weight) = (random(&[6, 4], 1), random(&[3, 4], 2).requires_grad_().unwrap());
    x.matmul(&weight.transpose(0, 1).unwrap())
        .unwrap()
        .square()
        .unwrap()
        .sum(&[], false)
        .unwrap()
        .backward()
        .unwrap();
    assert!(weight.grad().unwrap().is_contiguous());
}

#[test]
fn matrix_products_agree_with_loops() {
    let dimensions = [(1, 1, 1), (3, 4, 5), (17, 1, 9), (1, 20, 1), (33, 65, 40), (2, 0, 3)];
    for (m, k, n) in dimensions {
        let (a, b) = (random(&[m, k], 9), random(&[k, n], 10));
        let (av, bv) = (values(&a), values(&b));
        let expected: Vec<f64> =
            (0..m * n).map(|at| (0..k).map(|i| av[at / n * k + i] * bv[i * n + at % n]).sum()).collect();
        assert_close(&values(&a.matmul(&b).unwrap()), &expected, 1e-12);
        let swapped = b.transpose(0, 1).unwrap().matmul(&a.transpose(0, 1).unwrap()).unwrap();
        assert_close(&values(&swapped.transpose(0, 1).unwrap()), &expected, 1e-12);
        for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 3e-2), (DType::Bf16, 2e-1)] {
            let product = a.to_dtype(dtype).unwrap().matmul(&b.to_dtype(dtype).unwrap()).unwrap();
            assert_close(&values(&product), &expected, tolerance);
        }
    }
}

#[test]
fn backward_is_ordered_across_streams() {
    let device = device();
    let (first, second) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    for round in 0..20 {
        let x = random(&[20_000], round).requires_grad_().unwrap();
        device.synchronize().unwrap();
        let a = {
            let _current = first.make_current();
            x.mul(&x).unwrap()
        };
        let loss = {
            let _current = second.make_current();
            second.wait_stream(&first).unwrap();
            a.record_stream(&second);
            a.mul(&a).unwrap().sum(&[], false).unwrap()
        };
        let caller = Stream::new(&device).unwrap();
        let _current = caller.make_current();
        caller.wait_stream(&second).unwrap();
        loss.backward().unwrap();
        // Read on the caller's stream alone: 4x³.
        let expected: Vec<f64> = values(&x).iter().map(|x| 4.0 * x * x * x).collect();
        assert_close(&values(&x.grad().unwrap()), &expected, 1e-12);
    }
}

/// Adam according to its paper, in f64.
fn adam_by_hand(start: f64, gradients: &[f64], options: AdamOptions) -> f64 {
    let AdamOptions { lr, betas: (beta1, beta2), eps, weight_decay, .. } = options;
    let (mut value, mut first, mut second) = (start, 0.0, 0.0);
    for (index, gradient) in gradients.iter().enumerate() {
        let step = index as i32 + 1;
        let gradient = gradient + weight_decay * value;
        first = beta1 * first + (1.0 - beta1) * gradient;
        second = beta2 * second + (1.0 - beta2) * gradient * gradient;
        let corrected = (first / (1.0 - beta1.powi(step)), second / (1.0 - beta2.powi(step)));
        value -= lr * corrected.0 / (corrected.1.sqrt() + eps);
    }
    value
}

#[test]
fn adam_follows_its_paper() {
    let options = AdamOptions { lr: 0.1, weight_decay: 0.01, ..AdamOptions::default() };
    let x = leaf(&[1.5, -2.0]);
    let optimizer = Adam::new(vec![x.clone()], options).unwrap();
    let gradients = [[0.5, -1.0], [0.25, 3.0], [-2.0, 0.125]];
    for gradient in gradients {
        x.set_grad(Some(Tensor::from_slice(&gradient, &[2], &device()).unwrap())).unwrap();
        optimizer.step().unwrap();
    }
    let expected =
        [0, 1].map(|i| adam_by_hand([1.5, -2.0][i], &gradients.map(|gradient| gradient[i]), options));
    assert_close(&values(&x), &expected, 1e-12);
}

#[test]
fn parameters_are_named_and_linear_is_affine() {
    let device: Device = device();
    let layer = Linear::new(3, 2, &mut Generator::new(1), &device).unwrap();
    let names: Vec<String> = layer.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["weight", "bias"]);
    let (weight, bias) = (values(&layer.parameters()[0]), values(&layer.parameters()[1]));
    let x = random(&[4, 3], 2).to_dtype(DType::F32).unwrap();
    let xs = values(&x);
    let expected: Vec<f64> = (0..8)
        .map(|at| bias[at % 2] + (0..3).map(|i| xs[at / 2 * 3 + i] * weight[at % 2 * 3 + i]).sum::<f64>())
        .collect();
    assert_close(&values(&layer.forward(&x).unwrap()), &expected, 1e-6);
}

#[test]
fn a_scalar_starts_with_a_gradient_of_one() {
    let x = Tensor::from_slice(&[2.0f32, -3.0], &[2], &device()).unwrap().requires_grad_().unwrap();
    let squares = x.square().unwrap();
    let sum = squares.sum(&[], false).unwrap();
    let keep = BackwardOptions { retain_graph: true, ..BackwardOptions::default() };
    let given = Some(Tensor::from_slice(&[10.0f32, 100.0], &[2], &device()).unwrap());
    let outputs = [sum, squares.clone()];
    let found = gradients_with(&outputs, &[None, given], from_ref(&x), keep).unwrap().remove(0).unwrap();
    assert_eq!(found.to_vec::<f32>().unwrap(), [44.0, -606.0]);
    let error = gradients(&[squares], &[None], from_ref(&x)).unwrap_err();
    assert!(error.is_invalid_argument());
    let text = error.to_string();
    assert!(text.contains("gradients: shape [2] has 2 elements"), "{text}");
    assert!(text.contains("grad can be implicitly created only for scalar outputs"), "{text}");
}
