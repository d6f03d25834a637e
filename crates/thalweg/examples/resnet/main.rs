//! Trains a residual network on handwritten digits, made four times as large.
//!
//! ```text
//! cargo run --release --example resnet                    # the GPU if there is one, else the simulated GPU
//! cargo run --release --example resnet -- --graph --dtype bf16 --save digits.safetensors
//! cargo run --release --example resnet -- --steps 0 --resume digits.safetensors
//! ```

#[path = "../digits/data.rs"]
mod data;
mod model;
mod options;
#[path = "../digits/progress.rs"]
mod progress;

use std::process::ExitCode;
use std::sync::Arc;

use thalweg::data::{DataLoader, DataLoaderOptions, Dataset, Field, put};
use thalweg::functional::cross_entropy;
use thalweg::module::{Forward, Module, Upsample, UpsampleMode};
use thalweg::optim::{Sgd, SgdOptions};
use thalweg::random::Generator;
use thalweg::tensor::autocast::autocast;
use thalweg::tensor::graph::{StepOptions, capture_step};
use thalweg::{DType, Device, Result, Stream, Tensor, no_grad, serialize};

use data::Sample;
use model::ResNet;
use options::{Command, Options};
use progress::Progress;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(Command::Run(options)) => options,
        Ok(Command::Help) => {
            println!("{}", options::USAGE);
            return ExitCode::SUCCESS;
        }
        Err(text) => {
            eprintln!("resnet: {text}\n\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("resnet: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Images with their digits.
struct Images(Vec<Sample>);

impl Dataset for Images {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field { shape: vec![1, 8, 8], dtype: DType::F32 }, Field { shape: vec![], dtype: DType::I64 }]
    }

    fn read(&self, index: usize, fields: &mut [&mut [u8]]) -> Result<()> {
        put(fields[0], &self.0[index].pixels)?;
        put(fields[1], &[self.0[index].digit])
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
    let digits = data::load();
    let mut model = ResNet::new(10, &mut Generator::new(options.seed), &device)?;
    if let Some(path) = &options.resume {
        model.load_state_dict(&serialize::load_file(path, &device)?)?;
    }
    let count: usize = model.parameters().iter().map(Tensor::elements).sum();
    println!("device: {device} ({}); {count} parameters, {}", device.properties().name, options.dtype);
    if let Some(loss) = train(&model, Images(digits.training), options, &device)? {
        println!("loss: {loss:.4}");
    }
    if let Some(path) = &options.save {
        serialize::save_file(&model.state_dict(), path, &[("format", "pt")])?;
    }
    model.eval();
    println!("test accuracy: {:.1}%", 100.0 * evaluate(&model, Images(digits.evaluation), options, &device)?);
    Ok(())
}

/// The scores of images (count, 1, 8, 8), which are made four times as large, in the dtype that was asked for.
fn scores(model: &ResNet, images: &Tensor, dtype: DType) -> Result<Tensor> {
    let mode = UpsampleMode::Linear { align_corners: false };
    let larger = Upsample { scale_factor: Some(vec![4.0]), mode, ..Upsample::default() }.forward(images)?;
    if dtype == DType::F32 { model.forward(&larger) } else { autocast(dtype, || model.forward(&larger)) }
}

/// Trains, and returns the last loss, if there was a step.
fn train(model: &ResNet, images: Images, options: &Options, device: &Device) -> Result<Option<f32>> {
    let loading = DataLoaderOptions {
        batch_size: options.batch,
        shuffle: Some(options.seed),
        num_workers: 2,
        drop_last: true,
        ..DataLoaderOptions::default()
    };
    let mut loader = DataLoader::new(Arc::new(images), loading, device)?;
    if loader.is_empty() && options.steps > 0 {
        return Err(thalweg::Error::invalid("there are fewer images than a batch; choose a smaller --batch"));
    }
    let rates =
        SgdOptions { learning_rate: 0.05, momentum: 0.9, weight_decay: 1e-4, ..SgdOptions::default() };
    let optimizer = Sgd::new(model.parameters(), rates)?;
    let input = Tensor::zeros(&[options.batch, 1, 8, 8], DType::F32, device)?;
    let classes = Tensor::zeros(&[options.batch], DType::I64, device)?;
    let step = || {
        optimizer.zero_grad();
        let loss = cross_entropy(&scores(model, &input, options.dtype)?.to_dtype(DType::F32)?, &classes)?;
        loss.backward()?;
        optimizer.step()?;
        Ok(loss.detach())
    };
    let mut captured = options.graph.then(|| capture_step(device, StepOptions::default(), step));
    let mut progress = Progress::new(options.steps);
    let (mut done, mut last) = (0, None);
    while done < options.steps {
        for batch in loader.epoch()?.take(options.steps - done) {
            let batch = batch?;
            input.copy_(&batch[0])?;
            classes.copy_(&batch[1])?;
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

/// The share of images that the model recognises.
fn evaluate(model: &ResNet, images: Images, options: &Options, device: &Device) -> Result<f64> {
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
