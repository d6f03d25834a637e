//! Reading and writing at indices: values compared with plain loops, gradients with finite differences, and indices out of range.

use thalweg_ir::DType;
use thalweg_runtime::Result;
use thalweg_tensor::dispatch::{Value, find_operator};
use thalweg_tensor::{Tensor, i};

use crate::support::{
    assert_close, check_gradient, device, expect_out_of_range, on_own_device, random, tensor, values,
};

/// Calls an operator by its name, and returns its only result.
#[track_caller]
fn call(name: &str, arguments: Vec<Value>) -> Tensor {
    let results = find_operator(name).and_then(|operator| operator.call_boxed(&arguments, Some(&device())));
    match results.unwrap_or_else(|error| panic!("{name}: {error}")).swap_remove(0) {
        Value::Tensor(result) => result,
        other => panic!("{name} gave {other:?}"),
    }
}

fn of(tensor: &Tensor) -> Value {
    Value::Tensor(tensor.clone())
}

fn indices(list: &[i64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(list, shape, &device()).unwrap()
}

#[test]
fn elements_are_combined_in_the_order_of_the_source() {
    let (target, source) = (random(&[3, 4], 1), random(&[5, 4], 2));
    let places: Vec<i64> = (0..20).map(|at| (at * 7 % 5) % 3).collect();
    let index = indices(&places, &[5, 4]);
    type Combine = fn(f64, f64) -> f64;
    let combine: [(&str, Combine); 4] =
        [("sum", |a, b| a + b), ("prod", |a, b| a * b), ("amax", f64::max), ("amin", f64::min)];
    for (reduce, combine) in combine {
        let mut expected = values(&target);
        for (at, value) in values(&source).into_iter().enumerate() {
            let place = places[at] as usize * 4 + at % 4;
            expected[place] = combine(expected[place], value);
        }
        let found = target.scatter_reduce(0, &index, &source, reduce, true).unwrap();
        assert_eq!(values(&found), expected, "{reduce}");
        check_gradient(&target, |x| x.scatter_reduce(0, &index, &source, reduce, true).unwrap());
        check_gradient(&source, |x| target.scatter_reduce(0, &index, x, reduce, true).unwrap());
        check_gradient(&source, |x| target.scatter_reduce(0, &index, x, reduce, false).unwrap());
    }
    check_gradient(&source, |x| target.scatter_reduce(0, &index, x, "mean", false).unwrap());
}

#[test]
fn integers_and_truth_values_are_combined_exactly() {
    let index = indices(&[1, 1, 0], &[3]);
    for dtype in [DType::U8, DType::I16, DType::I64] {
        let (target, source) = (tensor(&[250.0, 100.0], &[2], dtype), tensor(&[3.0, 4.0, 5.0], &[3], dtype));
        let sum = |a: i64, b: i64| match dtype {
            DType::U8 => f64::from((a + b) as u8),
            _ => (a + b) as f64,
        };
        let found = target.scatter_add(0, &index, &source).unwrap();
        assert_eq!(found.dtype(), dtype);
        assert_eq!(values(&found), [sum(250, 5), sum(100, 7)], "{dtype}");
    }
    let large = indices(&[1 << 60, i64::MAX], &[2]);
    let found = large.scatter_add(0, &index, &indices(&[1, 1, 1], &[3])).unwrap();
    assert_eq!(found.to_vec::<i64>().unwrap(), [(1 << 60) + 1, i64::MIN + 1]);
    let truths = tensor(&[0.0, 0.0], &[2], DType::Bool);
    let found = truths.scatter_add(0, &index, &tensor(&[1.0, 1.0, 0.0], &[3], DType::Bool)).unwrap();
    assert_eq!(values(&found), [0.0, 1.0]);
}

#[test]
fn an_index_out_of_range_reads_nan_and_writes_nothing() {
    on_own_device(|| {
        let x = random(&[3], 3);
        let index = indices(&[i64::MIN, -1, 3, i64::MAX, 1], &[5]);
        let read = x.gather(0, &index).unwrap();
        expect_out_of_range();
        let read = values(&read);
        assert!(read[..4].iter().all(|value| value.is_nan()) && read[4] == values(&x)[1], "{read:?}");
        let ones = Tensor::ones(&[5], DType::F64, &device()).unwrap();
        let mut expected = values(&x);
        expected[1] += 1.0;
        let written = x.scatter_add(0, &index, &ones).unwrap();
        expect_out_of_range();
        assert_eq!(values(&written), expected);
        expected[1] = 1.0;
        let written = x.scatter(0, &index, &ones).unwrap();
        expect_out_of_range();
        assert_eq!(values(&written), expected);
        // Here negative ones are counted from the end.
        let read = x.take(&index).unwrap();
        expect_out_of_range();
        let read = values(&read);
        assert!(
            read[0].is_nan() && read[2].is_nan() && read[3].is_nan() && read[1] == values(&x)[2],
            "{read:?}"
        );
    });
}

#[test]
fn several_index_tensors_point_at_elements() {
    let x = random(&[2, 3, 4, 5], 4);
    let (first, second) = (indices(&[0, -1, 1, 0, 1, 1], &[2, 3]), indices(&[3, 0, -4], &[3]));
    let element = |a: i64, b: usize, c: i64, d: usize| {
        let (a, c) = (a.rem_euclid(2) as usize, c.rem_euclid(4) as usize);
        values(&x)[((a * 3 + b) * 4 + c) * 5 + d]
    };
    let (list, other) = ([0i64, -1, 1, 0, 1, 1], [3i64, 0, -4]);
    // Not adjacent: the dimensions of the indices come first.
    let apart = [Some(first.clone()), None, Some(second.clone())];
    let found = x.index(&apart).unwrap();
    assert_eq!(found.shape(), [2, 3, 3, 5]);
    let mut expected = Vec::new();
    for place in 0..6 {
        for b in 0..3 {
            expected.extend((0..5).map(|d| element(list[place], b, other[place % 3], d)));
        }
    }
    assert_eq!(values(&found), expected);
    // Adjacent: the dimensions of the indices replace the indexed ones.
    let found = x.index(&[None, Some(indices(&[2, 0, 1], &[3])), Some(second.clone())]).unwrap();
    assert_eq!(found.shape(), [2, 3, 5]);
    let at = |a: i64, place: usize| (0..5).map(move |d| (a, [2, 0, 1][place], other[place], d));
    let expected: Vec<f64> = (0..2)
        .flat_map(|a| (0..3).flat_map(move |place| at(a, place)))
        .map(|(a, b, c, d)| element(a, b, c, d))
        .collect();
    assert_eq!(values(&found), expected);
    check_gradient(&x, |x| x.index(&apart).unwrap());
    let added = random(&[2, 3, 3, 5], 5);
    check_gradient(&x, |x| x.index_put(&apart, &added, true).unwrap());
    check_gradient(&added, |added| x.index_put(&apart, added, true).unwrap());
    let sums = x.index_put(&apart, &added, true).unwrap();
    let total = |tensor: &Tensor| values(tensor).iter().sum::<f64>();
    assert_close(&[total(&sums)], &[total(&x) + total(&added)], 1e-12);
    let once = [Some(indices(&[1, 0], &[2]))];
    check_gradient(&random(&[5], 6), |row| x.index_put(&once, row, false).unwrap());
}

#[test]
fn masks_read_and_write_where_they_are_true() {
    let x = random(&[2, 3], 7);
    let mask = tensor(&[1.0, 0.0, 1.0, 0.0, 0.0, 1.0], &[2, 3], DType::Bool);
    let all = values(&x);
    assert_eq!(values(&x.masked_select(&mask).unwrap()), [all[0], all[2], all[5]]);
    assert_eq!(values(&x.index(&[Some(mask.clone())]).unwrap()), [all[0], all[2], all[5]]);
    assert_eq!(mask.nonzero().unwrap().to_vec::<i64>().unwrap(), [0, 0, 0, 2, 1, 2]);
    let source = random(&[4], 8);
    let of_source = values(&source);
    let expected = [of_source[0], all[1], of_source[1], all[3], all[4], of_source[2]];
    assert_eq!(values(&x.masked_scatter(&mask, &source).unwrap()), expected);
    assert_eq!(values(&x.masked_fill(&mask, 9.0).unwrap()), [9.0, all[1], 9.0, all[3], all[4], 9.0]);
    check_gradient(&x, |x| x.masked_select(&mask).unwrap());
    check_gradient(&source, |source| x.masked_scatter(&mask, source).unwrap());
    check_gradient(&x, |x| x.masked_fill(&mask, 9.0).unwrap());
    // Dimensions that the mask does not cover remain, also where their extent is 1.
    let row = tensor(&[1.0, 0.0], &[2], DType::Bool);
    let column = x.narrow(1, 1, 1).unwrap();
    let read = column.index(&[Some(row)]).unwrap();
    assert_eq!((read.shape(), values(&read)), (&[1, 1][..], vec![all[1]]));
    let none = tensor(&[0.0; 6], &[2, 3], DType::Bool);
    assert_eq!(x.masked_select(&none).unwrap().shape(), [0]);
    let wrong = x.index(&[Some(tensor(&[1.0, 0.0, 1.0], &[3], DType::Bool))]).unwrap_err();
    assert!(wrong.to_string().contains("The shape of the mask [3] at index 0"), "{wrong}");
}

#[test]
fn places_of_a_dimension_are_read_and_written() {
    let x = random(&[2, 3, 2], 9);
    let index = indices(&[2, 0, 2, 2], &[4]);
    let all = values(&x);
    let expected: Vec<f64> = (0..2)
        .flat_map(|a| [2, 0, 2, 2].into_iter().flat_map(move |b| (0..2).map(move |c| (a * 3 + b) * 2 + c)))
        .map(|place: usize| all[place])
        .collect();
    assert_eq!(values(&x.index_select(1, &index).unwrap()), expected);
    check_gradient(&x, |x| x.index_select(-2, &index).unwrap());
    check_gradient(&x, |x| x.index_fill(1, &indices(&[-1], &[1]), 4.0).unwrap());
    let source = random(&[2, 4, 2], 10);
    check_gradient(&source, |source| x.index_add(1, &index, source).unwrap());
    check_gradient(&source, |source| x.index_reduce(1, &index, source, "prod", true).unwrap());
    let one = random(&[2, 2], 11);
    check_gradient(&one, |one| x.select_scatter(one, 1, -1).unwrap());
    check_gradient(&x, |x| x.select_scatter(&one, 1, -1).unwrap());
    let wide = indices(&[0, 1, 1, 0], &[2, 1, 2]);
    check_gradient(&x, |x| x.take_along_dim(&wide, Some(0)).unwrap());
    let refused = x.index_add(1, &index, &random(&[2, 3, 2], 1)).unwrap_err();
    assert!(refused.to_string().contains("Number of indices (4) should be equal to source.size(dim): (3)"));
}

#[test]
fn a_source_that_covers_part_of_the_target_leaves_the_rest() {
    let (x, source) = (random(&[3, 4], 12), random(&[2, 3], 13));
    let index = indices(&[2, 0, 2, 1, 1, 0], &[2, 3]);
    let mut expected = values(&x);
    for (at, value) in values(&source).into_iter().enumerate() {
        expected[[2, 0, 2, 1, 1, 0][at] * 4 + at % 3] = value;
    }
    assert_eq!(values(&x.scatter(0, &index, &source).unwrap()), expected);
    check_gradient(&x, |x| x.scatter(0, &index, &source).unwrap());
    check_gradient(&source, |source| x.scatter(0, &index, source).unwrap());
}

#[test]
fn frequent_rows_of_an_embedding_may_get_less_gradient() {
    let weight = random(&[4, 2], 14);
    let index = indices(&[1, 3, 1, 1, 2], &[5]);
    let gradient = |scales: bool| {
        let leaf = weight.detach().requires_grad_().unwrap();
        let rows = call("embedding", vec![of(&leaf), of(&index), Value::Int(3), Value::Bool(scales)]);
        rows.sum(&[], false).and_then(|sum| sum.backward()).unwrap();
        values(&leaf.grad().unwrap())
    };
    assert_eq!(gradient(false), [0.0, 0.0, 3.0, 3.0, 1.0, 1.0, 0.0, 0.0]);
    assert_close(&gradient(true), &[0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0], 1e-15);
    let classes = call("one_hot", vec![of(&index), Value::Int(-1)]);
    assert_eq!(classes.shape(), [5, 4]);
    assert_eq!(values(&classes.sum(&[0], false).unwrap()), [0.0, 3.0, 1.0, 1.0]);
}

#[test]
fn a_subscript_of_nothing_but_an_ellipsis_is_a_view() {
    let x = random(&[2, 3], 15);
    for part in [x.i(i![...]), x.i([])].map(Result::unwrap) {
        assert!(part.shares_storage_with(&x) && part.is_view() && !part.is_same(&x));
        part.set_requires_grad(true).unwrap();
        assert!(!x.requires_grad());
    }
}

#[test]
fn numbers_beside_wide_floats_are_not_rounded() {
    let x = tensor(&[1.0, 2.0], &[2], DType::F64);
    let mask = x.gt_scalar(1.5).unwrap();
    let chosen = call("where.ScalarOther", vec![of(&mask), of(&x), Value::Float(0.1)]);
    assert_eq!(values(&chosen), [0.1, 2.0]);
    let chosen = call("where.ScalarSelf", vec![of(&mask), Value::Float(0.1), of(&x)]);
    assert_eq!(values(&chosen), [1.0, 0.1]);
    let half = x.to_dtype(DType::F16).unwrap();
    let chosen = call("where.ScalarOther", vec![of(&mask), of(&half), Value::Float(-1e40)]);
    assert_eq!(values(&chosen), [f64::NEG_INFINITY, 2.0]);
}

#[test]
fn indices_of_several_dimensions_are_written_in_place() {
    let x = tensor(&[0.0; 6], &[2, 3], DType::F64);
    let places = [Some(indices(&[0, 1, 0], &[3])), Some(indices(&[2, 0, 2], &[3]))];
    x.index_put_(&places, &tensor(&[1.0, 2.0, 4.0], &[3], DType::F64), true).unwrap();
    assert_eq!(values(&x), [0.0, 0.0, 5.0, 2.0, 0.0, 0.0]);
}
