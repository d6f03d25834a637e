//! `thalweg tune`: the fastest algorithms of the matrix products of a file.

use std::path::PathBuf;
use std::process::ExitCode;

use anstyle::AnsiColor;
use clap::Args;
use serde_json::{Value, json};
use thalweg::Device;
use thalweg::cuda::tunable::{self, OfflineOutcome};
use thalweg::progress::Progress;

use crate::output::{Failure, Output, paint};

/// Finds the fastest algorithm of each matrix product of a file
#[derive(Args)]
#[command(after_help = "\
The file is what a program recorded: run it with PYTORCH_TUNABLEOP_ENABLED=1
PYTORCH_TUNABLEOP_TUNING=0 PYTORCH_TUNABLEOP_RECORD_UNTUNED=1, with Thalweg or
with PyTorch. The results go to a file in PyTorch's format for Thalweg to read
(PYTORCH_TUNABLEOP_FILENAME); products that it has are not tuned again. With
--for-pytorch it is one for PyTorch of that version to read: only algorithms of
cuBLASLt are tried, which has to be the one that PyTorch loads.

Examples:
  thalweg tune tunableop_untuned0.csv
  thalweg tune tunableop_untuned0.csv --output tuned.csv --algorithms 64
  thalweg tune tunableop_untuned0.csv --for-pytorch 2.11.0

The exit status is 1 if a product could not be tuned.")]
pub struct TuneArgs {
    /// The file with the products
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The device: cuda, cuda:1, sim; by default the GPU, if there is one
    #[arg(long)]
    device: Option<String>,
    /// The file of the results, as it is named [default: tunableop_results0.csv]
    #[arg(long, value_name = "FILE")]
    output: Option<String>,
    /// The version of PyTorch (torch.__version__ without what follows a +) that is to read the results
    #[arg(long, value_name = "VERSION")]
    for_pytorch: Option<String>,
    /// The number of algorithms that the library is asked for
    #[arg(long, value_name = "N", default_value_t = 32)]
    algorithms: u32,
    /// The greatest number of times that an algorithm is timed
    #[arg(long, value_name = "N", default_value_t = 100)]
    iterations: u32,
    /// The greatest time for which an algorithm is timed, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 30)]
    duration: u32,
    /// One JSON object per product
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &TuneArgs) -> Result<ExitCode, Failure> {
    let fail = |error: thalweg::Error| Failure(error.to_string());
    let device = arguments.device.as_deref().map_or_else(Device::best, Device::from_name).map_err(fail)?;
    if let Some(output) = &arguments.output {
        tunable::set_filename(output, false);
    }
    tunable::set_pytorch_version(arguments.for_pytorch.as_deref());
    tunable::set_cublaslt_requested_algo_count(arguments.algorithms);
    tunable::set_max_tuning_iterations(arguments.iterations);
    tunable::set_max_tuning_duration(arguments.duration);
    let output = Output::standard();
    let mut bar: Option<Progress> = None;
    let [mut tuned, mut known, mut skipped] = [0; 3];
    let mut report = |outcome: &OfflineOutcome, done: usize, all: usize| {
        match outcome {
            OfflineOutcome::Tuned(..) => tuned += 1,
            OfflineOutcome::Known(_) => known += 1,
            OfflineOutcome::Skipped(..) => skipped += 1,
        }
        if arguments.json {
            output.json(&as_json(outcome));
        } else {
            output.text(&as_text(outcome));
        }
        bar.get_or_insert_with(|| Progress::transient("of the products", all as u64)).advance(done as u64);
    };
    tunable::tune_gemm_in_file(&device, &arguments.file, &mut report).map_err(fail)?;
    drop(bar);
    if !arguments.json {
        let file = tunable::get_filename(&device);
        output.line(
            0,
            &format!(
                "{device}: {tuned} tuned, {known} known, {skipped} left out; results in {}",
                file.display()
            ),
        );
    }
    Ok(if skipped == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns a product's lines for people.
fn as_text(outcome: &OfflineOutcome) -> String {
    match outcome {
        OfflineOutcome::Tuned(result, default) => format!(
            "{} {} {}\n    {:.4} ms, {} of the default's {default:.4}: {}\n",
            paint(AnsiColor::Green, "tuned", 7),
            result.operator,
            result.parameters,
            result.milliseconds,
            share(result.milliseconds, *default),
            result.solution
        ),
        OfflineOutcome::Known(result) => format!(
            "{} {} {}\n    {}\n",
            paint(AnsiColor::Cyan, "known", 7),
            result.operator,
            result.parameters,
            result.solution
        ),
        OfflineOutcome::Skipped(line, why) => {
            format!("{} {line}\n    {why}\n", paint(AnsiColor::Yellow, "left out", 7))
        }
    }
}

/// Returns a time as a share of another.
fn share(time: f64, of: f64) -> String {
    if of > 0.0 { format!("{:.0} %", 100.0 * time / of) } else { "-".to_owned() }
}

fn as_json(outcome: &OfflineOutcome) -> Value {
    let fields = |state: &str, result: &tunable::TuningResult| {
        json!({
            "state": state,
            "operator": result.operator,
            "parameters": result.parameters,
            "solution": result.solution,
            "milliseconds": result.milliseconds,
        })
    };
    match outcome {
        OfflineOutcome::Tuned(result, default) => {
            let mut value = fields("tuned", result);
            value["default_milliseconds"] = json!(default);
            value
        }
        OfflineOutcome::Known(result) => fields("known", result),
        OfflineOutcome::Skipped(line, why) => json!({"state": "left out", "line": line, "why": why}),
    }
}
