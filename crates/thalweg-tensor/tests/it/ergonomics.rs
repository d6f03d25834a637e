//! Rust's operators, subscripts, and conversions.

use ndarray::{Array, Axis};
use thalweg_ir::DType;
use thalweg_tensor::{Tensor, i, no_grad};

use crate::support::{device, tensor, values};

fn numbers(count: usize, shape: &[usize]) -> Tensor {
    Tensor::arange(count, 0i64, 1i64, DType::I64, &device()).unwrap().reshape(shape).unwrap()
}

#[test]
fn operators_are_those_of_arithmetic() {
    let (a, b) = (tensor(&[1.0, 2.0], &[2], DType::F64), tensor(&[4.0, 8.0], &[2], DType::F64));
    assert_eq!(values(&(&a + &b).unwrap()), [5.0, 10.0]);
    assert_eq!(values(&((&a * &b).unwrap() - &a).unwrap()), [3.0, 14.0]);
    assert_eq!(values(&(&b / a.clone()).unwrap()), [4.0, 4.0]);
    assert_eq!(values(&(&b % 3.0).unwrap()), [1.0, 2.0]);
    assert_eq!(values(&(-&a).unwrap()), [-1.0, -2.0]);
    assert_eq!(values(&(2.0 - &a).unwrap()), [1.0, 0.0]);
    assert_eq!(values(&(8.0 / &b).unwrap()), [2.0, 1.0]);
    assert_eq!(values(&((1i64 + &a).unwrap() * 3i64).unwrap()), [6.0, 9.0]);
    let integers = numbers(3, &[3]);
    assert_eq!((&integers * 2).unwrap().dtype(), DType::I64);
    let mask = (!integers.gt_scalar(0).unwrap()).unwrap();
    assert_eq!(values(&(&mask | &integers.gt_scalar(1).unwrap()).unwrap()), [1.0, 0.0, 1.0]);
    let error = (&a + &tensor(&[1.0; 3], &[3], DType::F64)).unwrap_err();
    assert!(error.is_invalid_argument() && error.to_string().contains("ergonomics.rs"), "{error}");
}

#[test]
fn assignments_write_where_the_tensor_lies() {
    let mut a = tensor(&[1.0, 2.0], &[2], DType::F64);
    let alias = a.detach();
    a += &tensor(&[10.0], &[1], DType::F64);
    a *= 2.0;
    a -= 1.0;
    a /= &tensor(&[3.0], &[], DType::F64);
    assert_eq!(values(&alias), [7.0, 23.0 / 3.0]);
    let mut leaf = tensor(&[1.0], &[1], DType::F64).requires_grad_().unwrap();
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| leaf += 1.0));
    assert!(refused.is_err(), "a leaf that requires a gradient is not written in place");
    no_grad(|| leaf += 1.0);
    assert_eq!(values(&leaf), [2.0]);
}

