//! Whole programs under the instrument: `thalweg sim --seeds 1000 -- PROGRAM ARGS` runs a program that knows nothing of it.
//!
//! Seed and report travel by the environment. With `THALWEG_SIM_SEED=N` the simulated devices of the process are those of
//! a controlled machine, with the schedule and the faults of that seed, and a sanitizer in front. What the sanitizer finds is
//! appended, as it is found, to the file that `THALWEG_SIM_REPORT` names, else written to standard error. The thread that
//! opens the devices is the one that the schedule knows; other threads of the program take part from their first call on.
//! `THALWEG_SIM_TIMEOUT` is how many seconds the process may take. With `THALWEG_SIM_ORDER_ONLY=1` no command touches memory, and
//! a process that may have seen something of what the schedule decides leaves a file beside the report whose name ends in
//! [`OBSERVED_SUFFIX`]: without it, other seeds would have given the same. A process that has opened the devices leaves one whose name ends
//! in [`OPENED_SUFFIX`]. With `THALWEG_SIM_QUARANTINE=1` freed memory is held
//! back, and uses of freed memory are all that is reported ([`Check::quarantine`](super::Check::quarantine)).
//!
//! A whole program has no end that we see, so what is left at its end is not looked at.

use std::fmt::Display;
use std::io::Write;
use std::sync::Arc;

use thalweg_driver::Driver;
use thalweg_sanitizer::{FindingKind, SanitizerDriver};
use thalweg_sim::{SimConfig, SimDriver};

use super::plan::RunPlan;
use crate::Result;
use crate::environment::CheckedProgram;

/// The separator of findings in a report: a line of its own.
pub const FINDING_SEPARATOR: &str = "----";

/// The suffix of the report's companion, which a process leaves whose calls may depend on the schedule.
pub const OBSERVED_SUFFIX: &str = ".observed";

/// The suffix of another companion, which a process leaves that has opened the simulated devices.
pub const OPENED_SUFFIX: &str = ".opened";

/// The prefix of a finding that is not a failure in a report: a race that is possible and no more.
pub const POSSIBLE_PREFIX: &str = "note: ";

/// The status of a process that was ended because it took too long: that of `timeout(1)`.
pub const TIMED_OUT: i32 = 124;

impl CheckedProgram {
    /// Returns a driver with that seed's schedule and faults, watched.
    pub(crate) fn driver(&self, config: SimConfig) -> Result<Arc<dyn Driver>> {
        let plan = RunPlan::of_seed(self.seed, self.faults);
        let machine = SimDriver::controlled(config, plan.schedule())?;
        machine.inject(&plan.faults);
        if let Some(report) = &self.report {
            let _ = std::fs::write(beside(report, OPENED_SUFFIX), "");
        }
        machine.set_order_only(self.order_only);
        if let Some(limit) = self.time_limit {
            machine.set_time_limit(limit, |text| {
                eprintln!("simulated GPU: {text}");
                std::process::exit(TIMED_OUT);
            })?;
        }
        if let (true, Some(report)) = (self.order_only, &self.report) {
            let companion = beside(report, OBSERVED_SUFFIX);
            // Without it the other seeds are left out: said too little rather than too much.
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

/// Returns the path of a companion of the report.
fn beside(report: &std::path::Path, suffix: &str) -> std::path::PathBuf {
    let mut path = report.to_owned().into_os_string();
    path.push(suffix);
    path.into()
}

/// Writes a finding to the report; to standard error where the report cannot be written.
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
