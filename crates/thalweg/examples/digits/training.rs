//! The training loop: loading on a side stream, the step on the compute stream, eager or captured.

use thalweg::module::{Forward, Module};
use thalweg::optim::{Adam, AdamOptions};
use thalweg::random::Generator;
use thalweg::{
    CaptureOptions, DType, Device, Event, Graph, HostTensor, Result, Stream, Tensor, functional, no_grad,
};

use crate::data::{Digits, Sample};
use crate::model::Network;
use crate::options::Options;
use crate::progress::Progress;

const BATCH: usize = 64;

/// Pinned buffers that take turns: while one is copied to the device, the host fills the next.
const PINNED_BATCHES: usize = 3;

/// The results of a training run.
pub struct Outcome {
    pub losses: Vec<f32>,
    pub accuracy: f64,
    pub samples_per_second: f64,
}

impl Outcome {
    /// Equal runs have equal fingerprints: FNV-1a over the bits of the losses.
    pub fn fingerprint(&self) -> u64 {
        self.losses.iter().fold(0xcbf2_9ce4_8422_2325, |hash, loss| {
            (hash ^ u64::from(loss.to_bits())).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}

/// A batch in pinned memory, and the event behind the copy that last read it.
struct PinnedBatch {
    images: HostTensor,
    digits: HostTensor,
    copied: Event,
}

/// Brings batches to the device on a stream of its own, ahead of their use.
struct Loader<'a> {
    samples: &'a [Sample],
    order: Vec<usize>,
    position: usize,
    generator: Generator,
    stream: Stream,
    pinned: Vec<PinnedBatch>,
    turn: usize,
}

/// A batch on the device, to be used once the event has passed.
struct Batch {
    images: Tensor,
    digits: Tensor,
    ready: Event,
}

impl<'a> Loader<'a> {
    fn new(samples: &'a [Sample], seed: u64, device: &Device) -> Result<Self> {
        let pinned = (0..PINNED_BATCHES)
            .map(|_| {
                Ok(PinnedBatch {
                    images: HostTensor::pinned(&[BATCH, 1, 8, 8], DType::F32, device)?,
                    digits: HostTensor::pinned(&[BATCH], DType::I64, device)?,
                    copied: Event::new(),
                })
            })
            .collect::<Result<_>>()?;
        // Weights and order are drawn from different streams of random numbers.
        let generator = Generator::new(seed ^ 0x5eed_da7a);
        Ok(Self {
            samples,
            order: Vec::new(),
            position: 0,
            generator,
            stream: Stream::new(device)?,
            pinned,
            turn: 0,
        })
    }

    fn next_samples(&mut self) -> Result<&[usize]> {
        if self.position + BATCH > self.order.len() {
            self.order = self.generator.permutation(self.samples.len())?;
            self.position = 0;
        }
        self.position += BATCH;
        Ok(&self.order[self.position - BATCH..self.position])
    }

    /// Fills a pinned batch and starts its way to the device. The host waits only if the batch is still being copied.
    fn next(&mut self) -> Result<Batch> {
        let chosen = self.next_samples()?.to_vec();
        let pinned = &self.pinned[self.turn % PINNED_BATCHES];
        self.turn += 1;
        pinned.copied.synchronize()?;
        let pixels: Vec<f32> = chosen.iter().flat_map(|&index| self.samples[index].pixels).collect();
        let digits: Vec<i64> = chosen.iter().map(|&index| self.samples[index].digit).collect();
        pinned.images.write(0, &pixels)?;
        pinned.digits.write(0, &digits)?;
        let (images, digits) = {
            let _current = self.stream.make_current();
            (pinned.images.to_device()?, pinned.digits.to_device()?)
        };
        pinned.copied.record(&self.stream)?;
        Ok(Batch { images, digits, ready: self.stream.record_event()? })
    }
}

impl Batch {
    /// Orders the batch before later work of a stream, and keeps its memory until that work is done.
    fn use_on(&self, stream: &Stream) -> Result<()> {
        stream.wait_event(&self.ready)?;
        self.images.record_stream(stream);
        self.digits.record_stream(stream);
        Ok(())
    }
}

/// One training step: forward, backward, Adam. Gives the loss, on the device.
fn step(network: &Network, optimizer: &Adam, images: &Tensor, digits: &Tensor) -> Result<Tensor> {
    optimizer.zero_grad();
    let loss = functional::cross_entropy(&network.forward(images)?, digits)?;
    loss.backward()?;
    optimizer.step()?;
    Ok(loss.detach())
}

/// A training step as a graph: its inputs are overwritten before each replay, its loss is read after it.
struct CapturedStep {
    graph: Graph,
    images: Tensor,
    digits: Tensor,
    loss: Tensor,
}

impl CapturedStep {
    fn capture(device: &Device, network: &Network, optimizer: &Adam) -> Result<Self> {
        let images = Tensor::zeros(&[BATCH, 1, 8, 8], DType::F32, device)?;
        let digits = Tensor::zeros(&[BATCH], DType::I64, device)?;
        let options = CaptureOptions::default();
        let (graph, loss) = Graph::capture(device, options, || step(network, optimizer, &images, &digits))?;
        Ok(Self { graph, images, digits, loss })
    }

    fn run(&self, batch: &Batch) -> Result<Tensor> {
        self.images.copy_(&batch.images)?;
        self.digits.copy_(&batch.digits)?;
        self.graph.replay()?;
        Ok(self.loss.clone())
    }
}

/// Trains, evaluates, and gives every loss.
pub fn train(device: &Device, digits: &Digits, options: &Options) -> Result<Outcome> {
    let mut generator = Generator::new(options.seed);
    let network = Network::new(&mut generator, device)?;
    let optimizer =
        Adam::new(network.parameters(), AdamOptions { learning_rate: 2e-3, ..AdamOptions::default() })?;
    let compute = Stream::new(device)?;
    compute.wait_stream(&device.current_stream())?;
    let _current = compute.make_current();
    let mut loader = Loader::new(&digits.training, options.seed, device)?;
    let steps = options.steps.unwrap_or(options.epochs * (digits.training.len() / BATCH));
    // Every loss is kept on the device, and fetched when the bar is drawn or at the end.
    let losses = Tensor::zeros(&[steps.max(1)], DType::F32, device)?;
    let mut captured = None;
    let mut progress = Progress::new(steps);
    let mut next = loader.next()?;
    for index in 0..steps {
        let batch = std::mem::replace(&mut next, loader.next()?);
        batch.use_on(&compute)?;
        // The first step runs eagerly either way: it compiles the kernels, which a capture could not.
        let loss = match &captured {
            Some(captured) => CapturedStep::run(captured, &batch)?,
            None => step(&network, &optimizer, &batch.images, &batch.digits)?,
        };
        losses.select(0, index)?.copy_(&loss.detach())?;
        if options.graph && captured.is_none() {
            captured = Some(CapturedStep::capture(device, &network, &optimizer)?);
        }
        if progress.is_due(index + 1) {
            progress.draw(index + 1, loss.item()?, (index + 1) * BATCH);
        }
    }
    let samples_per_second = (steps * BATCH) as f64 / progress.seconds();
    let mut losses = losses.to_vec::<f32>()?;
    losses.truncate(steps);
    Ok(Outcome { losses, accuracy: evaluate(&network, &digits.evaluation, device)?, samples_per_second })
}

/// The share of samples that the network recognises.
fn evaluate(network: &Network, samples: &[Sample], device: &Device) -> Result<f64> {
    let pixels: Vec<f32> = samples.iter().flat_map(|sample| sample.pixels).collect();
    let images = Tensor::from_slice(&pixels, &[samples.len(), 1, 8, 8], device)?;
    let guesses: Vec<i64> = no_grad(|| network.forward(&images)?.argmax(1)?.to_vec())?;
    let right = guesses.iter().zip(samples).filter(|(guess, sample)| **guess == sample.digit).count();
    Ok(right as f64 / samples.len() as f64)
}
