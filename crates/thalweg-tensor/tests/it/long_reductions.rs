//! Reductions of few long rows, which run in stages, and their gradients, compared with formulas in f64.

use thalweg_ir::DType;
use thalweg_runtime::Device;
use thalweg_tensor::Tensor;
use thalweg_tensor::autograd::{BackwardOptions, gradients, gradients_with};

use crate::support::{assert_close, device, random, tensor, values};

/// Few long rows, of complete parts and a remainder, with points in one stride and in several; and columns.
const LONG: &[(&[usize], &[i64])] = &[
    (&[1 << 17], &[]),
    (&[3, 70_001], &[1]),
    (&[70_001, 3], &[0]),
    (&[40, 3, 41, 50], &[0, 2, 3]),
    (&[2, 300_000, 2], &[1]),
    (&[300, 2, 300], &[0, 2]),
    (&[16_500, 260], &[0]),
];

/// Returns the rows of a tensor that is reduced over dimensions.
fn rows(shape: &[usize], dimensions: &[i64], values: &[f64]) -> Vec<Vec<f64>> {
    let is_reduced = |d: usize| dimensions.is_empty() || dimensions.contains(&(d as i64));
    let count: usize = (0..shape.len()).filter(|&d| !is_reduced(d)).map(|d| shape[d]).product();
    let mut rows = vec![Vec::new(); count];
    for (index, &value) in values.iter().enumerate() {
        rows[row_of(shape, index, &is_reduced)].push(value);
    }
    rows
}

fn row_of(shape: &[usize], index: usize, is_reduced: &dyn Fn(usize) -> bool) -> usize {
    let (mut rest, mut step, mut row) = (index, 1, 0);
    for d in (0..shape.len()).rev() {
        if !is_reduced(d) {
            row += rest % shape[d] * step;
            step *= shape[d];
        }
        rest /= shape[d];
    }
    row
}

/// Returns the tensor that combines a row's value with each element's.
fn at_points(
    shape: &[usize],
    dimensions: &[i64],
    elements: &[f64],
    of_row: &[f64],
    combine: impl Fn(f64, f64) -> f64,
) -> Vec<f64> {
    let is_reduced = |d: usize| dimensions.is_empty() || dimensions.contains(&(d as i64));
    let at = |(index, &x): (usize, &f64)| combine(x, of_row[row_of(shape, index, &is_reduced)]);
    elements.iter().enumerate().map(at).collect()
}

fn mean(row: &[f64]) -> f64 {
    row.iter().sum::<f64>() / row.len() as f64
}

fn variance(row: &[f64]) -> f64 {
    let mean = mean(row);
    row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (row.len() as f64 - 1.0)
}

fn norm(row: &[f64], p: f64) -> f64 {
    row.iter().map(|x| x.abs().powf(p)).sum::<f64>().powf(1.0 / p)
}

/// Returns the relative error of a long reduction that is rounded to a dtype.
fn bound(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => 6e-3,
        DType::F16 => 8e-4,
        DType::F32 => 2e-6,
        _ => 1e-11,
    }
}

/// Returns the dtypes in which a shape is tested: the first alone for millions of elements, since divisions into parts do not depend
/// on the dtype.
fn dtypes<'d>(shape: &[usize], all: &'d [DType]) -> &'d [DType] {
    if shape.iter().product::<usize>() > 1 << 21 { &all[..1] } else { all }
}

