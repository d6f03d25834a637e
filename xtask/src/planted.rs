//! `cargo xtask planted`: a test that the simulated GPU detects bugs. Bugs are planted in our own code, one at a time, and each
//! must be caught.
//!
//! The bugs are listed in one file ([`LIST`]), which explains how to write one. The crates with bugs are copied to
//! `target/planted`, with a switch between the correct and the wrong code at each place, and compiled once; all other crates are
//! linked there unchanged. The programs of the runtime's test `planted` then run in the copy, in a separate process for each bug,
//! since a bug may abort or hang it. With no bug they must pass under all seeds; with one, a seed must fail.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;

/// The file in which the bugs are described.
const LIST: &str = "crates/thalweg-runtime/tests/planted/bugs.txt";
/// The environment variable with the bug that a process plants: its number in the list, from 1; 0 for none.
const VARIABLE: &str = "THALWEG_PLANTED_BUG";
/// The version of the copied crates with bugs, by which Cargo distinguishes them from the correct ones.
const VERSION: &str = "0.1.0-planted";
/// The time limit of a process. Normal processes take less than a tenth of it; a process that hangs must not block the others.
const PATIENCE: Duration = Duration::from_secs(300);

/// The switch, a module of the allocators in the copy.
const SWITCH: &str = r#"
#[doc(hidden)]
pub mod planted {
    //! Which bug is planted.
    static PLANTED: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    static REACHED: std::sync::Once = std::sync::Once::new();
    /// Returns whether this bug is switched on.
    #[inline]
    pub fn is_on(bug: usize) -> bool {
        *PLANTED.get_or_init(named) == bug && reach()
    }
    fn named() -> usize {
        std::env::var("THALWEG_PLANTED_BUG").ok().and_then(|bug| bug.parse().ok()).unwrap_or(0)
    }
    fn reach() -> bool {
        REACHED.call_once(|| eprintln!("the line of the planted bug runs"));
        true
    }
}
"#;

struct Bug {
    name: String,
    what: String,
    places: Vec<Place>,
}

struct Place {
    file: String,
    right: String,
    wrong: String,
}

/// Plant bugs in copies of the allocators and the runtime, one at a time, and look whether the simulated GPU catches each
#[derive(Args)]
pub struct PlantedArgs {
    /// Plant only bugs whose names contain this text
    filter: Option<String>,
}

/// Plants the bugs whose names contain the filter, or all of them, and prints whether each was caught; `false` if one was not.
pub fn run(options: &PlantedArgs) -> Result<bool, String> {
    let filter = options.filter.as_deref();
    let root = crate::root();
    let list = read(&root.join(LIST))?;
    let bugs = parse(&list)?;
    copy(&root, &bugs)?;
    let program = build(&root)?;
    let chosen = |bug: &Bug| filter.is_none_or(|filter| bug.name.contains(filter));
    let mut waiting: Vec<usize> = (1..=bugs.len()).rev().filter(|bug| chosen(&bugs[bug - 1])).collect();
    if filter.is_none() {
        // The longest are first.
        waiting.push(0);
    }
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let (mut running, mut verdicts): (Vec<Running>, Vec<(usize, Verdict)>) = (Vec::new(), Vec::new());
    while !waiting.is_empty() || !running.is_empty() {
        while running.len() < workers
            && let Some(bug) = waiting.pop()
        {
            running.push(start(&program, bug)?);
        }
        thread::sleep(Duration::from_millis(5));
        let (over, rest): (Vec<_>, Vec<_>) =
            running.into_iter().map(is_over).partition(|(_, over)| over.is_some());
        running = rest.into_iter().map(|(one, _)| one).collect();
        verdicts.extend(over.into_iter().map(|(one, over)| (one.bug, verdict(one, over == Some(true)))));
    }
    verdicts.sort_by_key(|(bug, _)| *bug);
    Ok(report(&bugs, &verdicts))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
}

