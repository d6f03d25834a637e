//! Operators that are clients of device-wide primitives (compaction, histograms, sorted segments, selection, scans in parts),
//! compared with plain models: sizes around those of tiles and parts, and flags and keys that are skewed.

use thalweg_ir::DType;
use thalweg_runtime::{CaptureOptions, Graph, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::deterministic::use_deterministic_algorithms;
use thalweg_tensor::dispatch::Value;

use crate::deterministic::DETERMINISTIC;
use crate::norms::call;
use crate::support::{assert_close, check_gradient, device, on_own_device, random, tensor, values};

/// Numbers that follow one another without a pattern.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit.max(1)
    }

    /// Indices below a limit: even, all equal, few, mostly small, or sorted.
    fn indices(&mut self, count: usize, limit: usize, kind: usize) -> Vec<i64> {
        let mut list: Vec<i64> = (0..count)
            .map(|_| match kind {
                0 | 4 => self.below(limit) as i64,
                1 => limit as i64 / 2,
                2 => (self.below(3) * limit / 3) as i64,
                _ => {
                    (self.below(limit) * self.below(limit) / limit.max(1) * self.below(limit) / limit.max(1))
                        as i64
                }
            })
            .collect();
        if kind == 4 {
            list.sort_unstable();
        }
        list
    }
}

const KINDS: std::ops::Range<usize> = 0..5;

/// Numbers of elements around those of a thread, of a tile, and of several tiles.
const SIZES: [usize; 9] = [0, 1, 15, 16, 17, 4095, 4096, 4097, 20_011];

fn long(list: &[i64]) -> Tensor {
    Tensor::from_slice(list, &[list.len()], &device()).unwrap()
}

fn flags(count: usize, one_in: usize, numbers: &mut Numbers) -> Vec<bool> {
    (0..count).map(|_| numbers.below(one_in) == 0).collect()
}

fn of(tensor: &Tensor) -> Value {
    Value::Tensor(tensor.clone())
}

#[test]
fn flags_select_elements_in_order() {
    let mut numbers = Numbers(1);
    for count in SIZES {
        // All, about half, few.
        for one_in in [1, 2, 500] {
            let flags = flags(count, one_in, &mut numbers);
            let mask = Tensor::from_slice(&flags, &[count], &device()).unwrap();
            let places: Vec<i64> = (0..count).filter(|&at| flags[at]).map(|at| at as i64).collect();
            let found = mask.nonzero().unwrap();
            assert_eq!(found.shape(), [places.len(), 1]);
            assert_eq!(found.to_vec::<i64>().unwrap(), places, "{count} {one_in}");
            for dtype in [DType::U8, DType::Bf16, DType::F32, DType::I64, DType::C128] {
                let x = Tensor::arange(count, 0, 1, DType::I64, &device()).unwrap().to_dtype(dtype).unwrap();
                let whole = values(&if dtype.is_complex() { x.real().unwrap() } else { x.clone() });
                let expected: Vec<f64> = places.iter().map(|&at| whole[at as usize]).collect();
                let found = x.masked_select(&mask).unwrap();
                let found = if dtype.is_complex() { found.real().unwrap() } else { found };
                assert_eq!(values(&found), expected, "{count} {one_in} {dtype}");
            }
            let (x, source) = (random(&[count], 1), random(&[count + 3], 2));
            let mut expected = values(&x);
            let of_source = values(&source);
            places.iter().enumerate().for_each(|(from, &to)| expected[to as usize] = of_source[from]);
            assert_eq!(values(&x.masked_scatter(&mask, &source).unwrap()), expected, "{count} {one_in}");
        }
    }
}