#[test]
fn variances_and_norms_of_long_rows_agree_with_formulas() {
    for (seed, &(shape, dimensions)) in LONG.iter().enumerate() {
        for &dtype in dtypes(shape, &[DType::F32, DType::F64, DType::Bf16, DType::F16]) {
            let x = random(shape, seed as u64).add_scalar(0.5).unwrap().to_dtype(dtype).unwrap();
            let rows = rows(shape, dimensions, &values(&x));
            let check = |found: Tensor, of: &dyn Fn(&[f64]) -> f64| {
                let expected: Vec<f64> = rows.iter().map(|row| of(row)).collect();
                assert_close(&values(&found), &expected, bound(dtype));
            };
            check(x.var(dimensions, 1, false).unwrap(), &variance);
            check(x.std(dimensions, 1, false).unwrap(), &|row| variance(row).sqrt());
            let [of_variance, of_mean] = x.var_mean(dimensions, 1, false).unwrap();
            check(of_variance, &variance);
            check(of_mean, &mean);
            if dtype.size_bytes() < 4 {
                continue;
            }
            for p in [1.0, 2.0, 3.0] {
                let found = x.vector_norm(p, dimensions, false).unwrap();
                let expected: Vec<f64> = rows.iter().map(|row| norm(row, p)).collect();
                let relative: Vec<f64> =
                    values(&found).iter().zip(&expected).map(|(found, exact)| found / exact).collect();
                assert_close(&relative, &vec![1.0; relative.len()], bound(dtype));
            }
            let greatest = |row: &[f64]| row.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
            check(x.vector_norm(f64::INFINITY, dimensions, false).unwrap(), &greatest);
            let least = |row: &[f64]| row.iter().fold(f64::INFINITY, |least: f64, x| least.min(x.abs()));
            check(x.vector_norm(f64::NEG_INFINITY, dimensions, false).unwrap(), &least);
            let count = |row: &[f64]| row.iter().filter(|&&x| x != 0.0).count() as f64;
            check(x.vector_norm(0.0, dimensions, false).unwrap(), &count);
            let logarithm = |row: &[f64]| row.iter().map(|x| x.exp()).sum::<f64>().ln();
            check(x.logsumexp(dimensions, false).unwrap(), &logarithm);
        }
    }
}

#[test]
fn variances_of_numbers_far_from_zero_keep_their_digits() {
    // Two-pass in f32 about the exact mean would leave six digits.
    let x = random(&[1 << 18], 3).add_scalar(1000.0).unwrap().to_dtype(DType::F32).unwrap();
    let exact = variance(&values(&x));
    let found = values(&x.var(&[], 1, false).unwrap())[0];
    assert!((found / exact - 1.0).abs() < 1e-5, "{found}, {exact}");
    // The first point, from which distances are counted, is 10,000 deviations away: the loss is the number of digits of a part's
    // number of points, at any distance.
    let mut numbers = values(&random(&[1 << 17], 4));
    numbers[0] = 1e4;
    let x = tensor(&numbers, &[1 << 17], DType::F32);
    let exact = variance(&values(&x));
    let found = values(&x.var(&[], 1, false).unwrap())[0];
    assert!((found / exact - 1.0).abs() < 1e-4, "{found}, {exact}");
}

#[test]
fn variances_of_what_is_not_finite_are_those_of_short_rows() {
    let count = 1 << 17;
    for (at, value) in [(0, f64::INFINITY), (5000, f64::INFINITY), (9, f64::NEG_INFINITY), (77_777, f64::NAN)]
    {
        let mut numbers = vec![1.0; count];
        numbers[at] = value;
        let [variance, mean] =
            tensor(&numbers, &[count], DType::F32).var_mean(&[], 1, false).unwrap().map(|x| values(&x)[0]);
        assert!(variance.is_nan(), "{variance} of {value} at {at}");
        assert!(mean == value || mean.is_nan() && value.is_nan(), "{mean} of {value} at {at}");
    }
    // Squares that overflow.
    let mut numbers = vec![1.0; count];
    numbers[70_000] = 1e30;
    let variance = values(&tensor(&numbers, &[count], DType::F32).var(&[], 1, false).unwrap())[0];
    assert_eq!(variance, f64::INFINITY);
}

/// Returns the gradient of a function of a tensor, whose results are weighted by numbers that differ.
fn gradient(x: &Tensor, weights: &[f64], function: impl Fn(&Tensor) -> Tensor) -> Vec<f64> {
    let leaf = x.detach().requires_grad_().unwrap();
    let result = function(&leaf);
    let weights = tensor(weights, result.shape(), result.dtype());
    result.mul(&weights).unwrap().sum(&[], false).unwrap().backward().unwrap();
    values(&leaf.grad().unwrap())
}

