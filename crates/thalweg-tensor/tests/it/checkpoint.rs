//! Activation checkpointing: gradients with the same bits as without it, less memory, and functions that do not repeat
//! themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thalweg_ir::DType;
use thalweg_runtime::sim::{Check, Gpu};
use thalweg_runtime::{Device, Result, Stream};
use thalweg_tensor::autocast::autocast;
use thalweg_tensor::autograd::{
    BackwardOptions, CheckpointOptions, checkpoint, checkpoint_with, gradients, gradients_with, save_on_cpu,
};
use thalweg_tensor::random::{DeviceGenerator, Generator, default_generator};
use thalweg_tensor::{Tensor, no_grad};

use crate::support::{device, own_device, random, values};

/// A function of tensors that can be checkpointed.
type Function = Arc<dyn Fn(&[Tensor]) -> Result<Tensor> + Send + Sync>;

/// A function of tensors that is checkpointed once.
type Once = Box<dyn Fn(&[Tensor]) -> Result<Tensor> + Send + Sync>;

fn leaf(shape: &[usize], seed: u64) -> Tensor {
    random(shape, seed).to_dtype(DType::F32).unwrap().requires_grad_().unwrap()
}

/// Returns two layers with a residual connection.
fn block(inputs: &[Tensor]) -> Result<Tensor> {
    let [x, first, second] = inputs else { unreachable!() };
    x.matmul(first)?.tanh()?.matmul(second)?.exp()?.add(x)
}

/// Runs a function and its backward pass, and returns the result and the gradients of fresh leaves.
fn outcome(run: impl Fn(&[Tensor]) -> Result<Tensor>) -> Vec<Vec<f64>> {
    let leaves = [leaf(&[4, 8], 1), leaf(&[8, 8], 2), leaf(&[8, 8], 3)];
    let y = run(&leaves).unwrap();
    y.square().unwrap().sum(&[], false).unwrap().backward().unwrap();
    leaves.iter().map(|leaf| values(&leaf.grad().unwrap())).chain([values(&y)]).collect()
}

#[track_caller]
fn assert_refused<T>(result: Result<T>, words: &str) {
    let error = result.err().expect("an error");
    assert!(error.is_invalid_argument() && error.to_string().contains(words), "{error}");
}

#[test]
fn gradients_have_the_bits_of_those_without() {
    let twice = |inputs: &[Tensor]| -> Result<Tensor> {
        block(&[block(inputs)?, inputs[1].clone(), inputs[2].clone()])
    };
    let plain = outcome(twice);
    assert_eq!(plain, outcome(|inputs| checkpoint(twice, inputs)));
    for early_stop in [false, true] {
        let options = CheckpointOptions { early_stop, ..CheckpointOptions::default() };
        assert_eq!(plain, outcome(|inputs| checkpoint_with(options.clone(), twice, inputs)));
    }
    // In pieces, nested, and with the tensors of the outer one in host memory.
    let pieces = |inputs: &[Tensor]| -> Result<Tensor> {
        let x = checkpoint(block, inputs)?;
        checkpoint(block, &[x, inputs[1].clone(), inputs[2].clone()])
    };
    assert_eq!(plain, outcome(pieces));
    assert_eq!(plain, outcome(|inputs| checkpoint(pieces, inputs)));
    assert_eq!(plain, outcome(|inputs| checkpoint(move |inputs| checkpoint(pieces, inputs), inputs)));
    assert_eq!(plain, outcome(|inputs| save_on_cpu(|| checkpoint(pieces, inputs))));
}

#[test]
fn second_passes_and_second_derivatives_run_the_function_again() {
    let count = Arc::new(AtomicUsize::new(0));
    let runs = count.clone();
    let cube = move |inputs: &[Tensor]| -> Result<Tensor> {
        runs.fetch_add(1, Ordering::Relaxed);
        inputs[0].square()?.mul(&inputs[0])
    };
    let x = Tensor::full(&[1], 3.0, DType::F32, &device()).unwrap().requires_grad_().unwrap();
    let y = checkpoint(cube, std::slice::from_ref(&x)).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 1);
    let retained = BackwardOptions { retain_graph: true, create_graph: false };
    y.backward_options(None, retained).unwrap();
    y.backward_options(None, retained).unwrap();
    assert_eq!((values(&x.grad().unwrap()), count.load(Ordering::Relaxed)), (vec![54.0], 3));
    let one = Tensor::ones(&[1], DType::F32, &device()).unwrap();
    let options = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
    let first = gradients_with(&[y], &[Some(one.clone())], std::slice::from_ref(&x), options).unwrap();
    let second = gradients(&[first[0].clone().unwrap()], &[Some(one)], &[x]).unwrap();
    assert_eq!(values(second[0].as_ref().unwrap()), [18.0]);
}