#[test]
fn coordinates_have_the_order_of_memory() {
    let mut numbers = Numbers(2);
    for shape in [&[7usize, 11, 13][..], &[129, 257], &[3, 0, 2], &[2, 3, 5, 7, 11], &[1]] {
        let count = shape.iter().product();
        let flags: Vec<f64> = flags(count, 3, &mut numbers).into_iter().map(f64::from).collect();
        let x = tensor(&flags, shape, DType::F32);
        let mut expected = Vec::new();
        for at in (0..count).filter(|&at| flags[at] != 0.0) {
            let mut rest = at;
            let mut row: Vec<i64> = Vec::new();
            for &extent in shape.iter().rev() {
                row.push((rest % extent) as i64);
                rest /= extent;
            }
            expected.extend(row.into_iter().rev());
        }
        let rows = expected.len() / shape.len();
        assert_eq!(x.nonzero().unwrap().to_vec::<i64>().unwrap(), expected, "{shape:?}");
        // A fixed number of rows: fewer, and more than there are.
        for size in [rows / 2, rows + 5] {
            let found = x.nonzero_static(size as i64).unwrap().to_vec::<i64>().unwrap();
            let mut fixed = expected.clone();
            fixed.resize(size * shape.len(), -1);
            assert_eq!(found, fixed, "{shape:?} {size}");
        }
    }
    assert!(Tensor::ones(&[1; 17], DType::Bool, &device()).unwrap().nonzero().is_err());
}

#[test]
fn gradients_flow_to_selected_elements() {
    let x = random(&[4, 5], 3);
    let mask = x.gt_scalar(0.0).unwrap();
    let source = random(&[30], 4);
    check_gradient(&x, |x| x.masked_select(&mask).unwrap().square().unwrap());
    check_gradient(&x, |x| x.masked_scatter(&mask, &source).unwrap().square().unwrap());
    check_gradient(&source, |source| x.masked_scatter(&mask, source).unwrap().square().unwrap());
    // Broadcast: an element is selected several times.
    let row = random(&[1, 5], 5);
    check_gradient(&row, |row| row.masked_select(&mask).unwrap().square().unwrap());
}

#[test]
fn a_result_whose_size_depends_on_data_is_not_captured() {
    on_own_device(|| {
        let x = random(&[100], 1);
        let mask = x.gt_scalar(0.0).unwrap();
        let regions: [&dyn Fn() -> Result<Tensor>; 2] = [&|| x.nonzero(), &|| x.masked_select(&mask)];
        for region in regions {
            let error = Graph::capture(&device(), CaptureOptions::default(), region).unwrap_err();
            assert!(error.is_capture(), "{error}");
        }
        let (graph, found) =
            Graph::capture(&device(), CaptureOptions::default(), || x.nonzero_static(7)).unwrap();
        graph.replay().unwrap();
        let expected = x.nonzero_static(7).unwrap().to_vec::<i64>().unwrap();
        assert_eq!(found.to_vec::<i64>().unwrap(), expected);
    });
}

#[test]
fn bins_are_counted() {
    let mut numbers = Numbers(3);
    for count in SIZES {
        // Bins with several counters, with one, and too many for shared memory.
        for limit in [1, 2, 300, 12_289, 30_000] {
            for kind in KINDS {
                let list = numbers.indices(count, limit, kind);
                let mut expected = vec![0i64; list.iter().max().map_or(0, |&most| most as usize + 1)];
                list.iter().for_each(|&bin| expected[bin as usize] += 1);
                let x = long(&list);
                let found = x.bincount(None, 0).unwrap().to_vec::<i64>().unwrap();
                assert_eq!(found, expected, "{count} {limit} {kind}");
                expected.resize(expected.len().max(64), 0);
                let narrow = x.to_dtype(DType::I32).unwrap();
                assert_eq!(narrow.bincount(None, 64).unwrap().to_vec::<i64>().unwrap(), expected);
            }
        }
    }
    assert!(long(&[3, -1]).bincount(None, 0).is_err());
}

