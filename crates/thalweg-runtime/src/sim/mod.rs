//! The simulated GPU as a testing instrument: runs a program under many schedules and faults, and reports its errors.
//!
//! ```
//! use thalweg_runtime::sim;
//!
//! // Shown with the runtime's own words; tensors, graphs and allocators work the same way.
//! sim::check(|gpu| -> thalweg_runtime::Result<()> {
//!     let side = thalweg_runtime::Stream::new(gpu.device())?;
//!     side.wait_stream(&gpu.device().current_stream())?;
//!     side.synchronize()
//! });
//! ```
//!
//! Each run has a seed, and the seed decides everything that CUDA leaves open: which stream advances, which host thread runs,
//! whether a query finds the work complete, and which calls fail. Four things are watched in every run:
//!
//! - the *order* of all accesses, by a sanitizer that knows only what CUDA guarantees, and nothing about our implementation
//!   ([`thalweg_sanitizer`]): it sees a missing wait even if this schedule happened to run in the right order;
//! - the *lifetime* of every block, graph input and mapping, by the same sanitizer;
//! - the program's own assertions, under schedules that are designed to break them;
//! - the state at the end: memory that was not freed, uses that never end, and memory that is lost.
//!
//! A failing seed is run twice (a program whose two runs differ is reported), then its schedule and its faults are *shrunk*: the
//! remaining parts show the failure, and removing any one of them makes it disappear.
//!
//! # What it does not do
//! It cannot see inside a kernel (races between its threads), and it does not model time. A program whose host threads were not
//! started by [`Gpu::spawn`] runs and is watched, but the seed does not decide how its threads interleave.

mod failure;
mod gpu;
mod handover;
mod panics;
mod plan;
mod program;
mod run;
mod shrink;

use std::ops::Range;
use std::time::{Duration, Instant};

pub use self::failure::{Failure, Problem};
pub use self::gpu::{Gpu, Thread};
pub use self::handover::{Flag, Mutex, MutexGuard, Receiver, Sender};
pub use self::program::{FINDING_SEPARATOR, OBSERVED_SUFFIX, OPENED_SUFFIX, POSSIBLE_PREFIX, TIMED_OUT};
pub use self::run::ProgramResult;
pub use crate::environment::CheckedProgram;

use self::plan::RunPlan;
use self::run::{ProgramFn, Run};
use thalweg_memory::Settings;
use thalweg_sim::Trace;

use crate::Environment;

/// The number of seeds that a check tries by default.
const SEEDS: u64 = 100;

/// The number of runs that the shrinking of one failure may take.
const SHRINK_RUNS: usize = 400;
const SHRINK_TIME: Duration = Duration::from_secs(30);

/// The time of shrinking after which the unshrunk report is printed.
const SILENCE: Duration = Duration::from_secs(1);

/// The default time limit of one run.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Runs `program` under many seeds on one simulated GPU, with the settings of [`Check::new`].
///
/// # Panics
/// If a seed fails, with the report, so that a test fails.
#[track_caller]
pub fn check<O: ProgramResult>(program: impl Fn(&Gpu) -> O) {
    Check::new().run(program);
}

/// The settings of a check.
#[derive(Clone, Debug)]
pub struct Check {
    seeds: Range<u64>,
    devices: u32,
    memory_bytes: u64,
    faults: bool,
    stalls: bool,
    allows_leaks: bool,
    shrinks: bool,
    order_only: bool,
    denies_possible_races: bool,
    has_quarantine: bool,
    time_limit: Duration,
    allocator: Settings,
    /// Whether the line of each drop is looked up. That is slow, so only a run whose report lacks one does it.
    traces_drops: bool,
}

/// The counts of a check that found no failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Summary {
    /// The number of runs: fewer than the number of seeds if further runs would all have been the same ([`Check::order_only`]).
    pub runs: u64,
    /// The number of decisions that the schedules made, in all runs together.
    pub decisions: u64,
    /// The number of commands that ran.
    pub commands: u64,
    /// The number of times that memory was freed without recording another stream's use, by programs that an injected fault had
    /// made return early. This is not a failure, because the program returned the error. A program that continues to use the
    /// memory's stream after such an error should record the use.
    pub unrecorded_after_fault: u64,
    /// The number of possible races that no run could decide ([`Check::deny_possible_races`]), each counted once.
    pub possible_races: u64,
    /// A hash of all events: equal for equal programs, seeds and settings.
    pub trace_hash: u64,
}

impl Default for Check {
    fn default() -> Self {
        Self::new()
    }
}

impl Check {
    /// Creates a check of seeds 0 to 99 on one device of 1 GiB, without faults. `THALWEG_SEED=N` in the environment selects that
    /// one seed, and `THALWEG_SEEDS=N` the first N, whatever the program sets afterwards.
    pub fn new() -> Self {
        Self {
            seeds: 0..SEEDS,
            devices: 1,
            memory_bytes: 1 << 30,
            faults: false,
            stalls: false,
            allows_leaks: false,
            shrinks: true,
            order_only: false,
            denies_possible_races: false,
            has_quarantine: true,
            time_limit: TIME_LIMIT,
            allocator: Settings::default(),
            traces_drops: false,
        }
    }

