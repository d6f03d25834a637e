//! Cumulative sums, products and extrema, and sorting, compared with loops; chunks of a row, adjacent rows, and their gradients.

use thalweg_ir::DType;
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::Value;

use crate::norms::call;
use crate::support::{assert_close, check_gradient, random, tensor, values};

/// Applies a function to each row of a tensor (a, n, b) along its middle dimension, and returns the tensor of the results.
fn along(x: &Tensor, f: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let (all, &[a, n, b]) = (values(x), x.shape()) else { panic!("three dimensions") };
    let mut result = vec![0.0; all.len()];
    for row in 0..a * b {
        let place = |i: usize| (row / b * n + i) * b + row % b;
        let points: Vec<f64> = (0..n).map(|i| all[place(i)]).collect();
        f(&points).into_iter().enumerate().for_each(|(i, value)| result[place(i)] = value);
    }
    result
}

fn running(row: &[f64], combine: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let mut sum = None;
    row.iter().map(|&x| *sum.insert(sum.map_or(x, |sum| combine(sum, x)))).collect()
}

#[test]
fn running_sums_products_and_extrema() {
    for shape in [
        [2, 5, 3],
        [1, 700, 2],
        [3, 1, 1],
        [2, 0, 3],
        [2, 9000, 1],
        [600, 2100, 1],
        [4097, 264, 1],
        [2, 300, 40],
    ] {
        let x = random(&shape, 3);
        assert_close(&values(&x.cumsum(1).unwrap()), &along(&x, |row| running(row, |a, b| a + b)), 1e-9);
        assert_close(&values(&x.cumprod(1).unwrap()), &along(&x, |row| running(row, |a, b| a * b)), 1e-9);
        let expected = along(&x, |row| running(row, |a, b| (a.exp() + b.exp()).ln()));
        assert_close(&values(&x.logcumsumexp(1).unwrap()), &expected, 1e-9);
        assert_close(&values(&x.cummax(-2).unwrap()[0]), &along(&x, |row| running(row, f64::max)), 0.0);
        assert_close(&values(&x.cummin(1).unwrap()[0]), &along(&x, |row| running(row, f64::min)), 0.0);
    }
    let integers = Tensor::from_slice(&[3i32, -4, 5], &[3], random(&[1], 1).device()).unwrap();
    assert_eq!(values(&integers.cumsum(0).unwrap()), [3.0, -1.0, 4.0]);
    assert_eq!(integers.cumprod(0).unwrap().dtype(), DType::I64);
    // The last of equal elements, and NaN persists.
    let x = tensor(&[1.0, 2.0, 2.0, f64::NAN, 3.0], &[5], DType::F32);
    let [greatest, places] = x.cummax(0).unwrap();
    assert_close(&values(&greatest), &[1.0, 2.0, 2.0, f64::NAN, f64::NAN], 0.0);
    assert_eq!(values(&places), [0.0, 1.0, 2.0, 3.0, 3.0]);
}

#[test]
fn linear_recurrences_in_both_directions() {
    for shape in [[2, 5, 3], [1, 700, 2], [3, 1, 1], [2, 0, 3], [2, 8200, 1], [4100, 16, 1]] {
        let (x, factors) = (random(&shape, 6), random(&shape, 7));
        let (points, rates) = (values(&x), values(&factors));
        let mut expected = vec![vec![0.0; x.elements()]; 2];
        for (a, b) in (0..shape[0]).flat_map(|a| (0..shape[2]).map(move |b| (a, b))) {
            let (mut y, mut z) = (0.0, 0.0);
            for n in 0..shape[1] {
                let place = |n: usize| (a * shape[1] + n) * shape[2] + b;
                let (first, last) = (place(n), place(shape[1] - 1 - n));
                y = points[first] + rates[first] * y;
                z = points[last] + rates[last] * z;
                (expected[0][first], expected[1][last]) = (y, z);
            }
        }
        assert_close(&values(&x.linear_recurrence(&factors, 1).unwrap()), &expected[0], 1e-9);
        assert_close(&values(&reversed(&x, &factors)), &expected[1], 1e-9);
    }
    let (x, factors, weights) = (random(&[2, 5, 3], 4), random(&[2, 5, 3], 5), random(&[2, 5, 3], 6));
    check_gradient(&x, |x| x.linear_recurrence(&factors, -2).unwrap().mul(&weights).unwrap());
    check_gradient(&factors, |factors| x.linear_recurrence(factors, 1).unwrap().mul(&weights).unwrap());
    check_gradient(&x, |x| reversed(x, &factors).mul(&weights).unwrap());
    check_gradient(&factors, |factors| reversed(&x, factors).mul(&weights).unwrap());
    assert!(x.linear_recurrence(&random(&[2, 5, 1], 1), 1).unwrap_err().is_invalid_argument());
    let number = tensor(&[3.0], &[], DType::F32);
    assert_eq!(values(&number.linear_recurrence(&number, 0).unwrap()), [3.0]);
    let integers = tensor(&[3.0], &[1], DType::F32).to_dtype(DType::I64).unwrap();
    assert!(integers.linear_recurrence(&integers, 0).unwrap_err().is_invalid_argument());
}