#[test]
fn bins_of_equal_width_include_both_bounds() {
    let x = tensor(&[-1.0, 0.0, 0.24, 0.25, 0.99, 1.0, 1.01, f64::NAN], &[8], DType::F32);
    let found = values(&x.histc(4, 0.0, 1.0).unwrap());
    assert_eq!(found, [2.0, 1.0, 0.0, 2.0]);
    for dtype in [DType::F32, DType::F64, DType::Bf16] {
        let x = random(&[5000], 5).to_dtype(dtype).unwrap();
        let found = values(&x.histc(7, 0.0, 0.0).unwrap());
        let all = values(&x);
        let (low, high) = all.iter().fold((f64::MAX, f64::MIN), |(low, high), &x| (low.min(x), high.max(x)));
        let mut expected = vec![0.0; 7];
        for x in all {
            // Far enough from a bound, rounding does not decide.
            expected[(((x - low) / (high - low) * 7.0) as usize).min(6)] += 1.0;
        }
        let wrong: f64 = found.iter().zip(&expected).map(|(a, b): (&f64, &f64)| (a - b).abs()).sum();
        assert!(wrong <= if dtype == DType::Bf16 { 40.0 } else { 2.0 }, "{dtype} {found:?} {expected:?}");
    }
    let equal = Tensor::ones(&[5000], DType::F32, &device()).unwrap();
    assert_eq!(values(&equal.histc(4, 0.0, 0.0).unwrap()), [0.0, 0.0, 5000.0, 0.0]);
}

#[test]
fn distinct_elements_have_ranks_and_counts() {
    let mut numbers = Numbers(4);
    for count in [1, 2, 4097, 9000] {
        for kind in KINDS {
            let list = numbers.indices(count, count / 3 + 1, kind);
            let mut distinct = list.clone();
            distinct.sort_unstable();
            distinct.dedup();
            let ranks: Vec<i64> = list.iter().map(|x| distinct.binary_search(x).unwrap() as i64).collect();
            let mut counts = vec![0i64; distinct.len()];
            ranks.iter().for_each(|&rank| counts[rank as usize] += 1);
            for dtype in [DType::I64, DType::I32, DType::F32] {
                let x = long(&list).to_dtype(dtype).unwrap();
                let [found, inverse, times] = x.unique(true, true, true).unwrap();
                let found: Vec<i64> = values(&found).into_iter().map(|x| x as i64).collect();
                assert_eq!(found, distinct, "{count} {kind} {dtype}");
                assert_eq!(inverse.to_vec::<i64>().unwrap(), ranks, "{count} {kind} {dtype}");
                assert_eq!(times.to_vec::<i64>().unwrap(), counts, "{count} {kind} {dtype}");
            }
        }
    }
}

/// Returns the sum of rows at indices, in f64.
fn sums(index: &[i64], source: &[f64], [rows, width]: [usize; 2]) -> Vec<f64> {
    let mut sums = vec![0.0; rows * width];
    for (k, &row) in index.iter().enumerate() {
        (0..width).for_each(|i| sums[row as usize * width + i] += source[k * width + i]);
    }
    sums
}

#[test]
fn rows_of_skewed_keys_are_added() {
    let _guard = DETERMINISTIC.lock();
    let mut numbers = Numbers(5);
    for is_deterministic in [false, true] {
        use_deterministic_algorithms(is_deterministic, false);
        for (count, width) in [(1, 1), (33, 20), (4097, 1), (4097, 3), (2100, 17), (5000, 33)] {
            for (kind, rows) in KINDS.flat_map(|kind| [1, 300].map(|rows| (kind, rows))) {
                let list = numbers.indices(count, rows, kind);
                let index = long(&list);
                let source = random(&[count, width], 6);
                let expected = sums(&list, &values(&source), [rows, width]);
                let zeros = Tensor::zeros(&[rows, width], DType::F64, &device()).unwrap();
                let found = zeros.index_add(0, &index, &source).unwrap();
                assert_close(&values(&found), &expected, 1e-12);
                let wide = index.unsqueeze(1).unwrap().expand(&[count, width]).unwrap();
                let own = wide.contiguous().unwrap();
                for index in [wide, own] {
                    let found = zeros.scatter_add(0, &index, &source).unwrap();
                    assert_close(&values(&found), &expected, 1e-12);
                }
            }
        }
    }
    use_deterministic_algorithms(false, false);
}

