//! Gradients that are added to the existing gradient of a leaf: in place, and by the kernel that multiplies.

use std::sync::Arc;

use thalweg_ir::DType;
use thalweg_lock::Mutex;
use thalweg_nn::functional::{gelu_mlp, linear};
use thalweg_runtime::{CaptureOptions, Graph, Result, Stream};
use thalweg_tensor::Tensor;
use thalweg_tensor::autocast::autocast;
use thalweg_tensor::autograd::{
    BackwardOptions, backward_input, detect_anomaly, gradients, set_detect_anomaly,
};
use thalweg_tensor::dispatch::trace;

use crate::support::{assert_close, device, on_own_device, random, values};

/// Returns a leaf whose numbers are exact in 16 bits.
fn leaf(shape: &[usize], seed: u64, dtype: DType) -> Tensor {
    held(shape, seed, dtype).detach().requires_grad_().unwrap()
}

fn held(shape: &[usize], seed: u64, dtype: DType) -> Tensor {
    random(shape, seed).to_dtype(DType::Bf16).unwrap().to_dtype(dtype).unwrap()
}

/// The number of products that a backward pass makes as separate operators.
fn products(function: impl FnOnce() -> Result<()>) -> usize {
    let ((), trace) = trace(function).unwrap();
    trace.to_string().lines().filter(|line| line.contains(" = matmul(")).count()
}

/// A pass over only a weight: its only product is the weight's gradient.
fn pass(weight: &Tensor, seed: u64) -> Result<()> {
    let dtype = weight.dtype();
    let result = linear(&held(&[40, weight.shape()[1]], seed, dtype), weight, None)?;
    result.backward_with(&held(&[40, weight.shape()[0]], seed + 50, dtype))
}

/// Returns the gradient of such a pass in f64.
fn exact(shape: &[usize], seed: u64) -> Vec<f64> {
    let weight = leaf(shape, 1, DType::F64);
    pass(&weight, seed).unwrap();
    values(&weight.grad().unwrap())
}

#[test]
fn a_product_is_added_to_a_gradient_without_another_rounding() {
    let shape = [48, 32];
    for (dtype, half_ulp) in [(DType::Bf16, 2f64.powi(-8)), (DType::F16, 2f64.powi(-11)), (DType::F32, 1e-6)]
    {
        let weight = leaf(&shape, 1, dtype);
        pass(&weight, 2).unwrap();
        for seed in 3..6 {
            let earlier = values(&weight.grad().unwrap());
            assert_eq!(products(|| pass(&weight, seed)), 0, "{dtype}");
            let found = values(&weight.grad().unwrap());
            for ((found, earlier), product) in found.iter().zip(&earlier).zip(exact(&shape, seed)) {
                let expected = earlier + product;
                // Half a unit in the last place, and the error of sums in f32. A library may round the product of 16-bit floats
                // before it adds.
                let rounded = if device().is_simulated() { 0.0 } else { product.abs() };
                let bound = 1.01 * half_ulp * (expected.abs() + rounded) + 4e-6;
                assert!((found - expected).abs() <= bound, "{dtype}: {found} and {expected}");
            }
        }
    }
}

#[test]
fn all_holders_of_a_gradient_see_the_sum() {
    for is_product in [true, false] {
        let weight = leaf(&[16, 8], 1, DType::Bf16);
        let pass = |seed| match is_product {
            true => pass(&weight, seed),
            false => weight.mul(&held(&[16, 8], seed, DType::Bf16))?.sum(&[], false)?.backward(),
        };
        pass(2).unwrap();
        let holder = weight.grad().unwrap();
        let view = holder.narrow(0, 3, 1).unwrap();
        // A square keeps its argument for its gradient.
        let watch = holder.detach().requires_grad_().unwrap();
        let square = watch.square().unwrap().sum(&[], false).unwrap();
        let before = values(&holder);
        pass(3).unwrap();
        let now = weight.grad().unwrap();
        assert!(now.is_same(&holder));
        assert_ne!(values(&now), before);
        assert_eq!(values(&view), values(&now.narrow(0, 3, 1).unwrap()));
        assert!(square.backward().unwrap_err().to_string().contains("modified by an inplace operation"));
    }
}

