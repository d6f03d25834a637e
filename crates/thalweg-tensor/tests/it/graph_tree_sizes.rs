//! Graph trees with sizes that vary, and under the sanitizer: streams, threads, and random sequences of calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_ir::DType;
use thalweg_runtime::sim::{Check, Gpu};
use thalweg_runtime::{Device, Result, Stream};
use thalweg_tensor::Tensor;
use thalweg_tensor::graph::tree::{CaptureSizes, FunctionId, FunctionOptions, Padding, Steps};
use thalweg_tensor::graph::{GraphTreeManager, GraphTreeOptions, LiveOutputs};

use crate::graph_tree::{on_a_stream, read, tensor};

fn rows(count: usize, device: &Device) -> Tensor {
    let values: Vec<f32> = (0..count * 2).map(|value| value as f32).collect();
    Tensor::from_slice(&values, &[count, 2], device).unwrap()
}

fn sizes(padding: Padding) -> FunctionOptions {
    let sizes = CaptureSizes { sizes: vec![8, 2, 4], inputs: vec![(0, 0)], outputs: vec![(0, 0)], padding };
    FunctionOptions { sizes: Some(sizes), ..FunctionOptions::default() }
}

#[test]
fn a_call_takes_the_nearest_size_that_fits() {
    on_a_stream(|device| {
        let mut tree = GraphTreeManager::new(device, GraphTreeOptions::default()).unwrap();
        let seen = Arc::new(AtomicU64::new(0));
        let counter = seen.clone();
        let double = tree
            .register("double", sizes(Padding::Value(-1.0)), move |inputs| {
                counter.fetch_max(inputs[0].shape()[0] as u64, Ordering::Relaxed);
                Ok(vec![inputs[0].mul_scalar(2.0)?, inputs[0].sum(&[], false)?])
            })
            .unwrap();
        for _ in 0..3 {
            for count in [1, 2, 3, 4, 5, 7, 8] {
                let outputs = tree.call(double, vec![rows(count, device)]).unwrap();
                assert_eq!(outputs[0].shape(), [count, 2]);
                let expected: Vec<f32> = (0..count * 2).map(|value| 2.0 * value as f32).collect();
                assert_eq!(read(&outputs[0]), expected);
                // An output that is not narrowed shows the padding.
                let (size, total) = (count.next_power_of_two().max(2), expected.iter().sum::<f32>() / 2.0);
                assert_eq!(read(&outputs[1]), [total - 2.0 * (size - count) as f32]);
            }
        }
        let counters = tree.counters();
        assert_eq!((tree.graphs(), counters.recordings, counters.warm_ups), (3, 3, 3));
        assert_eq!((counters.padded, counters.replays), (12, 18));
        assert_eq!(seen.load(Ordering::Relaxed), 8);
        // Larger than all sizes: not padded.
        assert_eq!(tree.call(double, vec![rows(9, device)]).unwrap()[0].shape(), [9, 2]);
        assert_eq!((seen.load(Ordering::Relaxed), tree.counters().eager), (9, 1));
        assert!(tree.decisions().last().unwrap().reason.contains("size 9"));
    });
}

