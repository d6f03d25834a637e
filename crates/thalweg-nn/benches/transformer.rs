//! A training step of a tiny transformer (4 layers, width 128, batch 8 × 64 tokens, f32): eager and captured.
//!
//! `cargo bench -p thalweg-tensor --bench transformer [-- --device cuda|sim] [--steps N] [--parts]`: one line of JSON per figure:
//! the time of a step from first to last of a round, including a wait for the device at its end. With `--parts` also the step's
//! operators one by one, each captured some fifty times in a row: the time that one of them adds to a captured step, in µs.

use std::time::Instant;

use thalweg_ir::DType;
use thalweg_nn::functional::{self, AttentionOptions};
use thalweg_nn::module::{Module, Transformer, TransformerOptions};
use thalweg_nn::optim::{AdamW, AdamWOptions};
use thalweg_runtime::{CaptureOptions, Device, Graph, Result, Stream};
use thalweg_tensor::random::Generator;
use thalweg_tensor::{Tensor, no_grad};

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

/// Times an operator inside a captured graph, where it runs many times in a row.
fn part(name: &str, device: &Device, mut call: impl FnMut() -> Result<()>) -> Result<()> {
    const REPEATS: usize = 50;
    call()?;
    let (graph, ()) =
        Graph::capture(device, CaptureOptions::default(), || (0..REPEATS).try_for_each(|_| call()))?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        device.synchronize()?;
        let start = Instant::now();
        graph.replay()?;
        device.synchronize()?;
        times.push(start.elapsed().as_secs_f64() * 1e6 / REPEATS as f64);
    }
    times.sort_by(f64::total_cmp);
    let nodes = graph.description()?.nodes.len() as f64 / REPEATS as f64;
    println!(
        "{{\"name\": \"{name}\", \"value\": {:.2}, \"unit\": \"us\", \"nodes\": {nodes}}}",
        times[ROUNDS / 2]
    );
    Ok(())
}

/// The operators of the step, at its sizes.
fn parts(device: &Device) -> Result<()> {
    const ROWS: usize = BATCH * TOKENS;
    let mut generator = Generator::new(2);
    let mut random = |shape: &[usize]| Tensor::uniform(shape, -1.0, 1.0, &mut generator, device);
    for (out, inner) in [(384, 128), (128, 128), (512, 128), (128, 512), (256, 128)] {
        let (x, weight, gradient) = (random(&[ROWS, inner])?, random(&[out, inner])?, random(&[ROWS, out])?);
        let bias = random(&[out])?;
        part(&format!("linear {inner} to {out}"), device, || {
            functional::linear(&x, &weight, Some(&bias)).map(drop)
        })?;
        part(&format!("matmul {inner} to {out}"), device, || x.matmul(&weight.transpose(0, 1)?).map(drop))?;
        part("its input gradient", device, || gradient.matmul(&weight).map(drop))?;
        part("its weight gradient", device, || gradient.transpose(0, 1)?.matmul(&x).map(drop))?;
        part("its bias gradient", device, || gradient.sum(&[0], false).map(drop))?;
    }
    let wide = random(&[ROWS, 512])?;
    part("gelu 512", device, || wide.gelu().map(drop))?;
    let x = random(&[ROWS, 128])?;
    part("add 128", device, || x.add(&x).map(drop))?;
    let [q, k, v] = [0; 3].map(|_| random(&[32, 64, 32]));
    let (q, k, v) = (q?, k?, v?);
    part("matmul q k", device, || q.matmul(&k.transpose(1, 2)?).map(drop))?;
    let options = AttentionOptions { is_causal: true, ..AttentionOptions::default() };
    let attention = || functional::scaled_dot_product_attention(&q, &k, &v, options);
    part("attention", device, || attention().map(drop))?;
    let leaf = |tensor: &Tensor| tensor.requires_grad_();
    let [q, k, v] = [leaf(&q)?, leaf(&k)?, leaf(&v)?];
    part("attention and back", device, || {
        [&q, &k, &v].into_iter().for_each(|tensor| tensor.zero_grad());
        functional::scaled_dot_product_attention(&q, &k, &v, options)?.backward_with(&v.detach())
    })?;
    let (input, weight, bias) = (leaf(&x)?, leaf(&random(&[128])?)?, leaf(&random(&[128])?)?);
    let norm = || functional::layer_norm(&input, &[128], Some(&weight), Some(&bias), 1e-5);
    part("layer_norm", device, || no_grad(norm).map(drop))?;
    part("layer_norm and back", device, || {
        [&input, &weight, &bias].into_iter().for_each(|tensor| tensor.zero_grad());
        norm()?.backward_with(&x)
    })?;
    let indices: Vec<i64> = (0..ROWS as i64).map(|place| place * 37 % 256).collect();
    let indices = Tensor::from_slice(&indices, &[ROWS], device)?;
    let table = leaf(&random(&[256, 128])?)?;
    part("embedding", device, || no_grad(|| functional::embedding(&indices, &table, None)).map(drop))?;
    part("embedding and back", device, || {
        table.zero_grad();
        functional::embedding(&indices, &table, None)?.backward_with(&x)
    })?;
    let scores = leaf(&random(&[ROWS, 256])?)?;
    part("cross_entropy and back", device, || {
        scores.zero_grad();
        functional::cross_entropy(&scores, &indices)?.backward()
    })?;
    part("zeros", device, || Tensor::zeros(&[128], DType::F32, device).map(drop))
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
    let optimizer = AdamW::new(model.parameters(), AdamWOptions::default())?;
    let mut tokens = || -> Result<Tensor> {
        let values: Vec<i64> =
            (0..BATCH * TOKENS).map(|_| generator.below(OPTIONS.vocabulary as u32).unwrap().into()).collect();
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
    if arguments.iter().any(|argument| argument == "--parts") {
        part("adamw", &device, || optimizer.step())?;
        parts(&device)?;
    }
    Ok(())
}
