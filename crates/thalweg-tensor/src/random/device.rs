//! [`DeviceGenerator`]: random numbers whose state is in device memory.
//!
//! The state is PyTorch's: a seed and an offset (the number of words that each thread has drawn). It is in device memory, where
//! kernels read it, and a kernel after each draw advances the offset, in stream order. The numbers of a replay therefore do not
//! depend on the host: a captured graph draws fresh ones each time, without a copy before it, and the same seed results in the
//! same run, captured or not.
//!
//! The cost is a small kernel after each draw. PyTorch instead counts on the host, adds up the draws of an entire graph, and
//! writes the state before every replay.

use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_ir::{DType, Scalar, bf16, element_count, f16};
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_runtime::graph::Upkeep;
use thalweg_runtime::{Device, Error, Label, Result, STREAMS_PER_PRIORITY, Stream, refuse, refuse_if};

use super::{check_deviation, check_uniform};
use crate::autograd::{no_grad, set_inference_mode};
use crate::caller::{creating, enter, label_at};
use crate::dispatch::{Operator, built_in};
use crate::loops::run_into;
use crate::loops::{LoopArguments, Points};
use crate::tensor::Tensor;

/// Threads per block in PyTorch's drawing kernels.
const BLOCK: usize = 256;

/// Words that a thread draws at a time.
const WORDS: usize = 4;

/// Returns the largest number of a floating-point dtype. Numbers are drawn in f32 for every dtype.
fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f64::from(f16::MAX),
        DType::Bf16 => f64::from(bf16::MAX),
        _ => f64::from(f32::MAX),
    }
}

/// A generator of random numbers on one device (`torch.Generator(device='cuda')`). Numbers of f32 and 16-bit floats are those
/// that PyTorch's CUDA generator draws for the same seed, device and order of calls, except in [`DeviceGenerator::normal`], where
/// PyTorch's sine and cosine are less accurate, and in [`DeviceGenerator::dropout`], where PyTorch assigns four words to
/// neighbouring elements.
///
/// The generator orders draws on different streams: outside captures, within each capture, and replays of graphs that draw, which
/// keep its state alive. The program itself must order draws in the body of a [conditional node](thalweg_runtime::graph::if_).
#[derive(Debug)]
pub struct DeviceGenerator(Arc<Shared>);

/// The parts of a generator, which graphs that draw keep.
#[derive(Debug)]
struct Shared {
    /// The seed and the offset, as two i64 in device memory.
    state: Tensor,
    /// The order of draws. Locked during a draw, so that no other draw can happen between it and advancing the offset.
    order: Mutex<Order>,
}

/// The streams after which the next draws are ordered.
#[derive(Debug)]
struct Order {
    /// The stream of the last draw outside captures, or of the last replay that drew.
    last: Stream,
    /// The stream of the last draw of each active capture, by the capture's number.
    captured: Vec<(u64, Stream)>,
}

impl Shared {
    /// Orders a stream that is not capturing after the last draw.
    fn follow(&self, order: &mut Order, stream: &Stream) -> Result<()> {
        if order.last != *stream {
            // All work before a capture of that stream was done when the capture began.
            if !order.last.is_capturing()? {
                stream.wait_stream(&order.last)?;
            }
            self.state.record_stream(stream);
            order.last = stream.clone();
        }
        Ok(())
    }

    /// Orders a stream that takes part in a capture after the capture's last draw.
    fn follow_in_capture(order: &mut Order, capture: u64, stream: &Stream) -> Result<()> {
        match order.captured.iter_mut().find(|(known, _)| *known == capture) {
            Some((_, last)) if last == stream => {}
            Some((_, last)) => {
                stream.wait_stream(last)?;
                *last = stream.clone();
            }
            None => {
                order.forget_ended();
                order.captured.push((capture, stream.clone()));
            }
        }
        Ok(())
    }
}

impl Order {
    /// Removes captures that have ended.
    fn forget_ended(&mut self) {
        self.captured.retain(|(capture, stream)| stream.capture_id().is_ok_and(|now| now == Some(*capture)));
    }
}

/// The draws of a graph: each replay comes after the last draw, and the next one after it.
#[derive(Debug)]
struct CapturedDraws(Arc<Shared>);

impl Upkeep for CapturedDraws {
    fn captured(&self) {
        self.0.order.lock().forget_ended();
    }

