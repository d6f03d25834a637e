//! `thalweg sim`: a program's run under many seeds of the simulated GPU.
//!
//! The program needs no changes. Each seed runs in a separate process, whose environment has the seed and the file for the
//! sanitizer's findings (`thalweg::sim::CheckedProgram`). A seed fails if the sanitizer found something, the program hung, or its
//! exit status is not 0. The lowest failing seed is run once more, so that the report can state whether it is reproducible, and
//! reported; the others are only counted.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use thalweg::progress::Progress;
use thalweg::sim::{FINDING_SEPARATOR, OBSERVED_SUFFIX, OPENED_SUFFIX, POSSIBLE_PREFIX, TIMED_OUT};
use thalweg_lock::Mutex;

use anstyle::AnsiColor;
use clap::Args;
use serde_json::json;

use crate::output::{Output, paint, print_error};

/// Runs a program under many schedules of the simulated GPU: races, lifetimes, faults
#[derive(Args)]
#[command(
    override_usage = "thalweg sim [OPTIONS] -- PROGRAM [ARGS]",
    after_help = "\
PROGRAM runs once for each seed on the simulated GPU. The seed decides in which
order unordered work runs, and every run is checked for order that CUDA does not
promise. The lowest seed that fails is reported.

Examples:
  thalweg sim --seeds 100 -- target/debug/train --steps 5
  thalweg sim --first 17 --seeds 1 -- target/debug/train --steps 5

The exit status is 0 if no seed fails, 1 if one does, 2 if the program uses no
simulated GPU, so that nothing was checked, 127 if there is no such
program, and 126 if it cannot be run."
)]
pub struct SimArgs {
    /// The number of seeds
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed; one seed again: --first N --seeds 1
    #[arg(long, value_name = "N", default_value_t = 0)]
    first: u64,
    /// Lets memory run out and commands fail as well, in half of the seeds; a program that
    /// then exits with an error counts as correct, one that panics does not
    #[arg(long)]
    faults: bool,
    /// Checks order, ranges and lifetimes, and computes nothing: programs of full size in the time of their calls. Values
    /// that are read back are zeros. If the first seed could see nothing of its schedule, the others are left out
    #[arg(long)]
    order_only: bool,
    /// The time that one run may take: it is then ended and reported
    #[arg(long = "timeout", value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    timeout_s: u64,
    /// The number of processes that run at once [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// One JSON object per failing seed, and one with the summary
    #[arg(long)]
    json: bool,
    /// The program that is to run, with its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl SimArgs {
    /// Returns the program and its arguments, to be shown.
    fn program(&self) -> String {
        self.program.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }
}

/// A shell's statuses for a program that does not exist, and for one that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUN: u8 = 126;

/// The time that a process has for its own report after its time is over.
const GRACE: Duration = Duration::from_secs(10);

/// The time between two checks of a process.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// The number of lines of a failing program's standard error that are shown.
const SHOWN_ERROR_LINES: usize = 12;

/// Runs the command.
pub fn run(arguments: &SimArgs) -> ExitCode {
    let begin = Instant::now();
    let runs = match run_seeds(arguments) {
        Ok(done) => done,
        Err(error) => {
            let program = arguments.program[0].display();
            print_error(&format!("`{program}` did not start: {error}"));
            return ExitCode::from(if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_RUN });
        }
    };
    if runs.opened_nothing && runs.failures.is_empty() {
        let text = format!("`{}` opened no simulated GPU, so nothing was checked", arguments.program());
        return print_error(&text);
    }
    let output = Output::standard();
    if arguments.json {
        print_json(&output, arguments, &runs);
    } else {
        print_text(&output, arguments, &runs, begin.elapsed().as_secs_f64());
    }
    if runs.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The report of a seed that failed.
struct SeedFailure {
    /// The findings of the sanitizer, as text.
    findings: Vec<String>,
    /// The way in which the program ended, if not with status 0.
    status: Option<String>,
    /// The end of the program's standard error.
    errors: String,
    /// Whether freed memory was held back.
    held_freed: bool,
}

impl SeedFailure {
    /// Returns the part of the report that a second run of the seed must reproduce.
    fn reproducible_part(&self) -> (usize, &Option<String>) {
        (self.findings.len(), &self.status)
    }
}

/// The result of a seed.
enum Ended {
    /// The run succeeded, apart from races that are only possible.
    Well(Vec<String>),
    /// The run succeeded, and no other seed can have a different result.
    WellForAll(Vec<String>),
    /// The run succeeded, but the program opened no simulated GPU.
    OpenedNothing,
    Failed(SeedFailure),
}

/// The results of all seeds.
struct Runs {
    count: u64,
    failures: BTreeMap<u64, SeedFailure>,
    /// Whether a run opened no simulated GPU.
    opened_nothing: bool,
    /// The texts of races that are only possible.
    possible: BTreeSet<String>,
}

