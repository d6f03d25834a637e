//! Graph trees: the results are the eager ones for any order of the calls, and for any tensors that are held or moved.

use thalweg_ir::DType;
use thalweg_lock::Mutex;
use thalweg_nn::functional::dropout;
use thalweg_runtime::{CaptureOptions, Device, Environment, Graph, Result, Stream};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_tensor::Tensor;
use thalweg_tensor::graph::tree::{DecisionKind, FunctionOptions, Steps};
use thalweg_tensor::graph::{GraphTreeManager, GraphTreeOptions, LiveOutputs};
use thalweg_tensor::random::DeviceGenerator;

use crate::support::own_device;

pub fn tensor(values: &[f32], device: &Device) -> Tensor {
    Tensor::from_slice(values, &[values.len()], device).unwrap()
}

pub fn read(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec::<f32>().unwrap()
}

fn tree(device: &Device) -> GraphTreeManager {
    GraphTreeManager::new(device, GraphTreeOptions::default()).unwrap()
}

/// Runs a test on a separate stream.
pub fn on_a_stream(test: impl FnOnce(&Device)) {
    let device = own_device();
    let stream = Stream::new(&device).unwrap();
    let _current = stream.make_current();
    test(&device);
}

/// Returns 3x and x + 1, whose kernels have an unrelated kernel between them.
fn two(inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let between = inputs[0].mul_scalar(2.0)?;
    Ok(vec![between.add(&inputs[0])?, inputs[0].add_scalar(1.0)?])
}

fn sum(inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let between = inputs[0].mul_scalar(1.0)?;
    Ok(vec![between.add(&inputs[1])?])
}

#[test]
fn a_function_is_warmed_up_recorded_and_replayed() {
    on_a_stream(|device| {
        let mut tree = tree(device);
        let two = tree.register("two", FunctionOptions::default(), two).unwrap();
        for round in 0..5 {
            let x = round as f32;
            let outputs = tree.call(two, vec![tensor(&[x, 10.0], device)]).unwrap();
            assert_eq!(read(&outputs[0]), [3.0 * x, 30.0]);
            assert_eq!(read(&outputs[1]), [x + 1.0, 11.0]);
        }
        let counters = tree.counters();
        assert_eq!((counters.calls, counters.warm_ups, counters.recordings, counters.replays), (5, 1, 1, 4));
        assert_eq!((counters.copied_inputs, counters.copied_bytes), (4, 32));
        assert_eq!(tree.graphs(), 1);
        let decisions: Vec<_> = tree.decisions().map(ToString::to_string).collect();
        assert_eq!(decisions, ["two: recorded: there was no graph for this call behind the path"]);
    });
}

#[test]
fn each_shape_has_a_warm_up_and_a_graph_of_its_own() {
    on_a_stream(|device| {
        let mut tree = tree(device);
        let two = tree.register("two", FunctionOptions::default(), two).unwrap();
        for _ in 0..3 {
            for size in [3, 5, 8] {
                let outputs = tree.call(two, vec![tensor(&vec![1.0; size], device)]).unwrap();
                assert_eq!(read(&outputs[0]), vec![3.0; size]);
            }
        }
        let counters = tree.counters();
        assert_eq!((counters.warm_ups, counters.recordings, counters.replays), (3, 3, 6));
        // Graphs of one function share a pool, and so the memory between.
        assert_eq!(tree.pool_bytes(), 2 << 20);
    });
}

#[test]
fn a_path_of_two_functions_reads_outputs_where_they_are() {
    on_a_stream(|device| {
        let mut tree = tree(device);
        let forward = tree.register("forward", FunctionOptions::default(), two).unwrap();
        let backward = tree.register("backward", FunctionOptions::default(), sum).unwrap();
        for round in 0..6 {
            let x = round as f32;
            let outputs = tree.call(forward, vec![tensor(&[x], device)]).unwrap();
            let result = tree.call(backward, outputs).unwrap();
            assert_eq!(read(&result[0]), [4.0 * x + 1.0]);
        }
        let counters = tree.counters();
        assert_eq!((counters.recordings, counters.replays, tree.graphs()), (2, 10, 2));
        assert_eq!(counters.copied_inputs, 5, "only the input of the root is copied");
        assert_eq!(counters.steps, 4);
    });
}

