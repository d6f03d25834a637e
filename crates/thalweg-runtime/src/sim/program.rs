//! Complete programs under the instrument: `thalweg sim --seeds 1000 -- PROGRAM ARGS` runs a program that needs no changes.
//!
//! Seed and report are passed in environment variables. With `THALWEG_SIM_SEED=N` the simulated devices of the process are those
//! of a controlled machine, with the schedule and the faults of that seed, wrapped by a sanitizer. Each finding of the sanitizer
//! is appended immediately to the file that `THALWEG_SIM_REPORT` names, or else written to standard error. The schedule controls
//! the thread that opens the devices; other threads of the program take part from their first call on. `THALWEG_SIM_TIMEOUT` is
//! the number of seconds that the process may take. With `THALWEG_SIM_ORDER_ONLY=1` no command touches memory. A process that may
//! have observed a decision of the schedule then leaves a file next to the report whose name ends in [`OBSERVED_SUFFIX`]: without
//! this file, other seeds would have had the same result. A process that has opened the devices leaves a file whose name ends in
//! [`OPENED_SUFFIX`]. With `THALWEG_SIM_QUARANTINE=1` freed memory is held back, and only uses of freed memory are reported
//! ([`Check::quarantine`](super::Check::quarantine)).
//!
//! The end of a complete program is not visible to the instrument, so memory that is left at its end is not checked.

use std::fmt::Display;
use std::io::Write;
use std::sync::Arc;

use thalweg_driver::Driver;
use thalweg_sanitizer::{FindingKind, SanitizerDriver};
use thalweg_sim::{SimConfig, SimDriver};

use super::plan::RunPlan;
use crate::Result;
use crate::environment::CheckedProgram;

/// The line that separates findings in a report.
pub const FINDING_SEPARATOR: &str = "----";

/// The suffix of the file that a process leaves next to the report if its calls may depend on the schedule.
pub const OBSERVED_SUFFIX: &str = ".observed";

/// The suffix of the file that a process leaves next to the report if it has opened the simulated devices.
pub const OPENED_SUFFIX: &str = ".opened";

/// The prefix of a finding in a report that is not a failure: a race that is only possible.
pub const POSSIBLE_PREFIX: &str = "note: ";

/// The exit status of a process that was ended because it took too long, as in `timeout(1)`.
pub const TIMED_OUT: i32 = 124;

impl CheckedProgram {
    /// Returns a driver with that seed's schedule and faults, watched by a sanitizer.
    pub(crate) fn driver(&self, config: SimConfig) -> Result<Arc<dyn Driver>> {
        let plan = RunPlan::of_seed(self.seed, self.faults);
        let machine = SimDriver::controlled(config, plan.schedule())?;
        machine.inject(&plan.faults);
        if let Some(report) = &self.report {
            let _ = std::fs::write(sibling_path(report, OPENED_SUFFIX), "");
        }
        machine.set_order_only(self.order_only);
        if let Some(limit) = self.time_limit {
            machine.set_time_limit(limit, |text| {
                eprintln!("simulated GPU: {text}");
                std::process::exit(TIMED_OUT);
            })?;
        }
        if let (true, Some(report)) = (self.order_only, &self.report) {
            let companion = sibling_path(report, OBSERVED_SUFFIX);
            // Without this file the other seeds are skipped, so the failure to write it may lose findings, but reports nothing
            // wrong.
            machine.on_observation(move || drop(std::fs::write(companion, "")))?;
        }
        let (report, quarantine) = (self.report.clone(), self.quarantine);
        if !quarantine {
            let own = report.clone();
            machine.on_stuck(move |text| write(&text, report.as_deref()))?;
            machine.on_misuse(move |text| write(&text, own.as_deref()));
        }
        let sanitizer = SanitizerDriver::new(machine);
        let report = self.report.clone();
        sanitizer.on_finding(move |finding| match finding.is_possible() {
            _ if quarantine && finding.kind != FindingKind::UseAfterFree => {}
            true => write(&format!("{POSSIBLE_PREFIX}{finding}"), report.as_deref()),
            false => write(finding, report.as_deref()),
        });
        Ok(sanitizer)
    }
}

/// Returns the path of a file next to the report, with this suffix.
fn sibling_path(report: &std::path::Path, suffix: &str) -> std::path::PathBuf {
    let mut path = report.to_owned().into_os_string();
    path.push(suffix);
    path.into()
}

/// Writes a finding to the report, or to standard error if the report cannot be written.
fn write(finding: &dyn Display, report: Option<&std::path::Path>) {
    let text = format!("{finding}\n{FINDING_SEPARATOR}\n");
    let appended = report.is_some_and(|path| {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).is_ok()
    });
    if !appended {
        eprint!("{text}");
    }
}
