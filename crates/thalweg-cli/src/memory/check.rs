//! `thalweg memory check`: whether a snapshot keeps to limits, for CI.

use std::process::ExitCode;

use thalweg::memory::analysis::{Summary, summarise};

use super::arguments::Arguments;
use super::size::{self, size};
use super::{Failure, files};
use crate::UsageError;
use crate::output::{Object, Output};

/// What may not be passed.
struct Limits {
    reserved_bytes: Option<u64>,
    growth: Option<f64>,
}

pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    arguments.only(&["--max-reserved", "--max-growth"])?;
    let limits = Limits {
        reserved_bytes: arguments.read("--max-reserved", size::EXPECTED, size::parse)?,
        growth: arguments.read(
            "--max-growth",
            "percents with their sign, such as 2%",
            size::parse_percent,
        )?,
    };
    if limits.reserved_bytes.is_none() && limits.growth.is_none() {
        return Err(UsageError("check what? give --max-reserved, --max-growth or both".into()).into());
    }
    let output = Output::standard();
    let mut is_ok = true;
    files::each(arguments.files()?, |path, recording| {
        let devices = recording.devices();
        if devices.is_empty() {
            return Err(Failure::File(format!("{path}: there is no memory of any device in it to check")));
        }
        for device in devices {
            let summary = summarise(recording, device);
            let passed = limits.passed(&summary);
            is_ok &= passed.is_empty();
            if arguments.has("--json") {
                let object = Object::new()
                    .string("snapshot", path)
                    .integer("device", device as u64)
                    .boolean("ok", passed.is_empty())
                    .boolean("starts_empty", summary.start.is_complete())
                    .integer("peak_reserved_bytes", summary.peak_reserved_bytes);
                let object = match summary.growth {
                    Some(growth) => object.number("growth", growth),
                    None => object.null("growth"),
                };
                output.text(&object.string("why", &passed.join("; ")).finish());
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

impl Limits {
    /// What each limit that is passed has to say.
    fn passed(&self, summary: &Summary) -> Vec<String> {
        let mut passed = Vec::new();
        if let Some(limit) = self.reserved_bytes
            && summary.peak_reserved_bytes > limit
        {
            let reserved = summary.peak_reserved_bytes;
            passed.push(format!(
                "{} ({reserved} bytes) reserved at most, {} allowed",
                size(reserved),
                size(limit)
            ));
        }
        match (self.growth, summary.growth) {
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