fn parse(list: &str) -> Result<Vec<Bug>, String> {
    let mut bugs: Vec<Bug> = Vec::new();
    for (number, line) in
        (1..).zip(list.lines()).filter(|(_, line)| !line.starts_with('#') && !line.is_empty())
    {
        let wrong = || format!("{LIST}:{number}: is neither a bug, a file, a right text nor a wrong one");
        if let Some(file) = line.strip_prefix("  ") {
            let place = Place { file: file.to_owned(), right: String::new(), wrong: String::new() };
            bugs.last_mut().ok_or_else(wrong)?.places.push(place);
        } else if let Some((name, what)) = line.split_once(": ").filter(|_| !line.starts_with(['-', '+'])) {
            bugs.push(Bug { name: name.to_owned(), what: what.to_owned(), places: Vec::new() });
        } else {
            let place = bugs.last_mut().and_then(|bug| bug.places.last_mut()).ok_or_else(wrong)?;
            match line.split_at_checked(2).ok_or_else(wrong)? {
                ("- ", right) => place.right = right.to_owned(),
                ("+ ", put) => place.wrong = put.to_owned(),
                _ => return Err(wrong()),
            }
        }
    }
    Ok(bugs)
}

// ---- The copy ---------------------------------------------------------------------------------------------------------------

/// Makes the copy under `target/planted`.
fn copy(root: &Path, bugs: &[Bug]) -> Result<(), String> {
    let to = root.join("target/planted");
    let text = |error: std::io::Error| format!("the copy cannot be made in {}: {error}", to.display());
    let _ = fs::remove_dir_all(&to);
    fs::create_dir_all(to.join("crates")).map_err(text)?;
    let package = |file: &str| file.split('/').next().unwrap_or_default().to_owned();
    let mut planted: BTreeSet<String> =
        bugs.iter().flat_map(|bug| &bug.places).map(|place| package(&place.file)).collect();
    planted.insert("thalweg-memory".into());
    planted.insert("thalweg-runtime".into());
    let mut manifest = read(&root.join("Cargo.toml"))?;
    for package in &planted {
        let line = format!("{package} = {{ path = \"crates/{package}\", version = \"");
        let (before, after) =
            manifest.split_once(&line).ok_or(format!("Cargo.toml does not name {package}"))?;
        let after = after.split_once('"').map_or("", |(_, after)| after);
        manifest = format!("{before}{line}{VERSION}\"{after}");
    }
    fs::write(to.join("Cargo.toml"), manifest).map_err(text)?;
    fs::copy(root.join("Cargo.lock"), to.join("Cargo.lock")).map_err(text)?;
    std::os::unix::fs::symlink(root.join("xtask"), to.join("xtask")).map_err(text)?;
    for entry in fs::read_dir(root.join("crates")).map_err(text)?.flatten() {
        if !planted.contains(entry.file_name().to_string_lossy().as_ref()) {
            let link = to.join("crates").join(entry.file_name());
            std::os::unix::fs::symlink(entry.path(), link).map_err(text)?;
        }
    }
    let listed = fs::metadata(root.join(LIST)).and_then(|list| list.modified()).map_err(text)?;
    for file in crate::tidy::files(root)? {
        let Some(inside) = file.strip_prefix("crates/").filter(|inside| planted.contains(&package(inside)))
        else {
            continue;
        };
        let (source, copy) = (root.join(&file), to.join(&file));
        let Ok(mut bytes) = fs::read(&source) else { continue };
        let mut modified = fs::metadata(&source).and_then(|source| source.modified()).map_err(text)?;
        let here = (1..)
            .zip(bugs)
            .flat_map(|(number, bug)| bug.places.iter().map(move |place| (number, bug, place)));
        let here: Vec<_> = here.filter(|(.., place)| place.file == inside).collect();
        let is_switch = inside == "thalweg-memory/src/lib.rs";
        let is_manifest = inside.ends_with("Cargo.toml");
        if !here.is_empty() || is_switch || is_manifest {
            let mut text = String::from_utf8(bytes).map_err(|error| format!("{file}: {error}"))?;
            text = mutate(&text, &here)?;
            if is_switch {
                text.push_str(SWITCH);
            } else if is_manifest {
                text = text.replacen("version.workspace = true", &format!("version = \"{VERSION}\""), 1);
            }
            bytes = text.into_bytes();
            modified = modified.max(listed);
        }
        write(&copy, &bytes, modified).map_err(text)?;
    }
    Ok(())
}

