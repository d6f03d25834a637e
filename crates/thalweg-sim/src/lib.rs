//! A simulated GPU that runs on any CPU.
//!
//! [`SimDriver`] is a [`Driver`](thalweg_driver::Driver) like CUDA's: streams and events that are asynchronous to the host,
//! device memory that is separate from the caller's memory, several devices with peer access, virtual memory that can be
//! remapped and aliased, capture and graphs, and CUDA's error codes. Kernels are host functions
//! ([`HostKernel`](thalweg_driver::HostKernel)) that run on worker threads.
//!
//! [`SimDriver::controlled`] is the same machine as a testing instrument: it has no threads, runs one step at a time, and
//! lets a [`Schedule`] make every choice that CUDA leaves open.
//!
//! # How it is built
//! - `executor` runs commands: the edges between them, the range lock, the choice of the next ready command (`ready`), and
//!   the choices of a controlled machine (`offers`). A `command` is a `task` or a position in the order; `snapshot` is a
//!   kernel in two halves, `faults` are refusals at points of the run. It does not know collectives or conditional nodes:
//!   they plug in (`plug`).
//! - `collective` matches the calls of ranks, and finds those that can never run; `conditional` are conditional nodes as
//!   they run.
//! - `objects` are the objects that handles name. `calls` are the calls on them, which become commands: streams and events,
//!   captures, graphs, memory of graphs, code, transfers.
//! - `memory` maps addresses to bytes: `virtual_memory` maps it, `pool` orders it by streams, `backing` provides the bytes,
//!   `lease` lets machines reuse them, `sharing` exports and imports them, `ranges` are the free ones.
//! - `control` runs a controlled machine: `entry` is the entry of its host threads, `turn` lets one step follow another,
//!   `choice` asks the schedule ([`schedules`] decide), `detached` is work on other threads, `watch` detects threads that wait
//!   without a call and runs that take too long, `sighting` is the operating system's view of threads, `spawn` starts them.
//! - `faults` lists the faults that can be requested, and passes each to the module in which it strikes.
//! - `machine` is the lock around everything, the threads and the waiting; `state` is the data that it guards; `driver` is
//!   the trait, thin.
//!
//! Modules are in layers, and import downwards: `objects`, `memory` and `executor` are below `state`, which is below
//! `machine`. On top are `calls`, the steps of `control` and `driver`. `memory` is a hub, whose spokes are its files,
//! because they share the meaning of addresses. `state` is one as well: it guards the communicators of `collective` and the
//! conditions of `conditional`. Their calls (`calls`, and in `collective` also `splits` and `registered`) are methods of
//! the state, in the module of their subject instead of under `calls`.
//!
//! # Why no program is undefined behaviour
//! - Every access to simulated memory goes through a range that was resolved when its command was chosen to run, and that
//!   the range lock holds while it runs: no two commands, and no command and the host, touch the same bytes in conflict at
//!   the same time. The lock identifies bytes by their physical address, so memory that is mapped twice is not an
//!   exception.
//! - Held memory is neither unmapped nor freed: a call that removes memory waits for running commands.
//! - A kernel gets slices only inside its declared ranges, and [`HostLaunch`](thalweg_driver::HostLaunch) returns none that
//!   would alias a mutable one.
//! - Memory always contains initialised bytes, and only types without invalid values can be read from it.
//!
//! # What it does not do
//! It does not find races (commands that conflict and are not ordered run in some order), it has no threads inside a
//! kernel, and its times are those of the host (a controlled machine counts commands instead). An event that is recorded on
//! an idle stream is complete at once, whatever the schedule.

mod calls;
mod collective;
mod conditional;
mod control;
mod driver;
mod entry;
mod executor;
mod faults;
mod machine;
mod memory;
mod objects;
mod properties;
mod refusal;
pub mod schedules;
mod state;
mod table;
mod workers;

