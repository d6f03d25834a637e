//! Functional collectives: values and gradients against a plain model, on the fast simulator and under seeds and the race checker.

use thalweg_dist::ReduceOp::{Avg, Max, Min, Product, Sum};
use thalweg_dist::functional::{
    all_gather_tensor, all_reduce, all_to_all_single, broadcast, define_operators, reduce_scatter_tensor,
};
use thalweg_dist::store::HashStore;
use thalweg_dist::{GroupOptions, ProcessGroup, ReduceOp, run_ranks, simulated_devices};
use thalweg_ir::DType;
use thalweg_runtime::{CaptureMode, CaptureOptions, Device, Graph, Result, Stream};
use thalweg_tensor::Tensor;
use thalweg_tensor::autograd::{BackwardOptions, gradients, gradients_with};
use thalweg_tensor::dispatch::{Value, find_operator, trace};

use crate::support::{Random, checked, values};

/// Returns a matrix of a rank: (6, 12) of small integers.
fn matrix(rank: u32, step: u64) -> Vec<f32> {
    values(rank, step, 72)
}

/// Returns part `part` of `parts` of a (rows, columns) matrix along a dimension, as rows.
fn part(values: &[f32], columns: usize, dim: usize, part: usize, parts: usize) -> Vec<f32> {
    let rows: Vec<&[f32]> = values.chunks(columns).collect();
    if dim == 0 {
        let count = rows.len() / parts;
        return rows[part * count..][..count].concat();
    }
    let count = columns / parts;
    rows.iter().flat_map(|row| row[part * count..][..count].to_vec()).collect()
}

/// Returns matrices of equally many rows side by side.
fn side_by_side(all: &[Vec<f32>], columns: usize) -> Vec<f32> {
    let rows = all[0].len() / columns;
    (0..rows)
        .flat_map(|row| all.iter().flat_map(move |one| one[row * columns..][..columns].to_vec()))
        .collect()
}

fn sum(all: &[Vec<f32>]) -> Vec<f32> {
    (0..all[0].len()).map(|at| all.iter().map(|one| one[at]).sum()).collect()
}

/// The expected result of the ranks' matrices on rank `own`, and the gradient of Σ results · weights there, for weights of all
/// ranks.
struct Case {
    name: &'static str,
    run: fn(&Tensor, &ProcessGroup) -> Result<Tensor>,
    result: fn(&[Vec<f32>], usize) -> Vec<f32>,
    gradient: fn(&[Vec<f32>], usize) -> Vec<f32>,
}

/// The collectives whose gradients are known.
const CASES: [Case; 7] = [
    Case {
        name: "all_reduce",
        run: |x, group| all_reduce(x, Sum, group),
        result: |all, _| sum(all),
        gradient: |weights, _| sum(weights),
    },
    Case {
        name: "broadcast",
        run: |x, group| broadcast(x, 1, group),
        result: |all, _| all[1].clone(),
        gradient: |weights, own| if own == 1 { sum(weights) } else { vec![0.0; weights[0].len()] },
    },
    Case {
        name: "all_gather_tensor(0)",
        run: |x, group| all_gather_tensor(x, 0, group),
        result: |all, _| all.concat(),
        gradient: |weights, own| part(&sum(weights), 12, 0, own, weights.len()),
    },
    Case {
        name: "all_gather_tensor(-1)",
        run: |x, group| all_gather_tensor(x, -1, group),
        result: |all, _| side_by_side(all, 12),
        gradient: |weights, own| part(&sum(weights), 12 * weights.len(), 1, own, weights.len()),
    },
    Case {
        name: "reduce_scatter_tensor(0)",
        run: |x, group| reduce_scatter_tensor(x, Sum, 0, group),
        result: |all, own| part(&sum(all), 12, 0, own, all.len()),
        gradient: |weights, _| weights.concat(),
    },
    Case {
        name: "reduce_scatter_tensor(1)",
        run: |x, group| reduce_scatter_tensor(x, Sum, 1, group),
        result: |all, own| part(&sum(all), 12, 1, own, all.len()),
        gradient: |weights, _| side_by_side(weights, 12 / weights.len()),
    },
    Case {
        name: "all_to_all_single",
        run: |x, group| all_to_all_single(x, None, None, group),
        result: |all, own| all.iter().flat_map(|one| part(one, 12, 0, own, all.len())).collect(),
        gradient: |weights, own| {
            weights.iter().flat_map(|one| part(one, 12, 0, own, weights.len())).collect()
        },
    },
];