#[test]
fn one_command_adds_a_product() {
    on_own_device(|| {
        if !device().is_simulated() {
            return;
        }
        let stream = Stream::new(&device()).unwrap();
        let _current = stream.make_current();
        let weight = leaf(&[48, 32], 1, DType::Bf16);
        let (x, gradient) = (held(&[40, 32], 2, DType::Bf16), held(&[40, 48], 3, DType::Bf16));
        let run = || linear(&x, &weight, None)?.backward_with(&gradient);
        run().unwrap();
        let count = || {
            let (graph, ()) = Graph::capture(&device(), CaptureOptions::default(), run).unwrap();
            graph.description().unwrap().nodes.len()
        };
        let with = count();
        weight.zero_grad();
        assert_eq!(with, count(), "a product that is added takes no command more than one that is not");
        assert_eq!(with, 2);
    });
}

#[test]
fn hooks_see_the_gradient_of_their_pass() {
    let expected = |passes: &[u64]| {
        let weight = leaf(&[48, 32], 1, DType::F64);
        passes.iter().for_each(|&seed| pass(&weight, seed).unwrap());
        values(&weight.grad().unwrap())
    };
    type Seen = Arc<Mutex<Vec<f64>>>;
    let hooked = |hook: &dyn Fn(&Tensor, Seen)| {
        let weight = leaf(&[48, 32], 1, DType::F32);
        pass(&weight, 2).unwrap();
        let seen = Seen::default();
        hook(&weight, seen.clone());
        assert_eq!(products(|| pass(&weight, 3)), 1, "a hook sees a gradient of its own");
        assert_close(&values(&weight.grad().unwrap()), &expected(&[2, 3]), 1e-5);
        seen.lock().clone()
    };
    let arriving = hooked(&|weight, seen| {
        let hook = move |gradient: &Tensor| {
            *seen.lock() = values(gradient);
            Ok(None)
        };
        _ = weight.register_hook(hook).unwrap();
    });
    assert_close(&arriving, &expected(&[3]), 1e-5);
    let accumulated = hooked(&|weight, seen| {
        let hook = move |weight: &Tensor| {
            *seen.lock() = values(&weight.grad().unwrap());
            Ok(())
        };
        _ = weight.register_post_accumulate_grad_hook(hook).unwrap();
    });
    assert_close(&accumulated, &expected(&[2, 3]), 1e-5);
}

#[test]
fn a_gradient_of_its_own_is_made_where_a_sum_in_place_would_not_do() {
    let started = || {
        let weight = leaf(&[48, 32], 1, DType::F32);
        pass(&weight, 2).unwrap();
        let earlier = weight.grad().unwrap();
        let numbers = values(&earlier);
        (weight, earlier, numbers)
    };
    let sum: Vec<f64> = exact(&[48, 32], 2).iter().zip(exact(&[48, 32], 3)).map(|(a, b)| a + b).collect();

    // Gradients of gradients: the earlier one stays as it is.
    let (weight, earlier, numbers) = started();
    let result = linear(&held(&[40, 32], 3, DType::F32), &weight, None).unwrap();
    let options = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
    result.backward_options(Some(&held(&[40, 48], 53, DType::F32)), options).unwrap();
    assert_eq!(values(&earlier), numbers);
    assert_close(&values(&weight.grad().unwrap()), &sum, 1e-5);

    // Gradients that are returned.
    let (weight, earlier, numbers) = started();
    let result = linear(&held(&[40, 32], 3, DType::F32), &weight, None).unwrap();
    let given = Some(held(&[40, 48], 53, DType::F32));
    let found = gradients(&[result], &[given], std::slice::from_ref(&weight)).unwrap().remove(0).unwrap();
    assert_close(&values(&found), &exact(&[48, 32], 3), 1e-5);
    assert_eq!(values(&earlier), numbers);

    // A batch, whose products are summed.
    let run = |dtype: DType| {
        let weight = leaf(&[32, 48], 1, dtype);
        for seed in [2, 3] {
            let batch = held(&[3, 5, 32], seed, dtype).matmul(&weight).unwrap();
            batch.backward_with(&held(&[3, 5, 48], seed + 50, dtype)).unwrap();
        }
        values(&weight.grad().unwrap())
    };
    assert_close(&run(DType::F32), &run(DType::F64), 1e-5);

    // A gradient in another layout.
    let (weight, earlier, _) = started();
    let turned = earlier.transpose(0, 1).unwrap().contiguous().unwrap().transpose(0, 1).unwrap();
    weight.set_grad(Some(turned)).unwrap();
    assert_eq!(products(|| pass(&weight, 3)), 1);
    assert_close(&values(&weight.grad().unwrap()), &sum, 1e-5);

    // Anomaly mode checks the computed gradients.
    let (weight, ..) = started();
    assert_eq!(products(|| detect_anomaly(|| pass(&weight, 3))), 1);
    assert_close(&values(&weight.grad().unwrap()), &sum, 1e-5);

    // A gradient that the product reads.
    let x = held(&[48, 48], 3, DType::F32);
    let square = leaf(&[48, 48], 1, DType::F32);
    square.set_grad(Some(x.clone())).unwrap();
    let result = linear(&x, &square, None).unwrap();
    let expected = {
        let product = held(&[48, 48], 53, DType::F64).transpose(0, 1).unwrap();
        values(
            &product
                .matmul(&x.to_dtype(DType::F64).unwrap())
                .unwrap()
                .add(&x.to_dtype(DType::F64).unwrap())
                .unwrap(),
        )
    };
    result.backward_with(&held(&[48, 48], 53, DType::F32)).unwrap();
    assert_close(&values(&square.grad().unwrap()), &expected, 1e-5);
}

