//! A training step of GPT-2 (124 million parameters, AdamW, bf16 by autocast), written as a user of PyTorch would, except for
//! residuals and norms: tokens per second.
//!
//! `cargo bench -p thalweg-nn --bench gpt2 [-- --device cuda|sim] [--batch N] [--tokens N] [--layers N] [--steps N] [--f32]
//! [--plain] [--captured] [--once]`: one line of JSON per figure: the first step in seconds, including the compilation of
//! kernels, followed by eager and captured steps, timed from first to last of a round, including a wait for the device at its
//! end. `--once` runs two eager steps and nothing else, for a profiler. `--losses FOLDER --text FILE` trains on a text's bytes
//! from the weights that `gpt2.py --losses` wrote for three seeds, and writes the loss of each of 200 steps to the same folder.
//! `--plain` adds residuals and normalizes them by separate operators, as the peer does. `benches/peers/gpt2.py` is the same in
//! PyTorch.

use std::path::Path;
use std::time::Instant;

use thalweg_ir::DType;
use thalweg_nn::functional::{self, AttentionOptions};
use thalweg_nn::module::{Embedding, Forward, LayerNorm, Linear, Mlp, Module};
use thalweg_nn::optim::{AdamW, AdamWOptions};
use thalweg_nn::serialize;
use thalweg_runtime::{CaptureOptions, Device, Graph, Result, Stream};
use thalweg_tensor::Tensor;
use thalweg_tensor::autocast::autocast;
use thalweg_tensor::random::Generator;

/// Timed rounds; the median counts.
const ROUNDS: usize = 5;
const FEATURES: usize = 768;
const HEADS: usize = 12;
/// GPT-2's 50,257 tokens, rounded up to a multiple of 128 as it is usually trained.
const VOCABULARY: usize = 50_304;

#[derive(Module, Debug)]
struct Block {
    norm1: LayerNorm,
    qkv: Linear,
    projection: Linear,
    norm2: LayerNorm,
    mlp: Mlp,
}

impl Block {
    fn new(generator: &mut Generator, device: &Device) -> Result<Self> {
        Ok(Self {
            norm1: LayerNorm::new(FEATURES, device)?,
            qkv: Linear::new(FEATURES, 3 * FEATURES, generator, device)?,
            projection: Linear::new(FEATURES, FEATURES, generator, device)?,
            norm2: LayerNorm::new(FEATURES, device)?,
            mlp: Mlp::new(FEATURES, 4 * FEATURES, generator, device)?,
        })
    }
}

/// Adds a branch to the residual stream, and normalizes the sum: by one operator, or by two as in PyTorch. Returns the normalized rows and
/// the sum.
fn add_norm(norm: &LayerNorm, x: &Tensor, branch: &Tensor, is_plain: bool) -> Result<[Tensor; 2]> {
    if !is_plain {
        return norm.forward_add(x, branch);
    }
    let sum = x.add(branch)?;
    Ok([norm.forward(&sum)?, sum])
}

impl Block {
    /// Returns the residual stream, and the branch that the next norm is to add to it.
    fn forward(&self, x: &Tensor, branch: Option<&Tensor>, is_plain: bool) -> Result<[Tensor; 2]> {
        let (batch, tokens) = (x.shape()[0], x.shape()[1]);
        let [normalized, x] = match branch {
            Some(branch) => add_norm(&self.norm1, x, branch, is_plain)?,
            None => [self.norm1.forward(x)?, x.clone()],
        };
        let packed = self.qkv.forward(&normalized)?;
        let parts = packed.reshape(&[batch, tokens, 3, HEADS, FEATURES / HEADS])?.unbind(2)?;
        let heads = |part: usize| parts[part].transpose(1, 2);
        let options = AttentionOptions { is_causal: true, ..AttentionOptions::default() };
        let heads = functional::scaled_dot_product_attention(&heads(0)?, &heads(1)?, &heads(2)?, options)?;
        let heads = heads.transpose(1, 2)?.reshape(&[batch, tokens, FEATURES])?;
        let [normalized, x] = add_norm(&self.norm2, &x, &self.projection.forward(&heads)?, is_plain)?;
        Ok([x, self.mlp.forward(&normalized)?])
    }
}

#[derive(Module, Debug)]
struct Gpt2 {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
}

impl Gpt2 {
    fn new(context: usize, layers: usize, generator: &mut Generator, device: &Device) -> Result<Self> {
        Ok(Self {
            tokens: Embedding::new(VOCABULARY, FEATURES, generator, device)?,
            positions: Embedding::new(context, FEATURES, generator, device)?,
            blocks: (0..layers).map(|_| Block::new(generator, device)).collect::<Result<_>>()?,
            norm: LayerNorm::new(FEATURES, device)?,
        })
    }

    /// Returns the loss; the head shares the weights of the embedding.
    fn loss(&self, input: &Tensor, next: &Tensor, is_plain: bool) -> Result<Tensor> {
        let positions = self.positions.weight.narrow(0, 0, input.shape()[1])?;
        let mut x = self.tokens.forward(input)?.add(&positions)?;
        let mut branch = None;
        for block in &self.blocks {
            let [stream, next] = block.forward(&x, branch.as_ref(), is_plain)?;
            (x, branch) = (stream, Some(next));
        }
        let normalized = match &branch {
            Some(branch) => add_norm(&self.norm, &x, branch, is_plain)?[0].clone(),
            None => self.norm.forward(&x)?,
        };
        let scores = functional::linear(&normalized, &self.tokens.weight, None)?;
        functional::cross_entropy(
            &scores.reshape(&[next.elements(), VOCABULARY])?,
            &next.reshape(&[next.elements()])?,
        )
    }
}

