//! The machine: one lock around all state, the threads that execute commands, and the ways in which threads wait.
//!
//! Every call of the driver and every step of a worker is a short critical section on one [`MachineState`]. Commands run
//! outside of it. A critical section is a [`Locked`]; dropping it wakes exactly those threads for which something changed,
//! after the lock is released.
//!
//! Waking a thread costs microseconds, more than a small command. So a worker that runs out of work spins for a few
//! microseconds before it sleeps, at most one worker spins at a time, and while one does no thread is woken. The same holds
//! for a host thread that waits.
//!
//! Invariant, *no lost wake-up*: a thread decides to sleep under the lock, after it has found nothing to do under the same
//! lock; a thread that changes this takes the lock later and sees the first one counted as sleeping.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};
use std::{fmt, io};

use smallvec::SmallVec;
use thalweg_driver::{Code, INTERRUPTION_INTERVAL, StreamHandle, interruption};
use thalweg_lock::{Condvar, Mutex, MutexGuard};

use super::control::sighting::Entering;
use super::control::{CallKind, Control, INSIDE, Wait};
use super::executor::command::{Claim, CommandId, Frontier};
use super::executor::{Job, Start};
use super::memory::Piece;
use super::refusal::{CallResult, Refusal};
use super::schedules::Schedule;
use super::state::MachineState;
use crate::executor::task::Work;

/// The time that a thread spins before it sleeps.
const SPIN: Duration = Duration::from_micros(20);

/// The interval at which the thread for timed links checks them.
const TICK: Duration = Duration::from_micros(200);

/// The number of host functions that can wait for the program at once.
const HOST_THREADS: usize = 64;

/// The state of a machine, and the condition variables of its threads.
pub(super) struct Machine {
    state: Mutex<MachineState>,
    /// Workers without work.
    work: Condvar,
    /// Threads for host functions without a host function.
    host_work: Condvar,
    /// Host threads that wait for commands or bytes.
    host: Condvar,
    /// Changes when workers may find more to do.
    work_progress: AtomicU32,
    /// Changes when an event happened that a host thread waits for.
    host_progress: AtomicU32,
    /// Whether a schedule decides what happens. Constant.
    is_controlled: bool,
    /// The threads that wait for the lock to begin a call, on a controlled machine.
    pub(super) entering: Entering,
    /// Whether commands leave memory unchanged.
    pub(super) is_order_only: AtomicBool,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").finish_non_exhaustive()
    }
}

impl Machine {
    /// Starts `workers` threads, and one for host functions.
    pub(super) fn start(state: MachineState, workers: usize) -> io::Result<Arc<Self>> {
        let machine = Arc::new(Self::new(state));
        {
            let mut locked = machine.lock();
            let threads = &mut locked.workers;
            (threads.host_threads, threads.host_starting, threads.host_thread_limit) = (1, 1, HOST_THREADS);
        }
        for number in 0..=workers {
            let own = Arc::clone(&machine);
            let thread = if number < workers {
                Builder::new().name(format!("sim-worker-{number}")).spawn(move || own.work())
            } else {
                Builder::new().name("sim-host-0".to_owned()).spawn(move || own.work_host())
            };
            match thread {
                Ok(thread) => machine.lock().workers.threads.push(thread),
                Err(error) => {
                    machine.shut_down();
                    return Err(error);
                }
            }
        }
        Ok(machine)
    }

    /// Creates a machine without workers, on which the schedule decides the order. The calling thread has the turn.
    pub(super) fn start_controlled(mut state: MachineState, schedule: Box<dyn Schedule>) -> Arc<Self> {
        state.executor.keep_details();
        state.control = Some(Box::new(Control::new(schedule)));
        Arc::new(Self::new(state))
    }

    fn new(state: MachineState) -> Self {
        Self {
            is_controlled: state.control.is_some(),
            state: Mutex::new(state),
            work: Condvar::new(),
            host_work: Condvar::new(),
            host: Condvar::new(),
            work_progress: AtomicU32::new(0),
            host_progress: AtomicU32::new(0),
            entering: Entering::default(),
            is_order_only: AtomicBool::new(false),
        }
    }

    /// Returns whether a schedule decides what happens.
    pub(super) fn is_controlled(&self) -> bool {
        self.is_controlled
    }

