//! `thalweg memory check`: checks a snapshot against limits, for CI.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgGroup, Args};
use serde_json::json;
use thalweg::memory_tools::analysis::{Summary, summarise};

use super::files;
use super::size::{self, size};
use crate::output::{Failure, Output};

/// Checks limits, for CI: one line, and exit status 1 if one is passed
#[derive(Args)]
#[command(after_help = "\
Example:
  thalweg memory check snapshot.pickle --max-reserved 20GiB --max-growth 2%")]
#[command(override_usage = "thalweg memory check [OPTIONS] <SNAPSHOT>...")]
#[command(group = ArgGroup::new("limits").required(true).multiple(true))]
pub struct CheckArgs {
    /// Files that _dump_snapshot wrote, of one rank or several
    #[arg(required = true, value_name = "SNAPSHOT")]
    snapshots: Vec<PathBuf>,
    /// The most that may be reserved at once: 20GiB
    #[arg(long, value_name = "SIZE", group = "limits", value_parser = size::parse)]
    max_reserved: Option<u64>,
    /// The share by which the highest live memory of the last quarter of the trace may exceed that of the second: 2%
    #[arg(long, value_name = "SHARE", group = "limits", value_parser = size::parse_percent)]
    max_growth: Option<f64>,
    /// One JSON object per device
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &CheckArgs) -> Result<ExitCode, Failure> {
    let output = Output::standard();
    let mut is_ok = true;
    files::each(&arguments.snapshots, |path, recording| {
        let devices = recording.devices();
        if devices.is_empty() {
            return Err(Failure(format!("{path}: there is no memory of any device in it to check")));
        }
        for device in devices {
            let summary = summarise(recording, device);
            let passed = arguments.passed(&summary);
            is_ok &= passed.is_empty();
            if arguments.json {
                output.json(&json!({
                    "snapshot": path,
                    "device": device,
                    "ok": passed.is_empty(),
                    "starts_empty": summary.start.is_complete(),
                    "peak_reserved_bytes": summary.peak_reserved_bytes,
                    "growth": summary.growth,
                    "why": passed.join("; "),
                }));
            } else if passed.is_empty() {
                output.text(&format!("ok: {path}, device {device}: {}\n", figures(&summary)));
            } else {
                output.text(&format!("FAILED: {path}, device {device}: {}\n", passed.join("; ")));
            }
        }
        Ok(())
    })?;
    Ok(if is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn figures(summary: &Summary) -> String {
    let growth = summary.growth.map_or(String::new(), |growth| format!(", growth {:+.1} %", 100.0 * growth));
    let part = if summary.start.is_complete() { "" } else { " in the recorded part" };
    format!("{} reserved at most{part}{growth}", size(summary.peak_reserved_bytes))
}

impl CheckArgs {
    /// Returns a message for each limit that is exceeded.
    fn passed(&self, summary: &Summary) -> Vec<String> {
        let mut passed = Vec::new();
        if let Some(limit) = self.max_reserved
            && summary.peak_reserved_bytes > limit
        {
            let reserved = summary.peak_reserved_bytes;
            passed.push(format!(
                "{} ({reserved} bytes) reserved at most, {} allowed",
                size(reserved),
                size(limit)
            ));
        }
        match (self.max_growth, summary.growth) {
            (Some(limit), Some(growth)) if growth > limit => passed.push(format!(
                "live memory grew by {:.2} % from the second quarter of the trace to the last, {:.2} % allowed",
                100.0 * growth,
                100.0 * limit
            )),
            (Some(_), None) => passed.push("the trace is too short to tell how live memory grows".into()),
            _ => {}
        }
        passed
    }
}