/// Runs all seeds, or those up to the first failure, apart from seeds that already run.
fn run_seeds(arguments: &SimArgs) -> std::io::Result<Runs> {
    let end = arguments.first.saturating_add(arguments.seeds);
    let next = AtomicU64::new(arguments.first);
    let failures = Mutex::new(BTreeMap::new());
    let (refusal, notes) = (Mutex::new(None), Mutex::new(BTreeSet::new()));
    let opened_nothing = AtomicBool::new(false);
    let progress = Mutex::new((Progress::transient("of all seeds", arguments.seeds), 0));
    let jobs = arguments.jobs.map(usize::from);
    let jobs = jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            let (next, failures, refusal, progress) = (&next, &failures, &refusal, &progress);
            let (notes, opened_nothing) = (&notes, &opened_nothing);
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    match run_seed(arguments, seed) {
                        Ok(Ended::Well(possible)) => notes.lock().extend(possible),
                        Ok(Ended::WellForAll(possible)) => {
                            notes.lock().extend(possible);
                            next.fetch_max(end, Ordering::Relaxed);
                        }
                        Ok(Ended::OpenedNothing) => {
                            opened_nothing.store(true, Ordering::Relaxed);
                            next.fetch_max(end, Ordering::Relaxed);
                        }
                        Ok(Ended::Failed(failure)) => {
                            failures.lock().insert(seed, failure);
                            // Lower seeds already run; the lowest failing one is known when they are done.
                            next.fetch_max(end, Ordering::Relaxed);
                        }
                        Err(error) => {
                            refusal.lock().get_or_insert(error);
                            next.fetch_max(end, Ordering::Relaxed);
                        }
                    }
                    let mut progress = progress.lock();
                    progress.1 += 1;
                    let done = progress.1;
                    progress.0.advance(done);
                }
            });
        }
    });
    let (progress, runs) = progress.into_inner();
    drop(progress);
    match refusal.into_inner() {
        Some(error) => Err(error),
        None => Ok(Runs {
            count: runs,
            failures: failures.into_inner(),
            opened_nothing: opened_nothing.into_inner(),
            possible: notes.into_inner(),
        }),
    }
}

/// Runs a seed. If the first seed succeeds, it is run again with freed memory held back. Only uses of freed memory count in that
/// run, since the program gets other addresses and figures than usual.
fn run_seed(arguments: &SimArgs, seed: u64) -> std::io::Result<Ended> {
    let ended = run_process(arguments, seed, false)?;
    if seed != arguments.first || matches!(ended, Ended::Failed(_) | Ended::OpenedNothing) {
        return Ok(ended);
    }
    match run_process(arguments, seed, true)? {
        Ended::Failed(failure) if !failure.findings.is_empty() => {
            Ok(Ended::Failed(SeedFailure { status: None, ..failure }))
        }
        _ => Ok(ended),
    }
}

fn run_process(arguments: &SimArgs, seed: u64, holds_freed: bool) -> std::io::Result<Ended> {
    let folder = PrivateFolder::new()?;
    let report = folder.0.join("report");
    let companion = |suffix: &str| {
        let mut path = report.clone().into_os_string();
        path.push(suffix);
        PathBuf::from(path)
    };
    let mut process = Command::new(&arguments.program[0]);
    process
        .args(&arguments.program[1..])
        .env("THALWEG_DEVICE", "sim")
        .env("THALWEG_SIM_SEED", seed.to_string())
        .env("THALWEG_SIM_REPORT", &report)
        .env("THALWEG_SIM_TIMEOUT", arguments.timeout_s.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    if holds_freed {
        process.env("THALWEG_SIM_QUARANTINE", "1");
    } else if arguments.faults {
        process.env("THALWEG_SIM_FAULTS", "1");
    }
    if arguments.order_only {
        process.env("THALWEG_SIM_ORDER_ONLY", "1");
    }
    let limit = Duration::from_secs(arguments.timeout_s).saturating_add(GRACE);
    let (ended, errors) = wait(process.spawn()?, limit)?;
    let (was_observed, has_opened) = (companion(OBSERVED_SUFFIX).exists(), companion(OPENED_SUFFIX).exists());
    let (notes, findings): (Vec<_>, Vec<_>) =
        read_report(&report).into_iter().partition(|found| found.starts_with(POSSIBLE_PREFIX));
    let succeeded = ended.is_some_and(|status| {
        status.success()
            || (arguments.faults && status.code() != Some(TIMED_OUT) && reported_an_error(status))
    });
    if findings.is_empty() && succeeded && !has_opened {
        return Ok(Ended::OpenedNothing);
    }
    if findings.is_empty() && succeeded {
        let is_for_all = arguments.order_only && !arguments.faults && seed == 0 && !was_observed;
        return Ok(if is_for_all { Ended::WellForAll(notes) } else { Ended::Well(notes) });
    }
    let status = match ended {
        Some(status) => (!succeeded).then(|| status.to_string()),
        None => Some(format!("no status: it was killed after {} s", limit.as_secs())),
    };
    let lines: Vec<&str> = errors.lines().collect();
    let shown = lines[lines.len().saturating_sub(SHOWN_ERROR_LINES)..].join("\n");
    Ok(Ended::Failed(SeedFailure { findings, status, errors: shown, held_freed: holds_freed }))
}

/// Waits for a process, and kills it after the time limit. Returns its status, and its standard error.
fn wait(mut child: Child, limit: Duration) -> std::io::Result<(Option<ExitStatus>, String)> {
    let (begin, mut errors) = (Instant::now(), child.stderr.take());
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(errors) = &mut errors {
            // Text that was read before an error is still shown.
            let _ = errors.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    });
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if begin.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            // A child of the process may hold its standard error open.
            return Ok((None, String::new()));
        }
        std::thread::sleep(CHECK_INTERVAL);
    };
    Ok((status, reader.join().unwrap_or_default()))
}

