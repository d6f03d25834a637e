//! Decodes a sequence token by token with a cache of keys and values: the step eager, then captured once and replayed.
//!
//! ```text
//! cargo run --release --example decode
//! cargo run --release --example decode -- --layers 12 --features 768 --heads 12 --context 1024 --tokens 256
//! ```
//!
//! The weights are random, so the text means nothing; that both ways give the same tokens does.

mod model;
mod options;

use std::process::ExitCode;
use std::time::Instant;

use model::Decoder;
use options::{Command, Options};
use thalweg::{CaptureOptions, Device, Error, Graph, Result, no_grad};

/// The token that the sequence begins with.
const FIRST: i64 = 42;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(Command::Run(options)) => options,
        Ok(Command::Help) => {
            println!("{}", options::USAGE);
            return ExitCode::SUCCESS;
        }
        Err(text) => {
            eprintln!("decode: {text}\n\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    match no_grad(|| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("decode: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Decodes a sequence with steps of one kind, and reports them.
fn decode(
    name: &str,
    model: &Decoder,
    device: &Device,
    options: &Options,
    mut step: impl FnMut() -> Result<()>,
) -> Result<Vec<i64>> {
    model.restart(FIRST)?;
    let allocations = || device.allocator().statistics().allocation.all.allocated;
    let before = allocations();
    device.synchronize()?;
    let start = Instant::now();
    (0..options.tokens).try_for_each(|_| step())?;
    device.synchronize()?;
    let microseconds = start.elapsed().as_secs_f64() * 1e6 / options.tokens as f64;
    let requests = allocations() - before;
    if options.json {
        println!(
            "{{\"name\": \"decode_{name}\", \"value\": {microseconds:.1}, \"unit\": \"us/token\", \"device\": \"{device}\", \
             \"tokens\": {}, \"allocations\": {requests}}}",
            options.tokens
        );
    } else {
        println!("{name:<9} {microseconds:>10.1} us a token   {requests:>6} allocations");
    }
    model.history(options.tokens + 1)
}

fn run(options: &Options) -> Result<()> {
    let device = match &options.device {
        Some(name) => Device::from_name(name)?,
        None => Device::best()?,
    };
    let model = Decoder::new(options, &device)?;
    // Loads the kernels, so that neither way pays for that.
    model.restart(FIRST)?;
    model.step()?;
    let eager = decode("eager", &model, &device, options, || model.step())?;
    let (graph, ()) = Graph::capture(&device, CaptureOptions::default(), || model.step())?;
    let captured = decode("captured", &model, &device, options, || graph.replay())?;
    if eager != captured {
        return Err(Error::invalid(format!(
            "the captured step decoded {captured:?}, the eager one {eager:?}"
        )));
    }
    println!("tokens:   {}", eager.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
    Ok(())
}