#[test]
fn padding_may_be_the_callers_and_changes_of_padded_inputs_come_back() {
    on_a_stream(|device| {
        let mut tree = GraphTreeManager::new(device, GraphTreeOptions::default()).unwrap();
        let last_row = |input: &Tensor, _: usize, size: usize| {
            let rows = input.shape()[0];
            let whole = input.narrow(0, rows - 1, 1)?.expand(&[size, 2])?.contiguous()?;
            whole.narrow(0, 0, rows)?.copy_(input)?;
            Ok(whole)
        };
        let grow = tree
            .register("grow", sizes(Padding::By(Arc::new(last_row))), |inputs| {
                inputs[0].copy_(&inputs[0].add_scalar(1.0)?)?;
                Ok(vec![inputs[0].mul_scalar(1.0)?])
            })
            .unwrap();
        for _ in 0..4 {
            let input = rows(3, device);
            let output = tree.call(grow, vec![input.clone()]).unwrap();
            assert_eq!(read(&input), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
            assert_eq!(read(&output[0]), read(&input));
        }
        assert_eq!(tree.counters().written_back, 3);
        let wrong = |input: &Tensor, _: usize, _: usize| Ok(input.clone());
        let wrong = tree.register("wrong", sizes(Padding::By(Arc::new(wrong))), |inputs| Ok(inputs.to_vec()));
        assert!(
            tree.call(wrong.unwrap(), vec![rows(3, device)]).unwrap_err().to_string().contains("padding")
        );
        let both = FunctionOptions { static_inputs: vec![0], ..sizes(Padding::Value(0.0)) };
        assert!(tree.register("both", both, |inputs| Ok(inputs.to_vec())).is_err());
    });
}

#[test]
fn too_many_shapes_run_eagerly() {
    on_a_stream(|device| {
        let options = GraphTreeOptions { shape_limit: 2, ..GraphTreeOptions::default() };
        let mut tree = GraphTreeManager::new(device, options).unwrap();
        let same = |inputs: &[Tensor]| Ok(vec![inputs[0].mul_scalar(2.0)?]);
        let double = tree.register("double", FunctionOptions::default(), same).unwrap();
        for _ in 0..2 {
            for size in 1..5 {
                let found = tree.call(double, vec![tensor(&vec![1.0; size], device)]).unwrap();
                assert_eq!(read(&found[0]), vec![2.0; size]);
            }
        }
        assert_eq!((tree.graphs(), tree.counters().eager), (2, 4));
    });
}

/// Returns a path of two functions, the first of which works on a side stream as well.
fn path(tree: &mut GraphTreeManager) -> Result<[FunctionId; 2]> {
    let first = tree.register("first", FunctionOptions::default(), |inputs| {
        let device = inputs[0].device();
        let (main, side) = (device.current_stream(), Stream::new(device)?);
        side.wait_stream(&main)?;
        let aside = {
            let _current = side.make_current();
            inputs[0].mul_scalar(2.0)?
        };
        let here = inputs[0].add_scalar(1.0)?;
        main.wait_stream(&side)?;
        let sum = here.add(&aside)?;
        aside.record_use(&main);
        Ok(vec![sum, here.mul_scalar(10.0)?])
    })?;
    let second =
        tree.register("second", FunctionOptions::default(), |inputs| Ok(vec![inputs[0].add(&inputs[1])?]))?;
    Ok([first, second])
}

#[test]
fn calls_on_several_streams_are_ordered() {
    Check::new().seeds(0..20).run(|gpu| -> Result<()> {
        let device = gpu.device();
        let mut tree = GraphTreeManager::new(device, GraphTreeOptions::default())?;
        let [first, second] = path(&mut tree)?;
        let streams = [Stream::new(device)?, Stream::new(device)?];
        let reader = Stream::new(device)?;
        for round in 0..5 {
            let x = round as f32;
            let stream = &streams[round % 2];
            let result = {
                let _current = stream.make_current();
                let input = Tensor::from_slice(&[x; 16], &[16], device)?;
                let outputs = tree.call(first, vec![input])?;
                let result = tree.call(second, outputs)?.remove(0);
                reader.wait_stream(stream)?;
                result
            };
            // Another stream reads the output, which is recorded, and the output is dropped at once.
            let copied = {
                let _current = reader.make_current();
                let copied = result.mul_scalar(1.0)?;
                if round % 2 == 0 {
                    result.record_stream(&reader)
                } else {
                    result.record_use(&reader)
                }
                drop(result);
                copied
            };
            {
                let _current = streams[(round + 1) % 2].make_current();
                drop(tree.call(first, vec![Tensor::from_slice(&[x; 16], &[16], device)?])?);
            }
            let _current = reader.make_current();
            assert_eq!(copied.to_vec::<f32>()?, [x * 3.0 + 1.0 + 10.0 * (x + 1.0); 16]);
        }
        assert!(tree.counters().replays > 10);
        device.synchronize()
    });
}

#[test]
fn trees_of_several_threads_run_side_by_side() {
    Check::new().seeds(0..20).run(|gpu| -> Result<()> {
        let threads: Vec<_> = (0..2)
            .map(|number| {
                let device = gpu.device().clone();
                gpu.spawn(&format!("worker {number}"), move || -> Result<u64> {
                    let stream = Stream::new(&device)?;
                    let _current = stream.make_current();
                    let mut tree = GraphTreeManager::new(&device, GraphTreeOptions::default())?;
                    let [first, second] = path(&mut tree)?;
                    for round in 0..5 {
                        let x = (round + 10 * number) as f32;
                        let outputs = tree.call(first, vec![Tensor::from_slice(&[x; 4], &[4], &device)?])?;
                        let result = tree.call(second, outputs)?.remove(0);
                        assert_eq!(result.to_vec::<f32>()?, [x * 3.0 + 1.0 + 10.0 * (x + 1.0); 4]);
                    }
                    Ok(tree.counters().replays)
                })
            })
            .collect();
        for thread in threads {
            thread.join()??;
        }
        Ok(())
    });
}

/// A tensor that a random program holds, and its elements as they must be.
struct Held {
    tensor: Tensor,
    expected: Vec<f32>,
}

struct Program<'a> {
    gpu: &'a Gpu,
    tree: GraphTreeManager,
    two: FunctionId,
    sum: FunctionId,
    grow: FunctionId,
    cache: Held,
    held: Vec<Held>,
}

