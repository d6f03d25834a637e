//! The turn: how a controlled machine runs one step at a time.
//!
//! The *host threads* of a controlled machine are those of the program: the one that created the driver, those started with
//! [`SimDriver::spawn`](super::SimDriver::spawn), and any other that calls the driver, from its first call on. One of them
//! has the turn; the others are parked inside a call of the driver. At each call, and as long as a call must wait, the
//! thread with the turn asks the schedule (`choice`): it continues, runs a ready command, or hands the turn over (`turn`).
//! So one step follows another, in the order of the schedule.
//!
//! A thread can block outside of the driver, for example on a lock that a parked thread holds. It would keep the turn
//! forever. So parked threads watch: a thread with the turn that the operating system reports as asleep loses it, and when
//! it wakes up it runs until its next call and parks there. Before each decision the machine waits until every other thread
//! is parked, asleep or gone, so that the choices depend on the program only. Host functions may block in the same way, and
//! have threads of their own (`detached`). A thread that neither calls nor sleeps is found by the
//! [`watch`](crate::control::watch).
//!
//! A thread that was not introduced is unknown until it calls. So after the first call of such a thread, a decision waits a
//! moment for others that the system lists and the machine has not seen; and no deadlock is declared at once while there is
//! such a thread.
//!
//! # Deadlocks
//! A deadlock is declared when every host thread is parked, no wait is over, no command is ready, and several consecutive
//! checks of the system's list of threads show none that could still call for the first time. One check may be wrong. Linux
//! lists a process's threads by walking from each to the next. If the thread that it has reached is gone, it begins again
//! at the oldest and skips as many as it had listed, so each older thread that has ended meanwhile makes it skip a live
//! one. So a check misses a thread only if another one ends during that very check. All checks miss it only if a thread
//! ends during each of them. The ending threads cannot have been created since the run began, because those are seen as
//! well as long as they live, and seeing one restarts the count. They are older ones, and host threads that have finished.
//! Each of them ends once, so there must be as many as checks, and each must end within the few microseconds of a check,
//! one `CHECK_INTERVAL` after another. No program does that by chance, and one that does so on purpose gets a false deadlock. (On
//! Linux 6.18, with 300 threads ending at once, 8 of 24,000 checks missed a thread, and no two in a row.)
//!
//! # Polling
//! A device continues while a program polls. So a thread that checks the same object again and again, with nothing done in
//! between, waits until something is done. If nothing is left that could be done, for a while, that is a livelock.
//!
//! # Invariants
//! - At most one host thread has the turn, and only it decides and runs commands. (One exception is in `detached`.)
//! - A thread that has the turn can continue, or decides: the turn is *granted* to a thread only when its wait is over.
//! - Once the run has ended no command begins.
//! - A wait may be refused while its command is queued, and the command may run later: no command relies on its caller's
//!   wait ([`task`](crate::executor::task)).
//! - A command that calls the driver is refused, as in CUDA, on every machine: code inside a command never waits for the
//!   turn.

pub(crate) mod sighting;
pub(crate) mod spawn;
pub(crate) mod watch;

mod choice;
mod detached;
mod entry;
mod turn;

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use thalweg_driver::{Code, INTERRUPTION_INTERVAL, Label};
use thalweg_lock::Condvar;

use self::sighting::{Activity, Alive, Entering, Sighted, Tick, made_since};
use super::executor::command::{Claim, CommandId};
use super::refusal::Refusal;
use super::schedules::{Schedule, Trace};

/// The number of times that a host thread may check the same object, with nothing done in between, before it has to wait
/// for something to be done.
const FRUITLESS_CHECKS: u32 = 16;

/// The number of checks that a `not ready` query counts as. Two such queries suffice to make a thread wait, and one query does
/// not. A run can therefore include a program that queries twice and gives up.
const NOT_READY: u32 = 8;

/// The number of checked objects that are remembered.
const LOOKED_AT: usize = 32;

