//! Programs over several streams that do all required ordering, under every schedule: a finding of the sanitizer is an error of
//! this crate. Each program covers a line of the crate that no other test would miss.

use std::slice::from_ref;

use thalweg_ir::DType;
use thalweg_runtime::sim::{Check, Gpu};
use thalweg_runtime::{CaptureMode, CaptureOptions, Graph, Result, Stream};
use thalweg_tensor::autograd::{BackwardOptions, gradients_with};
use thalweg_tensor::graph::callable::function;
use thalweg_tensor::graph::{CallableOptions, GraphedCallable, make_graphed_callables};
use thalweg_tensor::random::DeviceGenerator;
use thalweg_tensor::{Tensor, no_grad};

/// The number of seeds per program: the order is judged at every call, so the schedules add little.
const SEEDS: std::ops::Range<u64> = 0..30;

fn on<T>(stream: &Stream, body: impl FnOnce() -> Result<T>) -> Result<T> {
    let _current = stream.make_current();
    body()
}

fn ones(gpu: &Gpu) -> Result<Tensor> {
    Tensor::ones(&[64], DType::F32, gpu.device())
}

/// Returns a side stream that is ordered after the current one.
fn side(gpu: &Gpu) -> Result<Stream> {
    let side = Stream::new(gpu.device())?;
    side.wait_stream(&gpu.device().current_stream())?;
    Ok(side)
}

/// Orders a stream after another, and records its use of a tensor.
fn hand_over(tensor: &Tensor, from: &Stream, to: &Stream) -> Result<()> {
    to.wait_stream(from)?;
    tensor.record_stream(to);
    Ok(())
}

/// The gradients of a leaf come from two streams that are neither the leaf's nor the caller's: they are moved, recorded and
/// added where the leaf is.
#[test]
fn a_leaf_is_used_on_two_streams() {
    let program = |gpu: &Gpu| -> Result<()> {
        let main = gpu.device().current_stream();
        let leaf = ones(gpu)?.requires_grad_()?;
        let sides = [side(gpu)?, side(gpu)?];
        let losses = sides.each_ref().map(|side| -> Result<Tensor> {
            leaf.record_stream(side);
            let loss = on(side, || leaf.square()?.sum(&[], false))?;
            hand_over(&loss, side, &main)?;
            Ok(loss)
        });
        let [one, two] = losses;
        one?.add(&two?)?.backward()?;
        assert_eq!(leaf.grad().expect("a leaf has a gradient").to_vec::<f32>()?, [4.0; 64]);
        Ok(())
    };
    Check::new().seeds(SEEDS).run(program);
}

/// The last of two gradients of an inner value comes from a side stream: the sum is made on the value's own.
#[test]
fn the_gradients_of_an_inner_value_come_from_two_streams() {
    let program = |gpu: &Gpu| -> Result<()> {
        let main = gpu.device().current_stream();
        let leaf = ones(gpu)?.requires_grad_()?;
        let inner = leaf.mul_scalar(2.0)?;
        let elsewhere = side(gpu)?;
        inner.record_stream(&elsewhere);
        // Recorded first, so its gradient is made last.
        let first = on(&elsewhere, || inner.square()?.sum(&[], false))?;
        let second = inner.square()?.sum(&[], false)?;
        hand_over(&first, &elsewhere, &main)?;
        first.add(&second)?.backward()?;
        assert_eq!(leaf.grad().expect("a leaf has a gradient").to_vec::<f32>()?, [16.0; 64]);
        Ok(())
    };
    Check::new().seeds(SEEDS).run(program);
}

/// The caller of backward is on a third stream: its later reads are ordered after both.
#[test]
fn backward_is_called_on_a_third_stream() {
    let program = |gpu: &Gpu| -> Result<()> {
        let main = gpu.device().current_stream();
        let leaves = [ones(gpu)?.requires_grad_()?, ones(gpu)?.requires_grad_()?];
        let (a, b, caller) = (side(gpu)?, side(gpu)?, side(gpu)?);
        let squares = [(&leaves[0], &a), (&leaves[1], &b)].map(|(leaf, stream)| -> Result<Tensor> {
            leaf.record_stream(stream);
            let loss = on(stream, || leaf.detach().requires_grad_()?.square()?.sum(&[], false))?;
            hand_over(&loss, stream, &caller)?;
            Ok(loss)
        });
        let [one, two] = squares;
        on(&caller, || {
            let total = one?.add(&two?)?.add(&leaves[0].sum(&[], false)?)?;
            total.backward()?;
            assert_eq!(leaves[0].grad().expect("a leaf has a gradient").to_vec::<f32>()?, [1.0; 64]);
            Ok(())
        })?;
        leaves.iter().for_each(|leaf| leaf.record_stream(&caller));
        main.wait_stream(&caller)
    };
    Check::new().seeds(SEEDS).run(program);
}