#[test]
fn subscripts_choose_as_in_python() {
    let x = numbers(24, &[2, 3, 4]);
    let chosen = |part: Tensor| (part.shape().to_vec(), part.to_vec::<i64>().unwrap());
    // Each with PyTorch's result for x = torch.arange(24).reshape(2, 3, 4).
    assert_eq!(chosen(x.i(i![1, -1, 2]).unwrap()), (vec![], vec![22]));
    assert_eq!(chosen(x.i(i![.., 1..2, 3]).unwrap()), (vec![2, 1], vec![7, 19]));
    assert_eq!(chosen(x.i(i![0, ..;2, 1..;2]).unwrap()), (vec![2, 2], vec![1, 3, 9, 11]));
    assert_eq!(chosen(x.i(i![..., -1]).unwrap()), (vec![2, 3], vec![3, 7, 11, 15, 19, 23]));
    assert_eq!(chosen(x.i(i![None, 1, ..., None, ..=1]).unwrap()).0, [1, 3, 1, 2]);
    assert_eq!(chosen(x.i(i![1, 0, -3..-1]).unwrap()), (vec![2], vec![13, 14]));
    assert_eq!(chosen(x.i(i![1, 0, 2..99]).unwrap()), (vec![2], vec![14, 15]));
    let rows = Tensor::from_slice(&[2i64, 0], &[2], &device()).unwrap();
    assert_eq!(chosen(x.i(i![0, &rows, 1]).unwrap()), (vec![2], vec![9, 1]));
    assert_eq!(chosen(x.i(i![.., &rows, 0..2]).unwrap()).0, [2, 2, 2]);
    assert_eq!(chosen(x.i(i![&x.gt_scalar(21).unwrap()]).unwrap()), (vec![2], vec![22, 23]));
    let mask = Tensor::from_slice(&[1u8, 0, 1], &[3], &device()).unwrap().to_dtype(DType::Bool).unwrap();
    assert_eq!(chosen(x.i(i![1, &mask, 0]).unwrap()), (vec![2], vec![12, 20]));
    assert!(x.i(i![0, 0]).unwrap().shares_storage_with(&x), "integers and ranges give a view");
    for (refused, words) in [
        (x.i(i![2]), "index 2 is out of bounds for dimension 0 with size 2"),
        (x.i(i![0, 0, 0, 0]), "too many indices for tensor of dimension 3"),
        (x.i(i![..., ...]), "single ellipsis"),
        (x.i(i![&mask]), "mask"),
    ] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn subscripts_are_assigned_through() {
    let x = numbers(6, &[2, 3]);
    let number = |value: i64| Tensor::from_slice(&[value], &[], &device()).unwrap();
    x.assign(i![0, 1..], &number(-1)).unwrap();
    assert_eq!(x.to_vec::<i64>().unwrap(), [0, -1, -1, 3, 4, 5]);
    x.assign(i![.., 0], &Tensor::from_slice(&[7i64, 8], &[1, 2], &device()).unwrap()).unwrap();
    assert_eq!(x.to_vec::<i64>().unwrap(), [7, -1, -1, 8, 4, 5]);
    x.assign(i![&x.lt_scalar(0).unwrap()], &number(0)).unwrap();
    assert_eq!(x.to_vec::<i64>().unwrap(), [7, 0, 0, 8, 4, 5]);
    let columns = Tensor::from_slice(&[2i64, 0], &[2], &device()).unwrap();
    x.assign(i![1, &columns], &Tensor::from_slice(&[1i64, 2], &[2], &device()).unwrap()).unwrap();
    assert_eq!(x.to_vec::<i64>().unwrap(), [7, 0, 0, 2, 4, 1]);
    let y = tensor(&[1.0, 2.0], &[2], DType::F64).requires_grad_().unwrap();
    let z = y.mul(&y).unwrap();
    z.assign(i![0], &tensor(&[5.0], &[], DType::F64)).unwrap();
    z.sum(&[], false).unwrap().backward().unwrap();
    assert_eq!(values(&y.grad().unwrap()), [0.0, 4.0]);
}

#[test]
fn arrays_of_ndarray_come_and_go() {
    let array = Array::from_shape_fn((2, 3), |(row, column)| (row * 3 + column) as f32);
    let x = Tensor::from_ndarray(&array, &device()).unwrap();
    assert_eq!((x.shape(), x.dtype()), (&[2, 3][..], DType::F32));
    assert_eq!(x.to_ndarray::<f32>().unwrap(), array.clone().into_dyn());
    let turned = Tensor::from_ndarray(&array.t(), &device()).unwrap();
    assert_eq!(values(&turned), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    assert_eq!(x.t().unwrap().to_ndarray::<f32>().unwrap(), array.t().to_owned().into_dyn());
    assert_eq!(x.to_ndarray::<f32>().unwrap().sum_axis(Axis(0)).into_raw_vec_and_offset().0, [3.0, 5.0, 7.0]);
}
