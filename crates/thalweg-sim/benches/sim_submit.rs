//! The cost of a command on the simulated GPU: submission and execution of small commands, one at a time and in long queues.
//!
//! `cargo bench -p thalweg-sim --bench sim_submit` prints a table; with `-- --json`, one JSON object per line.

use std::sync::Arc;
use std::time::Instant;

use thalweg_driver::{
    Access, CaptureMode, DevicePointer, Driver, EventFlags, FunctionHandle, HostKernel, HostLaunch,
    HostModule, Image, Label, Launch, LaunchMode, Result, StreamHandle,
};
use thalweg_sim::{SimConfig, SimDriver};

const COMMANDS: u32 = 20_000;
const ROUNDS: usize = 7;

fn main() -> Result<()> {
    let json = std::env::args().any(|argument| argument == "--json");
    let report = |name: &str, value: f64, unit: &str| {
        if json {
            println!("{{\"name\": \"{name}\", \"value\": {value:.4}, \"unit\": \"{unit}\"}}");
        } else {
            println!("{name:<36} {value:>10.3} {unit}");
        }
    };
    for workers in [1, 2] {
        let bench = Bench::new(workers)?;
        let name = |what: &str| format!("{what}_{workers}_workers");
        report(&name("queue_one_stream"), bench.queue(1)?, "us/command");
        report(&name("queue_four_streams"), bench.queue(4)?, "us/command");
        report(&name("submit_only"), bench.submit_only()?, "us/command");
        report(&name("event_record_and_wait"), bench.events()?, "us/pair");
        report(&name("graph_of_100"), bench.graph()?, "us/node");
        report(&name("launch_and_synchronize"), bench.round_trip()?, "us/round");
        report(&name("allocate_and_free_1_mib"), bench.allocate()?, "us/pair");
    }
    let start = Instant::now();
    for _ in 0..100 {
        SimDriver::new(SimConfig { workers: 2, ..SimConfig::default() })?;
    }
    report("driver_new_and_drop", start.elapsed().as_secs_f64() * 1e6 / 100.0, "us");
    Ok(())
}

struct Bench {
    driver: Arc<SimDriver>,
    streams: Vec<StreamHandle>,
    function: FunctionHandle,
    data: DevicePointer,
}

impl Bench {
    fn new(workers: usize) -> Result<Self> {
        let driver = SimDriver::new(SimConfig { workers, ..SimConfig::default() })?;
        let kernel: Arc<dyn HostKernel> = Arc::new(|launch: &HostLaunch<'_>| {
            let address = u64::from_le_bytes(launch.arguments.try_into().expect("eight bytes"));
            for word in launch.write::<u32>(DevicePointer::new(address), 16)? {
                *word = word.wrapping_add(1);
            }
            Ok(())
        });
        let module = driver.module_load(0, Image::Host(&HostModule::single("increment", kernel)))?;
        let function = driver.function_get(module, "increment")?;
        let streams = (0..4).map(|_| driver.stream_create(0, 0)).collect::<Result<_>>()?;
        let data = driver.memory_allocate(0, 4 << 10)?;
        Ok(Self { driver, streams, function, data })
    }

    fn launch(&self, stream: usize) -> Result<()> {
        let target = self.data.offset(1024 * stream as u64);
        self.driver.launch(
            self.streams[stream],
            &Launch {
                function: self.function,
                grid: [1; 3],
                block: [16, 1, 1],
                shared_memory_bytes: 0,
                mode: LaunchMode::InOrder,
                arguments: &target.address().to_le_bytes(),
                accesses: &[Access::read_write(target, 64)],
                label: Label::here("increment"),
            },
        )
    }

    /// Returns the best time of several rounds, in microseconds per unit.
    fn best(&self, units: u32, mut round: impl FnMut() -> Result<f64>) -> Result<f64> {
        let mut best = f64::INFINITY;
        for _ in 0..ROUNDS {
            best = best.min(round()? * 1e6 / f64::from(units));
            self.driver.device_synchronize(0)?;
        }
        Ok(best)
    }

    fn queue(&self, streams: usize) -> Result<f64> {
        self.best(COMMANDS, || {
            let start = Instant::now();
            for command in 0..COMMANDS as usize {
                self.launch(command % streams)?;
            }
            self.driver.device_synchronize(0)?;
            Ok(start.elapsed().as_secs_f64())
        })
    }

    fn submit_only(&self) -> Result<f64> {
        self.best(COMMANDS, || {
            let start = Instant::now();
            for _ in 0..COMMANDS {
                self.launch(0)?;
            }
            Ok(start.elapsed().as_secs_f64())
        })
    }

    fn events(&self) -> Result<f64> {
        let event = self.driver.event_create(0, EventFlags::default())?;
        self.best(COMMANDS, || {
            let start = Instant::now();
            for _ in 0..COMMANDS {
                self.driver.event_record(event, self.streams[0])?;
                self.driver.stream_wait_event(self.streams[1], event)?;
            }
            Ok(start.elapsed().as_secs_f64())
        })
    }

    fn graph(&self) -> Result<f64> {
        const NODES: u32 = 100;
        const LAUNCHES: u32 = 200;
        self.driver.stream_begin_capture(self.streams[0], CaptureMode::Relaxed)?;
        for _ in 0..NODES {
            self.launch(0)?;
        }
        let graph = self.driver.stream_end_capture(self.streams[0])?;
        let executable = self.driver.graph_instantiate(graph, 0)?;
        self.best(NODES * LAUNCHES, || {
            let start = Instant::now();
            for _ in 0..LAUNCHES {
                self.driver.graph_launch(executable, self.streams[0])?;
            }
            self.driver.device_synchronize(0)?;
            Ok(start.elapsed().as_secs_f64())
        })
    }

    fn round_trip(&self) -> Result<f64> {
        self.best(COMMANDS / 10, || {
            let start = Instant::now();
            for _ in 0..COMMANDS / 10 {
                self.launch(0)?;
                self.driver.stream_synchronize(self.streams[0])?;
            }
            Ok(start.elapsed().as_secs_f64())
        })
    }

    fn allocate(&self) -> Result<f64> {
        self.best(COMMANDS, || {
            let start = Instant::now();
            for _ in 0..COMMANDS {
                let pointer = self.driver.memory_allocate(0, 1 << 20)?;
                self.driver.memory_free(pointer)?;
            }
            Ok(start.elapsed().as_secs_f64())
        })
    }
}
