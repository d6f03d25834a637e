//! Casts of parameters that outlast regions of autocast, and that optimizers write, compared with fresh casts.

use thalweg_ir::DType;
use thalweg_nn::functional::linear;
use thalweg_nn::optim::{
    Adam, AdamOptions, AdamW, AdamWOptions, GradientScaler, GradientScalerOptions, Optimizer,
    OptimizerOptions, Sgd, SgdOptions,
};
use thalweg_runtime::graph::{self, Condition};
use thalweg_runtime::{CaptureOptions, Device, Graph, Result, Stream};
use thalweg_tensor::autocast::{AutocastOptions, autocast, autocast_with};
use thalweg_tensor::dispatch::trace;
use thalweg_tensor::{Tensor, no_grad};

use crate::support::{device, on_own_device, random, values};

fn floats(shape: &[usize], seed: u64) -> Tensor {
    random(shape, seed).to_dtype(DType::F32).unwrap()
}

fn leaf(shape: &[usize], seed: u64) -> Tensor {
    floats(shape, seed).detach().requires_grad_().unwrap()
}

/// Returns the options of a region that casts anew each time.
fn anew(dtype: DType) -> AutocastOptions {
    AutocastOptions { dtype, cache_enabled: false, ..AutocastOptions::default() }
}

fn product(x: &Tensor, weights: &[Tensor]) -> Result<Tensor> {
    linear(&linear(x, &weights[0], Some(&weights[1]))?, &weights[2], None)
}

fn weights() -> Vec<Tensor> {
    vec![leaf(&[24, 16], 1), leaf(&[24], 2), leaf(&[8, 24], 3)]
}

/// Returns the number of tensors that a function casts to 16 bits.
fn casts(function: impl FnOnce()) -> usize {
    let ((), trace) = trace(|| {
        function();
        Ok(())
    })
    .unwrap();
    trace.to_string().lines().filter(|line| line.contains("thalweg::copy")).count()
}

/// Makes a step in a region with these options, and returns the result of the layers.
fn step<O: OptimizerOptions>(
    weights: &[Tensor],
    optimizer: &Optimizer<O>,
    options: AutocastOptions,
    seed: u64,
) -> Vec<f64> {
    optimizer.zero_grad();
    let result = autocast_with(options, || product(&floats(&[6, 16], seed), weights)).unwrap();
    result.backward_with(&floats(&[6, 8], seed + 100).to_dtype(result.dtype()).unwrap()).unwrap();
    optimizer.step().unwrap();
    values(&result)
}

fn check_steps<O: OptimizerOptions>(options: O) {
    for dtype in [DType::Bf16, DType::F16] {
        let (kept, made) = (weights(), weights());
        let optimizers = [Optimizer::new(kept.clone(), options), Optimizer::new(made.clone(), options)];
        let [of_kept, of_made] = optimizers.map(Result::unwrap);
        let region = AutocastOptions { dtype, ..AutocastOptions::default() };
        for seed in 0..4 {
            let found = step(&kept, &of_kept, region, seed);
            assert_eq!(found, step(&made, &of_made, anew(dtype), seed), "{dtype} {seed}");
            for (kept, made) in kept.iter().zip(&made) {
                assert_eq!(values(kept), values(made), "{dtype} {seed}");
            }
        }
        let x = floats(&[6, 16], 9).to_dtype(dtype).unwrap();
        assert_eq!(casts(|| drop(autocast_with(region, || product(&x, &kept)).unwrap())), 0);
        assert_eq!(casts(|| drop(autocast_with(anew(dtype), || product(&x, &kept)).unwrap())), 3);
    }
}

#[test]
fn steps_have_the_bits_of_casts_that_are_made_anew() {
    on_own_device(|| {
        check_steps(AdamOptions { lr: 0.1, ..AdamOptions::default() });
        check_steps(AdamWOptions { lr: 0.1, amsgrad: true, ..AdamWOptions::default() });
        check_steps(SgdOptions { lr: 0.1, momentum: 0.9, ..SgdOptions::default() });
    });
}

