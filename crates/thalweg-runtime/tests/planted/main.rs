//! The evidence that the simulated GPU detects mistakes: bugs are planted in our own code, one at a time, and each must be
//! caught.
//!
//! The programs do not depend on the bugs: they are a handful of random ones that keep all rules ([`programs`]), judged as any
//! program is, by the sanitizer, by the values that they read back, and by the memory that is left at the end. Without a bug they
//! must pass under all seeds; with a bug, a seed must fail. Otherwise this test fails.
//!
//! A bug may abort the process or make it hang, so each is planted in a process of its own: this one, started again.

mod graphs;
mod programs;
mod world;

use std::io::Write as _;
use std::process::ExitCode;

use thalweg_runtime::sim::{Failure, Problem};

/// The number of seeds within which a bug must show.
const SEEDS: u64 = 100;
/// The number of seeds that run without a planted bug.
const FEW_SEEDS: u64 = 5;

/// The environment variable that names the planted bug.
const VARIABLE: &str = "THALWEG_PLANTED_BUG";

fn main() -> ExitCode {
    // The output that a list of tests requires.
    if std::env::args().any(|argument| argument == "--list") {
        println!("planted: test");
        return ExitCode::SUCCESS;
    }
    let is_copy = std::env::var_os(VARIABLE).is_some();
    let passed = run(if is_copy { SEEDS } else { FEW_SEEDS });
    if passed || is_copy { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs all programs, seed by seed, until one fails, which is reported on standard output. Returns whether none failed.
fn run(seeds: u64) -> bool {
    for seed in 0..seeds {
        for program in &programs::ALL {
            say(&format!("run {seed} {}", program.name));
            if let Err(failure) = program.run(seed) {
                say(&format!("caught {}", kind(&failure)));
                eprintln!("{failure}");
                return false;
            }
        }
    }
    say("missed");
    true
}

fn say(line: &str) {
    println!("{line}");
    // The process may be about to die.
    let _ = std::io::stdout().flush();
}

/// Returns a few words on how the bug was caught.
fn kind(failure: &Failure) -> String {
    match failure.problem() {
        Problem::Finding(finding) => format!("sanitizer: {}", finding.kind.title()),
        Problem::Panic { location, .. } if location.contains("planted") => "contents".to_owned(),
        Problem::Panic { location, .. } => {
            let place = location.rsplit("crates/").next().unwrap_or(location).replace("/src/", "/");
            format!("our assertion: {}", place.trim_start_matches("thalweg-"))
        }
        Problem::Error(text) => {
            let words = text.lines().next().unwrap_or_default();
            format!("error: {}", words.chars().take(70).collect::<String>())
        }
        Problem::Leak { .. } => "leak".to_owned(),
        Problem::NeverFree { .. } => "never free".to_owned(),
        Problem::Lost { .. } => "lost memory".to_owned(),
        _ => "another problem".to_owned(),
    }
}
