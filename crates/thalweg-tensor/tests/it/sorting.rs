//! Sorting rows of all lengths: within a block, and by digits over many.

use std::cmp::Ordering;

use thalweg_ir::{DType, bf16, f16};
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::Value;

use crate::norms::call;
use crate::support::device;

/// Returns numbers of few and of many different values, with special values.
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

/// Compares the sorted dimension of (outer, length, inner) with the standard library's stable sort, bit by bit.
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
        let k = shape[1].min(3);
        assert!(topk(&x, k, true).iter().all(|first| first.shape() == [shape[0], k]), "{shape:?}");
    }
}

fn topk(x: &Tensor, k: usize, largest: bool) -> [Tensor; 2] {
    let arguments = [Value::Tensor(x.clone()), Value::Int(k as i64), Value::Int(1), Value::Bool(largest)];
    call("topk", &arguments).try_into().unwrap_or_else(|_| panic!("values and places"))
}

/// Compares the greatest or smallest of (outer, length, inner) with the first of the sorted rows, bit by bit, and their
/// gradients.
fn are_selected(elements: &[f64], [outer, length, inner]: [usize; 3], k: usize, dtype: DType, largest: bool) {
    let what = format!("{k} of {:?} {dtype} {largest}", [outer, length, inner]);
    let x =
        Tensor::from_slice(elements, &[outer, length, inner], &device()).unwrap().to_dtype(dtype).unwrap();
    let [values, places] = topk(&x, k, largest);
    let [sorted, order] = x.sort(1, largest).unwrap().map(|all| all.narrow(1, 0, k).unwrap());
    let numbers = |x: &Tensor| {
        let x = x.to_dtype(DType::F64).unwrap().contiguous().unwrap().to_vec::<f64>().unwrap();
        x.into_iter().map(|x| if x.is_nan() { f64::NAN.to_bits() } else { x.to_bits() }).collect::<Vec<_>>()
    };
    let integers = |x: &Tensor| x.contiguous().unwrap().to_vec::<i64>().unwrap();
    assert_eq!(integers(&places), integers(&order), "{what}");
    assert_eq!(numbers(&values), numbers(&sorted), "{what}");
}

#[test]
fn the_first_of_long_rows_are_selected_as_they_are_sorted() {
    for (k, length) in [(1, 4097), (50, 5000), (1023, 8193), (1024, 10_000), (1025, 5000)] {
        are_selected(&numbers(2 * length, k as u64), [2, length, 1], k, DType::F32, true);
        are_selected(&numbers(length * 3, 7), [1, length, 3], k, DType::F32, false);
    }
    for dtype in [DType::F16, DType::Bf16, DType::F64, DType::I64] {
        for largest in [true, false] {
            are_selected(&numbers(2 * 9000, 5), [2, 9000, 1], 50, dtype, largest);
        }
    }
    // Equal elements of which only the first are selected: more than a block gathers at once, so that indices decide.
    let equal = |at: usize| if at % 1000 == 999 { 2.0 } else { f64::from(u8::from(!at.is_multiple_of(3))) };
    let elements: Vec<f64> = (0..30_000).map(equal).collect();
    for dtype in [DType::F32, DType::Bf16] {
        for k in [1, 20, 30, 31, 700, 1024] {
            are_selected(&elements, [1, 30_000, 1], k, dtype, true);
            are_selected(&elements, [1, 30_000, 1], k, dtype, false);
        }
        are_selected(&vec![f64::NAN; 6000], [1, 6000, 1], 9, dtype, true);
        are_selected(&vec![0.0; 6000], [1, 6000, 1], 9, dtype, false);
    }
    are_selected(&numbers(20 * 5000, 1), [20, 5000, 1], 4, DType::F32, true);
}

#[test]
fn gradients_of_what_is_selected_go_to_its_places() {
    let x = Tensor::from_slice(&numbers(2 * 5000, 3), &[2, 5000], &device()).unwrap();
    let x = x.to_dtype(DType::F32).unwrap().detach().requires_grad_().unwrap();
    let [values, places] = topk(&x, 7, true);
    let weights = Tensor::arange(14, 1, 1, DType::I64, &device()).unwrap().to_dtype(DType::F32).unwrap();
    values.mul(&weights.reshape(&[2, 7]).unwrap()).unwrap().sum(&[], false).unwrap().backward().unwrap();
    let mut expected = vec![0.0f32; 10_000];
    for (at, place) in places.to_vec::<i64>().unwrap().into_iter().enumerate() {
        expected[at / 7 * 5000 + place as usize] = at as f32 + 1.0;
    }
    assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), expected);
}
