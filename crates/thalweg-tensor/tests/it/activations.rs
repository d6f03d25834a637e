//! The bytes that an autograd graph keeps for backward, compared with those that PyTorch keeps (by `saved_tensors_hooks`, in each
//! case).

use thalweg_ir::DType;
use thalweg_nn::functional::{ConvOptions, conv2d, linear, packed_attention};
use thalweg_runtime::{Device, Environment, Result};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_tensor::Tensor;

const KIB: u64 = 1 << 10;

fn allocated(device: &Device) -> u64 {
    device.allocator().statistics().allocated_bytes.all.current
}

fn leaf(shape: &[usize], device: &Device) -> Tensor {
    Tensor::full(shape, 0.01, DType::F32, device).unwrap().requires_grad_().unwrap()
}

/// Returns the bytes that live as long as the result of a function of a leaf, including the result; also checks that its gradient runs.
fn held(shape: &[usize], function: impl FnOnce(&Tensor) -> Result<Tensor>) -> u64 {
    let driver = SimDriver::new(SimConfig::default()).unwrap();
    let device = Device::all_of(driver, Environment::get()).unwrap().remove(0);
    let x = leaf(shape, &device);
    let before = allocated(&device);
    let result = function(&x).unwrap();
    let held = allocated(&device) - before;
    result.sum(&[], false).unwrap().backward().unwrap();
    assert!(x.grad().is_some());
    held
}

/// Like [`held`], without parameters that the function makes.
fn held_beside(parameters: u64, shape: &[usize], function: impl FnOnce(&Tensor) -> Result<Tensor>) -> u64 {
    held(shape, function) - parameters
}

#[test]
fn convolutions_keep_no_columns() {
    let images = [4, 16, 16, 16];
    let weight = |device: &Device| leaf(&[16, 16, 3, 3], device);
    // A weight of 9 KiB, as it is rounded up.
    let one = 9 * KIB;
    let options = ConvOptions { padding: [1; 2], ..ConvOptions::default() };
    // PyTorch: nothing except images, weight and result.
    assert_eq!(held_beside(one, &images, |x| conv2d(x, &weight(x.device()), None, options)), 64 * KIB);
    // PyTorch: the three results of relu, of which the last is the result.
    let three = |x: &Tensor| {
        (0..3).try_fold(x.clone(), |x, _| conv2d(&x, &weight(x.device()), None, options)?.relu())
    };
    assert_eq!(held_beside(3 * one, &images, three), 3 * 64 * KIB);
}

#[test]
fn activations_keep_what_the_next_layer_keeps() {
    let weight = |device: &Device| leaf(&[64, 64], device);
    let layers = |x: &Tensor, activation: &dyn Fn(&Tensor) -> Result<Tensor>| {
        (0..3).try_fold(x.clone(), |x, _| activation(&linear(&x, &weight(x.device()), None)?))
    };
    let weights = 3 * 16 * KIB;
    // PyTorch: 3 of each.
    type Activation = fn(&Tensor) -> Result<Tensor>;
    let all: [Activation; 4] = [Tensor::relu, Tensor::tanh, Tensor::sigmoid, |x| x.softmax(1)];
    for activation in all {
        assert_eq!(held_beside(weights, &[256, 64], |x| layers(x, &activation)), 3 * 64 * KIB);
    }
}

#[test]
fn operators_that_can_keep_their_result_do() {
    type Operator = fn(&Tensor) -> Result<Tensor>;
    let all: [(&str, Operator); 10] = [
        ("exp", Tensor::exp),
        ("expm1", Tensor::expm1),
        ("sqrt", Tensor::sqrt),
        ("rsqrt", Tensor::rsqrt),
        ("reciprocal", Tensor::reciprocal),
        ("sigmoid", Tensor::sigmoid),
        ("tanh", Tensor::tanh),
        ("relu", Tensor::relu),
        ("softmax", |x| x.softmax(-1)),
        ("log_softmax", |x| x.log_softmax(-1)),
    ];
    for (name, operator) in all {
        // Nothing else keeps the tensor: only the result remains.
        let held = held(&[256, 64], |x| operator(&x.mul_scalar(2.0)?));
        assert_eq!(held, 64 * KIB, "{name}");
    }
}

#[test]
fn fused_attention_keeps_its_result_and_a_number_per_query() {
    // (tokens, heads, 3, features): the 16-bit input is 384 KiB, the result 128 KiB, with 8 KiB of logarithms.
    let half = |x: &Tensor| packed_attention(&x.to_dtype(DType::Bf16)?, true);
    assert_eq!(held(&[256, 8, 3, 32], half), (384 + 128 + 8) * KIB);
    // The input of 32 bits is there already.
    assert_eq!(held(&[256, 8, 3, 32], |x| packed_attention(x, true)), (256 + 8) * KIB);
}
