//! Runs the conformance suite and the litmus programs on a device, and prints one line per case or program.
//!
//! ```text
//! conformance [--device cuda|sim] [--litmus] [--destructive] [--repetitions N] [--seed N] [--json]
//! ```
//!
//! Without `--device` it uses the GPU if there is one, else the simulator, and prints which. The exit status is 0 only if nothing
//! failed.

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use thalweg_conformance::litmus;
use thalweg_conformance::{Fixture, Line, Report};
use thalweg_driver::{Code, Driver, Result, cuda::CudaDriver};
use thalweg_sim::{SimConfig, SimDriver};

/// Run the conformance suite on a device, and print one line per case
#[derive(Parser)]
struct Options {
    /// The device; without it the GPU if there is one, else the simulator
    #[arg(long)]
    device: Option<Choice>,
    /// Run the litmus programs too
    #[arg(long)]
    litmus: bool,
    /// Run at the very end the cases that lose the device
    #[arg(long)]
    destructive: bool,
    /// The number of times that each litmus program runs
    #[arg(long, value_name = "N", default_value_t = 200)]
    repetitions: u64,
    /// The seed of the litmus programs
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print one JSON object per line instead
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Choice {
    Cuda,
    Sim,
}

fn simulator() -> Result<Arc<dyn Driver>> {
    Ok(SimDriver::new(SimConfig { devices: 2, ..SimConfig::default() })?)
}

fn open(choice: Option<Choice>) -> Result<Arc<dyn Driver>> {
    match choice {
        Some(Choice::Sim) => simulator(),
        Some(Choice::Cuda) => Ok(CudaDriver::open()?),
        None => match CudaDriver::open() {
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
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("the run ended early: {error}");
            ExitCode::FAILURE
        }
    }
}