pub use self::collective::links::Link;
pub use self::faults::Fault;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use thalweg_driver::{Code, Error, ExternalStream, Process, Result};

pub use control::spawn::{HostThreadSlot, SimThread};
pub use schedules::{Actor, Choice, Deviation, Schedule, StepName, Trace};

use self::control::{CallKind, Condition, Limit, Wait};

/// The greatest number of devices of a driver: access rights are stored as one bit per device.
const MAX_DEVICES: u32 = 64;

/// The configuration of a simulated machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimConfig {
    /// The number of devices: 1 to 64.
    pub devices: u32,
    /// The memory of each device, rounded down to a multiple of 64 KiB. The host only needs memory for the pages that are
    /// written.
    pub memory_bytes: u64,
    /// The number of threads that run kernels and copies, at least 1. Host functions have threads of their own.
    pub workers: usize,
    /// The name of every device.
    pub name: String,
}

impl Default for SimConfig {
    /// Returns one device of 4 GiB, and a worker for each processor of the host.
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
/// Dropping it lets running commands end, drops the queued ones, ends its threads and frees all memory. Handles of one
/// driver are invalid in another.
#[derive(Debug)]
pub struct SimDriver {
    machine: Arc<machine::Machine>,
    config: SimConfig,
    process: Process,
}

impl SimDriver {
    /// Creates a separate machine, with its threads.
    ///
    /// # Errors
    /// [`Code::InvalidValue`] for a configuration outside the bounds that [`SimConfig`] states, [`Code::OperatingSystem`]
    /// if the host does not provide memory, addresses or threads.
    pub fn new(config: SimConfig) -> Result<Arc<Self>> {
        let (state, config) = Self::prepare("SimDriver::new", config, false)?;
        let machine = machine::Machine::start(state, config.workers)
            .map_err(|error| creation_error("SimDriver::new", &config, &error))?;
        Ok(Arc::new(Self { machine, config, process: Process::current() }))
    }

    /// Creates a machine on which one thing happens at a time, and a schedule decides everything that CUDA leaves open:
    /// which of the commands that could run runs next, whether a query finds its work done, which host thread continues.
    /// The same program does the same under the same choices.
    ///
    /// The machine has no workers ([`SimConfig::workers`] is only reported): commands run on the threads of the program,
    /// inside its calls, and each host function on a thread of its own, one step at a time. The calling thread is the first
    /// host thread. Others are started with [`spawn`](Self::spawn). Threads that are started otherwise take part from their
    /// first call on, and the schedule does not decide when that is.
    ///
    /// Creating and dropping such a machine costs microseconds: the next one of the same size reuses the host's memory,
    /// which reads as zeros again.
    pub fn controlled(config: SimConfig, schedule: Box<dyn Schedule>) -> Result<Arc<Self>> {
        let (state, config) = Self::prepare("SimDriver::controlled", config, true)?;
        let machine = machine::Machine::start_controlled(state, schedule);
        control::watch::watch(&machine);
        Ok(Arc::new(Self { machine, config, process: Process::current() }))
    }

    fn prepare(
        call: &'static str,
        mut config: SimConfig,
        is_controlled: bool,
    ) -> Result<(state::MachineState, SimConfig)> {
        static NUMBER: AtomicU16 = AtomicU16::new(0);
        config.memory_bytes -= config.memory_bytes % memory::backing::PAGE_BYTES;
        let most_bytes = 1 << memory::PHYSICAL_BITS;
        let is_valid = (1..=MAX_DEVICES).contains(&config.devices)
            && (memory::backing::PAGE_BYTES..=most_bytes).contains(&config.memory_bytes)
            && config.workers > 0;
        if !is_valid {
            let detail = format!(
                "{config:?}: 1 to {MAX_DEVICES} devices, {} to {most_bytes} bytes, at least 1 worker",
                memory::backing::PAGE_BYTES
            );
            return Err(Error::new(Code::InvalidValue, call, detail));
        }
        // 0 is not a number of a driver. After 65,535 drivers a number is reused, and a handle of a driver long gone might
        // be mistaken for one of ours.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed) % (u16::MAX >> 1) + 1;
        let state = state::MachineState::new(number, config.devices, config.memory_bytes, is_controlled)
            .map_err(|error| creation_error(call, &config, &error))?;
        Ok((state, config))
    }

