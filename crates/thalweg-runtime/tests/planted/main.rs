//! How we know that the simulated GPU sees: bugs are planted in our own code, one at a time, and each must be caught.
//!
//! The programs know nothing of the bugs: they are a handful of random ones that keep all rules ([`programs`]), judged as any
//! program is, by the sanitizer, by what they read back, and by what is left at the end. With no bug they must pass under all
//! seeds; with one, a seed must fail. Otherwise this test fails.
//!
//! A bug may abort the process or hang it, so each is planted in a process of its own: this one, started again.

mod graphs;
mod programs;
mod world;

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use thalweg_memory::planted::{Bug, plant, reached};
use thalweg_runtime::sim::{Failure, Problem};

/// How many seeds a bug has to show in.
const SEEDS: u64 = 200;

/// Which bug a process is to plant: its name, or `none`.
const VARIABLE: &str = "THALWEG_PLANTED_BUG";

/// How long a process may take. None takes a tenth of it; one that hangs must not hold up everything.
const PATIENCE: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    match std::env::var(VARIABLE) {
        Ok(name) => {
            plant_and_look(&name);
            ExitCode::SUCCESS
        }
        // What a list of tests asks for.
        Err(_) if std::env::args().any(|argument| argument == "--list") => {
            println!("planted: test");
            ExitCode::SUCCESS
        }
        Err(_) => judge_all(),
    }
}

// ---- A process with a bug ---------------------------------------------------------------------------------------------------

/// Runs all programs, seed by seed, until one fails; says so on standard output.
fn plant_and_look(name: &str) {
    plant(Bug::ALL.iter().copied().find(|bug| format!("{bug:?}") == name));
    for seed in 0..SEEDS {
        for program in &programs::ALL {
            say(&format!("run {seed} {}", program.name));
            if let Err(failure) = program.run(seed) {
                say(&format!("caught {}", kind(&failure)));
                eprintln!("{failure}");
                return;
            }
        }
    }
    say(&format!("missed {}", reached()));
}

fn say(line: &str) {
    println!("{line}");
    // The process may be about to die.
    let _ = std::io::stdout().flush();
}

/// By what it was caught, in a few words.
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

// ---- The judge --------------------------------------------------------------------------------------------------------------

/// What became of a bug.
struct Verdict {
    /// The last seed and program.
    seed: u64,
    program: String,
    /// By what it was caught; `None` if it was not.
    by: Option<String>,
    /// What the process said besides.
    report: String,
}

struct Running {
    bug: Option<Bug>,
    child: Child,
    begun: Instant,
    output: thread::JoinHandle<String>,
    errors: thread::JoinHandle<String>,
}

fn judge_all() -> ExitCode {
    let mut waiting: Vec<Option<Bug>> = Bug::ALL.iter().rev().copied().map(Some).collect();
    // A filter, as `cargo test -- FILTER`.
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    if let Some(filter) = &filter {
        waiting.retain(|bug| bug.is_some_and(|bug| format!("{bug:?}").contains(filter.as_str())));
    }
    // The longest first.
    waiting.push(None);
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let (mut running, mut verdicts): (Vec<Running>, Vec<(Option<Bug>, Verdict)>) = (Vec::new(), Vec::new());
    while !waiting.is_empty() || !running.is_empty() {
        while running.len() < workers
            && let Some(bug) = waiting.pop()
        {
            running.push(start(bug));
        }
        thread::sleep(Duration::from_millis(5));
        let (over, rest): (Vec<_>, Vec<_>) =
            running.into_iter().map(is_over).partition(|(_, over)| over.is_some());
        running = rest.into_iter().map(|(one, _)| one).collect();
        for (one, over) in over {
            verdicts.push((one.bug, verdict(one, over == Some(true))));
        }
    }
    verdicts.sort_by_key(|(bug, _)| bug.map_or(0, |bug| bug as usize + 1));
    report(&verdicts)
}

fn start(bug: Option<Bug>) -> Running {
    let name = bug.map_or("none".to_owned(), |bug| format!("{bug:?}"));
    let own = std::env::current_exe().expect("a process has a file");
    let mut child = Command::new(own)
        .env(VARIABLE, name)
        .env_remove("THALWEG_SEED")
        .env_remove("THALWEG_SEEDS")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this program starts again");
    let read = |mut pipe: Box<dyn std::io::Read + Send>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let output = read(Box::new(child.stdout.take().expect("it is piped")));
    let errors = read(Box::new(child.stderr.take().expect("it is piped")));
    Running { bug, child, begun: Instant::now(), output, errors }
}

/// Whether the process has ended, and if so, by itself.
fn is_over(mut one: Running) -> (Running, Option<bool>) {
    let over = match one.child.try_wait() {
        Ok(None) if one.begun.elapsed() < PATIENCE => None,
        Ok(None) => {
            let _ = one.child.kill();
            Some(false)
        }
        _ => Some(true),
    };
    (one, over)
}

fn verdict(mut one: Running, by_itself: bool) -> Verdict {
    let status = one.child.wait().expect("a child that was started ends");
    let output = one.output.join().unwrap_or_default();
    let report = one.errors.join().unwrap_or_default();
    let last = |what: &str| output.lines().rev().find_map(|line| line.strip_prefix(what)).map(str::to_owned);
    let (seed, program) = last("run ")
        .and_then(|run| run.split_once(' ').map(|(seed, name)| (seed.parse().unwrap_or(0), name.to_owned())))
        .unwrap_or_default();
    let by = match (last("caught "), last("missed ")) {
        (Some(by), _) => Some(by),
        (None, Some(_)) => None,
        (None, None) if by_itself => Some(format!("it dies: {status}")),
        // A program that hangs is not told what is wrong.
        (None, None) => None,
    };
    let reached =
        last("missed ").map_or("it hangs".to_owned(), |count| format!("its line ran {count} times"));
    let report = if by.is_some() { report } else { reached };
    Verdict { seed, program, by, report }
}

fn report(verdicts: &[(Option<Bug>, Verdict)]) -> ExitCode {
    let mut failed = 0;
    println!(
        "\n| planted bug | where | what goes wrong | seeds | program | caught by |\n|---|---|---|---|---|---|"
    );
    for (bug, Verdict { seed, program, by, .. }) in verdicts {
        let Some(bug) = bug else { continue };
        let (place, what) = (bug.place(), bug.what());
        match by {
            Some(by) => println!("| `{bug:?}` | `{place}` | {what} | {} | {program} | {by} |", seed + 1),
            None => println!("| `{bug:?}` | `{place}` | {what} | {SEEDS} | all | **not caught** |"),
        }
    }
    println!();
    for (bug, Verdict { seed, program, by, report }) in verdicts {
        match (bug, by) {
            (None, None) => println!("no bug: all programs pass under {SEEDS} seeds"),
            (None, Some(by)) => {
                failed += 1;
                println!("FAILED: with no bug planted, `{program}` fails with seed {seed}: {by}\n{report}");
            }
            (Some(bug), None) => {
                failed += 1;
                println!("FAILED: {bug:?} is not caught within {SEEDS} seeds: {report}");
            }
            (Some(_), Some(_)) => {}
        }
    }
    let caught = verdicts.iter().filter(|(bug, verdict)| bug.is_some() && verdict.by.is_some()).count();
    println!("{caught} planted bugs are caught, {failed} failures");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