    /// Enters the critical section for a call of the program.
    #[inline]
    pub(super) fn call(self: &Arc<Self>, call: &'static str, step: CallKind) -> CallResult<Locked<'_>> {
        self.refuse_inside(call)?;
        if self.is_controlled {
            return self.call_in_turn(call, step);
        }
        Ok(self.lock())
    }

    /// Refuses a call that a command makes, and records it.
    pub(super) fn refuse_inside(self: &Arc<Self>, call: &'static str) -> CallResult<()> {
        let Some((_, label)) = INSIDE.get().filter(|(machine, _)| *machine == Arc::as_ptr(self).addr())
        else {
            return Ok(());
        };
        let detail = format!(
            "`{label}` called the driver ({call}): a host function or kernel must not, since CUDA forbids it. Let a thread of the \
             program make the call once the function has returned"
        );
        let mut locked = self.entering.during(|| self.lock());
        if locked.misuse.is_none() {
            locked.misuse = Some(detail.clone());
            let reported = locked.on_misuse.take();
            drop(locked);
            reported.into_iter().for_each(|reported| reported(&detail));
        }
        Err(Refusal::new(Code::NotPermitted, detail))
    }

    /// Returns whether the work that `find` returns is done.
    pub(super) fn query(
        self: &Arc<Self>,
        call: &'static str,
        object: u64,
        find: impl FnOnce(&mut MachineState) -> CallResult<Frontier>,
    ) -> CallResult<bool> {
        let mut locked = self.call(call, CallKind::Query(object))?;
        let unfinished = find(&mut locked)?;
        if self.is_controlled {
            locked.answer(object, &unfinished);
        }
        Ok(unfinished.is_empty())
    }

    /// Enters the critical section.
    pub(super) fn lock(self: &Arc<Self>) -> Locked<'_> {
        // A panic inside the critical section is a bug of ours that has been reported already; the state is still usable
        // for the threads that did not panic.
        Locked { machine: self, guard: Some(self.state.lock()) }
    }

    /// Enters the critical section, if no thread is in it.
    pub(super) fn try_lock(self: &Arc<Self>) -> Option<Locked<'_>> {
        Some(Locked { machine: self, guard: Some(self.state.try_lock()?) })
    }

    /// Enters the critical section once the queues of these streams have room.
    pub(super) fn lock_to_submit(
        self: &Arc<Self>,
        call: &'static str,
        streams: impl Iterator<Item = StreamHandle> + Clone,
    ) -> CallResult<Locked<'_>> {
        let mut locked = self.call(call, CallKind::Submit)?;
        while let Some(full) = streams.clone().find_map(|stream| locked.full_queue(stream.raw())) {
            locked = locked.wait_until(Wait::Room(full))?;
        }
        Ok(locked)
    }

    /// Lets running commands end, drops the queued ones and ends the threads. A thread of the machine that calls this (from
    /// the destructor of a value that a command owned) is not joined, and ends later.
    pub(super) fn shut_down(self: &Arc<Self>) {
        let mut locked = self.lock();
        locked.workers.shutdown = true;
        if let Some(control) = &mut locked.control {
            control.end();
        }
        let threads = std::mem::take(&mut locked.workers.threads);
        self.work_progress.fetch_add(1, Ordering::Relaxed);
        drop(locked);
        self.wait_for_apart();
        self.work.notify_all();
        self.host_work.notify_all();
        let this_thread = std::thread::current().id();
        for thread in threads {
            if thread.thread().id() != this_thread {
                thread.join().expect("panics of commands are caught; a worker has no other");
            }
        }
    }

    // ---- Threads --------------------------------------------------------------------------------------------------

    fn work(self: Arc<Self>) {
        let mut locked = self.lock();
        let mut has_looked_around = false;
        while !locked.workers.shutdown {
            if let Some(job) = locked.take() {
                locked = locked.execute(job);
                has_looked_around = false;
            } else if !has_looked_around && locked.workers.spinning == 0 {
                locked = locked.look_around();
                has_looked_around = true;
            } else {
                locked = locked.sleep();
                has_looked_around = false;
            }
        }
    }

    /// Starts the thread that lets collectives run when their data has arrived, unless it is running.
    pub(super) fn keep_time(self: &Arc<Self>) -> io::Result<()> {
        let mut locked = self.lock();
        if std::mem::replace(&mut locked.workers.keeps_time, true) {
            return Ok(());
        }
        let own = Arc::clone(self);
        let thread = Builder::new().name("sim-links".to_owned()).spawn(move || own.open_in_time());
        match thread {
            Ok(thread) => locked.workers.threads.push(thread),
            Err(error) => {
                locked.workers.keeps_time = false;
                return Err(error);
            }
        }
        Ok(())
    }

    fn open_in_time(self: Arc<Self>) {
        loop {
            let mut locked = self.lock();
            if locked.workers.shutdown {
                return;
            }
            locked.executor.review_gate();
            let opening = locked.executor.gate.next_opening();
            drop(locked);
            let left = opening.map_or(TICK, |opening| opening.saturating_duration_since(Instant::now()));
            std::thread::sleep(left.min(TICK));
        }
    }

    fn work_host(self: Arc<Self>) {
        let mut locked = self.lock();
        locked.workers.host_starting -= 1;
        while !locked.workers.shutdown {
            if let Some(job) = locked.executor.take_host() {
                locked = locked.execute(job);
            } else {
                locked.workers.host_sleeping += 1;
                while locked.workers.host_wakeups == 0 && !locked.workers.shutdown {
                    locked = locked.wait(&self.host_work, None);
                }
                locked.workers.host_wakeups = locked.workers.host_wakeups.saturating_sub(1);
                locked.workers.host_sleeping -= 1;
            }
        }
    }

    fn spawn_host_thread(self: &Arc<Self>, number: usize) {
        let own = Arc::clone(self);
        let thread = Builder::new().name(format!("sim-host-{number}")).spawn(move || own.work_host());
        let mut locked = self.lock();
        match thread {
            Ok(thread) => locked.workers.threads.push(thread),
            // The existing threads will take the work later.
            Err(_) => {
                locked.workers.host_starting -= 1;
                locked.workers.host_threads -= 1;
                locked.workers.host_thread_limit = locked.workers.host_threads;
            }
        }
    }
}

