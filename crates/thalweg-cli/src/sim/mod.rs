//! `thalweg sim`: a whole program under many seeds of the simulated GPU.
//!
//! The program knows nothing of it. Each seed is a process of its own, told by the environment which seed it has and where
//! to write what the referee finds (`thalweg::sim::CheckedProgram`). A seed fails if the referee found something or the
//! program did not end with status 0. The lowest failing seed is run once more, so that the report can say whether it can
//! be relied on, and reported; the others only counted.

mod arguments;

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use thalweg::sim::FINDING_SEPARATOR;

use self::arguments::Arguments;
use crate::output::{Colour, Object, Output};
use crate::progress::Progress;
use crate::{Command, UsageError};

/// The command.
pub const COMMAND: Command = Command {
    name: "sim",
    summary: "a program under many schedules of the simulated GPU: races, lifetimes, faults",
    usage: "\
usage: thalweg sim [--seeds N] [--first N] [--faults] [--jobs N] [--json] -- PROGRAM [ARGS]

Runs PROGRAM once for each seed on the simulated GPU. The seed decides in which
order unordered work runs; a referee watches that all order is what CUDA
promises. The lowest seed that fails is reported.

  --seeds N   how many seeds (default 100)
  --first N   the first seed (default 0); one seed again: --first N --seeds 1
  --faults    lets memory run out and commands fail as well, in half of the seeds;
              a program that ends with an error of its own is then well, one that
              panics is not
  --jobs N    how many processes at once (default: one for each processor)
  --json      one JSON object a failing seed, and one with the summary

The exit status is 0 if no seed fails, and 1 if one does.
",
    run,
};

/// How much of what a failing program wrote to standard error is shown.
const SHOWN_ERROR_LINES: usize = 12;

fn run(arguments: &[String]) -> Result<ExitCode, UsageError> {
    let arguments = Arguments::parse(arguments)?;
    let begin = Instant::now();
    let failures = match run_seeds(&arguments) {
        Ok(failures) => failures,
        Err(error) => {
            let program = arguments.program[0].as_str();
            eprintln!("thalweg sim: `{program}` did not start: {error}");
            return Ok(ExitCode::FAILURE);
        }
    };
    let output = Output::standard();
    if arguments.json {
        print_json(&output, &arguments, &failures);
    } else {
        print_text(&output, &arguments, &failures, begin.elapsed().as_secs_f64());
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What a seed that failed left behind.
struct SeedFailure {
    /// What the referee found, as it reads.
    findings: Vec<String>,
    /// How the program ended, if not with status 0.
    status: Option<String>,
    /// The end of its standard error.
    errors: String,
}

impl SeedFailure {
    /// What a second run of the seed must show too.
    fn essence(&self) -> (usize, &Option<String>) {
        (self.findings.len(), &self.status)
    }
}

/// Runs all seeds, or those up to the first that fails where others are under way.
fn run_seeds(arguments: &Arguments) -> std::io::Result<BTreeMap<u64, SeedFailure>> {
    let end = arguments.first.saturating_add(arguments.seeds);
    let next = AtomicU64::new(arguments.first);
    let failures = Mutex::new(BTreeMap::new());
    let refusal = Mutex::new(None);
    let progress = Mutex::new((Progress::new("of all seeds", arguments.seeds), 0));
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs {
            let (next, failures, refusal, progress) = (&next, &failures, &refusal, &progress);
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    match run_seed(arguments, seed) {
                        Ok(None) => {}
                        Ok(Some(failure)) => {
                            lock(failures).insert(seed, failure);
                            // Lower seeds are under way already: the lowest that fails is known when they are done.
                            next.fetch_max(end, Ordering::Relaxed);
                        }
                        Err(error) => {
                            lock(refusal).get_or_insert(error);
                            next.fetch_max(end, Ordering::Relaxed);
                        }
                    }
                    let mut progress = lock(progress);
                    progress.1 += 1;
                    let done = progress.1;
                    progress.0.show(done);
                }
            });
        }
    });
    drop(progress);
    match refusal.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(failures.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run_seed(arguments: &Arguments, seed: u64) -> std::io::Result<Option<SeedFailure>> {
    let folder = PrivateFolder::new()?;
    let report = folder.0.join("report");
    let mut process = Process::new(&arguments.program[0]);
    process
        .args(&arguments.program[1..])
        .env("THALWEG_DEVICE", "sim")
        .env("THALWEG_SIM_SEED", seed.to_string())
        .env("THALWEG_SIM_REPORT", &report)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if arguments.faults {
        process.env("THALWEG_SIM_FAULTS", "1");
    }
    let ended = process.output()?;
    let findings = read_report(&report);
    let is_well = ended.status.success() || (arguments.faults && reported_an_error(ended.status));
    if findings.is_empty() && is_well {
        return Ok(None);
    }
    let status = (!is_well).then(|| ended.status.to_string());
    let errors = String::from_utf8_lossy(&ended.stderr);
    let lines: Vec<&str> = errors.lines().collect();
    let shown = lines[lines.len().saturating_sub(SHOWN_ERROR_LINES)..].join("\n");
    Ok(Some(SeedFailure { findings, status, errors: shown }))
}

/// Whether the program ended by itself, with an error that it reported: what is expected of it under a fault. A panic (whose
/// status is 101 in Rust) and a signal are not.
fn reported_an_error(status: ExitStatus) -> bool {
    const PANIC: i32 = 101;
    status.code().is_some_and(|code| code != PANIC)
}

/// A new folder among the temporary files, under a name that nobody foresees, where nobody else can put anything.
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
        // What is left in the folder of temporary files hurts nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn read_report(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let separator = format!("{FINDING_SEPARATOR}\n");
    text.split(&separator).map(str::trim_end).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn print_text(output: &Output, arguments: &Arguments, failures: &BTreeMap<u64, SeedFailure>, seconds: f64) {
    let Some((seed, failure)) = failures.first_key_value() else {
        let ok = output.paint(Colour::Green, "ok", 0);
        output.line(4, &format!("{ok}  {} seeds, nothing found ({seconds:.1} s)", arguments.seeds));
        return;
    };
    let failed = output.paint(Colour::Red, "FAILED", 0);
    output.line(4, &format!("{failed}  seed {seed}, after {seconds:.1} s\n"));
    for finding in &failure.findings {
        output.text(&format!("{finding}\n\n"));
    }
    if let Some(status) = &failure.status {
        output.line(2, &format!("The program ended with {status}. The end of its standard error:"));
        output.text(&format!("{}\n\n", failure.errors));
    }
    let again = run_seed(arguments, *seed);
    let is_again = matches!(&again, Ok(Some(second)) if second.essence() == failure.essence());
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
    let program = arguments.program.join(" ");
    output.text(&format!("again: thalweg sim --first {seed} --seeds 1{faults} -- {program}\n"));
}

fn print_json(output: &Output, arguments: &Arguments, failures: &BTreeMap<u64, SeedFailure>) {
    for (seed, failure) in failures {
        let object = Object::new().number("seed", *seed as f64);
        let object = match &failure.status {
            Some(status) => object.string("status", status),
            None => object.null("status"),
        };
        let findings = failure.findings.join(&format!("\n{FINDING_SEPARATOR}\n"));
        output.text(&object.string("findings", &findings).string("standard_error", &failure.errors).finish());
    }
    let summary = Object::new()
        .number("seeds", arguments.seeds as f64)
        .number("failing_seeds", failures.len() as f64)
        .string("program", &arguments.program.join(" "));
    output.text(&summary.finish());
}