/// Returns a parameter and its optimizer, whose cast was written by a step.
fn stepped() -> (Tensor, AdamW) {
    let weight = leaf(&[8, 16], 1);
    let optimizer = AdamW::new(vec![weight.clone()], AdamWOptions::default()).unwrap();
    train(&weight);
    optimizer.step().unwrap();
    (weight, optimizer)
}

fn forward(weight: &Tensor) -> Tensor {
    autocast(DType::Bf16, || linear(&floats(&[6, 16], 5), weight, None)).unwrap()
}

fn train(weight: &Tensor) {
    weight.zero_grad();
    let result = forward(weight);
    result.backward_with(&floats(&[6, 8], 6).to_dtype(DType::Bf16).unwrap()).unwrap();
}

/// Asserts that a region computes with the parameter's present value.
#[track_caller]
fn assert_now(weight: &Tensor) {
    let expected = autocast_with(anew(DType::Bf16), || linear(&floats(&[6, 16], 5), weight, None)).unwrap();
    assert_eq!(values(&forward(weight)), values(&expected));
}

/// Returns the number of casts of a parameter in a region.
fn casts_of(weight: &Tensor) -> usize {
    let x = floats(&[6, 16], 5).to_dtype(DType::Bf16).unwrap();
    casts(|| drop(autocast(DType::Bf16, || linear(&x, weight, None)).unwrap()))
}

#[test]
fn a_parameter_that_something_else_writes_is_cast_again() {
    on_own_device(|| {
        let (weight, optimizer) = stepped();
        assert_eq!(casts_of(&weight), 0);
        no_grad(|| weight.mul_scalar_(3.0)).unwrap();
        assert_now(&weight);
        assert_eq!(casts_of(&weight), 0, "that cast is kept in turn");
        no_grad(|| weight.narrow(0, 2, 1)?.fill_(0.25)).unwrap();
        assert_now(&weight);
        // A step that skips the parameter leaves its cast.
        weight.zero_grad();
        optimizer.step().unwrap();
        assert_eq!(casts_of(&weight), 0);
        assert_now(&weight);
        // Another library writes unnoticed.
        weight.mark_exported();
        assert_eq!(casts_of(&weight), 1);
    });
}

#[test]
fn a_step_that_a_scaler_skips_writes_the_cast_of_what_is_there() {
    on_own_device(|| {
        let (weight, optimizer) = stepped();
        let scaler = GradientScaler::new(GradientScalerOptions::default(), &device()).unwrap();
        train(&weight);
        let before = values(&weight);
        weight.grad().unwrap().fill_(f64::INFINITY).unwrap();
        scaler.step(&optimizer).unwrap();
        scaler.update().unwrap();
        assert_eq!(values(&weight), before);
        assert_eq!(casts_of(&weight), 0);
        assert_now(&weight);
    });
}

#[test]
fn a_backward_pass_behind_a_step_reads_the_casts_that_it_saved() {
    on_own_device(|| {
        let gradient = |after: bool| {
            let (weight, optimizer) = stepped();
            let x = leaf(&[6, 16], 5);
            let result = autocast(DType::Bf16, || linear(&x, &weight, None)).unwrap();
            let ones = Tensor::ones(&[6, 8], DType::Bf16, &device()).unwrap();
            if after {
                train(&weight);
                optimizer.step().unwrap();
                assert_now(&weight);
                assert_eq!(casts_of(&weight), 0, "the step wrote its cast to other memory");
            }
            result.backward_with(&ones).unwrap();
            values(&x.grad().unwrap())
        };
        assert_eq!(gradient(true), gradient(false));
    });
}

#[test]
fn two_optimizers_and_two_dtypes_share_a_parameter() {
    on_own_device(|| {
        let (weight, first) = stepped();
        let second = Sgd::new(vec![weight.clone()], SgdOptions::default()).unwrap();
        for step in 0..3 {
            train(&weight);
            first.step().unwrap();
            second.step().unwrap();
            assert_now(&weight);
            let half = |options| autocast_with(options, || linear(&floats(&[6, 16], 5), &weight, None));
            let expected = half(anew(DType::F16)).unwrap();
            assert_eq!(values(&half(AutocastOptions::default()).unwrap()), values(&expected), "{step}");
            assert_now(&weight);
        }
        drop(first);
        train(&weight);
        second.step().unwrap();
        assert_eq!(casts_of(&weight), 0, "the other optimizer keeps it");
        drop(second);
        assert_now(&weight);
        assert_eq!(casts_of(&weight), 1);
    });
}

