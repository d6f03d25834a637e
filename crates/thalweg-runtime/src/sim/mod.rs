//! The simulated GPU as a testing instrument: run a program under many schedules and faults, and say what is wrong with it.
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
//! Each run has a seed, and the seed decides everything that CUDA leaves open: which stream goes on, which host thread has
//! the turn, whether a query finds the work done, and what fails. Four things are watched in every run:
//!
//! - the *order* of all accesses, by a sanitizer that knows what CUDA promises and nothing of how we keep it
//!   ([`thalweg_sanitizer`]): it sees a missing wait even where this schedule happened to do the right thing;
//! - the *lifetime* of every block, graph input and mapping, by the same sanitizer;
//! - the program's own assertions, under schedules that were made to break them;
//! - what is left at the end: memory that was not given back, uses that never end, and memory that is lost.
//!
//! A failing seed is run twice (a program whose two runs differ is reported), then its schedule and its faults are *shrunk*:
//! what is left shows the failure, and without any one part of it the failure is gone.
//!
//! # What it does not do
//! It cannot see inside a kernel (races between its threads), nor time. A program whose host threads did not come from
//! [`Gpu::spawn`] runs and is watched, but the seed does not decide how its threads interleave.

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

/// The number of runs that the shrinking of one failure may take, and how long.
const SHRINK_RUNS: usize = 400;
const SHRINK_TIME: Duration = Duration::from_secs(30);

/// After how long a time of shrinking the report is printed as it is.
const SILENCE: Duration = Duration::from_secs(1);

/// The time that one run may take by default.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Runs `program` under many seeds on one simulated GPU, as [`Check::new`] has it.
///
/// # Panics
/// If a seed fails, with the report; that is what makes a test fail.
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
    /// Whether the line of each drop is looked up. That takes long, so only a run whose report lacks one does it.
    traces_drops: bool,
}

/// The counts of a check without a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Summary {
    /// The number of runs. Fewer than there are seeds where all would have been the same ([`Check::order_only`]).
    pub runs: u64,
    /// The number of decisions that the schedules made, in all runs together.
    pub decisions: u64,
    /// The number of commands that ran.
    pub commands: u64,
    /// The number of times that memory was given back without the record of another stream's use, by programs that an injected fault
    /// had made return early: no failure, since the error is. A program that goes on with the memory's stream after such an error
    /// should record.
    pub unrecorded_after_fault: u64,
    /// The number of possible races that nothing decides ([`Check::deny_possible_races`]), each counted once.
    pub possible_races: u64,
    /// One number for all that happened: equal for equal programs, seeds and settings.
    pub trace_hash: u64,
}

impl Default for Check {
    fn default() -> Self {
        Self::new()
    }
}

impl Check {
    /// Seeds 0 to 99, one device of 1 GiB, no faults. `THALWEG_SEED=N` in the environment makes it that one seed, and
    /// `THALWEG_SEEDS=N` the first N, whatever the program says afterwards.
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

    /// Tries these seeds.
    pub fn seeds(self, seeds: Range<u64>) -> Self {
        Self { seeds, ..self }
    }

    /// Gives the program so many devices, each a peer of each other.
    pub fn devices(self, devices: u32) -> Self {
        Self { devices, ..self }
    }

    /// Gives each device so much memory.
    pub fn memory_bytes(self, memory_bytes: u64) -> Self {
        Self { memory_bytes, ..self }
    }

    /// Lets things fail as well: in half of the seeds nothing, in the others up to four [faults](thalweg_sim::Fault).
    /// A program under faults returns its errors; an error is not a failure where a fault was injected, but a panic is.
    pub fn with_faults(self) -> Self {
        Self { faults: true, ..self }
    }

    /// Lets a [link between devices stall](thalweg_sim::Fault::LinkStalls) in half of the seeds: a program that waits for a collective without
    /// a limit is a failure then, whose text names the ranks at the link.
    pub fn with_stalled_links(self) -> Self {
        Self { stalls: true, ..self }
    }

    /// Returns the plan of a seed.
    fn plan(&self, seed: u64) -> RunPlan {
        let plan = RunPlan::of_seed(seed, self.faults);
        if self.stalls { plan.with_stall() } else { plan }
    }

    /// Leaves alone what is still allocated at the end: for programs that keep tensors for good.
    pub fn allow_leaks(self) -> Self {
        Self { allows_leaks: true, ..self }
    }

    /// Reports a failure as it comes, without the runs that make its schedule small: for programs that only ask whether there
    /// is one.
    pub fn without_shrinking(self) -> Self {
        Self { shrinks: false, ..self }
    }

    /// Checks order, ranges and lifetimes only: no command touches memory, so programs of full size are checked in the time that
    /// their calls take. A run that could see nothing of what its schedule decided is not repeated under others.
    ///
    /// What the host reads back is zeros, so a program that asserts values fails, one that branches on them takes the branch for
    /// zeros, and loops of a graph end at once.
    pub fn order_only(self) -> Self {
        Self { order_only: true, ..self }
    }

    /// Fails for a race that is only possible, too: two commands touch rows of one tensor that data chooses (`embedding`,
    /// `index_copy_`), and nothing says whether they are the same rows, since they are part of a graph or did not run; or only a mutex, a
    /// channel or an atomic that the simulator does not see could order two threads. Without this, such races are printed and counted.
    pub fn deny_possible_races(self) -> Self {
        Self { denies_possible_races: true, ..self }
    }

    /// Sets whether the first seed is run a second time with freed memory held back, as it is by default: a raw
    /// pointer that is used after its memory was given to another then meets memory without an owner. That run holds back a
    /// quarter of each device's memory at most, in 4096 blocks at most, and gives it up before an allocation fails; it injects
    /// no faults. Memory of private pools is not held back. Since an allocator's figures and errors are others then, nothing
    /// counts of that run but uses after free, and it has no part in the [`Summary`].
    pub fn quarantine(self, has_quarantine: bool) -> Self {
        Self { has_quarantine, ..self }
    }

    /// Lets a run take so long, instead of a minute. One that takes longer is ended and reported, with what each of its threads
    /// was doing; one that does not end even so ends the process.
    pub fn time_limit(self, time_limit: Duration) -> Self {
        Self { time_limit, ..self }
    }

    /// Uses these settings of the allocators.
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

    /// Runs the check and returns a failure as a result: for tests of the instrument, and for those that expect a failure.
    ///
    /// # Errors
    /// The failure of the first seed that fails, shrunk.
    pub fn find<O: ProgramResult>(self, program: impl Fn(&Gpu) -> O) -> Result<Summary, Box<Failure>> {
        let program = |gpu: &Gpu| program(gpu).into_result();
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
            let run = self.run_once(&plan, self.time_limit, "", &program);
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
                return Err(Box::new(self.explain(&plan, run, begin.elapsed(), &program)));
            }
            if self.has_quarantine && summary.runs == 1 {
                self.run_in_quarantine(seed, &program)?;
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

    /// Runs a failing plan again, and makes it as small as it goes.
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
        // A candidate that hangs is none.
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
            // In the words of the smallest plan, but nothing that the seed has shown is left out.
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

    /// Makes the findings of a failure name the lines of the drops that they are about: one more run, which looks them up.
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
