//! Says on standard error which part is under way: one line that is written over where it is a terminal, a line a part where not.

use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often the line is written again at most.
const INTERVAL: Duration = Duration::from_millis(100);

#[derive(Default)]
pub struct Progress {
    part: Cell<&'static str>,
    written: Cell<Option<Instant>>,
}

impl Progress {
    /// A part begins.
    pub fn begin(&self, part: &'static str, number: usize, parts: usize) {
        self.part.set(part);
        self.written.set(Some(Instant::now()));
        let text = format!("[{number}/{parts}] {part} …");
        if std::io::stderr().is_terminal() { line(&text) } else { eprintln!("{text}") }
    }

    /// So much of it is done.
    pub fn show(&self, done: usize, all: usize) {
        let is_due = self.written.get().is_none_or(|written| written.elapsed() >= INTERVAL);
        if is_due && std::io::stderr().is_terminal() {
            self.written.set(Some(Instant::now()));
            line(&format!("{} … {}%", self.part.get(), 100 * done / all));
        }
    }

    /// The line goes.
    pub fn end(&self) {
        if std::io::stderr().is_terminal() {
            line("");
        }
    }
}

/// Writes a line over the last one. A closed standard error is no reason to stop.
fn line(text: &str) {
    let mut stderr = std::io::stderr();
    let _ = write!(stderr, "\r\x1b[2K{text}").and_then(|()| stderr.flush());
}
