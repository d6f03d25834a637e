//! Operators on the simulated GPU in fast mode, as on a machine without a GPU; run it together with `benches/peers/host.py`,
//! which prints the same names for PyTorch on the same cores.
//!
//! `cargo bench -p thalweg-nn --bench host [-- NAME..]`: one line of JSON per figure: the time of a call including the wait for
//! it, as the median of rounds. With names, only figures whose name contains one of them are run.

use std::hint::black_box;
use std::time::Instant;

use thalweg_ir::DType;
use thalweg_nn::functional::{self, AttentionOptions, ConvOptions, PoolOptions};
use thalweg_nn::module::{Forward, GRU, LSTM, Module, RecurrentOptions, Transformer, TransformerOptions};
use thalweg_nn::optim::{AdamW, AdamWOptions};
use thalweg_runtime::{Device, Result};
use thalweg_tensor::random::Generator;
use thalweg_tensor::{Tensor, no_grad};

/// Timed rounds; the median counts.
const ROUNDS: usize = 7;
/// The minimum duration of a round in seconds.
const ROUND: f64 = 0.02;

/// Times calls, and prints the median in microseconds.
fn time(name: &str, device: &Device, mut call: impl FnMut() -> Result<()>) -> Result<()> {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    if !wanted.is_empty() && !wanted.iter().any(|wanted| name.contains(wanted)) {
        return Ok(());
    }
    let mut repeats = 1;
    let mut round = |repeats: u32| -> Result<f64> {
        let start = Instant::now();
        (0..repeats).try_for_each(|_| call())?;
        device.synchronize()?;
        Ok(start.elapsed().as_secs_f64())
    };
    round(1)?;
    while round(repeats)? < ROUND {
        repeats *= 2;
    }
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        times.push(round(repeats)? * 1e6 / f64::from(repeats));
    }
    times.sort_by(f64::total_cmp);
    println!("{{\"name\": \"{name}\", \"value\": {:.1}, \"unit\": \"us\"}}", times[ROUNDS / 2]);
    Ok(())
}

/// Times a function of tensors.
fn forward(name: &str, device: &Device, function: impl Fn() -> Result<Tensor>) -> Result<()> {
    time(name, device, || no_grad(&function).map(|result| drop(black_box(result))))
}

/// Times a function of leaves with its gradients.
fn training(
    name: &str,
    device: &Device,
    leaves: &[&Tensor],
    function: impl Fn() -> Result<Tensor>,
) -> Result<()> {
    time(name, device, || {
        leaves.iter().for_each(|leaf| leaf.zero_grad());
        function()?.sum(&[], false)?.backward()
    })
}

