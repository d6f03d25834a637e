//! Trains a small GPT whose layers are divided among several ranks, and also the undivided one: their losses agree up to the
//! order of sums.
//!
//! ```text
//! cargo run -p thalweg --example tensor_parallel                                   # all GPUs of the machine, or 4 simulated ones, a thread per device
//! torchrun --nproc-per-node 2 --no-python target/debug/examples/tensor_parallel    # a process per GPU
//! ```
//!
//! Heads, feed-forward layers, vocabulary and loss are divided, and norms see a part of the sequence. The task: sequences that count in steps. Progress goes to
//! standard error, a line per rank; losses to standard output.

#[path = "../common/ranks.rs"]
#[expect(dead_code, reason = "its task is one of other examples")]
mod ranks;

use std::process::ExitCode;

use thalweg::distributed::tensor_parallel::{
    ColwiseParallel, Parallel, ParallelAttention, ParallelStyle, Placement, PrepareModuleOutput,
    RowwiseParallel, SequenceParallel, cross_entropy, parallelize_module,
};
use thalweg::distributed::{DeviceMesh, ProcessGroup, run_ranks};
use thalweg::functional::{self, ClassLossOptions};
use thalweg::module::{
    Embedding, Forward, LayerNorm, Linear, Module, MultiheadAttention, MultiheadAttentionOptions,
};
use thalweg::optim::{Adam, AdamOptions};
use thalweg::random::Generator;
use thalweg::{DType, Device, Error, Result, Tensor};

use ranks::{Bars, devices, exit_code, launched, report};

const STEPS: usize = 40;
const SEQUENCES: usize = 16;
const TOKENS: usize = 16;
const VOCABULARY: usize = 32;
const WIDTH: usize = 64;
const HEADS: usize = 8;
const BLOCKS: usize = 2;

#[derive(Module)]
struct Block {
    ln_1: Parallel<LayerNorm>,
    attn: ParallelAttention,
    ln_2: Parallel<LayerNorm>,
    up: Parallel<Linear>,
    down: Parallel<Linear>,
}

impl Forward for Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.add(&self.attn.forward(&self.ln_1.forward(x)?)?)?;
        let hidden = self.up.forward(&self.ln_2.forward(&x)?)?.gelu_tanh()?;
        x.add(&self.down.forward(&hidden)?)
    }
}

#[derive(Module)]
struct Gpt {
    tokens: Parallel<Embedding>,
    positions: Parallel<Embedding>,
    blocks: Vec<Block>,
    norm: Parallel<LayerNorm>,
    head: Parallel<Linear>,
}

impl Forward for Gpt {
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let places = Tensor::arange(TOKENS, 0, 1, DType::I64, tokens.device())?.unsqueeze(0)?;
        let mut x = self.tokens.forward(tokens)?.add(&self.positions.forward(&places)?)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        self.head.forward(&self.norm.forward(&x)?)?.flatten(0, 1)
    }
}

fn block(g: &mut Generator, d: &Device) -> Result<Block> {
    let attention = MultiheadAttention::new(WIDTH, HEADS, MultiheadAttentionOptions::default(), g, d)?;
    Ok(Block {
        ln_1: LayerNorm::new(WIDTH, d)?.into(),
        attn: ParallelAttention::new(attention, true)?,
        ln_2: LayerNorm::new(WIDTH, d)?.into(),
        up: Linear::new(WIDTH, 4 * WIDTH, g, d)?.into(),
        down: Linear::new(4 * WIDTH, WIDTH, g, d)?.into(),
    })
}

fn gpt(d: &Device) -> Result<Gpt> {
    let g = &mut Generator::new(0);
    Ok(Gpt {
        tokens: Embedding::new(VOCABULARY, WIDTH, g, d)?.into(),
        positions: Embedding::new(TOKENS, WIDTH, g, d)?.into(),
        blocks: (0..BLOCKS).map(|_| block(g, d)).collect::<Result<_>>()?,
        norm: LayerNorm::new(WIDTH, d)?.into(),
        head: Linear::new(WIDTH, VOCABULARY, g, d)?.into(),
    })
}