#[test]
fn gradients_over_long_rows_agree_with_formulas() {
    for (seed, &(shape, dimensions)) in LONG.iter().enumerate() {
        // Halves, so that equal elements share the gradient of a maximum.
        let x = random(shape, seed as u64).mul_scalar(2).unwrap().round().unwrap().mul_scalar(0.5).unwrap();
        let elements = values(&x);
        let rows = rows(shape, dimensions, &elements);
        let weights: Vec<f64> = (0..rows.len()).map(|row| 1.0 + row as f64).collect();
        let of_rows = |of: &dyn Fn(&[f64], f64) -> f64| -> Vec<f64> {
            rows.iter().zip(&weights).map(|(row, &weight)| of(row, weight)).collect()
        };
        let at = |of_row: &[f64], combine: &dyn Fn(f64, f64) -> f64| {
            at_points(shape, dimensions, &elements, of_row, combine)
        };
        let count = rows[0].len() as f64;
        let found = gradient(&x, &weights, |x| x.var(dimensions, 1, false).unwrap());
        let means = at(&of_rows(&|row, _| mean(row)), &|_, mean| mean);
        let scales = at(&of_rows(&|_, weight| 2.0 * weight / (count - 1.0)), &|_, scale| scale);
        let expected: Vec<f64> =
            elements.iter().zip(&means).zip(&scales).map(|((x, mean), scale)| (x - mean) * scale).collect();
        assert_close(&found, &expected, 1e-12);

        let found = gradient(&x, &weights, |x| x.vector_norm(2.0, dimensions, false).unwrap());
        assert_close(
            &found,
            &at(&of_rows(&|row, weight| weight / norm(row, 2.0)), &|x, scale| x * scale),
            1e-12,
        );

        let found = gradient(&x, &weights, |x| x.amax(dimensions, false).unwrap());
        let ties = |row: &[f64]| row.iter().filter(|&&x| x == 1.0).count() as f64;
        let expected =
            at(&of_rows(&|row, weight| weight / ties(row)), &|x, share| if x == 1.0 { share } else { 0.0 });
        assert_close(&found, &expected, 1e-12);

        let found = gradient(&x, &weights, |x| x.sum(dimensions, false).unwrap());
        assert_close(&found, &at(&weights, &|_, weight| weight), 0.0);
    }
}

#[test]
fn softmax_over_a_long_row_agrees_with_the_formula() {
    let x = random(&[2, 70_001], 5);
    let rows = rows(&[2, 70_001], &[1], &values(&x));
    let expected: Vec<f64> = rows
        .iter()
        .flat_map(|row| {
            let sum: f64 = row.iter().map(|x| x.exp()).sum();
            row.iter().map(move |x| x.exp() / sum)
        })
        .collect();
    let relative = |found: &Tensor| -> Vec<f64> {
        values(found).iter().zip(&expected).map(|(found, exact)| found / exact).collect()
    };
    assert_close(&relative(&x.softmax(-1).unwrap()), &vec![1.0; expected.len()], 1e-12);
    let single = x.to_dtype(DType::F32).unwrap();
    assert_close(&relative(&single.softmax(-1).unwrap()), &vec![1.0; expected.len()], 1e-5);
}

/// Lengths at which rows are kept by few threads, by two blocks per multiprocessor, in shared memory, or not at all; with and
/// without vector loads.
const KEPT: [usize; 6] = [8192, 16_384, 32_768, 50_304, 65_536, 32_770];

#[test]
fn rows_of_every_form_agree_with_those_in_f64() {
    for (seed, points) in KEPT.into_iter().enumerate() {
        let [x, gradient] = [0, 100].map(|more| random(&[3, points], seed as u64 + more));
        // The smallest number above 0 of 16 bits is 2⁻²⁴.
        for (dtype, relative, absolute) in
            [(DType::Bf16, 8e-3, 0.0), (DType::F16, 1e-3, 6e-8), (DType::F32, 2e-5, 0.0)]
        {
            let [x, gradient] = [&x, &gradient].map(|x| x.to_dtype(dtype).unwrap());
            let results = rows_and_gradients(&x, &gradient).into_iter();
            let [x, gradient] = [x, gradient].map(|x| x.to_dtype(DType::F64).unwrap());
            for (form, (found, exact)) in results.zip(rows_and_gradients(&x, &gradient)).enumerate() {
                let largest = exact.iter().fold(0.0f64, |most, x| most.max(x.abs()));
                let worst = found.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(
                    worst <= relative * largest + absolute,
                    "{points} points of {dtype}, form {form}: off by {worst}, of {largest}"
                );
            }
        }
    }
}

