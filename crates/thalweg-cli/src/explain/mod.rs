//! `thalweg explain`: what compiled functions fused, and where their memory is, as a page.

mod model;
mod page;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use self::model::Segment;
use crate::output::{Failure, Output};

/// Draws the fused loops of compiled functions, the reasons against more fusion, and their memory
#[derive(Args)]
#[command(after_help = "\
The file is what a program recorded: run it with THALWEG_EXPLAIN_FILE=FILE. Each
segment of a compiled function is in it once, when its program is planned.

Examples:
  THALWEG_EXPLAIN_FILE=segments.json python train.py
  thalweg explain segments.json --output explained.html")]
pub struct ExplainArgs {
    /// The file with the segments
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The page that is written
    #[arg(long, value_name = "PAGE", default_value = "explained.html")]
    output: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &ExplainArgs) -> Result<ExitCode, Failure> {
    let named =
        |path: &PathBuf, error: &dyn std::fmt::Display| Failure(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(&arguments.file).map_err(|error| named(&arguments.file, &error))?;
    let segments = (text.lines().zip(1..))
        .filter(|(line, _)| !line.trim().is_empty())
        .map(|(line, number)| {
            Segment::read(line).map_err(|error| named(&arguments.file, &format!("line {number}: {error}")))
        })
        .collect::<Result<Vec<_>, _>>()?;
    if segments.is_empty() {
        return Err(named(
            &arguments.file,
            &"no segment is in it: run the program with THALWEG_EXPLAIN_FILE",
        ));
    }
    std::fs::write(&arguments.output, page::page(&segments))
        .map_err(|error| named(&arguments.output, &error))?;
    let (loops, kernels) = model::totals(&segments);
    let output = Output::standard();
    let count = segments.len();
    output.line(
        0,
        &format!(
            "{count} segments: {loops} loops fused into {kernels} kernels; {}",
            arguments.output.display()
        ),
    );
    Ok(ExitCode::SUCCESS)
}
