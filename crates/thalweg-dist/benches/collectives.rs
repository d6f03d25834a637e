//! Bus bandwidth and host time of collectives over all GPUs of a machine, a thread per GPU or, under a launcher, a process per
//! GPU, as JSON lines. `benches/peers/collectives.py` runs it beside PyTorch. With `--sim RANKS COUNT` the time of COUNT
//! collectives on simulated ranks; with `--host COUNT` the host's time for a call on a driver that does nothing. `--registered`
//! takes the tensors from a pool that is registered with the group, `--symmetric` from one whose memory is symmetric.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use thalweg_dist::store::HashStore;
use thalweg_dist::{GroupOptions, ProcessGroup, ReduceOp, Rendezvous, Work, run_ranks, simulated_devices};
use thalweg_driver::{CaptureInfo, Collective, Driver, EventFlags, EventHandle, StreamHandle};
use thalweg_ir::DType;
use thalweg_memory::PoolOptions;
use thalweg_runtime::{Device, Environment, Event, MemPool, Result};
use thalweg_sim::{SimConfig, SimDriver};
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

/// Returns the time of a call, and the host's part of it, in microseconds.
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
    let has = |name: &str| std::env::args().any(|argument| argument == name);
    let (is_registered, is_symmetric) = (has("--registered"), has("--symmetric"));
    let pool = (is_registered || is_symmetric)
        .then(|| MemPool::for_collectives(group.device(), PoolOptions::default()));
    let _scope = pool.as_ref().map(MemPool::enter).transpose()?;
    if let Some(pool) = pool.as_ref().filter(|_| !is_symmetric) {
        group.register_mem_pool(pool, false)?;
    }
    for name in NAMES {
        for power in (10..=30).step_by(2) {
            let elements = (1usize << power) / 4;
            let whole = Tensor::zeros(&[elements], DType::F32, group.device())?;
            let part = Tensor::zeros(&[elements / group.size() as usize], DType::F32, group.device())?;
            if let Some(pool) = pool.as_ref().filter(|_| is_symmetric) {
                group.register_mem_pool(pool, true)?;
            }
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

/// A simulated machine whose events and collectives complete immediately.
#[derive(Debug)]
struct Nothing {
    inner: Arc<SimDriver>,
    events: AtomicU64,
}

impl Driver for Nothing {
    thalweg_driver::wraps!(inner);

    fn reads_accesses(&self) -> bool {
        false
    }

    fn event_create(&self, _: u32, _: EventFlags) -> thalweg_driver::Result<EventHandle> {
        Ok(EventHandle::from_raw(self.events.fetch_add(1, Ordering::Relaxed) + 1))
    }

    fn event_destroy(&self, _: EventHandle) -> thalweg_driver::Result<()> {
        Ok(())
    }

    fn event_record(&self, _: EventHandle, _: StreamHandle) -> thalweg_driver::Result<()> {
        Ok(())
    }

    fn event_query(&self, _: EventHandle) -> thalweg_driver::Result<bool> {
        Ok(true)
    }

    fn event_synchronize(&self, _: EventHandle) -> thalweg_driver::Result<()> {
        Ok(())
    }

    fn stream_wait_event(&self, _: StreamHandle, _: EventHandle) -> thalweg_driver::Result<()> {
        Ok(())
    }

    fn stream_device(&self, _: StreamHandle) -> thalweg_driver::Result<u32> {
        Ok(0)
    }

    fn stream_capture_info(&self, _: StreamHandle) -> thalweg_driver::Result<CaptureInfo> {
        Ok(CaptureInfo::none())
    }

    fn collectives_async(&self, _: &[Collective]) -> thalweg_driver::Result<()> {
        Ok(())
    }
}

/// Prints the host's time for each collective, in microseconds, with a driver that takes no time.
fn on_no_driver(count: u32) -> Result<()> {
    let inner = SimDriver::new(SimConfig::default())?;
    let driver = Arc::new(Nothing { inner, events: AtomicU64::new(0) });
    let device = Device::all_of(driver, Environment::get())?.remove(0);
    let options = GroupOptions { watchdog: Some(true), ..GroupOptions::default() };
    let group = ProcessGroup::new(Arc::new(HashStore::new()), 0, 1, &device, options)?;
    // A kernel would have no accesses declared on this driver.
    let empty = || Tensor::empty(&[256], DType::F32, &device);
    let (whole, part) = (empty()?, empty()?);
    for name in NAMES {
        let begin = Instant::now();
        for _ in 0..count {
            drop(collective(&group, name, &whole, &part)?);
        }
        let us = begin.elapsed().as_secs_f64() * 1e6 / f64::from(count);
        println!("{{\"name\": \"{name}\", \"calls\": {count}, \"host_us\": {us:.2}}}");
    }
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(place) = arguments.iter().position(|argument| argument == "--host") {
        let count = arguments.get(place + 1).and_then(|text| text.parse().ok());
        return on_no_driver(count.unwrap_or(100_000));
    }
    if let Some(place) = arguments.iter().position(|argument| argument == "--sim") {
        let number = |offset: usize| arguments.get(place + offset).and_then(|text| text.parse().ok());
        let (ranks, count) = (number(1).unwrap_or(64), number(2).unwrap_or(1000));
        let seconds = on_simulated(ranks, count)?.as_secs_f64();
        println!(
            "{{\"name\": \"simulated\", \"ranks\": {ranks}, \"collectives\": {count}, \"seconds\": {seconds:.2}}}"
        );
        return Ok(());
    }
    if let Some(met) = Rendezvous::from_environment()? {
        let device = Device::cuda(met.local_rank)?;
        return on_gpus(&met.init_process_group(&device, GroupOptions::default())?);
    }
    let Ok(first) = Device::cuda(0) else {
        println!("no GPU here; --sim RANKS COUNT measures simulated ranks");
        return Ok(());
    };
    let devices: Vec<Device> = (0..first.driver().device_count()).map(Device::cuda).collect::<Result<_>>()?;
    run_ranks(&devices, |group| on_gpus(&group)).map(drop)
}
