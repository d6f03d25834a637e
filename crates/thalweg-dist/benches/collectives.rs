//! Bus bandwidth and host time of collectives over all GPUs of a machine, a thread per GPU, as JSON lines. With `--sim RANKS COUNT` the time of
//! so many collectives on simulated ranks.

use std::time::{Duration, Instant};

use thalweg_dist::{ProcessGroup, ReduceOp, Work, run_ranks, simulated_devices};
use thalweg_ir::DType;
use thalweg_runtime::{Device, Event, Result};
use thalweg_tensor::Tensor;

const NAMES: [&str; 3] = ["all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"];

/// Does one collective over `whole`, of which `part` is this rank's.
fn collective(group: &ProcessGroup, name: &str, whole: &Tensor, part: &Tensor) -> Result<Work> {
    match name {
        "all_reduce" => group.all_reduce(whole, ReduceOp::Sum),
        "all_gather_into_tensor" => group.all_gather_into_tensor(whole, part),
        _ => group.reduce_scatter_tensor(part, whole, ReduceOp::Sum),
    }
}

/// Returns the time of a call, and what the host takes of it, in microseconds.
fn timed(group: &ProcessGroup, name: &str, whole: &Tensor, part: &Tensor, rounds: u32) -> Result<(f64, f64)> {
    for _ in 0..5 {
        drop(collective(group, name, whole, part)?);
    }
    group.barrier()?;
    let (start, end) = (Event::with_timing(), Event::with_timing());
    start.record(group.stream())?;
    let begin = Instant::now();
    for _ in 0..rounds {
        drop(collective(group, name, whole, part)?);
    }
    let host = begin.elapsed();
    end.record(group.stream())?;
    end.synchronize()?;
    let time = f64::from(start.elapsed_ms(&end)?) * 1e3 / f64::from(rounds);
    Ok((time, host.as_secs_f64() * 1e6 / f64::from(rounds)))
}

fn on_gpus(group: &ProcessGroup) -> Result<()> {
    let ranks = f64::from(group.size());
    for name in NAMES {
        for power in (10..=30).step_by(2) {
            let elements = (1usize << power) / 4;
            let whole = Tensor::zeros(&[elements], DType::F32, group.device())?;
            let part = Tensor::zeros(&[elements / group.size() as usize], DType::F32, group.device())?;
            let rounds = if power < 24 { 50 } else { 10 };
            let (time, host) = timed(group, name, &whole, &part, rounds)?;
            let factor = if name == "all_reduce" { 2.0 } else { 1.0 } * (ranks - 1.0) / ranks;
            let bandwidth = (4 * elements) as f64 * factor / time / 1e3;
            if group.rank() == 0 {
                println!(
                    "{{\"name\": \"{name}\", \"bytes\": {}, \"us\": {time:.2}, \"bus_gb_per_s\": {bandwidth:.2}, \"host_us\": {host:.2}}}",
                    4 * elements
                );
            }
        }
    }
    Ok(())
}

fn on_simulated(ranks: u32, count: u32) -> Result<Duration> {
    let devices = simulated_devices(ranks)?;
    let begin = Instant::now();
    run_ranks(&devices, |group| {
        let x = Tensor::full(&[16], 1.0, DType::F32, group.device())?;
        for _ in 0..count {
            group.all_reduce(&x, ReduceOp::Max)?.wait()?;
        }
        x.to_vec::<f32>()
    })?;
    Ok(begin.elapsed())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(place) = arguments.iter().position(|argument| argument == "--sim") {
        let number = |offset: usize| arguments.get(place + offset).and_then(|text| text.parse().ok());
        let (ranks, count) = (number(1).unwrap_or(64), number(2).unwrap_or(1000));
        let seconds = on_simulated(ranks, count)?.as_secs_f64();
        println!(
            "{{\"name\": \"simulated\", \"ranks\": {ranks}, \"collectives\": {count}, \"seconds\": {seconds:.2}}}"
        );
        return Ok(());
    }
    let Ok(first) = Device::cuda(0) else {
        println!("no GPU here; --sim RANKS COUNT measures simulated ranks");
        return Ok(());
    };
    let devices: Vec<Device> = (0..first.driver().device_count()).map(Device::cuda).collect::<Result<_>>()?;
    run_ranks(&devices, |group| on_gpus(&group)).map(drop)
}
