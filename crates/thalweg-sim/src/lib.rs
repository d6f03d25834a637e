//! A simulated GPU that runs on any CPU.
//!
//! [`SimDriver`] is a [`Driver`](thalweg_driver::Driver) like CUDA's: streams and events that are asynchronous to the host, device
//! memory that is not the caller's memory, several devices with peer access, virtual memory that can be remapped and
//! aliased, capture and graphs, and CUDA's error codes. Kernels are host functions ([`HostKernel`](thalweg_driver::HostKernel))
//! that run on worker threads.
//!
//! [`SimDriver::controlled`] is the same machine as a testing instrument: without threads, one step at a time, and every
//! choice that CUDA leaves open is made by a [`Schedule`].
//!
//! # How it is built
//! - `executor` runs commands: the edges between them, the range lock, which ready command is next (`ready`), and what a
//!   controlled machine can choose from (`offers`). A `command` is a `task` or a place in the order; `snapshot` is a kernel in two
//!   halves, `faults` are refusals at places of the run. It knows neither collectives nor conditional nodes: they plug in (`plug`).
//! - `collective` knows which ranks meet, and finds those that never will; `conditional` are conditional nodes as they run.
//! - `objects` is what handles name, `calls` are the calls on them, which turn into commands: streams and events, captures, graphs,
//!   memory of graphs, code, transfers.
//! - `memory` says which bytes an address means: `virtual_memory` maps it, `pool` orders it by streams, `backing` makes the bytes
//!   exist, `lease` lets machines use them one after another, `sharing` exports and imports them, `ranges` are the free ones.
//! - `control` steers a controlled machine: `entry` is how its host threads come in, `turn` lets one step follow another, `choice`
//!   asks the schedule ([`schedules`] decide), `apart` is what runs on other threads, `watch` sees which thread waits without a call and what
//!   takes too long, `sighting` is what the operating system knows of threads, `spawn` starts them.
//! - `faults` lists what can be made to go wrong, and gives each to the module in which it strikes.
//! - `machine` is the lock around everything, the threads and the waiting; `state` is what it guards; `driver` is the trait, thin.
//!
//! Modules lie in layers, and import downwards: `objects`, `memory` and `executor` are below `state`, that is below `machine`, and on top
//! are `calls`, the steps of `control` and `driver`. `memory` is a hub, whose spokes are its files, as they share what an address means.
//! `state` is one as well: it guards the communicators of `collective` and the conditions of `conditional`, whose calls (`calls`, and in
//! `collective` also `splits` and `registered`) are methods of the state, with the module of their subject instead of under `calls`.
//!
//! # Why no program is undefined behaviour
//! - Every touch of simulated memory goes through a range that was resolved when its command was chosen to run, and that
//!   the range lock holds while it runs: no two commands, and no command and the host, touch the same bytes in conflict at
//!   the same time. The lock knows bytes by their physical address, so memory that is mapped twice is not an exception.
//! - What is held is neither unmapped nor given back: a call that takes memory away waits for what runs.
//! - A kernel gets slices only inside its declared ranges, and [`HostLaunch`](thalweg_driver::HostLaunch) hands out none that would
//!   alias a mutable one.
//! - Memory always holds initialised bytes, and only types without invalid values can be read from it.
//!
//! # What it does not do
//! It does not find races (commands that conflict and are not ordered run in some order), it knows no threads inside a
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

pub use control::spawn::{Seat, SimThread};
pub use schedules::{Actor, Choice, Deviation, Schedule, StepName, Trace};

use self::control::{CallKind, Condition, Limit, Wait};

/// The most devices of a driver: access rights are kept as one bit per device.
const MAX_DEVICES: u32 = 64;

/// The configuration of a simulated machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimConfig {
    /// The number of devices: 1 to 64.
    pub devices: u32,
    /// Memory of each device, rounded down to a multiple of 64 KiB. It costs the host only what is written.
    pub memory_bytes: u64,
    /// Threads that run kernels and copies, at least 1. Host functions have threads of their own.
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
/// Dropping it lets running commands end, forgets the queued ones, ends its threads and gives all memory back. Handles of
/// one driver are invalid in another.
#[derive(Debug)]
pub struct SimDriver {
    machine: Arc<machine::Machine>,
    config: SimConfig,
    process: Process,
}

