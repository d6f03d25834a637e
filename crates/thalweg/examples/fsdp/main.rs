//! Trains a network whose parameters are sharded over several ranks, writes a checkpoint halfway, and continues from it on half of
//! the ranks.
//!
//! ```text
//! cargo run -p thalweg --example fsdp                                   # all GPUs of the machine, or 4 simulated ones, a thread per device
//! torchrun --nproc-per-node 2 --no-python target/debug/examples/fsdp    # a process per GPU
//! ```
//!
//! The task: the sum and the product of two numbers. Progress goes to standard error, a line per rank; losses and memory to standard
//! output.

#[path = "../common/ranks.rs"]
mod ranks;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use thalweg::distributed::{FullyShard, FullyShardOptions, ProcessGroup, fully_shard, run_ranks};
use thalweg::module::{Forward, Linear, Module};
use thalweg::optim::{Adam, AdamOptions};
use thalweg::random::Generator;
use thalweg::{Result, Tensor};

use ranks::{Bars, devices, exit_code, launched, mean_of_ranks, report, samples};

const STEPS: usize = 40;
const BATCH: usize = 48;
const WIDTH: usize = 64;
const BLOCKS: usize = 4;

#[derive(Module)]
struct Block {
    up: Linear,
    down: Linear,
}

impl Forward for Block {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.add(&self.down.forward(&self.up.forward(input)?.tanh()?)?)
    }
}

#[derive(Module)]
struct Network {
    input: Linear,
    blocks: Vec<FullyShard<Block>>,
    output: Linear,
}

impl Forward for Network {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let mut hidden = self.input.forward(input)?;
        for block in &self.blocks {
            hidden = block.forward(&hidden)?;
        }
        self.output.forward(&hidden)
    }
}

/// Makes the network, with each block as a separate unit, and its optimizer.
fn made(group: &ProcessGroup) -> Result<(FullyShard<Network>, Adam)> {
    let (device, options) = (group.device(), FullyShardOptions::default());
    let mut generator = Generator::new(0);
    let blocks = (0..BLOCKS).map(|_| {
        let up = Linear::new(WIDTH, 4 * WIDTH, &mut generator, device)?;
        let down = Linear::new(4 * WIDTH, WIDTH, &mut generator, device)?;
        fully_shard(Block { up, down }, group, options)
    });
    let blocks = blocks.collect::<Result<_>>()?;
    let input = Linear::new(2, WIDTH, &mut generator, device)?;
    let output = Linear::new(WIDTH, 2, &mut generator, device)?;
    let network = fully_shard(Network { input, blocks, output }, group, options)?;
    let options = AdamOptions { lr: 0.003, ..AdamOptions::default() };
    let optimizer = Adam::new(network.parameters(), options)?;
    Ok((network, optimizer))
}

/// Trains from one step to the end as one rank, and returns the losses of the full batches. A run from the first step writes the
/// checkpoint halfway; other runs read it.
fn train(group: &ProcessGroup, first: usize, checkpoint: &Path, advance: impl Fn()) -> Result<Vec<f32>> {
    let (network, optimizer) = made(group)?;
    if first > 0 {
        network.load_sharded(checkpoint, Some(&optimizer.state_dict()))?;
    }
    let mut losses = Vec::new();
    for step in first..STEPS {
        if step == STEPS / 2 && first == 0 {
            network.save_sharded(checkpoint, Some(&optimizer.state_dict()))?;
        }
        let [input, target] = samples(group, step, BATCH)?;
        let loss = network.forward(&input)?.sub(&target)?.square()?.mean(&[], false)?;
        loss.backward()?;
        network.clip_grad_norm_(1.0, 2.0)?;
        optimizer.step()?;
        optimizer.zero_grad();
        losses.push(mean_of_ranks(group, &loss)?);
        advance();
    }
    Ok(losses)
}

fn checkpoint_path(of: u32) -> PathBuf {
    std::env::temp_dir().join(format!("thalweg-fsdp-{of}"))
}

fn run() -> Result<()> {
    let was_launched = launched(|group| {
        // All ranks use the folder of rank 0.
        let name = group.broadcast_object(&std::process::id().to_le_bytes(), 0)?;
        let number = name.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let losses = train(group, 0, &checkpoint_path(number), || {})?;
        if group.rank() == 0 {
            report("processes", 0, &losses);
        }
        Ok(())
    })?;
    if was_launched {
        return Ok(());
    }
    let devices = devices()?;
    println!("{} ranks on {}", devices.len(), devices[0].properties().name);
    let path = checkpoint_path(std::process::id());
    let bars = Bars::new(devices.len(), STEPS);
    let losses =
        run_ranks(&devices, |group| train(&group, 0, &path, || bars.advance(group.rank() as usize)))?;
    report("threads", 0, &losses[0]);
    println!("at most {} KiB on a rank", devices[0].max_memory_allocated() >> 10);
    let fewer = &devices[..devices.len().div_ceil(2)];
    let bars = Bars::new(fewer.len(), STEPS - STEPS / 2);
    let again =
        run_ranks(fewer, |group| train(&group, STEPS / 2, &path, || bars.advance(group.rank() as usize)));
    // The folder is always removed.
    let _ = std::fs::remove_dir_all(&path);
    report(&format!("on from step {} on {} ranks", STEPS / 2, fewer.len()), STEPS / 2, &again?[0]);
    Ok(())
}

fn main() -> ExitCode {
    exit_code("fsdp", run())
}
