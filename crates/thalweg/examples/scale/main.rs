//! Predicts the time of a training step on 8, 64 and 1,024 GPUs, from measurements on one and two.
//!
//! ```text
//! cargo run -p thalweg --example scale
//! ```
//!
//! First small networks are trained on simulated ranks, which count the collectives of a step; the model assumes the same number.
//! Then it prints its tables. `docs/scale.md` explains them.

mod model;

use std::process::ExitCode;

use thalweg::distributed::{
    DataParallelOptions, DistributedDataParallel, FullyShardOptions, ProcessGroup, fully_shard, run_ranks,
    simulated_devices,
};
use thalweg::module::{Forward, Linear, Module};
use thalweg::random::Generator;
use thalweg::{Error, Result, Tensor};

use model::{CALL, Collective, LAUNCH, Step};

const WIDTH: usize = 8;
const LAYERS: usize = 4;

/// The bytes of a bucket; the first one has a 25th of them.
const BUCKET: f64 = 25.0 * 1024.0 * 1024.0;

#[derive(Module)]
struct Network<L> {
    layers: Vec<L>,
}

impl<L: Module + Forward> Forward for Network<L> {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.layers.iter().try_fold(input.clone(), |x, layer| layer.forward(&x)?.tanh())
    }
}

/// Returns the number of calls with a name, after the first `first` calls of a rank.
fn calls(group: &ProcessGroup, first: usize, name: &str) -> usize {
    group.flight_record().lines().skip(first).filter(|line| line.contains(&format!(" is {name} at "))).count()
}

/// Returns the number of collectives of a step on `ranks` simulated ranks: all-reductions of data parallel training with buckets
/// of this size; gathers and scatters of sharded training.
fn counted(ranks: u32, bucket_bytes: usize) -> Result<[usize; 3]> {
    let counts = run_ranks(&simulated_devices(ranks)?, |group| {
        let mut generator = Generator::new(1);
        let mut layer = || Linear::new(WIDTH, WIDTH, &mut generator, group.device());
        let layers = (0..LAYERS).map(|_| layer()).collect::<Result<_>>()?;
        let options =
            DataParallelOptions { bucket_cap_bytes: bucket_bytes, ..DataParallelOptions::default() };
        let whole = DistributedDataParallel::new(Network { layers }, &group, options)?;
        let options = FullyShardOptions::default();
        let units = (0..LAYERS).map(|_| fully_shard(layer()?, &group, options)).collect::<Result<_>>()?;
        let sharded = fully_shard(Network { layers: units }, &group, options)?;
        let input = Tensor::ones(&[2, WIDTH], thalweg::DType::F32, group.device())?;
        let step = |network: &dyn Forward| network.forward(&input)?.square()?.mean(&[], false)?.backward();
        let mut found = [0; 3];
        // The order of the buckets is known after the first step, and sent in the second.
        (0..2).try_for_each(|_| step(&whole))?;
        let before = group.flight_record().lines().count();
        step(&whole)?;
        found[0] = calls(&group, before, "all_reduce");
        let before = group.flight_record().lines().count();
        step(&sharded)?;
        found[1] = calls(&group, before, "all_gather_into_tensor");
        found[2] = calls(&group, before, "reduce_scatter_tensor");
        Ok(found)
    })?;
    match counts.iter().all(|count| *count == counts[0]) {
        true => Ok(counts[0]),
        false => Err(Error::invalid(format!("the ranks counted differently: {counts:?}"))),
    }
}

/// Finds the contention with which a step on two GPUs takes the time that was measured.
fn with_contention(measured: f64, step: Step, time: impl Fn(&Step) -> f64) -> Step {
    let (none, whole) = (time(&Step { contention: 0.0, ..step }), time(&Step { contention: 1.0, ..step }));
    let contention = ((measured - none) / (whole - none)).max(0.0);
    Step { contention, ..step }
}

/// Prints steps of increasing numbers of GPUs; the efficiency is relative to the smallest number.
fn table(title: &str, tokens: f64, rows: &[u32], us: impl Fn(u32) -> f64) {
    println!("\n{title}");
    println!("{:>6} {:>10} {:>14} {:>12}", "GPUs", "step, ms", "tokens/s", "efficiency");
    let per_gpu = |ranks: u32| tokens / us(ranks) * 1e6;
    for &ranks in rows {
        let efficiency = 100.0 * per_gpu(ranks) / per_gpu(rows[0]);
        let all = f64::from(ranks) * per_gpu(ranks);
        println!("{ranks:>6} {:>10.1} {all:>14.0} {efficiency:>11.1}%", us(ranks) / 1e3);
    }
}