    fn before_replay(&self, stream: &Stream) -> Result<()> {
        self.0.follow(&mut self.0.order.lock(), stream)
    }

    fn after_replay(&self, _stream: &Stream) {}
}

/// The numbers that a drawing operator takes.
#[derive(Clone, Copy)]
pub(crate) struct Numbers<'a> {
    scalars: &'a [Scalar],
    /// The number of draws per element.
    draws: usize,
}

impl<'a> Numbers<'a> {
    /// Returns the numbers of an operator that draws once per element.
    pub(crate) fn of(scalars: &'a [Scalar]) -> Self {
        Self { scalars, draws: 1 }
    }
}

/// A state of a generator, in device memory.
pub(crate) struct GeneratorState {
    state: Tensor,
    /// The stream on which it is ready.
    stream: Stream,
}

impl DeviceGenerator {
    /// Returns a generator with a seed and the offset 0.
    #[track_caller]
    pub fn new(seed: u64, device: &Device) -> Result<Self> {
        // The generator exists outside the capture, so it is not made in it.
        let stream = outside_captures(device)?;
        let _current = stream.make_current();
        // The state outlives a region of inference mode and is written outside it.
        let state = set_inference_mode(false, || Tensor::from_slice(&[seed as i64, 0], &[2], device))?;
        let order = Mutex::new(Order { last: stream, captured: Vec::new() });
        Ok(Self(Arc::new(Shared { state, order })))
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        self.0.state.device()
    }

    /// Sets the seed, and the offset to 0 (`torch.Generator.manual_seed`). Happens in stream order, like a draw; not possible in
    /// a capture, because the seed comes from the host.
    #[track_caller]
    pub fn manual_seed(&self, seed: u64) -> Result<()> {
        self.set_state(seed, 0)
    }

    /// Returns the seed, and the offset of the next draw. *Blocks* until the draws so far are done.
    #[track_caller]
    pub fn state(&self) -> Result<(u64, u64)> {
        let order = self.ordered()?;
        let values = self.0.state.to_vec::<i64>();
        drop(order);
        let values = values?;
        Ok((values[0] as u64, values[1] as u64))
    }

    /// Sets the seed and the offset, a multiple of four, as [`DeviceGenerator::state`] returns them.
    #[track_caller]
    pub fn set_state(&self, seed: u64, offset: u64) -> Result<()> {
        let _entered = enter(Location::caller());
        if !offset.is_multiple_of(WORDS as u64) {
            refuse!("the offset {offset} of a generator is not a multiple of {WORDS}");
        }
        let _order = self.ordered()?;
        let device = self.device();
        self.0.state.copy_(&Tensor::from_slice(&[seed as i64, offset as i64], &[2], device)?)
    }

    /// Returns the present state, in stream order, without blocking.
    pub(crate) fn snapshot(&self) -> Result<GeneratorState> {
        let _order = self.ordered()?;
        let state = no_grad(|| self.0.state.copied(Location::caller()))?;
        Ok(GeneratorState { state, stream: self.device().current_stream() })
    }

    /// Sets a state that [`snapshot`](Self::snapshot) returned, in stream order.
    pub(crate) fn restore(&self, state: &GeneratorState) -> Result<()> {
        let _order = self.ordered()?;
        let stream = self.device().current_stream();
        if stream != state.stream {
            stream.wait_stream(&state.stream)?;
            state.state.record_stream(&stream);
        }
        no_grad(|| self.0.state.copy_(&state.state))
    }

    /// Draws numbers in [0, 1) (`torch.rand`). Asynchronous, like every draw.
    #[track_caller]
    pub fn rand(&self, shape: &[usize], dtype: DType) -> Result<Tensor> {
        self.uniform(shape, 0.0, 1.0, dtype)
    }

    /// Draws numbers in [low, high), both finite (`torch.Tensor.uniform_`).
    #[track_caller]
    pub fn uniform(&self, shape: &[usize], low: f64, high: f64, dtype: DType) -> Result<Tensor> {
        creating("uniform", (shape, dtype, self.device()), Location::caller(), || {
            check_uniform(low, high, largest(dtype))?;
            self.draw_floats(built_in!("thalweg::uniform")?, shape, [low, high], dtype)
        })
    }

    /// Draws normally distributed numbers with mean 0 and variance 1 (`torch.randn`).
    #[track_caller]
    pub fn randn(&self, shape: &[usize], dtype: DType) -> Result<Tensor> {
        self.normal(shape, 0.0, 1.0, dtype)
    }

