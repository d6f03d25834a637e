//! Writes in place that gradients flow through, and writes that are refused.

use thalweg_ir::DType;
use thalweg_tensor::{HostTensor, Tensor, no_grad};

use crate::support::{check_gradient, device, random, tensor, values};

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::F64, &device()).unwrap()
}

#[test]
fn a_batch_that_is_put_together_in_place_trains_its_parts() {
    let rows: Vec<Tensor> = (0..3).map(|seed| random(&[4], seed).requires_grad_().unwrap()).collect();
    let batch = zeros(&[3, 4]);
    for (index, row) in rows.iter().enumerate() {
        batch.select(0, index).unwrap().copy_(&row.square().unwrap()).unwrap();
    }
    assert!(batch.requires_grad() && !batch.is_leaf());
    let weight = random(&[3, 4], 9);
    batch.mul(&weight).unwrap().sum(&[], false).unwrap().backward().unwrap();
    for (index, row) in rows.iter().enumerate() {
        let expected: Vec<f64> =
            values(row).iter().zip(&values(&weight)[4 * index..]).map(|(x, w)| 2.0 * x * w).collect();
        assert_eq!(values(&row.grad().unwrap()), expected);
    }
}

#[test]
fn a_copy_cuts_what_was_there_before_and_feeds_the_source() {
    for written in [0, 1, 2] {
        // y = x², of which a part is overwritten by s; then z = y³.
        let through = |x: &Tensor, s: &Tensor| {
            let y = x.square().unwrap();
            match written {
                0 => y.copy_(s).unwrap(),
                1 => y.narrow(1, 1, 2).unwrap().copy_(s).unwrap(),
                _ => {
                    y.transpose(0, 1).unwrap().select(0, 2).unwrap().copy_(&s.select(1, 0).unwrap()).unwrap()
                }
            }
            y.mul(&y).unwrap().mul(&y).unwrap()
        };
        let (x, s) = (random(&[2, 4], 1), random(&[2, if written == 1 { 2 } else { 4 }], 2));
        check_gradient(&s, |s| through(&x, s));
        check_gradient(&s, |s| through(&x.requires_grad_().unwrap(), s));
        if written > 0 {
            let x = random(&[2, 4], 1);
            check_gradient(&x, |x| through(x, &s));
        }
    }
}

#[test]
fn a_source_is_broadcast_and_converted_and_its_gradient_is_taken_back() {
    let s = tensor(&[0.5, -2.0], &[2, 1], DType::F32).requires_grad_().unwrap();
    let y = zeros(&[2, 3]);
    y.copy_(&s).unwrap();
    y.square().unwrap().sum(&[], false).unwrap().backward().unwrap();
    let gradient = s.grad().unwrap();
    assert_eq!((gradient.dtype(), gradient.shape()), (DType::F32, &[2, 1][..]));
    assert_eq!(values(&gradient), [3.0, -12.0]);
}

#[test]
fn views_made_before_and_after_a_write_see_it() {
    let (x, s) = (random(&[3, 4], 1), random(&[4], 2));
    let read = |write_first: bool, x: &Tensor, s: &Tensor| {
        let y = x.square().unwrap();
        let before = y.transpose(0, 1).unwrap().narrow(0, 1, 2).unwrap();
        let row = y.select(0, 1).unwrap();
        row.copy_(s).unwrap();
        let seen = if write_first { before } else { y.transpose(0, 1).unwrap().narrow(0, 1, 2).unwrap() };
        seen.mul(&seen).unwrap().sum(&[], false).unwrap().add(&row.sum(&[], false).unwrap()).unwrap()
    };
    for write_first in [true, false] {
        check_gradient(&x, |x| read(write_first, x, &s));
        check_gradient(&s, |s| read(write_first, &x, s));
    }
    // An expanded view repeats elements.
    check_gradient(&s, |s| {
        let y = zeros(&[1, 4]);
        let wide = y.expand(&[3, 4]).unwrap();
        y.copy_(&s.reshape(&[1, 4]).unwrap()).unwrap();
        wide.square().unwrap()
    });
}

#[test]
fn index_copy_has_gradients_of_both() {
    let index = Tensor::from_slice(&[2_i64, 0], &[2], &device()).unwrap();
    for dimension in [0, 1, 2] {
        let mut shape = [3, 4, 5];
        shape[dimension] = 2;
        let (x, s) = (random(&[3, 4, 5], 1), random(&shape, 2));
        let weight = random(&[3, 4, 5], 3);
        let through = |x: &Tensor, s: &Tensor| {
            let y = x.square().unwrap();
            y.index_copy_(dimension as i64, &index, s).unwrap();
            y.mul(&y).unwrap().mul(&weight).unwrap()
        };
        check_gradient(&x, |x| through(x, &s));
        check_gradient(&s, |s| through(&x, s));
    }
    // Into a view.
    let s = random(&[2, 4], 2);
    check_gradient(&s, |s| {
        let y = zeros(&[2, 3, 4]);
        y.select(0, 1).unwrap().index_copy_(0, &index, s).unwrap();
        y.square().unwrap()
    });
}

