//! `thalweg bench`: the limits of a GPU, and the speed of each operator relative to them and to PyTorch.

mod ceilings;
mod measure;
mod peer;
mod report;
mod rows;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use thalweg::Device;
use thalweg::progress::Progress;

use crate::output::{Failure, Output};
use ceilings::Ceilings;
use measure::{Prepared, Time};
use peer::Peer;
use report::{Line, Outcome, Report};
use rows::{Row, rows};

/// Measures what a GPU can do, and how long operators take on it
#[derive(Args)]
#[command(after_help = "\
A row is an operator, a dtype and extents; its time is the device's, of calls that
are replayed from a graph. With --torch PyTorch runs the same rows by turns, and
the ratio is our time by PyTorch's: below 1 is faster.

Examples:
  thalweg bench
  thalweg bench softmax layer_norm
  thalweg bench --torch --csv operators.csv
  thalweg bench --list

The exit status is 1 if an operator failed.")]
pub struct BenchArgs {
    /// Names of operators, or parts of names of families [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// The device: cuda, cuda:1, sim; by default the GPU, if there is one
    #[arg(long)]
    device: Option<String>,
    /// Rows whose tensors have more bytes together are left out
    #[arg(long, value_name = "BYTES")]
    most_bytes: Option<u64>,
    /// Times PyTorch's operators too
    #[arg(long)]
    torch: bool,
    /// Convolutions are those that cuDNN's engines were tried for (torch.backends.cudnn.benchmark), on both sides
    #[arg(long)]
    cudnn_benchmark: bool,
    /// The Python that has PyTorch
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: String,
    /// The number of times that both sides are timed by turns; the medians count
    #[arg(long, value_name = "N", default_value_t = 1)]
    rounds: usize,
    /// Writes all rows to a file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Writes a page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Lists the rows and measures nothing
    #[arg(long)]
    list: bool,
}

impl BenchArgs {
    fn takes(&self, row: &Row) -> bool {
        let bytes: u64 = row.variables.iter().map(rows::Variable::bytes).sum();
        let named = |name: &String| {
            row.operator == *name
                || row.operator.split('.').next() == Some(name)
                || row.family.contains(name.as_str())
        };
        (self.names.is_empty() || self.names.iter().any(named))
            && self.most_bytes.is_none_or(|most| bytes <= most)
    }
}

/// Runs the command.
pub fn run(arguments: &BenchArgs) -> Result<ExitCode, Failure> {
    let fail = |error: thalweg::Error| Failure(error.to_string());
    let output = Output::standard();
    let chosen: Vec<Row> = rows().into_iter().filter(|row| arguments.takes(row)).collect();
    if chosen.is_empty() {
        return Err(Failure("no row has these names; `thalweg bench --list` shows all".to_owned()));
    }
    if arguments.list {
        for row in &chosen {
            output.text(&format!("{}\n", row.name()));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let device = arguments.device.as_deref().map_or_else(Device::best, Device::from_name).map_err(fail)?;
    thalweg::backends::cudnn::set_benchmark(arguments.cudnn_benchmark);
    let mut peer =
        arguments.torch.then(|| Peer::start(&arguments.python, arguments.cudnn_benchmark)).transpose()?;
    let ceilings = Ceilings::measure(&device).map_err(fail)?;
    output.text(&ceilings.as_text(&device));
    let mut report = Report::new(ceilings, peer.as_ref().map(|peer| peer.name.clone()));
    let mut bar = Progress::transient("of the rows", chosen.len() as u64);
    for (number, row) in chosen.into_iter().enumerate() {
        report.push(measured(row, &device, peer.as_mut(), arguments.rounds.max(1))?);
        device.empty_cache().map_err(fail)?;
        bar.advance(number as u64 + 1);
    }
    drop((bar, peer));
    output.text(&report.as_text());
    let files =
        [(&arguments.csv, Report::as_csv as fn(&Report) -> String), (&arguments.html, Report::as_html)];
    for (file, text) in files.into_iter().filter_map(|(file, text)| Some((file.as_ref()?, text))) {
        std::fs::write(file, text(&report))
            .map_err(|error| Failure(format!("{} could not be written: {error}", file.display())))?;
    }
    Ok(if report.has_failures() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns a row with its times. A row that cannot be prepared here is not sent to the peer.
fn measured(row: Row, device: &Device, peer: Option<&mut Peer>, rounds: usize) -> Result<Line, Failure> {
    match Prepared::new(&row, device) {
        Ok(prepared) => {
            let (ours, theirs) = by_turns(&prepared, &row, peer, rounds)?;
            Ok(Line { row, ours, theirs, bytes: prepared.bytes() })
        }
        Err(error) => Ok(Line { row, ours: Err(error.to_string()), theirs: None, bytes: 0 }),
    }
}

/// Times a row alternately here and with the peer, and returns the medians.
fn by_turns(
    prepared: &Prepared,
    row: &Row,
    mut peer: Option<&mut Peer>,
    rounds: usize,
) -> Result<(Outcome, Option<Outcome>), Failure> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.push(prepared.time().map_err(|error| error.to_string()));
        if let Some(peer) = peer.as_deref_mut() {
            theirs.push(peer.time(row)?);
        }
    }
    Ok((median(ours), peer.map(|_| median(theirs))))
}

/// Returns the median, or the first failure.
fn median(outcomes: Vec<Outcome>) -> Outcome {
    let mut times = outcomes.into_iter().collect::<Result<Vec<Time>, _>>()?;
    times.sort_by(|a, b| a.microseconds.total_cmp(&b.microseconds));
    Ok(times[times.len() / 2])
}