/// Writes a file with its source's time of modification, so that it is only compiled again if the source has changed.
fn write(path: &Path, bytes: &[u8], modified: SystemTime) -> std::io::Result<()> {
    fs::create_dir_all(path.parent().expect("a file has a folder"))?;
    fs::write(path, bytes)?;
    fs::File::options().append(true).open(path)?.set_modified(modified)
}

/// Returns a source with a switch at each of these places, which turns the planted bug on.
fn mutate(source: &str, places: &[(usize, &Bug, &Place)]) -> Result<String, String> {
    // The text without white space, and the offset of each byte.
    let kept: Vec<(usize, u8)> =
        source.bytes().enumerate().filter(|(_, byte)| !byte.is_ascii_whitespace()).collect();
    let bare: Vec<u8> = kept.iter().map(|(_, byte)| *byte).collect();
    let mut edits: Vec<(usize, usize, String)> = Vec::new();
    for (number, bug, place) in places {
        let is_on = match place.file.starts_with("thalweg-memory/") {
            true => format!("crate::planted::is_on({number})"),
            false => format!("thalweg_memory::planted::is_on({number})"),
        };
        let right: String = place.right.split_whitespace().collect();
        let parts = right.split_once('«').and_then(|(before, rest)| Some((before, rest.split_once('»')?)));
        let Some((before, (choice, after))) = parts else {
            return Err(format!("{}: the right text has no «»", bug.name));
        };
        let whole = [before, choice, after].concat();
        let mut found =
            bare.windows(whole.len()).enumerate().filter(|(_, window)| *window == whole.as_bytes());
        let (Some((at, _)), None) = (found.next(), found.next()) else {
            return Err(format!("{}: its text is not in {} once: {}", bug.name, place.file, place.right));
        };
        let from = at + before.len();
        let wrong = place.wrong.replace('@', &is_on);
        if choice.is_empty() {
            // After the preceding text, and before white space, so that a line stays a line.
            let place = if from == 0 { 0 } else { kept[from - 1].0 + 1 };
            edits.push((place, place, format!(" {wrong} ")));
        } else {
            let (begin, end) = (kept[from].0, kept[from + choice.len() - 1].0 + 1);
            let right = &source[begin..end];
            edits.push((begin, end, format!("(if {is_on} {{ {wrong} }} else {{ {right} }})")));
        }
    }
    edits.sort_by_key(|(begin, ..)| *begin);
    let (mut mutated, mut done) = (String::new(), 0);
    for (begin, end, text) in edits {
        mutated.push_str(source.get(done..begin).ok_or("two planted bugs overlap")?);
        mutated.push_str(&text);
        done = end;
    }
    mutated.push_str(&source[done..]);
    Ok(mutated)
}

/// Builds the programs in the copy, and returns their file.
fn build(root: &Path) -> Result<String, String> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["test", "--workspace", "--test", "planted", "--no-run", "--message-format", "json"])
        .current_dir(root.join("target/planted"))
        .env("CARGO_TARGET_DIR", root.join("target"))
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo cannot be started: {error}"))?;
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    if !output.status.success() {
        // Warnings only concern the form of the switches.
        let errors = messages.filter(|message| message["message"]["level"] == "error");
        errors.for_each(|error| eprintln!("{}", error["message"]["rendered"].as_str().unwrap_or_default()));
        return Err("the copy with the planted bugs cannot be built".into());
    }
    let mut programs = messages.filter_map(|message| message["executable"].as_str().map(str::to_owned));
    programs.find(|program| program.contains("planted")).ok_or("cargo names no program".into())
}

