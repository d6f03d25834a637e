//! A training step of GPT-2 whose blocks are on several GPUs, one stage per GPU, by 1F1B or zero bubble: its time, and the
//! minimum time of its schedule with the times of its computations. A line of JSON per schedule.
//!
//! `cargo bench -p thalweg-dist --bench pipeline -- [--sim] [--layers N] [--first N] [--features N] [--heads N] [--batch N] [--tokens N] [--microbatches N]
//! [--steps N] [--picture FOLDER]`. Stages are threads. `--first` is how many of the layers the first stage has: the head of the last one takes as long as five
//! or six. `--batch` is that of a microbatch.

#[path = "common/gpt2.rs"]
mod gpt2;

use std::time::Instant;

use thalweg_dist::pipeline::{Pipeline, PipelineOptions, PipelineStage, Schedule, Timeline};
use thalweg_dist::{ProcessGroup, run_ranks, simulated_devices};
use thalweg_ir::DType;
use thalweg_nn::functional;
use thalweg_nn::module::{Embedding, Forward, LayerNorm, Linear, Module};
use thalweg_nn::optim::{AdamW, AdamWOptions};
use thalweg_runtime::{Device, Result, Stream};
use thalweg_tensor::Tensor;
use thalweg_tensor::autocast::autocast;
use thalweg_tensor::random::{DeviceGenerator, Generator};

use gpt2::{Arguments, Block, Maker, VOCABULARY};

#[derive(Clone)]
struct Options {
    is_simulated: bool,
    picture: Option<String>,
    layers: usize,
    first: usize,
    features: usize,
    heads: usize,
    batch: usize,
    tokens: usize,
    microbatches: usize,
    steps: usize,
}

impl Options {
    fn parse() -> Self {
        let arguments = Arguments::of_program();
        Self {
            is_simulated: arguments.has("--sim"),
            picture: arguments.after("--picture").cloned(),
            layers: arguments.number("--layers", 12),
            first: arguments.number("--first", 8),
            features: arguments.number("--features", 768),
            heads: arguments.number("--heads", 12),
            batch: arguments.number("--batch", 4),
            tokens: arguments.number("--tokens", 1024),
            microbatches: arguments.number("--microbatches", 8),
            steps: arguments.number("--steps", 5),
        }
    }
}

/// A stage: some blocks, with the network's ends in the first and the last one.
#[derive(Module)]
struct Stage {
    embeddings: Vec<Embedding>,
    blocks: Vec<Block>,
    norm: Vec<LayerNorm>,
    head: Vec<Linear>,
}

impl Stage {
    fn new(options: &Options, stage: usize, stages: usize, maker: &Maker) -> Result<Self> {
        let (features, rest) = (options.features, options.layers - options.first);
        let own = match stage {
            0 => options.first,
            _ => rest * stage / (stages - 1) - rest * (stage - 1) / (stages - 1),
        };
        let (is_first, is_last) = (stage == 0, stage + 1 == stages);
        let rows = if is_first { vec![VOCABULARY, options.tokens] } else { vec![] };
        Ok(Self {
            embeddings: rows
                .into_iter()
                .map(|rows| maker.embedding(rows, features))
                .collect::<Result<_>>()?,
            blocks: (0..own).map(|_| maker.block(features, options.heads)).collect::<Result<_>>()?,
            norm: is_last
                .then(|| LayerNorm::new(features, &maker.device))
                .into_iter()
                .collect::<Result<_>>()?,
            head: is_last
                .then(|| Ok(Linear { weight: maker.embedding(VOCABULARY, features)?.weight, bias: None }))
                .into_iter()
                .collect::<Result<_>>()?,
        })
    }
}

impl Forward for Stage {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        autocast(DType::Bf16, || {
            let mut x = match &self.embeddings[..] {
                [tokens, positions] => tokens.forward(input)?.add(&positions.weight)?,
                _ => input.clone(),
            };
            for block in &self.blocks {
                x = block.forward(&x)?;
            }
            for (norm, head) in self.norm.iter().zip(&self.head) {
                x = head.forward(&norm.forward(&x)?)?;
            }
            Ok(x)
        })
    }
}

