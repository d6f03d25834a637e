//! Modes of recording: which operators are recorded, and which uses of tensors from inference mode autograd refuses. The
//! expectations are PyTorch 2.11's.

use thalweg_ir::DType;
use thalweg_tensor::autograd::{
    enable_grad, inference_mode, is_grad_enabled, is_inference_mode_enabled, set_grad_enabled,
    set_inference_mode,
};
use thalweg_tensor::random::DeviceGenerator;
use thalweg_tensor::{Tensor, no_grad};

use crate::support::{device, tensor, values};

fn ones() -> Tensor {
    tensor(&[1.0, 1.0], &[2], DType::F32)
}

fn leaf() -> Tensor {
    ones().requires_grad_().unwrap()
}

#[track_caller]
fn assert_refused<T>(result: thalweg_runtime::Result<T>, words: &str) {
    let error = result.err().expect("an error");
    assert!(error.is_invalid_argument() && error.to_string().contains(words), "{error}");
}

const NOT_SAVED: &str = "Inference tensors cannot be saved for backward.";
const NOT_WRITTEN: &str = "Inplace update to inference tensor outside InferenceMode is not allowed.";

#[test]
fn modes_nest_and_end_with_their_function() {
    let x = leaf();
    let records = || x.mul_scalar(2.0).unwrap().requires_grad();
    assert!(records());
    no_grad(|| {
        assert!(!records() && !is_grad_enabled());
        enable_grad(|| assert!(records() && is_grad_enabled()));
        assert!(!set_grad_enabled(true) && records() && set_grad_enabled(false));
        assert!(!records());
    });
    inference_mode(|| {
        assert!(!records() && is_inference_mode_enabled());
        enable_grad(|| assert!(!records()));
        set_inference_mode(false, || {
            assert!(records() && !is_inference_mode_enabled() && !ones().is_inference());
        });
        assert!(!records());
    });
    assert!(records() && !is_inference_mode_enabled());
    // A function that fails ends its mode too.
    assert!(std::panic::catch_unwind(|| inference_mode(|| panic!("on purpose"))).is_err());
    assert!(records() && !ones().is_inference());
}

#[test]
fn memory_is_marked_where_it_is_allocated() {
    let x = leaf();
    let (made, product, view) =
        inference_mode(|| (ones(), x.mul_scalar(2.0).unwrap(), x.narrow(0, 0, 1).unwrap()));
    assert!(made.is_inference() && product.is_inference() && !product.requires_grad());
    assert!(!view.is_inference() && !x.is_inference());
    assert!(made.narrow(0, 0, 1).unwrap().is_inference() && made.detach().is_inference());
    assert!(!made.mul_scalar(2.0).unwrap().is_inference());
}

#[test]
fn inference_tensors_are_not_saved_for_backward() {
    let (x, made) = (leaf(), inference_mode(ones));
    // By a derived gradient, a formula, and a node of its own.
    assert_refused(x.mul(&made), NOT_SAVED);
    assert_refused(made.mul(&x), NOT_SAVED);
    let matrix = inference_mode(|| made.reshape(&[2, 1])).unwrap();
    assert_refused(x.reshape(&[1, 2]).unwrap().matmul(&matrix), NOT_SAVED);
    assert_refused(x.mul_scalar(1.0).unwrap().mul_(&made).map(drop), NOT_SAVED);
    // Operators that do not save it may read it, and so may operators that are not recorded.
    let sum = x.add(&made).unwrap().sum(&[], false).unwrap();
    sum.backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [1.0, 1.0]);
    assert_eq!(values(&no_grad(|| x.mul(&made)).unwrap()), [1.0, 1.0]);
    // A copy that is made outside is an ordinary tensor.
    let copy = made.add_scalar(0.0).unwrap();
    x.mul(&copy).unwrap().sum(&[], false).unwrap().backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [2.0, 2.0]);
}

#[test]
fn inference_tensors_are_written_in_inference_mode_alone() {
    let made = inference_mode(ones);
    assert_refused(made.copy_(&ones()), NOT_WRITTEN);
    assert_refused(made.add_scalar_(1.0).map(drop), NOT_WRITTEN);
    assert_refused(made.narrow(0, 0, 1).unwrap().add_scalar_(1.0).map(drop), NOT_WRITTEN);
    assert_refused(no_grad(|| made.copy_(&ones())), NOT_WRITTEN);
    assert_refused(
        made.set_requires_grad(true),
        "Setting requires_grad=True on inference tensor outside InferenceMode",
    );
    made.set_requires_grad(false).unwrap();
    assert_eq!(values(&made), [1.0, 1.0]);
    // Inside, anything can be written: a leaf that requires a gradient too.
    let x = leaf();
    inference_mode(|| {
        made.add_scalar_(1.0).unwrap();
        x.copy_(&made).unwrap();
    });
    assert_eq!((values(&made), values(&x)), (vec![2.0, 2.0], vec![2.0, 2.0]));
    ones().copy_(&made).unwrap();
}

#[test]
fn a_write_in_inference_mode_is_a_write() {
    let x = leaf();
    let y = x.mul_scalar(3.0).unwrap();
    let square = y.square().unwrap().sum(&[], false).unwrap();
    inference_mode(|| y.add_scalar_(1.0).map(drop)).unwrap();
    assert_refused(square.backward(), "modified by an inplace operation");
}

#[test]
fn a_generator_that_was_made_in_inference_mode_works_outside() {
    let generator = inference_mode(|| DeviceGenerator::new(1, &device())).unwrap();
    generator.manual_seed(7).unwrap();
    let drawn = generator.rand(&[4], DType::F32).unwrap();
    let other = DeviceGenerator::new(7, &device()).unwrap().rand(&[4], DType::F32).unwrap();
    assert_eq!(values(&drawn), values(&other));
}
