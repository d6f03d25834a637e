//! A progress bar for loops of training (`tqdm`).
//!
//! ```
//! # use thalweg_nn::progress::Progress;
//! let mut progress = Progress::new(300);
//! for step in 1..=300 {
//!     // … a step of training …
//!     if progress.is_due(step) {
//!         // Reading a loss makes the host wait, so it is done only here.
//!         progress.show(step, &format!("loss {:.4}", 1.0 / step as f64));
//!     }
//! }
//! ```

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often the bar is drawn at most.
const INTERVAL: Duration = Duration::from_millis(100);

/// How often a line is written where standard error is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// How many columns a bar has at most, and at least where it is drawn.
const COLUMNS: [usize; 2] = [40, 5];

/// A bar on standard error that says how much is done, with figures of the caller's behind it. Where standard error is a terminal, it is
/// one line that is drawn again, at most every tenth of a second; elsewhere it is a line every ten seconds.
#[derive(Debug)]
pub struct Progress {
    total: u64,
    begun: Instant,
    drawn: Option<Instant>,
    is_terminal: bool,
    columns: usize,
}

impl Progress {
    /// Begins with nothing done of so many steps. The terminal has as many columns as the variable `COLUMNS` says, or 80.
    pub fn new(total: u64) -> Self {
        let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        Self {
            total,
            begun: Instant::now(),
            drawn: None,
            is_terminal: std::io::stderr().is_terminal(),
            columns: columns.unwrap_or(80),
        }
    }

    /// Returns the seconds since it began.
    pub fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Returns whether it is time to draw again: at the first step and the last one, and whenever enough time has passed.
    pub fn is_due(&self, done: u64) -> bool {
        let interval = if self.is_terminal { INTERVAL } else { LINE_INTERVAL };
        done == self.total || self.drawn.is_none_or(|drawn| drawn.elapsed() >= interval)
    }

    /// Draws that so many steps are done, with figures behind: "██░░ 120/300 loss 0.2500". Behind the last step the line stays.
    pub fn show(&mut self, done: u64, figures: &str) {
        self.drawn = Some(Instant::now());
        let line = self.line(done, figures);
        let (begin, end) = match self.is_terminal {
            true => ("\r\x1b[2K", if done >= self.total { "\n" } else { "" }),
            false => ("", "\n"),
        };
        let mut stderr = std::io::stderr();
        // A closed standard error is no reason to stop.
        let _closed = write!(stderr, "{begin}{line}{end}").and_then(|()| stderr.flush());
    }

    fn line(&self, done: u64, figures: &str) -> String {
        let total = self.total.to_string();
        let text = format!("{done:>width$}/{total} {figures}", width = total.len()).trim_end().to_owned();
        let [most, least] = COLUMNS;
        let room = self.columns.saturating_sub(text.chars().count() + 2).min(most);
        if room < least {
            return text;
        }
        let part = done.min(self.total) as f64 / self.total.max(1) as f64;
        let filled = if self.total == 0 { room } else { (part * room as f64) as usize };
        format!("{}{} {text}", "█".repeat(filled), "░".repeat(room - filled))
    }
}

#[cfg(test)]
mod tests {
    use super::Progress;

    fn line(total: u64, columns: usize, done: u64) -> String {
        Progress { columns, ..Progress::new(total) }.line(done, "loss 0.5")
    }

    #[test]
    fn the_bar_fills_the_room_that_the_figures_leave() {
        assert_eq!(line(200, 28, 100), "█████░░░░░ 100/200 loss 0.5");
        assert_eq!(line(200, 200, 0).matches('░').count(), 40);
        assert_eq!(line(200, 200, 200).matches('█').count(), 40);
        assert_eq!(line(200, 200, 900).matches('█').count(), 40, "more than all");
        assert_eq!(line(200, 20, 7), "  7/200 loss 0.5", "no room for a bar");
        assert_eq!(line(0, 80, 0).matches('█').count(), 40, "nothing to do is done");
    }

    #[test]
    fn the_first_step_and_the_last_are_due() {
        let mut progress = Progress::new(3);
        assert!(progress.is_due(1));
        progress.show(1, "");
        assert!(!progress.is_due(2), "it was just drawn");
        assert!(progress.is_due(3));
    }
}