fn reversed(x: &Tensor, factors: &Tensor) -> Tensor {
    let arguments = [x.into(), factors.into(), 1i64.into(), true.into()];
    let operator = thalweg_tensor::dispatch::find_operator("thalweg::linear_recurrence").unwrap();
    operator.call(&arguments, None, thalweg_runtime::Label::here("linear_recurrence")).unwrap().remove(0)
}

#[test]
fn gradients_of_running_results() {
    let x = random(&[2, 5, 3], 4);
    let weights = random(&[2, 5, 3], 5);
    check_gradient(&x, |x| x.cumsum(1).unwrap().mul(&weights).unwrap());
    check_gradient(&x, |x| x.cumprod(1).unwrap().mul(&weights).unwrap());
    check_gradient(&x, |x| x.logcumsumexp(-2).unwrap().mul(&weights).unwrap());
    check_gradient(&x, |x| x.cummax(1).unwrap()[0].mul(&weights).unwrap());
    check_gradient(&x, |x| x.cummin(2).unwrap()[0].mul(&weights).unwrap());
    // Zeros among the factors.
    let x = tensor(&[2.0, 0.0, 3.0, 0.0, 5.0], &[5], DType::F64).requires_grad_().unwrap();
    x.cumprod(0).and_then(|y| y.sum(&[], false)).and_then(|sum| sum.backward()).unwrap();
    // 1 + x1 (1 + …) = 1; x0 (1 + x2) = 8; the rest is after a zero.
    assert_eq!(values(&x.grad().unwrap()), [1.0, 8.0, 0.0, 0.0, 0.0]);
}

#[test]
fn sorting_is_stable_and_puts_nan_last() {
    for shape in [[2, 5, 3], [1, 700, 2], [2, 1, 1], [2, 0, 3]] {
        // Few different numbers, so that there are equal ones.
        let x = random(&shape, 6).mul_scalar(4.0).and_then(|x| x.round()).unwrap();
        for descending in [false, true] {
            let order = |row: &[f64]| {
                let mut order: Vec<usize> = (0..row.len()).collect();
                let compare = |a: &usize, b: &usize| row[*a].total_cmp(&row[*b]);
                order.sort_by(|a, b| if descending { compare(b, a) } else { compare(a, b) });
                order
            };
            // Negative zeros would be below zeros here, but are equal to them in the sort.
            let x = x.add_scalar(0.0).unwrap();
            let [sorted, places] = x.sort(1, descending).unwrap();
            assert_eq!(values(&places), along(&x, |row| order(row).into_iter().map(|i| i as f64).collect()));
            assert_eq!(values(&sorted), along(&x, |row| order(row).into_iter().map(|i| row[i]).collect()));
        }
    }
    let (x, weights) = (random(&[2, 5, 3], 8), random(&[2, 5, 3], 9));
    check_gradient(&x, |x| x.sort(1, true).unwrap()[0].mul(&weights).unwrap());
    let x = tensor(&[2.0, f64::NAN, -1.0, f64::INFINITY], &[4], DType::F16);
    assert_eq!(values(&x.argsort(0, false).unwrap()), [2.0, 0.0, 3.0, 1.0]);
    assert_eq!(values(&x.argsort(-1, true).unwrap()), [1.0, 3.0, 0.0, 2.0]);
    let top = call("topk", &[Value::Tensor(tensor(&[3.0, 1.0, 4.0], &[3], DType::I32)), Value::Int(2)]);
    assert_eq!((values(&top[0]), values(&top[1])), (vec![4.0, 3.0], vec![2.0, 0.0]));
    let kth = call("kthvalue", &[Value::Tensor(tensor(&[3.0, 1.0, 4.0], &[3], DType::F32)), Value::Int(2)]);
    assert_eq!((values(&kth[0]), values(&kth[1])), (vec![3.0], vec![0.0]));
    assert!(values(&call("median", &[Value::Tensor(x)])[0])[0].is_nan());
}
