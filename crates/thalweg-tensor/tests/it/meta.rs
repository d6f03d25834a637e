//! The meta device: shapes without elements.

use thalweg_ir::{DType, elements};
use thalweg_runtime::Device;
use thalweg_tensor::Tensor;

#[test]
fn operators_give_shapes_and_dtypes_and_no_elements() {
    let meta = Device::meta().unwrap();
    assert_eq!(meta.to_string(), "meta:0");
    let x = Tensor::ones(&[64, 32], DType::Bf16, &meta).unwrap();
    let w = Tensor::empty(&[128, 32], DType::Bf16, &meta).unwrap();
    let y = x.matmul(&w.transpose(0, 1).unwrap()).unwrap().softmax(-1).unwrap();
    assert_eq!((y.shape(), y.dtype()), ([64, 128].as_slice(), DType::Bf16));
    let error = y.to_vec::<elements::bf16>().unwrap_err().to_string();
    assert!(error.contains("have no elements to read"), "{error}");
    assert!(y.matmul(&x).unwrap_err().is_invalid_argument(), "shapes are checked");
    // Gradients flow, and have shapes.
    let leaf = w.requires_grad_().unwrap();
    x.matmul(&leaf.transpose(0, 1).unwrap()).unwrap().sum(&[], false).unwrap().backward().unwrap();
    assert_eq!(leaf.grad().unwrap().shape(), [128, 32]);
}

#[test]
fn what_is_larger_than_the_host_can_be_planned() {
    let meta = Device::meta().unwrap();
    let half_a_tebibyte = Tensor::zeros(&[1 << 37], DType::F32, &meta).unwrap();
    let before = meta.memory_allocated();
    let relu = half_a_tebibyte.relu().unwrap();
    assert_eq!(relu.elements(), 1 << 37);
    assert_eq!(meta.memory_allocated() - before, 1 << 39);
}
