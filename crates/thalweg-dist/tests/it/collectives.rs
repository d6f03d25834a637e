//! Values of every collective against a plain model, on the fast simulator and under seeds and the race checker.

use thalweg_dist::ReduceOp::{Avg, Max, Min, Product, Sum};
use thalweg_dist::{ProcessGroup, ReduceOp, run_ranks, simulated_devices};
use thalweg_ir::{DType, bf16, f16};
use thalweg_runtime::{CaptureMode, CaptureOptions, Graph, Result, Stream};
use thalweg_tensor::Tensor;

use crate::support::{Random, checked, empty, tensor, values};

const OPERATIONS: [ReduceOp; 5] = [Sum, Product, Min, Max, Avg];

/// Returns the expected result of a reduction of the ranks' values.
fn reduced(inputs: &[Vec<f32>], operation: ReduceOp) -> Vec<f32> {
    let join = |a: f32, b: f32| match operation {
        Sum | Avg => a + b,
        Product => a * b,
        Min => a.min(b),
        Max => a.max(b),
        ReduceOp::PreMulSum(_) => unreachable!("its factors have a test of their own"),
    };
    let mut result = inputs[0].clone();
    for input in &inputs[1..] {
        result.iter_mut().zip(input).for_each(|(own, other)| *own = join(*own, *other));
    }
    if operation == Avg {
        result.iter_mut().for_each(|value| *value /= inputs.len() as f32);
    }
    result
}

/// Runs one collective of a kind, and compares its results with the model.
fn collective(group: &ProcessGroup, kind: u64, step: u64, count: usize, operation: ReduceOp) -> Result<()> {
    let (rank, ranks) = (group.rank(), group.size());
    let (own, root) = (rank as usize, (step % u64::from(ranks)) as u32);
    let all = |count: usize| -> Vec<Vec<f32>> { (0..ranks).map(|rank| values(rank, step, count)).collect() };
    let inputs = all(count);
    let mine = tensor(group, &inputs[own])?;
    let wide = count * ranks as usize;
    match kind {
        0 => {
            group.all_reduce(&mine, operation)?.wait()?;
            assert_eq!(mine.to_vec::<f32>()?, reduced(&inputs, operation));
        }
        1 => {
            group.reduce(&mine, root, operation)?.wait()?;
            let wanted = if rank == root { reduced(&inputs, operation) } else { inputs[own].clone() };
            assert_eq!(mine.to_vec::<f32>()?, wanted);
        }
        2 => {
            group.broadcast(&mine, root)?.wait()?;
            assert_eq!(mine.to_vec::<f32>()?, inputs[root as usize]);
        }
        3 => {
            let output = empty(group, wide)?;
            group.all_gather_into_tensor(&output, &mine)?.wait()?;
            assert_eq!(output.to_vec::<f32>()?, inputs.concat());
        }
        4 => all_gather_uneven(group, step, count)?,
        5 => {
            let inputs = all(wide);
            let (input, output) = (tensor(group, &inputs[own])?, empty(group, count)?);
            group.reduce_scatter_tensor(&output, &input, operation)?.wait()?;
            assert_eq!(output.to_vec::<f32>()?, reduced(&inputs, operation)[own * count..][..count]);
        }
        6 => reduce_scatter_uneven(group, step, count, operation)?,
        7 => all_to_all_uneven(group, step, count)?,
        8 => {
            let inputs: Vec<Tensor> = (0..ranks)
                .map(|to| tensor(group, &values(rank * ranks + to, step, count)))
                .collect::<Result<_>>()?;
            let outputs: Vec<Tensor> = (0..ranks).map(|_| empty(group, count)).collect::<Result<_>>()?;
            group.all_to_all(&outputs, &inputs)?.wait()?;
            for (from, output) in (0..).zip(&outputs) {
                assert_eq!(output.to_vec::<f32>()?, values(from * ranks + rank, step, count));
            }
        }
        9 => {
            let list: Vec<Tensor> = (0..ranks).map(|_| empty(group, count)).collect::<Result<_>>()?;
            group.gather(&mine, (rank == root).then_some(&list[..]), root)?.wait()?;
            for (other, output) in list.iter().enumerate() {
                let wanted = if rank == root { inputs[other].clone() } else { vec![-1.0; count] };
                assert_eq!(output.to_vec::<f32>()?, wanted);
            }
        }
        10 => {
            let list: Vec<Tensor> = inputs.iter().map(|input| tensor(group, input)).collect::<Result<_>>()?;
            let output = empty(group, count)?;
            group.scatter(&output, (rank == root).then_some(&list[..]), root)?.wait()?;
            assert_eq!(output.to_vec::<f32>()?, inputs[own]);
        }
        _ => ring(group, &mine, &inputs)?,
    }
    Ok(())
}