/// The time without progress after which a deadlock is declared if a thread is asleep outside of the driver. Also the time
/// for which threads may poll with nothing left to be done before a livelock is declared. They may be waiting for time to
/// pass or for another process.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// The number of decisions, after the arrival of a thread that was not introduced, that check for other threads on their way to
/// their first call, and wait for a moment if there are any. As far as the machine can see, a thread that makes its first call
/// after another thread has finished its work may know of that work.
const ARRIVAL_CHECKS: u32 = 64;

/// The least number of polls in that time for a livelock: a thread that sleeps in between is not busy.
const LIVELOCK_POLLS: u32 = 1000;

/// The number of these polls that a trace records. Their number depends on time, not on the program.
const NOTED_POLLS: u32 = 100;

/// The kind of a call, as a schedule distinguishes them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    /// The call queues work or an order, and sees no effects of commands.
    Submit,
    /// The call queries whether work is done; with the handle of the queried object.
    Query(u64),
    /// The call reads other state that other threads or commands change. The number identifies that state.
    Look(u64),
    /// Any other call.
    Other,
}

/// The condition that a host thread waits for inside a call.
pub(super) enum Wait {
    /// The thread waits for its turn.
    Turn { is_quiet: bool },
    /// The thread waits until something is done other than polling.
    Progress(u64),
    /// The thread waits until all these commands are complete.
    Commands(SmallVec<[CommandId; 4]>),
    /// The thread waits for bytes that a running command touches.
    Bytes(Claim),
    /// The thread waits for room in the queue of the stream with this number.
    Room(u32),
    /// The thread waits for the end of a host thread.
    Thread(u32),
    /// The thread waits for a condition of the program, which has a name.
    Condition(String, Condition),
}

/// A condition of the program, which is called to check it.
pub(super) type Condition = Arc<dyn Fn() -> bool + Send + Sync>;

/// A function that is called when no thread makes progress any more.
pub(super) type OnStuck = Box<dyn FnOnce(&str) + Send>;

/// A function that is called when the program may have seen a decision of the schedule for the first time.
pub(super) type OnObservation = Box<dyn FnOnce() + Send>;

/// The thread that has the turn, and all threads of the run.
pub(super) struct Control {
    schedule: Box<dyn Schedule>,
    pub(super) trace: Trace,
    pub(super) hosts: Vec<Host>,
    /// The work on threads that are not host threads.
    pub(super) detached: Vec<DetachedThread>,
    pub(super) turn: Option<u32>,
    /// The number of events that other threads may be waiting for: commands that ended, calls that queued something,
    /// threads that ended.
    pub(super) progress: u64,
    /// The polls since threads had nothing left to be done.
    polls: Polls,
    /// The number of polls of all threads.
    polled: u64,
    pub(super) has_ended: bool,
    /// The error of every call from now on.
    end: Refusal,
    /// The reason why no thread makes progress any more, once it has been found.
    pub(super) stuck: Option<String>,
    /// Called with that reason, once.
    pub(super) on_stuck: Option<OnStuck>,
    /// Called at the first observation.
    pub(super) on_observation: Option<OnObservation>,
    /// The time that the run may take.
    pub(super) limit: Option<Limit>,
    pub(super) stall: Stall,
    /// The moment at which the machine was created, or its last run began.
    began: Tick,
    /// The number of remaining decisions that check for threads that are on their way to their first call.
    arrival_looks: u32,
}

/// The polls since something was done last.
struct Polls {
    progress: u64,
    since: Instant,
    count: u32,
}

/// The limit of a run's time, and the action when it is exceeded.
pub(crate) struct Limit {
    pub(crate) time: Duration,
    pub(crate) ends: Instant,
    /// Called when a run goes on although it was ended.
    pub(crate) is_stuck: Arc<dyn Fn(&str) + Send + Sync>,
}

/// The state of the thread with the turn, while it does not call.
#[derive(Default)]
pub(crate) struct Stall {
    /// The thread, and the number of its turns.
    moment: (u32, u64),
    looks: u32,
    asleep_looks: u32,
    busy_before: Duration,
}

