//! A bar on the terminal for what takes longer than a second. Elsewhere, and for what is quicker, nothing.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_millis(100);
const BAR_WIDTH: usize = 24;

/// Work of a known length, in any unit.
pub struct Progress {
    what: String,
    total: u64,
    terminal: bool,
    begun: Instant,
    drawn: Option<Instant>,
}

impl Progress {
    /// Begins with nothing done. With a `total` of 0, nothing is ever drawn.
    pub fn new(what: impl Into<String>, total: u64) -> Self {
        let terminal = std::io::stderr().is_terminal() && total > 0;
        Self { what: what.into(), total, terminal, begun: Instant::now(), drawn: None }
    }

    /// Says how much is done.
    pub fn show(&mut self, done: u64) {
        let is_due =
            || self.begun.elapsed() >= PATIENCE && self.drawn.is_none_or(|drawn| drawn.elapsed() >= INTERVAL);
        if !self.terminal || !is_due() {
            return;
        }
        self.drawn = Some(Instant::now());
        let done = done.min(self.total);
        let filled = (u128::from(done) * BAR_WIDTH as u128 / u128::from(self.total)) as usize;
        let bar = format!("{}{}", "█".repeat(filled), "░".repeat(BAR_WIDTH - filled));
        let percent = u128::from(done) * 100 / u128::from(self.total);
        self.draw(&format!("\r\x1b[K{bar} {percent:>3} % {}", self.what));
    }

    fn draw(&self, text: &str) {
        // A closed standard error is no reason to stop working.
        let _ = write!(std::io::stderr(), "{text}").and_then(|()| std::io::stderr().flush());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            self.draw("\r\x1b[K");
        }
    }
}