/// A generator is used on three streams: it orders its draws itself, and they are those of one stream.
#[test]
fn a_generator_draws_on_three_streams() {
    let program = |gpu: &Gpu| -> Result<()> {
        let device = gpu.device();
        let drawn = |streams: &[Stream]| -> Result<Vec<Vec<f32>>> {
            let generator = DeviceGenerator::new(7, device)?;
            let draws: Vec<Tensor> = streams
                .iter()
                .map(|stream| on(stream, || generator.rand(&[64], DType::F32)))
                .collect::<Result<_>>()?;
            // Its state is freed while the streams may still be busy.
            drop(generator);
            streams.iter().zip(&draws).map(|(stream, draw)| on(stream, || draw.to_vec::<f32>())).collect()
        };
        let main = device.current_stream();
        let streams = [main.clone(), side(gpu)?, side(gpu)?, main.clone()];
        assert_eq!(drawn(&streams)?, drawn(&[main.clone(), main.clone(), main.clone(), main])?);
        Ok(())
    };
    Check::new().seeds(SEEDS).run(program);
}

/// The state of a generator is read and set on a different stream than the draws, after them.
#[test]
fn a_generator_is_asked_and_set_on_another_stream_than_it_draws_on() {
    let program = |gpu: &Gpu| -> Result<()> {
        let elsewhere = side(gpu)?;
        let generator = DeviceGenerator::new(7, gpu.device())?;
        on(&elsewhere, || generator.rand(&[64], DType::F32).map(drop))?;
        assert_eq!(generator.state()?, (7, 4));
        on(&elsewhere, || generator.rand(&[64], DType::F32).map(drop))?;
        generator.set_state(9, 8)?;
        on(&elsewhere, || generator.rand(&[64], DType::F32).map(drop))?;
        assert_eq!(generator.state()?, (9, 12));
        Ok(())
    };
    Check::new().seeds(SEEDS).run(program);
}

/// Graphed callables that were made together share memory: a call follows the last one, wherever that was.
#[test]
fn graphed_callables_follow_one_another_across_streams() {
    let program = |gpu: &Gpu| -> Result<()> {
        let device = gpu.device();
        let home = side(gpu)?;
        let graphed = on(&home, || {
            let sample = || -> Result<Vec<Tensor>> { Ok(vec![ones(gpu)?.requires_grad_()?]) };
            let square = || function("square", Vec::new(), |inputs| Ok(vec![inputs[0].square()?]));
            make_graphed_callables(
                device,
                vec![square(), square()],
                vec![sample()?, sample()?],
                &CallableOptions::default(),
            )
        })?;
        let streams = [home.clone(), side(gpu)?, side(gpu)?];
        // Inputs of each stream's own, and nothing that orders the streams, the host included: the calls do.
        let mut copies = Vec::new();
        for stream in streams.iter().chain(&streams[..1]) {
            copies.push(on(stream, || {
                let input = ones(gpu)?.mul_scalar(3.0)?;
                no_grad(|| graphed[0].call(from_ref(&input))?[0].mul_scalar(2.0))
            })?);
        }
        // The backward pass of the first follows the forward pass of the second, on another stream.
        let (a, b) = (&streams[1], &streams[2]);
        let input = on(a, || ones(gpu)?.requires_grad_())?;
        let loss = on(a, || graphed[0].call(from_ref(&input))?[0].sum(&[], false))?;
        copies.push(on(b, || {
            let other = ones(gpu)?.mul_scalar(3.0)?;
            no_grad(|| graphed[1].call(from_ref(&other))?[0].mul_scalar(2.0))
        })?);
        on(a, || loss.backward())?;
        drop((loss, graphed));
        for (stream, copy) in streams.iter().chain([&streams[0], b]).zip(&copies) {
            assert_eq!(on(stream, || copy.to_vec::<f32>())?, [18.0; 64]);
        }
        on(a, || {
            assert_eq!(input.grad().expect("a leaf has a gradient").to_vec::<f32>()?, [2.0; 64]);
            Ok(())
        })
    };
    Check::new().seeds(SEEDS).run(program);
}

