//! Runs the conformance suite and the litmus programs on a device, and prints one line each.
//!
//! ```text
//! conformance [--device cuda|sim] [--litmus] [--destructive] [--repetitions N] [--seed N] [--json]
//! ```
//!
//! Without `--device` it takes the GPU if there is one, else the simulator, and says which. It runs the conformance
//! suite; with `--litmus` the litmus programs too, each `N` times (200 by default); with `--destructive` at the very end
//! the cases that lose the device. `--json` prints one JSON object a line instead. The exit status is 0 only if nothing
//! failed.

use std::process::ExitCode;
use std::sync::Arc;

use thalweg_conformance::litmus;
use thalweg_conformance::{Fixture, Line, Report};
use thalweg_driver::{Code, Driver, Result, cuda::CudaDriver};
use thalweg_sim::{SimConfig, SimDriver};

const USAGE: &str =
    "usage: conformance [--device cuda|sim] [--litmus] [--destructive] [--repetitions N] [--seed N] [--json]";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    Any,
    Cuda,
    Simulator,
}

struct Options {
    device: Choice,
    litmus: bool,
    destructive: bool,
    repetitions: u64,
    seed: u64,
    json: bool,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> std::result::Result<Self, String> {
        let mut options = Self {
            device: Choice::Any,
            litmus: false,
            destructive: false,
            repetitions: 200,
            seed: 0,
            json: false,
        };
        while let Some(argument) = arguments.next() {
            let mut number = || {
                let text = arguments.next().ok_or(format!("{argument} needs a number"))?;
                text.parse().map_err(|_| format!("{argument}: `{text}` is not a number"))
            };
            match argument.as_str() {
                "--litmus" => options.litmus = true,
                "--destructive" => options.destructive = true,
                "--json" => options.json = true,
                "--repetitions" => options.repetitions = number()?,
                "--seed" => options.seed = number()?,
                "--device" => {
                    options.device = match arguments.next().as_deref() {
                        Some("cuda") => Choice::Cuda,
                        Some("sim") => Choice::Simulator,
                        other => {
                            let other = other.unwrap_or("nothing");
                            return Err(format!("--device takes `cuda` or `sim`, not {other}"));
                        }
                    }
                }
                other => return Err(format!("`{other}` is not an option")),
            }
        }
        Ok(options)
    }
}

fn simulator() -> Result<Arc<dyn Driver>> {
    Ok(SimDriver::new(SimConfig { devices: 2, ..SimConfig::default() })?)
}

fn open(choice: Choice) -> Result<Arc<dyn Driver>> {
    match choice {
        Choice::Simulator => simulator(),
        Choice::Cuda => Ok(CudaDriver::open()?),
        Choice::Any => match CudaDriver::open() {
            Ok(driver) => Ok(driver),
            Err(error) if error.is_library_missing() || error.code() == Code::NoDevice => simulator(),
            Err(error) => Err(error),
        },
    }
}

struct Printer {
    json: bool,
    device: String,
}

impl Printer {
    fn note(&self, text: &str) {
        if !self.json {
            println!("{text}");
        }
    }

    fn case(&self, line: &Line) {
        if self.json {
            println!("{}", line.to_json(&self.device));
        } else {
            println!("{line}");
        }
    }

    fn report(&self, what: &str, report: &Report) {
        self.note(&format!("{what}: {report}\n"));
    }

    fn observation(&self, observation: &litmus::Observation) {
        if self.json {
            println!("{}", observation.to_json(&self.device));
        } else {
            println!("{observation}");
        }
    }
}

/// Returns whether nothing failed.
fn run(options: &Options) -> Result<bool> {
    let driver = open(options.device)?;
    let properties = driver.device_properties(0)?;
    let printer = Printer { json: options.json, device: properties.name.clone() };
    printer.note(&format!("{} ({}, CUDA interface {})\n", properties.name, driver.name(), driver.version()));

    let report = thalweg_conformance::run_each(&driver, 0, &mut |line| printer.case(line));
    printer.report("conformance", &report);
    let mut success = report.is_success();

    if options.litmus {
        success &= run_litmus(options, &driver, &printer)?;
    }
    if options.destructive {
        let simulated = driver.name() == "sim";
        let mut open = || if simulated { simulator() } else { Ok(Arc::clone(&driver)) };
        let report = thalweg_conformance::run_destructive(&mut open, 0, &mut |line| printer.case(line));
        printer.report("destructive cases", &report);
        success &= report.is_success();
    }
    Ok(success)
}

fn run_litmus(options: &Options, driver: &Arc<dyn Driver>, printer: &Printer) -> Result<bool> {
    let fixture = Fixture::new(Arc::clone(driver), 0)?;
    let mut failed = 0;
    for program in litmus::programs() {
        let observation = litmus::run(program, &fixture, options.repetitions, options.seed)?;
        failed += usize::from(!observation.is_allowed());
        printer.observation(&observation);
    }
    let count = litmus::programs().len();
    printer.note(&format!(
        "litmus: {count} programs, {} times each; {failed} showed what CUDA forbids\n",
        options.repetitions
    ));
    Ok(failed == 0)
}

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("the run ended early: {error}");
            ExitCode::FAILURE
        }
    }
}
