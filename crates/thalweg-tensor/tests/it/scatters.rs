//! Scatters of every form compared with a plain model: rows at one list of indices, an index for each element, and columns with
//! more elements than shared memory holds. Sums and products of floats may be combined in any order; all other results are exact.

use thalweg_ir::DType;
use thalweg_runtime::Result;
use thalweg_tensor::Tensor;

use crate::support::{
    assert_close, check_gradient, device, expect_out_of_range, on_own_device, random, tensor, values,
};

/// (outer, extent, count, inner).
type Sizes = [usize; 4];

/// Returns numbers that follow one another without a pattern, below a limit.
fn numbers(seed: u64, limit: usize) -> impl Iterator<Item = usize> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::from_fn(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some(((state >> 33) as usize) % limit)
    })
}

/// Returns elements whose sums depend on the order in f32, and that are exact in 16-bit floats and small integers.
fn elements(seed: u64, shape: &[usize], dtype: DType) -> Tensor {
    let count = shape.iter().product();
    let list: Vec<f64> = match dtype {
        DType::F32 | DType::F64 => {
            numbers(seed, 1 << 20).take(count).map(|n| n as f64 / 977.0 - 500.0).collect()
        }
        DType::Bool => numbers(seed, 2).take(count).map(|n| n as f64).collect(),
        _ => numbers(seed, 5).take(count).map(|n| n as f64).collect(),
    };
    tensor(&list, shape, dtype)
}

/// Returns the elements of a scatter: those at (o, k, i), in order of k, combined with the existing ones.
fn model(
    target: &Tensor,
    index: &[i64],
    source: &Tensor,
    reduce: &str,
    [outer, extent, count, inner]: Sizes,
) -> Tensor {
    let dtype = target.dtype();
    let round = |value: f64| if dtype == DType::F64 { value } else { f64::from(value as f32) };
    let (mut result, source) = (values(target), values(source));
    for at in 0..outer * count * inner {
        let (o, i) = (at / (count * inner), at % inner);
        let place = &mut result[(o * extent + index[at] as usize) * inner + i];
        *place = match reduce {
            "replace" => source[at],
            "sum" if dtype == DType::Bool => f64::from(*place != 0.0 || source[at] != 0.0),
            "sum" => round(*place + source[at]),
            "prod" => round(*place * source[at]),
            "amax" => place.max(source[at]),
            _ => place.min(source[at]),
        };
    }
    match dtype {
        DType::U8 => result.iter_mut().for_each(|value| *value = (*value as i64 as u8).into()),
        DType::I32 => result.iter_mut().for_each(|value| *value = (*value as i64 as i32).into()),
        _ => {}
    }
    tensor(&result, &[outer, extent, inner], dtype)
}

/// Compares a scatter with the model: up to the rounding of sums of some thousand elements of f32 or f64, else bit for bit.
#[track_caller]
fn held(found: Result<Tensor>, expected: &Tensor, what: &str) {
    let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(found.dtype(), expected.dtype(), "{what}");
    let tolerance = match found.dtype() {
        DType::F32 => 2e-6,
        DType::F64 => 1e-13,
        _ => 0.0,
    };
    let (found, expected) = (values(&found), values(expected));
    assert_eq!(found.len(), expected.len(), "{what}");
    let is_close = |found: f64, expected: f64| {
        found == expected || (found - expected).abs() <= tolerance * (expected.abs() + 1e5)
    };
    let wrong = found.iter().zip(&expected).position(|(&found, &expected)| !is_close(found, expected));
    if let Some(at) = wrong {
        panic!("{what}: element {at} is {}, not {}", found[at], expected[at]);
    }
}