    /// Returns whether a schedule decides what happens: whether the driver was created by [`controlled`](Self::controlled).
    pub fn is_controlled(&self) -> bool {
        self.machine.is_controlled()
    }

    /// Returns the trace of this run so far; `None` on a machine that is not controlled.
    pub fn trace(&self) -> Option<Trace> {
        self.machine.lock().control.as_ref().map(|control| control.trace().clone())
    }

    /// Begins a new run on the same controlled machine, under another schedule: commands and decisions are counted from the
    /// beginning again. The caller has waited for all work and joined all threads of the previous run, whose trace is
    /// returned.
    ///
    /// # Errors
    /// [`Code::NotSupported`] on a machine that is not controlled, [`Code::NotReady`] while commands are unfinished.
    pub fn begin_run(&self, schedule: Box<dyn Schedule>) -> Result<Trace> {
        const CALL: &str = "SimDriver::begin_run";
        self.in_run(CALL, |state| {
            let unfinished = state.executor.live();
            if unfinished > 0 {
                let detail = format!("{unfinished} commands are unfinished: synchronise first");
                return Err(refusal::Refusal::new(Code::NotReady, detail));
            }
            state.executor.restart_numbers();
            state.misuse = None;
            let control = state.control.as_mut().expect("the machine is controlled");
            Ok(control.restart(schedule))
        })
    }

    /// Ends the run: calls that are parked or made from now on fail with [`Code::Deinitialized`], and no command begins any
    /// more. Does nothing on a machine that is not controlled.
    pub fn end_run(&self) {
        if let Some(control) = &mut self.machine.lock().control {
            control.end();
        }
    }

    /// Returns a random number of the schedule.
    ///
    /// # Errors
    /// [`Code::NotSupported`] on a machine that is not controlled.
    pub fn random(&self) -> Result<u64> {
        self.in_run("SimDriver::random", |state| {
            Ok(state.control.as_mut().expect("the machine is controlled").random())
        })
    }

    /// Marks a point at which other threads and commands may run, as every call of the driver is one: for programs that
    /// read values that host functions or other threads leave in the program's own memory. Calling it again and again lets
    /// others run.
    ///
    /// # Errors
    /// [`Code::NotSupported`] on a machine that is not controlled, [`Code::Timeout`] for a livelock: nothing is left to be done.
    pub fn pass(&self) -> Result<()> {
        const CALL: &str = "SimDriver::pass";
        self.check_controlled(CALL)?;
        self.machine.call(CALL, CallKind::Look(0)).map(drop).map_err(|refusal| refusal.of(CALL))
    }

