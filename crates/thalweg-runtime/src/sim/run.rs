//! One run: a machine, a sanitizer, the program, and the problems found by the end.
//!
//! This module and `sim` use each other: a check runs a program by calling this module, and a run passes the devices and channels
//! of the check to the program.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use thalweg_driver::Driver;
use thalweg_lock::Mutex;
use thalweg_sanitizer::{Finding, FindingKind, SanitizerDriver};
use thalweg_sim::{Choice, Schedule, SimConfig, SimDriver, Trace};

use super::plan::RunPlan;
use super::{Check, Gpu, Problem, panics};
use crate::{Device, Environment};

/// A program whose result is converted to `Result<(), String>`.
pub(super) type ProgramFn<'p> = dyn Fn(&Gpu) -> Result<(), String> + 'p;

/// The result of a program: `()`, or a `Result` whose error is a failure.
pub trait ProgramResult {
    /// Returns the text of the error, if the result is one.
    fn into_result(self) -> Result<(), String>;
}

impl ProgramResult for () {
    fn into_result(self) -> Result<(), String> {
        Ok(())
    }
}

impl<E: fmt::Display> ProgramResult for Result<(), E> {
    fn into_result(self) -> Result<(), String> {
        self.map_err(|error| error.to_string())
    }
}

/// The exit status of a process that ends because a run hangs: the same as after a panic.
const HANGS: i32 = 101;

/// The result of a run.
pub(super) struct Run {
    /// The problems, the most informative first.
    pub(super) problems: Vec<Problem>,
    /// The number of times that memory was freed without recording a use, by a program that an injected fault made return early.
    pub(super) unrecorded_after_fault: u64,
    /// Races that are only possible, not certain.
    pub(super) possible: Vec<Finding>,
    pub(super) trace: Trace,
    /// The deviations, in words.
    pub(super) notes: Vec<String>,
}

impl Run {
    pub(super) fn problem(&self) -> Option<&Problem> {
        self.problems.first()
    }

    /// Returns whether the run shows a problem like this one.
    pub(super) fn shows(&self, problem: &Problem) -> bool {
        self.problems.iter().any(|found| found.is_like(problem))
    }
}

impl Check {
    /// Returns the machine of a plan. If the deviations of its schedule are recorded, the machine describes them in `notes`.
    fn machine(
        &self,
        plan: &RunPlan,
        limit: Duration,
        report: &str,
        notes: &Arc<Mutex<Vec<String>>>,
    ) -> Arc<SimDriver> {
        let config = SimConfig {
            devices: self.devices,
            memory_bytes: self.memory_bytes,
            workers: 1,
            ..SimConfig::default()
        };
        // Only a plan with recorded deviations is ever reported in words, so a run that passes creates none.
        let schedule: Box<dyn Schedule> = match plan.deviations {
            Some(_) => Box::new(Noting { schedule: plan.schedule(), notes: Arc::clone(notes) }),
            None => plan.schedule(),
        };
        let machine = SimDriver::controlled(config, schedule)
            .unwrap_or_else(|error| panic!("no simulated machine could be made: {error}"));
        machine.set_order_only(self.order_only);
        let (seed, report) = (plan.seed, report.to_owned());
        let limited = machine.set_time_limit(limit, move |text| hangs(seed, text, &report));
        limited.expect("the machine of a check is controlled");
        machine
    }