fn indices(list: &[i64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(list, shape, &device()).unwrap()
}

/// Rows at one list: few, and so many of a row that they are sorted, of one chunk and of several, whose sums need several launches; all
/// at one index; narrow and wide rows; narrow ones of many outer elements.
const ROWS: &[Sizes] = &[
    [1, 7, 5, 16],
    [2, 50, 2100, 17],
    [2, 2, 300, 24],
    [70, 9, 20, 1],
    [64, 40, 33, 3],
    [2, 5, 300, 3],
    [3, 40, 1000, 8],
    [1, 900, 5000, 1],
    [1, 4, 5000, 2],
    [2, 2, 6000, 4],
    [1, 1, 70, 768],
];

#[test]
fn rows_at_a_list_of_indices_are_combined() {
    for &sizes @ [outer, extent, count, inner] in ROWS {
        let list: Vec<i64> = numbers(count as u64, extent).take(count).map(|place| place as i64).collect();
        let index = indices(&list, &[count]);
        let wide: Vec<i64> = (0..outer * count * inner).map(|at| list[at / inner % count]).collect();
        for dtype in [DType::F32, DType::Bf16, DType::F16, DType::F64, DType::I64, DType::U8] {
            let target = elements(1, &[outer, extent, inner], dtype);
            let source = elements(2, &[outer, count, inner], dtype);
            let what = format!("{sizes:?} {dtype}");
            let sum = model(&target, &wide, &source, "sum", sizes);
            held(target.index_add(1, &index, &source), &sum, &format!("index_add {what}"));
            let copy = model(&target, &wide, &source, "replace", sizes);
            held(target.index_copy(1, &index, &source), &copy, &format!("index_copy {what}"));
            let places = [None, Some(index.clone())];
            if outer == 1 {
                held(target.index_put(&places, &source, true), &sum, &format!("index_put {what}"));
                // A source with gaps between its rows, and indices as a column of a matrix.
                let apart =
                    source.transpose(1, 2).and_then(|turned| turned.contiguous()?.transpose(1, 2)).unwrap();
                let column = Tensor::stack(&[index.clone(), index.clone()], 1)
                    .and_then(|both| both.select(1, 1))
                    .unwrap();
                held(target.index_add(1, &column, &apart), &sum, &format!("strided index_add {what}"));
            }
            if dtype == DType::F32 {
                for reduce in ["prod", "amax", "amin"] {
                    let expected = model(&target, &wide, &source, reduce, sizes);
                    let found = target.index_reduce(1, &index, &source, reduce, true);
                    held(found, &expected, &format!("{reduce} {what}"));
                }
            }
        }
    }
}

#[test]
fn elements_at_indices_of_their_own_are_combined() {
    let all: &[Sizes] = &[
        [3, 7, 5, 4],
        [5, 300, 3000, 1],
        [2, 3, 700, 5],
        [1, 100, 50, 70],
        [2, 2, 2100, 1],
        [2, 1, 600, 1],
        [2, 30_000, 3000, 1],
    ];
    for &sizes @ [outer, extent, count, inner] in all {
        let total = outer * count * inner;
        let list: Vec<i64> = numbers(total as u64, extent).take(total).map(|place| place as i64).collect();
        let index = indices(&list, &[outer, count, inner]);
        for dtype in [DType::F32, DType::Bf16, DType::F16, DType::F64, DType::I64, DType::I32, DType::Bool] {
            let target = elements(3, &[outer, extent, inner], dtype);
            let source = elements(4, &[outer, count, inner], dtype);
            let what = format!("{sizes:?} {dtype}");
            let expected = model(&target, &list, &source, "sum", sizes);
            held(target.scatter_add(1, &index, &source), &expected, &format!("scatter_add {what}"));
            let expected = model(&target, &list, &source, "replace", sizes);
            held(target.scatter(1, &index, &source), &expected, &format!("scatter {what}"));
            if matches!(dtype, DType::F32 | DType::I64) {
                for reduce in ["prod", "amax", "amin"] {
                    if reduce == "prod" && dtype == DType::I64 {
                        continue;
                    }
                    let expected = model(&target, &list, &source, reduce, sizes);
                    let found = target.scatter_reduce(1, &index, &source, reduce, true);
                    held(found, &expected, &format!("{reduce} {what}"));
                }
            }
            if dtype == DType::F32 {
                // Transposed operands.
                let [index, source, target] = [&index, &source, &target]
                    .map(|x| x.transpose(0, 2).and_then(|x| x.contiguous()).unwrap());
                let [index, source, target] = [&index, &source, &target].map(|x| x.transpose(0, 2).unwrap());
                let found = target.scatter_add(1, &index, &source);
                held(found, &model(&target, &list, &source, "sum", sizes), &format!("turned {what}"));
            }
        }
    }
}

#[test]
fn several_broadcast_index_tensors_add_where_they_meet() {
    let x = random(&[4, 3, 5, 2], 1);
    let (first, second) = (indices(&[1, -1, 0, 1, 1, -4], &[2, 3]), indices(&[2, -1, 2], &[3]));
    let value = random(&[3, 5, 2], 2);
    let (mut sums, of_value) = (values(&x), values(&value));
    for at in 0..6 {
        let a = [1, 3, 0, 1, 1, 0][at];
        let b = [2, 2, 2][at % 3];
        for inner in 0..10 {
            sums[(a * 3 + b) * 10 + inner] += of_value[at % 3 * 10 + inner];
        }
    }
    let places = [Some(first), Some(second)];
    assert_eq!(values(&x.index_put(&places, &value, true).unwrap()), sums);
    check_gradient(&value, |value| x.index_put(&places, value, true).unwrap());
    check_gradient(&x, |x| x.index(&places).unwrap());
}

#[test]
fn nothing_is_combined_where_there_are_no_elements() {
    for dtype in [DType::F32, DType::Bf16, DType::I64] {
        let x = elements(5, &[3, 4], dtype);
        let none = indices(&[], &[0]);
        let expected = values(&x);
        assert_eq!(values(&x.index_add(0, &none, &elements(1, &[0, 4], dtype)).unwrap()), expected);
        assert_eq!(values(&x.index_copy(1, &none, &elements(1, &[3, 0], dtype)).unwrap()), expected);
        assert_eq!(
            values(&x.index_put(&[Some(none)], &elements(1, &[0, 4], dtype), true).unwrap()),
            expected
        );
        let empty = indices(&[], &[0, 4]);
        assert_eq!(values(&x.scatter_add(0, &empty, &elements(1, &[0, 4], dtype)).unwrap()), expected);
        let wide = elements(1, &[0, 4], dtype);
        assert_eq!(
            wide.index_add(1, &indices(&[1, 1], &[2]), &elements(1, &[0, 2], dtype)).unwrap().shape(),
            [0, 4]
        );
    }
}

#[test]
fn gradients_of_reads_are_sums_of_the_reads() {
    for dtype in [DType::F32, DType::Bf16, DType::F64] {
        let tolerance = match dtype {
            DType::F32 => 5e-4,
            DType::F64 => 1e-12,
            _ => 0.0,
        };
        let x = elements(6, &[50, 24], dtype).requires_grad_().unwrap();
        let list: Vec<i64> = numbers(3, 50).take(400).map(|row| row as i64).collect();
        let weight = elements(7, &[400, 24], dtype);
        let zeros = elements(8, &[50, 24], dtype).mul_scalar(0.0).unwrap();
        let wide: Vec<i64> = (0..400 * 24).map(|at| list[at / 24]).collect();
        let expected = model(&zeros, &wide, &weight, "sum", [1, 50, 400, 24]);
        let read = [
            x.index_select(0, &indices(&list, &[400])).unwrap(),
            x.index(&[Some(indices(&list, &[400]))]).unwrap(),
            x.gather(0, &indices(&wide, &[400, 24])).unwrap(),
        ];
        for read in read {
            read.backward_with(&weight).unwrap();
            assert_close(&values(&x.grad().unwrap()), &values(&expected), tolerance);
            x.set_grad(None).unwrap();
        }
    }
}

#[test]
fn rows_are_copied_whole() {
    on_own_device(|| {
        for dtype in [DType::F32, DType::Bf16, DType::F64, DType::I64, DType::U8, DType::C64] {
            let x = match dtype {
                DType::C64 => elements(9, &[3, 11, 32], DType::F32).to_dtype(dtype).unwrap(),
                _ => elements(9, &[3, 11, 32], dtype),
            };
            let all = values(&x.real().unwrap());
            let list: Vec<i64> = numbers(8, 11).take(700).map(|row| row as i64).collect();
            let row = |o: usize, k: i64| all[(o * 11 + k as usize) * 32..][..32].to_vec();
            let named = (0..3).flat_map(|o| list.iter().map(move |&k| (o, k)));
            let expected: Vec<f64> = named.flat_map(|(o, k)| row(o, k)).collect();
            let found = x.index_select(1, &indices(&list, &[700])).unwrap();
            assert_eq!(values(&found.real().unwrap()), expected, "{dtype}");
            let by_index = x.index(&[None, Some(indices(&list, &[7, 100]))]).unwrap();
            assert_eq!(by_index.shape(), [3, 7, 100, 32]);
            assert_eq!(values(&by_index.real().unwrap()), expected, "{dtype}");
            // A view whose rows are not contiguous, and do not begin at a multiple of 16 bytes.
            let part = x.narrow(2, 1, 16).unwrap();
            let found = part.index_select(1, &indices(&[4, 10], &[2])).unwrap();
            assert_eq!(
                values(&found.select(0, 1).unwrap().select(0, 1).unwrap().real().unwrap()),
                row(1, 10)[1..17]
            );
            device().synchronize().unwrap();
            // No element of rows out of range is read.
            let found = x.index_select(1, &indices(&[5, 11, -1], &[3])).unwrap();
            expect_out_of_range();
            let found = values(&found.real().unwrap());
            for (at, value) in found.into_iter().enumerate() {
                match at / 32 % 3 {
                    0 => assert_eq!(value, row(at / 96, 5)[at % 32]),
                    _ if dtype.is_floating_point() || dtype.is_complex() => assert!(value.is_nan()),
                    _ => assert_eq!(value, 0.0),
                }
            }
        }
    });
}

#[test]
fn indices_that_repeat_are_read_where_they_are() -> Result<()> {
    // (batches, heads, queries, keys, extent): indices that are the same for all heads, or for all batches and heads.
    for (sizes, dtype) in [([2, 3, 5, 7, 9], DType::F32), ([4, 8, 16, 33, 70], DType::Bf16)] {
        let [batches, heads, queries, keys, extent] = sizes;
        let list = |count: usize| -> Vec<f64> { numbers(5, extent).take(count).map(|n| n as f64).collect() };
        let whole = [batches, heads, queries, keys];
        let x = elements(1, &[batches, heads, queries, extent], dtype);
        let gradient = elements(2, &whole, dtype);
        for shape in [[1, 1, queries, keys], [batches, 1, queries, keys]] {
            let index = tensor(&list(shape.iter().product()), &shape, DType::I64).expand(&whole)?;
            let result_of = |index: &Tensor| -> Result<[Vec<f64>; 3]> {
                let x = x.detach().requires_grad_()?;
                let result = x.gather(-1, index)?;
                result.backward_with(&gradient)?;
                let added = x.detach().scatter_add(-1, index, &gradient)?;
                Ok([values(&result), values(&x.grad().unwrap()), values(&added)])
            };
            let [found, wanted] = [result_of(&index)?, result_of(&index.contiguous()?)?];
            assert_eq!(found[0], wanted[0], "{whole:?}");
            assert_close(&found[1], &wanted[1], 1e-5);
            assert_close(&found[2], &wanted[2], 1e-5);
            let model = model(
                &x.detach(),
                &values(&index.contiguous()?).iter().map(|&n| n as i64).collect::<Vec<_>>(),
                &gradient,
                "sum",
                [batches * heads * queries, extent, keys, 1],
            );
            assert_close(&found[2], &values(&model), 1e-2);
        }
    }
    Ok(())
}

#[test]
fn repeated_indices_take_no_memory_of_their_own() {
    on_own_device(|| {
        let device = device();
        let x = random(&[64, 32, 16], 1).to_dtype(DType::F32).unwrap();
        let index = tensor(&vec![3.0; 32 * 8], &[1, 32, 8], DType::I64).expand(&[64, 32, 8]).unwrap();
        let allocator = device.allocator();
        allocator.reset_peak_memory_stats();
        let before = allocator.statistics().allocated_bytes.all.current;
        let result = x.gather(-1, &index).unwrap();
        let more = allocator.statistics().allocated_bytes.all.peak - before;
        assert!((more as usize) < 4 * result.elements() + 8 * 32 * 8, "{more}");
    });
}