    /// Limits the time of the run from now on, and removes any earlier limit. A run that takes longer is ended: calls that
    /// are parked or made from then on fail with [`Code::Timeout`], with a description of every thread. If the run is not
    /// over a few seconds later (a thread is blocked outside of the driver, say), `is_stuck` is called with that text, on
    /// another thread.
    ///
    /// # Errors
    /// [`Code::NotSupported`] on a machine that is not controlled.
    pub fn set_time_limit(
        &self,
        time: Duration,
        is_stuck: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<()> {
        self.set_limit(Instant::now().checked_add(time).map(|ends| Limit {
            time,
            ends,
            is_stuck: Arc::new(is_stuck),
        }))
    }

    /// Removes the limit of [`set_time_limit`](Self::set_time_limit).
    ///
    /// # Errors
    /// [`Code::NotSupported`] on a machine that is not controlled.
    pub fn clear_time_limit(&self) -> Result<()> {
        self.set_limit(None)
    }

    /// Calls `reported` when no thread makes progress any more, with the text of [`stuck`](Self::stuck). It must not call the
    /// driver.
    ///
    /// # Errors
    /// [`Code::NotSupported`] on a machine that is not controlled.
    pub fn on_stuck(&self, reported: impl FnOnce(&str) + Send + 'static) -> Result<()> {
        self.set(|control| control.on_stuck = Some(Box::new(reported)))
    }

    /// Calls `reported` at the first [observation](Trace::observations). It must not call the driver.
    ///
    /// # Errors
    /// [`Code::NotSupported`] on a machine that is not controlled.
    pub fn on_observation(&self, reported: impl FnOnce() + Send + 'static) -> Result<()> {
        self.set(|control| control.on_observation = Some(Box::new(reported)))
    }

    /// Sets whether commands leave memory unchanged from now on: the accesses of kernels, library calls, copies, fills and
    /// collectives are checked, and the commands take their places in the order, but nothing is read or written. Host
    /// functions run.
    pub fn set_order_only(&self, is_order_only: bool) {
        self.machine.is_order_only.store(is_order_only, Ordering::Relaxed);
    }

    fn set_limit(&self, limit: Option<Limit>) -> Result<()> {
        self.set(|control| control.limit = limit)
    }

    fn set(&self, change: impl FnOnce(&mut control::Control)) -> Result<()> {
        self.check_controlled("SimDriver")?;
        if let Some(control) = &mut self.machine.lock().control {
            change(control);
        }
        Ok(())
    }

    /// Returns why no thread makes progress any more, if that has happened: a deadlock, a livelock, or the time limit, with
    /// a description of every host thread.
    pub fn stuck(&self) -> Option<String> {
        self.machine.lock().control.as_ref().and_then(|control| control.stuck.clone())
    }

    /// Describes the first command that called the driver, if there was one: CUDA forbids this, so the call was refused.
    pub fn misuse(&self) -> Option<String> {
        self.machine.lock().misuse.clone()
    }

    /// Calls `reported` at the first call of the driver by a command, with the text of [`misuse`](Self::misuse).
    pub fn on_misuse(&self, reported: impl FnOnce(&str) + Send + 'static) {
        self.machine.lock().on_misuse = Some(Box::new(reported));
    }

    /// Returns the number of commands of all streams that are not complete.
    pub fn queued_commands(&self) -> usize {
        self.machine.lock().executor.live()
    }

    /// Blocks the calling host thread until a condition of the program holds, while others run: the basis of barriers and
    /// channels between host threads. `what` names the condition in the report of a deadlock. The condition is called
    /// often, in the machine's critical section: it must not call the driver.
    ///
    /// # Errors
    /// [`Code::NotSupported`] on a machine that is not controlled, [`Code::Timeout`] for a deadlock.
    pub fn wait_until(&self, what: &str, condition: impl Fn() -> bool + Send + Sync + 'static) -> Result<()> {
        const CALL: &str = "SimDriver::wait_until";
        self.check_controlled(CALL)?;
        let condition: Condition = Arc::new(condition);
        let waited = self.machine.wait_in_call(CALL, Wait::Condition(what.to_owned(), condition));
        waited.map(drop).map_err(|refusal| refusal.of(CALL))
    }

    fn check_controlled(&self, call: &'static str) -> Result<()> {
        if self.is_controlled() {
            return Ok(());
        }
        let detail = "no schedule decides on this machine: make it with SimDriver::controlled";
        Err(Error::new(Code::NotSupported, call, detail))
    }

    /// Enters a controlled machine.
    fn in_run<T>(
        &self,
        call: &'static str,
        body: impl FnOnce(&mut state::MachineState) -> refusal::CallResult<T>,
    ) -> Result<T> {
        self.check_controlled(call)?;
        let entered = self.machine.call(call, CallKind::Other);
        entered.and_then(|mut locked| body(&mut locked)).map_err(|refusal| refusal.of(call))
    }

    /// Creates a stream as another library would, to be wrapped by
    /// [`Driver::stream_from_external`](thalweg_driver::Driver::stream_from_external). A blocking stream synchronizes with
    /// the legacy default stream.
    pub fn external_stream_create(
        &self,
        device: u32,
        priority: i32,
        is_blocking: bool,
    ) -> Result<ExternalStream> {
        const CALL: &str = "cuStreamCreateWithPriority";
        let entered = self.machine.call(CALL, CallKind::Other);
        let created = entered.and_then(|mut locked| locked.stream_create(device, priority, is_blocking));
        let cuda_stream = created.map_err(|refusal| refusal.of(CALL))?;
        // SAFETY: the simulator checks such numbers like handles: every number is safe.
        Ok(unsafe { ExternalStream::new(cuda_stream) })
    }

    /// Destroys an external stream. Handles for it become invalid; work on it still runs to its end.
    pub fn external_stream_destroy(&self, stream: ExternalStream) -> Result<()> {
        const CALL: &str = "cuStreamDestroy";
        let entered = self.machine.call(CALL, CallKind::Other);
        let destroyed = entered.and_then(|mut locked| locked.stream_destroy(stream.cuda_stream()));
        destroyed.map_err(|refusal| refusal.of(CALL))
    }
}

impl SimDriver {
    /// Plans faults, replacing those that were planned before and have not happened. See [`Fault`].
    pub fn inject(&self, faults: &[Fault]) {
        let mut locked = self.machine.lock();
        locked.executor.faults.plan(faults.iter().filter_map(|fault| fault.planned()));
        locked.executor.gate.plan_stalls(faults);
    }

