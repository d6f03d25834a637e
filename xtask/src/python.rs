//! `cargo xtask python` and `cargo xtask wheel thalweg`: the extension module of the Python package, its tests, stubs and wheel.
//!
//! Python files are processed by Python scripts in `crates/thalweg-python`. The module is built into the package's folder, where
//! git ignores it, so that the package also works from the checkout.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

/// The crate's folder in the repository.
const FOLDER: &str = "crates/thalweg-python";

/// The packs of compiled kernels in the package, which git ignores.
const KERNELS: &str = "crates/thalweg-python/python/thalweg/kernels";

/// Build the extension module beside the Python package, and run the package's tests
#[derive(Args)]
pub struct TestArgs {
    /// Run only tests with one of these in their names
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
    #[command(flatten)]
    interpreter: InterpreterArgs,
}

/// The interpreter that a chore is for.
#[derive(Args)]
struct InterpreterArgs {
    /// The interpreter, which may be a free-threaded one (`python3.13t`) [default: python3]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
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
    /// The architectures for which the wheel has machine code of common kernels
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "sm_80,sm_90,sm_100")]
    archs: Vec<String>,
    /// Leave that machine code out: each kernel is compiled when it is first used
    #[arg(long)]
    no_kernels: bool,
    #[command(flatten)]
    interpreter: InterpreterArgs,
}

/// Builds the extension module and runs the tests whose names contain one of the filters, or all. Returns whether all passed.
pub fn test(options: &TestArgs) -> Result<bool, String> {
    if options.interpreter.python.is_none() && !has_python() {
        println!(
            "python: there is no python3 on this machine, so the tests of the Python package are left out"
        );
        return Ok(true);
    }
    let python = Interpreter::query(&options.interpreter)?;
    build("dev", &python)?;
    run_script(&python, "tests/run.py", &options.filters)
}

/// Builds the extension module and writes the stubs that editors and type checkers read.
pub fn stubs() -> Result<bool, String> {
    let python = Interpreter::query(&InterpreterArgs { python: None })?;
    build("dev", &python)?;
    run_script(&python, "tools/stubs.py", &[])
}

/// Builds the wheel `thalweg`.
pub fn wheel(options: &ThalwegWheelArgs) -> Result<bool, String> {
    let out = options.out.clone().unwrap_or_else(|| crate::root().join("target/wheels"));
    let python = Interpreter::query(&options.interpreter)?;
    build(&options.profile, &python)?;
    if !run_script(&python, "tools/stubs.py", &[])? {
        return Ok(false);
    }
    remove(&crate::root().join(KERNELS))?;
    if !options.no_kernels {
        kernels(options, &python)?;
    }
    let out = out.to_str().ok_or("the folder's name is not UTF-8")?.to_owned();
    run_script(&python, "tools/wheel.py", &[out, env!("CARGO_PKG_VERSION").to_owned()])
}

fn remove(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(error) if folder.exists() => Err(format!("{} cannot be removed: {error}", folder.display())),
        _ => Ok(()),
    }
}

/// Records common kernels on the simulated GPU, compiles them, and packs them into the package. The compiled files are kept in the
/// target folder, so that the next wheel compiles only what has changed.
fn kernels(options: &ThalwegWheelArgs, python: &Interpreter) -> Result<(), String> {
    let root = crate::root();
    let (record, compiled) = (root.join("target/wheel-record"), root.join("target/wheel-kernels"));
    remove(&record)?;
    let mut recorder = Command::new(&python.program);
    recorder
        .arg("tools/common_kernels.py")
        .current_dir(root.join(FOLDER))
        .env("PYTHONPATH", "python")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("THALWEG_RECORD_KERNELS", &record);
    succeed(&mut recorder)?;
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut compiler = Command::new(cargo);
    compiler
        .args([
            "run",
            "--quiet",
            "--profile",
            &options.profile,
            "-p",
            "thalweg-cli",
            "--bin",
            "thalweg",
            "--",
        ])
        .arg("precompile")
        .arg(&record)
        .args(["--archs", &options.archs.join(",")])
        .arg("--out")
        .arg(&compiled)
        .arg("--pack")
        .arg(root.join(KERNELS))
        .current_dir(&root)
        .stdout(std::process::Stdio::null());
    succeed(&mut compiler).map_err(|error| {
        format!("{error}; NVRTC compiles the kernels (`pip install nvidia-cuda-nvrtc==13.0.88`), and --no-kernels leaves them out")
    })
}

