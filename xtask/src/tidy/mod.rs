//! `cargo xtask tidy`: checks of the project's rules that need only the text, in well under a second.
//!
//! - Every Rust file begins with its module's documentation (`//!`).
//! - No file is longer than [`FILE`], no function longer than [`FUNCTION`].
//! - Nothing is left undone in sources: none of the words of [`UNDONE`].
//! - No file names a folder of a machine ([`MACHINE_FOLDERS`]). A line that must contain one has the mark `tidy: a made-up path`.
//! - The texts of both licences exist.
//! - No crate has a large circle of modules that use each other, and no module uses a higher room of its crate ([`circles`]).
//! - Nothing is decided by an operator's name ([`by_name`]).
//! - Every crate can be published, and its tests run ([`packages`]).
//! - The book has every page, and links lead to what exists ([`book`]).
//! - The words are those of the glossary, and each documentation comment is complete ([`words`], [`openings`]).
//!
//! It reads the files that git tracks or would add, and understands Rust only as far as [`scan`] does.

mod book;
mod by_name;
mod circles;
mod openings;
mod packages;
mod scan;
mod words;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A limit in lines: above the first it is a warning, above the second an error.
struct Limit {
    warning: usize,
    error: usize,
}

const FILE: Limit = Limit { warning: 800, error: 1000 };
const FUNCTION: Limit = Limit { warning: 70, error: 100 };

/// Words of unfinished work, each put together so that this file does not contain it.
const UNDONE: [&str; 6] = [
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("dbg", "!("),
    concat!("FIX", "ME"),
    concat!("TO", "DO"),
    concat!("allow(dead", "_code)"),
];

/// Folders that exist on one machine and not on the next, also put together. A made-up user is called `me`.
const MACHINE_FOLDERS: [&str; 5] = [
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!("/tm", "p/"),
    concat!("/wo", "rk/"),
];

/// The mark that excuses a line with a machine's folder.
const EXCUSE: &str = "tidy: a made-up path";

const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Level {
    Error,
    Warning,
}

/// A violation of a rule.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Finding {
    level: Level,
    file: String,
    /// The line, from 1; 0 for the whole file.
    line: usize,
    what: String,
}

/// Checks the repository and prints a table; `false` if there is an error.
pub fn run() -> Result<bool, String> {
    let root = crate::root();
    let files = files(&root)?;
    let mut findings = Vec::new();
    let mut lines = 0;
    let mut packages: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let mut pages = BTreeMap::new();
    for file in &files {
        // Pictures and archives are not text; a file that was removed, but is still in git's list, cannot be read.
        let Ok(text) = fs::read_to_string(root.join(file)) else { continue };
        lines += text.lines().count();
        check(file, &text, &mut findings);
        words::check(file, &text, &mut findings);
        openings::check(file, &text, &mut findings);
        by_name::check(file, &text, &mut findings);
        if file.ends_with(".md") && !file.contains("/tests/") {
            pages.insert(file.clone(), text);
            continue;
        }
        let source = file.strip_prefix("crates/").and_then(|rest| rest.split_once("/src/"));
        if let Some((package, source)) = source.filter(|(_, source)| source.ends_with(".rs")) {
            packages.entry(package.to_owned()).or_default().push((source.to_owned(), text));
        }
    }
    for (package, sources) in packages {
        let [manifest, tests] = ["Cargo.toml", "tests/it/main.rs"].map(|file| {
            fs::read_to_string(root.join(format!("crates/{package}/{file}"))).unwrap_or_default()
        });
        for (file, text) in &sources {
            let is_included = tests.contains(&format!("src/{file}\""));
            let unused = packages::unused_tests(&manifest, text, is_included);
            findings.extend(unused.map(|what| Finding {
                level: Level::Error,
                file: format!("crates/{package}/src/{file}"),
                line: 0,
                what: what.into(),
            }));
        }
        for (module, used) in circles::upward(&package, &sources) {
            findings.push(Finding {
                level: Level::Error,
                file: format!("crates/{package}/src"),
                line: 0,
                what: format!("`{module}` uses `{used}`, which is in a higher room"),
            });
        }
        if let Some(circle) = circles::too_large(&sources) {
            let (count, most) = (circle.len(), circles::MOST);
            let what = format!("{count} files use each other, more than {most}: {}", circle.join(", "));
            findings.push(Finding {
                level: Level::Error,
                file: format!("crates/{package}/src"),
                line: 0,
                what,
            });
        }
    }
    for licence in LICENCES.into_iter().filter(|licence| !root.join(licence).is_file()) {
        findings.push(Finding {
            level: Level::Error,
            file: licence.into(),
            line: 0,
            what: "is missing".into(),
        });
    }
    packages::check(&root, &mut findings);
    book::check(&root, &pages, &mut findings);
    findings.sort();
    Ok(print(&findings, files.len(), lines))
}

