//! Autocast: which dtypes operators compute in, kept casts, and a training step.

use std::sync::Arc;

use thalweg_ir::DType;
use thalweg_nn::functional::{ClassLossOptions, cross_entropy, cross_entropy_with, linear};
use thalweg_nn::optim::{Adam, AdamOptions};
use thalweg_runtime::{Label, Result};
use thalweg_tensor::autocast::{
    AutocastOptions, ForwardRegion, autocast, autocast_with, custom_bwd, custom_fwd, is_autocast_enabled,
};
use thalweg_tensor::autograd::{Backward, Gradients, record_function};
use thalweg_tensor::dispatch::{Argument, DispatchKey, Value, define_operator, find_operator};
use thalweg_tensor::graph::{CallableOptions, make_graphed_callables};
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
    let doubled: Vec<f64> = values(&product()).iter().map(|value| 2.0 * value).collect();
    autocast(DType::Bf16, || {
        let cast_of = |product: Tensor| product.grad_fn()?.next_functions().pop().flatten();
        let casts =
            [x.matmul(&weight)?, x.matmul(&weight)?].map(|y| cast_of(y).expect("a cast is recorded").0);
        assert!(Arc::ptr_eq(&casts[0], &casts[1]), "the cast is kept while the region lasts");
        no_grad(|| weight.mul_scalar_(2.0))?;
        assert_eq!(values(&x.matmul(&weight)?), doubled, "a weight that was written is cast anew");
        Ok(())
    })
    .unwrap();
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
    let adam = Adam::new(vec![weight.clone()], AdamOptions { lr: 0.1, ..AdamOptions::default() }).unwrap();
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

/// The square of a matrix as a custom function, which records the dtypes in which it computes.
struct Square {
    x: Tensor,
    region: ForwardRegion,
    seen: std::sync::Arc<thalweg_lock::Mutex<Vec<DType>>>,
}

impl Backward for Square {
    fn name(&self) -> &'static str {
        "square_of_matrix"
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        let gradient = gradients[0].as_ref().expect("the result has a gradient");
        custom_bwd(self.region, || {
            let transposed = self.x.transpose(0, 1)?;
            let product = gradient.matmul(&transposed)?;
            self.seen.lock().push(product.dtype());
            let sum = product.add(&transposed.matmul(gradient)?)?;
            Ok(Gradients::from_elem(Some(sum.to_dtype(DType::F32)?), 1))
        })
    }
}

#[test]
fn custom_functions_compute_in_the_region_of_their_forward_pass() {
    let square = |x: &Tensor, cast_inputs: Option<DType>| {
        let seen = std::sync::Arc::new(thalweg_lock::Mutex::new(Vec::new()));
        let ((result, x_read), region) = custom_fwd(cast_inputs, &[x], |inputs| {
            let read = inputs[0].detach();
            let result = read.matmul(&read)?;
            seen.lock().extend([read.dtype(), result.dtype()]);
            Ok((result, read))
        })?;
        let function = Square { x: x_read, region, seen: seen.clone() };
        let y = record_function(Box::new(function), &[x], vec![result]).remove(0);
        Result::Ok((y.to_dtype(DType::F32)?.sum(&[], false)?, seen))
    };
    let x = floats(&[3, 3], 1).requires_grad_().unwrap();
    let run = |is_cast: bool, cast_inputs: Option<DType>| {
        x.zero_grad();
        let call = || square(&x, cast_inputs);
        let (sum, seen) = if is_cast { autocast(DType::Bf16, call) } else { call() }.unwrap();
        sum.backward().unwrap();
        (values(&x.grad().unwrap()), seen.lock().clone())
    };
    let (f32, bf16, f16) = (DType::F32, DType::Bf16, DType::F16);
    let (exact, seen) = run(false, None);
    assert_eq!(seen, [f32, f32, f32]);
    let (rounded, seen) = run(true, None);
    assert_eq!(seen, [f32, bf16, bf16], "forward and backward cast as the region says");
    assert_close(&rounded, &exact, 3e-2);
    assert_ne!(rounded, exact);
    let (whole, seen) = run(true, Some(f32));
    assert_eq!((whole, seen), (exact.clone(), vec![f32, f32, f32]), "neither pass casts");
    let (_, seen) = run(true, Some(f16));
    assert_eq!(seen[..2], [f16, f16]);
    let (whole, seen) = run(false, Some(f16));
    assert_eq!((whole, seen), (exact, vec![f32, f32, f32]), "outside of a region nothing is cast");
    // Integers and f64 are not cast.
    let others =
        [floats(&[2], 1).to_dtype(DType::F64).unwrap(), floats(&[2], 1).to_dtype(DType::I64).unwrap()];
    let dtypes = autocast(bf16, || {
        custom_fwd(Some(f16), &[&others[0], &others[1]], |inputs| {
            assert!(!is_autocast_enabled());
            Ok([inputs[0].dtype(), inputs[1].dtype()])
        })
    });
    assert_eq!(dtypes.unwrap().0, [DType::F64, DType::I64]);
}

