//! `cargo xtask python` and `cargo xtask wheel thalweg`: the extension module of the Python package, its tests, stubs and wheel.
//!
//! What is done with Python files is done by Python: the scripts lie in `crates/thalweg-python`. The module is put beside the
//! package's files, where git ignores it, so that the package also works from the checkout.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

/// The crate's folder in the repository.
const FOLDER: &str = "crates/thalweg-python";

/// Build the extension module beside the Python package, and run the package's tests
#[derive(Args)]
pub struct TestArgs {
    /// Run only tests with one of these in their names
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
}

/// Build the Python wheel `thalweg` (`import thalweg`)
#[derive(Args)]
pub struct ThalwegWheelArgs {
    /// The folder of the wheel [default: target/wheels]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// The profile in which the extension module is compiled
    #[arg(long, value_name = "NAME", default_value = "bundle")]
    profile: String,
}

/// Builds the extension module and runs the tests whose names have one of the filters, or all. Returns whether all passed.
pub fn test(options: &TestArgs) -> Result<bool, String> {
    if !has_python() {
        println!(
            "python: there is no python3 on this machine, so the tests of the Python package are left out"
        );
        return Ok(true);
    }
    build("dev")?;
    run_script("tests/run.py", &options.filters)
}

/// Builds the extension module and writes the stubs that editors and type checkers read.
pub fn stubs() -> Result<bool, String> {
    build("dev")?;
    run_script("tools/stubs.py", &[])
}

/// Builds the wheel `thalweg`.
pub fn wheel(options: &ThalwegWheelArgs) -> Result<bool, String> {
    let out = options.out.clone().unwrap_or_else(|| crate::root().join("target/wheels"));
    build(&options.profile)?;
    if !run_script("tools/stubs.py", &[])? {
        return Ok(false);
    }
    let out = out.to_str().ok_or("the folder's name is not UTF-8")?.to_owned();
    run_script("tools/wheel.py", &[out, env!("CARGO_PKG_VERSION").to_owned()])
}

fn has_python() -> bool {
    Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Builds the extension module in a profile and copies it into the package.
fn build(profile: &str) -> Result<(), String> {
    let root = crate::root();
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.args(["build", "--profile", profile]).args(selection(profile)).current_dir(&root);
    succeed(&mut command)?;
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let folder = if profile == "dev" { "debug" } else { profile };
    let built = target.join(folder).join("libthalweg_python.so");
    replace(&built, &root.join(FOLDER).join("python/thalweg/_core.abi3.so"))
}

/// Returns what cargo is to build. Dependencies are compiled anew where the crates that ask for them want other features: in the profile of the tests, the
/// libraries are asked for as `cargo test --workspace` does, with an example, which makes cargo count the tests' dependencies in.
fn selection(profile: &str) -> &'static [&'static str] {
    match profile {
        "dev" => &["--workspace", "--lib", "--example", "streams"],
        _ => &["-p", "thalweg-python"],
    }
}

/// Puts a file in the place of another one, which a running program may have open.
fn replace(from: &Path, to: &Path) -> Result<(), String> {
    let new = to.with_extension("new");
    fs::copy(from, &new)
        .and_then(|_| fs::rename(&new, to))
        .map_err(|error| format!("{} cannot be copied to {}: {error}", from.display(), to.display()))
}

/// Runs a script of the crate. Returns whether it succeeded.
fn run_script(script: &str, arguments: &[String]) -> Result<bool, String> {
    let mut command = Command::new("python3");
    command
        .arg(script)
        .args(arguments)
        .current_dir(crate::root().join(FOLDER))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("RUST_BACKTRACE", "0");
    let status = command.status().map_err(|error| format!("python3 cannot be started: {error}"))?;
    Ok(status.success())
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} failed: {status}")),
        Err(error) => Err(format!("{name} cannot be started: {error}")),
    }
}