/// Runs a case and its gradient on a rank, and compares both with the model.
fn holds(case: &Case, group: &ProcessGroup, step: u64, transposed: bool) -> Result<()> {
    let (own, ranks) = (group.rank() as usize, group.size());
    let all: Vec<Vec<f32>> = (0..ranks).map(|rank| matrix(rank, step)).collect();
    let x = if transposed {
        let columns: Vec<f32> = (0..72).map(|at| all[own][at % 6 * 12 + at / 6]).collect();
        Tensor::from_slice(&columns, &[12, 6], group.device())?.transpose(0, 1)?
    } else {
        Tensor::from_slice(&all[own], &[6, 12], group.device())?
    };
    let x = x.detach().requires_grad_()?;
    let result = (case.run)(&x, group)?;
    assert_eq!(result.to_vec::<f32>()?, (case.result)(&all, own), "{}", case.name);
    assert_eq!(x.to_vec::<f32>()?, all[own], "{} left its input as it was", case.name);
    let count = result.elements();
    let weights: Vec<Vec<f32>> = (0..ranks).map(|rank| values(rank + 7, step, count)).collect();
    let weight = Tensor::from_slice(&weights[own], result.shape(), group.device())?;
    result.mul(&weight)?.sum(&[], false)?.backward()?;
    let gradient = x.grad().expect("a gradient");
    assert_eq!(gradient.to_vec::<f32>()?, (case.gradient)(&weights, own), "{}", case.name);
    Ok(())
}

#[test]
fn results_and_gradients_are_those_of_the_model() {
    for ranks in [2, 3] {
        run_ranks(&simulated_devices(ranks).unwrap(), |group| {
            for (step, case) in (0..).zip(&CASES) {
                holds(case, &group, step, false)?;
                holds(case, &group, step, true)?;
            }
            Ok(())
        })
        .unwrap();
    }
}

/// Collectives in an order that the seed decides, on two streams, with tensors that are dropped at once.
fn mixture(group: &ProcessGroup, seed: u64) -> Result<()> {
    let (mut random, side) = (Random::new(seed), Stream::new(group.device())?);
    for step in 0..4 {
        let case = &CASES[random.below(CASES.len() as u64) as usize];
        let _on_side = (random.below(2) == 0).then(|| side.make_current());
        holds(case, group, step, random.below(2) == 0)?;
        // What was dropped unused is reused at once.
        let (x, y) = (Tensor::ones(&[6, 12], DType::F32, group.device())?, matrix(group.rank(), step));
        drop((case.run)(&x, group)?);
        drop(x);
        let other = Tensor::from_slice(&y, &[6, 12], group.device())?;
        assert_eq!(other.to_vec::<f32>()?, y);
    }
    Ok(())
}

#[test]
fn no_schedule_has_a_race() {
    checked(16, 2, mixture);
    checked(8, 3, mixture);
}

#[test]
fn uneven_splits_travel_and_return() {
    run_ranks(&simulated_devices(3).unwrap(), |group| {
        let own = group.rank() as usize;
        // Rank r sends r + s + 1 rows to rank s, with its number in them.
        let rows = |from: usize| -> Vec<usize> { (0..3).map(|to| from + to + 1).collect() };
        let count: usize = rows(own).iter().sum();
        let x = Tensor::full(&[count, 2], own as f64, DType::F32, group.device())?.requires_grad_()?;
        let y = all_to_all_single(&x, Some(&rows(own)), Some(&rows(own)), &group)?;
        let wanted: Vec<f32> = (0..3).flat_map(|from| vec![from as f32; 2 * (from + own + 1)]).collect();
        assert_eq!(y.to_vec::<f32>()?, wanted);
        // Each row comes back with the number of the rank that it went to.
        y.mul_scalar(own as f64)?.sum(&[], false)?.backward()?;
        let wanted: Vec<f32> = (0..3).flat_map(|to| vec![to as f32; 2 * (own + to + 1)]).collect();
        assert_eq!(x.grad().expect("a gradient").to_vec::<f32>()?, wanted);
        Ok(())
    })
    .unwrap();
}