#[test]
fn a_product_is_added_to_the_gradient_behind_a_cast_of_autocast() {
    on_own_device(|| {
        let stream = Stream::new(&device()).unwrap();
        let _current = stream.make_current();
        for dtype in [DType::Bf16, DType::F16] {
            let weight = leaf(&[48, 32], 1, DType::F32);
            let pass = |seed: u64| {
                let x = held(&[40, 32], seed, dtype);
                let result = autocast(dtype, || linear(&x, &weight, None))?;
                result.backward_with(&held(&[40, 48], seed + 50, dtype))
            };
            assert_eq!(products(|| pass(2)), 0);
            assert_close(&values(&weight.grad().unwrap()), &exact(&[48, 32], 2), 2e-6);
            for seed in 3..6 {
                let earlier = values(&weight.grad().unwrap());
                assert_eq!(products(|| pass(seed)), 0);
                let found = values(&weight.grad().unwrap());
                let exact = exact(&[48, 32], seed);
                let expected: Vec<f64> = earlier.iter().zip(&exact).map(|(a, b)| a + b).collect();
                // Not rounded to 16 bits.
                assert_close(&found, &expected, 2e-6);
            }
            let (x, gradient) = (held(&[40, 32], 3, dtype), held(&[40, 48], 53, dtype));
            let run = || autocast(dtype, || linear(&x, &weight, None))?.backward_with(&gradient);
            let count = || {
                let (graph, ()) = Graph::capture(&device(), CaptureOptions::default(), run).unwrap();
                graph.description().unwrap().nodes.len()
            };
            let with = count();
            weight.zero_grad();
            if device().is_simulated() {
                assert_eq!((with, count()), (3, 3), "the first gradient is not cast either");
            }
        }
        // A hook sees the pass's gradient, and a weight that is used twice sums both gradients.
        let weight = leaf(&[32, 32], 1, DType::F32);
        _ = weight.register_hook(|_| Ok(None)).unwrap();
        let x = held(&[40, 32], 3, DType::Bf16);
        let twice = || {
            autocast(DType::Bf16, || linear(&linear(&x, &weight, None)?, &weight, None))?
                .backward_with(&held(&[40, 32], 53, DType::Bf16))
        };
        twice().unwrap();
        let once = values(&weight.grad().unwrap());
        twice().unwrap();
        let doubled: Vec<f64> = once.iter().map(|one| 2.0 * one).collect();
        assert_close(&values(&weight.grad().unwrap()), &doubled, 1e-6);
    });
}

/// The gradients of weight and bias of a layer under autocast from two passes, of numbers that 16 bits hold, and the same in f64.
fn of_layer(dtype: DType, pass: impl Fn(&Tensor, &Tensor) -> Result<()>) -> [Vec<f64>; 2] {
    let (weight, bias) = (leaf(&[48, 32], 1, DType::F32), leaf(&[48], 2, DType::F32));
    for seed in [3, 4] {
        let x = held(&[40, 32], seed, dtype);
        let result = autocast(dtype, || linear(&x, &weight, Some(&bias))).unwrap();
        pass(&result, &held(&[40, 48], seed + 50, dtype)).unwrap();
    }
    [weight, bias].map(|leaf| values(&leaf.grad().unwrap()))
}

