//! Trains a small transformer on nine sonnets, character by character, and lets it write.
//!
//! ```text
//! cargo run --release --example gpt                       # the GPU if there is one, else the simulated GPU
//! cargo run --release --example gpt -- --graph            # the training step captured once and replayed
//! cargo run --release --example gpt -- --dtype bf16 --save sonnets.safetensors
//! cargo run --release --example gpt -- --steps 0 --resume sonnets.safetensors --prompt "Shall I "
//! ```

mod options;
#[path = "../digits/progress.rs"]
mod progress;
mod text;

use std::process::ExitCode;
use std::sync::Arc;

use thalweg::data::{DataLoader, DataLoaderOptions};
use thalweg::module::{Forward, Module, Transformer, TransformerOptions};
use thalweg::optim::{AdamW, AdamWOptions, clip_grad_norm_};
use thalweg::random::Generator;
use thalweg::tensor::autocast::autocast;
use thalweg::tensor::graph::{StepOptions, capture_step};
use thalweg::{DType, Device, Result, Stream, Tensor, i, no_grad, serialize};

use options::{Command, Options};
use progress::Progress;
use text::Text;

const CONTEXT: usize = 64;

/// Below 1 the likely characters become likelier.
const TEMPERATURE: f64 = 0.7;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(Command::Run(options)) => options,
        Ok(Command::Help) => {
            println!("{}", options::USAGE);
            return ExitCode::SUCCESS;
        }
        Err(text) => {
            eprintln!("gpt: {text}\n\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpt: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let device = match &options.device {
        Some(name) => Device::from_name(name)?,
        None => Device::best()?,
    };
    // The default stream cannot be captured.
    let stream = Stream::new(&device)?;
    let _current = stream.make_current();
    let text = Arc::new(Text::sonnets(CONTEXT));
    let prompt = text.encode(&options.prompt)?;
    let mut generator = Generator::new(options.seed);
    let sizes = TransformerOptions {
        vocabulary: text.vocabulary(),
        context: CONTEXT,
        layers: 2,
        features: 64,
        heads: 4,
    };
    let model = Transformer::new(sizes, &mut generator, &device)?;
    if let Some(path) = &options.resume {
        model.load_state_dict(&serialize::load_file(path, &device)?)?;
    }
    let count: usize = model.parameters().iter().map(Tensor::elements).sum();
    println!("device: {device} ({}); {count} parameters, {}", device.properties().name, options.dtype);
    if let Some(loss) = train(&model, &text, options, &device)? {
        println!("loss: {loss:.4}");
    }
    if let Some(path) = &options.save {
        serialize::save_file(&model.state_dict(), path, &[("format", "pt")])?;
    }
    let written = sample(&model, prompt, options, &mut generator, &device)?;
    println!("{}", text.decode(&written));
    Ok(())
}

/// Runs a function with products in the dtype that was asked for.
fn in_dtype<T>(dtype: DType, function: impl FnOnce() -> Result<T>) -> Result<T> {
    if dtype == DType::F32 { function() } else { autocast(dtype, function) }
}

/// Trains, and returns the last loss, if there was a step.
fn train(model: &Transformer, text: &Arc<Text>, options: &Options, device: &Device) -> Result<Option<f32>> {
    let loading = DataLoaderOptions {
        batch_size: options.batch,
        shuffle: Some(options.seed),
        num_workers: 2,
        drop_last: true,
        ..DataLoaderOptions::default()
    };
    let mut loader = DataLoader::new(Arc::clone(text), loading, device)?;
    if loader.is_empty() && options.steps > 0 {
        return Err(thalweg::Error::invalid(
            "the text has fewer pieces than a batch; choose a smaller --batch",
        ));
    }
    let parameters = model.parameters();
    let rates = AdamWOptions { learning_rate: 3e-3, ..AdamWOptions::default() };
    let optimizer = AdamW::new(parameters.clone(), rates)?;
    let place = || Tensor::zeros(&[options.batch, CONTEXT], DType::I64, device);
    let (input, next) = (place()?, place()?);
    let step = || {
        optimizer.zero_grad();
        let loss = in_dtype(options.dtype, || model.loss(&input, &next))?;
        loss.backward()?;
        clip_grad_norm_(&parameters, 1.0, 2.0)?;
        optimizer.step()?;
        loss.detach().to_dtype(DType::F32)
    };
    let mut captured = options.graph.then(|| capture_step(device, StepOptions::default(), step));
    let mut progress = Progress::new(options.steps);
    let (mut done, mut last) = (0, None);
    while done < options.steps {
        for batch in loader.epoch()?.take(options.steps - done) {
            let batch = batch?;
            input.copy_(&batch[0])?;
            next.copy_(&batch[1])?;
            let loss = match &mut captured {
                Some(captured) => captured.run()?.clone(),
                None => step()?,
            };
            done += 1;
            if progress.is_due(done) {
                let loss = loss.item()?;
                progress.draw(done, loss, done * options.batch);
                last = Some(loss);
            }
        }
    }
    Ok(last)
}

/// Returns a prompt with the characters that the model writes behind it.
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
        let scores = no_grad(|| in_dtype(options.dtype, || model.forward(&input)))?;
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