const LIMIT: u64 = 24 << 20;

impl<'a> Program<'a> {
    fn new(gpu: &'a Gpu) -> Result<Self> {
        let steps = if gpu.random().is_multiple_of(2) { Steps::Automatic } else { Steps::Explicit };
        let options = GraphTreeOptions {
            steps,
            live_outputs: LiveOutputs::Clone,
            managed_move_limit: gpu.random() as usize % 2,
            variant_limit: 3,
            depth_limit: 6,
            pool_bytes_limit: Some(LIMIT),
            ..GraphTreeOptions::default()
        };
        let mut tree = GraphTreeManager::new(gpu.device(), options)?;
        let two = tree.register("two", FunctionOptions::default(), |inputs| {
            let between = inputs[0].mul_scalar(2.0)?;
            Ok(vec![between.add_scalar(1.0)?, inputs[0].add_scalar(3.0)?])
        })?;
        let sum = tree.register("sum", FunctionOptions::default(), |inputs| {
            let between = inputs[0].add_scalar(1.0)?.add_scalar(-1.0)?;
            Ok(vec![between.add(&inputs[1])?])
        })?;
        let is_static = FunctionOptions { static_inputs: vec![0], ..FunctionOptions::default() };
        let grow = tree.register("grow", is_static, |inputs| {
            inputs[0].copy_(&inputs[0].add(&inputs[1])?)?;
            Ok(vec![inputs[0].mul_scalar(2.0)?])
        })?;
        let cache = Held { tensor: Tensor::zeros(&[3], DType::F32, gpu.device())?, expected: vec![0.0; 3] };
        Ok(Self { gpu, tree, two, sum, grow, cache, held: Vec::new() })
    }

    fn random(&self, below: u64) -> usize {
        (self.gpu.random() % below) as usize
    }

    /// Returns a held tensor, passed by value or not, or a new one.
    fn input(&mut self, size: usize) -> Result<Held> {
        let fitting: Vec<usize> =
            (0..self.held.len()).filter(|&index| self.held[index].expected.len() == size).collect();
        if !fitting.is_empty() && self.random(4) > 0 {
            let index = fitting[self.random(fitting.len() as u64)];
            if self.random(2) == 0 {
                return Ok(self.held.swap_remove(index));
            }
            let Held { tensor, expected } = &self.held[index];
            return Ok(Held { tensor: tensor.clone(), expected: expected.clone() });
        }
        let expected: Vec<f32> = (0..size).map(|_| self.random(100) as f32).collect();
        Ok(Held { tensor: Tensor::from_slice(&expected, &[size], self.gpu.device())?, expected })
    }

