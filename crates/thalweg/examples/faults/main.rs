//! Lets one rank of a job fail, and shows which errors the other ranks get, and when.
//!
//! ```text
//! cargo run -p thalweg --example faults -- --fault stall            # 3 simulated ranks, a thread each
//! RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 target/debug/examples/faults --fault kill &
//! RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 target/debug/examples/faults --fault kill
//! ```
//!
//! All ranks reduce the same tensor repeatedly; the last one fails in the middle. `kill` ends its process without notice, `stall`
//! makes it stop working, `late` delays it by twice the timeout. A rank that gets an error prints it with the seconds that it
//! waited, and its process fails. With `--at 0` the last rank fails before its first call, for which NCCL connects the ranks: on
//! GPUs the others are then inside a call of NCCL, which the watchdog's abort ends.

#[path = "../common/arguments.rs"]
#[expect(dead_code, reason = "a launcher says which device a rank has")]
mod arguments;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use arguments::Command;
use thalweg::distributed::{GroupOptions, ProcessGroup, ReduceOp, Rendezvous, run_ranks, simulated_devices};
use thalweg::{DType, Device, Error, Result, Tensor};

const USAGE: &str = "\
usage: faults [--fault kill|stall|late|none] [--at STEP] [--timeout SECONDS] [--exit]

  --fault F    what the last rank does (default stall; kill and late need a process per rank)
  --at N       the step at which it fails, of 400 (default 200)
  --exit       a rank that gets an error ends its process at once
  --timeout S  how long a rank waits for another (default 8)";

/// The steps of the job.
const STEPS: usize = 400;

/// The behaviour of the last rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    Kill,
    Stall,
    Late,
}

struct Options {
    fault: Fault,
    at: usize,
    exits: bool,
    timeout: Duration,
}

impl Options {
    fn parse(mut given: impl Iterator<Item = String>) -> std::result::Result<Command<Self>, String> {
        let mut options =
            Self { fault: Fault::Stall, at: 200, exits: false, timeout: Duration::from_secs(8) };
        while let Some(argument) = given.next() {
            let mut value = || given.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--fault" => {
                    options.fault = match value()?.as_str() {
                        "none" => Fault::None,
                        "kill" => Fault::Kill,
                        "stall" => Fault::Stall,
                        "late" => Fault::Late,
                        other => {
                            return Err(format!("--fault takes kill, stall, late or none, not '{other}'"));
                        }
                    }
                }
                "--at" => options.at = arguments::number(&argument, &value()?, 0)?,
                "--exit" => options.exits = true,
                "--timeout" => {
                    let seconds: usize = arguments::number(&argument, &value()?, 1)?;
                    options.timeout = Duration::from_secs(seconds as u64);
                }
                "--help" | "-h" => return Ok(Command::Help),
                other => return Err(format!("unknown argument {other}")),
            }
        }
        Ok(Command::Run(options))
    }

    fn group(&self) -> GroupOptions {
        GroupOptions { timeout: self.timeout, ..GroupOptions::default() }
    }
}

/// Reduces repeatedly. The last rank fails in the middle.
fn work(group: &ProcessGroup, options: &Options) -> Result<()> {
    let tensor = Tensor::ones(&[1 << 16], DType::F32, group.device())?;
    for step in 0..STEPS {
        if step == options.at && group.rank() + 1 == group.size() {
            match options.fault {
                Fault::Kill => std::process::abort(),
                Fault::Stall => {
                    eprintln!("rank {} stalls", group.rank());
                    std::thread::sleep(3 * options.timeout);
                    return Err(Error::invalid("it stalled, as it was told to"));
                }
                Fault::None | Fault::Late => {}
            }
        }
        group.all_reduce(&tensor, ReduceOp::Avg)?.wait()?;
        if step % 50 == 49 {
            group.device().synchronize()?;
        }
    }
    group.check()
}

/// Prints how a rank's work ended.
fn report(rank: u32, start: Instant, outcome: &Result<()>) {
    let seconds = start.elapsed().as_secs_f64();
    match outcome {
        Ok(()) => println!("rank {rank}: {STEPS} steps, {seconds:.1} s"),
        Err(error) => println!("rank {rank}: after {seconds:.1} s: {error}"),
    }
}

fn run(options: &Options) -> Result<()> {
    if let Some(met) = Rendezvous::from_environment()? {
        let start = Instant::now();
        let rank = met.rank;
        if options.fault == Fault::Late && rank + 1 == met.world_size {
            std::thread::sleep(2 * options.timeout);
        }
        let device = Device::cuda(met.local_rank)?;
        let _current = device.make_current();
        let outcome =
            met.init_process_group(&device, options.group()).and_then(|group| work(&group, options));
        report(rank, start, &outcome);
        if options.exits && outcome.is_err() {
            std::process::exit(1);
        }
        return outcome.map_err(|_| Error::invalid(format!("rank {rank} was told of a failure")));
    }
    if matches!(options.fault, Fault::Kill | Fault::Late) {
        return Err(Error::invalid("--fault kill and late need a process per rank: see the usage"));
    }
    let devices = simulated_devices(3)?;
    let start = Instant::now();
    run_ranks(&devices, |group| {
        report(group.rank(), start, &work(&group, options));
        Ok(())
    })
    .map(drop)
}

fn main() -> ExitCode {
    arguments::run("faults", USAGE, Options::parse, run)
}
