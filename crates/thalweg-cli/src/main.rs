//! The command line of Thalweg.
//!
//! [`Command`] is the one list of commands: parsing, help, suggestions, completions and manual pages are derived from it. A
//! command is a module with its `CommandLine` and a function `run`.
//!
//! # Invariants
//! - Exit statuses: 0 for success, 1 if the command ran and found a problem, 2 for a usage error, or if a file could not be read
//!   or written.
//! - Results go to standard output, errors to standard error: a few lines that begin with `error:`. A closed pipe is not an
//!   error.
//! - Colour is used only on terminals, unless `--color` or the environment overrides that.
#![forbid(unsafe_code)]

mod audit;
mod bench;
mod doctor;
mod explain;
mod generate;
mod memory;
mod ops;
mod output;
mod precompile;
mod profile;
mod sim;
mod tune;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ErrorKind};
use clap::{ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};

use output::{Failure, Output, print_error};

/// GPU memory, races and graphs of PyTorch programs: what happened, and what to do.
#[derive(Parser)]
#[command(name = "thalweg", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct CommandLine {
    /// The rule for colouring words: always, never, or as the terminal, NO_COLOR and CLICOLOR_FORCE say
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value_t,
        hide_possible_values = true,
        display_order = 100
    )]
    color: ColorChoice,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  thalweg doctor
  thalweg memory show snapshot.pickle
  thalweg memory replay snapshot.pickle --search --gpu-memory 24GiB
  thalweg sim --seeds 100 -- target/debug/train --steps 5";

#[derive(Subcommand)]
enum Command {
    Audit(audit::AuditArgs),
    Bench(bench::BenchArgs),
    Doctor(doctor::DoctorArgs),
    Explain(explain::ExplainArgs),
    Memory(memory::MemoryArgs),
    Ops(ops::OpsArgs),
    Precompile(precompile::PrecompileArgs),
    Profile(profile::ProfileArgs),
    Sim(sim::SimArgs),
    Tune(tune::TuneArgs),
    Completions(generate::Completions),
    Man(generate::Man),
}

fn main() -> ExitCode {
    output::finish(run())
}

fn run() -> ExitCode {
    let command = CommandLine::command().term_width(output::width());
    let parsed = command.try_get_matches().and_then(|found| CommandLine::from_arg_matches(&found));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => return answer(error),
    };
    colour(arguments.color);
    let outcome = match arguments.command {
        Command::Audit(arguments) => Ok(audit::run(&arguments)),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Doctor(arguments) => Ok(doctor::run(&arguments)),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Memory(arguments) => memory::run(&arguments),
        Command::Ops(arguments) => ops::run(&arguments),
        Command::Precompile(arguments) => precompile::run(&arguments),
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Sim(arguments) => Ok(sim::run(&arguments)),
        Command::Tune(arguments) => tune::run(&arguments),
        Command::Completions(arguments) => Ok(generate::completions(&arguments)),
        Command::Man(arguments) => generate::man(&arguments),
    };
    outcome.unwrap_or_else(|Failure(text)| print_error(&text))
}

/// Prints the requested help, or the error in the arguments, without the usage, which would hide it.
fn answer(mut error: clap::Error) -> ExitCode {
    // Arguments after an error are not parsed, but still apply.
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let asks_for = |value: &str| {
        let joined = format!("--color={value}");
        arguments.iter().any(|argument| *argument == *joined)
            || arguments.windows(2).any(|pair| pair[0] == "--color" && pair[1] == value)
    };
    match (asks_for("always"), asks_for("never")) {
        (true, false) => colour(ColorChoice::Always),
        (false, true) => colour(ColorChoice::Never),
        _ => {}
    }
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !is_help {
        error.remove(ContextKind::Usage);
    }
    let text = error.render().ansi().to_string();
    match (error.use_stderr(), is_help) {
        (false, _) => {
            Output::standard().text(&text);
            ExitCode::SUCCESS
        }
        (true, true) => output::explain(&text),
        (true, false) => output::explain(&text.replace("\n\n", "\n")),
    }
}

/// Sets the global choice of colour.
fn colour(choice: ColorChoice) {
    match choice {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    }
    .write_global();
}
