//! Reductions, softmax and losses compared with explicit sums, over shapes that cover every way of reducing.

use thalweg_ir::DType;
use thalweg_nn::functional;
use thalweg_runtime::{CaptureOptions, Graph, Stream};
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::{Value, find_operator};

use crate::support::{
    assert_close, check_gradient, close, device, expect_out_of_range, on_own_device, random, tensor, values,
};

/// Shapes and reduced dimensions: a few points per row, a warp's worth, a block's worth, adjacent rows, several dimensions at
/// once, and empty ones.
const CASES: &[(&[usize], &[i64])] = &[
    (&[7, 5], &[1]),
    (&[7, 5], &[0]),
    (&[3, 100], &[-1]),
    (&[100, 3], &[0]),
    (&[2, 3000], &[1]),
    (&[3000, 2], &[0]),
    (&[40_000, 20], &[1]),
    (&[20, 40_000], &[0]),
    (&[3, 4, 5, 6], &[1, 3]),
    (&[3, 4, 5, 6], &[0, 2]),
    (&[3, 4, 5], &[]),
    (&[4, 0, 3], &[1]),
    (&[0, 3], &[1]),
    (&[], &[]),
];

/// Returns a reduction written out in f64.
fn reduce(x: &Tensor, dimensions: &[i64], start: f64, combine: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let shape = x.shape();
    let reduced: Vec<usize> = if dimensions.is_empty() {
        (0..shape.len()).collect()
    } else {
        dimensions
            .iter()
            .map(|&d| if d < 0 { (d + shape.len() as i64) as usize } else { d as usize })
            .collect()
    };
    let kept: Vec<usize> = (0..shape.len()).filter(|d| !reduced.contains(d)).collect();
    let mut results = vec![start; kept.iter().map(|&d| shape[d]).product()];
    for (index, value) in values(x).into_iter().enumerate() {
        let mut rest = index;
        let mut coordinates = vec![0; shape.len()];
        for dimension in (0..shape.len()).rev() {
            coordinates[dimension] = rest % shape[dimension];
            rest /= shape[dimension];
        }
        let row = kept.iter().fold(0, |row, &d| row * shape[d] + coordinates[d]);
        results[row] = combine(results[row], value);
    }
    results
}

/// Returns the sum over dimensions in f32.
fn sum_in_f32(x: &Tensor, dimensions: &[i64]) -> Tensor {
    let arguments = [
        Value::Tensor(x.clone()),
        Value::Ints(dimensions.to_vec()),
        Value::Bool(false),
        Value::DType(DType::F32),
    ];
    let results = find_operator("sum.dim_IntList").unwrap().call_boxed(&arguments, None).unwrap();
    let [Value::Tensor(sum)] = &results[..] else { panic!("a sum is a tensor") };
    sum.clone()
}

#[test]
fn a_sum_of_16_bit_floats_in_f32_is_not_rounded_and_has_no_copy() {
    for dtype in [DType::Bf16, DType::F16] {
        for (seed, &(shape, dimensions)) in CASES.iter().enumerate() {
            let x = random(shape, seed as u64).to_dtype(dtype).unwrap();
            let expected = reduce(&x, dimensions, 0.0, |sum, x| sum + x);
            let sum = sum_in_f32(&x, dimensions);
            assert_eq!(sum.dtype(), DType::F32);
            assert_close(&values(&sum), &expected, 1e-4);
        }
        let leaf = random(&[7, 5], 1).to_dtype(dtype).unwrap().requires_grad_().unwrap();
        let weights = tensor(&[2.0, -3.0, 0.5, 1.0, 4.0], &[5], DType::F32);
        sum_in_f32(&leaf, &[0]).mul(&weights).unwrap().sum(&[], false).unwrap().backward().unwrap();
        let gradient = leaf.grad().unwrap();
        assert_eq!((gradient.dtype(), gradient.shape()), (dtype, &[7, 5][..]));
        assert_eq!(values(&gradient), values(&weights).repeat(7));
    }
    on_own_device(|| {
        let stream = Stream::new(&device()).unwrap();
        let _current = stream.make_current();
        let x = random(&[7, 5], 1).to_dtype(DType::Bf16).unwrap();
        let run = || Ok(sum_in_f32(&x, &[0]));
        let (graph, _) = Graph::capture(&device(), CaptureOptions::default(), run).unwrap();
        assert_eq!(graph.description().unwrap().nodes.len(), 1);
    });
}

