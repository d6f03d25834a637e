//! Clipping of gradients and steps of AdamW over the 148 tensors of GPT-2 (124 million parameters, f32): milliseconds per call, and bytes that the call
//! must move per second.
//!
//! `cargo bench -p thalweg-nn --bench optimizer [-- --device cuda|sim]`: a line of JSON per figure. `clip` scales the gradients,
//! `clip_within` finds their norm small enough and does not change them; `step` is AdamW's, `step_clipped` computes the norm and
//! scales within the step, and `cast_and_step` is a step after products that read all matrices in bf16.
//! `benches/peers/optimizer.py` is the same in PyTorch.

use std::time::Instant;

use thalweg_ir::DType;
use thalweg_nn::functional::linear;
use thalweg_nn::optim::{AdamW, AdamWOptions, clip_grad_norm_};
use thalweg_runtime::{Device, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::autocast::autocast;

/// Timed rounds; the median counts.
const ROUNDS: usize = 5;

/// Returns the shapes of GPT-2's parameters with this many features and rows of embeddings.
fn shapes(features: usize, vocabulary: usize, context: usize, layers: usize) -> Vec<Vec<usize>> {
    let mut shapes = vec![vec![vocabulary, features], vec![context, features]];
    for _ in 0..layers {
        shapes.extend([
            vec![features],
            vec![features],
            vec![3 * features, features],
            vec![3 * features],
            vec![features, features],
            vec![features],
            vec![features],
            vec![features],
            vec![4 * features, features],
            vec![4 * features],
            vec![features, 4 * features],
            vec![features],
        ]);
    }
    shapes.extend([vec![features], vec![features]]);
    shapes
}

/// Prints the median time of a call that moves this many bytes.
fn report(name: &str, bytes: usize, device: &Device, call: impl Fn() -> Result<()>) -> Result<()> {
    let calls = if device.is_simulated() { 1 } else { 20 };
    let mut times = Vec::new();
    for round in 0..=ROUNDS {
        device.synchronize()?;
        let start = Instant::now();
        (0..calls).try_for_each(|_| call())?;
        device.synchronize()?;
        if round > 0 {
            times.push(start.elapsed().as_secs_f64() / calls as f64);
        }
    }
    times.sort_by(f64::total_cmp);
    let seconds = times[ROUNDS / 2];
    println!(
        "{{\"name\": \"optimizer_{name}\", \"value\": {:.4}, \"unit\": \"ms\", \"GB_per_s\": {:.0}, \"device\": \"{}\"}}",
        seconds * 1e3,
        bytes as f64 / seconds / 1e9,
        device.properties().name
    );
    Ok(())
}

/// Reads the matrices in bf16, as layers in a region of autocast do.
fn read_in_bf16(parameters: &[Tensor]) -> Result<()> {
    autocast(DType::Bf16, || {
        for weight in parameters.iter().filter(|parameter| parameter.rank() == 2) {
            let input = Tensor::zeros(&[1, weight.shape()[1]], DType::Bf16, weight.device())?;
            linear(&input, weight, None)?;
        }
        Ok(())
    })
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let name =
        arguments.iter().position(|argument| argument == "--device").and_then(|at| arguments.get(at + 1));
    let device = match name {
        Some(name) => Device::from_name(name)?,
        None => Device::best()?,
    };
    let shapes = match device.is_simulated() {
        true => shapes(16, 128, 32, 2),
        false => shapes(768, 50_304, 1024, 12),
    };
    let parameter = |shape: &Vec<usize>| {
        let parameter = Tensor::full(shape, 0.01, DType::F32, &device)?.requires_grad_()?;
        parameter.set_grad(Some(Tensor::full(shape, 1e-3, DType::F32, &device)?))?;
        Ok(parameter)
    };
    let parameters: Vec<Tensor> = shapes.iter().map(parameter).collect::<Result<_>>()?;
    let elements: usize = parameters.iter().map(Tensor::elements).sum();
    let optimizer = AdamW::new(parameters.clone(), AdamWOptions::default())?;
    // The gradient of each element is read for the norm, then read and written.
    report("clip", 12 * elements, &device, || clip_grad_norm_(&parameters, 1e-3, 2.0).map(drop))?;
    report("clip_within", 4 * elements, &device, || clip_grad_norm_(&parameters, 1e6, 2.0).map(drop))?;
    // Parameter and moments are read and written.
    report("step", 28 * elements, &device, || optimizer.step())?;
    report("step_clipped", 32 * elements, &device, || optimizer.step_clipped(1e-3, 2.0).map(drop))?;
    read_in_bf16(&parameters)?;
    report("cast_and_step", 36 * elements, &device, || {
        read_in_bf16(&parameters)?;
        optimizer.step()
    })
}
