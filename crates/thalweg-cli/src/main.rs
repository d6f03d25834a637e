//! The command line of Thalweg.
//!
//! `thalweg COMMAND [options]`: [`COMMANDS`] is the one list of commands, from which the help, the parsing and the
//! complaints about unknown commands are derived. A command is a module with a `COMMAND` constant.
//!
//! # Invariants
//! - Exit statuses: 0 is success, 1 is that the command ran and what it looked at is not in order, 2 is that it was called
//!   wrongly (and nothing was done).
//! - Results go to standard output, complaints to standard error. A reader who stops reading is no error.
//! - No colour and no cursor movement unless standard output is a terminal.
#![forbid(unsafe_code)]

mod audit;
mod doctor;
mod memory;
mod output;
mod progress;
mod sim;

use std::process::ExitCode;

use output::{Output, complain};

/// One command.
struct Command {
    name: &'static str,
    /// What it is for, in half a line.
    summary: &'static str,
    /// The text of `thalweg NAME --help`.
    usage: &'static str,
    /// Runs it with the arguments behind its name.
    run: fn(&[String]) -> Result<ExitCode, UsageError>,
}

/// What is wrong with the arguments, in a sentence.
struct UsageError(String);

const COMMANDS: &[Command] = &[audit::COMMAND, doctor::COMMAND, memory::COMMAND, sim::COMMAND];

fn main() -> ExitCode {
    output::finish(run())
}

fn run() -> ExitCode {
    // A name that is no UTF-8 is no option of ours either; it is shown as well as it can be.
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    let Some((first, rest)) = arguments.split_first() else {
        return complain(&usage());
    };
    match first.as_str() {
        "--help" | "-h" => print(&usage()),
        "help" => match rest.first().map(|name| (name, find(name))) {
            None => print(&usage()),
            Some((_, Some(command))) => print(command.usage),
            Some((name, None)) => complain(&unknown_command(name)),
        },
        "--version" | "-V" => match rest.first() {
            None => print(&format!("thalweg {}\n", env!("CARGO_PKG_VERSION"))),
            Some(extra) => complain(&format!("thalweg: {first} stands alone, without `{extra}`")),
        },
        name => match find(name) {
            Some(command) if rest.iter().any(|argument| argument == "--help" || argument == "-h") => {
                print(command.usage)
            }
            Some(command) => (command.run)(rest).unwrap_or_else(|UsageError(text)| {
                let name = command.name;
                complain(&format!("thalweg {name}: {text}\n`thalweg {name} --help` says what it takes"))
            }),
            None => complain(&unknown_command(name)),
        },
    }
}

fn find(name: &str) -> Option<&'static Command> {
    COMMANDS.iter().find(|command| command.name == name)
}

fn unknown_command(name: &str) -> String {
    let names: Vec<_> = COMMANDS.iter().map(|command| command.name).collect();
    format!("thalweg: there is no command `{name}`; the commands are: {}", names.join(", "))
}

fn usage() -> String {
    let mut text = String::from("usage: thalweg COMMAND [options]\n\n");
    for Command { name, summary, .. } in COMMANDS {
        text.push_str(&format!("  {name:<10} {summary}\n"));
    }
    text.push_str("\n  thalweg COMMAND --help   what a command takes\n  thalweg --version        which version this is\n");
    text
}

fn print(text: &str) -> ExitCode {
    Output::standard().text(text);
    ExitCode::SUCCESS
}
