//! `thalweg profile`: a program's run on a timeline.

use std::ffi::OsString;
use std::fs::{File, remove_file};
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::{PathBuf, absolute};
use std::process::{Command, ExitCode, ExitStatus};

use clap::Args;

use crate::output::{Failure, print_error};

/// Records what a program does on the GPU, as a timeline for Perfetto and a table
#[derive(Args)]
#[command(
    override_usage = "thalweg profile [OPTIONS] -- PROGRAM [ARGS]",
    after_help = "\
PROGRAM uses Thalweg, and needs no change. When it exits, its kernels, copies and
fills stand per stream in a file of the form that PyTorch's profiler writes: open
it at https://ui.perfetto.dev. A table of its operators goes to standard error.

Examples:
  thalweg profile -- target/debug/train --steps 5
  thalweg profile --output step.json --rows 0 -- target/debug/train
  thalweg profile --memory -- target/debug/train

The exit status is the program's; 1 if it left no trace, 127 if there is no such
program, and 126 if it cannot be run."
)]
pub struct ProfileArgs {
    /// The file for the trace
    #[arg(long, short, value_name = "FILE", default_value = "trace.json")]
    output: PathBuf,
    /// The number of rows that the table has, 0 for no table
    #[arg(long, value_name = "N", default_value_t = 20)]
    rows: u64,
    /// Record each block that the caching allocator hands out or takes back
    #[arg(long)]
    memory: bool,
    /// The program that is to run, with its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

const PATH_VARIABLE: &str = "THALWEG_PROFILE";

/// A shell's statuses for a program that does not exist, and for one that cannot be run; and the number that it adds to a signal.
const NOT_FOUND: u8 = 127;
const NOT_RUN: u8 = 126;
const SIGNAL: i32 = 128;

/// Runs the command.
pub fn run(arguments: &ProfileArgs) -> Result<ExitCode, Failure> {
    if std::env::var_os(PATH_VARIABLE).is_some_and(|path| !path.is_empty()) {
        return Err(Failure(
            "`thalweg profile` inside `thalweg profile`: a program has one profiler".to_owned(),
        ));
    }
    let shown = arguments.output.display();
    let refuse = |error: std::io::Error| Failure(format!("{shown} cannot be written: {error}"));
    let path = absolute(&arguments.output).map_err(refuse)?;
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        return Err(Failure(format!("{shown} cannot be written: it is not a regular file")));
    }
    // An error is found before the program runs, not after. The program creates the file itself.
    File::create(&path).and_then(|_| remove_file(&path)).map_err(refuse)?;
    let program = &arguments.program[0];
    let status = Command::new(program)
        .args(&arguments.program[1..])
        .env(PATH_VARIABLE, &path)
        .env("THALWEG_PROFILE_ROWS", arguments.rows.to_string())
        .env("THALWEG_PROFILE_MEMORY", if arguments.memory { "1" } else { "0" })
        .status();
    match status {
        Err(error) => {
            print_error(&format!("`{}` did not start: {error}", program.display()));
            Ok(ExitCode::from(if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_RUN }))
        }
        Ok(status) if path.exists() => {
            eprintln!("{shown}: open it at https://ui.perfetto.dev");
            Ok(exit_code(status))
        }
        Ok(status) => {
            print_error(&format!(
                "no trace: the program used no device through Thalweg, or did not exit by itself ({status})"
            ));
            Ok(if status.success() { ExitCode::FAILURE } else { exit_code(status) })
        }
    }
}

/// Returns a program's status as a shell would.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| SIGNAL + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
