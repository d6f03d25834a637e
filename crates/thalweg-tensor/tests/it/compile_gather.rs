//! Compiled functions that gather: rows are read where they are by the loops and the sums that need them.

use thalweg_ir::DType;
use thalweg_runtime::Result;
use thalweg_tensor::Tensor;
use thalweg_tensor::compile::{compiled, counters, set_recomputed_bytes};

use crate::support::{self, device, on_own_device, values};

/// The bits of a tensor's elements; all NaNs are one.
fn bits(tensor: &Tensor) -> Vec<u64> {
    values(tensor).into_iter().map(|value| if value.is_nan() { 1 } else { value.to_bits() }).collect()
}

fn random(shape: &[usize], dtype: DType, seed: u64) -> Tensor {
    support::random(shape, seed).mul_scalar(8.0).and_then(|x| x.to_dtype(dtype)).unwrap()
}

/// Indices from 0 on below an extent, of which some are frequent.
fn indices(count: usize, extent: usize, seed: u64) -> Tensor {
    let drawn = support::random(&[count], seed);
    let squares = drawn.mul(&drawn).unwrap().mul_scalar(extent as f64).unwrap();
    squares.to_dtype(DType::I64).unwrap().clamp(0, extent as i64 - 1).unwrap()
}

type Function = fn(&[Tensor], &[Tensor]) -> Result<Vec<Tensor>>;

/// Sums of the rows of neighbours, in several forms: tensors are rows of nodes and weights of edges; lists are sources and targets.
const FUNCTIONS: [(&str, Function); 10] = [
    ("rows that exist", |x, i| {
        Ok(vec![Tensor::zeros_like(&x[0])?.index_add(0, &i[1], &x[0].index_select(0, &i[0])?)?])
    }),
    ("rows that are computed", |x, i| {
        let rows = x[0].relu()?;
        let sums = Tensor::zeros_like(&rows)?.index_add(0, &i[1], &rows.index_select(0, &i[0])?)?;
        Ok(vec![sums.mul(&rows)?, rows])
    }),
    ("rows that nothing else holds", |x, i| {
        let read = x[0].relu()?.add_scalar(1.0)?.index_select(0, &i[0])?;
        Ok(vec![Tensor::zeros_like(&x[0])?.index_add(0, &i[1], &read)?])
    }),
    ("the same rows twice, and returned", |x, i| {
        let read = x[0].index_select(0, &i[0])?;
        let sums = x[0].index_add(0, &i[1], &read)?;
        Ok(vec![sums.index_add(0, &i[0], &read)?, read])
    }),
    ("rows that are written later", |x, i| {
        let rows = x[0].add_scalar(1.0)?;
        let read = rows.index_select(0, &i[0])?;
        rows.mul_scalar_(2.0)?;
        Ok(vec![rows.index_add(0, &i[1], &read)?])
    }),
    ("rows that are written by their sum", |x, i| {
        let rows = x[0].add_scalar(1.0)?;
        rows.index_add_(0, &i[1], &rows.index_select(0, &i[0])?)?;
        Ok(vec![rows])
    }),
    ("greatest rows", |x, i| {
        Ok(vec![x[0].index_reduce(0, &i[1], &x[0].neg()?.index_select(0, &i[0])?, "amax", true)?])
    }),
    ("weighted rows", |x, i| {
        let read = x[0].index_select(0, &i[0])?.mul(&x[1])?;
        Ok(vec![Tensor::zeros_like(&x[0])?.index_add(0, &i[1], &read)?])
    }),
    ("several numbers of a row", |x, i| {
        let nodes = x[0].reshape(&[x[0].shape()[0], 2, x[0].shape()[1] / 2])?;
        let read = nodes.index_select(0, &i[0])?.mul(&x[1].unsqueeze(2)?)?;
        Ok(vec![Tensor::zeros_like(&nodes)?.index_add(0, &i[1], &read)?])
    }),
    ("columns", |x, i| {
        let turned = x[0].transpose(0, 1)?.contiguous()?;
        let read = turned.index_select(1, &i[0])?.abs()?;
        Ok(vec![Tensor::zeros_like(&turned)?.index_add(1, &i[1], &read)?])
    }),
];

