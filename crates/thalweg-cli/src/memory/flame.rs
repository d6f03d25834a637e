//! `thalweg memory flame`: the live memory of a moment as folded stacks, which all flame graph programs read.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use thalweg::memory_tools::analysis::{Moment, summarise};
use thalweg::snapshot::{Recording, StackId};

use super::files;
use super::moment::At;
use super::places::printable;
use crate::output::{Failure, Output};

/// Prints the live memory by stack, as lines that flame graphs are drawn from
#[derive(Args)]
#[command(after_help = "\
Example:
  thalweg memory flame snapshot.pickle > live.folded")]
pub struct FlameArgs {
    /// Files that _dump_snapshot wrote, of one rank or several
    #[arg(required = true, value_name = "SNAPSHOT")]
    snapshots: Vec<PathBuf>,
    /// The moment at which what is live is taken
    #[arg(long, value_name = "MOMENT", default_value = "peak")]
    at: At,
}

pub fn run(arguments: &FlameArgs) -> Result<ExitCode, Failure> {
    let output = Output::standard();
    files::each(&arguments.snapshots, |path, recording| {
        for device in recording.devices() {
            let root = format!("{} device {device}", plain(path));
            for (stack, bytes) in folded(recording, arguments.at.of(&summarise(recording, device))) {
                output.text(&format!("{root};{stack} {bytes}\n"));
            }
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the live bytes by stack, each stack from its outermost frame to its innermost, in the order of their texts.
fn folded(recording: &Recording, moment: &Moment) -> BTreeMap<String, u64> {
    let mut stacks = BTreeMap::new();
    for group in &moment.by_stack {
        let bytes: &mut u64 = stacks.entry(text(recording, group.stack)).or_default();
        *bytes = bytes.saturating_add(group.bytes);
    }
    stacks
}

fn text(recording: &Recording, stack: Option<StackId>) -> String {
    let frames = stack.into_iter().flat_map(|stack| recording.stack(stack));
    let mut frames: Vec<String> = frames
        .map(|frame| {
            // The last two parts of a path distinguish files.
            let file = frame.filename;
            let short = file.rmatch_indices(['/', '\\']).nth(1).map_or(file, |(at, _)| &file[at + 1..]);
            plain(&format!("{} {short}:{}", frame.name, frame.line))
        })
        .collect();
    if frames.is_empty() {
        return "(no stack recorded)".into();
    }
    frames.reverse();
    frames.join(";")
}

/// Returns a name without the characters that separate frames.
fn plain(name: &str) -> String {
    printable(name).replace(';', ",")
}