#[test]
fn an_output_that_is_held_where_it_was_dead_gets_a_graph_that_leaves_it_alone() {
    on_a_stream(|device| {
        let mut tree = tree(device);
        let forward = tree.register("forward", FunctionOptions::default(), two).unwrap();
        let next = tree.register("next", FunctionOptions::default(), sum).unwrap();
        let mut run = |x: f32, holds: bool| {
            let mut outputs = tree.call(forward, vec![tensor(&[x], device)]).unwrap();
            let second = outputs.pop().unwrap();
            let kept = holds.then(|| second.clone());
            drop(second);
            let first = outputs.pop().unwrap();
            let result = tree.call(next, vec![first.clone(), first]).unwrap();
            assert_eq!(read(&result[0]), [6.0 * x]);
            if let Some(kept) = kept {
                assert_eq!(read(&kept), [x + 1.0]);
            }
            (tree.graphs(), tree.counters().outputs_alive)
        };
        run(1.0, false);
        assert_eq!(run(2.0, false), (2, 0));
        assert_eq!(run(3.0, true), (3, 1));
        // Both variants are used from now on, depending on which fits; the one that assumes less always does.
        assert_eq!(run(4.0, false), (3, 1));
        assert_eq!(run(5.0, true), (3, 1));
        let last = tree.decisions().last().unwrap();
        assert_eq!(last.kind, DecisionKind::Rerecord);
        assert!(last.reason.contains("alive"), "{last}");
    });
}

#[test]
fn an_output_held_beyond_its_step_is_refused_by_name_or_moved() {
    on_a_stream(|device| {
        for live_outputs in [LiveOutputs::Refuse, LiveOutputs::Clone] {
            let options = GraphTreeOptions { live_outputs, ..GraphTreeOptions::default() };
            let mut tree = GraphTreeManager::new(device, options).unwrap();
            let two = tree.register("two", FunctionOptions::default(), two).unwrap();
            drop(tree.call(two, vec![tensor(&[1.0], device)]).unwrap());
            let mut held = tree.call(two, vec![tensor(&[2.0], device)]).unwrap();
            let address = held[1].pointer();
            drop(held.remove(0));
            tree.begin_step();
            let again = tree.call(two, vec![tensor(&[3.0], device)]);
            match live_outputs {
                LiveOutputs::Refuse => {
                    let error = again.unwrap_err().to_string();
                    for part in ["output 1 of 'two'", "graph_tree.rs", "overwrite"] {
                        assert!(error.contains(part), "{error}");
                    }
                    assert_eq!(read(&held[0]), [3.0]);
                    held.clear();
                    assert_eq!(read(&tree.call(two, vec![tensor(&[3.0], device)]).unwrap()[0]), [9.0]);
                }
                LiveOutputs::Clone => {
                    let again = again.unwrap();
                    assert_eq!(read(&again[1]), [4.0]);
                    assert_eq!(again[1].pointer(), address);
                    assert_eq!(read(&held[0]), [3.0], "the held tensor lives on elsewhere");
                    assert_ne!(held[0].pointer(), address);
                    assert_eq!(tree.counters().moved_outputs, 1);
                }
            }
            assert_eq!(tree.graphs(), 1);
        }
    });
}

#[test]
fn a_static_input_that_moved_gets_a_variant_and_breaks_no_assumption() {
    on_a_stream(|device| {
        let options = GraphTreeOptions { rerecord_limit: 1, variant_limit: 3, ..GraphTreeOptions::default() };
        let mut tree = GraphTreeManager::new(device, options).unwrap();
        let parameter = FunctionOptions { static_inputs: vec![1], ..FunctionOptions::default() };
        let scaled = tree.register("scaled", parameter, sum).unwrap();
        let weights: Vec<Tensor> = (0..5).map(|value| tensor(&[100.0 * value as f32], device)).collect();
        let mut call = |weight: usize| {
            let outputs = tree.call(scaled, vec![tensor(&[1.0], device), weights[weight].clone()]).unwrap();
            assert_eq!(read(&outputs[0]), [1.0 + 100.0 * weight as f32]);
            (tree.graphs(), tree.counters().static_inputs_moved)
        };
        call(0);
        assert_eq!(call(0), (1, 0));
        assert_eq!(call(1), (2, 1));
        assert_eq!(call(0), (2, 1));
        assert_eq!(call(1), (2, 1));
        // If there are too many variants, the least recently used one is removed.
        for weight in 2..5 {
            call(weight);
        }
        assert_eq!(call(1), (3, 5));
        assert!(tree.eager_reason(scaled).is_none(), "moved parameters never make a function eager");
        let counters = tree.counters();
        assert_eq!(counters.copied_inputs, counters.replays, "static inputs are not copied");
    });
}