#[test]
fn sums_and_extremes_agree_with_loops() {
    for (seed, &(shape, dimensions)) in CASES.iter().enumerate() {
        let x = random(shape, seed as u64);
        let sum = x.sum(dimensions, false).unwrap();
        assert_close(&values(&sum), &reduce(&x, dimensions, 0.0, |a, b| a + b), 1e-9);
        let kept = x.sum(dimensions, true).unwrap();
        assert_eq!(kept.rank(), x.rank(), "{shape:?} {dimensions:?}");
        assert_eq!(values(&kept), values(&sum));
        if shape.contains(&0) {
            continue;
        }
        let count = x.elements() as f64 / sum.elements() as f64;
        let expected: Vec<f64> = values(&sum).iter().map(|sum| sum / count).collect();
        assert_close(&values(&x.mean(dimensions, false).unwrap()), &expected, 1e-12);
        assert_eq!(
            values(&x.amax(dimensions, false).unwrap()),
            reduce(&x, dimensions, f64::NEG_INFINITY, f64::max)
        );
        assert_eq!(
            values(&x.amin(dimensions, false).unwrap()),
            reduce(&x, dimensions, f64::INFINITY, f64::min)
        );
    }
}

#[test]
fn sums_of_strided_views_agree() {
    let x = random(&[6, 7, 8], 20);
    let view = x.permute(&[2, 0, 1]).unwrap();
    for dimension in 0..3 {
        assert_close(
            &values(&view.sum(&[dimension], false).unwrap()),
            &reduce(&view, &[dimension], 0.0, |a, b| a + b),
            1e-12,
        );
    }
}

#[test]
fn integers_are_summed_in_i64() {
    let x = Tensor::full(&[1000], 255, DType::U8, &device()).unwrap();
    let sum = x.sum(&[], false).unwrap();
    assert_eq!((sum.dtype(), sum.item::<i64>().unwrap()), (DType::I64, 255_000));
    let truth = x.gt_scalar(0).unwrap();
    assert_eq!(truth.sum(&[], false).unwrap().item::<i64>().unwrap(), 1000);
}

#[test]
fn half_precision_sums_are_accumulated_in_f32() {
    // In f16 itself the sum would stick at 2048, where the spacing is 2.
    let x = Tensor::ones(&[10_000], DType::F16, &device()).unwrap();
    assert_eq!(values(&x.sum(&[], false).unwrap()), [10_000.0]);
}

#[test]
fn argmax_takes_the_first_of_equals_and_sees_nan() {
    let rows = [[1.0f64, 3.0, 3.0], [f64::NAN, 5.0, 1.0], [2.0, f64::NAN, f64::NAN], [-1.0, -2.0, -1.0]];
    let x = Tensor::from_slice(&rows.concat(), &[4, 3], &device()).unwrap();
    assert_eq!(x.argmax(1).unwrap().to_vec::<i64>().unwrap(), [1, 0, 1, 0]);
    let long = random(&[5, 700], 21);
    let expected: Vec<i64> = values(&long)
        .chunks(700)
        .map(|row| (0..700).reduce(|best, i| if row[i] > row[best] { i } else { best }).unwrap() as i64)
        .collect();
    assert_eq!(long.argmax(-1).unwrap().to_vec::<i64>().unwrap(), expected);
}

#[test]
fn places_of_extrema_in_long_columns_are_the_first() {
    let device = device();
    let (rows, columns) = (1200, 256);
    let values: Vec<f32> = (0..2 * rows * columns)
        .map(|at: usize| if at == 999 * columns + 7 { f32::NAN } else { (at * 7919 % 1013) as f32 })
        .collect();
    for (dtype, smallest) in
        [(DType::F32, false), (DType::F32, true), (DType::Bf16, false), (DType::F16, true)]
    {
        let x = Tensor::from_slice(&values, &[2, rows, columns], &device).unwrap().to_dtype(dtype).unwrap();
        let found = if smallest { x.argmin(1) } else { x.argmax(1) }.unwrap();
        assert_eq!(found.shape(), [2, columns]);
        // Rows are another kernel.
        let turned = x.transpose(1, 2).unwrap().contiguous().unwrap();
        let expected = if smallest { turned.argmin(2) } else { turned.argmax(2) }.unwrap();
        let found = found.to_vec::<i64>().unwrap();
        assert_eq!(found, expected.to_vec::<i64>().unwrap(), "{dtype} {smallest}");
        assert_eq!(found[7], 999);
    }
}

