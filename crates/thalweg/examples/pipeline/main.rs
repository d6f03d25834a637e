//! Trains one network whose layers are on several ranks, with each of the pipeline schedules, and shows a timeline of each rank's
//! computations.
//!
//! ```text
//! cargo run -p thalweg --example pipeline                                   # all GPUs of the machine, or 4 simulated ones, a thread per device
//! cargo run -p thalweg --example pipeline -- pictures                       # and writes a picture of each schedule's timeline to a folder
//! torchrun --nproc-per-node 2 --no-python target/debug/examples/pipeline    # a process per GPU
//! ```
//!
//! The task: the sum and the product of two numbers. Progress goes to standard error, a line per rank; losses and timelines to
//! standard output. All schedules have the same losses, bit for bit: they only reorder the same work.

#[path = "../common/ranks.rs"]
#[expect(dead_code, reason = "parts of a batch are for examples whose ranks divide it")]
mod ranks;

use std::path::Path;
use std::process::ExitCode;

use thalweg::distributed::pipeline::{Pipeline, PipelineOptions, PipelineStage, Schedule, Timeline};
use thalweg::distributed::{ProcessGroup, run_ranks};
use thalweg::module::{Forward, Linear, Module};
use thalweg::optim::{Adam, AdamOptions};
use thalweg::random::Generator;
use thalweg::{Device, Error, Result, Tensor};

use ranks::{Bars, devices, exit_code, launched, report, samples_of};

const STEPS: usize = 10;
const BATCH: usize = 512;
const WIDTH: usize = 192;

#[derive(Module)]
struct Block {
    up: Linear,
    down: Linear,
}

/// The layers of a stage: some blocks, with the network's ends in the first and the last one.
#[derive(Module)]
struct Layers {
    input: Vec<Linear>,
    blocks: Vec<Block>,
    output: Vec<Linear>,
}

impl Layers {
    /// Makes a stage of a network with two blocks per rank. Each block's parameters are the same in every division.
    fn new(stage: usize, stages: usize, ranks: usize, device: &Device) -> Result<Self> {
        let own = 2 * ranks / stages;
        let linear = |inputs: usize, outputs: usize, seed: usize| {
            Linear::new(inputs, outputs, &mut Generator::new(seed as u64), device)
        };
        let block = |place: usize| -> Result<Block> {
            Ok(Block {
                up: linear(WIDTH, 2 * WIDTH, 3 * place)?,
                down: linear(2 * WIDTH, WIDTH, 3 * place + 1)?,
            })
        };
        let at_end = |is_end: bool, inputs: usize, outputs: usize| -> Result<Vec<Linear>> {
            is_end.then(|| linear(inputs, outputs, 1000 + inputs)).into_iter().collect()
        };
        Ok(Self {
            input: at_end(stage == 0, 2, WIDTH)?,
            blocks: (stage * own..(stage + 1) * own).map(block).collect::<Result<_>>()?,
            output: at_end(stage + 1 == stages, WIDTH, 2)?,
        })
    }
}

impl Forward for Layers {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let ends = |layers: &[Linear], x: Tensor| layers.iter().try_fold(x, |x, layer| layer.forward(&x));
        let mut hidden = ends(&self.input, input.clone())?;
        for block in &self.blocks {
            hidden = hidden.add(&block.down.forward(&block.up.forward(&hidden)?.tanh()?)?)?;
        }
        ends(&self.output, hidden)
    }
}

/// Returns the schedules for this number of ranks, with their names.
fn schedules(ranks: usize) -> Result<Vec<(&'static str, Schedule)>> {
    let microbatches = 2 * ranks;
    Ok(vec![
        ("GPipe", Schedule::gpipe(ranks, microbatches)?),
        ("1F1B", Schedule::one_f_one_b(ranks, microbatches)?),
        ("interleaved 1F1B", Schedule::interleaved(ranks, 2, microbatches)?),
        ("zero bubble", Schedule::zero_bubble(ranks, 1, microbatches)?),
        ("ZBV", Schedule::zbv(ranks, microbatches)?),
    ])
}