/// The gradient of a leaf of another stream is read and dropped by the caller of backward, which uses no other stream.
#[test]
fn the_caller_reads_and_drops_the_gradient_of_another_streams_leaf() {
    let program = |gpu: &Gpu| -> Result<()> {
        let main = gpu.device().current_stream();
        let elsewhere = side(gpu)?;
        let (leaves, loss) = on(&elsewhere, || {
            let leaves = [ones(gpu)?.requires_grad_()?, ones(gpu)?.requires_grad_()?];
            let loss = leaves[0].square()?.add(&leaves[1].square()?)?.sum(&[], false)?;
            Ok((leaves, loss))
        })?;
        hand_over(&loss, &elsewhere, &main)?;
        loss.backward()?;
        for leaf in &leaves {
            let twice = leaf.grad().expect("a leaf has a gradient").mul_scalar(2.0)?;
            leaf.zero_grad();
            // Takes the memory that the other stream may reuse.
            on(&elsewhere, || Tensor::full(&[64], 1000.0, DType::F32, gpu.device()).map(drop))?;
            assert_eq!(twice.to_vec::<f32>()?, [4.0; 64]);
        }
        Ok(())
    };
    Check::new().seeds(SEEDS).run(program);
}

/// Returns two graphed callables that save their results.
fn saving_callables(gpu: &Gpu) -> Result<Vec<GraphedCallable>> {
    let sample = || -> Result<Vec<Tensor>> { Ok(vec![ones(gpu)?.requires_grad_()?]) };
    let callable = || function("powers", Vec::new(), |inputs| Ok(vec![inputs[0].exp()?.square()?.square()?]));
    let (callables, samples) = (vec![callable(), callable()], vec![sample()?, sample()?]);
    make_graphed_callables(gpu.device(), callables, samples, &CallableOptions::default())
}

/// The first callable's backward pass works in memory in which the second's forward pass saves tensors: it is ordered after that,
/// although it was on another stream.
#[test]
fn a_graphed_backward_pass_follows_the_last_call_on_another_stream() {
    let program = |gpu: &Gpu| -> Result<()> {
        let graphed = saving_callables(gpu)?;
        let (a, b) = (side(gpu)?, side(gpu)?);
        let (input, loss) = on(&a, || {
            let input = Tensor::zeros(&[64], DType::F32, gpu.device())?.requires_grad_()?;
            let loss = graphed[0].call(from_ref(&input))?[0].sum(&[], false)?;
            Ok((input, loss))
        })?;
        let copy = on(&b, || {
            let other = Tensor::zeros(&[64], DType::F32, gpu.device())?;
            no_grad(|| graphed[1].call(from_ref(&other))?[0].mul_scalar(2.0))
        })?;
        on(&a, || loss.backward())?;
        assert_eq!(on(&b, || copy.to_vec::<f32>())?, [2.0; 64]);
        let gradient = input.grad().expect("a leaf has a gradient");
        assert_eq!(on(&a, || gradient.to_vec::<f32>())?, [4.0; 64]);
        Ok(())
    };
    Check::new().seeds(SEEDS).run(program);
}

/// A second backward pass over one call writes into the memory of the gradients of the first: held ones are moved first, and the
/// pass waits for those that another stream still reads.
#[test]
fn a_second_graphed_backward_pass_spares_the_gradients_of_the_first() {
    let program = |gpu: &Gpu| -> Result<()> {
        let graphed = saving_callables(gpu)?;
        let elsewhere = side(gpu)?;
        let input = Tensor::zeros(&[64], DType::F32, gpu.device())?.requires_grad_()?;
        let result = &graphed[0].call(from_ref(&input))?[0];
        let pass = |factor: f64| -> Result<Tensor> {
            let from = Some(Tensor::full(&[64], factor, DType::F32, gpu.device())?);
            let retained = BackwardOptions { retain_graph: true, create_graph: false };
            let found = gradients_with(from_ref(result), from_ref(&from), from_ref(&input), retained)?;
            Ok(found.into_iter().flatten().next().expect("the result depends on the input"))
        };
        let first = pass(1.0)?;
        let second = pass(10.0)?;
        assert_eq!(first.to_vec::<f32>()?, [4.0; 64]);
        hand_over(&second, &gpu.device().current_stream(), &elsewhere)?;
        let read = on(&elsewhere, || second.mul_scalar(2.0))?;
        drop(second);
        assert_eq!(pass(100.0)?.to_vec::<f32>()?, [400.0; 64]);
        assert_eq!(on(&elsewhere, || read.to_vec::<f32>())?, [80.0; 64]);
        Ok(())
    };
    Check::new().seeds(SEEDS).run(program);
}