fn has_python() -> bool {
    Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// An interpreter that runs the scripts and loads the extension module.
struct Interpreter {
    program: PathBuf,
    /// The suffix of the module's file name. A free-threaded build has its own; all others share the stable interface.
    suffix: String,
    /// Whether the interpreter must be passed to PyO3.
    is_named: bool,
}

impl Interpreter {
    /// Queries an interpreter, `python3` by default, for the name of the module's file.
    fn query(options: &InterpreterArgs) -> Result<Self, String> {
        const QUESTION: &str = "import sysconfig as s; print(s.get_config_var('EXT_SUFFIX') if s.get_config_var('Py_GIL_DISABLED') else '.abi3.so')";
        let program = match &options.python {
            // The extension module is built in another folder than this one.
            Some(path) if path.components().count() > 1 => std::path::absolute(path)
                .map_err(|error| format!("{} is not a path: {error}", path.display()))?,
            Some(name) => name.clone(),
            None => PathBuf::from("python3"),
        };
        let output = Command::new(&program)
            .args(["-c", QUESTION])
            .output()
            .map_err(|error| format!("{} cannot be started: {error}", program.display()))?;
        let suffix = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if !output.status.success() || !suffix.ends_with(".so") {
            return Err(format!("{} is not an interpreter of Python for Linux", program.display()));
        }
        let is_named = options.python.is_some() || suffix != ".abi3.so";
        Ok(Self { program, suffix, is_named })
    }
}

/// Builds the extension module in a profile and copies it into the package.
fn build(profile: &str, python: &Interpreter) -> Result<(), String> {
    let root = crate::root();
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.args(["build", "--profile", profile]).args(selection(profile)).current_dir(&root);
    if python.is_named {
        // PyO3 does not use the stable interface for a free-threaded build, which does not have it.
        command.env("PYO3_PYTHON", &python.program);
    }
    succeed(&mut command)?;
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let folder = if profile == "dev" { "debug" } else { profile };
    let built = target.join(folder).join("libthalweg_python.so");
    replace(&built, &root.join(FOLDER).join(format!("python/thalweg/_core{}", python.suffix)))
}

/// Returns the packages that cargo builds. Dependencies are recompiled if other crates request them with other features. So in
/// the profile of the tests, the libraries are selected as `cargo test --workspace` does, with an example, so that cargo includes
/// the dependencies of tests.
fn selection(profile: &str) -> &'static [&'static str] {
    match profile {
        "dev" => &["--workspace", "--lib", "--example", "streams"],
        _ => &["-p", "thalweg-python"],
    }
}

/// Replaces a file, which a running program may have open.
fn replace(from: &Path, to: &Path) -> Result<(), String> {
    let new = to.with_extension("new");
    fs::copy(from, &new)
        .and_then(|_| fs::rename(&new, to))
        .map_err(|error| format!("{} cannot be copied to {}: {error}", from.display(), to.display()))
}

/// Runs a script of the crate. Returns whether it succeeded.
fn run_script(python: &Interpreter, script: &str, arguments: &[String]) -> Result<bool, String> {
    let mut command = Command::new(&python.program);
    command
        .arg(script)
        .args(arguments)
        .current_dir(crate::root().join(FOLDER))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("RUST_BACKTRACE", "0");
    let status = command
        .status()
        .map_err(|error| format!("{} cannot be started: {error}", python.program.display()))?;
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