#[test]
fn extremes_propagate_nan() {
    let mut row = vec![0.5f64; 300];
    row[170] = f64::NAN;
    let x = Tensor::from_slice(&row, &[300], &device()).unwrap();
    assert!(values(&x.amax(&[], false).unwrap())[0].is_nan());
    assert!(values(&x.amin(&[], false).unwrap())[0].is_nan());
}

fn softmax(row: &[f64]) -> Vec<f64> {
    let greatest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials: Vec<f64> = row.iter().map(|x| (x - greatest).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials.iter().map(|x| x / sum).collect()
}

#[test]
fn softmax_agrees_and_does_not_overflow() {
    for columns in [3, 10, 200, 5000] {
        let x = random(&[4, columns], 22).mul_scalar(300.0).unwrap();
        let expected: Vec<f64> = values(&x).chunks(columns).flat_map(softmax).collect();
        assert_close(&values(&x.softmax(1).unwrap()), &expected, 1e-12);
        for (found, expected) in values(&x.log_softmax(1).unwrap()).iter().zip(&expected) {
            assert!(close(found.exp(), *expected, 1e-12));
        }
    }
}

#[test]
fn softmax_runs_along_any_dimension() {
    let x = random(&[3, 5, 4], 23);
    let moved = x.transpose(1, 2).unwrap().softmax(2).unwrap().transpose(1, 2).unwrap();
    assert_close(&values(&x.softmax(1).unwrap()), &values(&moved), 1e-12);
}

#[test]
fn cross_entropy_agrees_and_marks_bad_classes() {
    on_own_device(|| {
        let x = random(&[6, 10], 24);
        let classes: Vec<i64> = vec![0, 9, 3, 3, 7, 1];
        let target = Tensor::from_slice(&classes, &[6], &device()).unwrap();
        let expected = values(&x)
            .chunks(10)
            .zip(&classes)
            .map(|(row, &class)| -softmax(row)[class as usize].ln())
            .sum::<f64>()
            / 6.0;
        assert_close(&values(&functional::cross_entropy(&x, &target).unwrap()), &[expected], 1e-12);
        for bad in [-1i64, 10] {
            let target = Tensor::from_slice(&[0, 1, 2, bad, 4, 5], &[6], &device()).unwrap();
            let loss = functional::cross_entropy(&x, &target).unwrap();
            expect_out_of_range();
            assert!(values(&loss)[0].is_nan(), "class {bad}");
        }
    });
}

#[test]
fn gradients_of_reductions_agree_with_finite_differences() {
    for &(shape, dimensions) in
        &[(&[3, 4][..], &[1][..]), (&[3, 40], &[1]), (&[40, 3], &[0]), (&[2, 3, 4], &[0, 2])]
    {
        let x = random(shape, 25);
        let sum = x.sum(dimensions, false).unwrap();
        let weight = random(sum.shape(), 26);
        check_gradient(&x, |x| x.mul(x).unwrap().sum(dimensions, false).unwrap().mul(&weight).unwrap());
        check_gradient(&x, |x| x.mean(dimensions, false).unwrap().mul(&weight).unwrap());
        check_gradient(&x, |x| x.amax(dimensions, false).unwrap().mul(&weight).unwrap());
        check_gradient(&x, |x| x.amin(dimensions, false).unwrap().mul(&weight).unwrap());
    }
    let x = random(&[4, 33], 27);
    let weight = random(&[4, 33], 28);
    check_gradient(&x, |x| x.softmax(1).unwrap().mul(&weight).unwrap());
    check_gradient(&x, |x| x.log_softmax(1).unwrap().mul(&weight).unwrap());
    check_gradient(&x, |x| x.softmax(0).unwrap().mul(&weight).unwrap());
    let target = Tensor::from_slice(&[3i64, 0, 32, 5], &[4], &device()).unwrap();
    check_gradient(&x, |x| functional::cross_entropy(x, &target).unwrap());
}

#[test]
fn the_gradient_of_a_maximum_is_shared_by_equals() {
    let x =
        Tensor::from_slice(&[1.0f64, 2.0, 2.0, 0.0], &[1, 4], &device()).unwrap().requires_grad_().unwrap();
    x.amax(&[1], false).unwrap().sum(&[], false).unwrap().backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [0.0, 0.5, 0.5, 0.0]);
}

