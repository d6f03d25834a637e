//! Fused Adam: against its definition in f64, over more tensors than one launch takes, with gradient scaling.

use thalweg_ir::DType;
use thalweg_ir::foreach::CAPACITY;
use thalweg_tensor::Tensor;
use thalweg_tensor::optim::{Adam, AdamOptions, GradientScale};

use crate::support::{assert_close, device, random, values};

/// A parameter with a gradient.
fn parameter(elements: usize, seed: u64, dtype: DType) -> Tensor {
    let leaf = random(&[elements], seed).to_dtype(dtype).unwrap().requires_grad_().unwrap();
    leaf.set_grad(Some(random(&[elements], seed + 1000).to_dtype(dtype).unwrap())).unwrap();
    leaf
}

/// Adam by its definition, for a gradient that stays the same.
fn expected(start: &[f64], gradient: &[f64], options: AdamOptions, steps: i32) -> Vec<f64> {
    let AdamOptions { learning_rate, beta1, beta2, epsilon, weight_decay, decoupled_weight_decay } = options;
    let one = |(&start, &gradient): (&f64, &f64)| {
        let (mut value, mut first, mut second) = (start, 0.0, 0.0);
        for step in 1..=steps {
            let mut gradient = gradient;
            if decoupled_weight_decay {
                value *= 1.0 - learning_rate * weight_decay;
            } else {
                gradient += weight_decay * value;
            }
            first = beta1 * first + (1.0 - beta1) * gradient;
            second = beta2 * second + (1.0 - beta2) * gradient * gradient;
            let (mean, square) = (first / (1.0 - beta1.powi(step)), second / (1.0 - beta2.powi(step)));
            value -= learning_rate * mean / (square.sqrt() + epsilon);
        }
        value
    };
    start.iter().zip(gradient).map(one).collect()
}

#[test]
fn many_parameters_of_all_sizes_follow_the_definition() {
    for decoupled_weight_decay in [false, true] {
        let options = AdamOptions {
            learning_rate: 0.1,
            weight_decay: 0.2,
            decoupled_weight_decay,
            ..AdamOptions::default()
        };
        // More than a launch takes, more than a block handles, one element, and none.
        let sizes = (0..CAPACITY + 7).map(|number| match number {
            3 => 5000,
            4 => 0,
            5 => 2048,
            _ => 1 + number % 9,
        });
        let parameters: Vec<Tensor> =
            sizes.enumerate().map(|(seed, size)| parameter(size, seed as u64, DType::F64)).collect();
        let starts: Vec<Vec<f64>> = parameters.iter().map(values).collect();
        let adam = Adam::new(parameters.clone(), options).unwrap();
        (0..3).for_each(|_| adam.step().unwrap());
        for (parameter, start) in parameters.iter().zip(&starts) {
            let gradient = values(&parameter.grad().unwrap());
            assert_close(&values(parameter), &expected(start, &gradient, options, 3), 1e-12);
        }
    }
}

#[test]
fn parameters_of_several_dtypes_and_without_gradients() {
    let parameters = [DType::F32, DType::F16, DType::Bf16, DType::F64].map(|dtype| parameter(10, 1, dtype));
    parameters[3].zero_grad();
    let starts = parameters.each_ref().map(values);
    let adam = Adam::new(parameters.to_vec(), AdamOptions::default()).unwrap();
    adam.step().unwrap();
    for (parameter, start) in parameters[..3].iter().zip(&starts) {
        let gradient = values(&parameter.grad().unwrap());
        assert_close(&values(parameter), &expected(start, &gradient, AdamOptions::default(), 1), 5e-3);
    }
    assert_eq!(values(&parameters[3]), starts[3]);
}

#[test]
fn scaled_gradients_are_divided_and_infinite_ones_skip_the_step() {
    let (plain, scaled) = (parameter(100, 1, DType::F64), parameter(100, 1, DType::F64));
    scaled.set_grad(Some(scaled.grad().unwrap().mul_scalar(1024.0).unwrap())).unwrap();
    let number = |value: f64| Tensor::full(&[1], value, DType::F32, &device()).unwrap();
    let scale = GradientScale { scale: number(1024.0), found_inf: number(0.0) };
    let of = |parameter: &Tensor| Adam::new(vec![parameter.clone()], AdamOptions::default()).unwrap();
    let (plain_adam, scaled_adam) = (of(&plain), of(&scaled));
    plain_adam.step().unwrap();
    scaled_adam.step_scaled(&scale).unwrap();
    assert_eq!(values(&plain), values(&scaled));
    // A gradient that is not finite: nothing changes, whatever the gradient is.
    let finite = scaled.grad().unwrap();
    scaled.set_grad(Some(Tensor::full(&[100], f64::NAN, DType::F64, &device()).unwrap())).unwrap();
    scaled_adam.step_scaled(&GradientScale { found_inf: number(1.0), ..scale.clone() }).unwrap();
    assert_eq!(scaled_adam.steps().item::<f32>().unwrap(), 1.0);
    assert_eq!(values(&plain), values(&scaled));
    scaled.set_grad(Some(finite)).unwrap();
    plain_adam.step().unwrap();
    scaled_adam.step_scaled(&scale).unwrap();
    assert_eq!(values(&plain), values(&scaled));
    let wrong = GradientScale { scale: Tensor::ones(&[2], DType::F32, &device()).unwrap(), ..scale };
    assert!(scaled_adam.step_scaled(&wrong).is_err());
    assert!(Adam::new(vec![], AdamOptions::default()).is_err());
}