#[test]
fn a_tensor_that_was_saved_before_the_write_is_an_error() {
    let x = random(&[3], 1).requires_grad_().unwrap();
    let y = x.square().unwrap();
    let loss = y.square().unwrap().sum(&[], false).unwrap();
    y.copy_(&x).unwrap();
    let error = loss.backward().unwrap_err().to_string();
    assert!(error.contains("modified by an inplace operation"), "{error}");
    // Every way of writing counts.
    let index = Tensor::from_slice(&[1_i64], &[1], &device()).unwrap();
    let pinned = HostTensor::pinned(&[3], DType::F64, &device()).unwrap();
    pinned.write(0, &[1.0_f64, 2.0, 3.0]).unwrap();
    for is_indexed in [true, false] {
        let y = x.square().unwrap();
        let loss = y.square().unwrap().sum(&[], false).unwrap();
        let written = no_grad(|| match is_indexed {
            true => y.index_copy_(0, &index, &zeros(&[1])),
            false => y.copy_from_pinned(&pinned),
        });
        written.unwrap();
        let error = loss.backward().unwrap_err().to_string();
        assert!(error.contains("modified by an inplace operation"), "{error}");
    }
}

#[test]
fn leaves_and_their_views_are_written_under_no_grad_only() {
    let x = random(&[3, 4], 1).requires_grad_().unwrap();
    let row = x.select(0, 1).unwrap();
    let index = Tensor::from_slice(&[0_i64], &[1], &device()).unwrap();
    let pinned = HostTensor::pinned(&[3, 4], DType::F64, &device()).unwrap();
    let refused = [
        x.copy_(&zeros(&[])),
        row.copy_(&zeros(&[4])),
        x.index_copy_(0, &index, &zeros(&[1, 4])),
        x.copy_from_pinned(&pinned),
    ];
    for outcome in refused {
        let error = outcome.unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains("no_grad"), "{error}");
    }
    no_grad(|| row.copy_(&zeros(&[]))).unwrap();
    assert_eq!(values(&x)[4..8], [0.0; 4]);
    assert!(x.is_leaf() && x.requires_grad());
    // A view of which nothing was recorded.
    let y = zeros(&[2, 2]);
    let part = no_grad(|| y.select(0, 0)).unwrap();
    let error = part.copy_(&row.narrow(0, 0, 2).unwrap()).unwrap_err().to_string();
    assert!(error.contains("view that was made inside `no_grad`"), "{error}");
    part.copy_(&zeros(&[])).unwrap();
}

#[test]
fn what_comes_from_the_host_cuts_the_graph() {
    let x = random(&[3], 1).requires_grad_().unwrap();
    let y = x.square().unwrap();
    let pinned = HostTensor::pinned(&[3], DType::F64, &device()).unwrap();
    pinned.write(0, &[1.0_f64, 2.0, 3.0]).unwrap();
    y.copy_from_pinned(&pinned).unwrap();
    y.mul(&x).unwrap().sum(&[], false).unwrap().backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [1.0, 2.0, 3.0]);
}

#[test]
fn requires_grad_is_in_place_and_leaves_results_alone() {
    let x = random(&[3], 1);
    let same = x.requires_grad_().unwrap();
    assert!(x.requires_grad() && x.is_leaf());
    same.square().unwrap().sum(&[], false).unwrap().backward().unwrap();
    assert!(x.grad().is_some(), "it is the same tensor");
    x.set_requires_grad(false).unwrap();
    assert!(!same.requires_grad() && !x.square().unwrap().requires_grad());
    x.requires_grad_().unwrap();
    x.zero_grad();
    let y = x.square().unwrap().requires_grad_().unwrap();
    y.sum(&[], false).unwrap().backward().unwrap();
    assert!(x.grad().is_some(), "a result stays in the graph");
    let error = y.set_requires_grad(false).unwrap_err();
    assert!(error.is_invalid_argument() && error.to_string().contains("detach"), "{error}");
    let integers = Tensor::from_slice(&[1_i64], &[1], &device()).unwrap();
    assert!(integers.requires_grad_().is_err());
}