    /// Runs the program once, within a time limit. `report` is printed if the run hangs for good.
    ///
    /// # Panics
    /// If the host has no memory for a machine: a check cannot continue without one.
    pub(super) fn run_once(
        &self,
        plan: &RunPlan,
        limit: Duration,
        report: &str,
        program: &ProgramFn<'_>,
    ) -> Run {
        let notes = Arc::new(Mutex::new(Vec::new()));
        let machine = self.machine(plan, limit, report, &notes);
        let sanitizer = SanitizerDriver::new(machine.clone());
        sanitizer.trace_drops(self.traces_drops);
        let struck = after_faults(&machine, &sanitizer);
        let environment = Environment { allocator: self.allocator.clone(), ..Environment::default() };
        let devices = Device::all_of(sanitizer.clone(), &environment)
            .unwrap_or_else(|error| panic!("the devices of a simulated machine did not open: {error}"));
        let used_before: Vec<u64> = (0..self.devices).map(|index| used_bytes(&machine, index)).collect();
        machine.inject(&plan.faults);
        if plan.holds_freed {
            devices.iter().for_each(Device::hold_back_freed);
        }
        let gpu = Gpu::new(devices, machine.clone(), sanitizer.clone(), plan.seed);
        let outcome = panics::catch(|| {
            let _current = gpu.device().make_current();
            program(&gpu)
        });
        gpu.devices.iter().for_each(Device::forget_kept);
        let stuck = machine.stuck();
        // Evaluated when it is needed: a fault may strike as late as in the wait for the last work.
        let is_faulted = || machine.faults_struck() > 0;
        let returned_early = is_faulted() && !matches!(outcome, Ok(Ok(())));
        let mut problems = Vec::new();
        match outcome {
            Err(panic) => problems.push(panic.into()),
            Ok(Err(text)) if !is_faulted() || stuck.is_some() => problems.push(Problem::Error(text)),
            // Work that is left by a program that was made to end cannot be waited for.
            Ok(_) if stuck.is_none() && !self.allows_leaks => {
                match panics::catch(|| leaks(&gpu, &used_before, &is_faulted)) {
                    Ok(found) => problems.extend(found),
                    Err(panic) => problems.push(panic.into()),
                }
            }
            Ok(_) => {}
        }
        let was_seen = gpu.seed_was_seen();
        // Dropping the devices is a part of the run: caches are emptied, streams and events destroyed.
        if let Err(panic) = panics::catch(move || drop(gpu)) {
            problems.push(panic.into());
        }
        machine.clear_time_limit().expect("the machine of a check is controlled");
        let excused_from = returned_early.then(|| struck.load(Ordering::Relaxed));
        let Sorted { certain, possible, excused } = self.sorted(sanitizer.findings(), excused_from);
        // A missing order explains an assertion that fails, so it comes first.
        problems.splice(0..0, certain);
        problems.splice(0..0, machine.misuse().map(Problem::HostFunction));
        put_first(&mut problems, stuck);
        if plan.holds_freed {
            problems.retain(Problem::is_use_after_free);
        }
        let notes = std::mem::take(&mut *notes.lock());
        let mut trace = machine.trace().unwrap_or_default();
        trace.observations += u64::from(was_seen);
        Run { problems, unrecorded_after_fault: excused, possible, trace, notes }
    }

    /// Sorts the findings of a run. A missing record does not count as a problem in findings from index `excused_from` on.
    fn sorted(&self, findings: Vec<Finding>, excused_from: Option<usize>) -> Sorted {
        let mut sorted = Sorted { certain: Vec::new(), possible: Vec::new(), excused: 0 };
        for (number, finding) in findings.into_iter().enumerate() {
            let is_record = matches!(finding.kind, FindingKind::MissingRecord | FindingKind::EarlyRecord);
            if is_record && excused_from.is_some_and(|from| number >= from) {
                sorted.excused += 1;
            } else if finding.is_possible() && !self.denies_possible_races {
                sorted.possible.push(finding);
            } else {
                sorted.certain.push(Problem::Finding(Box::new(finding)));
            }
        }
        sorted
    }
}

/// The findings of a run, sorted by certainty.
struct Sorted {
    certain: Vec<Problem>,
    /// Races that are only possible, not certain.
    possible: Vec<Finding>,
    /// The number of missing records after a fault had made the program return early.
    excused: u64,
}

