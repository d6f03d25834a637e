//! Products, truth values, variances, norms: values against loops in f64, gradients against finite differences.

use thalweg_ir::DType;
use thalweg_tensor::Tensor;

use crate::support::{assert_close, check_gradient, random, tensor, values};

/// Returns the rows of a tensor (a, n, b) along its middle dimension.
fn rows(x: &Tensor) -> Vec<Vec<f64>> {
    let (all, &[a, n, b]) = (values(x), x.shape()) else { panic!("three dimensions") };
    let row = |row: usize| (0..n).map(|i| all[(row / b * n + i) * b + row % b]).collect();
    (0..a * b).map(row).collect()
}

/// Compares a reduction over the middle dimension with a function of a row, and its gradient with finite differences.
fn check(reduction: impl Fn(&Tensor) -> Tensor, expected: impl Fn(&[f64]) -> f64) {
    for shape in [[2, 5, 3], [1, 70, 2], [3, 1, 2]] {
        let x = random(&shape, 7);
        let list: Vec<f64> = rows(&x).iter().map(|row| expected(row)).collect();
        assert_close(&values(&reduction(&x)), &list, 1e-9);
        check_gradient(&x, &reduction);
    }
}

fn variance(row: &[f64], correction: f64) -> f64 {
    let mean = row.iter().sum::<f64>() / row.len() as f64;
    row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (row.len() as f64 - correction)
}

#[test]
fn reductions_agree_with_loops() {
    check(|x| x.prod_dim(1, false).unwrap(), |row| row.iter().product());
    check(|x| x.var(&[1], 0.0, false).unwrap(), |row| variance(row, 0.0));
    check(|x| x.var_mean(&[-2], 0.0, true).unwrap()[0].clone(), |row| variance(row, 0.0));
    check(|x| x.logsumexp(&[1], false).unwrap(), |row| row.iter().map(|x| x.exp()).sum::<f64>().ln());
    check(|x| x.max_dim(1, false).unwrap()[0].clone(), |row| row.iter().copied().fold(f64::MIN, f64::max));
    check(|x| x.min_dim(-2, true).unwrap()[0].clone(), |row| row.iter().copied().fold(f64::MAX, f64::min));
    for p in [1.0, 1.5, 2.0, 3.5, f64::INFINITY, f64::NEG_INFINITY] {
        check(
            |x| x.vector_norm(p, &[1], false).unwrap(),
            |row| match p {
                f64::INFINITY => row.iter().fold(0.0, |all, x| x.abs().max(all)),
                f64::NEG_INFINITY => row.iter().fold(f64::MAX, |all, x| x.abs().min(all)),
                _ => row.iter().map(|x| x.abs().powf(p)).sum::<f64>().powf(1.0 / p),
            },
        );
    }
}

#[test]
fn deviations_and_norms_of_equal_numbers_have_no_slope() {
    let x = tensor(&[0.0; 4], &[4], DType::F64).requires_grad_().unwrap();
    x.std(&[], 1.0, false).and_then(|std| std.backward()).unwrap();
    assert_eq!(values(&x.grad().unwrap()), [0.0; 4]);
    x.zero_grad();
    x.vector_norm(2.0, &[], false).and_then(|norm| norm.backward()).unwrap();
    assert_eq!(values(&x.grad().unwrap()), [0.0; 4]);
    // A single number has no variance with Bessel's correction.
    assert!(values(&tensor(&[3.0], &[1], DType::F32).var(&[], 1.0, false).unwrap())[0].is_nan());
}

#[test]
fn truth_values_and_counts() {
    let x = tensor(&[0.0, 2.0, f64::NAN, 0.0, 0.0, 0.0], &[2, 3], DType::F32);
    assert_eq!(values(&x.any_dim(1, false).unwrap()), [1.0, 0.0]);
    assert_eq!(values(&x.all_dim(0, true).unwrap()), [0.0, 0.0, 0.0]);
    assert_eq!(values(&x.count_nonzero(&[1]).unwrap()), [2.0, 0.0]);
    assert_eq!(values(&x.nansum(&[1], false).unwrap()), [2.0, 0.0]);
    assert_eq!(values(&x.nanmean(&[1], false).unwrap()), [1.0, 0.0]);
    let empty = tensor(&[], &[2, 0], DType::I64);
    assert_eq!(values(&empty.any_dim(1, false).unwrap()), [0.0, 0.0]);
    assert_eq!(values(&empty.all_dim(1, false).unwrap()), [1.0, 1.0]);
    assert_eq!(values(&empty.prod().unwrap()), [1.0]);
    // For bytes the result is a byte, as in PyTorch.
    assert_eq!(tensor(&[1.0], &[1], DType::U8).any().unwrap().dtype(), DType::U8);
    assert_eq!(x.any().unwrap().dtype(), DType::Bool);
}

#[test]
fn extrema_name_the_first_of_equals_and_nan_wins() {
    let x = tensor(&[1.0, 3.0, 3.0, 2.0, f64::NAN, f64::NAN], &[2, 3], DType::F64);
    let [greatest, place] = x.max_dim(1, false).unwrap();
    assert_close(&values(&greatest), &[3.0, f64::NAN], 0.0);
    assert_eq!(values(&place), [1.0, 1.0]);
    let [_, place] = x.min_dim(0, false).unwrap();
    assert_eq!(values(&place), [0.0, 1.0, 1.0]);
    assert_eq!(values(&x.argmin(1).unwrap()), [0.0, 1.0]);
    let truths = tensor(&[0.0, 1.0, 1.0], &[3], DType::Bool);
    assert_eq!(values(&truths.max_dim(0, false).unwrap()[1]), [1.0]);
    assert_eq!(truths.min().unwrap().dtype(), DType::Bool);
}
