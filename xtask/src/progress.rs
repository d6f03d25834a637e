//! A progress bar on standard error: redrawn in place on a terminal, and printed as occasional lines elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(100);
const LINE_INTERVAL: Duration = Duration::from_secs(10);
const BAR_WIDTH: usize = 30;

/// Work of a known number of steps.
pub struct Progress {
    what: &'static str,
    total: usize,
    terminal: bool,
    drawn: Instant,
}

impl Progress {
    /// Creates a bar with no steps done.
    pub fn new(what: &'static str, total: usize) -> Self {
        Self { what, total, terminal: std::io::stderr().is_terminal(), drawn: Instant::now() }
    }

    /// Shows the number of steps done.
    pub fn show(&mut self, done: usize) {
        let interval = if self.terminal { INTERVAL } else { LINE_INTERVAL };
        if done < self.total && self.drawn.elapsed() < interval {
            return;
        }
        self.drawn = Instant::now();
        let filled = (BAR_WIDTH * done).checked_div(self.total).unwrap_or(BAR_WIDTH);
        let bar = format!("{}{}", "█".repeat(filled), "░".repeat(BAR_WIDTH - filled));
        let end = if self.terminal && done < self.total { "\r" } else { "\n" };
        // A closed standard error is not a reason to stop working.
        let _ = write!(std::io::stderr(), "{bar} {done}/{} {}{end}", self.total, self.what);
    }
}
