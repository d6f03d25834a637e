//! The training loop: batches of a `DataLoader`, the step on its own stream, eager or captured.

use std::sync::Arc;

use thalweg::data::{DataLoader, DataLoaderOptions};
use thalweg::module::{Forward, Module};
use thalweg::optim::{Adam, AdamOptions};
use thalweg::progress::Progress;
use thalweg::random::Generator;
use thalweg::tensor::autocast::autocast;
use thalweg::{CaptureOptions, DType, Device, Graph, Result, Stream, Tensor, functional, no_grad};

use crate::checkpoint;
use crate::data::{Digits, Images};
use crate::model::Network;
use crate::options::Options;

const BATCH: usize = 64;

/// The results of a training run.
pub struct Outcome {
    pub losses: Vec<f32>,
    pub accuracy: f64,
    pub samples_per_second: f64,
}

impl Outcome {
    /// Returns a fingerprint, which is the same for equal runs: FNV-1a over the bits of the losses.
    pub fn fingerprint(&self) -> u64 {
        self.losses.iter().fold(0xcbf2_9ce4_8422_2325, |hash, loss| {
            (hash ^ u64::from(loss.to_bits())).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}

/// A network with its optimizer, and the dtype of its products.
struct Trained {
    network: Network,
    optimizer: Adam,
    dtype: DType,
}

impl Trained {
    /// Returns the scores of images, with products in the requested dtype.
    fn scores(&self, images: &Tensor) -> Result<Tensor> {
        let forward = || self.network.forward(images);
        let scores = if self.dtype == DType::F32 { forward() } else { autocast(self.dtype, forward) };
        scores?.to_dtype(DType::F32)
    }

    /// Runs one training step: forward, backward, Adam. Returns the loss, on the device.
    fn step(&self, images: &Tensor, digits: &Tensor) -> Result<Tensor> {
        self.optimizer.zero_grad();
        let loss = functional::cross_entropy(&self.scores(images)?, digits)?;
        loss.backward()?;
        self.optimizer.step()?;
        Ok(loss.detach())
    }

    /// Returns the share of images that the network recognises.
    fn evaluate(&self, images: Images, device: &Device) -> Result<f64> {
        let count = images.0.len();
        let loading = DataLoaderOptions { batch_size: count, ..DataLoaderOptions::default() };
        let mut right = 0;
        for batch in DataLoader::new(Arc::new(images), loading, device)?.epoch()? {
            let batch = batch?;
            let guesses = no_grad(|| self.scores(&batch[0])?.argmax(1))?;
            right += guesses.eq(&batch[1])?.sum(&[], false)?.item::<i64>()?;
        }
        Ok(right as f64 / count as f64)
    }
}

/// A training step as a graph: its inputs are overwritten before each replay, its loss is read after it.
struct CapturedStep {
    graph: Graph,
    images: Tensor,
    digits: Tensor,
    loss: Tensor,
}

impl CapturedStep {
    fn capture(device: &Device, trained: &Trained) -> Result<Self> {
        let images = Tensor::zeros(&[BATCH, 1, 8, 8], DType::F32, device)?;
        let digits = Tensor::zeros(&[BATCH], DType::I64, device)?;
        let options = CaptureOptions::default();
        let (graph, loss) = Graph::capture(device, options, || trained.step(&images, &digits))?;
        Ok(Self { graph, images, digits, loss })
    }

    fn run(&self, batch: &[Tensor]) -> Result<Tensor> {
        self.images.copy_(&batch[0])?;
        self.digits.copy_(&batch[1])?;
        self.graph.replay()?;
        Ok(self.loss.clone())
    }
}

/// Trains, evaluates, and returns every loss.
pub fn train(device: &Device, digits: &Digits, options: &Options) -> Result<Outcome> {
    let mut generator = Generator::new(options.seed);
    let network = Network::new(&mut generator, device)?;
    let start = checkpoint::resume(options.resume.as_ref(), &network, device)?;
    let mut optimizer = Adam::new(network.parameters(), AdamOptions { lr: 2e-3, ..AdamOptions::default() })?;
    start.optimizer.map_or(Ok(()), |state| optimizer.load_state_dict(&state))?;
    let trained = Trained { network, optimizer, dtype: options.dtype };
    let compute = Stream::new(device)?;
    compute.wait_stream(&device.current_stream())?;
    let _current = compute.make_current();
    // Worker threads fill pinned batches, and copies run on the loader's own stream.
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
    let mut progress = Progress::new(steps as u64);
    let mut done = 0;
    let mut skipped = start.step.checked_rem(loader.len()).unwrap_or(0);
    loader.set_epoch(start.step.checked_div(loader.len()).unwrap_or(0) as u64);
    while done < steps {
        for batch in loader.epoch()?.skip(std::mem::take(&mut skipped)).take(steps - done) {
            let batch = batch?;
            // The first step is always eager: it compiles the kernels, which a capture could not do.
            let loss = match &captured {
                Some(captured) => CapturedStep::run(captured, &batch)?,
                None => trained.step(&batch[0], &batch[1])?,
            };
            losses.select(0, done)?.copy_(&loss.detach())?;
            if options.graph && captured.is_none() {
                captured = Some(CapturedStep::capture(device, &trained)?);
            }
            done += 1;
            if progress.is_due(done as u64) {
                let speed = (done * BATCH) as f64 / progress.seconds().max(1e-9);
                progress
                    .show(done as u64, &format!("loss {:.4} {speed:>6.0} samples/s", loss.item::<f32>()?));
            }
        }
    }
    let samples_per_second = (steps * BATCH) as f64 / progress.seconds();
    let mut losses = losses.to_vec::<f32>()?;
    losses.truncate(steps);
    let (network, state) = (&trained.network, trained.optimizer.state_dict());
    checkpoint::save(options.save.as_ref(), network, state, start.step + steps, device)?;
    Ok(Outcome { losses, accuracy: trained.evaluate(digits.evaluation.clone(), device)?, samples_per_second })
}