/// Sends to the next rank and receives from the previous one in one coalesced group, since a send alone may wait for its receive.
fn ring(group: &ProcessGroup, mine: &Tensor, inputs: &[Vec<f32>]) -> Result<()> {
    let (rank, ranks) = (group.rank(), group.size());
    let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let output = empty(group, mine.elements())?;
    let mut both = group.coalescing();
    both.send(mine, next)?;
    both.recv(&output, before)?;
    both.submit()?.wait()?;
    assert_eq!(output.to_vec::<f32>()?, inputs[before as usize]);
    Ok(())
}

/// Each rank passes a different number of elements.
fn all_gather_uneven(group: &ProcessGroup, step: u64, count: usize) -> Result<()> {
    let (rank, ranks) = (group.rank(), group.size());
    let own_count = |rank: u32| count + rank as usize;
    let mine = tensor(group, &values(rank, step, own_count(rank)))?;
    let outputs: Vec<Tensor> = (0..ranks).map(|rank| empty(group, own_count(rank))).collect::<Result<_>>()?;
    group.all_gather(&outputs, &mine)?.wait()?;
    for (rank, output) in (0..).zip(&outputs) {
        assert_eq!(output.to_vec::<f32>()?, values(rank, step, own_count(rank)));
    }
    Ok(())
}

/// Each rank receives a different number of elements.
fn reduce_scatter_uneven(group: &ProcessGroup, step: u64, count: usize, operation: ReduceOp) -> Result<()> {
    let (rank, ranks) = (group.rank(), group.size());
    let own = rank as usize;
    let lists: Vec<Tensor> = (0..ranks)
        .map(|place| tensor(group, &values(rank, step + u64::from(place), count + place as usize)))
        .collect::<Result<_>>()?;
    let output = empty(group, count + own)?;
    group.reduce_scatter(&output, &lists, operation)?.wait()?;
    let inputs: Vec<Vec<f32>> =
        (0..ranks).map(|other| values(other, step + u64::from(rank), count + own)).collect();
    assert_eq!(output.to_vec::<f32>()?, reduced(&inputs, operation));
    Ok(())
}

/// Rank r sends (r + to) % 3 rows to each, none to some.
fn all_to_all_uneven(group: &ProcessGroup, step: u64, width: usize) -> Result<()> {
    let (rank, ranks) = (group.rank(), group.size());
    let rows = |from: u32, to: u32| ((from + to) % 3) as usize;
    let sent: Vec<usize> = (0..ranks).map(|to| rows(rank, to)).collect();
    let got: Vec<usize> = (0..ranks).map(|from| rows(from, rank)).collect();
    let content = |from: u32| values(from, step, (0..ranks).map(|to| rows(from, to)).sum::<usize>() * width);
    let input = Tensor::from_slice(&content(rank), &[sent.iter().sum(), width], group.device())?;
    let output = Tensor::full(&[got.iter().sum(), width], -1.0, DType::F32, group.device())?;
    group.all_to_all_single(&output, &input, Some(&got), Some(&sent))?.wait()?;
    let mut wanted = Vec::new();
    for from in 0..ranks {
        let before: usize = (0..rank).map(|to| rows(from, to)).sum();
        wanted.extend_from_slice(&content(from)[before * width..][..rows(from, rank) * width]);
    }
    assert_eq!(output.to_vec::<f32>()?, wanted);
    Ok(())
}

