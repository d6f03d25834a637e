//! Trains a residual network on handwritten digits, made four times as large.
//!
//! ```text
//! cargo run --release --example resnet                    # the GPU if there is one, else the simulated GPU
//! cargo run --release --example resnet -- --graph --dtype bf16 --save digits.safetensors
//! cargo run --release --example resnet -- --steps 0 --resume digits.safetensors
//! ```

#[path = "../common/mod.rs"]
mod common;
#[path = "../digits/data.rs"]
mod data;
mod options;

use std::process::ExitCode;
use std::sync::Arc;

use thalweg::data::{DataLoader, DataLoaderOptions};
use thalweg::functional::cross_entropy;
use thalweg::models::resnet::{ResNet, ResNetConfig};
use thalweg::module::{Forward, Module, Upsample, UpsampleMode};
use thalweg::optim::{Sgd, SgdOptions};
use thalweg::random::Generator;
use thalweg::{DType, Device, Result, Stream, Tensor, no_grad};

use common::arguments;
use common::checkpoint::{self, Start};
use common::options::TrainingOptions;
use common::training::{in_dtype, train};
use data::Images;

fn main() -> ExitCode {
    arguments::run("resnet", options::USAGE, options::parse, run)
}

fn run(options: &TrainingOptions) -> Result<()> {
    let device = options.device()?;
    // The default stream cannot be captured.
    let stream = Stream::new(&device)?;
    let _current = stream.make_current();
    let digits = data::load();
    let layers = vec![(8, 2), (16, 2)];
    let config = ResNetConfig { channels: 1, stem: 16, layers, classes: 10 };
    let mut model = ResNet::new(&config, &mut Generator::new(options.seed), &device)?;
    let start = checkpoint::resume(options.resume.as_ref(), &model, &device)?;
    let count: usize = model.parameters().iter().map(Tensor::elements).sum();
    println!("device: {device} ({}); {count} parameters, {}", device.properties().name, options.dtype);
    if let Some(loss) = learn(&model, digits.training, start, options, &device)? {
        println!("loss: {loss:.4}");
    }
    model.eval();
    println!("test accuracy: {:.1}%", 100.0 * evaluate(&model, digits.evaluation, options, &device)?);
    Ok(())
}

/// Returns the scores of images (count, 1, 8, 8), which are made four times as large, in the requested dtype.
fn scores(model: &ResNet, images: &Tensor, dtype: DType) -> Result<Tensor> {
    let mode = UpsampleMode::Linear { align_corners: false };
    let larger = Upsample { scale_factor: Some(vec![4.0]), mode, ..Upsample::default() }.forward(images)?;
    in_dtype(dtype, || model.forward(&larger))
}

/// Trains and saves, and returns the last loss, if there was a step.
fn learn(
    model: &ResNet,
    images: Images,
    start: Start,
    options: &TrainingOptions,
    device: &Device,
) -> Result<Option<f32>> {
    let rates = SgdOptions { lr: 0.05, momentum: 0.9, weight_decay: 1e-4, ..SgdOptions::default() };
    let mut optimizer = Sgd::new(model.parameters(), rates)?;
    start.optimizer.map_or(Ok(()), |state| optimizer.load_state_dict(&state))?;
    let input = Tensor::zeros(&[options.batch, 1, 8, 8], DType::F32, device)?;
    let inputs = [input, Tensor::zeros(&[options.batch], DType::I64, device)?];
    let step = || {
        optimizer.zero_grad();
        let scores = scores(model, &inputs[0], options.dtype)?.to_dtype(DType::F32)?;
        let loss = cross_entropy(&scores, &inputs[1])?;
        loss.backward()?;
        optimizer.step()?;
        Ok(loss.detach())
    };
    let loss = train(Arc::new(images), &inputs, step, start.step, options, device)?;
    let steps = start.step + options.steps;
    checkpoint::save(options.save.as_ref(), model, optimizer.state_dict(), steps, device)?;
    Ok(loss)
}

/// Returns the share of images that the model recognises.
fn evaluate(model: &ResNet, images: Images, options: &TrainingOptions, device: &Device) -> Result<f64> {
    let count = images.0.len();
    let loading = DataLoaderOptions { batch_size: 100, ..DataLoaderOptions::default() };
    let mut loader = DataLoader::new(Arc::new(images), loading, device)?;
    let mut right = 0;
    for batch in loader.epoch()? {
        let batch = batch?;
        let guesses = no_grad(|| scores(model, &batch[0], options.dtype)?.argmax(1))?;
        right += guesses.eq(&batch[1])?.sum(&[], false)?.item::<i64>()?;
    }
    Ok(right as f64 / count as f64)
}
