//! The cost of the sanitizer per submission: the same small scenarios on a plain simulator and on a checked one.
//!
//! It also measures the cost of a command after many others: with blocks that are dropped and never reused, and on strided
//! columns.
//!
//! `cargo bench -p thalweg-sanitizer --bench overhead` prints a table; with `-- --json`, one JSON object per line.

use std::sync::Arc;
use std::time::Instant;

use thalweg_driver::{
    Access, BlockKind, DevicePointer, Driver, EventFlags, FunctionHandle, HostKernel, HostLaunch, HostModule,
    Image, Label, Launch, LaunchMode, Result, StreamHandle, Touch,
};
use thalweg_sanitizer::SanitizerDriver;
use thalweg_sim::{SimConfig, SimDriver};

const SCENARIOS: u32 = 2_000;
const ROUNDS: usize = 9;
const BLOCK_BYTES: u64 = 512;

struct Bench {
    driver: Arc<dyn Driver>,
    streams: Vec<StreamHandle>,
    function: FunctionHandle,
    data: DevicePointer,
}

impl Bench {
    fn new(driver: Arc<dyn Driver>) -> Result<Self> {
        let kernel: Arc<dyn HostKernel> = Arc::new(|_: &HostLaunch<'_>| Ok(()));
        let module = driver.module_load(0, Image::Host(&HostModule::single("nothing", kernel)))?;
        let function = driver.function_get(module, "nothing")?;
        let streams = (0..3).map(|_| driver.stream_create(0, 0)).collect::<Result<_>>()?;
        let data = driver.memory_allocate(0, 64 << 10)?;
        Ok(Self { driver, streams, function, data })
    }

    fn launch(&self, stream: usize, accesses: &[Access]) -> Result<()> {
        let launch = Launch {
            function: self.function,
            grid: [1; 3],
            block: [1; 3],
            shared_memory_bytes: 0,
            mode: LaunchMode::InOrder,
            arguments: &[],
            accesses,
            label: Label::here("work"),
        };
        self.driver.launch(self.streams[stream], &launch)
    }

    /// Submits 20 calls on 3 streams: 14 launches with three accesses each, and three hand-overs by an event. Then waits for the
    /// machine.
    fn scenario(&self) -> Result<()> {
        let event = self.driver.event_create(0, EventFlags::default())?;
        for step in 0..14 {
            let stream = step % 3;
            let part = |which: usize| self.data.offset(((which * 3 + stream) * 1024) as u64);
            let accesses =
                [Access::read(part(0), 1024), Access::read(part(1), 1024), Access::write(part(2), 1024)];
            self.launch(stream, &accesses)?;
            if step % 5 == 4 || step == 13 {
                self.driver.event_record(event, self.streams[stream])?;
                self.driver.stream_wait_event(self.streams[(stream + 1) % 3], event)?;
            }
        }
        self.driver.event_destroy(event)
    }

    /// Returns the microseconds per command if each command writes a block that is dropped and whose bytes are not reused.
    fn dead_blocks(&self, commands: u64) -> Result<f64> {
        let memory = self.driver.memory_allocate(0, commands * BLOCK_BYTES)?;
        let start = Instant::now();
        for number in 0..commands {
            let block = memory.offset(number * BLOCK_BYTES);
            if let Some(instrument) = self.driver.instrument() {
                let (kind, label) = (BlockKind::Device, Label::here("empty"));
                instrument.block_allocated(block.address(), BLOCK_BYTES, kind, self.streams[0], label);
            }
            self.launch(0, &[Access::write(block, BLOCK_BYTES)])?;
            if let Some(instrument) = self.driver.instrument() {
                instrument.block_freed(block.address(), None);
            }
            if number % 1000 == 999 {
                self.driver.stream_synchronize(self.streams[0])?;
            }
        }
        let us = start.elapsed().as_secs_f64() * 1e6 / commands as f64;
        self.driver.memory_free(memory)?;
        Ok(us)
    }

    /// Returns the microseconds per command if each command writes one of eight columns of a matrix of 1000 rows.
    fn columns(&self, commands: u64) -> Result<f64> {
        const ROWS: u64 = 1000;
        let start = Instant::now();
        for number in 0..commands {
            let column = self.data.offset(number % 8 * 8);
            let access = Access::write(column, (ROWS - 1) * 64 + 8).touching(Touch::rows(8, 64, ROWS));
            self.launch(0, &[access])?;
            if number % 1000 == 999 {
                self.driver.stream_synchronize(self.streams[0])?;
            }
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / commands as f64)
    }

    /// Returns the microseconds per scenario, the best of some rounds: the calls only, and with the wait for the machine.
    fn measure(&self) -> Result<(f64, f64)> {
        let (mut calls, mut whole) = (f64::MAX, f64::MAX);
        for _ in 0..ROUNDS {
            let (start, mut submitting) = (Instant::now(), 0.0);
            for _ in 0..SCENARIOS {
                let submit = Instant::now();
                self.scenario()?;
                submitting += submit.elapsed().as_secs_f64();
                self.driver.device_synchronize(0)?;
            }
            calls = calls.min(submitting * 1e6 / f64::from(SCENARIOS));
            whole = whole.min(start.elapsed().as_secs_f64() * 1e6 / f64::from(SCENARIOS));
        }
        Ok((calls, whole))
    }
}

fn main() -> Result<()> {
    let json = std::env::args().any(|argument| argument == "--json");
    let report = |name: &str, value: f64, unit: &str| {
        if json {
            println!("{{\"name\": \"{name}\", \"value\": {value:.4}, \"unit\": \"{unit}\"}}");
        } else {
            println!("{name:<36} {value:>10.3} {unit}");
        }
    };
    let sim = || SimDriver::new(SimConfig { workers: 1, ..SimConfig::default() });
    let plain = Bench::new(sim()?)?.measure()?;
    let checked = Bench::new(SanitizerDriver::new(sim()?))?.measure()?;
    report("scenario_calls_plain", plain.0, "us");
    report("scenario_calls_checked", checked.0, "us");
    report("scenario_plain", plain.1, "us");
    report("scenario_checked", checked.1, "us");
    report("overhead_per_call", (checked.0 - plain.0) / 22.0, "us");
    let (plain, checked) = (Bench::new(sim()?)?, Bench::new(SanitizerDriver::new(sim()?))?);
    for commands in [10_000, 100_000, 1_000_000] {
        report(&format!("dead_blocks_{commands}_plain"), plain.dead_blocks(commands)?, "us per command");
        report(&format!("dead_blocks_{commands}_checked"), checked.dead_blocks(commands)?, "us per command");
    }
    for commands in [100_000, 1_000_000] {
        report(&format!("columns_{commands}_plain"), plain.columns(commands)?, "us per command");
        report(&format!("columns_{commands}_checked"), checked.columns(commands)?, "us per command");
    }
    Ok(())
}