/// Trains as one rank, and returns the losses, which the rank of the last stage has, and the last step's timeline.
fn train(group: &ProcessGroup, schedule: &Schedule, advance: impl Fn()) -> Result<(Vec<f32>, Timeline)> {
    let (device, stages) = (group.device(), schedule.stages());
    let own = schedule.stages_of(group.rank() as usize)?;
    let layers: Vec<Layers> = (own.iter())
        .map(|&stage| Layers::new(stage, stages, group.size() as usize, device))
        .collect::<Result<_>>()?;
    let parts = own.iter().zip(&layers).map(|(&stage, layers)| PipelineStage::new(layers, stage, stages));
    let options = PipelineOptions::with_loss(|output, target| output.sub(target)?.square()?.mean(&[], false));
    let mut pipeline = Pipeline::new(schedule, parts.collect::<Result<_>>()?, group, options)?;
    let parameters = layers.iter().flat_map(Module::parameters).collect();
    let optimizer = Adam::new(parameters, AdamOptions { lr: 0.002, ..AdamOptions::default() })?;
    let mut losses = Vec::new();
    let mut timeline = None;
    for step in 0..STEPS {
        let [input, target] = samples_of(device, step, 0..BATCH)?;
        let output = if step + 1 < STEPS {
            pipeline.step(Some(&input), Some(&target))?
        } else {
            let (output, measured) = pipeline.step_timed(Some(&input), Some(&target))?;
            timeline = Some(measured);
            output
        };
        optimizer.step()?;
        optimizer.zero_grad();
        losses.extend(output.mean_loss()?.map(|loss| loss.item::<f32>()).transpose()?);
        advance();
    }
    let timeline = timeline.ok_or_else(|| Error::invalid("there was no step"))?;
    Ok((losses, timeline))
}

/// Prints the results of a schedule, and writes its picture if there is a folder for it.
fn show(
    name: &str,
    schedule: &Schedule,
    losses: &[f32],
    timeline: &Timeline,
    folder: Option<&str>,
) -> Result<()> {
    report(name, 0, losses);
    let bound = timeline.bound(schedule)?;
    println!(
        "{name}: a step of {:.2} ms, bubble {:.1} %; with messages that take no time {:.2} ms, {:.1} %",
        timeline.total_ms(),
        100.0 * timeline.bubble_share(),
        bound.total_ms(),
        100.0 * bound.bubble_share()
    );
    print!("{}", timeline.to_text(110));
    let Some(folder) = folder else { return Ok(()) };
    let write = |what: &str, timeline: &Timeline| {
        let path = Path::new(folder).join(format!("{}-{what}.svg", name.replace(' ', "-").to_lowercase()));
        std::fs::write(&path, timeline.to_svg(&format!("{name}, {what}")))
            .map_err(|error| Error::invalid(format!("{}: {error}", path.display())))
    };
    std::fs::create_dir_all(folder).map_err(|error| Error::invalid(format!("{folder}: {error}")))?;
    write("measured", timeline)?;
    write("bound", &bound)
}

fn run() -> Result<()> {
    let folder = std::env::args().nth(1);
    let was_launched = launched(|group| {
        for (name, schedule) in schedules(group.size() as usize)? {
            let (losses, timeline) = train(group, &schedule, || {})?;
            // Only the rank of the last stage has losses.
            if !losses.is_empty() {
                show(name, &schedule, &losses, &timeline, folder.as_deref())?;
            }
        }
        Ok(())
    })?;
    if was_launched {
        return Ok(());
    }
    let devices = devices()?;
    println!("{} ranks on {}", devices.len(), devices[0].properties().name);
    for (name, schedule) in schedules(devices.len())? {
        let bars = Bars::new(devices.len(), STEPS);
        let trained = run_ranks(&devices, |group| {
            let rank = group.rank() as usize;
            train(&group, &schedule, || bars.advance(rank))
        })?;
        let losses = trained.iter().map(|(losses, _)| losses).find(|losses| !losses.is_empty());
        show(name, &schedule, losses.map_or(&[], Vec::as_slice), &trained[0].1, folder.as_deref())?;
    }
    Ok(())
}

fn main() -> ExitCode {
    exit_code("pipeline", run())
}