/// A detached thread, which runs a host function or commands and takes no turns of its own.
pub(crate) struct DetachedThread {
    number: u64,
    /// The host function; `None` for a deputy.
    pub(crate) label: Option<Label>,
    /// The system's view of the thread; `None` until it has begun.
    sighted: Option<Sighted>,
}

impl DetachedThread {
    /// Returns the thread, if it has begun.
    pub(crate) fn sighted(&self) -> Option<&Sighted> {
        self.sighted.as_ref()
    }
}

/// A host thread.
pub(super) struct Host {
    pub(super) name: Cow<'static, str>,
    /// The thread's number in the system; 0 until the thread has begun.
    pub(super) thread: u64,
    pub(super) sighted: Sighted,
    pub(super) phase: Phase,
    /// The current or last call.
    pub(super) call: &'static str,
    /// The number of the thread's turns.
    pub(super) waits: u64,
    /// Whether the turn was granted to the thread.
    pub(super) is_granted: bool,
    /// Whether the thread is busy outside of the driver, where it may be waiting for other threads.
    pub(super) is_spinning: bool,
    pub(super) wake: Arc<Condvar>,
    /// The moment of the next check whether the program interrupts the thread's wait, if the wait can be interrupted.
    pub(super) asks: Option<Instant>,
    looks: Looks,
    /// The moment of the thread's last poll with nothing left to be done.
    polled: u64,
}

pub(super) enum Phase {
    /// The thread is outside of the driver, or asleep there, or it has the turn and continues.
    Running,
    Parked(Wait),
    /// The thread is parked, and its call is to fail with this refusal.
    Refused(Refusal),
    Finished,
}

/// The objects that a thread has checked since the program last made progress.
#[derive(Default)]
struct Looks {
    progress: u64,
    counts: SmallVec<[(u64, u32); 2]>,
}

/// The result of a decision.
pub(super) enum Next {
    Host(u32),
    Command(u32),
    /// The command begins, and ends later.
    Begin(u32),
    Nothing,
}

thread_local! {
    static THREAD: Cell<u64> = const { Cell::new(0) };
    /// The machine whose command this thread runs, and the command's label.
    pub(super) static INSIDE: Cell<Option<(usize, Label)>> = const { Cell::new(None) };
}

/// Returns a number for the calling thread that no other thread ever has.
fn this_thread() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    THREAD.with(|own| {
        if own.get() == 0 {
            own.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        }
        own.get()
    })
}

impl Host {
    fn new(name: Cow<'static, str>, phase: Phase) -> Self {
        Self {
            name,
            thread: 0,
            sighted: Sighted::default(),
            phase,
            call: "",
            waits: 0,
            is_granted: false,
            is_spinning: false,
            wake: Arc::default(),
            asks: None,
            looks: Looks::default(),
            polled: 0,
        }
    }

    fn bind(&mut self) {
        (self.thread, self.sighted) = (this_thread(), Sighted::here());
    }
}

impl Control {
    /// Creates a run whose first host thread is this one.
    pub(super) fn new(schedule: Box<dyn Schedule>) -> Self {
        let mut first = Host::new(Cow::Borrowed("main"), Phase::Running);
        first.bind();
        Self {
            schedule,
            trace: Trace::default(),
            hosts: vec![first],
            detached: Vec::new(),
            turn: Some(0),
            progress: 0,
            polls: Polls { progress: 0, since: Instant::now(), count: 0 },
            polled: 0,
            has_ended: false,
            end: Refusal::new(Code::Deinitialized, "the run of the controlled simulator has ended"),
            stuck: None,
            on_stuck: None,
            on_observation: None,
            limit: None,
            stall: Stall::default(),
            began: Tick::now(),
            arrival_looks: 0,
        }
    }

    pub(super) fn trace(&self) -> &Trace {
        &self.trace
    }

