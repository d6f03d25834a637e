//! Products of any ranks compared with explicit sums, and their gradients.

use thalweg_ir::DType;
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::Value;

use crate::norms::call;
use crate::support::{assert_close, check_gradient, random, values};

/// Returns the product of matrices over broadcast batches, written out.
fn model(a: &Tensor, b: &Tensor) -> Vec<f64> {
    if a.elements() == 0 {
        return Vec::new();
    }
    let (left, right) = (values(a), values(b));
    let as_matrix = |shape: &[usize], is_left: bool| match shape {
        [k] if is_left => vec![1, *k],
        [k] => vec![*k, 1],
        other => other.to_vec(),
    };
    let (a, b) = (as_matrix(a.shape(), true), as_matrix(b.shape(), false));
    let [m, k, n] = [a[a.len() - 2], a[a.len() - 1], b[b.len() - 1]];
    let (a_batch, b_batch) = (&a[..a.len() - 2], &b[..b.len() - 2]);
    let rank = a_batch.len().max(b_batch.len());
    let extent =
        |batch: &[usize], d: usize| if d + batch.len() < rank { 1 } else { batch[d + batch.len() - rank] };
    let batch: Vec<usize> = (0..rank).map(|d| extent(a_batch, d).max(extent(b_batch, d))).collect();
    let mut result = Vec::new();
    for index in 0..batch.iter().product() {
        let place = |of: &[usize]| {
            let (mut rest, mut stride, mut place) = (index, 1, 0);
            for d in (0..rank).rev() {
                let at = rest % batch[d];
                rest /= batch[d];
                if extent(of, d) > 1 {
                    place += at * stride;
                }
                stride *= extent(of, d);
            }
            place
        };
        let (x, y) = (&left[place(a_batch) * m * k..], &right[place(b_batch) * k * n..]);
        for i in 0..m {
            for j in 0..n {
                result.push((0..k).map(|l| x[i * k + l] * y[l * n + j]).sum());
            }
        }
    }
    result
}

#[test]
fn matmul_takes_any_ranks() {
    let cases: [(&[usize], &[usize], &[usize]); 11] = [
        (&[3], &[3], &[]),
        (&[2, 3], &[3], &[2]),
        (&[3], &[3, 4], &[4]),
        (&[2, 3], &[3, 4], &[2, 4]),
        (&[5, 2, 3], &[3], &[5, 2]),
        (&[3], &[5, 3, 2], &[5, 2]),
        (&[5, 2, 3], &[3, 4], &[5, 2, 4]),
        (&[2, 3], &[5, 3, 4], &[5, 2, 4]),
        (&[2, 1, 2, 3], &[4, 3, 2], &[2, 4, 2, 2]),
        (&[1, 2, 3], &[2, 2, 3, 1], &[2, 2, 2, 1]),
        (&[0, 2, 3], &[3, 4], &[0, 2, 4]),
    ];
    for (seed, (left, right, shape)) in cases.into_iter().enumerate() {
        let (a, b) = (random(left, seed as u64), random(right, 50 + seed as u64));
        let result = a.matmul(&b).unwrap();
        assert_eq!(result.shape(), shape, "{left:?} {right:?}");
        assert_close(&values(&result), &model(&a, &b), 1e-12);
        check_gradient(&a, |a| a.matmul(&b).unwrap());
        check_gradient(&b, |b| a.matmul(b).unwrap());
    }
}

#[test]
fn sums_of_a_product_and_a_tensor() {
    let (a, b, c) = (random(&[2, 3], 1), random(&[3, 4], 2), random(&[4], 3));
    let expected: Vec<f64> =
        model(&a, &b).iter().enumerate().map(|(at, product)| product + values(&c)[at % 4]).collect();
    assert_close(&values(&c.addmm(&a, &b).unwrap()), &expected, 1e-12);
    check_gradient(&c, |c| c.addmm(&a, &b).unwrap());
    let weight = random(&[4, 3], 4);
    let rows = random(&[2, 2, 3], 5);
    let result = rows.linear(&weight, Some(&c)).unwrap();
    let turned = weight.transpose(0, 1).unwrap();
    assert_close(&values(&result), &values(&rows.matmul(&turned).unwrap().add(&c).unwrap()), 1e-12);
    check_gradient(&weight, |weight| rows.linear(weight, Some(&c)).unwrap());
    assert_close(&values(&random(&[2], 6).outer(&c).unwrap()), &model_outer(&random(&[2], 6), &c), 1e-12);
}