/// The critical section. Dropping it leaves the section and wakes the threads that must be woken.
pub(super) struct Locked<'a> {
    machine: &'a Arc<Machine>,
    /// The guard; `None` only while this is being dropped.
    guard: Option<MutexGuard<'a, MachineState>>,
}

impl Deref for Locked<'_> {
    type Target = MachineState;

    fn deref(&self) -> &MachineState {
        self.guard.as_ref().expect("held until the drop")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut MachineState {
        self.guard.as_mut().expect("held until the drop")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let Some(mut guard) = self.guard.take() else { return };
        let wake = self.machine.wake(&mut guard);
        let trash = std::mem::take(&mut guard.trash);
        drop(guard);
        self.machine.deliver(wake);
        trash.into_iter().for_each(drop_quietly);
    }
}

impl Job {
    /// Returns the job without its effect on memory, except for reading a condition, so that loops end.
    pub(super) fn without_memory(mut self) -> Self {
        if matches!((&self.start, &self.task.work), (Start::Run(_), work) if !matches!(work, Work::ToCell(_)))
        {
            self.start = Start::Skip;
        }
        self
    }

    /// Returns whether the job is a function of the host, which may wait for the program.
    pub(super) fn is_host_function(&self) -> bool {
        matches!(self.task.work, Work::Host(_))
    }

    /// Runs the job outside of the critical section. While it runs, the thread counts as being inside this command of the
    /// machine. Returns the command's number, device and result.
    pub(super) fn run(self, machine: &Arc<Machine>) -> (u32, u32, CallResult<()>) {
        let (index, device) = (self.index(), self.task.device);
        let before = INSIDE.replace(Some((Arc::as_ptr(machine).addr(), self.task.label)));
        let outcome = match self.start {
            // SAFETY: the executor resolved the accesses and holds their bytes from then until `finish`; held bytes cannot
            // be unmapped, because that needs a claim on the same bytes.
            Start::Run(resolved) => unsafe {
                match self.snapshot {
                    Some(snapshot) => self.task.run_from(snapshot, &resolved),
                    None => self.task.run(&resolved),
                }
            },
            Start::Skip => Ok(()),
            Start::Fail(refusal) => Err(refusal),
        };
        // Dropping the job may call the driver: its destructors are the program's, as after any other call.
        INSIDE.set(before);
        drop_quietly(self.task);
        (index, device, outcome)
    }
}

/// The threads that are to be woken.
#[derive(PartialEq, Eq, Default)]
struct Wake {
    worker: bool,
    hosts: bool,
    host_workers: usize,
    new_host_threads: std::ops::Range<usize>,
}

