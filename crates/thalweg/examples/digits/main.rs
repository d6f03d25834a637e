//! Trains a small convolutional network on real handwritten digits, on a GPU or on a simulated one.
//!
//! ```text
//! cargo run --release --example digits                 # the GPU if there is one, else the simulated GPU
//! cargo run --release --example digits -- --graph      # the training step captured once and replayed
//! cargo run --release --example digits -- --dtype bf16 --save digits.pt   # and later --resume digits.pt
//! ```
//!
//! The data are the 1,797 8×8 images of the UCI handwritten digits (`data/README.md` names source and licence); every fifth
//! image is kept for the evaluation and never trained on.

#[path = "../common/arguments.rs"]
mod arguments;
#[path = "../common/checkpoint.rs"]
mod checkpoint;
mod data;
#[path = "../common/dtype.rs"]
mod dtype;
mod model;
mod options;
mod training;

use std::process::ExitCode;

use options::Options;
use thalweg::Result;

fn main() -> ExitCode {
    arguments::run("digits", options::USAGE, Options::parse, run)
}

fn run(options: &Options) -> Result<()> {
    let device = arguments::device(options.device.as_deref())?;
    let properties = device.properties();
    println!(
        "device: {device} ({}{}, {:.1} GiB)",
        properties.name,
        if device.is_simulated() { ", simulated" } else { "" },
        properties.total_memory_bytes as f64 / f64::from(1 << 30)
    );
    let digits = data::load();
    println!(
        "data:   {} images to train on, {} to evaluate on; seed {}",
        digits.training.0.len(),
        digits.evaluation.0.len(),
        options.seed
    );
    let outcome = training::train(&device, &digits, options)?;
    let statistics = device.allocator().statistics();
    println!(
        "memory: peak allocated {} bytes, peak reserved {} bytes",
        statistics.allocated_bytes.all.peak, statistics.reserved_bytes.all.peak
    );
    if options.json {
        println!(
            "{{\"name\": \"digits_samples_per_second\", \"value\": {:.1}, \"unit\": \"samples/s\", \"device\": \"{device}\", \
             \"graph\": {}, \"steps\": {}, \"final_loss_bits\": {}}}",
            outcome.samples_per_second,
            options.graph,
            outcome.losses.len(),
            outcome.losses.last().map_or(0, |loss| loss.to_bits())
        );
    }
    println!("losses: {:016x} (a fingerprint of all {})", outcome.fingerprint(), outcome.losses.len());
    println!("test accuracy: {:.1}%", 100.0 * outcome.accuracy);
    Ok(())
}