#[test]
fn every_collective_gives_its_values() {
    for ranks in [1, 2, 3, 4] {
        run_ranks(&simulated_devices(ranks).unwrap(), |group| {
            for kind in 0..12 {
                if kind == 11 && ranks == 1 {
                    continue;
                }
                for (step, operation) in (0..).zip(OPERATIONS) {
                    collective(&group, kind, step, 1 + step as usize, operation)?;
                }
            }
            Ok(())
        })
        .unwrap();
    }
}

/// Random collectives on random streams, both drawn from a seed, whose tensors are dropped immediately.
fn mixture(group: &ProcessGroup, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    let side = Stream::new(group.device())?;
    for step in 0..4 {
        let (kind, operation) = (random.below(12), OPERATIONS[random.below(5) as usize]);
        let count = 1 + random.below(8) as usize;
        let _on_side = (random.below(2) == 0).then(|| side.make_current());
        collective(group, kind, step, count, operation)?;
    }
    Ok(())
}

#[test]
fn collectives_are_ordered_and_memory_waits_for_them() {
    checked(40, 3, mixture);
}

/// Drops the tensors of collectives in progress, and checks that their memory is not reused before the collectives are done.
fn dropped_early(group: &ProcessGroup, _: u64) -> Result<()> {
    let total = empty(group, 16)?;
    for step in 0..3 {
        let input = tensor(group, &values(group.rank(), step, 8))?;
        let output = empty(group, 16)?;
        let work = group.all_gather_into_tensor(&output, &input)?;
        drop(input);
        // Written at once: it must not be the input's memory as long as that is read.
        let other = Tensor::full(&[8], 100.0, DType::F32, group.device())?;
        work.wait()?;
        total.copy_(&output)?;
        drop((output, other));
    }
    assert_eq!(total.to_vec::<f32>()?, [values(0, 2, 8), values(1, 2, 8)].concat());
    Ok(())
}

#[test]
fn memory_of_a_dropped_tensor_waits() {
    checked(30, 2, dropped_early);
}