#[test]
fn every_reduction_has_its_result_and_sums_alone_a_gradient() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let own = group.rank() as f32;
        let x = Tensor::from_slice(&[1.0 + own, 4.0 - 2.0 * own], &[2], group.device())?.requires_grad_()?;
        let all: [(ReduceOp, [f32; 2]); 5] = [
            (Sum, [3.0, 6.0]),
            (Product, [2.0, 8.0]),
            (Min, [1.0, 2.0]),
            (Max, [2.0, 4.0]),
            (Avg, [1.5, 3.0]),
        ];
        for (operation, wanted) in all {
            let reduced = all_reduce(&x, operation, &group)?;
            assert_eq!(reduced.to_vec::<f32>()?, wanted, "{operation:?}");
            let part = reduce_scatter_tensor(&x, operation, 0, &group)?;
            assert_eq!(part.item::<f32>()?, wanted[group.rank() as usize], "{operation:?}");
            for (name, result) in [("all_reduce", reduced), ("reduce_scatter_tensor", part)] {
                let outcome = result.sum(&[], false)?.backward();
                if operation == Sum {
                    outcome?;
                    continue;
                }
                let error = outcome.unwrap_err().to_string();
                let wanted = format!("{name} backward only supports 'sum' reduction, got '");
                assert!(error.contains(&wanted), "{error}");
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn gradients_have_gradients() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let x = Tensor::from_slice(&[1.0 + group.rank() as f32], &[1], group.device())?.requires_grad_()?;
        let options = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
        let y = all_reduce(&x, Sum, &group)?.square()?;
        let first = gradients_with(&[y], &[None], std::slice::from_ref(&x), options)?.remove(0).expect("one");
        // Both ranks have (x₀ + x₁)²: d = 2 · 2 (x₀ + x₁), whose sum over the ranks has the slope 2 · 4.
        assert_eq!(first.to_vec::<f32>()?, [12.0]);
        let second = gradients(&[first], &[None], std::slice::from_ref(&x))?.remove(0).expect("one");
        assert_eq!(second.to_vec::<f32>()?, [8.0]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn calls_are_traced_and_made_by_name() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let x = Tensor::from_slice(&[1.0f32, 2.0], &[2], group.device())?;
        let (found, calls) = trace(|| all_gather_tensor(&all_reduce(&x, Sum, &group)?, 0, &group))?;
        let names: Vec<&str> = calls.calls.iter().map(|call| call.operator.name()).collect();
        assert_eq!(names, ["_c10d_functional::all_reduce", "_c10d_functional::all_gather_into_tensor"]);
        assert_eq!(found.to_vec::<f32>()?, [2.0, 4.0, 2.0, 4.0]);
        let other = calls.calls[0].call_with(|_| x.mul_scalar(3.0).expect("a product"))?;
        let [Value::Tensor(other)] = &other[..] else { panic!("{other:?}") };
        assert_eq!(other.to_vec::<f32>()?, [6.0, 12.0]);
        // Shapes alone take no group.
        define_operators()?;
        let operator = find_operator("_c10d_functional::reduce_scatter_tensor")?;
        let shape = Tensor::empty(&[6, 2], DType::Bf16, &Device::meta()?)?;
        let values = ["sum", "world"].map(|text| Value::Str(text.to_owned()));
        let [sum, name] = values;
        let part = operator.call_boxed(&[Value::Tensor(shape), sum, Value::Int(3), name], None)?;
        let [Value::Tensor(part)] = &part[..] else { panic!("{part:?}") };
        assert_eq!((part.shape(), part.dtype()), (&[2, 2][..], DType::Bf16));
        Ok(())
    })
    .unwrap();
}