/// Returns the plan that divides the network: between layers each rank has a part of the sequence.
fn plan() -> Vec<(&'static str, ParallelStyle)> {
    let (whole, part) = (Placement::Replicate, Placement::Shard(1));
    let (in_proj, out_proj) = ParallelAttention::styles();
    let columns = ColwiseParallel { input_layouts: part, ..ColwiseParallel::default() };
    let rows = RowwiseParallel { output_layouts: part, ..RowwiseParallel::default() };
    let positions = PrepareModuleOutput { output_layouts: whole, desired_output_layouts: part };
    vec![
        ("tokens", RowwiseParallel { input_layouts: whole, ..rows }.into()),
        ("positions", positions.into()),
        ("blocks.*.ln_?", SequenceParallel::default().into()),
        ("blocks.*.attn.in_proj", ColwiseParallel { input_layouts: part, ..in_proj }.into()),
        ("blocks.*.attn.out_proj", RowwiseParallel { output_layouts: part, ..out_proj }.into()),
        ("blocks.*.up", columns.into()),
        ("blocks.*.down", rows.into()),
        ("norm", SequenceParallel::default().into()),
        ("head", columns.into()),
    ]
}

/// Returns a step's sequences, and the tokens that follow: all ranks have the same.
fn batch(step: usize, d: &Device) -> Result<[Tensor; 2]> {
    let token = |sequence: usize, place: usize| {
        ((step + 3 * sequence + place * (1 + sequence % 5)) % VOCABULARY) as i64
    };
    let shifted = |by: usize| -> Vec<i64> {
        (0..SEQUENCES)
            .flat_map(|sequence| (by..TOKENS + by).map(move |place| token(sequence, place)))
            .collect()
    };
    Ok([
        Tensor::from_slice(&shifted(0), &[SEQUENCES, TOKENS], d)?,
        Tensor::from_slice(&shifted(1), &[SEQUENCES * TOKENS], d)?,
    ])
}

/// Trains as one rank, and returns the losses of the divided network and of the undivided one.
fn train(group: &ProcessGroup, advance: impl Fn()) -> Result<[Vec<f32>; 2]> {
    let device = group.device();
    let (mut network, alone) = (gpt(device)?, gpt(device)?);
    let mesh = DeviceMesh::new(group, &[group.size() as usize], &["tp"])?;
    parallelize_module(&mut network, &mesh, &plan())?;
    let options = AdamOptions { lr: 0.003, ..AdamOptions::default() };
    let optimizers = [Adam::new(network.parameters(), options)?, Adam::new(alone.parameters(), options)?];
    let mut losses = [Vec::new(), Vec::new()];
    for step in 0..STEPS {
        let [tokens, next] = batch(step, device)?;
        let scores = network.forward(&tokens)?;
        let divided = cross_entropy(&scores, &next, ClassLossOptions::default(), mesh.group("tp")?)?;
        let undivided = functional::cross_entropy(&alone.forward(&tokens)?, &next)?;
        for ((loss, optimizer), list) in [divided, undivided].iter().zip(&optimizers).zip(&mut losses) {
            loss.backward()?;
            optimizer.step()?;
            optimizer.zero_grad();
            list.push(loss.item::<f32>()?);
        }
        advance();
    }
    Ok(losses)
}

/// Prints losses, and checks that they agree.
fn compare([divided, undivided]: &[Vec<f32>; 2]) -> Result<()> {
    report("divided  ", 0, divided);
    report("undivided", 0, undivided);
    let apart = divided.iter().zip(undivided).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
    println!("at most {apart:.1e} apart");
    if apart < 1e-2 { Ok(()) } else { Err(Error::invalid(format!("the losses are {apart} apart"))) }
}

fn run() -> Result<()> {
    let was_launched = launched(|group| {
        let losses = train(group, || {})?;
        if group.rank() == 0 { compare(&losses) } else { Ok(()) }
    })?;
    if was_launched {
        return Ok(());
    }
    let devices = devices()?;
    println!("{} ranks on {}", devices.len(), devices[0].properties().name);
    let bars = Bars::new(devices.len(), STEPS);
    let losses = run_ranks(&devices, |group| train(&group, || bars.advance(group.rank() as usize)))?;
    compare(&losses[0])
}

fn main() -> ExitCode {
    exit_code("tensor_parallel", run())
}