fn exactly() -> [Vec<f64>; 2] {
    let rows = |seed: u64| values(&held(&[40, 48], seed + 50, DType::F64).sum(&[0], false).unwrap());
    let sum = |[first, second]: [Vec<f64>; 2]| first.iter().zip(&second).map(|(a, b)| a + b).collect();
    [sum([3, 4].map(|seed| exact(&[48, 32], seed))), sum([3, 4].map(rows))]
}

#[test]
fn gradients_behind_casts_of_autocast_are_not_rounded_to_16_bits() {
    on_own_device(|| {
        for dtype in [DType::Bf16, DType::F16] {
            let found = of_layer(dtype, |result, gradient| result.backward_with(gradient));
            for (found, expected) in found.iter().zip(exactly()) {
                assert_close(found, &expected, 2e-6);
            }
        }
        // Gradients that are returned.
        let (weight, bias) = (leaf(&[48, 32], 1, DType::F32), leaf(&[48], 2, DType::F32));
        let x = held(&[40, 32], 3, DType::Bf16);
        let result = autocast(DType::Bf16, || linear(&x, &weight, Some(&bias))).unwrap();
        let given = Some(held(&[40, 48], 53, DType::Bf16));
        let found = gradients(&[result], &[given], &[weight, bias]).unwrap();
        assert_close(&values(found[0].as_ref().unwrap()), &exact(&[48, 32], 3), 2e-6);
        // GELU's layers: compared for the inputs of each product and sum, not only with f64.
        let shapes: [&[usize]; 5] = [&[24, 8], &[16, 8], &[8, 16], &[16], &[8]];
        let leaves: Vec<Tensor> = (0..5).map(|at| leaf(shapes[at], at as u64, DType::F32)).collect();
        let run = || {
            let biases = [Some(&leaves[3]), Some(&leaves[4])];
            gelu_mlp(&leaves[0], [&leaves[1], &leaves[2]], biases)
        };
        let gradient = held(&[24, 8], 10, DType::Bf16);
        autocast(DType::Bf16, run).unwrap().backward_with(&gradient).unwrap();
        let rows = gradient.to_dtype(DType::F64).unwrap().sum(&[0], false).unwrap();
        assert_close(&values(&leaves[4].grad().unwrap()), &values(&rows), 2e-6);
    });
}

#[test]
fn what_looks_at_the_gradient_of_a_cast_finds_16_bits() {
    on_own_device(|| {
        let rounded = |found: &[f64], dtype: DType, what: &str| {
            for (found, expected) in found.iter().zip(&exactly()[0]) {
                // Two gradients, rounded by half a unit each.
                let bound = if dtype == DType::Bf16 { 2f64.powi(-8) } else { 2f64.powi(-11) };
                assert!((found - expected).abs() <= 16.0 * bound, "{what}: {found} and {expected}");
            }
            let is_near = found.iter().zip(&exactly()[0]).all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(!is_near, "{what}: it is rounded to {dtype} in between");
        };
        for dtype in [DType::Bf16, DType::F16] {
            // Gradients of gradients.
            let options = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
            let [weight, _] =
                of_layer(dtype, |result, gradient| result.backward_options(Some(gradient), options));
            rounded(&weight, dtype, "create_graph");
            // A hook after the layer's node.
            let seen = Arc::new(Mutex::new(Vec::new()));
            let [weight, _] = of_layer(dtype, |result, gradient| {
                let seen = seen.clone();
                let hook = move |inputs: &[Option<Tensor>], _: &[Option<Tensor>]| {
                    seen.lock().extend(inputs.iter().flatten().map(Tensor::dtype));
                    Ok(None)
                };
                let _hook = result.grad_fn().unwrap().register_hook(hook);
                result.backward_with(gradient)
            });
            rounded(&weight, dtype, "a hook");
            assert_eq!(*seen.lock(), [dtype; 4]);
            // Anomaly mode.
            let [weight, _] =
                of_layer(dtype, |result, gradient| detect_anomaly(|| result.backward_with(gradient)));
            rounded(&weight, dtype, "anomaly mode");
        }
    });
}

