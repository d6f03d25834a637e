//! The watch over controlled machines: one thread per process, which checks each of them periodically.
//!
//! It detects what no call shows: a host thread that waits for the device without calling the driver, busily or asleep, and
//! a run that takes too long. It need not be exact: its actions are correct at any moment.

use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant};

use thalweg_lock::{Mutex, MutexGuard};

use super::sighting::Activity;
use super::{Host, Stall};
use crate::machine::{Locked, Machine};

/// The time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The number of checks without a machine after which the thread ends.
const IDLE_CHECKS: u32 = 200;

/// The processor time that a thread may spend between two calls before it counts as waiting there. If a program computes
/// for longer, the only effect is that its schedule no longer depends only on the seed.
const SPINNING: Duration = Duration::from_millis(200);

/// The number of consecutive checks in which a thread with the turn must nearly always be seen asleep before it counts as
/// asleep.
const SLEEPING_CHECKS: u32 = 20;

/// The time that a run has to end after it was ended.
const GRACE: Duration = Duration::from_secs(2);

struct Watch {
    machines: Vec<Weak<Machine>>,
    is_running: bool,
}

static WATCH: Mutex<Watch> = Mutex::new(Watch { machines: Vec::new(), is_running: false });

fn lock() -> MutexGuard<'static, Watch> {
    WATCH.lock()
}

/// Starts a thread that watches a machine. If the system cannot start a thread, nothing watches the machine. Nothing does under
/// Miri either, which reports a thread that outlives the tests as an error.
pub(crate) fn watch(machine: &Arc<Machine>) {
    if cfg!(miri) {
        return;
    }
    let mut watch = lock();
    watch.machines.push(Arc::downgrade(machine));
    if !watch.is_running {
        watch.is_running = Builder::new().name("sim-watch".to_owned()).spawn(run).is_ok();
    }
}

fn run() {
    let mut idle_looks = 0;
    loop {
        std::thread::sleep(CHECK_INTERVAL);
        let mut watch = lock();
        watch.machines.retain(|machine| machine.strong_count() > 0);
        let machines = watch.machines.clone();
        idle_looks = if machines.is_empty() { idle_looks + 1 } else { 0 };
        if idle_looks > IDLE_CHECKS {
            watch.is_running = false;
            return;
        }
        drop(watch);
        machines.iter().filter_map(Weak::upgrade).for_each(|machine| machine.look());
    }
}

impl Machine {
    /// Checks the machine, unless a thread is at work in it.
    fn look(self: &Arc<Self>) {
        let Some(mut locked) = self.try_lock() else { return };
        if locked.workers.shutdown {
            return;
        }
        if let Some(text) = locked.end_overdue_run() {
            let is_stuck = locked.control().limit.take().map(|limit| limit.is_stuck);
            drop(locked);
            is_stuck.into_iter().for_each(|is_stuck| is_stuck(&text));
            return;
        }
        if let Some(host) = locked.stalled() {
            self.send_deputy(locked, host);
        }
    }
}

impl Locked<'_> {
    /// Ends a run whose time is over. Returns its text if it was ended before and still continues.
    fn end_overdue_run(&mut self) -> Option<String> {
        let limit = self.control().limit.as_ref()?;
        let (time, late) = (limit.time, Instant::now().saturating_duration_since(limit.ends));
        if late.is_zero() {
            return None;
        }
        if !self.control().has_ended {
            let text = self
                .describe_hosts(&format!("time limit: the run is not over after {} s. ", time.as_secs_f32()));
            self.control().time_out(text);
        }
        (late > GRACE).then(|| self.control().stuck.clone().unwrap_or_default())
    }

    /// Returns the thread that has the turn and waits for the device outside of the driver, if no other thread can take the
    /// turn.
    fn stalled(&mut self) -> Option<u32> {
        let machine = self.machine();
        let control = self.control();
        let turn = control.turn?;
        let host = &control.hosts[turn as usize];
        if control.has_ended || !host.is_running() || machine.entering.is_any() {
            return None;
        }
        let (moment, busy) = ((turn, host.waits), host.sighted.busy());
        let is_asleep = host.sighted.activity() != Activity::Awake;
        let stall = &mut control.stall;
        if stall.moment != moment {
            *stall = Stall { moment, busy_before: busy, ..Stall::default() };
        }
        stall.looks += 1;
        stall.asleep_looks += u32::from(is_asleep);
        let is_sleeping = stall.looks > SLEEPING_CHECKS && stall.asleep_looks * 10 >= stall.looks * 9;
        let is_spinning = busy.saturating_sub(stall.busy_before) >= SPINNING;
        if !is_sleeping && !is_spinning {
            return None;
        }
        control.host(turn).is_spinning = is_spinning;
        let has_others = control.hosts.iter().any(Host::is_parked);
        let is_served = has_others || !control.detached.is_empty();
        let state = &mut **self;
        (!is_served && !state.executor.offers(&state.memory).is_empty()).then_some(turn)
    }
}
