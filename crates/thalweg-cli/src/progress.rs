//! A bar on standard error for work that takes longer than a second, and only where that is a terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How long work may take before it is reported.
const PATIENCE: Duration = Duration::from_secs(1);

/// Work of a known length, in any unit.
pub struct Progress {
    what: String,
    total: u64,
    begun: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Begins with nothing done. With a `total` of 0, nothing is ever drawn.
    pub fn new(what: impl Into<String>, total: u64) -> Self {
        Self { what: what.into(), total, begun: Instant::now(), bar: None }
    }

    /// Says how much is done.
    pub fn show(&mut self, done: u64) {
        if self.bar.is_none() && self.total > 0 && self.begun.elapsed() >= PATIENCE {
            let style = ProgressStyle::with_template("{bar:24} {percent:>3} % {msg}, {eta} left")
                .expect("the template is valid")
                .progress_chars("██░");
            self.bar = Some(ProgressBar::new(self.total).with_style(style).with_message(self.what.clone()));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(done.min(self.total));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
