//! A training step of GPT-2 over all GPUs of a machine: data parallel or fully sharded, eager or captured in lockstep; a line of JSON per figure.
//!
//! `cargo bench -p thalweg-dist --bench training -- ddp|fsdp [--ranks N] [--sim] [--layers N] [--features N] [--heads N] [--batch N] [--tokens N]
//! [--steps N] [--captured] [--fused] [--compress] [--bucket-mib N] [--deterministic] [--priority N] [--progress]`. `--progress` says on stderr when each phase ends; with `--fused` the replicated module's optimizer steps each bucket when it has been reduced, and with `--compress` buckets are reduced in bfloat16. Ranks are threads, or processes under `torchrun --no-python`. `--batch` is that of a rank. The losses are those of the
//! first steps over the whole batch, so that `--ranks 1 --batch 16` and `--ranks 2 --batch 8` are the same training.
//! `benches/peers/parallel.py` is the same in PyTorch.

#[path = "common/gpt2.rs"]
mod gpt2;

use std::sync::Arc;
use std::time::Instant;

use thalweg_dist::{
    BucketHook, DataParallelOptions, DistributedDataParallel, FullyShard, FullyShardOptions, GroupOptions,
    LockstepGraph, MixedPrecision, ProcessGroup, ReduceOp, Rendezvous, bf16_compress_hook, fully_shard,
    run_ranks_with, simulated_devices,
};
use thalweg_ir::DType;
use thalweg_nn::functional;
use thalweg_nn::module::{Embedding, Forward, LayerNorm, Module};
use thalweg_nn::optim::{AdamW, AdamWOptions};
use thalweg_runtime::{CaptureOptions, Device, Result, Stream};
use thalweg_tensor::Tensor;
use thalweg_tensor::autocast::autocast;
use thalweg_tensor::deterministic::use_deterministic_algorithms;
use thalweg_tensor::random::{DeviceGenerator, Generator};

use gpt2::{Arguments, Block, Maker, VOCABULARY};

/// Steps whose losses are printed.
const LOSSES: usize = 5;

#[derive(Clone)]
struct Options {
    is_sharded: bool,
    is_simulated: bool,
    is_captured: bool,
    is_fused: bool,
    is_compressed: bool,
    /// The size of a bucket.
    bucket_mib: usize,
    is_deterministic: bool,
    /// The start of the program, if phases are to be timed.
    progress: Option<Instant>,
    ranks: Option<usize>,
    layers: usize,
    features: usize,
    heads: usize,
    batch: usize,
    tokens: usize,
    steps: usize,
    /// That of the group's stream.
    priority: i32,
}

impl Options {
    fn parse() -> Self {
        let arguments = Arguments::of_program();
        Self {
            is_sharded: arguments.has("fsdp"),
            is_simulated: arguments.has("--sim"),
            is_captured: arguments.has("--captured"),
            is_fused: arguments.has("--fused"),
            is_compressed: arguments.has("--compress"),
            bucket_mib: arguments.number("--bucket-mib", 25),
            is_deterministic: arguments.has("--deterministic"),
            progress: arguments.has("--progress").then(Instant::now),
            ranks: arguments.after("--ranks").map(|text| text.parse().expect("a whole number")),
            layers: arguments.number("--layers", 12),
            features: arguments.number("--features", 768),
            heads: arguments.number("--heads", 12),
            batch: arguments.number("--batch", 16),
            tokens: arguments.number("--tokens", 1024),
            steps: arguments.number("--steps", 5),
            priority: arguments.after("--priority").map_or(0, |text| text.parse().expect("a whole number")),
        }
    }
}

#[derive(Module)]
struct Gpt2<B> {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<B>,
    norm: LayerNorm,
}

impl<B: Module + Forward> Gpt2<B> {
    fn new(options: &Options, maker: &Maker, wrap: impl Fn(Block) -> Result<B>) -> Result<Self> {
        let features = options.features;
        Ok(Self {
            tokens: maker.embedding(VOCABULARY, features)?,
            positions: maker.embedding(options.tokens, features)?,
            blocks: (0..options.layers)
                .map(|_| wrap(maker.block(features, options.heads)?))
                .collect::<Result<_>>()?,
            norm: LayerNorm::new(features, &maker.device)?,
        })
    }