/// Returns the files that git tracks or would, with paths from the root.
pub fn files(root: &Path) -> Result<Vec<String>, String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("git, which knows the files, cannot be started: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "git does not list the files: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    let mut files: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    files.sort();
    files.dedup();
    Ok(files)
}

fn check(file: &str, text: &str, findings: &mut Vec<Finding>) {
    let mut add =
        |level, line, what: String| findings.push(Finding { level, file: file.to_owned(), line, what });
    let is_rust = file.ends_with(".rs");
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(folder) = MACHINE_FOLDERS.iter().find(|folder| names(line, folder))
            && !line.contains(EXCUSE)
        {
            add(Level::Error, number, format!("names a machine's folder, {folder}"));
        }
        if is_rust && let Some(word) = UNDONE.iter().find(|word| line.contains(**word)) {
            add(Level::Error, number, format!("is not done: {word}"));
        }
    }
    if !is_rust {
        return;
    }
    if !text.starts_with("//!") {
        add(Level::Error, 1, "does not open with what it is for (//!)".into());
    }
    let lines = text.lines().count();
    if let Some(level) = level_of(lines, &FILE) {
        add(level, 0, format!("has {lines} lines, more than {}", limit(level, &FILE)));
    }
    for function in scan::functions(text) {
        if let Some(level) = level_of(function.lines, &FUNCTION) {
            let scan::Function { name, line, lines } = function;
            add(level, line, format!("fn {name} has {lines} lines, more than {}", limit(level, &FUNCTION)));
        }
    }
}

/// Returns whether a line names an absolute path into the folder: `see /x/y` does; `target/x/y` and `/x/me` do not.
fn names(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(place, _)| {
        let mut made_up = line[place + folder.len()..].chars();
        if made_up.by_ref().take(2).eq(['m', 'e'])
            && made_up.next().is_none_or(|next| !next.is_alphanumeric())
        {
            return false;
        }
        let before = line[..place].chars().next_back();
        before.is_none_or(|character| !(character.is_alphanumeric() || "._-/~}*".contains(character)))
    })
}

fn level_of(lines: usize, limit: &Limit) -> Option<Level> {
    match lines {
        _ if lines > limit.error => Some(Level::Error),
        _ if lines > limit.warning => Some(Level::Warning),
        _ => None,
    }
}

const fn limit(level: Level, limit: &Limit) -> usize {
    match level {
        Level::Error => limit.error,
        Level::Warning => limit.warning,
    }
}

fn print(findings: &[Finding], files: usize, lines: usize) -> bool {
    let place = |finding: &Finding| match finding.line {
        0 => finding.file.clone(),
        line => format!("{}:{line}", finding.file),
    };
    let width = findings.iter().map(|finding| place(finding).len()).max().unwrap_or(0);
    for finding in findings {
        let level = if finding.level == Level::Error { "error" } else { "warning" };
        println!("{level:<8} {:<width$}  {}", place(finding), finding.what);
    }
    let errors = findings.iter().filter(|finding| finding.level == Level::Error).count();
    println!("{files} files, {lines} lines: {errors} errors, {} warnings", findings.len() - errors);
    errors == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, text: &str) -> Vec<(Level, usize)> {
        let mut findings = Vec::new();
        check(file, text, &mut findings);
        findings.iter().map(|finding| (finding.level, finding.line)).collect()
    }

    #[test]
    fn each_rule_is_seen() {
        assert_eq!(found("a.rs", "//! Essay.\nfn f() {}\n"), []);
        assert_eq!(found("a.rs", "fn f() {}\n"), [(Level::Error, 1)]);
        for word in UNDONE {
            assert_eq!(found("a.rs", &format!("//! Essay.\n// {word}\n")), [(Level::Error, 2)], "{word}");
            assert_eq!(found("a.md", word), [], "prose may speak of it");
        }
        for folder in MACHINE_FOLDERS {
            assert_eq!(found("a.md", &format!("x\nsee {folder}y\n")), [(Level::Error, 2)], "{folder}");
            assert_eq!(found("a.md", &format!("see target{folder}y, or {folder}y ({EXCUSE})\n")), []);
            assert_eq!(found("a.md", &format!("{folder}me/x and {folder}me\n")), []);
            assert_eq!(found("a.md", &format!("{folder}melinda")), [(Level::Error, 1)]);
        }
    }

    #[test]
    fn sizes_are_judged() {
        let file = |lines: usize| format!("//! Essay.\n{}", "\n".repeat(lines - 1));
        assert_eq!(found("a.rs", &file(800)), []);
        assert_eq!(found("a.rs", &file(801)), [(Level::Warning, 0)]);
        assert_eq!(found("a.rs", &file(1001)), [(Level::Error, 0)]);
        let function = |lines: usize| format!("//! Essay.\nfn f() {{{}}}\n", "\n".repeat(lines - 1));
        assert_eq!(found("a.rs", &function(70)), []);
        assert_eq!(found("a.rs", &function(71)), [(Level::Warning, 2)]);
        assert_eq!(found("a.rs", &function(101)), [(Level::Error, 2)]);
    }
}
