//! `thalweg memory`: a program's use of GPU memory, from a snapshot that PyTorch wrote; no GPU is needed.
//!
//! The figures are those of [`thalweg::memory_tools::analysis`]; this module has files, arguments and tables. Each subcommand is
//! a module with its arguments and a function `run`; [`What`] is the one list of them.
//!
//! # Invariants
//! - Files are only read. Any content leads to a result or an error message.
//! - The output mentions what the toolbox cannot know: memory outside the allocator, events before the trace, the rules of
//!   `cudaMallocAsync`.
//! - Only `check` uses exit status 1. A file that cannot be read is status 2.

mod check;
mod diff;
mod events;
mod files;
mod flame;
mod moment;
mod page;
mod places;
mod replay;
mod sections;
mod shortage;
mod show;
mod size;
mod stacks;
mod table;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::output::Failure;

/// Shows what held the memory in a PyTorch snapshot, and what other settings would do
#[derive(Args)]
#[command(
    arg_required_else_help = true,
    after_help = "\
A SNAPSHOT is what torch.cuda.memory._dump_snapshot wrote: a pickle, or JSON,
packed with gzip or not; - is standard input. Nothing in a file is run, and no
GPU is needed.

Examples:
  thalweg memory show snapshot.pickle --html page.html
  thalweg memory replay snapshot.pickle --search --gpu-memory 24GiB
  thalweg memory diff before.pickle after.pickle
  thalweg memory check snapshot.pickle --max-reserved 20GiB --max-growth 2%

The exit status is 0; 1 if check found a limit passed; 2 if a file could not be
read or the command makes no sense."
)]
pub struct MemoryArgs {
    #[command(subcommand)]
    subcommand: What,
}

#[derive(Subcommand)]
enum What {
    Show(show::ShowArgs),
    Replay(replay::ReplayArgs),
    Diff(diff::DiffArgs),
    Check(check::CheckArgs),
    Events(events::EventsArgs),
    At(events::AtArgs),
    Flame(flame::FlameArgs),
}

/// Runs the command.
pub fn run(arguments: &MemoryArgs) -> Result<ExitCode, Failure> {
    match &arguments.subcommand {
        What::Show(arguments) => show::run(arguments),
        What::Replay(arguments) => replay::run(arguments),
        What::Diff(arguments) => diff::run(arguments),
        What::Check(arguments) => check::run(arguments),
        What::Events(arguments) => events::run(arguments),
        What::At(arguments) => events::at(arguments),
        What::Flame(arguments) => flame::run(arguments),
    }
}