#[test]
fn forms_in_place_and_with_out_compute_in_the_dtypes_that_they_get() {
    let (x, y) = (floats(&[4, 4], 1), floats(&[4, 4], 2));
    let exact = x.matmul(&y).unwrap();
    let half = x.to_dtype(DType::Bf16).unwrap();
    autocast(DType::Bf16, || {
        let out = Tensor::zeros(&[4, 4], DType::F32, &device())?;
        find_operator("mm.out")?.call_boxed(
            &[Value::Tensor(x.clone()), Value::Tensor(y.clone()), Value::Tensor(out.clone())],
            None,
        )?;
        assert_eq!(values(&out), values(&exact), "products are not rounded to bf16");
        find_operator("exp_")?.call_boxed(&[Value::Tensor(half.clone())], None)?;
        Ok(())
    })
    .unwrap();
    let of_half = x.to_dtype(DType::Bf16).unwrap().exp().unwrap();
    assert_eq!((half.dtype(), values(&half)), (DType::Bf16, values(&of_half)));
}

#[test]
fn an_operator_of_a_program_is_not_taken_for_pytorchs_by_its_name() {
    let operator = define_operator("test::matmul(Tensor self) -> Tensor").unwrap();
    let kept = operator.register(
        DispatchKey::of_device(&device()),
        std::sync::Arc::new(|call| Ok(std::iter::once(call.tensors[0].clone()).collect())),
    );
    kept.keep();
    let x = floats(&[4, 4], 1);
    let result = autocast(DType::Bf16, || operator.call_boxed(&[Value::Tensor(x.clone())], None)).unwrap();
    let Value::Tensor(result) = &result[0] else { panic!("a tensor") };
    assert_eq!(result.dtype(), DType::F32);
}

/// Checks that a cast which was made without recording passes no gradient, and that a later use which is recorded makes a cast of its
/// own.
#[test]
fn weights_that_are_used_first_without_recording_learn_all_the_same() {
    let (weight, x) = (floats(&[4, 4], 1).requires_grad_().unwrap(), floats(&[2, 4], 2));
    autocast(DType::Bf16, || {
        let read = no_grad(|| x.matmul(&weight))?;
        let recorded = x.matmul(&weight)?;
        assert!(recorded.requires_grad());
        assert_eq!(values(&read), values(&recorded));
        assert!(!no_grad(|| x.matmul(&weight))?.requires_grad());
        recorded.sum(&[], false)?.backward()
    })
    .unwrap();
    let columns: Vec<f64> = values(&x.to_dtype(DType::Bf16).unwrap())
        .chunks(4)
        .fold(vec![0.0; 4], |sums, row| sums.iter().zip(row).map(|(sum, x)| sum + x).collect());
    let expected: Vec<f64> = columns.iter().flat_map(|&sum| [sum; 4]).collect();
    assert_close(&values(&weight.grad().unwrap()), &expected, 1e-2);
}

/// Checks that the Rust function and ATen's operator both compute in f32: for classes and probabilities, with and without label
/// smoothing.
#[test]
fn cross_entropy_comes_out_in_f32() {
    let scores = floats(&[5, 3], 1).to_dtype(DType::F16).unwrap();
    let classes = Tensor::from_slice(&[0i64, 1, 2, 1, 0], &[5], &device()).unwrap();
    let spread = floats(&[5, 3], 2).softmax(-1).unwrap();
    for label_smoothing in [0.0, 0.1] {
        for target in [&classes, &spread] {
            let options = ClassLossOptions { label_smoothing, ..ClassLossOptions::default() };
            let loss = autocast(DType::F16, || cross_entropy_with(&scores, target, options)).unwrap();
            assert_eq!(loss.dtype(), DType::F32);
            let exact = cross_entropy_with(&scores.to_dtype(DType::F64).unwrap(), target, options).unwrap();
            assert_close(&values(&loss), &values(&exact), 1e-6);
            assert_eq!(cross_entropy_with(&scores, target, options).unwrap().dtype(), DType::F16);
        }
    }
}

/// Operators that are one kernel in PyTorch compute in the dtypes of their arguments, even if they are composed here.
#[test]
fn parts_of_an_operator_are_not_cast() {
    let x = floats(&[4, 4], 1);
    for name in ["linalg_inv", "matrix_exp", "logdet", "fft_fft", "std", "_euclidean_dist"] {
        let operator = find_operator(name).unwrap();
        let arguments: Vec<Argument<'_>> =
            vec![
                (&x).into();
                operator.schema().parameters.len().min(1 + usize::from(name.ends_with("dist")))
            ];
        let run = || Ok(operator.call(&arguments, None, Label::here("parts"))?.swap_remove(0));
        let (inside, outside): (Tensor, Tensor) = (autocast(DType::Bf16, run).unwrap(), run().unwrap());
        assert_eq!(inside.dtype(), outside.dtype(), "{name}");
        let parts = |tensor: &Tensor| {
            values(&if tensor.dtype().is_complex() { tensor.view_as_real().unwrap() } else { tensor.clone() })
        };
        assert_eq!(parts(&inside), parts(&outside), "{name}");
    }
}

#[test]
fn graphed_callables_refuse_a_region_that_keeps_casts() {
    let refusal = autocast(DType::Bf16, || {
        make_graphed_callables(&device(), Vec::new(), Vec::new(), &CallableOptions::default()).map(drop)
    })
    .unwrap_err();
    assert!(
        refusal.to_string().contains("make_graphed_callables does not support the autocast caching"),
        "{refusal}"
    );
}