/// Checks that the caller may read and drop a gradient that a backward pass returns instead of writing it into a leaf.
#[test]
fn the_caller_reads_and_drops_a_gradient_that_another_stream_made() {
    let program = |gpu: &Gpu| -> Result<()> {
        let main = gpu.device().current_stream();
        let elsewhere = side(gpu)?;
        let (leaf, loss) = on(&elsewhere, || {
            let leaf = ones(gpu)?.requires_grad_()?;
            let loss = leaf.square()?.sum(&[], false)?;
            Ok((leaf, loss))
        })?;
        hand_over(&loss, &elsewhere, &main)?;
        let from = [Some(Tensor::ones(&[], DType::F32, gpu.device())?)];
        let found = gradients_with(from_ref(&loss), &from, from_ref(&leaf), BackwardOptions::default())?;
        let gradient = found.into_iter().flatten().next().expect("the loss depends on the leaf");
        let twice = gradient.mul_scalar(2.0)?;
        drop(gradient);
        // Takes the memory that the other stream may reuse.
        on(&elsewhere, || Tensor::full(&[64], 1000.0, DType::F32, gpu.device()).map(drop))?;
        assert_eq!(twice.to_vec::<f32>()?, [4.0; 64]);
        Ok(())
    };
    Check::new().seeds(SEEDS).run(program);
}

/// A backward pass that fails has run other nodes before, on another stream: the caller's is ordered after them, and reads the
/// gradients that they left in the leaves.
#[test]
fn the_caller_follows_what_ran_before_a_failure() {
    let program = |gpu: &Gpu| -> Result<()> {
        let main = gpu.device().current_stream();
        let elsewhere = side(gpu)?;
        // Recorded first, so that its node runs last; what it saved is overwritten.
        let overwritten = ones(gpu)?.requires_grad_()?;
        let copy = overwritten.mul_scalar(1.0)?;
        let fails = copy.square()?.sum(&[], false)?;
        no_grad(|| copy.copy_(&ones(gpu)?))?;
        let (leaf, runs) = on(&elsewhere, || {
            let leaf = ones(gpu)?.requires_grad_()?;
            let runs = leaf.square()?.sum(&[], false)?;
            Ok((leaf, runs))
        })?;
        hand_over(&runs, &elsewhere, &main)?;
        let error = fails.add(&runs)?.backward().expect_err("what a node saved was overwritten");
        assert!(error.to_string().contains("inplace operation"), "{error}");
        let gradient = leaf.grad().expect("its node ran before the failure");
        assert_eq!(gradient.to_vec::<f32>()?, [2.0; 64]);
        Ok(())
    };
    Check::new().seeds(SEEDS).run(program);
}

/// Nothing but the generator orders replays of two graphs, captured at the same time, and a draw without a graph, on three streams.
#[test]
fn a_generator_orders_the_graphs_that_draw_from_it() {
    let program = |gpu: &Gpu| -> Result<()> {
        let device = gpu.device();
        let generator = DeviceGenerator::new(7, device)?;
        let draw = || generator.rand(&[64], DType::F32);
        let mode = CaptureMode::Relaxed;
        let begin = |stream: &Stream| {
            let stream = Some(stream.clone());
            Graph::capture_begin(device, CaptureOptions { mode, stream, ..CaptureOptions::default() })
        };
        let streams = [Stream::new(device)?, Stream::new(device)?, Stream::new(device)?];
        let first = begin(&streams[0])?;
        // A capture is per thread.
        let (second, of_second) = std::thread::scope(|scope| {
            let other = scope.spawn(|| -> Result<_> {
                let capture = begin(&streams[1])?;
                let drawn = on(&streams[1], draw)?;
                Ok((capture.end()?.instantiate()?, drawn))
            });
            other.join().expect("the thread ends")
        })?;
        let of_first = on(&streams[0], draw)?;
        let first = first.end()?.instantiate()?;
        first.replay_on(&streams[0])?;
        second.replay_on(&streams[1])?;
        let eager = on(&streams[2], draw)?;
        drop(generator);
        first.replay_on(&streams[1])?;
        device.synchronize()?;
        let mut drawn =
            [of_first, of_second, eager].map(|tensor| tensor.to_vec::<f32>()).map(Result::unwrap).concat();
        drawn.sort_by(f32::total_cmp);
        drawn.dedup();
        assert!(drawn.len() > 180, "{} numbers differ of 192", drawn.len());
        Ok(())
    };
    Check::new().seeds(0..8).run(program);
}
