//! `thalweg completions` and `thalweg man`: completions and manual pages, derived from the command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::output::{Failure, Output};

/// Prints what a shell needs to complete commands and options
#[derive(Args)]
#[command(after_help = "\
Examples:
  thalweg completions bash > ~/.local/share/bash-completion/completions/thalweg
  thalweg completions fish > ~/.config/fish/completions/thalweg.fish")]
pub struct Completions {
    /// The shell to write completions for
    shell: Shell,
}

/// Writes the manual pages of all commands into a folder
#[derive(Args)]
#[command(after_help = "\
Example:
  thalweg man ~/.local/share/man/man1 && man thalweg-memory-replay")]
pub struct Man {
    /// The folder of the pages, which is created if it does not exist
    folder: PathBuf,
}

pub fn completions(arguments: &Completions) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut crate::CommandLine::command(), "thalweg", &mut script);
    Output::standard().text(&String::from_utf8_lossy(&script));
    ExitCode::SUCCESS
}

pub fn man(arguments: &Man) -> Result<ExitCode, Failure> {
    let folder = &arguments.folder;
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(crate::CommandLine::command(), folder))
        .map_err(|error| Failure(format!("{}: {error}", folder.display())))?;
    Ok(ExitCode::SUCCESS)
}