#[test]
fn groups_of_one_name_are_told_apart() {
    let (store, devices) = (std::sync::Arc::new(HashStore::new()), simulated_devices(2).unwrap());
    run_ranks(&devices, |group| {
        // Another world of the same device alone.
        let other = ProcessGroup::new(
            std::sync::Arc::new(HashStore::new()),
            0,
            1,
            group.device(),
            GroupOptions::default(),
        )?;
        assert_eq!((other.name(), other.group_name()), ("world", "world:1"));
        let third =
            ProcessGroup::new(store.clone(), group.rank(), 2, group.device(), GroupOptions::default())?;
        assert_eq!(third.group_name(), "world:2");
        let x = Tensor::ones(&[1], DType::F32, group.device())?.requires_grad_()?;
        let y = all_reduce(&x, Sum, &other)?.add(&all_reduce(&x, Sum, &third)?)?;
        assert_eq!(y.item::<f32>()?, 3.0);
        // The node holds the groups that it needs.
        drop((other, third));
        y.backward()?;
        assert_eq!(x.grad().expect("a gradient").item::<f32>()?, 3.0);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_captured_step_repeats() {
    let found = run_ranks(&simulated_devices(2).unwrap(), |group| {
        let x = Tensor::from_slice(&[1.0 + group.rank() as f32], &[1], group.device())?.requires_grad_()?;
        let step = || -> Result<()> {
            let y = all_reduce(&x, Sum, &group)?.square()?;
            let gradient = gradients(&[y], &[None], std::slice::from_ref(&x))?.remove(0).expect("one");
            x.detach().sub_(&gradient.mul_scalar(0.125)?)?;
            Ok(())
        };
        let options = CaptureOptions { mode: CaptureMode::ThreadLocal, ..CaptureOptions::default() };
        let (graph, ()) = Graph::capture(group.device(), options, step)?;
        for _ in 0..2 {
            graph.replay()?;
        }
        x.item::<f32>()
    })
    .unwrap();
    // d = 4 (x₀ + x₁): each loses half of the sum, which is 3, and then 0.
    assert_eq!(found, [-0.5, 0.5]);
}

#[test]
fn mistakes_are_told() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let x = Tensor::ones(&[3, 4], DType::F32, group.device())?;
        let text = |outcome: Result<Tensor>| outcome.unwrap_err().to_string();
        let error = text(reduce_scatter_tensor(&x, Sum, 0, &group));
        assert!(error.contains("input dimension 0 (3) must be a multiple of group_size 2"), "{error}");
        let error = text(all_gather_tensor(&x, 2, &group));
        assert!(error.contains("(expected to be in range of [-2, 1], but got 2)"), "{error}");
        let error = text(all_to_all_single(&x, Some(&[1, 2]), None, &group));
        assert!(error.contains("must either be specified together or both set to None"), "{error}");
        let error = text(all_to_all_single(&x, Some(&[1, 2]), Some(&[1, 1]), &group));
        assert!(error.contains("Split sizes doesn't match total dim 0 size"), "{error}");
        let error = text(all_to_all_single(&x, None, None, &group));
        assert!(error.contains("does not divide equally across group size"), "{error}");
        let error = text(broadcast(&x, 2, &group));
        assert!(error.contains("rank 2 is not part of a group of 2 ranks"), "{error}");
        let scalar = Tensor::ones(&[], DType::F32, group.device())?;
        assert!(text(all_gather_tensor(&scalar, 0, &group)).contains("scalar"));
        let truth = Tensor::ones(&[2], DType::Bool, group.device())?;
        let error = text(all_reduce(&truth, Avg, &group));
        assert!(error.contains("Cannot use ReduceOp.AVG with boolean inputs"), "{error}");
        let elsewhere = Tensor::ones(&[2], DType::F32, &simulated_devices(1)?[0])?;
        let error = text(all_reduce(&elsewhere, Sum, &group));
        assert!(
            error.contains("Could not resolve the process group registered under the name world"),
            "{error}"
        );

        let call = |name: &str, values: &[Value]| {
            find_operator(name)
                .and_then(|operator| operator.call_boxed(values, None))
                .unwrap_err()
                .to_string()
        };
        let [x, world] = [Value::Tensor(x), Value::Str("world".to_owned())];
        let band = Value::Str("band".to_owned());
        let error = call("_c10d_functional::all_reduce", &[x.clone(), band, world.clone()]);
        assert!(error.contains("Unrecognized reduce_op: band"), "{error}");
        let error =
            call("_c10d_functional::all_gather_into_tensor", &[x.clone(), Value::Int(3), world.clone()]);
        assert!(error.contains("group_size 3 is not that of the group"), "{error}");
        let splits = [Value::Ints(vec![-1, 4]), Value::Ints(vec![1, 2])];
        let [to, from] = splits;
        let error = call("_c10d_functional::all_to_all_single", &[x, to, from, world]);
        assert!(error.contains("a split of -1 rows is none"), "{error}");
        // The group still works.
        let one = Tensor::ones(&[1], DType::F32, group.device())?;
        assert_eq!(all_reduce(&one, Sum, &group)?.item::<f32>()?, 2.0);
        Ok(())
    })
    .unwrap();
}