#[test]
fn einsum_sums_products_over_labels() {
    let (a, b, c) = (random(&[2, 3, 4], 1), random(&[4, 3], 2), random(&[3], 3));
    let einsum = |equation: &str, tensors: &[&Tensor]| {
        let list = tensors.iter().map(|&tensor| tensor.clone()).collect();
        call("einsum", &[Value::Str(equation.into()), Value::Tensors(list)]).remove(0)
    };
    let (x, y, z) = (values(&a), values(&b), values(&c));
    let mut expected = vec![0.0; 2];
    for (i, j, k) in (0..24).map(|at| (at / 12, at / 4 % 3, at % 4)) {
        expected[i] += x[at(&[2, 3, 4], &[i, j, k])] * y[k * 3 + j] * z[j];
    }
    assert_close(&values(&einsum("ijk,kj,j->i", &[&a, &b, &c])), &expected, 1e-12);
    assert_close(&values(&einsum("...k,kj", &[&a, &b])), &model(&a, &b), 1e-12);
    assert_eq!(values(&einsum("ij->ji", &[&b])), values(&b.transpose(0, 1).unwrap().contiguous().unwrap()));
    check_gradient(&a, |a| einsum("ijk,kj,j->i", &[a, &b, &c]));
    check_gradient(&b, |b| einsum("ijk,kl->lji", &[&a, b]).square().unwrap());
}

fn at(shape: &[usize], place: &[usize]) -> usize {
    shape.iter().zip(place).fold(0, |index, (extent, at)| index * extent + at)
}

fn model_outer(a: &Tensor, b: &Tensor) -> Vec<f64> {
    values(a).iter().flat_map(|x| values(b).into_iter().map(move |y| x * y)).collect()
}

#[test]
fn euclidean_distances_are_those_of_the_differences() {
    let (x, y) = (random(&[2, 3, 4], 1), random(&[2, 5, 4], 2));
    let distances = values(&x.euclidean_dist(&y).unwrap());
    let (a, b) = (values(&x), values(&y));
    for (index, distance) in distances.iter().enumerate() {
        let (batch, row, column) = (index / 15, index / 5 % 3, index % 5);
        let square = |at: usize| (a[(batch * 3 + row) * 4 + at] - b[(batch * 5 + column) * 4 + at]).powi(2);
        let expected = (0..4).map(square).sum::<f64>().sqrt();
        assert!((distance - expected).abs() < 1e-6, "{index}: {distance}, not {expected}");
    }
    check_gradient(&x, |x| x.euclidean_dist(&y).unwrap());
}

#[test]
fn shapes_that_do_not_fit_are_refused_in_pytorchs_words() {
    let (a, b) = (random(&[2, 3], 1), random(&[4, 5], 2));
    let says = |result: thalweg_runtime::Result<Tensor>, words: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    says(a.mm(&b), "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)");
    says(a.mm(&random(&[3], 3)), "mat2 must be a matrix");
    says(a.bmm(&b), "batch1 must be a 3D tensor");
    says(a.mv(&random(&[2], 3)), "size mismatch, got input (2), mat (2x3), vec (2)");
    says(a.dot(&b), "1D tensors expected, but got 2D and 2D tensors");
    says(
        a.matmul(&random(&[], 3)),
        "both arguments to matmul need to be at least 1D, but they are 2D and 0D",
    );
    says(a.matmul(&b.to_dtype(DType::F32).unwrap()), "expected m1 and m2 to have the same dtype");
}
