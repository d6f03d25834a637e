//! A progress bar for training loops (`tqdm`), and for other long work ([`Progress::transient`]).
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

/// The time that work may take before a transient bar appears.
const PATIENCE: Duration = Duration::from_secs(1);

/// The minimum time between two updates of the bar.
const INTERVAL: Duration = Duration::from_millis(100);

/// The interval at which a line is written if standard error is not a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// The maximum number of columns of a bar, and the minimum for it to be drawn.
const COLUMNS: [usize; 2] = [40, 5];

/// A progress bar on standard error, followed by the caller's figures. If standard error is a terminal, it is one line that is
/// redrawn, at most every tenth of a second; otherwise it is a line every ten seconds.
#[derive(Debug)]
pub struct Progress {
    total: u64,
    begun: Instant,
    drawn: Option<Instant>,
    is_terminal: bool,
    columns: usize,
    /// The name of the work, for a bar that is erased when it is dropped.
    transient: Option<String>,
}

impl Progress {
    /// Begins a bar for this many steps. The width of the terminal is the variable `COLUMNS`, or 80.
    pub fn new(total: u64) -> Self {
        let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        Self {
            total,
            begun: Instant::now(),
            drawn: None,
            is_terminal: std::io::stderr().is_terminal(),
            columns: columns.unwrap_or(80),
            transient: None,
        }
    }

    /// Begins a bar for work that may be short, in any unit: it appears after one second, and only if standard error is a
    /// terminal. It shows the name of the work and the remaining time, and is erased when it is dropped.
    pub fn transient(what: impl Into<String>, total: u64) -> Self {
        Self { transient: Some(what.into()), ..Self::new(total) }
    }

    /// Returns the seconds since the beginning.
    pub fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Returns whether the bar must be drawn again: at the first step and at the last one, and whenever enough time has passed. A
    /// transient bar is drawn only if it may appear.
    pub fn is_due(&self, done: u64) -> bool {
        let is_early = self.total == 0 || self.begun.elapsed() < PATIENCE;
        if self.transient.is_some() && (is_early || !self.is_terminal) {
            return false;
        }
        let interval = if self.is_terminal { INTERVAL } else { LINE_INTERVAL };
        done == self.total || self.drawn.is_none_or(|drawn| drawn.elapsed() >= interval)
    }

    /// Draws the bar for this many finished steps, without figures, if it is due.
    pub fn advance(&mut self, done: u64) {
        if self.is_due(done) {
            self.show(done, "");
        }
    }

    /// Draws the bar for this many finished steps, followed by figures: "██░░ 120/300 loss 0.2500". After the last step the line
    /// is kept.
    pub fn show(&mut self, done: u64, figures: &str) {
        self.drawn = Some(Instant::now());
        let stays = self.transient.is_none() && done >= self.total;
        let (begin, end) = match self.is_terminal {
            true => ("\r\x1b[2K", if stays { "\n" } else { "" }),
            false => ("", "\n"),
        };
        write(&format!("{begin}{}{end}", self.line(done, figures)));
    }

    /// Returns the line that [`show`](Self::show) draws.
    pub fn line(&self, done: u64, figures: &str) -> String {
        self.line_after(self.seconds(), done, figures)
    }

    fn line_after(&self, seconds: f64, done: u64, figures: &str) -> String {
        let part = done.min(self.total) as f64 / self.total.max(1) as f64;
        let text = match &self.transient {
            Some(what) => {
                let left = seconds / part * (1.0 - part);
                let left = if left.is_finite() { format!(", {left:.0} s left") } else { String::new() };
                format!("{:>3.0} % {what}{left}", 100.0 * part)
            }
            None => format!("{done:>width$}/{} {figures}", self.total, width = self.total.to_string().len()),
        };
        let text = text.trim_end();
        let [most, least] = COLUMNS;
        let room = self.columns.saturating_sub(text.chars().count() + 2).min(most);
        if room < least {
            return text.to_owned();
        }
        let filled = if self.total == 0 { room } else { (part * room as f64) as usize };
        format!("{}{} {text}", "█".repeat(filled), "░".repeat(room - filled))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.transient.is_some() && self.drawn.is_some() {
            write("\r\x1b[2K");
        }
    }
}

/// Writes to standard error. Errors, such as a closed stream, are ignored.
fn write(text: &str) {
    let mut stderr = std::io::stderr();
    let _closed = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::Progress;

    fn line(total: u64, columns: usize, done: u64) -> String {
        let mut progress = Progress::new(total);
        progress.columns = columns;
        progress.line(done, "loss 0.5")
    }

    #[test]
    fn a_transient_bar_says_what_is_under_way() {
        let mut progress = Progress::transient("of the rows", 50);
        progress.columns = 30;
        assert_eq!(progress.line(0, ""), "░░░░░░░░░░░   0 % of the rows");
        assert_eq!(progress.line_after(30.0, 20, ""), " 40 % of the rows, 45 s left", "no room for a bar");
        assert_eq!(progress.line(50, "").matches('█').count(), 0, "nor here");
        progress.is_terminal = false;
        assert!(!progress.is_due(50), "elsewhere nothing is drawn");
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