/// Predicts GPT-2 124M, 16 x 1,024 tokens per GPU, captured, on H200s: 35.8 ms on one GPU and 38.2 on two.
fn data_parallel() {
    let (one, two, optimizer, blocks) = (35_825.0, 38_231.0, 900.0, 85.0e6 * 4.0);
    // The table of tokens is also the head, so its gradient is ready last.
    let mut buckets = vec![(blocks - BUCKET / 25.0) / 13.0; 15];
    (buckets[0], buckets[14]) = (BUCKET / 25.0, 39.4e6 * 4.0);
    let base = one - optimizer;
    let step = Step { forward: base / 3.0, backward: base * 2.0 / 3.0, optimizer, contention: 0.0 };
    let step = with_contention(two, step, |step| step.data_parallel(&buckets, 2));
    let title = format!(
        "GPT-2 124M, data parallel, 16,384 tokens per GPU; a collective costs the computation {:.0} % of its time",
        step.contention * 100.0
    );
    table(&title, 16384.0, &[1, 2, 8, 64, 1024], |ranks| match ranks {
        1 => one,
        _ => step.data_parallel(&buckets, ranks),
    });
}

/// Prints the host's time for a step: the model's queues are the GPU's, and apply only while the host is ahead of them.
fn hosts() {
    println!("\nhost: {LAUNCH} us per launch, {CALL} us per collective, whatever the number of ranks");
    // A unit is gathered twice and scattered once.
    for (title, calls, step_us) in [
        ("GPT-2 124M, data parallel, 15 buckets", 15.0, 38_231.0),
        ("GPT-2 XL, fully sharded, 48 units", 3.0 * 48.0, 72_008.0),
    ] {
        let taken = calls * CALL;
        println!(
            "  {title}: an eager step of {:.1} ms has {:.1} ms of collectives' calls and room for {:.0} launches; captured it is one launch",
            step_us / 1e3,
            taken / 1e3,
            (step_us - taken) / LAUNCH
        );
    }
}

/// Predicts GPT-2 XL, 48 blocks of 30.7 million weights, 2 x 1,024 tokens per GPU, eager, on H200s: 72.0 ms on two GPUs.
fn sharded() {
    let (gathered, reduced, optimizer) = (30.7e6 * 2.0, 30.7e6 * 4.0, 11_000.0);
    let step =
        |base: f64| Step { forward: base / 3.0, backward: base * 2.0 / 3.0, optimizer, contention: 0.0 };
    let time = |base: f64, ranks: u32| step(base).sharded(48, [gathered, reduced], ranks, 1);
    // The computation that results in the time of two GPUs: it hides their collectives, so the rest is the same for any number.
    let base = 72_008.0 - (time(60_000.0, 2) - 60_000.0);
    for more in [1.0, 8.0] {
        let tokens = 2048.0 * more;
        let title = format!("GPT-2 XL, fully sharded over all GPUs, {tokens:.0} tokens per GPU");
        table(&title, tokens, &[2, 8, 64, 1024], |ranks| time(base * more, ranks));
    }
    let title = "GPT-2 XL, sharded over the 8 GPUs of a host and replicated beyond, 2048 tokens per GPU";
    table(title, 2048.0, &[8, 64, 1024], |ranks| step(base).sharded(48, [gathered, reduced], 8, ranks / 8));
}

fn run() -> Result<()> {
    for ranks in [8, 64] {
        let [reductions, gathers, scatters] = counted(ranks, 2 * 4 * (WIDTH * WIDTH + WIDTH))?;
        if [reductions, gathers, scatters] != [LAYERS / 2, 2 * LAYERS, LAYERS] {
            return Err(Error::invalid("a step has other collectives than the model assumes"));
        }
        println!(
            "{ranks} simulated ranks, {LAYERS} layers: {reductions} all-reductions of two layers each; sharded {gathers} gathers and {scatters} \
             scatters of a layer each"
        );
    }
    println!("\nbus bandwidth of 64 MiB, GB/s, and microseconds of 64 KiB");
    for ranks in [2, 8, 64, 1024] {
        let share = f64::from(ranks - 1) / f64::from(ranks);
        let bytes = f64::from(64 << 20);
        let of = |collective: Collective, passes: f64| {
            (passes * share * bytes / collective.time(bytes, ranks) / 1e3, collective.time(65536.0, ranks))
        };
        let (reduce, gather) = (of(Collective::AllReduce, 2.0), of(Collective::AllGather, 1.0));
        println!(
            "{ranks:>6} all-reduce {:>4.0} {:>6.0} us   all-gather {:>4.0} {:>6.0} us",
            reduce.0, reduce.1, gather.0, gather.1
        );
    }
    hosts();
    data_parallel();
    sharded();
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scale: {error}");
            ExitCode::FAILURE
        }
    }
}