#[test]
fn an_input_that_keeps_moving_within_the_pool_is_copied_in_the_end() {
    on_a_stream(|device| {
        let options = GraphTreeOptions { managed_move_limit: 2, ..GraphTreeOptions::default() };
        let mut tree = GraphTreeManager::new(device, options).unwrap();
        let many = tree
            .register("many", FunctionOptions::default(), |inputs| {
                (0..6).map(|number| inputs[0].add_scalar(f64::from(number))).collect()
            })
            .unwrap();
        let double = tree
            .register("double", FunctionOptions::default(), |inputs| Ok(vec![inputs[0].mul_scalar(2.0)?]))
            .unwrap();
        let mut call = |chosen: usize| {
            let outputs = tree.call(many, vec![tensor(&[1.0], device)]).unwrap();
            // All are held, so that only the input's address differs.
            let doubled = tree.call(double, vec![outputs[chosen].clone()]).unwrap();
            assert_eq!(read(&doubled[0]), [2.0 + 2.0 * chosen as f32]);
            tree.counters()
        };
        call(0);
        for chosen in 0..6 {
            call(chosen);
        }
        let counters = call(2);
        assert_eq!(counters.demotions, 1);
        assert_eq!(counters.managed_inputs_moved, 3, "after the third it is copied");
        assert!(tree.decisions().any(|decision| decision.kind == DecisionKind::Demote));
    });
}

#[test]
fn a_function_whose_assumptions_keep_breaking_runs_eagerly_and_says_why() {
    on_a_stream(|device| {
        let options = GraphTreeOptions { rerecord_limit: 2, managed_move_limit: 100, ..Default::default() };
        let mut tree = GraphTreeManager::new(device, options).unwrap();
        let many = tree
            .register("many", FunctionOptions::default(), |inputs| {
                (0..6).map(|number| inputs[0].add_scalar(f64::from(number))).collect()
            })
            .unwrap();
        let double = tree
            .register("double", FunctionOptions::default(), |inputs| Ok(vec![inputs[0].mul_scalar(2.0)?]))
            .unwrap();
        for chosen in [0, 0, 1, 2, 3, 4, 5] {
            let outputs = tree.call(many, vec![tensor(&[1.0], device)]).unwrap();
            let doubled = tree.call(double, vec![outputs[chosen].clone()]).unwrap();
            assert_eq!(read(&doubled[0]), [2.0 + 2.0 * chosen as f32]);
        }
        let reason = tree.eager_reason(double).unwrap();
        assert!(reason.contains("more than 2 times") && reason.contains("input 0"), "{reason}");
        assert_eq!(tree.counters().eager, 3);
        assert!(tree.eager_reason(many).is_none());
    });
}