#[test]
fn what_is_gathered_has_the_bits_of_eager_calls() {
    let (nodes, edges) = (300, 4_000);
    let lists = [indices(edges, nodes, 1), indices(edges, nodes, 2)];
    for (number, dtype) in [DType::F32, DType::Bf16, DType::F64, DType::I64].into_iter().enumerate() {
        for width in [64, 34] {
            let tensors = [
                random(&[nodes, width], dtype, 3 + number as u64),
                random(&[edges, 1], dtype, 9).expand(&[edges, 2]).unwrap().contiguous().unwrap(),
            ];
            // On a GPU, sums of floats in single columns depend on timing.
            let is_repeatable = |name: &str| name != "columns" || !dtype.is_floating_point();
            for (name, function) in FUNCTIONS.into_iter().filter(|(name, _)| is_repeatable(name)) {
                let tensors = match name {
                    "weighted rows" => [tensors[0].clone(), tensors[1].narrow(1, 0, 1).unwrap()],
                    _ => tensors.clone(),
                };
                let run = |is_compiled: bool| -> Vec<Vec<u64>> {
                    let leaf = |x: &Tensor| x.detach().mul_scalar(1.0).unwrap();
                    let own: Vec<Tensor> = tensors.iter().map(leaf).collect();
                    let has_gradient = dtype.is_floating_point() && name != "rows that are written later";
                    own.iter().for_each(|x| x.set_requires_grad(has_gradient).unwrap());
                    let call = || function(&own, &lists);
                    let mut results = if is_compiled { compiled(call) } else { call() }.unwrap();
                    if has_gradient {
                        let sum = results[0].to_dtype(DType::F32).unwrap();
                        let weights = random(sum.shape(), DType::F32, 77);
                        sum.mul(&weights).unwrap().sum(&[], false).unwrap().backward().unwrap();
                        results.extend(own.iter().filter_map(Tensor::grad));
                    }
                    results.iter().map(bits).collect()
                };
                assert!(run(true) == run(false), "{name}, {dtype}, {width} columns");
            }
        }
    }
}

#[test]
fn what_only_sums_read_is_not_gathered() {
    on_own_device(|| {
        let device = device();
        let (nodes, edges, width) = (500, 20_000, 64);
        let x = random(&[nodes, width], DType::F32, 1);
        let lists = [indices(edges, nodes, 2), indices(edges, nodes, 3)];
        let bytes = (edges * width * 4) as u64;
        let requested = |which: &str| {
            let name = format!("requested_bytes.all.{which}");
            let stats = device.allocator().memory_stats();
            stats.into_iter().find(|(known, _)| *known == name).expect("it is counted").1 as u64
        };
        let peak = |is_compiled: bool, function: Function| {
            device.synchronize().unwrap();
            device.allocator().reset_peak_memory_stats();
            let before = requested("current");
            let call = || function(std::slice::from_ref(&x), &lists);
            let _results = if is_compiled { compiled(call) } else { call() }.unwrap();
            requested("peak") - before
        };
        for (name, function) in &FUNCTIONS[..3] {
            assert!(peak(false, *function) > bytes, "{name}");
            assert!(peak(true, *function) < bytes / 2, "{name}");
        }
        let before = counters();
        let fused = || x.index_select(0, &lists[0])?.mul_scalar(3.0)?.tanh();
        compiled(fused).unwrap();
        let after = counters();
        assert_eq!((after.loops - before.loops, after.kernels - before.kernels), (3, 1));
    });
}

#[test]
fn an_index_out_of_range_is_reported_and_reads_nan() {
    on_own_device(|| {
        set_recomputed_bytes(Some(0));
        for wrong in [-1, 4, i64::MAX] {
            let x = random(&[4, 16], DType::F32, 1);
            let index = Tensor::from_slice(&[0, wrong, 3], &[3], &device()).unwrap();
            let result = compiled(|| x.index_select(0, &index)?.add_scalar(1.0)).unwrap();
            let error = device().synchronize().unwrap_err().to_string();
            assert!(
                error.contains(&format!("index {wrong} is out of bounds for dimension 0 with size 4")),
                "{error}"
            );
            let found = values(&result);
            let is_nan = |row: usize| found[row * 16..][..16].iter().all(|value| value.is_nan());
            assert!(!is_nan(0) && is_nan(1) && !is_nan(2));
        }
        set_recomputed_bytes(None);
    });
}
