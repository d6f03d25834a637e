//! Ranks: as processes that a launcher starts, or as threads of one process with a progress bar each; and the task of the
//! examples with ranks, which learn the sum and the product of two numbers.

use std::io::IsTerminal as _;
use std::ops::Range;
use std::process::ExitCode;

use thalweg::distributed::{GroupOptions, ProcessGroup, ReduceOp, Rendezvous, simulated_devices};
use thalweg::progress::Progress;
use thalweg::{Device, Result, Tensor};
use thalweg_lock::Mutex;

const SIMULATED_RANKS: u32 = 4;

/// Returns all GPUs of the machine, or 4 simulated ones.
pub fn devices() -> Result<Vec<Device>> {
    let gpus: Vec<Device> = match Device::cuda(0) {
        Ok(first) => (0..first.driver().device_count()).map(Device::cuda).collect::<Result<_>>()?,
        Err(_) => Vec::new(),
    };
    if gpus.is_empty() { simulated_devices(SIMULATED_RANKS) } else { Ok(gpus) }
}

/// The lines of all ranks, one bar each.
pub struct Bars {
    steps: usize,
    done: Mutex<Vec<usize>>,
    progress: Progress,
}

impl Bars {
    /// Creates the bars of ranks that do `steps` steps each.
    pub fn new(ranks: usize, steps: usize) -> Self {
        Self { steps, done: Mutex::new(vec![0; ranks]), progress: Progress::new(steps as u64) }
    }

    /// Moves a rank's bar by one step.
    pub fn advance(&self, rank: usize) {
        let mut done = self.done.lock();
        done[rank] += 1;
        if !std::io::stderr().is_terminal() {
            return;
        }
        let line = |(rank, &done): (usize, &usize)| {
            format!("\x1b[2K{}\n", self.progress.line(done as u64, &format!("rank {rank}")))
        };
        let lines: String = done.iter().enumerate().map(line).collect();
        let is_over = done.iter().all(|&done| done == self.steps);
        let back = if is_over { String::new() } else { format!("\x1b[{}A", done.len()) };
        eprint!("{lines}{back}");
    }
}

/// Runs a function as the rank that a launcher such as torchrun has started, and returns whether one has.
pub fn launched(body: impl FnOnce(&ProcessGroup) -> Result<()>) -> Result<bool> {
    let Some(met) = Rendezvous::from_environment()? else { return Ok(false) };
    let device = Device::cuda(met.local_rank)?;
    let _current = device.make_current();
    let group = met.init_process_group(&device, GroupOptions::default())?;
    body(&group)?;
    // Rank 0 serves the store, so it exits last.
    group.barrier()?;
    Ok(true)
}

/// Returns a rank's part of a step's batch: pairs of numbers, and the sum and product of each.
pub fn samples(group: &ProcessGroup, step: usize, batch: usize) -> Result<[Tensor; 2]> {
    let own = batch / group.size() as usize;
    let first = group.rank() as usize * own;
    samples_of(group.device(), step, first..first + own)
}

/// Returns some of a step's pairs of numbers, and the answers.
pub fn samples_of(device: &Device, step: usize, rows: Range<usize>) -> Result<[Tensor; 2]> {
    let samples: Vec<[f32; 2]> = rows.map(|index| sample(step, index)).collect();
    let answers: Vec<f32> = samples.iter().flat_map(|&[a, b]| [a + b, a * b]).collect();
    Ok([
        Tensor::from_slice(&samples.concat(), &[samples.len(), 2], device)?,
        Tensor::from_slice(&answers, &[samples.len(), 2], device)?,
    ])
}

/// Returns two numbers between -1 and 1, determined by step and index.
fn sample(step: usize, index: usize) -> [f32; 2] {
    let number =
        |salt: usize| ((step * 7919 + index * 104_729 + salt * 1_299_709) % 2001) as f32 / 1000.0 - 1.0;
    [number(1), number(2)]
}

/// Returns the loss of the full batch, from that of a rank's part.
pub fn mean_of_ranks(group: &ProcessGroup, loss: &Tensor) -> Result<f32> {
    let mean = loss.detach();
    group.all_reduce(&mean, ReduceOp::Avg)?.wait()?;
    mean.item()
}

/// Prints every tenth loss, beginning at a step.
pub fn report(name: &str, first: usize, losses: &[f32]) {
    for (step, loss) in (first..).zip(losses).filter(|(step, _)| step % 10 == 9) {
        println!("{name}: step {:>2}  loss {loss:.6}", step + 1);
    }
}

/// Prints the error, if there is one, and returns the exit status.
pub fn exit_code(name: &str, outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}