#[test]
fn inputs_may_be_changed_in_place() {
    on_a_stream(|device| {
        let mut tree = tree(device);
        let grow = |inputs: &[Tensor]| {
            inputs[0].copy_(&inputs[0].add(&inputs[1])?)?;
            Ok(vec![inputs[0].sum(&[], false)?])
        };
        let is_static = FunctionOptions { static_inputs: vec![0], ..FunctionOptions::default() };
        let copied = tree.register("copied", FunctionOptions::default(), grow).unwrap();
        let in_place = tree.register("in place", is_static, grow).unwrap();
        let make = tree.register("make", FunctionOptions::default(), two).unwrap();
        let one = || tensor(&[1.0, 1.0], device);
        for function in [copied, in_place] {
            let cache = tensor(&[0.0, 10.0], device);
            for round in 1..=4 {
                let total = tree.call(function, vec![cache.clone(), one()]).unwrap();
                assert_eq!(read(&total[0]), [10.0 + 2.0 * round as f32]);
                assert_eq!(read(&cache), [round as f32, 10.0 + round as f32]);
            }
        }
        assert_eq!(tree.counters().written_back, 3);
        // An output of an earlier graph, changed in place.
        for round in 0..4 {
            let outputs = tree.call(make, vec![tensor(&[round as f32; 2], device)]).unwrap();
            tree.call(copied, vec![outputs[1].clone(), one()]).unwrap();
            assert_eq!(read(&outputs[1]), [round as f32 + 2.0; 2]);
            assert_eq!(read(&outputs[0]), [round as f32 * 3.0; 2]);
        }
        // Autograd detects that a saved tensor has changed.
        let cache = tensor(&[0.0, 10.0], device);
        let leaf = one().requires_grad_().unwrap();
        let product = leaf.mul(&cache).unwrap().sum(&[], false).unwrap();
        tree.call(in_place, vec![cache.clone(), one()]).unwrap();
        assert!(product.backward().unwrap_err().to_string().contains("inplace operation"));
    });
}

#[test]
fn inputs_that_share_memory_and_are_changed_run_eagerly_unless_static() {
    on_a_stream(|device| {
        let mut tree = tree(device);
        let grow = |inputs: &[Tensor]| {
            inputs[0].copy_(&inputs[0].add_scalar(1.0)?)?;
            Ok(vec![inputs[1].mul_scalar(1.0)?])
        };
        let copied = tree.register("copied", FunctionOptions::default(), grow).unwrap();
        let both = FunctionOptions { static_inputs: vec![0, 1], ..FunctionOptions::default() };
        let in_place = tree.register("in place", both, grow).unwrap();
        for function in [copied, in_place] {
            let cache = tensor(&[0.0, 10.0], device);
            for round in 1..=4 {
                let seen = tree.call(function, vec![cache.clone(), cache.clone()]).unwrap();
                assert_eq!(read(&seen[0]), [round as f32, 10.0 + round as f32]);
            }
        }
        assert_eq!(tree.counters().eager, 3);
        let reason = tree.decisions().find(|one| one.kind == DecisionKind::Eager).unwrap();
        assert!(reason.reason.contains("share memory"), "{reason}");
    });
}

#[test]
fn outputs_may_share_memory_be_inputs_or_come_from_elsewhere() {
    on_a_stream(|device| {
        let mut tree = tree(device);
        let parameter = tensor(&[7.0, 8.0], device);
        let constant = parameter.clone();
        let mixed = move |inputs: &[Tensor]| {
            let whole = inputs[0].mul_scalar(2.0)?;
            let half = whole.narrow(0, 1, 2)?;
            let part = inputs[0].narrow(0, 0, 1)?;
            let empty = Tensor::empty(&[0], DType::F32, inputs[0].device())?;
            Ok(vec![half, whole, part, constant.clone(), empty, inputs[1].clone()])
        };
        let options = FunctionOptions { static_inputs: vec![1], ..FunctionOptions::default() };
        let mixed = tree.register("mixed", options, mixed).unwrap();
        let fixed = tensor(&[5.0], device);
        for round in 0..4 {
            let x = round as f32;
            let mut outputs = tree.call(mixed, vec![tensor(&[x, 1.0, 2.0], device), fixed.clone()]).unwrap();
            assert_eq!(read(&outputs[0]), [2.0, 4.0]);
            assert_eq!(read(&outputs[1]), [2.0 * x, 2.0, 4.0]);
            assert!(outputs[0].shares_storage_with(&outputs[1]));
            assert_eq!(read(&outputs[2]), [x]);
            assert!(outputs[3].shares_storage_with(&parameter));
            assert_eq!(outputs[4].elements(), 0);
            assert!(outputs[5].shares_storage_with(&fixed));
            // Only the view keeps the memory of both.
            let half = outputs.remove(0);
            drop(outputs);
            assert_eq!(read(&half), [2.0, 4.0]);
        }
        assert_eq!(tree.graphs(), 1);
    });
}

