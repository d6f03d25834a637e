//! Ranks of one process: their devices, and a bar for each.

use std::io::IsTerminal as _;
use std::sync::Mutex;

use thalweg::distributed::simulated_devices;
use thalweg::{Device, Result};

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
    is_terminal: bool,
}

impl Bars {
    /// Creates the bars of ranks that do so many steps each.
    pub fn new(ranks: usize, steps: usize) -> Self {
        Self { steps, done: Mutex::new(vec![0; ranks]), is_terminal: std::io::stderr().is_terminal() }
    }

    /// Moves a rank's bar by one step.
    pub fn advance(&self, rank: usize) {
        let steps = self.steps;
        let mut done = self.done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        done[rank] += 1;
        if !self.is_terminal {
            return;
        }
        let bar = |(rank, done): (usize, &usize)| {
            let filled = 30 * done / steps;
            format!("\x1b[2Krank {rank} [{}{}] {done}/{steps}\n", "#".repeat(filled), " ".repeat(30 - filled))
        };
        let lines: String = done.iter().enumerate().map(bar).collect();
        let is_over = done.iter().all(|&done| done == steps);
        let back = if is_over { String::new() } else { format!("\x1b[{}A", done.len()) };
        eprint!("{lines}{back}");
    }
}