/// Few long rows, which are reduced in stages: complete parts and a remainder, points in one stride and in several.
const LONG: &[(&[usize], &[i64])] = &[
    (&[1 << 17], &[]),
    (&[3, 70_001], &[1]),
    (&[70_001, 3], &[0]),
    (&[40, 3, 41, 50], &[0, 2, 3]),
    (&[2, 300_000, 2], &[1]),
    (&[300, 2, 300], &[0, 2]),
];

/// Columns of more than a few points, in parts and a remainder.
#[test]
fn long_columns_agree_with_loops() {
    let x = random(&[16_500, 260], 7);
    let expected = reduce(&x, &[0], 0.0, |a, b| a + b);
    assert_close(&values(&x.sum(&[0], false).unwrap()), &expected, 1e-9);
    let single = x.to_dtype(DType::F32).unwrap();
    assert_close(&values(&single.sum(&[0], false).unwrap()), &expected, 1e-3);
    let greatest = reduce(&x, &[0], f64::NEG_INFINITY, f64::max);
    assert_eq!(values(&x.amax(&[0], false).unwrap()), greatest);
    // Outer rows in addition to the columns.
    let x = random(&[3, 2100, 700], 8);
    let expected = reduce(&x, &[1], 0.0, |a, b| a + b);
    assert_close(&values(&x.sum(&[1], false).unwrap()), &expected, 1e-9);
}

#[test]
fn long_rows_agree_with_loops() {
    for (seed, &(shape, dimensions)) in LONG.iter().enumerate() {
        let x = random(shape, seed as u64);
        let count = x.elements() as f64 / x.sum(dimensions, false).unwrap().elements() as f64;
        let expected = reduce(&x, dimensions, 0.0, |a, b| a + b);
        assert_close(&values(&x.sum(dimensions, false).unwrap()), &expected, 1e-9);
        let mean: Vec<f64> = expected.iter().map(|sum| sum / count).collect();
        assert_close(&values(&x.mean(dimensions, false).unwrap()), &mean, 1e-12);
        for dtype in [DType::F16, DType::Bf16] {
            // Partial results are not rounded: only the inputs and the result are rounded once each.
            let rounded = x.to_dtype(dtype).unwrap();
            let mean = values(&rounded.mean(dimensions, true).unwrap());
            let exact = values(&rounded.to_dtype(DType::F64).unwrap().mean(dimensions, true).unwrap());
            let half = if dtype == DType::F16 { 2.0_f64.powi(-11) } else { 2.0_f64.powi(-8) };
            for (found, exact) in mean.iter().zip(&exact) {
                assert!((found - exact).abs() <= half * exact.abs() + 1e-7, "{dtype}: {found}, {exact}");
            }
        }
        let greatest = reduce(&x, dimensions, f64::NEG_INFINITY, f64::max);
        assert_eq!(values(&x.amax(dimensions, false).unwrap()), greatest);
        let smallest = reduce(&x, dimensions, f64::INFINITY, f64::min);
        assert_eq!(values(&x.amin(dimensions, false).unwrap()), smallest);
    }
    let counted = Tensor::arange(70_000, 0, 1, DType::I32, &device()).unwrap();
    assert_eq!(counted.sum(&[], false).unwrap().item::<i64>().unwrap(), 70_000 * 69_999 / 2);
    let mut poisoned = vec![1.0_f64; 1 << 17];
    poisoned[77_777] = f64::NAN;
    let poisoned = Tensor::from_slice(&poisoned, &[1 << 17], &device()).unwrap();
    assert!(values(&poisoned.amax(&[], false).unwrap())[0].is_nan());
}

