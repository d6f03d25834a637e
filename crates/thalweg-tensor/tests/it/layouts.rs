//! Views, broadcasting and strides: every layout has the result of the contiguous one.

use thalweg_ir::DType;
use thalweg_tensor::Tensor;

use crate::support::{assert_close, check_gradient, device, random, values};

/// Returns the values of x·2 + y for the tensors' layouts.
fn combine(x: &Tensor, y: &Tensor) -> Vec<f64> {
    values(&x.mul_scalar(2.0).and_then(|x| x.add(y)).expect("shapes broadcast"))
}

#[test]
fn strided_operands_agree_with_copies() {
    let base = random(&[4, 6, 5], 1);
    let views = [
        base.permute(&[2, 0, 1]).unwrap(),
        base.permute(&[1, 2, 0]).unwrap(),
        base.narrow(1, 2, 3).unwrap(),
        base.narrow(2, 1, 3).unwrap().transpose(0, 2).unwrap(),
        base.select(1, 3).unwrap(),
        base.select(0, 2).unwrap().unsqueeze(1).unwrap(),
        base.narrow(0, 1, 1).unwrap().expand(&[3, 6, 5]).unwrap(),
        base.narrow(0, 0, 0).unwrap(),
    ];
    for view in views {
        let copy = Tensor::from_slice(&values(&view), view.shape(), &device()).unwrap();
        let other = random(view.shape(), 2);
        assert_eq!(combine(&view, &other), combine(&copy, &other), "{view:?}");
        assert_eq!(combine(&other, &view), combine(&other, &copy), "{view:?}");
    }
}

#[test]
fn contiguous_matches_a_walk_over_coordinates() {
    let base = random(&[3, 4, 5], 3);
    let flat = values(&base);
    let view = base.permute(&[2, 0, 1]).unwrap();
    let mut expected = Vec::new();
    for k in 0..5 {
        for i in 0..3 {
            for j in 0..4 {
                expected.push(flat[(i * 4 + j) * 5 + k]);
            }
        }
    }
    assert_eq!(values(&view), expected);
}

#[test]
fn broadcasting_repeats_the_right_dimension() {
    let x = Tensor::from_slice(&[1.0f64, 2.0, 3.0], &[3, 1], &device()).unwrap();
    let y = Tensor::from_slice(&[10.0f64, 20.0], &[2], &device()).unwrap();
    assert_eq!(values(&x.add(&y).unwrap()), [11.0, 21.0, 12.0, 22.0, 13.0, 23.0]);
    let scalar = Tensor::from_slice(&[5.0f64], &[], &device()).unwrap();
    assert_eq!(values(&x.mul(&scalar).unwrap()), [5.0, 10.0, 15.0]);
}

#[test]
fn reshape_copies_only_where_it_must() {
    let base = random(&[4, 6], 4);
    let view = base.reshape(&[2, 2, 6]).unwrap();
    assert!(view.shares_storage_with(&base));
    let copied = base.transpose(0, 1).unwrap().reshape(&[24]).unwrap();
    assert!(!copied.shares_storage_with(&base));
    assert_eq!(values(&copied), values(&base.transpose(0, 1).unwrap()));
}

