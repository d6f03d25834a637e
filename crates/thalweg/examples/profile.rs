//! A training step on the simulated GPU, recorded: a table of its operators, and a trace for <https://ui.perfetto.dev>.
//!
//! `cargo run --example profile -- trace.json`

use thalweg::profiler::{ProfilerDriver, profile, record_function};
use thalweg::simulator::{SimConfig, SimDriver};
use thalweg::{DType, Device, Environment, Result, Tensor, functional};

fn main() -> Result<()> {
    let driver = ProfilerDriver::new(SimDriver::new(SimConfig::default())?);
    let device = Device::all_of(driver.clone(), Environment::get())?.remove(0);
    let x = Tensor::full(&[64, 128], 0.5, DType::F32, &device)?;
    let weight = Tensor::ones(&[10, 128], DType::F32, &device)?.requires_grad_()?;
    let step = || -> Result<()> {
        let _step = record_function("step");
        let loss = {
            let _forward = record_function("forward");
            functional::linear(&x, &weight, None)?.relu()?.square()?.mean(&[], false)?
        };
        let _backward = record_function("backward");
        loss.backward()
    };
    step()?;
    let (outcome, trace) = profile(&driver, step)?;
    outcome?;
    print!("{}", trace.key_averages());
    if let Some(path) = std::env::args().nth(1) {
        if let Err(error) = trace.export_chrome_trace(&path) {
            eprintln!("{path}: {error}");
            std::process::exit(1);
        }
        println!("{path}: {} commands", trace.commands.len());
    }
    Ok(())
}