/// Returns softmax, its logarithm and the normalized rows, and then the gradient of each.
fn rows_and_gradients(x: &Tensor, gradient: &Tensor) -> Vec<Vec<f64>> {
    let x = x.detach().requires_grad_().unwrap();
    let rows = [x.softmax(-1).unwrap(), x.log_softmax(-1).unwrap(), normalized(&x)];
    let slope = |row: &Tensor| {
        let (row, gradient) = ([row.clone()], [Some(gradient.clone())]);
        let options = BackwardOptions { retain_graph: true, ..BackwardOptions::default() };
        gradients_with(&row, &gradient, std::slice::from_ref(&x), options).unwrap().remove(0).unwrap()
    };
    let slopes: Vec<Tensor> = rows.iter().map(slope).collect();
    rows.iter().chain(&slopes).map(values).collect()
}

/// Returns rows with mean 0 and variance 1.
fn normalized(x: &Tensor) -> Tensor {
    let points = x.shape()[1];
    let [weight, bias] =
        [1.0, 0.0].map(|value| Tensor::full(&[points], value, x.dtype(), x.device()).unwrap());
    thalweg_nn::functional::layer_norm(x, &[points], Some(&weight), Some(&bias), 1e-5).unwrap()
}

#[test]
fn gradients_of_gradients_over_a_long_row_agree_with_the_formula() {
    // Of Σ (d var / dx)², which is 4 var / (n − 1), the gradient is 8 (x − mean) / (n − 1)².
    let count = 70_001;
    let x = random(&[count], 6).requires_grad_().unwrap();
    let result = x.var(&[], 1, false).unwrap();
    let first = {
        let options = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
        gradients_with(&[result], &[None], std::slice::from_ref(&x), options).unwrap().remove(0).unwrap()
    };
    first.square().unwrap().sum(&[], false).unwrap().backward().unwrap();
    let elements = values(&x);
    let mean = mean(&elements);
    let scale = 8.0 / (count as f64 - 1.0).powi(2);
    let relative: Vec<f64> = values(&x.grad().unwrap())
        .iter()
        .zip(&elements)
        .map(|(found, x)| found - (x - mean) * scale)
        .collect();
    assert_close(&relative, &vec![0.0; count], 1e-20);
}

#[test]
fn a_gpu_combines_parts_in_the_order_of_the_simulator() {
    let simulator = Device::sim(0).unwrap();
    for (seed, &(shape, dimensions)) in LONG.iter().enumerate() {
        let numbers: Vec<f32> = values(&random(shape, seed as u64)).into_iter().map(|x| x as f32).collect();
        let [found, again, expected] = [device(), device(), simulator.clone()].map(|device| {
            let x = Tensor::from_slice(&numbers, shape, &device).unwrap();
            let [variance, mean] = x.var_mean(dimensions, 1, false).unwrap();
            let norm = x.vector_norm(2.0, dimensions, false).unwrap();
            [variance, mean, norm]
                .map(|x| x.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>())
        });
        assert_eq!(found, again, "{shape:?} over {dimensions:?}");
        assert_eq!(found, expected, "{shape:?} over {dimensions:?}");
    }
}

/// Returns the gradients of a function's inputs, from a gradient of its result.
fn gradients_from(result: &Tensor, gradient: &Tensor, inputs: &[Tensor]) -> Vec<Tensor> {
    let found = gradients(std::slice::from_ref(result), &[Some(gradient.clone())], inputs).unwrap();
    found.into_iter().map(Option::unwrap).collect()
}

#[test]
fn gradients_that_are_handed_on_are_not_copied() {
    for dtype in [DType::F32, DType::Bf16] {
        let [x, y, gradient] = [1, 2, 3].map(|seed| random(&[6, 5], seed).to_dtype(dtype).unwrap());
        let [x, y] = [x, y].map(|x| x.requires_grad_().unwrap());
        let both = [x.clone(), y];
        for found in gradients_from(&x.add(&both[1]).unwrap(), &gradient, &both) {
            assert_eq!(found.pointer(), gradient.pointer());
        }
        // For a difference, one gradient is passed on, and only the other is computed.
        let found = gradients_from(&x.sub(&both[1]).unwrap(), &gradient, &both);
        assert_eq!(found[0].pointer(), gradient.pointer());
        assert_eq!(values(&found[1]), values(&gradient).iter().map(|x| -x).collect::<Vec<_>>());
        // The gradient of a sum is repeated by its strides, over any dimensions.
        for (dimensions, strides) in [(&[0][..], &[0, 1][..]), (&[1], &[1, 0]), (&[], &[0, 0])] {
            let sum = x.sum(dimensions, false).unwrap();
            let gradient = random(sum.shape(), 4).to_dtype(dtype).unwrap();
            let found = gradients_from(&sum, &gradient, std::slice::from_ref(&x)).remove(0);
            assert_eq!((found.shape(), found.layout().strides()), (x.shape(), strides));
            assert_eq!(found.pointer(), gradient.pointer());
            let of_rows = values(&gradient);
            let expected = at_points(x.shape(), dimensions, &values(&x), &of_rows, |_, gradient| gradient);
            assert_eq!(values(&found), expected);
            // The gradient of a mean is divided once per row.
            let mean = x.mean(dimensions, false).unwrap();
            let found = gradients_from(&mean, &gradient, std::slice::from_ref(&x)).remove(0);
            assert_eq!((found.shape(), found.layout().strides()), (x.shape(), strides));
        }
    }
}

