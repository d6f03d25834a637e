//! A training step of a tiny transformer (4 layers, width 128, batch 8 × 64 tokens, f32): eager and captured.
//!
//! `cargo bench -p thalweg-tensor --bench transformer [-- --device cuda|sim] [--steps N]`: a line of JSON a figure, the time of
//! a step from first to last of a round, the device waited for at its end.

use std::time::Instant;

use thalweg_runtime::{CaptureOptions, Device, Graph, Result, Stream};
use thalweg_tensor::Tensor;
use thalweg_tensor::module::{Module, Transformer, TransformerOptions};
use thalweg_tensor::optim::{Adam, AdamOptions};
use thalweg_tensor::random::Generator;

/// Timed rounds; the median counts.
const ROUNDS: usize = 9;
const BATCH: usize = 8;
const TOKENS: usize = 64;
const OPTIONS: TransformerOptions =
    TransformerOptions { vocabulary: 256, context: TOKENS, layers: 4, features: 128, heads: 4 };

fn time(name: &str, steps: usize, device: &Device, mut step: impl FnMut() -> Result<()>) -> Result<()> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        device.synchronize()?;
        let start = Instant::now();
        (0..steps).try_for_each(|_| step())?;
        device.synchronize()?;
        times.push(start.elapsed().as_secs_f64() * 1e3 / steps as f64);
    }
    times.sort_by(f64::total_cmp);
    println!(
        "{{\"name\": \"{name}\", \"value\": {:.4}, \"unit\": \"ms\", \"device\": \"{}\", \"min\": {:.4}, \"max\": {:.4}}}",
        times[ROUNDS / 2],
        device.properties().name,
        times[0],
        times[ROUNDS - 1]
    );
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |flag: &str| {
        arguments.iter().position(|argument| argument == flag).and_then(|at| arguments.get(at + 1))
    };
    let device = match after("--device") {
        Some(name) => Device::from_name(name)?,
        None => Device::best()?,
    };
    let default = if device.is_simulated() { 1 } else { 100 };
    let steps = after("--steps").and_then(|count| count.parse().ok()).unwrap_or(default);
    let stream = Stream::new(&device)?;
    let _current = stream.make_current();
    let mut generator = Generator::new(1);
    let model = Transformer::new(OPTIONS, &mut generator, &device)?;
    let optimizer = Adam::new(model.parameters(), AdamOptions::adamw())?;
    let mut tokens = || -> Result<Tensor> {
        let values: Vec<i64> =
            (0..BATCH * TOKENS).map(|_| generator.below(OPTIONS.vocabulary as u32).into()).collect();
        Tensor::from_slice(&values, &[BATCH, TOKENS], &device)
    };
    let (input, next) = (tokens()?, tokens()?);
    let step = || -> Result<Tensor> {
        optimizer.zero_grad();
        let loss = model.loss(&input, &next)?;
        loss.backward()?;
        optimizer.step()?;
        Ok(loss.detach())
    };
    time("transformer_step_eager", steps, &device, || step().map(drop))?;
    let (graph, loss) = Graph::capture(&device, CaptureOptions::default(), step)?;
    time("transformer_step_captured", steps, &device, || graph.replay())?;
    eprintln!("loss {}", loss.item::<f32>()?);
    Ok(())
}