#[test]
fn gradients_of_large_tables_are_sums() {
    let mut numbers = Numbers(6);
    for kind in KINDS {
        for (dtype, width) in [(DType::F32, 20), (DType::Bf16, 8), (DType::F64, 3)] {
            let (count, rows) = (5000, 300);
            let list = numbers.indices(count, rows, kind);
            // Whole numbers, of which few are added where 16 bits would have to round: results are exact.
            let source: Vec<f64> = (0..count * width).map(|_| numbers.below(3) as f64 - 1.0).collect();
            let gradient = tensor(&source, &[count, width], dtype);
            let mut expected = sums(&list, &source, [rows, width]);
            expected[150 * width..151 * width].fill(0.0);
            let arguments = [
                of(&gradient),
                of(&long(&list)),
                Value::Int(rows as i64),
                Value::Int(150),
                Value::Bool(false),
            ];
            let found = &call("embedding_dense_backward", &arguments)[0];
            let expected = values(&tensor(&expected, &[rows, width], dtype));
            assert_eq!(values(found), expected, "{kind} {dtype}");
        }
    }
}

#[test]
fn one_point_of_a_row_is_selected() {
    for [outer, length, inner] in [[3, 7, 1], [5, 300, 2], [2, 4097, 1], [1, 5000, 3], [1, 140_000, 1]] {
        for dtype in [DType::F32, DType::F64, DType::Bf16, DType::I64, DType::I32, DType::U8] {
            let mut numbers = Numbers(7);
            let list: Vec<f64> = (0..outer * length * inner).map(|_| numbers.below(200) as f64).collect();
            let x = tensor(&list, &[outer, length, inner], dtype);
            let [sorted, places] = x.sort(1, false).unwrap();
            for k in [1, length / 3 + 1, length] {
                let [found, place] = x.kthvalue(k as i64, 1, true).unwrap();
                let at = |x: &Tensor| values(&x.narrow(1, k - 1, 1).unwrap());
                assert_eq!(values(&found), at(&sorted), "{outer} {length} {inner} {dtype} {k}");
                assert_eq!(values(&place), at(&places), "{outer} {length} {inner} {dtype} {k}");
            }
            let [median, _] = x.median_dim(1, false).unwrap();
            assert_eq!(values(&median), values(&sorted.select(1, (length - 1) / 2).unwrap()));
            if dtype.is_floating_point() {
                let flat = x.reshape(&[outer * length * inner]).unwrap();
                let nan = tensor(&[f64::NAN, 1.0], &[2], dtype);
                assert!(values(&Tensor::cat(&[flat, nan], 0).unwrap().median().unwrap())[0].is_nan());
            }
        }
    }
    let x = random(&[3, 9], 8);
    check_gradient(&x, |x| x.kthvalue(4, 1, false).unwrap()[0].clone());
    check_gradient(&x, |x| x.median_dim(0, true).unwrap()[0].clone());
}