#[test]
fn a_replay_makes_casts_anew() {
    on_own_device(|| {
        let stream = Stream::new(&device()).unwrap();
        let _current = stream.make_current();
        let (weight, _optimizer) = stepped();
        let (graph, ()) =
            Graph::capture(&device(), CaptureOptions::default(), || no_grad(|| weight.mul_scalar_(2.0)))
                .unwrap();
        // The capture has counted a write that did not happen.
        assert_now(&weight);
        assert_eq!(casts_of(&weight), 0);
        for _ in 0..2 {
            graph.replay().unwrap();
            assert_now(&weight);
        }
    });
}

/// Runs six steps, each eager or a replay, with something done to the parameter between them; returns it at the end.
fn steps(is_captured: bool, between: &dyn Fn(usize, &Tensor)) -> Vec<f64> {
    let (weight, optimizer) = stepped();
    let step = || {
        train(&weight);
        optimizer.step()
    };
    step().unwrap();
    let graph = is_captured.then(|| Graph::capture(&device(), CaptureOptions::default(), step).unwrap().0);
    for round in 0..6 {
        match &graph {
            Some(graph) => graph.replay().unwrap(),
            None => step().unwrap(),
        }
        between(round, &weight);
    }
    assert_now(&weight);
    step().unwrap();
    assert_now(&weight);
    values(&weight)
}

#[test]
fn captured_steps_have_the_bits_of_eager_ones() {
    on_own_device(|| {
        let stream = Stream::new(&device()).unwrap();
        let _current = stream.make_current();
        let both = |between: &dyn Fn(usize, &Tensor)| {
            assert_eq!(steps(true, between), steps(false, between));
        };
        both(&|_, _| ());
        both(&|round, weight| {
            if round == 2 {
                no_grad(|| weight.mul_scalar_(1.5)).unwrap();
            }
        });
        // A region between the replays, which reads the cast that they wrote, on their stream or on another.
        both(&|_, weight| assert_now(weight));
        both(&|_, weight| {
            let other = Stream::new(&device()).unwrap();
            other.wait_stream(&device().current_stream()).unwrap();
            {
                let _current = other.make_current();
                assert_now(weight);
            }
            device().current_stream().wait_stream(&other).unwrap();
        });
        // Another graph that writes the parameter.
        both(&|round, weight| {
            let write = || no_grad(|| weight.mul_scalar_(1.25));
            let (graph, ()) = Graph::capture(&device(), CaptureOptions::default(), write).unwrap();
            if round % 2 == 1 {
                graph.replay().unwrap();
            }
        });
    });
}

#[test]
fn a_captured_step_casts_nothing() {
    on_own_device(|| {
        let stream = Stream::new(&device()).unwrap();
        let _current = stream.make_current();
        let weights = weights();
        let optimizer = AdamW::new(weights.clone(), AdamWOptions::default()).unwrap();
        let x = floats(&[6, 16], 4).to_dtype(DType::Bf16).unwrap();
        let count = |options: AutocastOptions| {
            let step = || {
                optimizer.zero_grad();
                let result = autocast_with(options, || product(&x, &weights))?;
                result.sum(&[], false)?.backward()?;
                optimizer.step()
            };
            step().unwrap();
            step().unwrap();
            let (graph, ()) = Graph::capture(&device(), CaptureOptions::default(), step).unwrap();
            graph.description().unwrap().nodes.len()
        };
        let kept = count(AutocastOptions { dtype: DType::Bf16, ..AutocastOptions::default() });
        if device().is_simulated() {
            assert_eq!(count(anew(DType::Bf16)), kept + 3);
        }
    });
}