#[test]
fn random_numbers_are_drawn_again() {
    let own = Arc::new(DeviceGenerator::new(5, &device()).unwrap());
    let options = CheckpointOptions { generators: vec![own.clone()], ..CheckpointOptions::default() };
    let drawing = own.clone();
    let function: Function = Arc::new(move |inputs: &[Tensor]| {
        let kept = drawing.dropout(&inputs[0], 0.5)?.exp()?;
        let noise = drawing.randn(&[4, 8], DType::F32)?;
        kept.mul(&noise)?.matmul(&inputs[1])?.matmul(&inputs[2])
    });
    let run = |is_checkpointed: bool| {
        own.manual_seed(11).unwrap();
        let found = outcome(|inputs| {
            let function = function.clone();
            let y = match is_checkpointed {
                true => checkpoint_with(options.clone(), move |inputs| function(inputs), inputs)?,
                false => function(inputs)?,
            };
            // The generator advances between the passes.
            own.rand(&[100], DType::F32)?;
            Ok(y)
        });
        (found, own.state().unwrap())
    };
    assert_eq!(run(false), run(true));
}

fn peak(device: &Device, run: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> (u64, Vec<f64>) {
    let mut generator = Generator::new(4);
    let mut make = || Tensor::uniform(&[64, 64], -0.1, 0.1, &mut generator, device).unwrap();
    let (x, weight) = (make().requires_grad_().unwrap(), make().requires_grad_().unwrap());
    device.allocator().reset_peak_memory_stats();
    let before = device.allocator().statistics().allocated_bytes.all.current;
    run(&x, &weight).unwrap().sum(&[], false).unwrap().backward().unwrap();
    device.current_stream().synchronize().unwrap();
    let peak = device.allocator().statistics().allocated_bytes.all.peak - before;
    (peak, values(&weight.grad().unwrap()))
}

#[test]
fn the_peak_of_memory_falls() {
    fn layer(inputs: &[Tensor]) -> Result<Tensor> {
        let [x, weight] = inputs else { unreachable!() };
        x.matmul(weight)?.tanh()?.exp()?.sin()?.tanh()?.exp()?.sin()?.tanh()
    }
    fn layers(inputs: &[Tensor], each: impl Fn(&[Tensor]) -> Result<Tensor>) -> Result<Tensor> {
        (0..8).try_fold(inputs[0].clone(), |x, _| each(&[x, inputs[1].clone()]))
    }
    let device = own_device();
    let of = |x: &Tensor, weight: &Tensor| [x.clone(), weight.clone()];
    let plain = peak(&device, |x, weight| layers(&of(x, weight), layer));
    let pieces = peak(&device, |x, weight| layers(&of(x, weight), |inputs| checkpoint(layer, inputs)));
    let nested = peak(&device, |x, weight| {
        let half = |inputs: &[Tensor]| -> Result<Tensor> {
            (0..4).try_fold(inputs[0].clone(), |x, _| checkpoint(layer, &[x, inputs[1].clone()]))
        };
        (0..2).try_fold(x.clone(), |x, _| checkpoint(half, &[x, weight.clone()]))
    });
    assert_eq!(plain.1, pieces.1);
    assert_eq!(plain.1, nested.1);
    // A layer saves five matrices: forty, against eight inputs and one layer.
    let matrix = 64 * 64 * 4;
    assert!(plain.0 >= 40 * matrix, "{} matrices", plain.0 / matrix);
    assert!(pieces.0 <= 20 * matrix, "{} matrices", pieces.0 / matrix);
    // Two inputs, four inputs of one half, and one layer.
    assert!(nested.0 < pieces.0, "{} matrices", nested.0 / matrix);
}

#[test]
fn autocast_is_as_it_was() {
    let product = |inputs: &[Tensor]| -> Result<Tensor> {
        let y = inputs[0].matmul(&inputs[1])?.tanh()?.matmul(&inputs[2])?;
        assert_eq!(y.dtype(), DType::Bf16);
        y.to_dtype(DType::F32)
    };
    let plain = outcome(|inputs| autocast(DType::Bf16, || product(inputs)));
    assert_eq!(plain, outcome(|inputs| autocast(DType::Bf16, || checkpoint(product, inputs))));
}

/// Returns a function that does one thing in its first call, and another in later calls.
fn changing(
    first: fn(&Tensor) -> Result<Tensor>,
    later: fn(&Tensor) -> Result<Tensor>,
) -> impl Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static {
    let count = AtomicUsize::new(0);
    move |inputs| match count.fetch_add(1, Ordering::Relaxed) {
        0 => first(&inputs[0]),
        _ => later(&inputs[0]),
    }
}

#[test]
fn a_function_that_does_not_repeat_itself_is_refused() {
    let x = leaf(&[3], 1);
    let run = |options: &CheckpointOptions, function: Once| {
        let y = checkpoint_with(options.clone(), function, std::slice::from_ref(&x))?;
        y.sum(&[], false)?.backward()
    };
    let stops = CheckpointOptions::default();
    let goes_on = CheckpointOptions { early_stop: false, ..CheckpointOptions::default() };
    let fewer = || Box::new(changing(|x| x.sin()?.exp(), |x| x.sin()));
    for options in [&stops, &goes_on] {
        assert_refused(
            run(options, fewer()),
            "Number of tensors saved during forward: 2. Number of tensors saved during recomputation: 1.",
        );
    }
    let more = || Box::new(changing(|x| x.sin(), |x| x.sin()?.exp()));
    assert_refused(run(&goes_on, more()), "trying to save more tensors during recomputation");
    run(&stops, more()).unwrap();
    let other = || Box::new(changing(|x| x.sin()?.exp(), |x| x.sum(&[], false)?.sin()?.exp()));
    assert_refused(
        run(&stops, other()),
        &format!(
            "tensor at position 0: saved metadata: [3] float32 on {0}, recomputed metadata: [] float32 on {0}",
            x.device()
        ),
    );
    let unchecked = CheckpointOptions { determinism_check: false, ..CheckpointOptions::default() };
    assert_refused(run(&unchecked, other()), "a saved tensor unpack hook gave");
    let failing = || Box::new(changing(|x| x.sin(), |_| Err(thalweg_runtime::Error::invalid("on purpose"))));
    assert_refused(run(&stops, failing()), "on purpose");
}

#[test]
fn an_input_that_was_written_is_refused() {
    let x = leaf(&[3], 1).mul_scalar(1.0).unwrap();
    let y = checkpoint(|inputs: &[Tensor]| inputs[0].sin()?.exp(), std::slice::from_ref(&x)).unwrap();
    no_grad(|| x.add_scalar_(1.0).map(drop)).unwrap();
    assert_refused(y.sum(&[], false).unwrap().backward(), "modified by an inplace operation");
}

/// A new device has no generator before the function requests one.
#[test]
fn the_first_numbers_of_a_device_are_drawn_again() {
    let device = own_device();
    let masks = Arc::new(thalweg_lock::Mutex::new(Vec::new()));
    let list = masks.clone();
    let x = Tensor::ones(&[64], DType::F32, &device).unwrap().requires_grad_().unwrap();
    let dropped = move |inputs: &[Tensor]| -> Result<Tensor> {
        let kept = default_generator(inputs[0].device())?.bernoulli(&[64], 0.5, DType::F32)?;
        list.lock().push(values(&kept));
        inputs[0].mul(&kept)?.square()
    };
    let y = checkpoint(dropped, &[x]).unwrap();
    let state = default_generator(&device).unwrap().state().unwrap();
    y.sum(&[], false).unwrap().backward().unwrap();
    let masks = masks.lock();
    assert!(masks.len() == 2 && masks[0] == masks[1] && masks[0].contains(&0.0));
    assert_eq!(default_generator(&device).unwrap().state().unwrap(), state);
}

#[test]
fn without_gradients_it_is_a_call() {
    let x = leaf(&[3], 1);
    let y = no_grad(|| checkpoint(|inputs: &[Tensor]| inputs[0].sin(), std::slice::from_ref(&x))).unwrap();
    assert_eq!(values(&y), values(&x.sin().unwrap()));
    assert!(!y.requires_grad());
}

/// The function runs on one side stream and a part of it on another; backward is called on the first of all.
#[test]
fn a_checkpoint_runs_again_on_its_stream() {
    Check::new().seeds(0..20).run(|gpu: &Gpu| -> Result<()> {
        let device = gpu.device();
        let (main, side) = (device.current_stream(), Stream::new(device)?);
        let x = Tensor::ones(&[64], DType::F32, device)?.requires_grad_()?;
        side.wait_stream(&main)?;
        x.record_stream(&side);
        let other = Stream::new(device)?;
        let function = move |inputs: &[Tensor]| -> Result<Tensor> {
            let current = inputs[0].device().current_stream();
            let y = inputs[0].square()?;
            other.wait_stream(&current)?;
            y.record_stream(&other);
            let z = {
                let _current = other.make_current();
                y.square()?
            };
            current.wait_stream(&other)?;
            z.record_stream(&current);
            z.square()?.square()
        };
        let y = {
            let _current = side.make_current();
            checkpoint(function, std::slice::from_ref(&x))?
        };
        main.wait_stream(&side)?;
        y.record_stream(&main);
        y.sum(&[], false)?.backward()?;
        assert_eq!(x.grad().expect("a leaf has a gradient").to_vec::<f32>()?, [16.0; 64]);
        Ok(())
    });
}