#[test]
fn a_leaf_keeps_a_gradient_of_its_own_memory() {
    let x = random(&[4, 3], 1).requires_grad_().unwrap();
    let y = random(&[4, 3], 2).requires_grad_().unwrap();
    x.add(&y).unwrap().sum(&[], false).unwrap().backward().unwrap();
    let [of_x, of_y] = [&x, &y].map(|leaf| leaf.grad().unwrap());
    assert_eq!(of_x.layout().strides(), [3, 1]);
    assert_ne!(of_x.pointer(), of_y.pointer());
    of_x.mul_scalar_(2.0).unwrap();
    assert_eq!(values(&of_x), [2.0; 12]);
    assert_eq!(values(&of_y), [1.0; 12]);
}

#[test]
fn places_of_extrema_in_long_rows_and_columns_are_those_of_the_first_of_equals() {
    let cases: [(&[usize], usize); 6] = [
        (&[1 << 17], 0),
        (&[3, 70_001], 1),
        (&[70_001, 3], 0),
        (&[16_500, 260], 0),
        (&[3, 2_100, 700], 1),
        // Columns enough that they are not divided.
        (&[40, 33_000], 0),
    ];
    for (seed, &(shape, dim)) in cases.iter().enumerate() {
        for &dtype in dtypes(shape, &[DType::F32, DType::Bf16, DType::F64]) {
            // Few different values, so that there are equal elements; and a NaN.
            let tenths = random(shape, seed as u64).mul_scalar(9).unwrap().round().unwrap();
            let x = tenths.to_dtype(dtype).unwrap();
            let mut poisoned = values(&x);
            poisoned[5_000] = f64::NAN;
            let poisoned = tensor(&poisoned, shape, dtype);
            // Of several rows, one has the NaN and the others have none.
            let x = if x.rank() == 1 { vec![x, poisoned] } else { vec![poisoned] };
            for x in &x {
                let rows = rows(shape, &[dim as i64], &values(x));
                let chosen = |row: &[f64], is_better: &dyn Fn(f64, f64) -> bool| -> usize {
                    let better = |best: usize, at: usize| {
                        let (best_value, value) = (row[best], row[at]);
                        let wins = value.is_nan() && !best_value.is_nan() || is_better(value, best_value);
                        if wins { at } else { best }
                    };
                    (1..row.len()).fold(0, better)
                };
                let greatest: Vec<usize> = rows.iter().map(|row| chosen(row, &|a, b| a > b)).collect();
                let smallest: Vec<usize> = rows.iter().map(|row| chosen(row, &|a, b| a < b)).collect();
                let as_places = |places: &[usize]| places.iter().map(|&at| at as i64).collect::<Vec<_>>();
                let as_values = |places: &[usize]| -> Vec<f64> {
                    rows.iter().zip(places).map(|(row, &at)| row[at]).collect()
                };
                let dim = dim as i64;
                assert_eq!(
                    x.argmax(dim).unwrap().to_vec::<i64>().unwrap(),
                    as_places(&greatest),
                    "{shape:?}"
                );
                assert_eq!(
                    x.argmin(dim).unwrap().to_vec::<i64>().unwrap(),
                    as_places(&smallest),
                    "{shape:?}"
                );
                for ([value, place], expected) in
                    [(x.max_dim(dim, false).unwrap(), &greatest), (x.min_dim(dim, false).unwrap(), &smallest)]
                {
                    assert_eq!(place.to_vec::<i64>().unwrap(), as_places(expected), "{shape:?}");
                    assert_close(&values(&value), &as_values(expected), 0.0);
                    assert_eq!(value.dtype(), dtype);
                }
            }
        }
    }
}