    /// Sets the seeds to try.
    pub fn seeds(self, seeds: Range<u64>) -> Self {
        Self { seeds, ..self }
    }

    /// Sets the number of devices, which are all peers of each other.
    pub fn devices(self, devices: u32) -> Self {
        Self { devices, ..self }
    }

    /// Sets the memory of each device.
    pub fn memory_bytes(self, memory_bytes: u64) -> Self {
        Self { memory_bytes, ..self }
    }

    /// Injects faults as well: none in half of the seeds, and up to four [faults](thalweg_sim::Fault) in the other half. A
    /// program under faults must return its errors: an error is not a failure if a fault was injected, but a panic is.
    pub fn with_faults(self) -> Self {
        Self { faults: true, ..self }
    }

    /// Lets a [link between devices stall](thalweg_sim::Fault::LinkStalls) in half of the seeds. A program that waits for a
    /// collective without a time limit then fails, and the report names the ranks at the link.
    pub fn with_stalled_links(self) -> Self {
        Self { stalls: true, ..self }
    }

    /// Returns the plan of a seed.
    fn plan(&self, seed: u64) -> RunPlan {
        let plan = RunPlan::of_seed(seed, self.faults);
        if self.stalls { plan.with_stall() } else { plan }
    }

    /// Ignores memory that is still allocated at the end: for programs that keep tensors for good.
    pub fn allow_leaks(self) -> Self {
        Self { allows_leaks: true, ..self }
    }

    /// Reports a failure immediately, without the runs that shrink its schedule: for programs that only need to know whether
    /// there is one.
    pub fn without_shrinking(self) -> Self {
        Self { shrinks: false, ..self }
    }

    /// Checks only order, ranges and lifetimes: no command touches memory, so programs of full size are checked in the time that
    /// their calls take. A program that cannot observe any decision of its schedule is run only once.
    ///
    /// The host reads back zeros, so a program that asserts values fails, one that branches on them takes the branch for zeros,
    /// and loops of a graph end immediately.
    pub fn order_only(self) -> Self {
        Self { order_only: true, ..self }
    }

    /// Fails for possible races, too. A race is only possible if two commands touch rows of one tensor that are chosen by data
    /// (`embedding`, `index_copy_`), and it is not known whether these are the same rows because the commands are part of a graph
    /// or did not run; or if two threads could be ordered only by a mutex, a channel or an atomic that the simulator does not
    /// see. By default such races are printed and counted.
    pub fn deny_possible_races(self) -> Self {
        Self { denies_possible_races: true, ..self }
    }

    /// Sets whether the first seed is run a second time with freed memory held back (the default). A raw pointer that is used
    /// after its memory was handed to another owner then points to memory without an owner. That run holds back at most a quarter
    /// of each device's memory, in at most 4096 blocks, and releases it before an allocation fails; it injects no faults. Memory
    /// of private pools is not held back. Because the allocator's figures and errors differ in that run, only its uses after free
    /// count, and it has no part in the [`Summary`].
    pub fn quarantine(self, has_quarantine: bool) -> Self {
        Self { has_quarantine, ..self }
    }

    /// Sets the time limit of a run, instead of a minute. A run that exceeds it is ended and reported, with the state of each of
    /// its threads; if it cannot be ended, the process is.
    pub fn time_limit(self, time_limit: Duration) -> Self {
        Self { time_limit, ..self }
    }

    /// Sets the settings of the allocators.
    pub fn allocator(self, allocator: Settings) -> Self {
        Self { allocator, ..self }
    }

    /// Runs the program under all seeds, or until one fails.
    ///
    /// # Panics
    /// If a seed fails, with the report.
    #[track_caller]
    pub fn run<O: ProgramResult>(self, program: impl Fn(&Gpu) -> O) -> Summary {
        match self.find(program) {
            Ok(summary) => summary,
            Err(failure) => panic!("{failure}"),
        }
    }

    /// Runs the check and returns a failure as a value: for tests of the instrument, and for those that expect a failure.
    ///
    /// # Errors
    /// The failure of the first seed that fails, shrunk.
    pub fn find<O: ProgramResult>(self, program: impl Fn(&Gpu) -> O) -> Result<Summary, Box<Failure>> {
        self.find_in(&|gpu: &Gpu| program(gpu).into_result())
    }