#[test]
fn a_long_sum_is_as_exact_as_pytorchs() {
    for count in [10_000_000, 9_999_991] {
        let x = Tensor::full(&[count], 0.1, DType::F32, &device()).unwrap();
        let error = |found: f64, exact: f64| (found / exact - 1.0).abs();
        let tenth = f64::from(0.1_f32);
        let sum = values(&x.sum(&[], false).unwrap())[0];
        assert!(error(sum, tenth * count as f64) < 1e-6, "{sum}");
        let mean = values(&x.mean(&[], false).unwrap())[0];
        assert!(error(mean, tenth) < 1e-6, "{mean}");
    }
    // Rows enough that they are not split, longer than the number of elements that a lane adds one by one.
    let x = Tensor::full(&[3000, 2000], 0.1, DType::F32, &device()).unwrap();
    for sum in values(&x.sum(&[0], false).unwrap()) {
        assert!((sum / (f64::from(0.1_f32) * 3000.0) - 1.0).abs() < 1e-6, "{sum}");
    }
}

#[test]
fn a_gpu_reduces_in_the_order_of_the_simulator() {
    let simulator = thalweg_runtime::Device::sim(0).unwrap();
    for (seed, &(shape, dimensions)) in LONG.iter().chain(CASES).enumerate() {
        let numbers: Vec<f32> = values(&random(shape, seed as u64)).into_iter().map(|x| x as f32).collect();
        let [found, expected] = [device(), simulator.clone()].map(|device| {
            let x = Tensor::from_slice(&numbers, shape, &device).unwrap();
            // The mean of nothing is a NaN with unspecified bits.
            let bits = |x: f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
            let bits = |x: Tensor| -> Vec<u32> { x.to_vec::<f32>().unwrap().into_iter().map(bits).collect() };
            [bits(x.sum(dimensions, false).unwrap()), bits(x.mean(dimensions, false).unwrap())]
        });
        assert_eq!(found, expected, "{shape:?} over {dimensions:?}");
    }
}

#[test]
fn a_long_sum_has_a_gradient() {
    let x = random(&[2, 70_000], 1).requires_grad_().unwrap();
    x.mean(&[1], false).unwrap().square().unwrap().sum(&[], false).unwrap().backward().unwrap();
    let means = values(&x.mean(&[1], false).unwrap());
    let expected: Vec<f64> = means.iter().flat_map(|mean| vec![2.0 * mean / 70_000.0; 70_000]).collect();
    assert_close(&values(&x.grad().unwrap()), &expected, 1e-15);
}

#[test]
fn cat_and_stack_put_tensors_together_and_take_gradients_apart() {
    let a = tensor(&[1.0, 2.0, 3.0, 4.0], &[2, 2], DType::F32).requires_grad_().unwrap();
    let b = tensor(&[5.0, 6.0], &[2, 1], DType::F64).requires_grad_().unwrap();
    let skipped = tensor(&[], &[0], DType::F32).requires_grad_().unwrap();
    let joined = Tensor::cat(&[a.clone(), skipped.clone(), b.clone()], -1).unwrap();
    assert_eq!((joined.shape(), joined.dtype()), (&[2, 3][..], DType::F64));
    assert_eq!(values(&joined), [1.0, 2.0, 5.0, 3.0, 4.0, 6.0]);
    let weights = tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3], DType::F64);
    joined.mul(&weights).unwrap().sum(&[], false).unwrap().backward().unwrap();
    assert_eq!(values(&a.grad().unwrap()), [1.0, 2.0, 4.0, 5.0]);
    assert_eq!((values(&b.grad().unwrap()), b.grad().unwrap().dtype()), (vec![3.0, 6.0], DType::F64));
    assert_eq!(skipped.grad().unwrap().shape(), [0]);

    let rows = [tensor(&[1.0, 2.0], &[2], DType::F32), tensor(&[3.0, 4.0], &[2], DType::F32)];
    assert_eq!(values(&Tensor::stack(&rows, 1).unwrap()), [1.0, 3.0, 2.0, 4.0]);
    assert_eq!(Tensor::stack(&rows, -1).unwrap().shape(), [2, 2]);
    for (list, text) in [
        (&[][..], "non-empty"),
        (&[rows[0].clone(), a.detach()][..], "same number of dimensions"),
        (&[a.detach(), b.detach()][..], "Sizes of tensors must match"),
    ] {
        let error = Tensor::cat(list, 0).unwrap_err().to_string();
        assert!(error.contains(text) || list.is_empty(), "{text}: {error}");
    }
}