    pub(super) fn random(&mut self) -> u64 {
        self.observe();
        self.schedule.random()
    }

    /// Begins another run on the same machine; threads other than the calling one are gone. Returns the trace of the last
    /// run.
    pub(super) fn restart(&mut self, schedule: Box<dyn Schedule>) -> Trace {
        self.schedule = schedule;
        while self.hosts.len() > 1 && matches!(self.hosts.last(), Some(last) if last.is_finished()) {
            self.hosts.pop();
        }
        self.hosts.iter_mut().for_each(|host| host.looks = Looks::default());
        (self.progress, self.began) = (0, Tick::now());
        std::mem::take(&mut self.trace)
    }

    /// Adds a host thread that will begin when it gets the turn. Returns its number.
    fn introduce(&mut self, name: String) -> u32 {
        let phase = Phase::Parked(Wait::Turn { is_quiet: false });
        self.hosts.push(Host::new(Cow::Owned(name), phase));
        self.hosts.len() as u32 - 1
    }

    /// Adds the calling thread, which was not introduced. Returns its number.
    fn attach(&mut self) -> u32 {
        self.trace.is_controlled = false;
        self.arrival_looks = ARRIVAL_CHECKS;
        let name = std::thread::current().name().unwrap_or("a thread without a name").to_owned();
        let mut host = Host::new(Cow::Owned(name), Phase::Running);
        host.bind();
        self.hosts.push(host);
        self.hosts.len() as u32 - 1
    }

    pub(super) fn host_here(&self) -> Option<u32> {
        let thread = this_thread();
        let position = self.hosts.iter().position(|host| host.thread == thread && !host.is_finished());
        position.map(|position| position as u32)
    }

    pub(super) fn host(&mut self, host: u32) -> &mut Host {
        &mut self.hosts[host as usize]
    }

    /// Grants the turn to a thread that can continue.
    pub(super) fn grant(&mut self, host: u32) {
        self.turn = Some(host);
        let chosen = self.host(host);
        chosen.is_granted = true;
        chosen.wake.notify_all();
    }

    pub(super) fn wake_all(&self) {
        self.hosts.iter().for_each(|host| host.wake.notify_all());
    }

    /// Ends the run: parked threads are notified, and no command begins any more.
    pub(super) fn end(&mut self) {
        self.has_ended = true;
        self.wake_all();
    }

    /// Ends the run because it took too long.
    pub(super) fn time_out(&mut self, text: String) {
        self.end = Refusal::new(Code::Timeout, text.clone());
        self.set_stuck(text);
        self.end();
    }

    /// Ends the run because no thread makes progress any more, with this reason.
    fn set_stuck(&mut self, text: String) {
        if let Some(reported) = self.on_stuck.take() {
            reported(&text);
        }
        self.stuck.get_or_insert(text);
    }

    /// Records that the wait that the calling thread is about to begin can be interrupted.
    pub(super) fn begin_interruptible(&mut self) {
        if let Some(host) = self.host_here() {
            self.host(host).asks = Some(Instant::now() + INTERRUPTION_INTERVAL);
        }
    }

    /// Records that the program may have seen something that the schedule decides.
    pub(super) fn observe(&mut self) {
        self.trace.observations += 1;
        if let Some(reported) = self.on_observation.take() {
            reported();
        }
    }

    /// Returns the error of calls after the end.
    pub(super) fn ended(&self) -> Refusal {
        self.end.clone()
    }

    /// Returns the wait of a host thread before a call.
    fn before(&mut self, host: u32, step: CallKind) -> Wait {
        if let CallKind::Query(object) | CallKind::Look(object) = step {
            let progress = self.progress;
            let looks = &self.hosts[host as usize].looks;
            let is_fruitless = looks.progress == progress && looks.count(object) >= FRUITLESS_CHECKS;
            if is_fruitless {
                self.observe();
                return Wait::Progress(progress);
            }
        }
        Wait::Turn { is_quiet: step == CallKind::Submit }
    }

