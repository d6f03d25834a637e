//! The number of small programs that a controlled simulator runs per second, on one core: make a driver, three streams and two
//! events, submit twenty commands with the order between them, wait, drop the driver. With all checks (`checked`: wrapped by the
//! sanitizer), and without.
//!
//! `cargo bench -p thalweg-sanitizer --bench controlled` prints a table; with `-- --json`, one JSON object per line.

use std::sync::Arc;
use std::time::Instant;

use thalweg_driver::{
    Access, DevicePointer, Driver, EventFlags, HostKernel, HostLaunch, HostModule, Image, Label, Launch,
    LaunchMode, Result,
};
use thalweg_sanitizer::SanitizerDriver;
use thalweg_sim::schedules::{Eager, Late, PriorityChange, Random};
use thalweg_sim::{Schedule, SimConfig, SimDriver};

const SCENARIOS: u64 = 4000;
const ROUNDS: usize = 5;
const COMMANDS: usize = 20;

type MakeSchedule = fn(u64) -> Box<dyn Schedule>;

fn main() -> Result<()> {
    let json = std::env::args().any(|argument| argument == "--json");
    let kernel: Arc<dyn HostKernel> = Arc::new(|launch: &HostLaunch<'_>| {
        let address = u64::from_le_bytes(launch.arguments.try_into().expect("eight bytes"));
        for word in launch.write::<u32>(DevicePointer::new(address), 16)? {
            *word = 1;
        }
        Ok(())
    });
    // Made once: the default asks the operating system for the number of processors.
    let config = SimConfig { memory_bytes: 64 << 20, workers: 1, ..SimConfig::default() };
    let module = HostModule::single("set", kernel);
    let schedules: [(&str, MakeSchedule); 4] = [
        ("late", |seed| Box::new(Late::new(seed))),
        ("eager", |seed| Box::new(Eager::new(seed))),
        ("random", |seed| Box::new(Random::new(seed))),
        ("priority_change", |seed| Box::new(PriorityChange::new(seed, 3, 60))),
    ];
    let runs = schedules.into_iter().flat_map(|schedule| [(false, schedule), (true, schedule)]);
    for (checked, (name, schedule)) in runs {
        let mut best = f64::INFINITY;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            for seed in 0..SCENARIOS {
                scenario(&module, config.clone(), schedule(seed), checked)?;
            }
            best = best.min(start.elapsed().as_secs_f64());
        }
        let rate = SCENARIOS as f64 / best;
        let name = if checked { format!("{name}_checked") } else { name.to_owned() };
        if json {
            println!("{{\"name\": \"scenarios_{name}\", \"value\": {rate:.0}, \"unit\": \"scenarios/s\"}}");
        } else {
            println!("scenarios_{name:<24} {rate:>10.0} scenarios/s");
        }
    }
    Ok(())
}

fn scenario(
    module: &HostModule,
    config: SimConfig,
    schedule: Box<dyn Schedule>,
    checked: bool,
) -> Result<()> {
    let machine = SimDriver::controlled(config, schedule)?;
    if !checked {
        return program(&*machine, module);
    }
    let sanitizer = SanitizerDriver::new(machine);
    program(&*sanitizer, module)?;
    assert!(sanitizer.findings().is_empty(), "the program is right");
    Ok(())
}

fn program(driver: &dyn Driver, module: &HostModule) -> Result<()> {
    let loaded = driver.module_load(0, Image::Host(module))?;
    let function = driver.function_get(loaded, "set")?;
    let streams = [driver.stream_create(0, 0)?, driver.stream_create(0, 0)?, driver.stream_create(0, 0)?];
    let events =
        [driver.event_create(0, EventFlags::default())?, driver.event_create(0, EventFlags::default())?];
    let data = driver.memory_allocate(0, 4 << 10)?;
    for command in 0..COMMANDS {
        let (stream, target) = (streams[command % 3], data.offset(256 * (command as u64 % 3)));
        driver.launch(
            stream,
            &Launch {
                function,
                grid: [1; 3],
                block: [16, 1, 1],
                shared_memory_bytes: 0,
                mode: LaunchMode::InOrder,
                arguments: &target.address().to_le_bytes(),
                accesses: &[Access::write(target, 64)],
                label: Label::here("set"),
            },
        )?;
        if command % 4 == 3 {
            let event = events[command / 4 % 2];
            driver.event_record(event, stream)?;
            driver.stream_wait_event(streams[(command + 1) % 3], event)?;
        }
    }
    driver.event_query(events[0])?;
    driver.device_synchronize(0)
}
