//! Decompositions: products of the factors restore the matrix, gradients agree with finite differences, and matrices that cannot
//! be decomposed are refused.

use thalweg_ir::DType;
use thalweg_tensor::Tensor;
use thalweg_tensor::autograd::gradients;

use crate::support::device;

/// Returns numbers without a pattern, from a linear congruence.
fn matrices(shape: &[usize], seed: u64) -> Tensor {
    let mut state = seed;
    let numbers: Vec<f64> = (0..shape.iter().product())
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f64 / f64::from(1 << 23) - 1.0
        })
        .collect();
    Tensor::from_slice(&numbers, shape, &device()).unwrap()
}

fn transposed(x: &Tensor) -> Tensor {
    x.transpose(-2, -1).unwrap()
}

/// Returns the greatest difference of two tensors' elements.
fn distance(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.shape(), b.shape());
    let (a, b): (Vec<f64>, Vec<f64>) = (a.to_vec().unwrap(), b.to_vec().unwrap());
    a.iter()
        .zip(&b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |worst, next| if next > worst { next } else { worst })
}

fn identity(n: usize, batch: usize) -> Tensor {
    let eye = Tensor::ones(&[n], DType::F64, &device()).unwrap().diag_embed(0, 0, 1).unwrap();
    eye.unsqueeze(0).unwrap().expand(&[batch, n, n]).unwrap().contiguous().unwrap()
}

#[test]
fn factors_give_the_matrices_back() {
    for [rows, columns] in [[5, 5], [7, 4], [3, 6], [40, 33], [1, 1]] {
        let a = matrices(&[2, rows, columns], (rows * 100 + columns) as u64);
        let least = rows.min(columns);
        let [p, l, u] = a.linalg_lu().unwrap();
        assert!(distance(&p.matmul(&l).unwrap().matmul(&u).unwrap(), &a) < 1e-13);
        for mode in ["reduced", "complete"] {
            let [q, r] = a.linalg_qr(mode).unwrap();
            assert!(distance(&q.matmul(&r).unwrap(), &a) < 1e-13);
            let width = q.shape()[2];
            assert_eq!(width, if mode == "complete" { rows } else { least });
            assert!(distance(&transposed(&q).matmul(&q).unwrap(), &identity(width, 2)) < 1e-13);
        }
        for is_full in [false, true] {
            let [u, s, vh] = a.linalg_svd(is_full).unwrap();
            let scaled = u.narrow(2, 0, least).unwrap().mul(&s.unsqueeze(1).unwrap()).unwrap();
            assert!(distance(&scaled.matmul(&vh.narrow(1, 0, least).unwrap()).unwrap(), &a) < 1e-12);
            let width = u.shape()[2];
            assert!(distance(&transposed(&u).matmul(&u).unwrap(), &identity(width, 2)) < 1e-12);
            let ordered: Vec<f64> = s.to_vec().unwrap();
            assert!(
                ordered.chunks(least).all(|row| row.is_sorted_by(|a, b| a >= b) && row[least - 1] >= 0.0)
            );
        }
    }
}

#[test]
fn symmetric_matrices_are_made_of_their_factors_and_vectors() {
    for n in [1, 2, 6, 37] {
        let a = matrices(&[2, n, n], n as u64);
        let symmetric = a.add(&transposed(&a)).unwrap();
        let [values, vectors] = symmetric.linalg_eigh().unwrap();
        let scaled = vectors.mul(&values.unsqueeze(1).unwrap()).unwrap();
        assert!(distance(&scaled.matmul(&transposed(&vectors)).unwrap(), &symmetric) < 1e-12);
        let positive = a.matmul(&transposed(&a)).unwrap().add(&identity(n, 2)).unwrap();
        let factor = positive.linalg_cholesky().unwrap();
        assert!(distance(&factor.matmul(&transposed(&factor)).unwrap(), &positive) < 1e-12);
        let inverse = positive.linalg_inv().unwrap();
        assert!(distance(&inverse.matmul(&positive).unwrap(), &identity(n, 2)) < 1e-11);
    }
}

