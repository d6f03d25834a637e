//! `thalweg audit`: the obstacles to capturing a region as a graph, shown on built-in regions.
//!
//! Each region runs once beforehand, so that its kernels are loaded (not with `--cold`), then under [`thalweg::graph::audit`].
//! Programs make the same call around their own regions; the examples show the reports for typical code.

mod examples;

use std::process::ExitCode;

use thalweg::graph::{Audit, Obstacle, audit};
use thalweg::{CaptureMode, CaptureOptions, Device, Result};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use self::examples::{EXAMPLES, Example};
use crate::output::{Output, print_error};

/// Shows what keeps a region from being captured as a graph, by examples
#[derive(Args)]
#[command(after_help = "\
Runs regions and lists everything that keeps them from being captured as a
graph: the operator, the line, CUDA's error code, the usual repair. For regions
of your own there is thalweg::graph::audit.

Examples:
  thalweg audit train-item
  thalweg audit --device cuda --json train decode

The exit status is 0 if every region can be captured, and 1 if not.")]
pub struct AuditArgs {
    /// sim, cuda, cuda:1, ... [default: the first GPU, else sim]; on a GPU it also says what a graph would save
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The strictness with which the capture forbids what other threads do
    #[arg(long, default_value = "global")]
    mode: Mode,
    /// Without a run beforehand: kernels that are loaded at their first use are obstacles too
    #[arg(long)]
    cold: bool,
    /// One JSON object per example
    #[arg(long)]
    json: bool,
    /// The regions to audit [default: all]
    #[arg(value_name = "EXAMPLE", value_parser = example_parser())]
    examples: Vec<&'static Example>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

fn example_parser() -> impl TypedValueParser<Value = &'static Example> {
    let named = EXAMPLES.iter().map(|example| PossibleValue::new(example.name).help(example.summary));
    PossibleValuesParser::new(named).map(|name| {
        EXAMPLES.iter().find(|example| example.name == name).expect("the parser lets no other name pass")
    })
}

/// Runs the command.
pub fn run(arguments: &AuditArgs) -> ExitCode {
    match run_examples(arguments, &Output::standard()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            print_error(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Returns whether every region can be captured.
fn run_examples(arguments: &AuditArgs, output: &Output) -> Result<bool> {
    let device = match &arguments.device {
        Some(name) => Device::from_name(name)?,
        None => Device::best()?,
    };
    let mut is_all_well = true;
    let all = || EXAMPLES.iter().collect();
    let examples = if arguments.examples.is_empty() { all() } else { arguments.examples.clone() };
    for (number, example) in examples.into_iter().enumerate() {
        let report = audit_example(example, &device, arguments)?;
        is_all_well &= report.is_capturable();
        if arguments.json {
            output.json(&describe(example, &device, &report));
            continue;
        }
        let gap = if number == 0 { "" } else { "\n" };
        output.text(&format!("{gap}{}: {}\n", example.name, example.summary));
        output.text(&format!("{report:width$}", width = output.width()));
    }
    Ok(is_all_well)
}

fn audit_example(example: &Example, device: &Device, arguments: &AuditArgs) -> Result<Audit> {
    let region = (example.make)(device)?;
    if !arguments.cold {
        region()?;
    }
    let mode = match arguments.mode {
        Mode::Global => CaptureMode::Global,
        Mode::ThreadLocal => CaptureMode::ThreadLocal,
        Mode::Relaxed => CaptureMode::Relaxed,
    };
    audit(device, CaptureOptions { mode, ..CaptureOptions::default() }, region)
}

fn describe(example: &Example, device: &Device, report: &Audit) -> Value {
    let counts = report.counts();
    let microseconds = |time: std::time::Duration| time.as_secs_f64() * 1e6;
    let savings = report.savings().map(|savings| {
        json!({
            "faster": savings.is_faster(),
            "host_time_saved_us": microseconds(savings.host_time_saved()),
            "eager_us": microseconds(savings.eager),
            "replay_us": microseconds(savings.replay),
            "staging_us": microseconds(savings.staging),
            "waiting_us": microseconds(savings.waiting),
        })
    });
    json!({
        "example": example.name,
        "device": device.to_string(),
        "capturable": report.is_capturable(),
        "obstacles": report.obstacles().iter().map(obstacle).collect::<Vec<_>>(),
        "counts": {
            "commands": counts.commands(),
            "kernels": counts.kernels,
            "library_calls": counts.library_calls,
            "copies": counts.copies,
            "copied_bytes": counts.copied_bytes,
            "staging_copies": counts.staging_copies,
            "fills": counts.fills,
            "host_functions": counts.host_functions,
            "graph_launches": counts.graph_launches,
            "memory_nodes": counts.memory_nodes,
            "allocations": counts.allocations,
            "allocated_bytes": counts.allocated_bytes,
        },
        "savings": savings,
    })
}

fn obstacle(found: &Obstacle) -> Value {
    json!({
        "kind": found.kind().name(),
        "operator": found.operator(),
        "file": found.location().map(|location| location.file),
        "line": found.location().map(|location| location.line),
        "code": found.code().map(|code| code.number()),
        "error": found.code().map(|code| code.name()),
        "times": found.count(),
        "detail": found.detail(),
        "repair": found.repair(),
    })
}