#[test]
fn what_cannot_be_a_graph_runs_eagerly_for_good() {
    on_a_stream(|device| {
        let mut tree = tree(device);
        let reads = tree
            .register("reads", FunctionOptions::default(), |inputs| {
                let value = inputs[0].sum(&[], false)?.item::<f32>()?;
                Ok(vec![inputs[0].mul_scalar(f64::from(value))?])
            })
            .unwrap();
        let kept = Mutex::new(Vec::new());
        let keeps = tree
            .register("keeps", FunctionOptions::default(), move |inputs| {
                let between = inputs[0].mul_scalar(2.0)?;
                kept.lock().push(between.clone());
                Ok(vec![between.add_scalar(1.0)?])
            })
            .unwrap();
        for _ in 0..4 {
            let x = || vec![tensor(&[1.0, 2.0], device)];
            assert_eq!(read(&tree.call(reads, x()).unwrap()[0]), [3.0, 6.0]);
            assert_eq!(read(&tree.call(keeps, x()).unwrap()[0]), [3.0, 5.0]);
        }
        assert!(tree.eager_reason(reads).unwrap().contains("cannot be captured"));
        assert!(tree.eager_reason(keeps).unwrap().contains("keeps memory"));
        assert_eq!((tree.graphs(), tree.counters().eager), (0, 6));
        // A function's error is returned unchanged, and the next call works.
        let adds = tree.register("adds", FunctionOptions::default(), sum).unwrap();
        let call = |tree: &mut GraphTreeManager, other: &[f32]| {
            tree.call(adds, vec![tensor(&[1.0, 2.0], device), tensor(other, device)])
        };
        for _ in 0..2 {
            assert!(call(&mut tree, &[1.0, 2.0, 3.0]).unwrap_err().to_string().contains("adds"));
            assert_eq!(read(&call(&mut tree, &[1.0, 1.0]).unwrap()[0]), [2.0, 3.0]);
        }
    });
}

#[test]
fn a_loop_that_feeds_its_output_back_keeps_one_graph() {
    on_a_stream(|device| {
        for steps in [Steps::Automatic, Steps::Explicit] {
            let options = GraphTreeOptions { steps, depth_limit: 4, ..GraphTreeOptions::default() };
            let mut tree = GraphTreeManager::new(device, options).unwrap();
            let next = tree
                .register("next", FunctionOptions::default(), |inputs| {
                    Ok(vec![inputs[0].mul_scalar(1.0)?.add_scalar(1.0)?])
                })
                .unwrap();
            let mut x = tensor(&[0.0], device);
            for _ in 0..20 {
                x = tree.call(next, vec![x]).unwrap().remove(0);
            }
            assert_eq!(read(&x), [20.0]);
            match steps {
                Steps::Automatic => assert_eq!((tree.graphs(), tree.counters().eager), (1, 0)),
                // A chain up to the depth limit of a step; an eager call in between releases it.
                Steps::Explicit => assert!(tree.graphs() == 4 && tree.counters().eager > 0, "{tree:?}"),
            }
        }
    });
}

#[test]
fn random_numbers_are_those_of_eager_calls() {
    on_a_stream(|device| {
        let noisy = |seed: u64| {
            let generator = DeviceGenerator::new(seed, device).unwrap();
            move |inputs: &[Tensor]| {
                let noise = generator.randn(&[64], DType::F32)?;
                Ok(vec![dropout(&inputs[0].add(&noise)?, 0.5, true, &generator)?])
            }
        };
        let mut tree = tree(device);
        let function = tree.register("noisy", FunctionOptions::default(), noisy(5)).unwrap();
        let eager = noisy(5);
        let x = tensor(&[1.0; 64], device);
        for _ in 0..6 {
            let found = read(&tree.call(function, vec![x.clone()]).unwrap()[0]);
            assert_eq!(found, read(&eager(std::slice::from_ref(&x)).unwrap()[0]));
        }
        assert_eq!(tree.counters().recordings, 1);
    });
}

#[test]
fn a_call_inside_a_capture_becomes_part_of_it() {
    on_a_stream(|device| {
        let mut tree = tree(device);
        let two = tree.register("two", FunctionOptions::default(), two).unwrap();
        let x = tensor(&[1.0], device);
        for _ in 0..2 {
            tree.call(two, vec![x.clone()]).unwrap();
        }
        let region = || tree.call(two, vec![x.clone()]);
        let (graph, outputs) = Graph::capture(device, CaptureOptions::default(), region).unwrap();
        x.copy_(&tensor(&[5.0], device)).unwrap();
        graph.replay().unwrap();
        assert_eq!(read(&outputs[0]), [15.0]);
        assert_eq!((tree.counters().inlined, tree.counters().replays), (1, 1));
    });
}

