//! The training loop: batches of a `DataLoader`, the step on a stream of its own, eager or captured.

use std::sync::Arc;

use thalweg::data::{DataLoader, DataLoaderOptions};
use thalweg::module::{Forward, Module};
use thalweg::optim::{Adam, AdamOptions};
use thalweg::random::Generator;
use thalweg::{CaptureOptions, DType, Device, Graph, Result, Stream, Tensor, functional, no_grad};

use crate::data::{Digits, Images};
use crate::model::Network;
use crate::options::Options;
use crate::progress::Progress;

const BATCH: usize = 64;

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

    fn run(&self, batch: &[Tensor]) -> Result<Tensor> {
        self.images.copy_(&batch[0])?;
        self.digits.copy_(&batch[1])?;
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
    // Worker threads fill pinned batches, and copies run on a stream of the loader's own.
    let loading = DataLoaderOptions {
        batch_size: BATCH,
        // Weights and order are drawn from different streams of random numbers.
        shuffle: Some(options.seed ^ 0x5eed_da7a),
        num_workers: 2,
        drop_last: true,
        ..DataLoaderOptions::default()
    };
    let mut loader = DataLoader::new(Arc::new(digits.training.clone()), loading, device)?;
    let steps = options.steps.unwrap_or(options.epochs * loader.len());
    // Every loss is kept on the device, and fetched when the bar is drawn or at the end.
    let losses = Tensor::zeros(&[steps.max(1)], DType::F32, device)?;
    let mut captured = None;
    let mut progress = Progress::new(steps);
    let mut done = 0;
    while done < steps {
        for batch in loader.epoch()?.take(steps - done) {
            let batch = batch?;
            // The first step runs eagerly either way: it compiles the kernels, which a capture could not.
            let loss = match &captured {
                Some(captured) => CapturedStep::run(captured, &batch)?,
                None => step(&network, &optimizer, &batch[0], &batch[1])?,
            };
            losses.select(0, done)?.copy_(&loss.detach())?;
            if options.graph && captured.is_none() {
                captured = Some(CapturedStep::capture(device, &network, &optimizer)?);
            }
            done += 1;
            if progress.is_due(done) {
                progress.draw(done, loss.item()?, done * BATCH);
            }
        }
    }
    let samples_per_second = (steps * BATCH) as f64 / progress.seconds();
    let mut losses = losses.to_vec::<f32>()?;
    losses.truncate(steps);
    Ok(Outcome {
        losses,
        accuracy: evaluate(&network, digits.evaluation.clone(), device)?,
        samples_per_second,
    })
}

/// The share of images that the network recognises.
fn evaluate(network: &Network, images: Images, device: &Device) -> Result<f64> {
    let count = images.0.len();
    let loading = DataLoaderOptions { batch_size: count, ..DataLoaderOptions::default() };
    let mut right = 0;
    for batch in DataLoader::new(Arc::new(images), loading, device)?.epoch()? {
        let batch = batch?;
        let guesses = no_grad(|| network.forward(&batch[0])?.argmax(1))?;
        right += guesses.eq(&batch[1])?.sum(&[], false)?.item::<i64>()?;
    }
    Ok(right as f64 / count as f64)
}
