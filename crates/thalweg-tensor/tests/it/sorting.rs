//! Sorting rows of all lengths: within a block, and by digits over many.

use std::cmp::Ordering;

use thalweg_ir::{DType, bf16, f16};
use thalweg_tensor::Tensor;

use crate::support::device;

/// Numbers of few and of many different values, with what sorts by surprise.
fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let special = [f64::NAN, 0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, -f64::NAN];
    let mut state = seed;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let draw = state >> 33;
            match draw % 16 {
                0 => special[(draw / 16 % 6) as usize],
                1..=5 => (draw / 16 % 7) as f64 - 3.0,
                _ => ((draw / 16) as f64 / 1e4 - 6e3).powi(3),
            }
        })
        .collect()
}

/// NaN above every number and equal to itself.
fn compare(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// Holds the sorted dimension of (outer, length, inner) against the standard library's stable sort, bit by bit.
fn is_sorted([outer, length, inner]: [usize; 3], dtype: DType, descending: bool) {
    let elements: Vec<f64> = numbers(outer * length * inner, (outer * length + inner) as u64)
        .into_iter()
        .map(|x| match dtype {
            DType::F16 => f16::from_f64(x).to_f64(),
            DType::Bf16 => bf16::from_f64(x).to_f64(),
            DType::F32 => f64::from(x as f32),
            DType::I64 => x as i64 as f64,
            _ => x,
        })
        .collect();
    let shape = [outer, length, inner];
    let x = Tensor::from_slice(&elements, &shape, &device()).unwrap().to_dtype(dtype).unwrap();
    let [values, places] = x.sort(1, descending).unwrap();
    let values = values.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    let places = places.to_vec::<i64>().unwrap();
    for row in 0..outer * inner {
        let place = |at: usize| row / inner * length * inner + at * inner + row % inner;
        let mut order: Vec<usize> = (0..length).collect();
        order.sort_by(|&a, &b| {
            let order = compare(elements[place(a)], elements[place(b)]);
            if descending { order.reverse() } else { order }
        });
        for (at, from) in order.into_iter().enumerate() {
            assert_eq!(places[place(at)], from as i64, "{shape:?} {dtype} {descending}: row {row}, {at}");
            let (found, wanted) = (values[place(at)], elements[place(from)]);
            let is_same = found.to_bits() == wanted.to_bits() || (found.is_nan() && wanted.is_nan());
            assert!(is_same, "{shape:?} {dtype} {descending}: row {row}, {at}: {found}, not {wanted}");
        }
    }
}

#[test]
fn rows_of_every_length_are_sorted_stably() {
    for length in [1, 2, 50, 255, 256, 257, 1000, 1024, 1025, 4095, 4096] {
        is_sorted([2, length, 3], DType::F32, length % 2 == 0);
    }
    for dtype in [DType::F16, DType::Bf16, DType::F64, DType::I64] {
        is_sorted([3, 300, 1], dtype, false);
        is_sorted([1, 1100, 2], dtype, true);
    }
}

#[test]
fn long_rows_are_sorted_by_their_digits() {
    is_sorted([1, 4097, 1], DType::F32, false);
    is_sorted([2, 10_000, 2], DType::F32, true);
    is_sorted([1, 70_001, 1], DType::F32, false);
    for dtype in [DType::F16, DType::Bf16, DType::F64, DType::I64] {
        is_sorted([2, 9000, 1], dtype, false);
        is_sorted([1, 4100, 2], dtype, true);
    }
}

#[test]
fn nothing_is_sorted_to_nothing() {
    for shape in [[0, 5], [5, 0], [0, 5000]] {
        let x = Tensor::zeros(&shape, DType::F32, &device()).unwrap();
        let [values, places] = x.sort(1, false).unwrap();
        assert_eq!((values.shape(), places.shape()), (&shape[..], &shape[..]));
    }
}
