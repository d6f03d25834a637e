//! Whole programs under the instrument: `thalweg sim --seeds 1000 -- PROGRAM ARGS` runs a program that knows nothing of it.
//!
//! Seed and report travel by the environment. With `THALWEG_SIM_SEED=N` the simulated devices of the process are those of
//! a controlled machine, with the schedule and the faults of that seed, and a referee in front. What the referee finds is
//! appended, as it is found, to the file that `THALWEG_SIM_REPORT` names, else written to standard error. The thread that
//! opens the devices is the one that the schedule knows; other threads of the program are served as they come.
//!
//! A whole program has no end that we see, so what is left at its end is not looked at.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use thalweg_device::Driver;
use thalweg_device::check::{CheckedDriver, Finding};
use thalweg_device::sim::{SimConfig, SimDriver};

use super::run::Plan;
use crate::Result;

/// What separates findings in a report: a line of its own.
pub const FINDING_SEPARATOR: &str = "----";

/// What the environment asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckedProgram {
    /// `THALWEG_SIM_SEED`.
    pub seed: u64,
    /// `THALWEG_SIM_FAULTS=1`: lets things fail as well.
    pub faults: bool,
    /// `THALWEG_SIM_REPORT`.
    pub report: Option<PathBuf>,
}

impl CheckedProgram {
    /// A driver with that seed's schedule and faults, watched.
    pub(crate) fn driver(&self, config: SimConfig) -> Result<Arc<dyn Driver>> {
        let plan = Plan::of_seed(self.seed, self.faults);
        let machine = SimDriver::controlled(config, plan.schedule())?;
        machine.inject(&plan.faults);
        let referee = CheckedDriver::new(machine);
        let report = self.report.clone();
        referee.on_finding(move |finding| write(finding, report.as_deref()));
        Ok(referee)
    }
}

/// Nothing can be done about a report that cannot be written: the finding goes to standard error then.
fn write(finding: &Finding, report: Option<&std::path::Path>) {
    let text = format!("{finding}\n{FINDING_SEPARATOR}\n");
    let appended = report.is_some_and(|path| {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).is_ok()
    });
    if !appended {
        eprint!("{text}");
    }
}