impl Machine {
    /// Settles the results of the critical section and decides which threads are to be woken.
    fn wake(&self, state: &mut MachineState) -> Wake {
        state.settle();
        let mut wake = Wake::default();
        let MachineState { executor, workers, .. } = state;
        if std::mem::take(&mut executor.wake_workers) {
            self.work_progress.fetch_add(1, Ordering::Relaxed);
            if workers.spinning == 0 && workers.wakeups < workers.sleeping {
                workers.wakeups += 1;
                wake.worker = true;
            }
        }
        if std::mem::take(&mut executor.wake_hosts) {
            self.host_progress.fetch_add(1, Ordering::Relaxed);
            wake.hosts = workers.host_waiters > 0;
        }
        let served = workers.host_wakeups + workers.host_starting;
        let unserved = executor.ready.host_queued().saturating_sub(served);
        if unserved > 0 {
            wake.host_workers = unserved.min(workers.host_sleeping - workers.host_wakeups);
            workers.host_wakeups += wake.host_workers;
            let room = workers.host_thread_limit.saturating_sub(workers.host_threads);
            let more = (unserved - wake.host_workers).min(room);
            wake.new_host_threads = workers.host_threads..workers.host_threads + more;
            workers.host_threads += more;
            workers.host_starting += more;
        }
        wake
    }

    fn deliver(self: &Arc<Self>, wake: Wake) {
        if wake.worker {
            self.work.notify_one();
        }
        if wake.hosts {
            self.host.notify_all();
        }
        for _ in 0..wake.host_workers {
            self.host_work.notify_one();
        }
        for number in wake.new_host_threads {
            self.spawn_host_thread(number);
        }
    }
}