impl SimDriver {
    /// Returns a machine of its own, with its threads.
    ///
    /// # Errors
    /// [`Code::InvalidValue`] for a configuration outside the bounds that [`SimConfig`] states,
    /// [`Code::OperatingSystem`] where the host grants no memory, addresses or threads.
    pub fn new(config: SimConfig) -> Result<Arc<Self>> {
        let (state, config) = Self::prepare("SimDriver::new", config, false)?;
        let machine = machine::Machine::start(state, config.workers)
            .map_err(|error| refused("SimDriver::new", &config, &error))?;
        Ok(Arc::new(Self { machine, config, process: Process::current() }))
    }

    /// Returns a machine on which one thing happens at a time, and everything that CUDA leaves open is decided by a schedule:
    /// which of the commands that could run runs next, whether a query finds its work done, which host thread gets ahead. The
    /// same program under the same choices does the same.
    ///
    /// It has no workers ([`SimConfig::workers`] is only reported): commands run on the threads of the program, inside its
    /// calls, and host functions each on a thread of its own, one step at a time. The calling thread is the first host thread.
    /// Others are started with [`spawn`](Self::spawn); threads that come from elsewhere take part from their first call on,
    /// and the schedule does not decide when that is.
    ///
    /// Making and dropping such a machine costs microseconds: the host's memory is used again by the next one of the same
    /// size, and reads as zeros again.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
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
        // 0 is not a number of a driver. After 65,535 drivers a number comes round again, and with it the chance that a
        // handle of a driver long gone is taken for one of ours.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed) % (u16::MAX >> 1) + 1;
        let state = state::MachineState::new(number, config.devices, config.memory_bytes, is_controlled)
            .map_err(|error| refused(call, &config, &error))?;
        Ok((state, config))
    }

    /// Returns whether a schedule decides what happens: whether this was made by [`controlled`](Self::controlled).
    pub fn is_controlled(&self) -> bool {
        self.machine.is_controlled()
    }

    /// Returns what has happened in this run so far; `None` on a machine that is not controlled.
    pub fn trace(&self) -> Option<Trace> {
        self.machine.lock().control.as_ref().map(|control| control.trace().clone())
    }

    /// Begins a new run on the same controlled machine, under another schedule: commands and decisions are counted from the
    /// beginning again. The caller has waited for all work and joined all threads of the run before, whose trace this gives.
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

    /// Ends the run: calls that are parked or made from now on answer [`Code::Deinitialized`], and no command begins any
    /// more. On a machine that is not controlled it does nothing.
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

    /// Marks a point at which other threads and commands may get ahead, as every call of the driver is one: for programs that
    /// look at what host functions or other threads have left in memory of their own. Calling it again and again lets
    /// others get ahead.
    ///
    /// # Errors
    /// [`Code::NotSupported`] on a machine that is not controlled, [`Code::Timeout`] for a livelock: nothing is left to be done.
    pub fn pass(&self) -> Result<()> {
        const CALL: &str = "SimDriver::pass";
        self.check_controlled(CALL)?;
        self.machine.call(CALL, CallKind::Look(0)).map(drop).map_err(|refusal| refusal.of(CALL))
    }

    /// Gives the run so much time from now on, and takes any earlier limit back. A run that takes longer is ended: calls that
    /// are parked or made from then on answer [`Code::Timeout`], with what each thread was doing. If it is not over a few seconds
    /// later (a thread is blocked outside of the driver, say), `is_stuck` is called with that text, on another thread.
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

    /// Takes the limit of [`set_time_limit`](Self::set_time_limit) back.
    ///
    /// # Errors
    /// [`Code::NotSupported`] on a machine that is not controlled.
    pub fn clear_time_limit(&self) -> Result<()> {
        self.set_limit(None)
    }

    /// Calls `told` when no thread makes progress any more, with what [`stuck`](Self::stuck) says. It must not call the driver.
    ///
    /// # Errors
    /// [`Code::NotSupported`] on a machine that is not controlled.
    pub fn on_stuck(&self, told: impl FnOnce(&str) + Send + 'static) -> Result<()> {
        self.set(|control| control.on_stuck = Some(Box::new(told)))
    }

    /// Calls `told` at the first [observation](Trace::observations). It must not call the driver.
    ///
    /// # Errors
    /// [`Code::NotSupported`] on a machine that is not controlled.
    pub fn on_observation(&self, told: impl FnOnce() + Send + 'static) -> Result<()> {
        self.set(|control| control.on_observation = Some(Box::new(told)))
    }

    /// Sets whether commands leave memory alone from now on: kernels, library calls, copies, fills and collectives are checked
    /// for what they may touch, and take their places in the order, but nothing is read or written. Host functions run.
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

    /// Returns why no thread made progress any more, where that has happened: a deadlock, a livelock, or the time limit, with what
    /// each host thread was doing.
    pub fn stuck(&self) -> Option<String> {
        self.machine.lock().control.as_ref().and_then(|control| control.stuck.clone())
    }

    /// Returns which command called the driver first, where one did: CUDA forbids that, so the call was refused.
    pub fn misuse(&self) -> Option<String> {
        self.machine.lock().misuse.clone()
    }

    /// Calls `told` of the first call of the driver that a command makes, with what [`misuse`](Self::misuse) says.
    pub fn on_misuse(&self, told: impl FnOnce(&str) + Send + 'static) {
        self.machine.lock().on_misuse = Some(Box::new(told));
    }

    /// Returns the number of commands of all streams that are not complete.
    pub fn queued_commands(&self) -> usize {
        self.machine.lock().executor.live()
    }

    /// Blocks the calling host thread until a condition of the program holds, and lets others get ahead meanwhile: what
    /// barriers and channels between host threads are made of. `what` names it in a report of a deadlock. The condition is
    /// asked in the machine's critical section, often: it must not call the driver.
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
    /// [`Driver::stream_from_external`](thalweg_driver::Driver::stream_from_external). A blocking stream has the legacy default stream's ties.
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
        // SAFETY: the simulator checks such numbers like handles: no number is unsafe to it.
        Ok(unsafe { ExternalStream::new(cuda_stream) })
    }

    /// Destroys an external stream. Handles that were made of it become invalid; work on it still runs to its end.
    pub fn external_stream_destroy(&self, stream: ExternalStream) -> Result<()> {
        const CALL: &str = "cuStreamDestroy";
        let entered = self.machine.call(CALL, CallKind::Other);
        let destroyed = entered.and_then(|mut locked| locked.stream_destroy(stream.cuda_stream()));
        destroyed.map_err(|refusal| refusal.of(CALL))
    }
}

