//! `thalweg doctor`: what this machine has, what is missing and how to get it, and whether the installed parts work.
//!
//! Each examined item is a [`Finding`]; the text and the JSON are two ways to print the same findings. They are printed
//! immediately, so that the last line shows which device hangs.
//!
//! # What counts
//! A finding is `ok`, `missing` or `FAILED`. A missing item has a cost, which the finding explains, but a machine without a GPU
//! is in order. The exit status is 1 only if something was found and does not work: a GPU that computes wrongly, a library that
//! the user named and that does not load, a cache folder that cannot be written.
//!
//! The command changes nothing: it writes a file into the cache folder as a test, and removes it.

mod devices;
mod kernels;
mod libraries;
mod self_test;

use std::process::ExitCode;

use thalweg::driver::cuda::SearchEnvironment;

use anstyle::AnsiColor;
use clap::Args;
use serde_json::{Map, Value, json};

use crate::output::{Output, paint};

/// Shows what this machine has and what is missing, and tests each device
#[derive(Args)]
#[command(after_help = "\
Shows the devices, the libraries and the kernel caches of this machine, says
what is missing and how to get it, and tests each device for about a second.

Examples:
  thalweg doctor
  thalweg doctor --json | grep '\"state\":\"failed\"'

The exit status is 0 if everything that was found works (no GPU is fine), and 1
if not.")]
pub struct DoctorArgs {
    /// One JSON object per line: name, value, unit, state and what else matters
    #[arg(long)]
    json: bool,
    /// Shows every place where a missing library was looked for
    #[arg(long, short)]
    verbose: bool,
}

/// The state of an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ItemStatus {
    /// The item exists and works.
    Ok,
    /// The item does not exist.
    Missing,
    /// The item exists and does not work.
    Failed,
}

impl ItemStatus {
    fn word(self) -> (&'static str, AnsiColor) {
        match self {
            Self::Ok => ("ok", AnsiColor::Green),
            Self::Missing => ("missing", AnsiColor::Yellow),
            Self::Failed => ("FAILED", AnsiColor::Red),
        }
    }
}

/// The result of examining one item.
struct Finding {
    state: ItemStatus,
    /// The item's name for scripts: lower case with underscores.
    name: String,
    /// The item's name for people.
    subject: String,
    value: Value,
    unit: &'static str,
    /// The state, in a sentence.
    text: String,
    /// Further lines for people: what to do, details.
    notes: Vec<String>,
    /// Further members for scripts.
    members: Map<String, Value>,
}

impl Finding {
    fn new(
        state: ItemStatus,
        name: impl Into<String>,
        subject: impl Into<String>,
        text: impl Into<String>,
    ) -> Self {
        Self {
            state,
            name: name.into(),
            subject: subject.into(),
            value: Value::Null,
            unit: "",
            text: text.into(),
            notes: Vec::new(),
            members: Map::new(),
        }
    }

    fn value(mut self, value: impl Into<Value>, unit: &'static str) -> Self {
        (self.value, self.unit) = (value.into(), unit);
        self
    }

    fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    fn member(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.members.insert(key.to_owned(), value.into());
        self
    }

    fn json(&self) -> Value {
        let mut object = json!({
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "state": self.state.word().0.to_lowercase(),
            "text": self.text.trim_start(),
        });
        object.as_object_mut().expect("it was made as one").extend(self.members.clone());
        object
    }
}

/// A report, which prints findings immediately and counts them.
struct Report {
    output: Output,
    json: bool,
    failed: usize,
    missing: usize,
}

/// Columns: the state's word, then the subject.
const STATE_WIDTH: usize = 8;
const SUBJECT_WIDTH: usize = 13;
const INDENT: usize = 2 + STATE_WIDTH + SUBJECT_WIDTH + 1;

impl Report {
    fn heading(&self, text: &str) {
        if !self.json {
            self.output.text(&format!("\n{text}\n"));
        }
    }

    fn add(&mut self, finding: &Finding) {
        self.failed += usize::from(finding.state == ItemStatus::Failed);
        self.missing += usize::from(finding.state == ItemStatus::Missing);
        if self.json {
            return self.output.json(&finding.json());
        }
        let (word, colour) = finding.state.word();
        let state = paint(colour, word, STATE_WIDTH);
        self.output.line(INDENT, &format!("  {state}{:<SUBJECT_WIDTH$} {}", finding.subject, finding.text));
        for note in &finding.notes {
            self.output.line(INDENT, &format!("{:INDENT$}{note}", ""));
        }
    }

    /// Returns the last line, and the exit status.
    fn finish(&self) -> ExitCode {
        let (failed, missing) = (self.failed, self.missing);
        let text = match (failed, missing) {
            (0, 0) => "everything is there and works".to_owned(),
            (0, _) => format!("what was found works; {missing} missing, see above for what each would bring"),
            _ => format!("{failed} FAILED, {missing} missing: see above"),
        };
        if self.json {
            let state = if failed == 0 { "ok" } else { "failed" };
            self.output.json(&json!({
                "name": "doctor",
                "value": failed,
                "unit": "failures",
                "state": state,
                "missing": missing,
            }));
        } else {
            self.output.text("\n");
            self.output.line(0, &text);
        }
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Runs the command.
pub fn run(arguments: &DoctorArgs) -> ExitCode {
    let DoctorArgs { json, verbose } = *arguments;
    let mut report = Report { output: Output::standard(), json, failed: 0, missing: 0 };
    if !json {
        report.output.text(&format!("thalweg {} on {}\n", env!("CARGO_PKG_VERSION"), machine()));
    }
    let environment = SearchEnvironment::from_process();
    report.heading("Libraries");
    let libraries = libraries::examine(&environment, verbose, &mut report);
    report.heading("Devices");
    let devices = devices::examine(&mut report);
    report.heading("Kernels");
    kernels::examine(thalweg::Environment::get(), &libraries, &mut report);
    report.heading("Self-test");
    for device in &devices {
        self_test::run(device, &mut report);
    }
    report.finish()
}

/// Returns the host, in a few words.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let plural = if cores == 1 { "" } else { "s" };
    format!("{} {}, {cores} CPU{plural}", std::env::consts::OS, std::env::consts::ARCH)
}

/// Returns a number of bytes for people: with at least three digits, in the largest binary unit that keeps it above 1.
fn bytes(count: u64) -> String {
    let mut value = count as f64;
    for unit in ["bytes", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "bytes" { format!("{count} bytes") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_are_written_in_the_fitting_unit() {
        let cases = [(0, "0 bytes"), (1023, "1023 bytes"), (1 << 20, "1.0 MiB"), (81559 << 20, "79.6 GiB")];
        for (count, text) in cases {
            assert_eq!(super::bytes(count), text);
        }
    }
}