fn main() -> Result<()> {
    let device = Device::sim(0)?;
    let mut generator = Generator::new(0);
    let mut random = |shape: &[usize]| Tensor::normal(shape, 0.0, 1.0, &mut generator, &device);
    let x = random(&[1024, 1024])?;
    let y = random(&[1024, 1024])?;
    let row = random(&[1024])?;
    forward("add", &device, || x.add(&y))?;
    forward("mul row", &device, || x.mul(&row))?;
    forward("exp", &device, || x.exp())?;
    forward("tanh", &device, || x.tanh())?;
    forward("gelu", &device, || x.gelu())?;
    forward("silu", &device, || x.silu())?;
    forward("to bfloat16", &device, || x.to_dtype(DType::Bf16))?;
    forward("transpose copy", &device, || x.transpose(0, 1)?.contiguous())?;
    forward("sum", &device, || x.sum(&[], false))?;
    forward("sum rows", &device, || x.sum(&[1], false))?;
    forward("sum columns", &device, || x.sum(&[0], false))?;
    forward("softmax", &device, || x.softmax(-1))?;
    forward("layer norm", &device, || functional::layer_norm(&x, &[1024], Some(&row), Some(&row), 1e-5))?;
    let leaf = x.detach().requires_grad_()?;
    training("layer norm, gradients", &device, &[&leaf], || {
        functional::layer_norm(&leaf, &[1024], Some(&row), Some(&row), 1e-5)
    })?;
    training("gelu, gradients", &device, &[&leaf], || leaf.gelu())?;
    forward("matmul 1024", &device, || x.matmul(&y))?;
    let (small, other) = (random(&[128, 128])?, random(&[128, 128])?);
    forward("matmul 128", &device, || small.matmul(&other))?;
    forward("add 128 x 128", &device, || small.add(&other))?;
    let short = x.to_dtype(DType::Bf16)?;
    forward("matmul 1024 bfloat16", &device, || short.matmul(&short))?;
    let table = random(&[50_000, 256])?;
    let tokens: Vec<i64> = (0..4096).map(|at| at * 7919 % 50_000).collect();
    let tokens = Tensor::from_slice(&tokens, &[4096], &device)?;
    forward("embedding", &device, || table.index_select(0, &tokens))?;
    let images = random(&[8, 64, 32, 32])?.requires_grad_()?;
    let weight = random(&[64, 64, 3, 3])?.requires_grad_()?;
    let options = ConvOptions { padding: [1, 1], ..ConvOptions::default() };
    forward("conv2d 64 x 64 x 3 x 3", &device, || functional::conv2d(&images, &weight, None, options))?;
    training("conv2d, gradients", &device, &[&images, &weight], || {
        functional::conv2d(&images, &weight, None, options)
    })?;
    let pool = PoolOptions::default();
    forward("max_pool2d", &device, || functional::max_pool2d(&images, [2, 2], pool))?;
    let [q, k, v] = [random(&[4, 8, 256, 64])?, random(&[4, 8, 256, 64])?, random(&[4, 8, 256, 64])?];
    let causal = AttentionOptions { is_causal: true, ..AttentionOptions::default() };
    forward("attention", &device, || functional::scaled_dot_product_attention(&q, &k, &v, causal))?;
    let scores = random(&[512, 10_000])?.requires_grad_()?;
    let classes = Tensor::from_slice(&(0..512).map(|at| at * 19).collect::<Vec<i64>>(), &[512], &device)?;
    training("cross entropy, gradients", &device, &[&scores], || {
        functional::cross_entropy(&scores, &classes)
    })?;
    recurrent(&device, &mut random)?;
    transformer(&device)
}

/// Recurrent networks over 32 steps, with gradients.
fn recurrent(device: &Device, random: &mut impl FnMut(&[usize]) -> Result<Tensor>) -> Result<()> {
    let sequence = random(&[32, 16, 128])?;
    let (options, mut generator) = (RecurrentOptions::default(), Generator::new(0));
    let lstm = LSTM::new(128, 128, options.clone(), &mut generator, device)?;
    let gru = GRU::new(128, 128, options, &mut generator, device)?;
    forward("LSTM of 32 steps", device, || Ok(lstm.forward(&sequence, None)?.0))?;
    forward("GRU of 32 steps", device, || Ok(gru.forward(&sequence, None)?.0))?;
    let leaves = lstm.parameters();
    training("LSTM, gradients", device, &leaves.iter().collect::<Vec<_>>(), || {
        Ok(lstm.forward(&sequence, None)?.0)
    })?;
    let leaves = gru.parameters();
    training("GRU, gradients", device, &leaves.iter().collect::<Vec<_>>(), || {
        Ok(gru.forward(&sequence, None)?.0)
    })
}

/// A training step of a small GPT with AdamW.
fn transformer(device: &Device) -> Result<()> {
    const SIZES: TransformerOptions =
        TransformerOptions { vocabulary: 256, context: 64, layers: 4, features: 128, heads: 4 };
    let model = Transformer::new(SIZES, &mut Generator::new(0), device)?;
    let optimizer = AdamW::new(model.parameters(), AdamWOptions::default())?;
    let tokens: Vec<i64> = (0..8 * 64).map(|at| at * 31 % 256).collect();
    let tokens = Tensor::from_slice(&tokens, &[8, 64], device)?;
    time("step of a GPT", device, || {
        let scores = model.forward(&tokens)?;
        let loss = functional::cross_entropy(&scores.reshape(&[8 * 64, 256])?, &tokens.reshape(&[8 * 64])?)?;
        optimizer.zero_grad();
        loss.backward()?;
        optimizer.step()
    })
}