// ---- The judge --------------------------------------------------------------------------------------------------------------

/// The result of a bug.
struct Verdict {
    /// The last seed and program.
    seed: u64,
    program: String,
    /// The detector that caught the bug; `None` if it was not caught.
    by: Option<String>,
    /// The rest of the process's output.
    report: String,
}

struct Running {
    bug: usize,
    child: Child,
    begun: Instant,
    output: thread::JoinHandle<String>,
    errors: thread::JoinHandle<String>,
}

fn start(program: &str, bug: usize) -> Result<Running, String> {
    let mut child = Command::new(program)
        .env(VARIABLE, bug.to_string())
        .env_remove("THALWEG_SEED")
        .env_remove("THALWEG_SEEDS")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{program} cannot be started: {error}"))?;
    let read = |mut pipe: Box<dyn std::io::Read + Send>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let output = read(Box::new(child.stdout.take().expect("it is piped")));
    let errors = read(Box::new(child.stderr.take().expect("it is piped")));
    Ok(Running { bug, child, begun: Instant::now(), output, errors })
}

/// Returns whether the process has ended, and if so, whether without being killed.
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
    let by = match (last("caught "), last("missed")) {
        (Some(by), _) => Some(by),
        (None, Some(_)) => None,
        (None, None) if by_itself => Some(format!("it dies: {status}")),
        // A program that hangs reports nothing.
        (None, None) => None,
    };
    let report = match (&by, last("missed")) {
        (Some(_), _) => report,
        (None, None) => "it hangs".to_owned(),
        (None, Some(_)) if report.contains("the planted bug runs") => "its line runs".to_owned(),
        (None, Some(_)) => "its line never runs".to_owned(),
    };
    Verdict { seed, program, by, report }
}

/// Prints the table, and returns whether all results are as expected.
fn report(bugs: &[Bug], verdicts: &[(usize, Verdict)]) -> bool {
    let mut failures = String::new();
    println!(
        "\n| planted bug | where | what goes wrong | seeds | program | caught by |\n|---|---|---|---|---|---|"
    );
    for (number, Verdict { seed, program, by, report }) in verdicts {
        let by_what = by.as_deref();
        let Some(bug) = number.checked_sub(1).map(|index| &bugs[index]) else {
            let _ = match by_what {
                None => writeln!(failures, "no bug: all programs pass under all seeds"),
                Some(by) => writeln!(
                    failures,
                    "FAILED: with no bug planted, `{program}` fails with seed {seed}: {by}\n{report}"
                ),
            };
            continue;
        };
        let (name, what) = (&bug.name, &bug.what);
        let place =
            bug.places[0].file.trim_start_matches("thalweg-").replace("/src/", "/").replace(".rs", "");
        let (seeds, by) = (seed + 1, by_what.unwrap_or("**nothing**"));
        println!("| `{name}` | `{place}` | {what} | {seeds} | {program} | {by} |");
        if by_what.is_none() {
            let _ = writeln!(failures, "FAILED: {name} is not caught within {seeds} seeds: {report}");
        }
    }
    let caught = verdicts.iter().filter(|(bug, verdict)| *bug > 0 && verdict.by.is_some()).count();
    let failed = verdicts.iter().filter(|(bug, verdict)| (*bug == 0) == verdict.by.is_some()).count();
    println!("\n{failures}{caught} planted bugs are caught, {failed} failures");
    failed == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_has_its_places() {
        let root = crate::root();
        let bugs = parse(&read(&root.join(LIST)).unwrap()).unwrap();
        let places = || bugs.iter().flat_map(|bug| bug.places.iter().map(move |place| (1, bug, place)));
        let files: BTreeSet<&str> = places().map(|(.., place)| &*place.file).collect();
        for file in files {
            let here: Vec<_> = places().filter(|(.., place)| place.file == file).collect();
            let source = read(&root.join("crates").join(file)).unwrap();
            mutate(&source, &here).unwrap_or_else(|text| panic!("{text}"));
        }
    }
}