/// Returns the median over the rounds of a step's time in seconds.
fn time(steps: usize, device: &Device, mut step: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        device.synchronize()?;
        let start = Instant::now();
        (0..steps).try_for_each(|_| step())?;
        device.synchronize()?;
        times.push(start.elapsed().as_secs_f64() / steps as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[ROUNDS / 2])
}

/// Prints the tokens per second of steps that take this long, and the peak memory so far.
fn report(name: &str, tokens: usize, seconds: f64, device: &Device) {
    let stats = device.allocator().statistics().memory_stats();
    let peak = |key: &str| stats.iter().find(|(name, _)| name == key).map_or(0, |(_, value)| *value >> 20);
    println!(
        "{{\"name\": \"gpt2_{name}\", \"value\": {:.0}, \"unit\": \"tokens/s\", \"ms\": {:.3}, \"peak_allocated_MiB\": {}, \
         \"peak_reserved_MiB\": {}, \"device\": \"{}\"}}",
        tokens as f64 / seconds,
        seconds * 1e3,
        peak("allocated_bytes.all.peak"),
        peak("reserved_bytes.all.peak"),
        device.properties().name
    );
}

/// Runs a training step, and returns its loss.
fn train(
    model: &Gpt2,
    optimizer: &AdamW,
    [input, next]: [&Tensor; 2],
    is_plain: bool,
    is_f32: bool,
) -> Result<Tensor> {
    optimizer.zero_grad();
    let loss = || model.loss(input, next, is_plain);
    let loss = if is_f32 { loss()? } else { autocast(DType::Bf16, loss)? };
    loss.backward()?;
    optimizer.step()?;
    Ok(loss.detach())
}

/// The number of steps of a loss curve.
const STEPS: usize = 200;

/// Trains from the weights of each seed in a folder, and writes the losses there.
fn write_losses(
    folder: &Path,
    text: &[u8],
    [batch, tokens, layers]: [usize; 3],
    device: &Device,
) -> Result<()> {
    for seed in 0..3 {
        let model = Gpt2::new(tokens, layers, &mut Generator::new(1), device)?;
        let weights = serialize::load(folder.join(format!("gpt2-{seed}.pt")), device)?;
        model.load_state_dict(&weights.state_dict().expect("the file holds tensors by name"))?;
        let options = AdamWOptions { lr: 3e-4, ..AdamWOptions::default() };
        let optimizer = AdamW::new(model.parameters(), options)?;
        let mut curve = String::new();
        for step in 0..STEPS {
            let rows = |shift: usize| -> Result<Tensor> {
                let values: Vec<i64> = (0..batch)
                    .map(|row| (step * batch + row) * 7919 % (text.len() - tokens - 1) + shift)
                    .flat_map(|first| text[first..first + tokens].iter().map(|&byte| i64::from(byte)))
                    .collect();
                Tensor::from_slice(&values, &[batch, tokens], device)
            };
            let loss = train(&model, &optimizer, [&rows(0)?, &rows(1)?], false, false)?;
            curve += &format!("{}\n", loss.item::<f32>()?);
        }
        std::fs::write(folder.join(format!("thalweg-{seed}.txt")), curve).expect("the folder can be written");
    }
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let after = |flag: &str| {
        arguments.iter().position(|argument| argument == flag).and_then(|at| arguments.get(at + 1))
    };
    let number = |flag: &str, default: usize| {
        after(flag).map_or(default, |text| text.parse().expect("a whole number"))
    };
    let device = match after("--device") {
        Some(name) => Device::from_name(name)?,
        None => Device::best()?,
    };
    let small = device.is_simulated();
    let batch = number("--batch", if small { 1 } else { 16 });
    let tokens = number("--tokens", if small { 16 } else { 1024 });
    let layers = number("--layers", if small { 1 } else { 12 });
    let steps = number("--steps", if small { 1 } else { 5 });
    let stream = Stream::new(&device)?;
    let _current = stream.make_current();
    if let Some(folder) = after("--losses") {
        let text = std::fs::read(after("--text").expect("--text FILE")).expect("the text can be read");
        return write_losses(Path::new(folder), &text, [batch, tokens, layers], &device);
    }
    let mut generator = Generator::new(1);
    let model = Gpt2::new(tokens, layers, &mut generator, &device)?;
    let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 3e-4, ..AdamWOptions::default() })?;
    let mut random = || -> Result<Tensor> {
        let values: Vec<i64> = (0..batch * tokens).map(|_| generator.below(50_257).unwrap().into()).collect();
        Tensor::from_slice(&values, &[batch, tokens], &device)
    };
    let (input, next) = (random()?, random()?);
    let step = || train(&model, &optimizer, [&input, &next], has("--plain"), has("--f32"));
    let start = Instant::now();
    let first = step()?.item::<f32>()?;
    println!(
        "{{\"name\": \"gpt2_first_step\", \"value\": {:.2}, \"unit\": \"s\", \"loss\": {first:.4}}}",
        start.elapsed().as_secs_f64()
    );
    if has("--once") {
        return step()?.item::<f32>().map(drop);
    }
    report("eager", batch * tokens, time(steps, &device, || step().map(drop))?, &device);
    if has("--captured") {
        let (graph, loss) = Graph::capture(&device, CaptureOptions::default(), step)?;
        report("captured", batch * tokens, time(steps, &device, || graph.replay())?, &device);
        eprintln!("loss {}", loss.item::<f32>()?);
    }
    Ok(())
}
