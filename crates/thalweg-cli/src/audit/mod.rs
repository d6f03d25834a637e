//! `thalweg audit`: what stands in the way of capturing a region as a graph, shown on regions that are built in.
//!
//! Each region runs once beforehand, so that its kernels are loaded (not with `--cold`), then under
//! [`thalweg::graph::audit`]. It is the same call that a program makes around a region of its own; the examples show what the
//! report says of code that people write.

mod examples;

use std::process::ExitCode;

use thalweg::graph::{Audit, Obstacle, audit};
use thalweg::{CaptureMode, CaptureOptions, Device, Result};

use self::examples::{EXAMPLES, Example};
use crate::output::{Object, Output, complain};
use crate::{Command, UsageError};

/// The command.
pub const COMMAND: Command = Command {
    name: "audit",
    summary: "what stands in the way of capturing a region as a graph, by examples",
    usage: "\
usage: thalweg audit [--device NAME] [--mode MODE] [--cold] [--json] [EXAMPLE...]

Runs regions and lists everything that keeps them from being captured as a graph:
the operator, the line, CUDA's error code, the usual repair. All examples, or
those that are named:

  train        a training step: forward, backward, Adam
  train-item   the same, with its batch from the host and its loss read
  decode       one token with a cache, position and token on the device
  decode-host  the same, with position and token on the host
  streams      work on side streams and a thread, carelessly

  --device NAME  sim, cuda, cuda:1, ... (default: the first GPU, else sim); on a
                 card it also says what a graph would save
  --mode MODE    global (default), thread-local or relaxed
  --cold         without a run beforehand: kernels that are loaded at their first
                 use are obstacles too
  --json         one JSON object an example

Regions of your own: thalweg::graph::audit. The exit status is 0 if every region
can be captured, and 1 if not.
",
    run,
};

struct Arguments {
    examples: Vec<&'static Example>,
    device: Option<String>,
    mode: CaptureMode,
    is_cold: bool,
    is_json: bool,
}

impl Arguments {
    fn parse(arguments: &[String]) -> Result<Self, UsageError> {
        let mut parsed = Self {
            examples: Vec::new(),
            device: None,
            mode: CaptureMode::Global,
            is_cold: false,
            is_json: false,
        };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().ok_or_else(|| UsageError(format!("`{argument}` needs a value")));
            match argument.as_str() {
                "--device" => parsed.device = Some(value()?.clone()),
                "--mode" => parsed.mode = mode(value()?)?,
                "--cold" => parsed.is_cold = true,
                "--json" => parsed.is_json = true,
                option if option.starts_with('-') => {
                    return Err(UsageError(format!("there is no option `{option}`")));
                }
                name => parsed.examples.push(find(name)?),
            }
        }
        if parsed.examples.is_empty() {
            parsed.examples = EXAMPLES.iter().collect();
        }
        Ok(parsed)
    }
}

fn mode(name: &str) -> Result<CaptureMode, UsageError> {
    match name {
        "global" => Ok(CaptureMode::Global),
        "thread-local" => Ok(CaptureMode::ThreadLocal),
        "relaxed" => Ok(CaptureMode::Relaxed),
        _ => Err(UsageError(format!("`--mode {name}`: write global, thread-local or relaxed"))),
    }
}

fn find(name: &str) -> Result<&'static Example, UsageError> {
    EXAMPLES.iter().find(|example| example.name == name).ok_or_else(|| {
        let names: Vec<_> = EXAMPLES.iter().map(|example| example.name).collect();
        UsageError(format!("there is no example `{name}`; the examples are: {}", names.join(", ")))
    })
}

fn run(arguments: &[String]) -> Result<ExitCode, UsageError> {
    let arguments = Arguments::parse(arguments)?;
    let output = Output::standard();
    match run_examples(&arguments, &output) {
        Ok(true) => Ok(ExitCode::SUCCESS),
        Ok(false) => Ok(ExitCode::FAILURE),
        Err(error) => {
            complain(&format!("thalweg audit: {error}"));
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Whether every region can be captured.
fn run_examples(arguments: &Arguments, output: &Output) -> Result<bool> {
    let device = match &arguments.device {
        Some(name) => Device::from_name(name)?,
        None => Device::best()?,
    };
    let mut is_all_well = true;
    for (number, example) in arguments.examples.iter().enumerate() {
        let report = audit_example(example, &device, arguments)?;
        is_all_well &= report.is_capturable();
        if arguments.is_json {
            output.text(&json(example, &device, &report).finish());
            continue;
        }
        let gap = if number == 0 { "" } else { "\n" };
        output.text(&format!("{gap}{}: {}\n", example.name, example.summary));
        output.text(&format!("{report:width$}", width = output.width()));
    }
    Ok(is_all_well)
}

fn audit_example(example: &Example, device: &Device, arguments: &Arguments) -> Result<Audit> {
    let region = (example.make)(device)?;
    if !arguments.is_cold {
        region()?;
    }
    audit(device, CaptureOptions { mode: arguments.mode, ..CaptureOptions::default() }, region)
}

fn json(example: &Example, device: &Device, report: &Audit) -> Object {
    let counts = report.counts();
    let counts = Object::new()
        .integer("commands", counts.commands())
        .integer("kernels", counts.kernels)
        .integer("library_calls", counts.library_calls)
        .integer("copies", counts.copies)
        .integer("copied_bytes", counts.copied_bytes)
        .integer("staging_copies", counts.staging_copies)
        .integer("fills", counts.fills)
        .integer("host_functions", counts.host_functions)
        .integer("graph_launches", counts.graph_launches)
        .integer("memory_nodes", counts.memory_nodes)
        .integer("allocations", counts.allocations)
        .integer("allocated_bytes", counts.allocated_bytes);
    let object = Object::new()
        .string("example", example.name)
        .string("device", &device.to_string())
        .boolean("capturable", report.is_capturable())
        .objects("obstacles", report.obstacles().iter().map(obstacle))
        .object("counts", counts);
    let Some(gain) = report.gain() else { return object.null("gain") };
    let microseconds = |time: std::time::Duration| time.as_secs_f64() * 1e6;
    let gain = Object::new()
        .boolean("faster", gain.is_faster())
        .number("host_time_saved_us", microseconds(gain.host_time_saved()))
        .number("eager_us", microseconds(gain.eager))
        .number("replay_us", microseconds(gain.replay))
        .number("staging_us", microseconds(gain.staging))
        .number("waiting_us", microseconds(gain.waiting));
    object.object("gain", gain)
}

fn obstacle(found: &Obstacle) -> Object {
    let object = Object::new().string("kind", found.kind().name()).string("operator", found.operator());
    let object = match found.location() {
        Some(location) => object.string("file", location.file()).integer("line", location.line().into()),
        None => object.null("file").null("line"),
    };
    let object = match found.code() {
        Some(code) => object.integer("code", code.number().into()).string("error", code.name()),
        None => object.null("code").null("error"),
    };
    object.integer("times", found.count()).string("detail", found.detail()).string("repair", found.repair())
}