#[test]
fn a_tree_that_is_gone_leaves_nothing_but_what_is_held() {
    let device = own_device();
    let stream = Stream::new(&device).unwrap();
    let _current = stream.make_current();
    let mut tree = tree(&device);
    let two = tree.register("two", FunctionOptions::default(), two).unwrap();
    let x = Tensor::ones(&[1 << 20], DType::F32, &device).unwrap();
    tree.call(two, vec![x.clone()]).unwrap();
    device.synchronize().unwrap();
    device.empty_cache().unwrap();
    let before = device.memory_reserved();
    let held = tree.call(two, vec![x.clone()]).unwrap().remove(1);
    assert!(device.memory_reserved() > before);
    tree.reset();
    assert_eq!((tree.graphs(), tree.pool_bytes()), (0, 0));
    let again = tree.call(two, vec![x.clone()]).unwrap();
    assert_eq!(read(&again[0])[7], 3.0);
    drop((tree, again));
    device.synchronize().unwrap();
    device.empty_cache().unwrap();
    assert_eq!(read(&held)[9], 2.0);
    drop(held);
    device.synchronize().unwrap();
    device.empty_cache().unwrap();
    assert_eq!(device.memory_reserved(), before);
}

#[test]
fn pools_are_given_up_when_they_are_too_large() {
    let device = own_device();
    let stream = Stream::new(&device).unwrap();
    let _current = stream.make_current();
    let limit = 40 << 20;
    let options = GraphTreeOptions { pool_bytes_limit: Some(limit), ..GraphTreeOptions::default() };
    let mut tree = GraphTreeManager::new(&device, options).unwrap();
    let functions: Vec<_> =
        (0..4).map(|_| tree.register("two", FunctionOptions::default(), two).unwrap()).collect();
    let x = |elements: usize| Tensor::ones(&[elements], DType::F32, &device).unwrap();
    for _ in 0..3 {
        for &function in &functions {
            for _ in 0..2 {
                let outputs = tree.call(function, vec![x(1 << 20)]).unwrap();
                assert_eq!(read(&outputs[0])[3], 3.0);
                assert!(tree.pool_bytes() <= limit);
            }
        }
    }
    assert!(tree.counters().evictions > 0);
    assert!(functions.iter().all(|&function| tree.eager_reason(function).is_none()));
    // A call that exceeds the limit on its own is not a graph.
    for _ in 0..3 {
        assert_eq!(read(&tree.call(functions[0], vec![x(1 << 23)]).unwrap()[1])[5], 2.0);
    }
    let reason = tree.eager_reason(functions[0]).unwrap();
    assert!(reason.contains("the limit"), "{reason}");
    assert!(tree.pool_bytes() <= limit);
}

#[test]
fn where_the_driver_caches_memory_functions_run_without_graphs() {
    for settings in ["backend:cudaMallocAsync", "backend:native"] {
        let variable = |name: &str| (name == "PYTORCH_CUDA_ALLOC_CONF").then(|| settings.to_owned());
        let environment = Environment::from_variables(variable);
        let driver = SimDriver::new(SimConfig::default()).unwrap();
        let device = &Device::all_of(driver, &environment).unwrap()[0];
        let stream = Stream::new(device).unwrap();
        let _current = stream.make_current();
        let mut tree = tree(device);
        let two = tree.register("two", FunctionOptions::default(), two).unwrap();
        for _ in 0..3 {
            let outputs = tree.call(two, vec![tensor(&[1.0, 10.0], device)]).unwrap();
            assert_eq!((read(&outputs[0]), read(&outputs[1])), (vec![3.0, 30.0], vec![2.0, 11.0]));
        }
        let eager = if settings == "backend:native" { 0 } else { 3 };
        assert_eq!((tree.counters().eager, tree.graphs()), (eager, usize::from(eager == 0)), "{settings}");
    }
}