    /// Sets the speed of data between two devices from now on, in both directions. Collectives over the link wait for it,
    /// each for the time that its greatest tensor takes on the slowest of its links. Copies between the devices do not
    /// wait.
    ///
    /// # Errors
    /// [`Code::InvalidValue`] if there are no such devices or both are the same, [`Code::OperatingSystem`] if the host
    /// cannot start the thread that keeps the time.
    pub fn set_link(&self, devices: [u32; 2], link: Link) -> Result<()> {
        const CALL: &str = "SimDriver::set_link";
        let [one, other] = devices;
        if one == other || devices.iter().any(|&device| device >= self.config.devices) {
            let detail = format!("devices {one} and {other} of {}: name two of them", self.config.devices);
            return Err(Error::new(Code::InvalidValue, CALL, detail));
        }
        let is_timed = matches!(link, Link::Timed { .. }) && !self.is_controlled();
        if is_timed {
            let started = self.machine.keep_time();
            started.map_err(|error| Error::new(Code::OperatingSystem, CALL, error.to_string()))?;
        }
        let mut locked = self.machine.lock();
        locked.executor.gate.is_untimed = self.is_controlled();
        locked.executor.gate.set_link(devices, link);
        locked.executor.review_gate();
        Ok(())
    }

    /// Returns how many calls have named a stream, by the handle of an external stream, after its owner had destroyed it.
    /// The simulator refuses them; a GPU's driver crashes.
    pub fn ended_streams_named(&self) -> u64 {
        self.machine.lock().ended_streams_named.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns how many of the faults of the last [`inject`](Self::inject) have struck.
    pub fn faults_struck(&self) -> u64 {
        let locked = self.machine.lock();
        locked.executor.faults.struck() + locked.executor.gate.stalls_struck()
    }
}

fn creation_error(call: &'static str, config: &SimConfig, error: &std::io::Error) -> Error {
    Error::new(Code::OperatingSystem, call, format!("{config:?}: {error}"))
}

impl Drop for SimDriver {
    fn drop(&mut self) {
        // In the child of a fork there are no threads to wait for, and locks may be held forever.
        if !self.process.is_left() {
            self.machine.shut_down();
        }
    }
}