    /// Returns the loss; the head shares the weights of the embedding.
    fn loss(&self, input: &Tensor, next: &Tensor) -> Result<Tensor> {
        let positions = self.positions.weight.narrow(0, 0, input.shape()[1])?;
        let mut x = self.tokens.forward(input)?.add(&positions)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        let scores = functional::linear(&self.norm.forward(&x)?, &self.tokens.weight, None)?;
        let count = next.elements();
        functional::cross_entropy(&scores.reshape(&[count, VOCABULARY])?, &next.reshape(&[count])?)
    }
}

enum Network {
    Data(DistributedDataParallel<Gpt2<Block>>),
    Sharded(FullyShard<Gpt2<FullyShard<Block>>>),
}

impl Network {
    fn new(options: &Options, group: &ProcessGroup) -> Result<Self> {
        let device = group.device().clone();
        let maker = Maker { generator: DeviceGenerator::new(1, &device)?, device };
        if !options.is_sharded {
            let network = Gpt2::new(options, &maker, Ok)?;
            let hook = options.is_compressed.then(|| Arc::new(bf16_compress_hook) as Arc<BucketHook>);
            let bucket_cap_bytes = options.bucket_mib << 20;
            let parallel = DataParallelOptions { hook, bucket_cap_bytes, ..DataParallelOptions::default() };
            let network = DistributedDataParallel::new(network, group, parallel)?;
            return Ok(Self::Data(network));
        }
        let mixed_precision = MixedPrecision {
            param_dtype: Some(DType::Bf16),
            reduce_dtype: Some(DType::F32),
            ..MixedPrecision::default()
        };
        let sharding = FullyShardOptions { mixed_precision, ..FullyShardOptions::default() };
        let network = Gpt2::new(options, &maker, |block| fully_shard(block, group, sharding))?;
        Ok(Self::Sharded(fully_shard(network, group, sharding)?))
    }

    fn parameters(&self) -> Vec<Tensor> {
        match self {
            Self::Data(network) => network.parameters(),
            Self::Sharded(network) => network.parameters(),
        }
    }

    fn loss(&self, input: &Tensor, next: &Tensor) -> Result<Tensor> {
        match self {
            Self::Data(network) => network.run(|network| {
                let loss = autocast(DType::Bf16, || network.loss(input, next))?;
                Ok((loss.clone(), vec![loss]))
            }),
            Self::Sharded(network) => network.run(|network| network.loss(input, next)),
        }
    }
}

/// Returns a rank's rows of the batch of all ranks.
fn tokens(options: &Options, group: &ProcessGroup, seed: u64) -> Result<Tensor> {
    let mut generator = Generator::new(seed);
    let own = options.batch * options.tokens;
    let all = own * group.size() as usize;
    let values: Vec<i64> = (0..all).map(|_| generator.below(50_257).map_or(0, i64::from)).collect();
    let first = own * group.rank() as usize;
    Tensor::from_slice(&values[first..first + own], &[options.batch, options.tokens], group.device())
}