    fn step(&mut self) -> Result<()> {
        let size = [3, 3, 200][self.random(3)];
        match self.random(10) {
            0 => self.tree.begin_step(),
            1 => self.held.clear(),
            2..=5 => {
                let input = self.input(size)?;
                let outputs = self.tree.call(self.two, vec![input.tensor])?;
                let expected = [
                    input.expected.iter().map(|x| 2.0 * x + 1.0).collect::<Vec<f32>>(),
                    input.expected.iter().map(|x| x + 3.0).collect(),
                ];
                self.keep(outputs, expected);
            }
            6..=8 => {
                let (first, second) = (self.input(size)?, self.input(size)?);
                let outputs = self.tree.call(self.sum, vec![first.tensor, second.tensor])?;
                let sum = first.expected.iter().zip(&second.expected).map(|(x, y)| x + y).collect();
                self.keep(outputs, [sum]);
            }
            _ => {
                let input = self.input(3)?;
                let outputs = self.tree.call(self.grow, vec![self.cache.tensor.clone(), input.tensor])?;
                for (cache, x) in self.cache.expected.iter_mut().zip(&input.expected) {
                    *cache += x;
                }
                let doubled = self.cache.expected.iter().map(|x| 2.0 * x).collect();
                self.keep(outputs, [doubled]);
            }
        }
        assert!(self.tree.pool_bytes() <= LIMIT);
        // Numbers stay small enough to be exact.
        self.held.retain(|held| held.expected.iter().all(|x| *x < 1e6));
        if self.cache.expected.iter().any(|x| *x >= 1e6) {
            self.cache.tensor.copy_(&Tensor::zeros(&[], DType::F32, self.gpu.device())?)?;
            self.cache.expected.fill(0.0);
        }
        if self.random(3) == 0 && !self.held.is_empty() {
            let held = &self.held[self.random(self.held.len() as u64)];
            assert_eq!(held.tensor.to_vec::<f32>()?, held.expected);
        }
        Ok(())
    }

    fn keep<const N: usize>(&mut self, outputs: Vec<Tensor>, expected: [Vec<f32>; N]) {
        for (tensor, expected) in outputs.into_iter().zip(expected) {
            if self.random(3) > 0 {
                self.held.push(Held { tensor, expected });
            }
        }
        while self.held.len() > 6 {
            self.held.remove(0);
        }
    }
}

#[test]
fn random_sequences_of_calls_give_the_eager_results() {
    let replays = AtomicU64::new(0);
    let reached = [const { AtomicU64::new(0) }; 4];
    Check::new().seeds(0..60).run(|gpu| -> Result<()> {
        let stream = Stream::new(gpu.device())?;
        let _current = stream.make_current();
        let mut program = Program::new(gpu)?;
        for _ in 0..60 {
            program.step()?;
        }
        for held in program.held.iter().chain([&program.cache]) {
            assert_eq!(held.tensor.to_vec::<f32>()?, held.expected);
        }
        let counters = program.tree.counters();
        replays.fetch_add(counters.replays, Ordering::Relaxed);
        let counts = [
            counters.outputs_alive,
            counters.managed_inputs_moved,
            counters.moved_outputs,
            counters.demotions,
        ];
        for (reached, count) in reached.iter().zip(counts) {
            reached.fetch_add(count, Ordering::Relaxed);
        }
        Ok(())
    });
    // The sequences cover all cases.
    assert!(replays.load(Ordering::Relaxed) > 500);
    assert!(reached.iter().all(|count| count.load(Ordering::Relaxed) > 0), "{reached:?}");
}
