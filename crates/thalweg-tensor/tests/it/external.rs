//! Tensors over memory of another library, and the kinds of errors that PyTorch distinguishes by class.

use thalweg_driver::DevicePointer;
use thalweg_ir::DType;
use thalweg_runtime::{Device, Error, ExternalMemory, Result};
use thalweg_tensor::{Index, Tensor};

use crate::support::{device, tensor, values};

/// Returns the memory of a tensor as another library would pass it, from an element on.
fn handed_out(source: &Tensor, from: usize, elements: usize) -> ExternalMemory {
    let size = source.dtype().size_bytes() as u64;
    let pointer = DevicePointer::new(source.pointer().address() + from as u64 * size);
    // SAFETY: the memory is the source's, which the owner keeps; the callers name elements within it.
    unsafe { ExternalMemory::new(pointer, elements as u64 * size, source.clone()) }
}

fn over(shape: &[usize], strides: &[usize], memory: ExternalMemory) -> Result<Tensor> {
    Tensor::from_external(shape, strides, DType::F32, &device(), memory)
}

#[test]
fn elements_are_seen_where_they_lie() {
    let numbers: Vec<f64> = (0..12).map(f64::from).collect();
    let source = tensor(&numbers, &[12], DType::F32);
    let x = over(&[3, 2], &[1, 4], handed_out(&source, 1, 8)).unwrap();
    assert_eq!(values(&x), [1.0, 5.0, 2.0, 6.0, 3.0, 7.0]);
    // A write through one is seen through the other, and gradients flow through results computed from it.
    source.mul_(&tensor(&[2.0], &[], DType::F32)).unwrap();
    assert_eq!(values(&x), [2.0, 10.0, 4.0, 12.0, 6.0, 14.0]);
    let leaf = over(&[2, 3], &[0, 1], handed_out(&source, 0, 3)).unwrap().requires_grad_().unwrap();
    leaf.mul(&leaf).unwrap().sum(&[], false).unwrap().backward().unwrap();
    assert_eq!(values(&leaf.grad().unwrap()), [0.0, 4.0, 8.0, 0.0, 4.0, 8.0]);
    drop(source);
    assert_eq!(values(&x), [2.0, 10.0, 4.0, 12.0, 6.0, 14.0], "it keeps its owner");
    assert_eq!(over(&[0, 3], &[3, 1], handed_out(&x, 0, 0)).unwrap().shape(), [0, 3]);
}

#[test]
fn elements_beyond_the_memory_are_refused() {
    let source = tensor(&[0.0; 12], &[12], DType::F32);
    for (shape, strides) in [(&[3, 2][..], &[1, 4][..]), (&[7], &[1]), (&[2, 2], &[usize::MAX, 1])] {
        let error = over(shape, strides, handed_out(&source, 0, 6)).unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains("do not lie within 24"), "{error}");
    }
    let error = over(&[2], &[1, 1], handed_out(&source, 0, 6)).unwrap_err();
    assert!(error.to_string().contains("different lengths"), "{error}");
    let address = DevicePointer::new(source.pointer().address() + 2);
    // SAFETY: nothing is read.
    let odd = unsafe { ExternalMemory::new(address, 8, source.clone()) };
    let error = over(&[1], &[1], odd).unwrap_err();
    assert!(error.to_string().contains("not a multiple of the 4 bytes"), "{error}");
}

#[test]
fn errors_of_dimensions_and_indices_say_so_by_their_kind() {
    let x = tensor(&[0.0; 6], &[2, 3], DType::F32);
    let mask = tensor(&[1.0; 5], &[5], DType::Bool);
    let indices: [fn(&Tensor) -> Result<Tensor>; 6] = [
        |x| x.sum(&[5], false),
        |x| x.unsqueeze(9),
        |x| x.select(0, 9),
        |x| x.i(&[Index::At(9)]),
        |x| x.i(&[Index::At(0), Index::At(0), Index::At(0)]),
        |x| x.transpose(0, 5),
    ];
    for (place, call) in indices.into_iter().enumerate() {
        let error = call(&x).unwrap_err();
        assert!(
            error.is_index() && error.is_invalid_argument() && !error.is_recomputation(),
            "{place}: {error}"
        );
    }
    assert!(x.i(&[Index::Tensor(mask)]).unwrap_err().is_index());
    let others: [fn(&Tensor, &Device) -> Result<Tensor>; 3] = [
        |x, _| x.matmul(x),
        |x, _| x.reshape(&[5]),
        |_, device| Tensor::from_slice(&[1.0_f32], &[2], device),
    ];
    for (place, call) in others.into_iter().enumerate() {
        let error = call(&x, &device()).unwrap_err();
        assert!(error.is_invalid_argument() && !error.is_index(), "{place}: {error}");
    }
    assert!(Error::recomputation("checkpoint").context("backward").is_recomputation());
}