#[test]
fn dtypes_and_bools_reduce_as_in_pytorch() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let (rank, device) = (group.rank(), group.device());
        let halves = Tensor::from_slice(&[f16::from_f32(1.5), f16::from_f32(rank as f32)], &[2], device)?;
        group.all_reduce(&halves, Sum)?.wait()?;
        assert_eq!(halves.to_vec::<f16>()?, [f16::from_f32(3.0), f16::from_f32(1.0)]);
        let brain = Tensor::from_slice(&[bf16::from_f32(2.0)], &[1], device)?;
        group.all_reduce(&brain, Product)?.wait()?;
        assert_eq!(brain.to_vec::<bf16>()?, [bf16::from_f32(4.0)]);
        let long = Tensor::from_slice(&[i64::MAX, rank as i64], &[2], device)?;
        group.all_reduce(&long, Max)?.wait()?;
        assert_eq!(long.to_vec::<i64>()?, [i64::MAX, 1]);
        let truths = [[0u8, 1, 1, 0], [0, 0, 1, 1]][rank as usize];
        for (operation, wanted) in [(Sum, [0u8, 1, 1, 1]), (Product, [0, 0, 1, 0]), (Min, [0, 0, 1, 0])] {
            let bools = Tensor::from_slice(&truths, &[4], device)?.to_dtype(DType::Bool)?;
            group.all_reduce(&bools, operation)?.wait()?;
            assert_eq!(bools.to_vec::<u8>()?, wanted, "{operation:?}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn coalesced_collectives_are_one_group() {
    run_ranks(&simulated_devices(3).unwrap(), |group| {
        let tensors: Vec<Tensor> =
            (0..4).map(|step| tensor(&group, &values(group.rank(), step, 5))).collect::<Result<_>>()?;
        let output = empty(&group, 6)?;
        let pair = tensor(&group, &[group.rank() as f32, 1.0])?;
        let mut all = group.coalescing();
        for tensor in &tensors {
            all.all_reduce(tensor, Sum)?;
        }
        all.all_gather_into_tensor(&output, &pair)?;
        all.submit()?.wait()?;
        for (step, tensor) in (0..).zip(&tensors) {
            let inputs: Vec<Vec<f32>> = (0..3).map(|rank| values(rank, step, 5)).collect();
            assert_eq!(tensor.to_vec::<f32>()?, reduced(&inputs, Sum));
        }
        assert_eq!(output.to_vec::<f32>()?, [0.0, 1.0, 1.0, 1.0, 2.0, 1.0]);
        assert!(group.coalescing().submit().is_err());
        Ok(())
    })
    .unwrap();
}

#[test]
fn objects_of_any_length_travel() {
    run_ranks(&simulated_devices(3).unwrap(), |group| {
        let own = vec![group.rank() as u8; 3 * group.rank() as usize];
        let all = group.all_gather_object(&own)?;
        assert_eq!(all, [vec![], vec![1; 3], vec![2; 6]]);
        assert_eq!(group.broadcast_object(&own, 2)?, vec![2; 6]);
        assert_eq!(group.broadcast_object(&own, 0)?, Vec::<u8>::new());
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_captured_collective_repeats() {
    let sums = run_ranks(&simulated_devices(2).unwrap(), |group| {
        let x = tensor(&group, &[1.0 + group.rank() as f32])?;
        let options = CaptureOptions { mode: CaptureMode::ThreadLocal, ..CaptureOptions::default() };
        let (graph, ()) = Graph::capture(group.device(), options, || group.all_reduce(&x, Sum)?.wait())?;
        for _ in 0..3 {
            graph.replay()?;
        }
        x.item::<f32>()
    })
    .unwrap();
    // 1 + 2, then doubled twice.
    assert_eq!(sums, [12.0, 12.0]);
}

#[test]
fn factors_of_each_rank_multiply_what_it_gives() {
    run_ranks(&simulated_devices(3).unwrap(), |group| {
        let rank = group.rank();
        let factor = [0.5, -2.0, 4.0][rank as usize];
        let operation = ReduceOp::premul_sum(factor);
        let wanted = |place: usize| 0.5 * own(0, place) - 2.0 * own(1, place) + 4.0 * own(2, place);
        for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16] {
            let given: Vec<f32> = (0..6).map(|place| own(rank, place)).collect();
            let x = Tensor::from_slice(&given, &[6], group.device())?.to_dtype(dtype)?;
            let read = |x: &Tensor| x.to_dtype(DType::F32)?.to_vec::<f32>();
            let part = Tensor::zeros(&[2], dtype, group.device())?;
            group.reduce_scatter_tensor(&part, &x, operation)?.wait()?;
            let first = 2 * rank as usize;
            assert_eq!(read(&part)?, [wanted(first), wanted(first + 1)]);
            assert_eq!(read(&x)?, given, "an input stays");
            let rows: Vec<Tensor> = x.chunk(3, 0)?;
            group.reduce_scatter(&part, &rows, operation)?.wait()?;
            assert_eq!(read(&part)?, [wanted(first), wanted(first + 1)]);
            group.reduce(&x, 1, operation)?.wait()?;
            let all: Vec<f32> = (0..6).map(wanted).collect();
            assert_eq!(read(&x)?, if rank == 1 { all.clone() } else { given.clone() });
            let x = Tensor::from_slice(&given, &[6], group.device())?.to_dtype(dtype)?;
            group.all_reduce(&x, operation)?.wait()?;
            assert_eq!(read(&x)?, all);
        }
        let whole = Tensor::zeros(&[2], DType::I32, group.device())?;
        let error = group.all_reduce(&whole, operation).unwrap_err().to_string();
        assert!(error.contains("PreMulSum Data type must be half, float, bfloat16 or double"), "{error}");
        Ok(())
    })
    .unwrap();
}

fn own(rank: u32, place: usize) -> f32 {
    (rank as usize * 3 + place * 2) as f32 - 5.0
}