#[test]
fn columns_of_zeros_have_singular_vectors() {
    let a = Tensor::zeros(&[1, 4, 3], DType::F64, &device()).unwrap();
    let [u, s, _] = a.linalg_svd(false).unwrap();
    assert_eq!(s.to_vec::<f64>().unwrap(), [0.0; 3]);
    assert!(distance(&transposed(&u).matmul(&u).unwrap(), &identity(3, 1)) < 1e-14);
}

/// Returns the gradient of a number against differences of that number.
fn check_gradient(name: &str, x: &Tensor, number: impl Fn(&Tensor) -> Tensor) {
    let leaf = x.detach().requires_grad_().unwrap();
    let result = number(&leaf);
    let one = Tensor::ones(&[], DType::F64, &device()).unwrap();
    let found = gradients(&[result], &[Some(one)], &[leaf]).unwrap().remove(0);
    let found = found.unwrap_or_else(|| panic!("{name} has a gradient"));
    let found: Vec<f64> = found.to_vec().unwrap();
    let start: Vec<f64> = x.to_vec().unwrap();
    let step = 1e-5;
    for (place, &found) in found.iter().enumerate() {
        let at = |by: f64| {
            let mut moved = start.clone();
            moved[place] += by;
            number(&Tensor::from_slice(&moved, x.shape(), &device()).unwrap()).item::<f64>().unwrap()
        };
        let slope = (at(step) - at(-step)) / (2.0 * step);
        assert!((found - slope).abs() < 1e-5 * slope.abs().max(1.0), "{name}: {found}, not {slope}");
    }
}

#[test]
fn gradients_agree_with_differences() {
    let square = matrices(&[2, 4, 4], 17);
    let weights = |x: &Tensor| matrices(x.shape(), 5).mul(x).unwrap().sum(&[], false).unwrap();
    for x in [square.clone(), matrices(&[1, 5, 3], 3), matrices(&[1, 3, 5], 4)] {
        check_gradient("lu", &x, |x| {
            let [_, l, u] = x.linalg_lu().unwrap();
            weights(&l).add(&weights(&u)).unwrap()
        });
        check_gradient("qr", &x, |x| {
            let [q, r] = x.linalg_qr("reduced").unwrap();
            weights(&q).add(&weights(&r)).unwrap()
        });
        check_gradient("svd", &x, |x| {
            let [u, s, vh] = x.linalg_svd(false).unwrap();
            // The signs of vectors are free, those of their products are not.
            let product = u.matmul(&vh).unwrap();
            weights(&product).add(&weights(&s)).unwrap()
        });
    }
    check_gradient("solve", &square, |x| weights(&x.linalg_solve(&matrices(&[2, 4, 3], 9)).unwrap()));
    check_gradient("det", &square, |x| weights(&x.linalg_det().unwrap()));
    check_gradient("slogdet", &square, |x| weights(&x.linalg_slogdet().unwrap()[1]));
    let symmetric = |x: &Tensor| x.add(&transposed(x)).unwrap();
    check_gradient("eigh", &square, |x| {
        let [values, vectors] = symmetric(x).linalg_eigh().unwrap();
        weights(&values).add(&weights(&vectors.mul(&vectors).unwrap())).unwrap()
    });
    check_gradient("cholesky", &square, |x| {
        weights(&x.matmul(&transposed(x)).unwrap().add(&identity(4, 2)).unwrap().linalg_cholesky().unwrap())
    });
}

#[test]
fn what_cannot_be_decomposed_is_refused() {
    let singular = Tensor::from_slice(&[1.0f64, 2.0, 2.0, 4.0], &[2, 2], &device()).unwrap();
    let message = singular.linalg_inv().unwrap_err().to_string();
    assert!(message.contains("the input matrix is singular"), "{message}");
    let message = singular.neg().unwrap().linalg_cholesky().unwrap_err().to_string();
    assert!(message.contains("order 1 is not positive-definite"), "{message}");
    let [_, info] = singular.neg().unwrap().linalg_cholesky_ex().unwrap();
    assert_eq!(info.item::<i32>().unwrap(), 1);
    assert!(matrices(&[2, 3], 1).linalg_inv().unwrap_err().is_invalid_argument());
    let half = singular.to_dtype(DType::F16).unwrap();
    assert!(half.linalg_det().unwrap_err().to_string().contains("Low precision"));
}