#[test]
fn what_a_capture_has_written_is_cast_in_it() {
    on_own_device(|| {
        let stream = Stream::new(&device()).unwrap();
        let _current = stream.make_current();
        let (weight, optimizer) = stepped();
        let x = floats(&[6, 16], 5);
        let product = || autocast(DType::Bf16, || linear(&x, &weight, None));
        let write = || no_grad(|| weight.mul_scalar_(1.25));
        let region = || {
            let before = product()?;
            write()?;
            Ok((before, product()?))
        };
        let (graph, (before, after)) = Graph::capture(&device(), CaptureOptions::default(), region).unwrap();
        for _ in 0..3 {
            let expected = values(&autocast_with(anew(DType::Bf16), || linear(&x, &weight, None)).unwrap());
            graph.replay().unwrap();
            assert_eq!(values(&before), expected);
            let expected = values(&autocast_with(anew(DType::Bf16), || linear(&x, &weight, None)).unwrap());
            assert_eq!(values(&after), expected);
            assert_now(&weight);
        }
        // Forward and backward are captured, and steps are eager.
        let (graph, ()) = Graph::capture(&device(), CaptureOptions::default(), || {
            train(&weight);
            Ok(())
        })
        .unwrap();
        let gradient = weight.grad().unwrap();
        for _ in 0..3 {
            graph.replay().unwrap();
            let found = values(&gradient);
            let other = weight.detach().requires_grad_().unwrap();
            train(&other);
            assert_eq!(found, values(&other.grad().unwrap()));
            optimizer.step().unwrap();
        }
    });
}

#[test]
fn a_step_in_the_body_of_a_conditional_node_leaves_no_cast_that_is_out_of_date() {
    on_own_device(|| {
        let stream = Stream::new(&device()).unwrap();
        let _current = stream.make_current();
        let (weight, optimizer) = stepped();
        train(&weight);
        let x = floats(&[6, 16], 5);
        let product = || autocast(DType::Bf16, || linear(&x, &weight, None));
        let is_stepped = Tensor::from_slice(&[0_i32], &[1], &device()).unwrap();
        let region = || {
            let before = product()?;
            let condition = Condition::u32(is_stepped.pointer());
            graph::if_(&device().current_stream(), condition, || optimizer.step())?;
            Ok((before, product()?))
        };
        let (graph, (before, after)) = Graph::capture(&device(), CaptureOptions::default(), region).unwrap();
        let now = || values(&autocast_with(anew(DType::Bf16), || linear(&x, &weight, None)).unwrap());
        for value in [1.0, 0.0, 1.0, 1.0] {
            no_grad(|| is_stepped.fill_(value)).unwrap();
            let expected = now();
            graph.replay().unwrap();
            assert_eq!((values(&before), values(&after)), (expected.clone(), now()), "{value}");
            assert_eq!(values(&after) != expected, value != 0.0);
            assert_now(&weight);
        }
    });
}

/// Returns the bytes that the device has allocated.
fn allocated(device: &Device) -> u64 {
    let stats = device.allocator().statistics().memory_stats();
    stats.iter().find(|(name, _)| name == "allocated_bytes.all.current").unwrap().1 as u64
}

#[test]
fn casts_take_memory_only_where_regions_read_them() {
    on_own_device(|| {
        let weight = leaf(&[256, 256], 1);
        let adam = Adam::new(vec![weight.clone()], AdamOptions::default()).unwrap();
        let x = floats(&[2, 256], 5);
        let run = |autocasts: bool| {
            weight.zero_grad();
            let product = || linear(&x, &weight, None)?.sum(&[], false);
            let result = if autocasts { autocast(DType::Bf16, product) } else { product() };
            result.unwrap().backward().unwrap();
            adam.step().unwrap();
            weight.zero_grad();
            allocated(&device())
        };
        let plain = run(false);
        let kept = run(true);
        assert_eq!(kept, plain + 2 * 256 * 256);
        assert_eq!(run(true), kept);
        assert_eq!(run(false), plain, "a cast that no region has read is dropped at the step");
        let kept = run(true);
        let before = allocated(&device());
        assert_eq!(before, kept);
        drop(adam);
        // Both moments and the cast.
        assert!(allocated(&device()) <= before - (4 + 4 + 2) * 256 * 256);
    });
}