    /// Draws normally distributed numbers (`torch.normal`); the deviation is at least 0.
    #[track_caller]
    pub fn normal(&self, shape: &[usize], mean: f64, deviation: f64, dtype: DType) -> Result<Tensor> {
        creating("normal", (shape, dtype, self.device()), Location::caller(), || {
            check_deviation(deviation)?;
            if !dtype.is_complex() {
                return self.draw_floats(built_in!("thalweg::normal")?, shape, [mean, deviation], dtype);
            }
            // Each part has half of the variance, and the mean is real.
            let deviation = deviation * std::f64::consts::FRAC_1_SQRT_2;
            let drawn = self.draw_floats(built_in!("thalweg::normal")?, shape, [0.0, deviation], dtype)?;
            if mean == 0.0 { Ok(drawn) } else { drawn.add_scalar(mean) }
        })
    }

    /// Draws 1 with a probability, else 0 (`torch.bernoulli`).
    #[track_caller]
    pub fn bernoulli(&self, shape: &[usize], probability: f64, dtype: DType) -> Result<Tensor> {
        creating("bernoulli", (shape, dtype, self.device()), Location::caller(), || {
            if !(0.0..=1.0).contains(&probability) {
                refuse!("the probability {probability} is not between 0 and 1");
            }
            self.draw(
                built_in!("thalweg::bernoulli")?,
                shape,
                // The numbers that are compared with the probability may be 1.
                Numbers::of(&[Scalar::F64(if probability == 1.0 { 2.0 } else { probability })]),
                dtype,
            )
        })
    }

    /// Draws integers from `low` on, from a range above 0, as the remainder of 63 random bits.
    pub(crate) fn integers(&self, shape: &[usize], range: i64, low: i64, dtype: DType) -> Result<Tensor> {
        let apart = (self.words(element_count(shape)?)) as i64;
        let numbers = [apart, range, low].map(Scalar::I64);
        self.draw(built_in!("thalweg::integers")?, shape, Numbers { scalars: &numbers, draws: 3 }, dtype)
    }

    /// Draws floats, or the parts of complex numbers.
    fn draw_floats(
        &self,
        operator: &'static Operator,
        shape: &[usize],
        numbers: [f64; 2],
        dtype: DType,
    ) -> Result<Tensor> {
        if dtype.is_complex() {
            let parts: SmallVec<[usize; 6]> = shape.iter().copied().chain([2]).collect();
            return self.draw_floats(operator, &parts, numbers, dtype.real())?.view_as_complex();
        }
        if !dtype.is_floating_point() || dtype.is_float8() {
            refuse!("random numbers are drawn as floats, not as {dtype}");
        }
        self.draw(operator, shape, Numbers::of(&numbers.map(Scalar::F64)), dtype)
    }

    /// Draws with an operator that takes these numbers.
    pub(crate) fn draw(
        &self,
        operator: &'static Operator,
        shape: &[usize],
        numbers: Numbers<'_>,
        dtype: DType,
    ) -> Result<Tensor> {
        let count = element_count(shape)?;
        if count == 0 {
            return Tensor::empty(shape, dtype, self.device());
        }
        let label = label_at(operator.base_name(), Location::caller());
        self.call(operator, None, count, numbers, Some(dtype), label)?.swap_remove(0).reshape(shape)
    }

    /// Keeps each element of a floating-point tensor with a probability above 0, divided by it, and sets the others to 0: as
    /// `torch.nn.functional.dropout` with 1 − probability does. Gradients flow through it. Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the probability is not above 0 and at most 1, or the tensor is not floating-point.
    #[track_caller]
    pub fn dropout(&self, input: &Tensor, probability: f64) -> Result<Tensor> {
        let is_probability = probability > 0.0 && probability <= 1.0;
        refuse_if!(
            !is_probability || !input.dtype().is_floating_point(),
            "dropout: the probability {probability} to keep an element must be above 0 and at most 1, and the tensor of \
             floats, not {}",
            input.dtype()
        );
        if input.elements() == 0 {
            return Ok(input.clone());
        }
        let [result, _] = self.dropped(input, probability, label_at("dropout", Location::caller()))?;
        Ok(result)
    }

