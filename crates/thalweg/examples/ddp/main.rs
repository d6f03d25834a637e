//! Trains one network on several ranks, each with its part of every batch.
//!
//! ```text
//! cargo run -p thalweg --example ddp                                   # all GPUs of the machine, or 4 simulated ones, a thread per device
//! torchrun --nproc-per-node 2 --no-python target/debug/examples/ddp    # a process per GPU
//! sbatch --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 crates/thalweg/examples/common/srun.sh target/debug/examples/ddp
//! ```
//!
//! The task: the sum and the product of two numbers. Progress goes to standard error, one line per rank; the losses, which equal
//! those of one rank with the full batch, to standard output.

#[path = "../common/ranks.rs"]
mod ranks;

use std::process::ExitCode;

use thalweg::distributed::{DataParallelOptions, DistributedDataParallel, ProcessGroup, run_ranks};
use thalweg::module::{Forward, Linear, Module};
use thalweg::optim::{Adam, AdamOptions};
use thalweg::random::Generator;
use thalweg::{Result, Tensor};

use ranks::{Bars, devices, exit_code, launched, mean_of_ranks, report, samples};

const STEPS: usize = 60;
const BATCH: usize = 48;

#[derive(Module)]
struct Network {
    hidden: Linear,
    output: Linear,
}

impl Forward for Network {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.output.forward(&self.hidden.forward(input)?.tanh()?)
    }
}

/// Trains as one rank, and returns the losses of the full batches.
fn train(group: &ProcessGroup, advance: impl Fn()) -> Result<Vec<f32>> {
    let device = group.device();
    let mut generator = Generator::new(0);
    let network = Network {
        hidden: Linear::new(2, 32, &mut generator, device)?,
        output: Linear::new(32, 2, &mut generator, device)?,
    };
    let network = DistributedDataParallel::new(network, group, DataParallelOptions::default())?;
    let options = AdamOptions { lr: 0.02, ..AdamOptions::default() };
    let optimizer = Adam::new(network.parameters(), options)?;
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let [input, target] = samples(group, step, BATCH)?;
        let loss = network.forward(&input)?.sub(&target)?.square()?.mean(&[], false)?;
        loss.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();
        losses.push(mean_of_ranks(group, &loss)?);
        advance();
    }
    Ok(losses)
}

fn run() -> Result<()> {
    let was_launched = launched(|group| {
        let losses = train(group, || {})?;
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
    let bars = Bars::new(devices.len(), STEPS);
    let losses = run_ranks(&devices, |group| train(&group, || bars.advance(group.rank() as usize)))?;
    report("threads", 0, &losses[0]);
    Ok(())
}

fn main() -> ExitCode {
    exit_code("ddp", run())
}