/// Returns whether the program exited with an error that it reported, as expected under a fault. A panic (whose status is 101 in
/// Rust) and a signal are not.
fn reported_an_error(status: ExitStatus) -> bool {
    const PANIC: i32 = 101;
    status.code().is_some_and(|code| code != PANIC)
}

/// A new folder among the temporary files, under an unpredictable name, where no other user can write.
struct PrivateFolder(PathBuf);

impl PrivateFolder {
    fn new() -> std::io::Result<Self> {
        // Each state of this kind is seeded at random.
        let random = RandomState::new().hash_one(std::process::id());
        let folder = std::env::temp_dir().join(format!("thalweg-sim-{random:016x}"));
        DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        // Files left in the temporary folder are harmless.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn read_report(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let separator = format!("{FINDING_SEPARATOR}\n");
    text.split(&separator).map(str::trim_end).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn print_text(output: &Output, arguments: &SimArgs, runs: &Runs, seconds: f64) {
    for note in &runs.possible {
        output.text(&format!("{note}\n\n"));
    }
    let Some((seed, failure)) = runs.failures.first_key_value() else {
        let ok = paint(AnsiColor::Green, "ok", 0);
        let found = match runs.possible.len() {
            0 => "nothing found".to_owned(),
            count => format!("nothing found for certain, {count} possible"),
        };
        output.line(4, &format!("{ok}  {} seeds, {found} ({seconds:.1} s)", runs.count));
        if runs.count < arguments.seeds {
            output.line(2, "The program could see nothing of what its schedule decided, so the other seeds would be the same.");
        }
        return;
    };
    let failed = paint(AnsiColor::Red, "FAILED", 0);
    output.line(4, &format!("{failed}  seed {seed}, after {seconds:.1} s\n"));
    for finding in &failure.findings {
        output.text(&format!("{finding}\n\n"));
    }
    if let Some(status) = &failure.status {
        output.line(2, &format!("The program ended with {status}. The end of its standard error:"));
        output.text(&format!("{}\n\n", failure.errors));
    }
    if failure.held_freed {
        output
            .line(2, "Freed memory was held back in this run; otherwise another owner may have it by then.");
    }
    let again = run_seed(arguments, *seed);
    let is_again = matches!(&again, Ok(Ended::Failed(second)) if second.reproducible_part() == failure.reproducible_part());
    output.line(
        2,
        if is_again {
            "A second run of the seed showed the same."
        } else {
            "A second run of the seed went another way, so something besides the seed decides what the program does: \
             threads of its own, the time, addresses, the order of a hash map."
        },
    );
    let faults = if arguments.faults { " --faults" } else { "" };
    let order_only = if arguments.order_only { " --order-only" } else { "" };
    let program = arguments.program();
    output.text(&format!("again: thalweg sim --first {seed} --seeds 1{faults}{order_only} -- {program}\n"));
}

fn print_json(output: &Output, arguments: &SimArgs, runs: &Runs) {
    for (seed, failure) in &runs.failures {
        output.json(&json!({
            "seed": seed,
            "status": failure.status,
            "findings": failure.findings.join(&format!("\n{FINDING_SEPARATOR}\n")),
            "standard_error": failure.errors,
        }));
    }
    output.json(&json!({
        "seeds": arguments.seeds,
        "runs": runs.count,
        "failing_seeds": runs.failures.len(),
        "possible_races": runs.possible.len(),
        "program": arguments.program(),
    }));
}