/// Returns a counter of the findings before the first fault struck.
fn after_faults(machine: &Arc<SimDriver>, sanitizer: &SanitizerDriver) -> Arc<AtomicUsize> {
    let before = Arc::new(AtomicUsize::new(0));
    let (count, machine) = (Arc::clone(&before), Arc::clone(machine));
    sanitizer.on_finding(move |_| {
        if machine.faults_struck() == 0 {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    before
}

/// Moves a deadlock or livelock to the front, because it explains the other problems. If the program reports it itself, the
/// program's report is moved instead, because that names the line.
fn put_first(problems: &mut Vec<Problem>, stuck: Option<String>) {
    let Some(stuck) = stuck else { return };
    let reported = problems.iter().position(|problem| match problem {
        Problem::Error(text) | Problem::Panic { message: text, .. } => text.contains(&stuck),
        _ => false,
    });
    let first = match reported.map(|position| problems.remove(position)) {
        Some(panic @ Problem::Panic { .. }) => panic,
        Some(Problem::Error(text)) => Problem::Stuck(text),
        _ => Problem::Stuck(stuck),
    };
    problems.insert(0, first);
}

/// Reports a run that does not end when requested to, and ends the process.
fn hangs(seed: u64, text: &str, report: &str) {
    eprintln!(
        "simulated GPU: seed {seed} hangs\n\n{text}\nIt was told to end, and does not: a thread waits outside of the driver, \
         or ignores errors. The process ends here.\n\n{report}\nagain:    THALWEG_SEED={seed}"
    );
    std::process::exit(HANGS);
}

/// Returns the memory that is still held when the program is over and its work is complete.
fn leaks(gpu: &Gpu, used_before: &[u64], is_faulted: &dyn Fn() -> bool) -> Vec<Problem> {
    let mut found = Vec::new();
    for (device, used_before) in gpu.devices.iter().zip(used_before) {
        // A lost device does not respond any more; the memory that it held is not the program's fault.
        if device.synchronize().is_err() && is_faulted() {
            continue;
        }
        if let Err(error) = device.empty_cache() {
            found.push(Problem::Error(format!("at the end, memory could not be given back: {error}")));
        }
        let statistics = device.allocator().statistics();
        let (blocks, bytes) = (statistics.allocation.all.current, statistics.allocated_bytes.all.current);
        if blocks > 0 {
            found.push(Problem::Leak { device: device.to_string(), blocks, bytes });
        }
        let pending_bytes = statistics.active_bytes.all.current.saturating_sub(bytes);
        if pending_bytes > 0 {
            found.push(Problem::NeverFree { device: device.to_string(), bytes: pending_bytes });
        }
        let known_bytes = used_before + statistics.reserved_bytes.all.current;
        let lost_bytes = used_bytes(&gpu.machine, device.index()).saturating_sub(known_bytes);
        if lost_bytes > 0 {
            found.push(Problem::Lost { device: device.to_string(), bytes: lost_bytes });
        }
    }
    found.extend(pinned_leaks(gpu, is_faulted));
    found
}

/// Returns the leaks of pinned memory, which all devices share.
fn pinned_leaks(gpu: &Gpu, is_faulted: &dyn Fn() -> bool) -> Vec<Problem> {
    let allocator = gpu.device().host_allocator();
    let mut found = Vec::new();
    match allocator.empty_cache() {
        Err(_) if is_faulted() => return found,
        Err(error) => {
            found.push(Problem::Error(format!("at the end, pinned memory could not be given back: {error}")));
        }
        Ok(()) => {}
    }
    let statistics = allocator.statistics();
    let device = || "pinned memory".to_owned();
    let (pending, retired) = (statistics.pending, statistics.retired);
    if statistics.active_requests.current > pending.count {
        let blocks = statistics.active_requests.current - pending.count;
        let bytes = statistics.active_bytes.current.saturating_sub(pending.bytes);
        found.push(Problem::Leak { device: device(), blocks, bytes });
    }
    if pending.count > 0 {
        found.push(Problem::NeverFree { device: device(), bytes: pending.bytes });
    }
    // If an event fails, the end of a use is not known: under faults it is right to give up such memory.
    if retired.count > 0 && !is_faulted() {
        found.push(Problem::Lost { device: device(), bytes: retired.bytes });
    }
    found
}

/// Returns the bytes of a device's memory that the driver has allocated.
fn used_bytes(machine: &SimDriver, device: u32) -> u64 {
    machine.memory_info(device).map_or(0, |info| info.total_bytes - info.free_bytes)
}

/// The number of deviations that are described in words: a report does not show more.
const NOTES: usize = 16;

/// A schedule whose deviations from the default are described in words.
struct Noting {
    schedule: Box<dyn Schedule>,
    notes: Arc<Mutex<Vec<String>>>,
}

impl Schedule for Noting {
    fn next(&mut self, choices: &[Choice<'_>]) -> usize {
        let chosen = self.schedule.next(choices);
        if let (1.., Some(choice), Some(default)) = (chosen, choices.get(chosen), choices.first()) {
            let mut notes = self.notes.lock();
            if notes.len() < NOTES {
                notes.push(format!("{} goes on before {}", describe(choice), describe(default)));
            }
        }
        chosen
    }

    fn random(&mut self) -> u64 {
        self.schedule.random()
    }
}

fn describe(choice: &Choice<'_>) -> String {
    match &choice.label {
        Some(label) => format!("`{label}` ({})", choice.actor),
        None => choice.actor.to_string(),
    }
}
