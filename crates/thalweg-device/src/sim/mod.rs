//! A simulated GPU that runs on any CPU.
//!
//! [`SimDriver`] is a [`Driver`](crate::Driver) like CUDA's: streams and events that are asynchronous to the host, device
//! memory that is not the caller's memory, several devices with peer access, virtual memory that can be remapped and
//! aliased, capture and graphs, and CUDA's error codes. Kernels are host functions ([`HostKernel`](crate::HostKernel))
//! that run on worker threads.
//!
//! # How it is built
//! - `executor` knows commands and the edges between them, and the range lock. `faults` says what is to go wrong. `schedule` decides which ready command
//!   runs next. `task` is what a command does. `machine` is the lock around everything, the threads and the waiting.
//! - `stream`, `capture`, `graph`, `graph_memory`, `code`, `transfer` and `pool` turn calls into commands.
//! - `memory` and `virtual_memory` say which bytes an address means, `backing` makes these bytes exist, `sharing` exports
//!   and imports them.
//! - `driver` is the trait, thin.
//!
//! # Why no program is undefined behaviour
//! - Every touch of simulated memory goes through a range that was resolved when its command was chosen to run, and that
//!   the range lock holds while it runs: no two commands, and no command and the host, touch the same bytes in conflict at
//!   the same time. The lock knows bytes by their physical address, so memory that is mapped twice is no exception.
//! - What is held is neither unmapped nor given back: whoever takes memory away waits for what runs.
//! - A kernel gets slices only inside its declared ranges, and [`HostLaunch`](crate::HostLaunch) hands out none that would
//!   alias a mutable one.
//! - Memory always holds initialised bytes, and only types without invalid values can be read from it.
//!
//! # What it does not do
//! It does not find races (commands that conflict and are not ordered run in some order), it knows no threads inside a
//! kernel, and its times are those of the host.

mod backing;
mod capture;
mod code;
mod driver;
mod executor;
mod faults;
mod graph;
mod graph_memory;
mod machine;
mod memory;
mod pool;
mod ranges;
mod refusal;
mod schedule;
mod sharing;
mod state;
mod stream;
mod table;
mod task;
mod transfer;
mod virtual_memory;

pub use self::faults::Fault;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::fork::Process;
use crate::{Code, Error, ForeignStream, Result};

/// The most devices of a driver: access rights are kept as one bit a device.
const MAX_DEVICES: u32 = 64;

/// What a simulated machine has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimConfig {
    /// How many devices: 1 to 64.
    pub devices: u32,
    /// Memory of each device, rounded down to a multiple of 64 KiB. It costs the host only what is written.
    pub memory_bytes: u64,
    /// Threads that run kernels and copies, at least 1. Host functions have threads of their own.
    pub workers: usize,
    /// The name of every device.
    pub name: String,
}

impl Default for SimConfig {
    /// One device of 4 GiB, and a worker for each processor of the host.
    fn default() -> Self {
        Self {
            devices: 1,
            memory_bytes: 4 << 30,
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            name: "Thalweg simulated GPU".to_owned(),
        }
    }
}

/// The driver of simulated GPUs. See the [module](self).
///
/// Dropping it lets running commands end, forgets the queued ones, ends its threads and gives all memory back. Handles of
/// one driver are invalid in another.
#[derive(Debug)]
pub struct SimDriver {
    machine: Arc<machine::Machine>,
    config: SimConfig,
    process: Process,
}

impl SimDriver {
    /// A machine of its own, with its threads.
    ///
    /// # Errors
    /// [`Code::InvalidValue`] for a configuration outside the bounds that [`SimConfig`] states,
    /// [`Code::OperatingSystem`] where the host grants no memory, addresses or threads.
    pub fn new(config: SimConfig) -> Result<Arc<Self>> {
        static NUMBER: AtomicU16 = AtomicU16::new(0);
        const CALL: &str = "SimDriver::new";
        let mut config = config;
        config.memory_bytes -= config.memory_bytes % backing::PAGE_BYTES;
        let most_bytes = 1 << memory::PHYSICAL_BITS;
        let is_valid = (1..=MAX_DEVICES).contains(&config.devices)
            && (backing::PAGE_BYTES..=most_bytes).contains(&config.memory_bytes)
            && config.workers > 0;
        if !is_valid {
            let detail = format!(
                "{config:?}: 1 to {MAX_DEVICES} devices, {} to {most_bytes} bytes, at least 1 worker",
                backing::PAGE_BYTES
            );
            return Err(Error::new(Code::InvalidValue, CALL, detail));
        }
        let refused =
            |error: std::io::Error| Error::new(Code::OperatingSystem, CALL, format!("{config:?}: {error}"));
        // 0 is no number of a driver. After 65,535 drivers a number comes round again, and with it the chance that a
        // handle of a driver long gone is taken for one of ours.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed) % (u16::MAX >> 1) + 1;
        let state = state::State::new(number, config.devices, config.memory_bytes).map_err(refused)?;
        let machine = machine::Machine::start(state, config.workers).map_err(refused)?;
        Ok(Arc::new(Self { machine, config, process: Process::current() }))
    }

    /// A stream as another library would have made it, to be adopted with
    /// [`Driver::stream_adopt`](crate::Driver::stream_adopt). A blocking stream has the legacy default stream's ties.
    pub fn foreign_stream_create(
        &self,
        device: u32,
        priority: i32,
        is_blocking: bool,
    ) -> Result<ForeignStream> {
        let created = self.machine.lock().stream_create(device, priority, is_blocking);
        let native = created.map_err(|refusal| refusal.of("cuStreamCreateWithPriority"))?;
        // SAFETY: the simulator checks native numbers like handles: no number is unsafe to it.
        Ok(unsafe { ForeignStream::new(native) })
    }

    /// Destroys such a stream. Adopted handles of it become invalid; work on it still runs to its end.
    pub fn foreign_stream_destroy(&self, stream: ForeignStream) -> Result<()> {
        let destroyed = self.machine.lock().stream_destroy(stream.native());
        destroyed.map_err(|refusal| refusal.of("cuStreamDestroy"))
    }
}

impl SimDriver {
    /// Plans what is to go wrong, instead of what was planned before and has not happened. See [`Fault`].
    pub fn inject(&self, faults: &[Fault]) {
        self.machine.lock().executor.faults.plan(faults);
    }

    /// How many of the faults of the last [`inject`](Self::inject) have struck.
    pub fn faults_struck(&self) -> u64 {
        self.machine.lock().executor.faults.struck()
    }
}

impl Drop for SimDriver {
    fn drop(&mut self) {
        // In the child of a fork there are no threads to wait for, and locks may be held for ever.
        if !self.process.is_left() {
            self.machine.shut_down();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{SimConfig, SimDriver};
    use crate::{Code, Driver};

    #[test]
    fn the_child_of_a_fork_is_told_so() {
        let driver = SimDriver::new(SimConfig { memory_bytes: 1 << 20, ..SimConfig::default() }).unwrap();
        let inherited = driver.clone();
        let refused = move || {
            let stream = inherited.default_stream(0).is_err_and(|error| error.code() == Code::Forked);
            let waited = inherited.device_synchronize(0).is_err_and(|error| error.code() == Code::Forked);
            drop(inherited);
            stream && waited
        };
        assert!(crate::fork::holds_in_child(refused), "the child was refused");
        driver.device_synchronize(0).expect("the parent goes on");
        assert_eq!(Arc::strong_count(&driver), 1);
    }
}