fn tokens(options: &Options, seed: u64, device: &Device) -> Result<Tensor> {
    let mut generator = Generator::new(seed);
    let rows = options.batch * options.microbatches;
    let values: Vec<i64> =
        (0..rows * options.tokens).map(|_| generator.below(50_257).map_or(0, i64::from)).collect();
    Tensor::from_slice(&values, &[rows, options.tokens], device)
}

/// Returns the median time of a step with its optimizer, in milliseconds; and the computations of a step that was measured.
fn train(options: &Options, schedule: &Schedule, group: &ProcessGroup) -> Result<(f64, Timeline)> {
    let device = group.device();
    let stream = Stream::new(device)?;
    let _current = stream.make_current();
    let maker = Maker { generator: DeviceGenerator::new(1, device)?, device: device.clone() };
    let stages = schedule.stages();
    let layers = Stage::new(options, group.rank() as usize, stages, &maker)?;
    let loss = |scores: &Tensor, next: &Tensor| {
        let count = next.elements();
        functional::cross_entropy(&scores.reshape(&[count, VOCABULARY])?, &next.reshape(&[count])?)
    };
    let of_pipeline = PipelineOptions { return_outputs: false, ..PipelineOptions::with_loss(loss) };
    let part = PipelineStage::new(&layers, group.rank() as usize, stages)?;
    let mut pipeline = Pipeline::new(schedule, vec![part], group, of_pipeline)?;
    let rates = AdamWOptions { lr: 3e-4, ..AdamWOptions::default() };
    let optimizer = AdamW::new(layers.parameters(), rates)?;
    let (input, next) = (tokens(options, 1, device)?, tokens(options, 2, device)?);
    let update = || -> Result<()> {
        optimizer.step()?;
        optimizer.zero_grad();
        Ok(())
    };
    let mut times = Vec::new();
    for round in 0..6 {
        group.barrier()?;
        let begin = Instant::now();
        for _ in 0..options.steps {
            pipeline.step(Some(&input), Some(&next))?;
            update()?;
        }
        device.synchronize()?;
        // The first round compiles and connects.
        times.extend((round > 0).then(|| begin.elapsed().as_secs_f64() * 1e3 / options.steps as f64));
    }
    times.sort_by(f64::total_cmp);
    let (_, timeline) = pipeline.step_timed(Some(&input), Some(&next))?;
    update()?;
    Ok((times[times.len() / 2], timeline))
}

fn main() -> Result<()> {
    let options = Options::parse();
    let devices = if options.is_simulated {
        simulated_devices(2)?
    } else {
        let Ok(first) = Device::cuda(0) else {
            println!("no GPU here; --sim trains on simulated stages");
            return Ok(());
        };
        (0..first.driver().device_count()).map(Device::cuda).collect::<Result<_>>()?
    };
    let (ranks, microbatches) = (devices.len(), options.microbatches);
    for (name, schedule) in [
        ("1f1b", Schedule::one_f_one_b(ranks, microbatches)?),
        ("zero_bubble", Schedule::zero_bubble(ranks, 1, microbatches)?),
    ] {
        let all = run_ranks(&devices, |group| train(&options, &schedule, &group))?;
        let (ms, timeline) = &all[0];
        let bound = timeline.bound(&schedule)?;
        println!(
            "{{\"name\": \"pipeline_{name}\", \"ranks\": {ranks}, \"microbatches\": {microbatches}, \"step_with_optimizer_ms\": {ms:.3}, \"computations_ms\": {:.3}, \
             \"bound_ms\": {:.3}, \"by_bound\": {:.4}, \"bubble\": {:.4}, \"bubble_of_bound\": {:.4}, \"device\": \"{}\"}}",
            timeline.total_ms(),
            bound.total_ms(),
            timeline.total_ms() / bound.total_ms(),
            timeline.bubble_share(),
            bound.bubble_share(),
            devices[0].properties().name
        );
        eprint!("{}", timeline.to_text(150));
        if let Some(folder) = &options.picture {
            let path = format!("{folder}/pipeline-{name}.svg");
            if let Err(error) = std::fs::write(&path, timeline.to_svg(&format!("GPT-2, {name}"))) {
                eprintln!("{path} cannot be written: {error}");
            }
        }
    }
    Ok(())
}