    /// Records that a host thread has checked an object, and whether it was ready. Returns whether the thread has found it
    /// not ready, or unchanged, often enough to make it wait.
    pub(super) fn looked(&mut self, host: u32, object: u64, is_ready: bool) -> bool {
        let progress = self.progress;
        let looks = &mut self.host(host).looks;
        if looks.progress != progress || looks.counts.len() > LOOKED_AT {
            (looks.progress, looks.counts) = (progress, SmallVec::new());
        }
        let weight = if is_ready { 1 } else { NOT_READY };
        match looks.counts.iter_mut().find(|(other, _)| *other == object) {
            Some((_, count)) => *count = count.saturating_add(weight),
            None => looks.counts.push((object, weight)),
        }
        looks.count(object) >= FRUITLESS_CHECKS
    }

    /// Returns whether another poll, with nothing left to be done, makes a livelock.
    fn is_livelock(&mut self) -> bool {
        if self.polls.progress != self.progress || self.polls.count == 0 {
            self.polls = Polls { progress: self.progress, since: Instant::now(), count: 0 };
        }
        self.polls.count += 1;
        self.polls.count.is_multiple_of(LIVELOCK_POLLS) && self.polls.since.elapsed() > PATIENCE
    }

    /// Returns whether the trace still records the results of polls.
    pub(super) fn notes_polls(&self) -> bool {
        self.polls.progress != self.progress || self.polls.count < NOTED_POLLS
    }

    /// Returns the activities of the threads that were created since the run began and have not called yet.
    fn newcomers(&self) -> Vec<Activity> {
        let hosts = self.hosts.iter().map(|host| &host.sighted);
        let known: SmallVec<[&Sighted; 8]> =
            hosts.chain(self.detached.iter().filter_map(DetachedThread::sighted)).collect();
        made_since(self.began, |number| known.iter().any(|thread| thread.is_number(number)))
    }

    /// Returns whether there is a thread that may yet call for the first time.
    pub(super) fn has_newcomer(&self) -> bool {
        self.newcomers().iter().any(|activity| *activity != Activity::Gone)
    }

    /// Returns whether a decision has to wait for a thread that is on its way to its first call.
    pub(super) fn awaits_newcomer(&mut self) -> bool {
        if self.arrival_looks == 0 {
            return false;
        }
        let newcomers = self.newcomers();
        self.arrival_looks = if newcomers.is_empty() { 0 } else { self.arrival_looks - 1 };
        newcomers.contains(&Activity::Awake)
    }

    /// Returns whether a thread seems to sleep outside of the driver until another thread acts, or has been busy there for
    /// too long.
    pub(super) fn is_asleep(&mut self, host: u32, entering: &Entering) -> bool {
        let seen = self.host(host);
        match seen.sighted.look(entering) {
            Alive::Gone => {
                seen.phase = Phase::Finished;
                true
            }
            Alive::Asleep => true,
            Alive::Awake => seen.is_spinning,
        }
    }
}

impl Looks {
    fn count(&self, object: u64) -> u32 {
        self.counts.iter().find(|(other, _)| *other == object).map_or(0, |(_, count)| *count)
    }
}

impl Host {
    pub(super) fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Finished)
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running)
    }

    pub(super) fn is_parked(&self) -> bool {
        matches!(self.phase, Phase::Parked(_) | Phase::Refused(_))
    }
}

impl Control {
    /// Returns whether every host thread is about to queue something.
    fn is_quiet(&self) -> bool {
        let is_quiet = |host: &Host| match host.phase {
            Phase::Parked(Wait::Turn { is_quiet }) => is_quiet,
            Phase::Finished => true,
            _ => false,
        };
        self.detached.is_empty() && self.hosts.iter().all(is_quiet)
    }
}

impl Control {
    /// Returns whether a host thread besides this one is parked.
    pub(super) fn has_others(&self, me: u32) -> bool {
        self.hosts.iter().enumerate().any(|(number, host)| number as u32 != me && host.is_parked())
    }
}
