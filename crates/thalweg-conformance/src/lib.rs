//! The suite that every [`Driver`] passes.
//!
//! The trait's contract is prose; the suite is the same contract as programs. The suite is plain code that runs on any driver, so
//! the simulator passes through it in every test run, a GPU on demand, and a driver written elsewhere can run it too. Every
//! requirement on the simulator is therefore also one on the GPU, and the other way round.
//!
//! A case is a function over a [`Fixture`]: a driver, one of its devices, and a few [kernels](Kernel) that exist both as PTX and
//! as host functions. It ends in `Ok`, or in [`Stop::Failed`] with the expected and the observed result, or in [`Stop::Skipped`]
//! with the reason (a device without virtual memory, say): a case that could not run never counts as passed. After each case the
//! runner waits for the device and does a round trip of its own, so if a case breaks the driver for later cases, that case is the
//! one reported.
//!
//! # How cases avoid time
//! Nothing here asserts a duration. If a case needs work that is *not done yet*, it blocks a stream with a *gate*, a host
//! function that waits until the case opens it. If a case needs work of one stream to advance while another is blocked, it first
//! checks whether the driver does that at all: CUDA guarantees no concurrency between streams, so a driver without it conforms,
//! and the case is skipped with that reason.
//!
//! # What is not here
//! - Cases that lose the device's context: [`destructive_cases`], which run last and only on request.
//! - Orderings that depend on the schedule: those are [`litmus`] programs.
//! - Speed.

mod attention;
mod calculations;
mod capture;
mod capture_rules;
mod case;
mod child;
mod code;
mod collectives;
mod compiled;
mod conditionals;
mod convolution;
mod copies;
mod devices;
mod events;
mod faults;
mod fixture;
mod graph_updates;
mod graphs;
mod handles;
mod kernels;
mod library;
pub mod litmus;
mod memory;
pub mod ranks;
mod sharing;
mod streams;
mod threads;
mod virtual_memory;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

pub use case::{Case, CaseResult, Stop};
pub(crate) use case::{group, place};
pub use child::holds_in_child;
pub use compiled::{ARCHITECTURES, compiler_accepts, compiler_reads, compiles_everything};
pub use fixture::Fixture;
pub(crate) use kernels::wait_us;
pub use kernels::{Kernel, KernelArguments, KernelSet, PTX, host_module};

use serde_json::json;
use thalweg_driver::{Driver, Error, Result};
use thalweg_sim::{SimConfig, SimDriver};

/// Makes a simulated machine for the suite, with 512 MiB of memory per device.
///
/// # Panics
/// If the system has not enough memory for it.
pub fn simulator(devices: u32, workers: usize) -> Arc<dyn Driver> {
    let config = SimConfig { devices, workers, memory_bytes: 512 << 20, ..SimConfig::default() };
    SimDriver::new(config).expect("a simulator of 512 MiB per device")
}

/// Returns all cases that leave the device as they found it.
pub fn cases() -> &'static [Case] {
    static ALL: OnceLock<Vec<Case>> = OnceLock::new();
    ALL.get_or_init(|| {
        [
            devices::CASES,
            handles::CASES,
            memory::CASES,
            virtual_memory::CASES,
            sharing::CASES,
            copies::CASES,
            streams::CASES,
            events::CASES,
            code::CASES,
            library::CASES,
            attention::CASES,
            convolution::CASES,
            calculations::CASES,
            collectives::CASES,
            capture::CASES,
            capture_rules::CASES,
            graphs::CASES,
            graph_updates::CASES,
            conditionals::CASES,
            threads::CASES,
        ]
        .concat()
    })
}

/// Returns the cases that lose the context of the device. On a GPU nothing in this process can use the device afterwards.
pub fn destructive_cases() -> &'static [Case] {
    faults::CASES
}

/// The result of one case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// The case.
    pub name: &'static str,
    /// The reason why the case did not pass; `None` if it passed.
    pub stop: Option<Stop>,
}

impl Line {
    /// Returns one JSON object on one line.
    pub fn to_json(&self, device: &str) -> String {
        let (value, reason) = match &self.stop {
            None => ("passed", ""),
            Some(Stop::Skipped(reason)) => ("skipped", reason.as_str()),
            Some(Stop::Failed(reason)) => ("failed", reason.as_str()),
        };
        json!({
            "name": format!("conformance/{}", self.name),
            "value": value,
            "unit": "verdict",
            "device": device,
            "reason": reason,
        })
        .to_string()
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.stop {
            None => write!(f, "passed   {}", self.name),
            Some(Stop::Skipped(reason)) => write!(f, "skipped  {:<58} {reason}", self.name),
            Some(Stop::Failed(reason)) => write!(f, "FAILED   {:<58} {reason}", self.name),
        }
    }
}

/// The results of all cases, in the order in which they ran.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Report {
    /// One line per case.
    pub lines: Vec<Line>,
}

impl Report {
    /// Returns the number of cases that passed.
    pub fn passed(&self) -> usize {
        self.lines.iter().filter(|line| line.stop.is_none()).count()
    }

    /// Returns the cases that were skipped.
    pub fn skipped(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| matches!(line.stop, Some(Stop::Skipped(_))))
    }

    /// Returns the cases that failed.
    pub fn failed(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| matches!(line.stop, Some(Stop::Failed(_))))
    }

    /// Returns whether no case failed.
    pub fn is_success(&self) -> bool {
        self.failed().next().is_none()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (skipped, failed) = (self.skipped().count(), self.failed().count());
        write!(f, "{} passed, {skipped} skipped, {failed} failed", self.passed())
    }
}

/// Runs all of [`cases`] on one device.
pub fn run_all(driver: &Arc<dyn Driver>, device: u32) -> Report {
    run_each(driver, device, &mut |_| ())
}

/// Runs all of [`cases`], and passes each line to `show` as soon as it is known.
pub fn run_each(driver: &Arc<dyn Driver>, device: u32, show: &mut dyn FnMut(&Line)) -> Report {
    let mut report = Report::default();
    let fixture = Fixture::new(Arc::clone(driver), device);
    for case in cases() {
        let stop = match &fixture {
            Ok(fixture) => attempt(|| (case.run)(fixture).and_then(|()| fixture.still_works())),
            Err(error) => Some(no_fixture(error)),
        };
        let line = Line { name: case.name, stop };
        show(&line);
        report.lines.push(line);
    }
    report
}

/// Runs all of [`destructive_cases`]. `open` returns a driver for each of them. If it returns the same driver again (a process
/// has only one CUDA driver), the cases after the first are skipped, since the device is lost.
pub fn run_destructive(
    open: &mut dyn FnMut() -> Result<Arc<dyn Driver>>,
    device: u32,
    show: &mut dyn FnMut(&Line),
) -> Report {
    let mut report = Report::default();
    for case in destructive_cases() {
        let stop = match open().and_then(|driver| Fixture::new(driver, device)) {
            Ok(fixture) => attempt(|| (case.run)(&fixture)),
            Err(error) if error.is_device_lost() => Some(Stop::Skipped(
                "the device was lost in an earlier case, and this process has no other".into(),
            )),
            Err(error) => Some(no_fixture(&error)),
        };
        let line = Line { name: case.name, stop };
        show(&line);
        report.lines.push(line);
    }
    report
}

fn no_fixture(error: &Error) -> Stop {
    Stop::Failed(format!("the suite could not set itself up: {error}"))
}

fn attempt(run: impl FnOnce() -> CaseResult) -> Option<Stop> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(outcome) => outcome.err(),
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("a panic without a message");
            Some(Stop::Failed(format!("no call may panic, but one did: {text}")))
        }
    }
}