/// Returns the median time of a step in milliseconds.
fn time(options: &Options, group: &ProcessGroup, mut step: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..5 {
        group.barrier()?;
        let begin = Instant::now();
        (0..options.steps).try_for_each(|_| step())?;
        group.device().synchronize()?;
        times.push(begin.elapsed().as_secs_f64() * 1e3 / options.steps as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn report(name: &str, options: &Options, group: &ProcessGroup, ms: f64) {
    if group.rank() == 0 {
        let rate = (options.batch * options.tokens) as f64 / ms * 1e3;
        let peak = group.device().max_memory_allocated() >> 20;
        println!(
            "{{\"name\": \"{name}\", \"ranks\": {}, \"ms\": {ms:.3}, \"tokens_per_s_and_gpu\": {rate:.0}, \"peak_allocated_MiB\": {peak}, \
             \"device\": \"{}\"}}",
            group.size(),
            group.device().properties().name
        );
    }
}

/// Prints to standard error that a phase is over, with the memory that the rank has reserved.
fn reached(options: &Options, group: &ProcessGroup, phase: &str) {
    if let Some(begin) = options.progress {
        let device = group.device();
        let [live, reserved] = [device.memory_allocated() >> 20, device.memory_reserved() >> 20];
        let (seconds, rank) = (begin.elapsed().as_secs_f64(), group.rank());
        eprintln!("{seconds:8.3} s, rank {rank}: {phase}; {live} MiB live, {reserved} MiB reserved");
    }
}

fn train(options: &Options, group: &ProcessGroup) -> Result<()> {
    let say = |phase: &str| reached(options, group, phase);
    let stream = Stream::new(group.device())?;
    let _current = stream.make_current();
    let network = Network::new(options, group)?;
    let rates = AdamWOptions { lr: 3e-4, ..AdamWOptions::default() };
    let optimizer = Arc::new(AdamW::new(network.parameters(), rates)?);
    let is_fused = match &network {
        Network::Data(network) if options.is_fused => {
            network.register_fused_optim(&optimizer).map(|()| true)?
        }
        _ => false,
    };
    let (input, next) = (tokens(options, group, 1)?, tokens(options, group, 2)?);
    say("network");
    let step = |say: &dyn Fn(&str)| -> Result<Tensor> {
        optimizer.zero_grad();
        let loss = network.loss(&input, &next)?;
        say("forward");
        loss.backward()?;
        say("backward");
        if !is_fused {
            optimizer.step()?;
        }
        Ok(loss.detach())
    };
    let quiet = |_: &str| {};
    // The first step compiles and connects, the second one brings the buckets into their order; then a step can be captured.
    let mean = |loss: &Tensor| -> Result<f32> {
        let mean = loss.to_dtype(DType::F32)?;
        group.all_reduce(&mean, ReduceOp::Avg)?.wait()?;
        mean.item::<f32>()
    };
    let mut losses = vec![mean(&step(&say)?)?];
    losses.push(mean(&step(&say)?)?);
    say("two steps");
    let captured = options
        .is_captured
        .then(|| LockstepGraph::capture(group, CaptureOptions::default(), || step(&say)))
        .transpose()?;
    if let Some((graph, _)) = &captured {
        say(&format!(
            "instantiated: {:?}, {:?}",
            graph.graph().memory(),
            group.device().max_memory_allocated() >> 20
        ));
    }
    while losses.len() < LOSSES {
        losses.push(match &captured {
            Some((graph, loss)) => {
                graph.replay()?;
                mean(loss)?
            }
            None => mean(&step(&quiet)?)?,
        });
        say("replay or step");
    }
    let name = if options.is_sharded { "fsdp" } else { "ddp" };
    if group.rank() == 0 {
        println!("{{\"name\": \"{name}_losses\", \"ranks\": {}, \"losses\": {losses:?}}}", group.size());
    }
    let graph = captured.as_ref().map(|(graph, _)| graph);
    time_steps(options, group, name, graph, || step(&quiet).map(drop))
}

/// Times replays of a captured step, or eager steps if there is no graph.
fn time_steps(
    options: &Options,
    group: &ProcessGroup,
    name: &str,
    graph: Option<&LockstepGraph>,
    step: impl FnMut() -> Result<()>,
) -> Result<()> {
    let Some(graph) = graph else {
        let ms = time(options, group, step)?;
        report(&format!("{name}_eager"), options, group, ms);
        return Ok(());
    };
    let ms = time(options, group, || graph.replay())?;
    report(&format!("{name}_captured"), options, group, ms);
    graph.verify()
}

fn main() -> Result<()> {
    let options = Options::parse();
    use_deterministic_algorithms(options.is_deterministic, false);
    let of_group = GroupOptions { stream_priority: options.priority, ..GroupOptions::default() };
    if let Some(met) = Rendezvous::from_environment()? {
        let device = Device::cuda(met.local_rank)?;
        let _current = device.make_current();
        let group = met.init_process_group(&device, of_group)?;
        train(&options, &group)?;
        return group.barrier();
    }
    let devices = if options.is_simulated {
        simulated_devices(options.ranks.unwrap_or(2) as u32)?
    } else {
        let Ok(first) = Device::cuda(0) else {
            println!("no GPU here; --sim trains on simulated ranks");
            return Ok(());
        };
        let count = options.ranks.unwrap_or(first.driver().device_count() as usize);
        (0..count as u32).map(Device::cuda).collect::<Result<_>>()?
    };
    run_ranks_with(&devices, &of_group, |group| train(&options, &group)).map(drop)
}
