//! Trains a small transformer on nine sonnets, character by character, and generates text with it.
//!
//! ```text
//! cargo run --release --example gpt                       # the GPU if there is one, else the simulated GPU
//! cargo run --release --example gpt -- --graph            # the training step captured once and replayed
//! cargo run --release --example gpt -- --dtype bf16 --save sonnets.safetensors
//! cargo run --release --example gpt -- --steps 0 --resume sonnets.safetensors --prompt "Shall I "
//! cargo run --release --example gpt -- --save sonnets.pt  # all that training goes on from: --resume sonnets.pt
//! ```

#[path = "../common/mod.rs"]
mod common;
mod options;
mod text;

use std::process::ExitCode;
use std::sync::Arc;

use thalweg::module::{Forward, Module, Transformer, TransformerOptions};
use thalweg::optim::{AdamW, AdamWOptions, clip_grad_norm_};
use thalweg::random::Generator;
use thalweg::{DType, Device, Result, Stream, Tensor, i, no_grad};

use common::arguments;
use common::checkpoint::{self, Start};
use common::options::TrainingOptions;
use common::training::{in_dtype, train};
use options::Options;
use text::Text;

const CONTEXT: usize = 64;

/// The temperature of sampling: below 1, likely characters become more likely.
const TEMPERATURE: f64 = 0.7;

fn main() -> ExitCode {
    arguments::run("gpt", options::USAGE, Options::parse, run)
}

fn run(options: &Options) -> Result<()> {
    let training = &options.training;
    let device = training.device()?;
    // The default stream cannot be captured.
    let stream = Stream::new(&device)?;
    let _current = stream.make_current();
    let text = Arc::new(Text::sonnets(CONTEXT));
    let prompt = text.encode(&options.prompt)?;
    let mut generator = Generator::new(training.seed);
    let sizes = TransformerOptions {
        vocabulary: text.vocabulary(),
        context: CONTEXT,
        layers: 2,
        features: 64,
        heads: 4,
    };
    let model = Transformer::new(sizes, &mut generator, &device)?;
    let start = checkpoint::resume(training.resume.as_ref(), &model, &device)?;
    let count: usize = model.parameters().iter().map(Tensor::elements).sum();
    println!("device: {device} ({}); {count} parameters, {}", device.properties().name, training.dtype);
    if let Some(loss) = learn(&model, &text, start, training, &device)? {
        println!("loss: {loss:.4}");
    }
    let written = sample(&model, prompt, options, &mut generator, &device)?;
    println!("{}", text.decode(&written));
    Ok(())
}

/// Trains and saves, and returns the last loss, if there was a step.
fn learn(
    model: &Transformer,
    text: &Arc<Text>,
    start: Start,
    options: &TrainingOptions,
    device: &Device,
) -> Result<Option<f32>> {
    let parameters = model.parameters();
    let rates = AdamWOptions { lr: 3e-3, ..AdamWOptions::default() };
    let mut optimizer = AdamW::new(parameters.clone(), rates)?;
    start.optimizer.map_or(Ok(()), |state| optimizer.load_state_dict(&state))?;
    let place = || Tensor::zeros(&[options.batch, CONTEXT], DType::I64, device);
    let inputs = [place()?, place()?];
    let step = || {
        optimizer.zero_grad();
        let loss = in_dtype(options.dtype, || model.loss(&inputs[0], &inputs[1]))?;
        loss.backward()?;
        clip_grad_norm_(&parameters, 1.0, 2.0)?;
        optimizer.step()?;
        loss.detach().to_dtype(DType::F32)
    };
    let loss = train(Arc::clone(text), &inputs, step, start.step, options, device)?;
    let steps = start.step + options.steps;
    checkpoint::save(options.save.as_ref(), model, optimizer.state_dict(), steps, device)?;
    Ok(loss)
}

/// Returns a prompt followed by the characters that the model writes.
fn sample(
    model: &Transformer,
    mut tokens: Vec<i64>,
    options: &Options,
    generator: &mut Generator,
    device: &Device,
) -> Result<Vec<i64>> {
    for _ in 0..options.sample {
        let seen = &tokens[tokens.len().saturating_sub(CONTEXT)..];
        let input = Tensor::from_slice(seen, &[1, seen.len()], device)?;
        let scores = no_grad(|| in_dtype(options.training.dtype, || model.forward(&input)))?;
        let scores = scores.i(i![-1, 0])?.to_dtype(DType::F32)?;
        let weights = scores.div_scalar(TEMPERATURE)?.softmax(-1)?.to_vec::<f32>()?;
        let mut left = generator.uniform();
        let chosen = weights.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        tokens.push(chosen.unwrap_or(weights.len() - 1) as i64);
    }
    Ok(tokens)
}