    /// Keeps each element of a tensor that is not empty with a probability above 0, as [`dropout`](Self::dropout) does, and also
    /// returns which were kept.
    pub(crate) fn dropped(&self, input: &Tensor, probability: f64, label: Label) -> Result<[Tensor; 2]> {
        let flat = input.reshape(&[input.elements()])?.contiguous()?;
        let operator = built_in!("thalweg::dropout")?;
        let probability = Scalar::F64(probability);
        let mut results =
            self.call(operator, Some(&flat), input.elements(), Numbers::of(&[probability]), None, label)?;
        let mask = results.swap_remove(1).reshape(input.shape())?;
        Ok([results.swap_remove(0).reshape(input.shape())?, mask])
    }

    /// Reserves words of every subsequence for a kernel that draws them itself: returns the state from which it draws, a tensor of
    /// seed and offset of its own, and advances the offset by these words, a multiple of four.
    pub(crate) fn reserve(&self, words: u64, label: Label) -> Result<Tensor> {
        let _order = self.ordered()?;
        no_grad(|| {
            let state = self.0.state.copied(label.location)?;
            self.advance(&self.0.state.select(0, 1)?, words, label)?;
            Ok(state)
        })
    }

    /// Adds the words that a draw has used to the offset.
    fn advance(&self, offset: &Tensor, words: u64, label: Label) -> Result<()> {
        let advance = LoopArguments {
            scalars: SmallVec::from_slice(&[Scalar::I64(words as i64)]),
            ..LoopArguments::default()
        };
        let label = Label { operator: "advance_generator", ..label };
        let results = std::slice::from_ref(offset);
        no_grad(|| run_into(&thalweg_ops::table::add_scalar, &[offset], &advance, results, label))
    }

    /// Draws for `count` elements, and then advances the offset.
    fn call(
        &self,
        operator: &'static Operator,
        input: Option<&Tensor>,
        count: usize,
        numbers: Numbers<'_>,
        dtype: Option<DType>,
        label: Label,
    ) -> Result<crate::Tensors> {
        let threads = self.threads(count);
        let _order = self.ordered()?;
        let [seed, offset] = [self.0.state.select(0, 0)?, self.0.state.select(0, 1)?];
        let arguments = LoopArguments {
            scalars: [Scalar::I64(threads as i64)]
                .into_iter()
                .chain(numbers.scalars.iter().copied())
                .collect(),
            points: Points::Result(SmallVec::from_slice(&[count])),
            dtype,
        };
        let tensors: SmallVec<[&Tensor; 3]> = input.into_iter().chain([&seed, &offset]).collect();
        let results = operator.call_loop(&tensors, &arguments, None, label)?;
        self.advance(&offset, (numbers.draws * self.words(count)) as u64, label)?;
        Ok(results)
    }

    /// Returns the number of words that each thread draws for this many elements.
    fn words(&self, count: usize) -> usize {
        count.div_ceil(self.threads(count).max(1) * WORDS) * WORDS
    }

    /// Returns the number of threads of PyTorch's kernels for this many elements.
    fn threads(&self, count: usize) -> usize {
        let properties = self.device().properties();
        let resident = properties.max_threads_per_multi_processor as usize / BLOCK;
        let most = (properties.multi_processor_count as usize * resident).max(1);
        count.div_ceil(BLOCK).min(most) * BLOCK
    }

    /// Orders the current stream after the last draw, that of its capture if it is capturing. Streams inside and outside a
    /// capture cannot wait for each other; the graph's replays are ordered instead.
    fn ordered(&self) -> Result<MutexGuard<'_, Order>> {
        let Self(shared) = self;
        let current = self.device().current_stream();
        let mut order = shared.order.lock();
        match current.capture_id()? {
            None => shared.follow(&mut order, &current)?,
            Some(capture) => {
                Shared::follow_in_capture(&mut order, capture, &current)?;
                let upkeep = || -> Arc<dyn Upkeep> { Arc::new(CapturedDraws(shared.clone())) };
                if !current.keep_up(shared.state.identity(), upkeep) {
                    order.last = current;
                }
            }
        }
        Ok(order)
    }
}

/// Returns the current stream, or another one if that is capturing.
fn outside_captures(device: &Device) -> Result<Stream> {
    let mut stream = device.current_stream();
    // The pool hands out its streams in turn; no program captures all of them at once.
    for _ in 0..=STREAMS_PER_PRIORITY {
        if !stream.is_capturing()? {
            break;
        }
        stream = Stream::new(device)?;
    }
    Ok(stream)
}