    fn find_in(self, program: &ProgramFn<'_>) -> Result<Summary, Box<Failure>> {
        let mut summary = Summary {
            runs: 0,
            decisions: 0,
            commands: 0,
            unrecorded_after_fault: 0,
            possible_races: 0,
            trace_hash: 0,
        };
        let mut possible: Vec<Problem> = Vec::new();
        for seed in self.seeds_to_try() {
            let (plan, begin) = (self.plan(seed), Instant::now());
            let run = self.run_once(&plan, self.time_limit, "", program);
            summary.runs += 1;
            summary.decisions += run.trace.decisions;
            summary.commands += run.trace.commands;
            summary.unrecorded_after_fault += run.unrecorded_after_fault;
            for finding in &run.possible {
                let finding = Problem::Finding(Box::new(finding.clone()));
                if !possible.iter().any(|known| known.is_like(&finding)) {
                    eprintln!("simulated GPU: seed {seed}, not counted as a failure\n\n{finding}\n");
                    possible.push(finding);
                }
            }
            summary.possible_races = possible.len() as u64;
            summary.trace_hash = summary.trace_hash.rotate_left(5) ^ run.trace.hash;
            if run.problem().is_some() {
                return Err(Box::new(self.explain(&plan, run, begin.elapsed(), program)));
            }
            if self.has_quarantine && summary.runs == 1 {
                self.run_in_quarantine(seed, program)?;
            }
            if self.order_only && plan.shows_all(&run.trace) && !self.faults && !self.stalls {
                break;
            }
        }
        Ok(summary)
    }

    /// Runs a seed with freed memory held back.
    fn run_in_quarantine(&self, seed: u64, program: &ProgramFn<'_>) -> Result<(), Box<Failure>> {
        let (plan, begin) = (RunPlan::holding_freed(seed), Instant::now());
        let run = self.run_once(&plan, self.time_limit, "", program);
        match run.problem() {
            Some(_) => Err(Box::new(self.explain(&plan, run, begin.elapsed(), program))),
            None => Ok(()),
        }
    }

    fn seeds_to_try(&self) -> Range<u64> {
        let environment = Environment::get();
        match (environment.check_seed, environment.check_seeds) {
            (Some(seed), _) => seed..seed.saturating_add(1),
            (None, Some(count)) => 0..count,
            (None, None) => self.seeds.clone(),
        }
    }

    /// Runs a failing plan again, and shrinks it as far as possible.
    fn explain(&self, plan: &RunPlan, first: Run, time: Duration, program: &ProgramFn<'_>) -> Failure {
        let Run { problems, trace, .. } = first;
        let mut failure = Failure {
            problems,
            plan: plan.clone(),
            first: plan.clone(),
            is_deterministic: true,
            notes: Vec::new(),
        };
        let report = failure.to_string();
        let again = self.run_once(plan, self.time_limit, &report, program);
        failure.is_deterministic = again.trace.hash == trace.hash;
        if self.shrinks && failure.is_deterministic {
            failure = self.shrunk(failure, &trace, time, &report, program);
        }
        self.add_drops(&mut failure, &report, program);
        failure
    }

    /// Returns the failure with the smallest plan that shows it.
    fn shrunk(
        &self,
        failure: Failure,
        trace: &Trace,
        time: Duration,
        report: &str,
        program: &ProgramFn<'_>,
    ) -> Failure {
        let mut failure = failure;
        // A candidate that hangs does not count as a failure.
        let limit = self.time_limit.min(10 * time + SILENCE);
        let problem = failure.problem().clone();
        let (mut runs, mut is_silent, begin) = (0, true, Instant::now());
        let mut fails = |candidate: &RunPlan| {
            if is_silent && begin.elapsed() > SILENCE {
                is_silent = false;
                let seconds = SHRINK_TIME.as_secs();
                eprintln!("{report}\n\nMaking its schedule smaller, for {seconds} s at most.\n");
            }
            runs += 1;
            runs <= SHRINK_RUNS
                && begin.elapsed() < SHRINK_TIME
                && self.run_once(candidate, limit, report, program).shows(&problem)
        };
        let recorded = failure.plan.recorded(trace);
        if fails(&recorded) {
            let smallest = shrink::shrink(recorded, &mut fails);
            let last = self.run_once(&smallest, limit, report, program);
            // The problems are described as the smallest plan shows them, but none that the seed has shown is left out.
            let mut problems: Vec<Problem> = last.problems;
            let place = problems.iter().position(|found| found.is_like(&problem));
            let found = place.map_or(problem, |place| problems.remove(place));
            problems.insert(0, found);
            let others: Vec<Problem> = failure
                .problems
                .drain(..)
                .filter(|seen| !problems.iter().any(|found| found.is_like(seen)))
                .collect();
            problems.extend(others);
            failure = Failure { problems, plan: smallest, notes: last.notes, ..failure };
        }
        failure
    }

    /// Adds the lines of drops to the findings of a failure, by one more run, which looks them up.
    fn add_drops(&self, failure: &mut Failure, report: &str, program: &ProgramFn<'_>) {
        if !failure.problems.iter().any(Problem::lacks_drop) {
            return;
        }
        let traced = Self { traces_drops: true, ..self.clone() };
        let run = traced.run_once(&failure.plan, self.time_limit, report, program);
        for problem in failure.problems.iter_mut().filter(|problem| problem.lacks_drop()) {
            if let Some(found) = run.problems.iter().find(|found| found.is_like(problem)) {
                *problem = found.clone();
            }
        }
    }
}