#[test]
fn a_weight_of_several_layers_sums_their_products() {
    on_own_device(|| {
        let stream = Stream::new(&device()).unwrap();
        let _current = stream.make_current();
        let run = |weight: &Tensor| {
            let (x, gradient) = (held(&[40, 32], 2, weight.dtype()), held(&[40, 32], 3, weight.dtype()));
            let backward = || {
                let once = linear(&x, weight, None)?;
                let twice = linear(&once, weight, None)?.add(&once.matmul(weight)?)?;
                twice.backward_with(&gradient)
            };
            backward().unwrap();
            let sum = values(&weight.grad().unwrap());
            weight.zero_grad();
            let (graph, ()) = Graph::capture(&device(), CaptureOptions::default(), backward).unwrap();
            (graph.description().unwrap().nodes.len(), sum)
        };
        let [summed, apart, seen] = [1; 3].map(|seed| leaf(&[32, 32], seed, DType::F32));
        // A hook of the leaf sees the sum of all gradients of the pass.
        let last = Arc::new(Mutex::new(Vec::new()));
        let of_hook = last.clone();
        let hook = move |gradient: &Tensor| {
            if !gradient.device().current_stream().is_capturing()? {
                *of_hook.lock() = values(gradient);
            }
            Ok(None)
        };
        _ = seen.register_hook(hook).unwrap();
        let (commands, found) = run(&summed);
        let (more, of_apart) = set_detect_anomaly(true, false, || run(&apart));
        let (as_many, of_seen) = run(&seen);
        let (_, expected) = run(&leaf(&[32, 32], 1, DType::F64));
        assert_close(&found, &expected, 1e-5);
        assert_close(&of_apart, &expected, 1e-5);
        assert_eq!((&of_seen, &*last.lock()), (&found, &found));
        if device().is_simulated() {
            assert_eq!((more - commands, as_many), (2, commands), "two products are added to the first");
        }
    });
}

#[test]
fn layers_around_gelu_and_halves_of_a_pass_sum_as_well() {
    let shapes: [&[usize]; 5] = [&[24, 8], &[16, 8], &[8, 16], &[16], &[8]];
    let run = |dtype: DType| {
        let leaves: Vec<Tensor> = (0..5).map(|seed| leaf(shapes[seed], seed as u64, dtype)).collect();
        for seed in 10..13 {
            let result =
                gelu_mlp(&leaves[0], [&leaves[1], &leaves[2]], [Some(&leaves[3]), Some(&leaves[4])]).unwrap();
            result.backward_with(&held(&[24, 8], seed, dtype)).unwrap();
        }
        leaves.iter().map(|leaf| values(&leaf.grad().unwrap())).collect::<Vec<_>>()
    };
    for (found, expected) in run(DType::Bf16).iter().zip(&run(DType::F64)) {
        assert_close(found, expected, 0.05);
    }
    let added = |dtype: DType| {
        let (bias, weight) = (leaf(&[16], 1, dtype), leaf(&[8, 16], 2, dtype));
        for seed in 10..13 {
            let x = held(&[24, 8], seed, dtype);
            let result = bias.addmm(&x, &weight).unwrap();
            result.backward_with(&held(&[24, 16], seed + 50, dtype)).unwrap();
        }
        [values(&bias.grad().unwrap()), values(&weight.grad().unwrap())]
    };
    for (found, expected) in added(DType::F32).iter().zip(&added(DType::F64)) {
        assert_close(found, expected, 1e-5);
    }
    let halves = |dtype: DType| {
        let (x, weight) = (leaf(&[24, 8], 1, dtype), leaf(&[16, 8], 2, dtype));
        for seed in 10..13 {
            let result = linear(&x, &weight, None).unwrap();
            let (_, rest) = backward_input(&result, Some(&held(&[24, 16], seed, dtype)), &x).unwrap();
            rest.run().unwrap();
        }
        values(&weight.grad().unwrap())
    };
    assert_close(&halves(DType::F32), &halves(DType::F64), 1e-5);
}

#[test]
fn a_replay_adds_to_the_gradient_that_the_leaf_has() {
    on_own_device(|| {
        let stream = Stream::new(&device()).unwrap();
        let _current = stream.make_current();
        let weight = leaf(&[48, 32], 1, DType::F32);
        pass(&weight, 2).unwrap();
        let (x, gradient) = (held(&[40, 32], 3, DType::F32), held(&[40, 48], 53, DType::F32));
        let run = || linear(&x, &weight, None)?.backward_with(&gradient);
        let (graph, ()) = Graph::capture(&device(), CaptureOptions::default(), run).unwrap();
        let (first, each) = (exact(&[48, 32], 2), exact(&[48, 32], 3));
        for replays in 1..4 {
            graph.replay().unwrap();
            let sum = first.iter().zip(&each).map(|(first, each)| first + f64::from(replays) * each);
            assert_close(&values(&weight.grad().unwrap()), &sum.collect::<Vec<_>>(), 1e-5);
        }
    });
}
