//! Host time of eager calls, from the method to the driver's return, and of a small training step.
//!
//! `cargo bench -p thalweg-tensor --bench eager [-- --json] [--device cuda|sim|null] [--only NAME]`: one line per figure, with
//! `--json` one JSON object per line. On a GPU an eager program of small operators is bound by the host's time; in the simulator
//! the worker threads share the cores, so the figures include both accepting and running commands. `null` is a driver that
//! accepts launches and does nothing: it measures only the time of this library.

use std::sync::Arc;
use std::time::Instant;

use thalweg_driver::{Copy, Driver, Fill, Launch, LibraryLaunch, StreamHandle};

use thalweg_ir::DType;
use thalweg_runtime::{Device, Environment, Result, Stream};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_tensor::{Tensor, no_grad};

/// A driver that accepts commands without executing them. For everything else it is a simulated GPU.
#[derive(Debug)]
struct NullDriver(Arc<dyn Driver>);

impl Driver for NullDriver {
    thalweg_driver::wraps!(0);

    fn reads_accesses(&self) -> bool {
        false
    }

    fn launch(&self, _: StreamHandle, _: &Launch<'_>) -> thalweg_driver::Result<()> {
        Ok(())
    }

    fn library_async(&self, _: StreamHandle, _: &LibraryLaunch<'_>) -> thalweg_driver::Result<()> {
        Ok(())
    }

    fn copy_async(&self, _: StreamHandle, _: &Copy) -> thalweg_driver::Result<()> {
        Ok(())
    }

    fn fill_async(&self, _: StreamHandle, _: &Fill) -> thalweg_driver::Result<()> {
        Ok(())
    }
}

/// The number of timed rounds, of which the median is reported.
const ROUNDS: usize = 15;

struct Bench {
    device: Device,
    json: bool,
    /// The name of the only measurement to run; all of them if it is `None`.
    only: Option<String>,
}

impl Bench {
    /// Microseconds per call: each round submits `calls` and then, outside the timed part, waits for the device.
    fn time(&self, name: &str, calls: usize, mut call: impl FnMut() -> Result<()>) -> Result<()> {
        if self.only.as_deref().is_some_and(|only| only != name) {
            return Ok(());
        }
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let start = Instant::now();
            for _ in 0..calls {
                call()?;
            }
            times.push(start.elapsed().as_secs_f64() * 1e6 / calls as f64);
            self.device.synchronize()?;
        }
        times.sort_by(f64::total_cmp);
        let median = times[ROUNDS / 2];
        if self.json {
            println!(
                "{{\"name\": \"{name}\", \"value\": {median:.4}, \"unit\": \"us\", \"device\": \"{}\", \"min\": {:.4}, \"max\": {:.4}}}",
                self.device.properties().name,
                times[0],
                times[ROUNDS - 1]
            );
        } else {
            println!("{name:<28} {median:>9.3} us  (min {:.3}, max {:.3})", times[0], times[ROUNDS - 1]);
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |flag: &str| {
        arguments.iter().position(|argument| argument == flag).and_then(|at| arguments.get(at + 1))
    };
    let device = match after("--device") {
        Some(name) if name == "null" => {
            let driver = Arc::new(NullDriver(SimDriver::new(SimConfig::default())?));
            Device::all_of(driver, Environment::get())?.swap_remove(0)
        }
        Some(name) => Device::from_name(name)?,
        None => Device::best()?,
    };
    let bench = Bench {
        device: device.clone(),
        json: arguments.iter().any(|argument| argument == "--json"),
        only: after("--only").cloned(),
    };
    let stream = Stream::new(&device)?;
    let _current = stream.make_current();
    let small = |seed: f64| Tensor::full(&[16], seed, DType::F32, &device);
    let (a, b) = (small(1.0)?, small(2.0)?);
    bench.time("add_16", 500, || a.add(&b).map(drop))?;
    bench.time("add_16_strided", 500, || {
        let a = a.reshape(&[4, 4])?.transpose(0, 1)?;
        a.add(&a).map(drop)
    })?;
    bench.time("sum_16", 500, || a.sum(&[], false).map(drop))?;
    let matrix = Tensor::ones(&[32, 32], DType::F32, &device)?;
    bench.time("matmul_32", 200, || matrix.matmul(&matrix).map(drop))?;
    let leaf = a.requires_grad_()?;
    bench.time("add_16_recorded", 500, || leaf.add(&b).map(drop))?;
    bench.time("forward_backward_3_operators", 100, || {
        leaf.zero_grad();
        leaf.mul(&b)?.tanh()?.sum(&[], false)?.backward()
    })?;
    no_grad(|| bench.time("copy_in_place_16", 500, || a.copy_(&b)))
}