impl SimDriver {
    /// Plans what is to go wrong, instead of what was planned before and has not happened. See [`Fault`].
    pub fn inject(&self, faults: &[Fault]) {
        let mut locked = self.machine.lock();
        locked.executor.faults.plan(faults.iter().filter_map(|fault| fault.strike()));
        locked.executor.gate.plan_stalls(faults);
    }

    /// Sets what becomes of data between two devices from now on, in both directions: collectives over the link wait for it, each as long as
    /// its greatest tensor takes on the slowest of its links. Copies between the devices do not.
    ///
    /// # Errors
    /// [`Code::InvalidValue`] if there are no such devices or they are one, [`Code::OperatingSystem`] where the host grants no thread that
    /// keeps the time.
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

    /// Returns how many calls have named a stream, by the handle of an external stream, after its owner had destroyed it. They
    /// are refused here; a GPU's driver does not survive them.
    pub fn ended_streams_named(&self) -> u64 {
        self.machine.lock().ended_streams_named.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns how many of the faults of the last [`inject`](Self::inject) have struck.
    pub fn faults_struck(&self) -> u64 {
        let locked = self.machine.lock();
        locked.executor.faults.struck() + locked.executor.gate.stalls_struck()
    }
}

fn refused(call: &'static str, config: &SimConfig, error: &std::io::Error) -> Error {
    Error::new(Code::OperatingSystem, call, format!("{config:?}: {error}"))
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
    use thalweg_driver::{Code, Driver};

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
        assert!(thalweg_conformance::holds_in_child(refused), "the child was refused");
        driver.device_synchronize(0).expect("the parent goes on");
        assert_eq!(Arc::strong_count(&driver), 1);
    }
}