impl<'a> Locked<'a> {
    /// Returns the machine itself.
    pub(super) fn machine(&self) -> &'a Arc<Machine> {
        self.machine
    }

    /// Leaves the critical section while a command runs, and completes it.
    fn execute(self, job: Job) -> Self {
        let (mut locked, index, device, outcome) = self.run(job);
        locked.executor.finish(index, device, outcome);
        locked
    }

    /// Leaves the critical section while a command runs, and returns its number, its device and its result.
    pub(super) fn run(self, job: Job) -> (Self, u32, u32, CallResult<()>) {
        let machine = self.machine;
        drop(self);
        let job = if machine.is_order_only.load(Ordering::Relaxed) { job.without_memory() } else { job };
        let (index, device, outcome) = job.run(machine);
        (machine.lock(), index, device, outcome)
    }

    /// Leaves the critical section while `body` runs.
    pub(super) fn outside<T>(self, body: impl FnOnce() -> T) -> (Self, T) {
        let machine = self.machine;
        drop(self);
        let value = body();
        (machine.lock(), value)
    }

    /// Spins for a few microseconds until there is work, outside the critical section.
    fn look_around(mut self) -> Self {
        let machine = self.machine;
        self.workers.spinning += 1;
        let seen = machine.work_progress.load(Ordering::Relaxed);
        drop(self);
        spin_while(|| machine.work_progress.load(Ordering::Relaxed) == seen);
        let mut locked = machine.lock();
        locked.workers.spinning -= 1;
        locked
    }

    /// Sleeps until there is work, or the machine shuts down.
    fn sleep(mut self) -> Self {
        self.workers.sleeping += 1;
        while self.workers.wakeups == 0 && !self.workers.shutdown {
            let machine = self.machine;
            self = self.wait(&machine.work, None);
        }
        self.workers.wakeups = self.workers.wakeups.saturating_sub(1);
        self.workers.sleeping -= 1;
        self
    }

    /// Waits on a condition variable, outside the critical section. If this critical section has threads to wake, it wakes
    /// them instead and returns, and the caller checks again: a thread never sleeps on a change of its own.
    fn wait(mut self, condition: &Condvar, time: Option<Duration>) -> Self {
        let machine = self.machine;
        let mut guard = self.guard.take().expect("held until the drop");
        let wake = machine.wake(&mut guard);
        let guard = match time {
            _ if wake != Wake::default() => {
                drop(guard);
                machine.deliver(wake);
                machine.state.lock()
            }
            None => condition.wait(guard),
            Some(time) => condition.wait_timeout(guard, time).0,
        };
        Locked { machine, guard: Some(guard) }
    }

    /// Sleeps outside the critical section, for at most `time`.
    pub(super) fn sleep_on(mut self, condition: &Condvar, time: Duration) -> Self {
        let machine = self.machine;
        let mut guard = self.guard.take().expect("held until the drop");
        // A controlled machine has no threads to wake: this settles memory only.
        machine.wake(&mut guard);
        let (guard, _) = condition.wait_timeout(guard, time);
        Locked { machine, guard: Some(guard) }
    }

    /// Waits, as a host thread, until an event that a host thread waits for, or until `until`.
    fn wait_for_progress(mut self, until: Option<Instant>) -> Self {
        let machine = self.machine;
        let seen = machine.host_progress.load(Ordering::Relaxed);
        drop(self);
        spin_while(|| machine.host_progress.load(Ordering::Relaxed) == seen);
        self = machine.lock();
        self.workers.host_waiters += 1;
        while machine.host_progress.load(Ordering::Relaxed) == seen {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break;
            }
            self = self.wait(&machine.host, left);
        }
        self.workers.host_waiters -= 1;
        self
    }

    /// Waits until a condition holds. Host threads wait in no other function. Fails only on a controlled machine.
    pub(super) fn wait_until(mut self, wait: Wait) -> CallResult<Self> {
        if self.machine.is_controlled {
            return self.wait_in_turn(wait);
        }
        while !self.has_come(&wait) {
            self = self.wait_for_progress(None);
        }
        Ok(self)
    }

    /// Waits until all these commands are complete, or until the program gives up ([`interruption`]).
    pub(super) fn wait_for_result(mut self, commands: &[CommandId]) -> CallResult<Self> {
        let Some(is_interrupted) = interruption() else { return self.wait_for(commands) };
        if self.executor.await_all(commands) {
            return Ok(self);
        }
        if self.machine.is_controlled {
            self.control().begin_interruptible();
            return self.wait_for(commands);
        }
        let mut asks = Instant::now() + INTERRUPTION_INTERVAL;
        while !self.executor.await_all(commands) {
            self = self.wait_for_progress(Some(asks));
            if Instant::now() >= asks {
                let is_over;
                (self, is_over) = self.outside(is_interrupted);
                if is_over {
                    return Err(interrupted());
                }
                asks = Instant::now() + INTERRUPTION_INTERVAL;
            }
        }
        Ok(self)
    }

    /// Waits for commands as [`wait_for_result`](Self::wait_for_result) does, and runs what is ready on the calling thread meanwhile: a
    /// command that is waited for at once need not pass to another thread and back.
    pub(super) fn work_for(mut self, commands: &[CommandId]) -> CallResult<Self> {
        while !self.machine.is_controlled && commands.iter().any(|&command| !self.executor.is_done(command)) {
            let Some(job) = self.take() else { break };
            self = self.execute(job);
        }
        self.wait_for_result(commands)
    }

    /// Returns whether a host thread's wait is over; if not, the thread will be woken when it is.
    fn has_come(&mut self, wait: &Wait) -> bool {
        match wait {
            Wait::Commands(commands) => self.executor.await_all(commands),
            Wait::Bytes(claim) => self.executor.can_hold(*claim),
            Wait::Room(stream) => self.executor.await_room(*stream),
            _ => unreachable!("a wait for a turn is one of a controlled machine"),
        }
    }

    /// Waits until all these commands are complete.
    pub(super) fn wait_for(mut self, commands: &[CommandId]) -> CallResult<Self> {
        if self.executor.await_all(commands) {
            return Ok(self);
        }
        self.wait_until(Wait::Commands(SmallVec::from_slice(commands)))
    }

    /// Waits until no running command touches these bytes in conflict, and holds them.
    pub(super) fn hold(mut self, pieces: SmallVec<[Piece; 4]>) -> CallResult<(Self, Claim)> {
        let claim = self.executor.claim(pieces);
        if !self.executor.try_hold(claim) {
            self = self.wait_until(Wait::Bytes(claim))?;
            assert!(self.executor.try_hold(claim), "the wait for it was over, under the same lock");
        }
        Ok((self, claim))
    }
}

/// Returns the refusal of a wait that the program has interrupted.
pub(super) fn interrupted() -> Refusal {
    Refusal::new(Code::NotReady, "the wait was interrupted; the work that it was for goes on")
}

/// Spins for a short while, as long as the condition holds. It lets other threads run meanwhile: if there are fewer
/// processors than threads, the thread that this one waits for may need this very processor.
fn spin_while(condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while condition() {
        for _ in 0..32 {
            std::hint::spin_loop();
        }
        let elapsed = begin.elapsed();
        if elapsed > SPIN {
            break;
        }
        if elapsed > SPIN / 10 {
            std::thread::yield_now();
        }
    }
}

/// Drops a value of the program. A panic in its destructor does not end our thread.
fn drop_quietly<T>(value: T) {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || drop(value)));
}
