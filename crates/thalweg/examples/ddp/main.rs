//! Trains one network on several ranks, each with its part of every batch.
//!
//! ```text
//! cargo run -p thalweg --example ddp                                   # all GPUs of the machine, or 4 simulated ones, a thread per device
//! torchrun --nproc-per-node 2 --no-python target/debug/examples/ddp    # a process per GPU
//! ```
//!
//! The task: the sum and the product of two numbers. Progress goes to standard error, a line per rank; the losses, which are those of one
//! rank with the whole batch, to standard output.

#[path = "../common/ranks.rs"]
mod ranks;

use std::process::ExitCode;

use thalweg::distributed::{
    DataParallelOptions, DistributedDataParallel, GroupOptions, ProcessGroup, ReduceOp, Rendezvous, run_ranks,
};
use thalweg::module::{Forward, Linear, Module};
use thalweg::optim::{Adam, AdamOptions};
use thalweg::random::Generator;
use thalweg::{Device, Result, Tensor};

use ranks::{Bars, devices};

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

/// Trains as one rank, and returns the losses of the whole batches.
fn train(group: &ProcessGroup, advance: impl Fn()) -> Result<Vec<f32>> {
    let (device, ranks) = (group.device(), group.size() as usize);
    let mut generator = Generator::new(0);
    let network = Network {
        hidden: Linear::new(2, 32, &mut generator, device)?,
        output: Linear::new(32, 2, &mut generator, device)?,
    };
    let network = DistributedDataParallel::new(network, group, DataParallelOptions::default())?;
    let options = AdamOptions { learning_rate: 0.02, ..AdamOptions::default() };
    let optimizer = Adam::new(network.parameters(), options)?;
    let own = BATCH / ranks;
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let first = group.rank() as usize * own;
        let samples: Vec<[f32; 2]> = (first..first + own).map(|index| sample(step, index)).collect();
        let answers: Vec<f32> = samples.iter().flat_map(|&[a, b]| [a + b, a * b]).collect();
        let input = Tensor::from_slice(&samples.concat(), &[own, 2], device)?;
        let target = Tensor::from_slice(&answers, &[own, 2], device)?;
        let loss = network.forward(&input)?.sub(&target)?.square()?.mean(&[], false)?;
        loss.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();
        let mean = loss.detach();
        group.all_reduce(&mean, ReduceOp::Avg)?.wait()?;
        losses.push(mean.item::<f32>()?);
        advance();
    }
    Ok(losses)
}

/// Returns two numbers between -1 and 1 that step and index decide.
fn sample(step: usize, index: usize) -> [f32; 2] {
    let number =
        |salt: usize| ((step * 7919 + index * 104_729 + salt * 1_299_709) % 2001) as f32 / 1000.0 - 1.0;
    [number(1), number(2)]
}

fn report(name: &str, losses: &[f32]) {
    for (step, loss) in losses.iter().enumerate().filter(|(step, _)| step % 10 == 9) {
        println!("{name}: step {:>2}  loss {loss:.6}", step + 1);
    }
}

fn run() -> Result<()> {
    if let Some(met) = Rendezvous::from_environment()? {
        let device = Device::cuda(met.local_rank)?;
        let _current = device.make_current();
        let group = met.init_process_group(&device, GroupOptions::default())?;
        let losses = train(&group, || {})?;
        if group.rank() == 0 {
            report("processes", &losses);
        }
        // Rank 0 serves the store, so it leaves last.
        return group.barrier();
    }
    let devices = devices()?;
    println!("{} ranks on {}", devices.len(), devices[0].properties().name);
    let bars = Bars::new(devices.len(), STEPS);
    let losses = run_ranks(&devices, |group| train(&group, || bars.advance(group.rank() as usize)))?;
    report("threads", &losses[0]);
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ddp: {error}");
            ExitCode::FAILURE
        }
    }
}
