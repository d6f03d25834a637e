//! Autocast: which dtypes operators compute in, kept casts, and a training step.

use thalweg_ir::DType;
use thalweg_nn::functional::{cross_entropy, linear};
use thalweg_nn::optim::{Adam, AdamOptions};
use thalweg_tensor::autocast::{AutocastOptions, autocast, autocast_with, is_autocast_enabled};
use thalweg_tensor::{Tensor, no_grad};

use crate::support::{assert_close, device, random, values};

fn floats(shape: &[usize], seed: u64) -> Tensor {
    random(shape, seed).to_dtype(DType::F32).unwrap()
}

#[test]
fn operators_compute_in_the_dtypes_of_pytorchs_lists() {
    let (x, y) = (floats(&[4, 4], 1), floats(&[4, 4], 2));
    let half = x.to_dtype(DType::Bf16).unwrap();
    autocast(DType::Bf16, || {
        assert!(is_autocast_enabled());
        assert_eq!(x.matmul(&y)?.dtype(), DType::Bf16);
        assert_eq!(linear(&x, &y, None)?.dtype(), DType::Bf16);
        assert_eq!(half.exp()?.dtype(), DType::F32);
        assert_eq!(half.softmax(-1)?.dtype(), DType::F32);
        assert_eq!(half.sum(&[], false)?.dtype(), DType::F32);
        assert_eq!(half.relu()?.dtype(), DType::Bf16, "what is in no list keeps its dtype");
        assert_eq!(Tensor::cat(&[x.clone(), half.clone()], 0)?.dtype(), DType::F32);
        assert_eq!(x.to_dtype(DType::F64)?.matmul(&y.to_dtype(DType::F64)?)?.dtype(), DType::F64);
        autocast_with(AutocastOptions { enabled: false, ..AutocastOptions::default() }, || {
            assert_eq!(x.matmul(&y)?.dtype(), DType::F32);
            Ok(())
        })?;
        assert_eq!(autocast(DType::F16, || x.matmul(&y))?.dtype(), DType::F16);
        assert_eq!(x.matmul(&y)?.dtype(), DType::Bf16);
        Ok(())
    })
    .unwrap();
    assert!(!is_autocast_enabled());
    assert_eq!(x.matmul(&y).unwrap().dtype(), DType::F32);
    assert!(autocast(DType::F64, || Ok(())).unwrap_err().is_invalid_argument());
}

#[test]
fn a_region_that_fails_ends_all_the_same() {
    let x = floats(&[4, 4], 1);
    autocast(DType::Bf16, || x.matmul(&floats(&[3, 3], 2))).unwrap_err();
    assert!(!is_autocast_enabled());
    assert_eq!(x.matmul(&x).unwrap().dtype(), DType::F32);
}

#[test]
fn a_weight_is_cast_once_a_region_and_anew_in_the_next() {
    let weight = floats(&[4, 4], 1).requires_grad_().unwrap();
    let x = floats(&[2, 4], 2);
    let product = || autocast(DType::Bf16, || x.matmul(&weight)).unwrap();
    let before = values(&product());
    autocast(DType::Bf16, || {
        let first = x.matmul(&weight)?;
        no_grad(|| weight.mul_scalar_(2.0))?;
        assert_eq!(values(&first), values(&x.matmul(&weight)?), "the cast is kept while the region lasts");
        Ok(())
    })
    .unwrap();
    let doubled: Vec<f64> = before.iter().map(|value| 2.0 * value).collect();
    assert_eq!(values(&product()), doubled);
}

#[test]
fn gradients_arrive_in_the_dtype_of_the_leaves() {
    let weight = floats(&[3, 4], 1).requires_grad_().unwrap();
    let x = floats(&[5, 4], 2);
    let target = Tensor::from_slice(&[0i64, 1, 2, 1, 0], &[5], &device()).unwrap();
    let loss = |is_cast: bool| {
        weight.zero_grad();
        let run = || cross_entropy(&linear(&x, &weight, None)?, &target);
        let loss = if is_cast { autocast(DType::Bf16, run) } else { run() }.unwrap();
        assert_eq!(loss.dtype(), DType::F32);
        loss.backward().unwrap();
        weight.grad().unwrap()
    };
    let (exact, cast) = (loss(false), loss(true));
    assert_eq!(cast.dtype(), DType::F32);
    assert_close(&values(&cast), &values(&exact), 2e-2);
    assert_ne!(values(&cast), values(&exact), "the products were rounded");
}

#[test]
fn scores_are_not_copied_to_f32_for_their_loss() {
    let scores = || floats(&[5, 7], 3).to_dtype(DType::Bf16).unwrap().requires_grad_().unwrap();
    let target = Tensor::from_slice(&[0i64, 6, 2, 1, 5], &[5], &device()).unwrap();
    let (read, copied) = (scores(), scores());
    let loss = autocast(DType::Bf16, || cross_entropy(&read, &target)).unwrap();
    let of_copy = cross_entropy(&copied.to_dtype(DType::F32).unwrap(), &target).unwrap();
    assert_eq!((loss.dtype(), values(&loss)), (DType::F32, values(&of_copy)));
    loss.backward().unwrap();
    of_copy.backward().unwrap();
    let (gradient, of_copy) = (read.grad().unwrap(), copied.grad().unwrap());
    assert_eq!((gradient.dtype(), values(&gradient)), (DType::Bf16, values(&of_copy)));
}

#[test]
fn a_network_learns_in_bf16() {
    let weight = floats(&[1, 4], 3).requires_grad_().unwrap();
    let (x, truth) = (floats(&[16, 4], 4), floats(&[1, 4], 5));
    let target = linear(&x, &truth, None).unwrap();
    let adam = Adam::new(vec![weight.clone()], AdamOptions { learning_rate: 0.1, ..AdamOptions::default() })
        .unwrap();
    let mut losses = Vec::new();
    for _ in 0..60 {
        let loss = autocast(DType::Bf16, || {
            let apart = linear(&x, &weight, None)?.sub(&target)?;
            apart.mul(&apart)?.mean(&[], false)
        })
        .unwrap();
        adam.zero_grad();
        loss.backward().unwrap();
        adam.step().unwrap();
        losses.push(values(&loss)[0]);
    }
    assert!(losses[59] < 0.01 * losses[0], "{losses:?}");
}
