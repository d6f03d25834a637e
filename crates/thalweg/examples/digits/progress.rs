//! A progress bar with loss and speed.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often the bar is drawn at most.
const INTERVAL: Duration = Duration::from_millis(100);

/// How often a line is printed where standard error is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

pub struct Progress {
    total: usize,
    start: Instant,
    drawn: Instant,
    terminal: bool,
    width: usize,
}

impl Progress {
    pub fn new(total: usize) -> Self {
        let now = Instant::now();
        let width = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).unwrap_or(80);
        Self {
            total,
            start: now,
            drawn: now - LINE_INTERVAL,
            terminal: std::io::stderr().is_terminal(),
            width,
        }
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Whether it is time to draw again: reading a loss makes the host wait, so it is done only then.
    pub fn is_due(&self, step: usize) -> bool {
        step == self.total || self.drawn.elapsed() >= if self.terminal { INTERVAL } else { LINE_INTERVAL }
    }

    pub fn draw(&mut self, step: usize, loss: f32, samples: usize) {
        self.drawn = Instant::now();
        let figures = format!(
            "step {step:>4}/{} loss {loss:.4} {:>6.0} samples/s",
            self.total,
            samples as f64 / self.seconds().max(1e-9)
        );
        let room = self.width.saturating_sub(figures.len() + 4).min(40);
        let filled = (room * step).checked_div(self.total).unwrap_or(room);
        let bar = format!("{}{}", "█".repeat(filled), "░".repeat(room - filled));
        let end = if self.terminal && step < self.total { "\r" } else { "\n" };
        let bar = if room >= 5 { format!("{bar} ") } else { String::new() };
        // A closed standard error is no reason to stop training.
        let _ = write!(std::io::stderr(), "{bar}{figures}{end}").and_then(|()| std::io::stderr().flush());
    }
}
