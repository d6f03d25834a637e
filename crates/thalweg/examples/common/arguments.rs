//! The command lines of the examples.

use std::iter::Skip;
use std::process::{ExitCode, Termination};

use thalweg::Device;

/// The request of a command line.
pub enum Command<O> {
    Run(O),
    Help,
}

/// Runs an example according to its command line. The exit status is 2 for an invalid command line, and 1 for an error.
pub fn run<O, T: Termination>(
    name: &str,
    usage: &str,
    parse: impl FnOnce(Skip<std::env::Args>) -> Result<Command<O>, String>,
    body: impl FnOnce(&O) -> thalweg::Result<T>,
) -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(Command::Run(options)) => options,
        Ok(Command::Help) => {
            println!("{usage}");
            return ExitCode::SUCCESS;
        }
        Err(text) => {
            eprintln!("{name}: {text}\n\n{usage}");
            return ExitCode::from(2);
        }
    };
    match body(&options) {
        Ok(result) => result.report(),
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the device of a name, or the best one.
pub fn device(name: Option<&str>) -> thalweg::Result<Device> {
    name.map_or_else(Device::best, Device::from_name)
}

/// Parses an integer that is at least `least`.
pub fn number(name: &str, text: &str, least: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|&number| number >= least);
    number.ok_or_else(|| format!("{name} takes a whole number from {least} on, not '{text}'"))
}