#[test]
fn few_long_rows_are_scanned_in_parts() {
    for [outer, length] in [[1, 16_384], [1, 40_001], [3, 24_577]] {
        let mut numbers = Numbers(9);
        let list: Vec<i64> = (0..outer * length).map(|_| numbers.below(1000) as i64 - 500).collect();
        let x = Tensor::from_slice(&list, &[outer, length], &device()).unwrap();
        let sums = list.chunks(length).flat_map(|row| {
            row.iter().scan(0, |sum, &x| {
                *sum += x;
                Some(*sum)
            })
        });
        let sums: Vec<i64> = sums.collect();
        assert_eq!(x.cumsum(1).unwrap().to_vec::<i64>().unwrap(), sums, "{outer} {length}");
        let floats = x.to_dtype(DType::F32).unwrap();
        let wide: Vec<f64> = sums.iter().map(|&sum| sum as f64).collect();
        assert_eq!(values(&floats.cumsum(1).unwrap()), wide, "{outer} {length}");
        let [most, places] = floats.cummax(1).unwrap();
        let (most, places) = (values(&most), places.to_vec::<i64>().unwrap());
        for row in 0..outer {
            let mut best = (i64::MIN, 0);
            for at in 0..length {
                if list[row * length + at] >= best.0 {
                    best = (list[row * length + at], at as i64);
                }
                let found = (most[row * length + at] as i64, places[row * length + at]);
                assert_eq!(found, best, "{outer} {length}");
            }
        }
        check_backward_sum(&floats);
    }
}

/// The gradient of a cumulative sum is a sum from the end.
fn check_backward_sum(x: &Tensor) {
    let x = x.requires_grad_().unwrap();
    x.cumsum(1).unwrap().sum(&[], false).unwrap().backward().unwrap();
    let length = x.shape()[1];
    let expected: Vec<f64> = (0..x.elements()).map(|at| (length - at % length) as f64).collect();
    assert_eq!(values(&x.grad().unwrap()), expected);
}

#[test]
fn windows_add_their_gradients() {
    let x = random(&[2, 11, 3], 12);
    for (size, step) in [(3, 1), (4, 2), (5, 5), (2, 4), (11, 3)] {
        check_gradient(&x, |x| x.unfold(1, size, step).unwrap().square().unwrap());
        let leaf = x.requires_grad_().unwrap();
        let windows = leaf.unfold(1, size, step).unwrap();
        let gradient = random(windows.shape(), 13);
        windows.backward_with(&gradient).unwrap();
        let sizes = Value::Ints(vec![2, 11, 3]);
        let arguments = [of(&gradient), sizes, Value::Int(1), Value::Int(size), Value::Int(step)];
        let found = &call("unfold_backward", &arguments)[0];
        assert_eq!(values(found), values(&leaf.grad().unwrap()));
        leaf.set_grad(None).unwrap();
        leaf.set_requires_grad(false).unwrap();
    }
}

#[test]
fn distances_of_many_rows_are_products() {
    let (x, y) = (random(&[30, 4], 14), random(&[3, 4], 15));
    let (rows, others) = (values(&x), values(&y));
    let expected: Vec<f64> = (0..90)
        .map(|at| {
            let (i, j) = (at / 3, at % 3);
            (0..4).map(|k| (rows[i * 4 + k] - others[j * 4 + k]).powi(2)).sum::<f64>().sqrt()
        })
        .collect();
    assert_close(&values(&x.cdist(&y, 2.0, None).unwrap()), &expected, 1e-7);
    assert_close(&values(&x.cdist(&y, 2.0, Some(2)).unwrap()), &expected, 1e-12);
    check_gradient(&x, |x| x.cdist(&y, 2.0, None).unwrap());
    check_gradient(&y, |y| x.cdist(y, 2.0, None).unwrap());
}

#[test]
fn drawn_categories_have_weights() {
    let weights = tensor(&[0.0, 1.0, 0.0, 2.0, 3.0, 0.0], &[6], DType::F32);
    for (count, replacement) in [(1, false), (3, false), (50, true)] {
        let drawn = weights.multinomial(count, replacement).unwrap().to_vec::<i64>().unwrap();
        assert!(drawn.iter().all(|place| [1, 3, 4].contains(place)), "{drawn:?}");
        let mut distinct = drawn.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(replacement || distinct.len() == drawn.len(), "{drawn:?}");
    }
    for wrong in [[f64::NAN, 1.0], [f64::INFINITY, 1.0], [-1.0, 2.0], [0.0, 0.0]] {
        assert!(tensor(&wrong, &[2], DType::F32).multinomial(1, false).is_err(), "{wrong:?}");
    }
}