#[test]
fn copies_write_through_views() {
    let base = Tensor::zeros(&[3, 4], DType::F32, &device()).unwrap();
    let ones = Tensor::ones(&[3], DType::F64, &device()).unwrap();
    base.select(1, 2).unwrap().copy_(&ones).unwrap();
    assert_eq!(values(&base), [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    // A source that overlaps the target in another layout is read completely before it is written.
    let square = Tensor::arange(9, 0.0, 1.0, DType::F32, &device()).unwrap().reshape(&[3, 3]).unwrap();
    square.copy_(&square.transpose(0, 1).unwrap()).unwrap();
    assert_eq!(values(&square), [0.0, 3.0, 6.0, 1.0, 4.0, 7.0, 2.0, 5.0, 8.0]);
}

#[test]
fn gradients_flow_through_views() {
    let x = random(&[3, 4], 5);
    let weight = random(&[4, 3], 6);
    check_gradient(&x, |x| x.transpose(0, 1).unwrap().mul(&weight).unwrap());
    let weight = random(&[3, 2], 7);
    check_gradient(&x, |x| x.narrow(1, 1, 2).unwrap().mul(&weight).unwrap());
    check_gradient(&x, |x| {
        x.narrow(1, 0, 2).unwrap().add(&x.narrow(1, 2, 2).unwrap()).unwrap().mul(&weight).unwrap()
    });
    let weight = random(&[2, 3, 4], 8);
    check_gradient(&x, |x| x.expand(&[2, 3, 4]).unwrap().mul(&weight).unwrap());
    let weight = random(&[12], 9);
    check_gradient(&x, |x| x.reshape(&[12]).unwrap().mul(&weight).unwrap());
    check_gradient(&x, |x| x.transpose(0, 1).unwrap().reshape(&[12]).unwrap().mul(&weight).unwrap());
    let weight = random(&[4], 10);
    check_gradient(&x, |x| x.select(0, 1).unwrap().mul(&weight).unwrap());
}

#[test]
fn gradients_are_summed_over_broadcast_dimensions() {
    let other = random(&[2, 3, 4], 11);
    for shape in [&[4][..], &[3, 1], &[2, 1, 4], &[1, 1, 1], &[]] {
        let x = random(shape, 12);
        check_gradient(&x, |x| x.mul(&other).unwrap());
        check_gradient(&x, |x| other.add(x).unwrap());
    }
}

#[test]
fn conversions_round_and_saturate_or_wrap() {
    let x = Tensor::from_slice(&[-1.5f64, 0.5, 300.7, f64::NAN, f64::INFINITY], &[5], &device()).unwrap();
    assert_eq!(x.to_dtype(DType::I32).unwrap().to_vec::<i32>().unwrap(), [-1, 0, 300, 0, i32::MAX]);
    // Those to 8 and 16 bits go through wider integers, as in PyTorch.
    assert_eq!(x.to_dtype(DType::U8).unwrap().to_vec::<u8>().unwrap(), [255, 0, 44, 0, 255]);
    assert_eq!(x.to_dtype(DType::I8).unwrap().to_vec::<i8>().unwrap(), [-1, 0, 44, 0, -1]);
    let wide = x.mul_scalar(200.0).unwrap().to_dtype(DType::F32).unwrap();
    assert_eq!(wide.to_dtype(DType::I16).unwrap().to_vec::<i16>().unwrap(), [-300, 100, -5396, 0, -1]);
    assert_eq!(x.to_dtype(DType::Bool).unwrap().to_vec::<u8>().unwrap(), [1, 1, 1, 1, 1]);
    let third = Tensor::from_slice(&[1.0f64 / 3.0], &[1], &device()).unwrap();
    assert_close(&values(&third.to_dtype(DType::F16).unwrap()), &[0.333_251_953_125], 0.0);
    assert_close(&values(&third.to_dtype(DType::Bf16).unwrap()), &[0.333_984_375], 0.0);
}

/// Checks strides against those of PyTorch 2.11 for the same expressions.
#[test]
fn elementwise_results_lie_as_what_they_are_computed_from() {
    let x = random(&[3, 4, 5], 1).permute(&[2, 0, 1]).unwrap();
    let row = random(&[4], 2);
    let flat = random(&[5, 3, 4], 3);
    let strides = |tensor: &Tensor| tensor.layout().strides().to_vec();
    assert_eq!(strides(&x), [1, 20, 5]);
    for kept in [
        x.exp().unwrap(),
        x.add(&row).unwrap(),
        row.add(&x).unwrap(),
        x.mul(&flat).unwrap(),
        x.gt_scalar(0.0).unwrap(),
    ] {
        assert_eq!(strides(&kept), [1, 20, 5]);
    }
    // The first tensor of the results' shape decides; gaps are removed.
    assert_eq!(strides(&flat.mul(&x).unwrap()), [12, 4, 1]);
    assert_eq!(strides(&x.narrow(2, 0, 2).unwrap().exp().unwrap()), [1, 10, 5]);
    assert_eq!(strides(&x.contiguous().unwrap()), [12, 4, 1]);
    let (wanted, found) = (x.contiguous().unwrap().exp().unwrap(), x.exp().unwrap());
    assert_eq!(values(&found), values(&wanted));
}

#[test]
fn powers_without_a_logarithm_are_powers() {
    let x = random(&[40], 2).abs().unwrap().add_scalar(0.1).unwrap();
    for exponent in [2.0, 3.0, 0.5, -0.5, -1.0, -2.0] {
        let expected: Vec<f64> = values(&x).iter().map(|x| x.powf(exponent)).collect();
        assert_close(&values(&x.pow_scalar(exponent).unwrap()), &expected, 1e-13);
        check_gradient(&x, |x| x.pow_scalar(exponent).unwrap());
    }
    let negative = x.mul_scalar(-1.0).unwrap();
    let cubes: Vec<f64> = values(&negative).iter().map(|x| x.powi(3)).collect();
    assert_close(&values(&negative.pow_scalar(3).unwrap()), &cubes, 1e-13);
}

#[test]
fn layouts_follow_each_other_and_former_ones_stay() {
    let x = Tensor::zeros(&[0], DType::F32, &device()).unwrap();
    let sized = |extent: usize| {
        x.resize_(&[extent as i64]).unwrap();
        x.shape()
    };
    let first = x.shape();
    let former: Vec<&[usize]> = (1..100).map(sized).collect();
    assert_eq!(first, [0]);
    assert!(former.iter().enumerate().all(|(place, shape)| shape == &[place + 1]));
    assert!(std::ptr::eq(sized(0), first));
    let [large, small] = [98, 2].map(sized);
    for _ in 0..1000 {
        let is_kept = std::ptr::eq(sized(98), large) && std::ptr::eq(sized(2), small);
        assert!(is_kept, "layouts that come again are kept once");
    }
    assert_eq!(x.shape(), [2]);
}
