//! The turn: how a controlled machine runs one step at a time.
//!
//! A controlled machine has no threads. Its *host threads* are those of the program: the one that made the driver and those
//! started with [`SimDriver::spawn`](super::SimDriver::spawn). One of them has the turn; the others are parked inside a call
//! of the driver. At each call, and as long as a call must wait, the one with the turn asks the schedule: it goes on, runs a
//! ready command, or hands the turn over. So one step follows another, and the order is the schedule's.
//!
//! A thread can block outside of the driver, on a lock that a parked thread holds, say. It would keep the turn for ever. So
//! parked threads watch: a thread with the turn that the operating system says is asleep loses it, and when it wakes up it
//! runs on as far as its next call and parks there. Before each decision the machine waits until every other thread is
//! parked, asleep or gone, so that what can be chosen depends on the program alone.
//!
//! # Invariants
//! - At most one host thread has the turn, and only it decides and runs commands. (Threads that the machine does not know
//!   are served as they come, and the trace says so.)
//! - A thread that has the turn can go on, or decides: the turn is *granted* to a thread only when its wait is over.
//! - Once the run has ended no command begins. A wait for a command returns then only when no command runs: the memory that
//!   its caller lent is the caller's again.
//! - A command that calls the driver is refused, as CUDA does: what runs inside a command never waits for the turn.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::executor::{Claim, CommandId, Offer, Start};
use super::machine::{Locked, Machine, QUEUE_COMMANDS};
use super::refusal::{Outcome, Refusal};
use super::schedules::{Actor, Choice, Schedule, Touched, Trace};
use super::state::State;
use super::threads::{Activity, SystemThread};
use crate::Code;

/// How often a host thread may be told `not ready` before it must see something happen first. Twice, so that a program that
/// asks twice and gives up is seen to do so.
const FRUITLESS_QUERIES: u32 = 2;

/// How often a thread must be seen asleep in a row before that is believed.
const SIGHTINGS: u32 = 4;

/// The time between two looks at other threads.
const LOOK: Duration = Duration::from_micros(300);

/// How long nobody may get ahead, with a thread asleep outside of the driver, before that is a deadlock. Such a thread may
/// be waiting for the time or for another process.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a call is, to the schedule.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It queues work or an order, and sees nothing of what commands do.
    Submit,
    /// It asks whether work is done; the handle of what it asks.
    Query(u64),
    /// Anything else.
    Other,
}

/// What a host thread waits for inside a call.
pub(super) enum Wait {
    /// Its turn.
    Turn { is_quiet: bool },
    /// Anything but more of this.
    Progress(u64),
    /// Commands, until all are complete.
    Commands(SmallVec<[CommandId; 4]>),
    /// Bytes that something running touches.
    Bytes(Claim),
    /// Room in the queue.
    Room,
    /// The end of a host thread.
    Thread(u32),
    /// Something of the program, with a name for it.
    Condition(String, Condition),
}

/// Whether something of the program has come true.
pub(super) type Condition = Arc<dyn Fn() -> bool + Send + Sync>;

/// Who has the turn and who is in the run.
pub(super) struct Control {
    schedule: Box<dyn Schedule>,
    trace: Trace,
    hosts: Vec<Host>,
    turn: Option<u32>,
    /// Counts what other threads may be waiting to see: commands that ended, calls that queued something, threads that
    /// ended.
    progress: u64,
    /// How many commands run. More than one where a thread fell asleep in its own.
    running: u32,
    has_ended: bool,
}

struct Host {
    name: Cow<'static, str>,
    /// 0 until it has begun.
    thread: u64,
    system: SystemThread,
    phase: Phase,
    /// The call that it is in, or was in last.
    call: &'static str,
    /// Whether it was given the turn to go on.
    is_granted: bool,
    sightings: u32,
    wake: Arc<Condvar>,
    queries: Queries,
}

enum Phase {
    /// Outside of the driver, or asleep there, or it has the turn and goes on.
    Running,
    Parked(Wait),
    /// Parked, and its call is to answer this.
    Refused(Refusal),
    Finished,
}

/// What a thread was told `not ready` about since something happened.
#[derive(Default)]
struct Queries {
    progress: u64,
    answers: SmallVec<[(u64, u32); 2]>,
}

/// What a decision came to.
enum Next {
    Host(u32),
    Command(u32),
    /// The command begins, and ends later.
    Begin(u32),
    Nothing,
}

thread_local! {
    static THREAD: Cell<u64> = const { Cell::new(0) };
    /// The machine whose command this thread runs.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

/// A number for the calling thread that no other ever has.
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
            system: SystemThread::default(),
            phase,
            call: "",
            is_granted: false,
            sightings: 0,
            wake: Arc::default(),
            queries: Queries::default(),
        }
    }

    fn bind(&mut self) {
        (self.thread, self.system) = (this_thread(), SystemThread::current());
    }
}

impl Control {
    /// A run whose first host thread is this one.
    pub(super) fn new(schedule: Box<dyn Schedule>) -> Self {
        let mut first = Host::new(Cow::Borrowed("main"), Phase::Running);
        first.bind();
        Self {
            schedule,
            trace: Trace::default(),
            hosts: vec![first],
            turn: Some(0),
            progress: 0,
            running: 0,
            has_ended: false,
        }
    }

    pub(super) fn trace(&self) -> &Trace {
        &self.trace
    }

    pub(super) fn random(&mut self) -> u64 {
        self.schedule.random()
    }

    /// Begins another run on the same machine, with other threads than the calling one gone. What the last one was.
    pub(super) fn restart(&mut self, schedule: Box<dyn Schedule>) -> Trace {
        self.schedule = schedule;
        while self.hosts.len() > 1 && matches!(self.hosts.last(), Some(last) if last.is_finished()) {
            self.hosts.pop();
        }
        self.hosts.iter_mut().for_each(|host| host.queries = Queries::default());
        self.progress = 0;
        std::mem::take(&mut self.trace)
    }

    /// Takes a host thread in that will begin when it gets the turn. Its number.
    fn introduce(&mut self, name: String) -> u32 {
        let phase = Phase::Parked(Wait::Turn { is_quiet: false });
        self.hosts.push(Host::new(Cow::Owned(name), phase));
        self.hosts.len() as u32 - 1
    }

    fn host_here(&self) -> Option<u32> {
        let thread = this_thread();
        let position = self.hosts.iter().position(|host| host.thread == thread && !host.is_finished());
        position.map(|position| position as u32)
    }

    fn host(&mut self, host: u32) -> &mut Host {
        &mut self.hosts[host as usize]
    }

    /// Gives the turn to a thread that can go on.
    fn grant(&mut self, host: u32) {
        self.turn = Some(host);
        let chosen = self.host(host);
        chosen.is_granted = true;
        chosen.wake.notify_all();
    }

    fn wake_all(&self) {
        self.hosts.iter().for_each(|host| host.wake.notify_all());
    }

    /// Ends the run: whoever is parked is told so, and no command begins any more.
    pub(super) fn end(&mut self) {
        self.has_ended = true;
        self.wake_all();
    }

    /// What a host thread waits for before a call.
    fn before(&self, host: u32, step: Step) -> Wait {
        if let Step::Query(object) = step {
            let queries = &self.hosts[host as usize].queries;
            let mut answers = queries.answers.iter();
            let is_fruitless = queries.progress == self.progress
                && answers.any(|&(other, count)| other == object && count >= FRUITLESS_QUERIES);
            if is_fruitless {
                return Wait::Progress(self.progress);
            }
        }
        Wait::Turn { is_quiet: step == Step::Submit }
    }

    /// Whether a thread sleeps outside of the driver, for good as far as one can see.
    fn is_asleep(&mut self, host: u32, machine: &Machine) -> bool {
        let seen = self.host(host);
        match seen.system.activity() {
            Activity::Gone => {
                seen.phase = Phase::Finished;
                true
            }
            // A thread that waits for the machine's lock is on its way in.
            Activity::Asleep if machine.entering.load(Ordering::SeqCst) == 0 => {
                seen.sightings += 1;
                seen.sightings >= SIGHTINGS
            }
            _ => {
                seen.sightings = 0;
                false
            }
        }
    }
}

impl Host {
    fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Finished)
    }

    fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running)
    }

    fn is_parked(&self) -> bool {
        matches!(self.phase, Phase::Parked(_) | Phase::Refused(_))
    }
}

fn ended() -> Refusal {
    Refusal::new(Code::Deinitialized, "the run of the controlled simulator has ended")
}

impl State {
    fn control(&mut self) -> &mut Control {
        self.control.as_mut().expect("the machine is controlled")
    }

    /// Whether a wait is over.
    fn is_over(&self, wait: &Wait) -> bool {
        let control = self.control.as_ref().expect("the machine is controlled");
        match wait {
            Wait::Turn { .. } => true,
            Wait::Progress(seen) => *seen != control.progress,
            Wait::Commands(commands) => commands.iter().all(|command| self.executor.is_done(*command)),
            Wait::Bytes(claim) => self.executor.can_hold(*claim),
            Wait::Room => self.executor.live() < QUEUE_COMMANDS,
            Wait::Thread(host) => control.hosts[*host as usize].is_finished(),
            Wait::Condition(_, condition) => condition(),
        }
    }

    fn can_go(&self, host: &Host) -> bool {
        match &host.phase {
            Phase::Parked(wait) => self.is_over(wait),
            Phase::Refused(_) => true,
            Phase::Running | Phase::Finished => false,
        }
    }

    /// The host threads that can go on, `first` before the others.
    fn hosts_that_can_go(&self, first: u32) -> SmallVec<[u32; 4]> {
        let control = self.control.as_ref().expect("the machine is controlled");
        let others = (0..control.hosts.len() as u32).filter(|&host| host != first);
        std::iter::once(first)
            .chain(others)
            .filter(|&host| self.can_go(&control.hosts[host as usize]))
            .collect()
    }

    /// Asks the schedule.
    fn choose(&mut self, decider: u32) -> Next {
        let commands = self.executor.offers(&self.memory);
        let mut hosts = self.hosts_that_can_go(decider);
        if hosts.is_empty() && commands.is_empty() {
            // Only threads that poll are left. Whatever they wait for, they have to look for it themselves.
            let all = self.control().hosts.iter().enumerate();
            let polls = |host: &Host| matches!(host.phase, Phase::Parked(Wait::Progress(_)));
            hosts = all.filter(|(_, host)| polls(host)).map(|(number, _)| number as u32).collect();
        }
        match (&hosts[..], &commands[..]) {
            ([], []) => return Next::Nothing,
            (&[host], []) => return Next::Host(host),
            ([], &[command]) => return Next::Command(command),
            _ => {}
        }
        let mut control = self.control.take().expect("the machine is controlled");
        let mut choices: SmallVec<[(Choice<'_>, Next); 8]> = SmallVec::new();
        let is_quiet = !self.executor.has_host_functions() && control.is_quiet();
        let host = |number: u32| {
            let choice = Choice {
                actor: Actor::Host(number),
                label: None,
                command: 0,
                is_current: number == decider,
                is_needed: false,
                is_quiet,
                is_beginning: false,
                touched: Touched::Anything,
            };
            (choice, Next::Host(number))
        };
        let offers = || commands.iter().map(|&index| self.executor.offer(index));
        let (mine, others) = hosts.split_at(usize::from(hosts.first() == Some(&decider)));
        choices.extend(mine.iter().map(|&number| host(number)));
        let needed = offers().filter(|offer| offer.is_needed);
        choices.extend(needed.map(|offer| (offer.choice(), Next::Command(offer.index))));
        choices.extend(others.iter().map(|&number| host(number)));
        let rest = offers().filter(|offer| !offer.is_needed);
        choices.extend(rest.map(|offer| (offer.choice(), Next::Command(offer.index))));
        let beginning = commands.iter().filter(|&&index| self.executor.can_begin(index, &commands));
        choices.extend(beginning.map(|&index| {
            let choice = Choice { is_beginning: true, ..self.executor.offer(index).choice() };
            (choice, Next::Begin(index))
        }));
        let (offered, mut nexts): (SmallVec<[Choice<'_>; 8]>, SmallVec<[Next; 8]>) =
            choices.into_iter().unzip();
        let wanted = control.schedule.next(&offered);
        let chosen = if wanted < offered.len() { wanted } else { 0 };
        control.trace.decided(chosen, &offered);
        drop(offered);
        self.control = Some(control);
        nexts.swap_remove(chosen)
    }

    /// Runs the first half of a command.
    fn begin(&mut self, index: u32) {
        let offer = self.executor.offer(index);
        let (label, actor, number) = (offer.label, offer.actor, offer.number);
        self.control().trace.began(label, actor, number);
        self.executor.begin(index);
    }

    /// Tells everybody who waits for what cannot come that this is a deadlock.
    fn declare_deadlock(&mut self) {
        let collectives = self.executor.describe_collectives();
        let mut control = self.control.take().expect("the machine is controlled");
        let mut text = "deadlock: no host thread can go on and no command is ready. ".to_owned();
        for (number, host) in control.hosts.iter().enumerate() {
            let reason = match &host.phase {
                Phase::Parked(wait) => {
                    format!("waits in {} for {}", host.call, self.describe(wait, &control))
                }
                Phase::Running => "is blocked outside of the driver".to_owned(),
                Phase::Refused(_) | Phase::Finished => continue,
            };
            let _ = write!(text, "Host thread {number} `{}` {reason}. ", host.name);
        }
        text += &collectives;
        let refusal = Refusal::new(Code::Timeout, text.trim_end());
        for host in &mut control.hosts {
            if matches!(host.phase, Phase::Parked(_)) {
                host.phase = Phase::Refused(refusal.clone());
            }
        }
        self.control = Some(control);
    }

    fn describe(&self, wait: &Wait, control: &Control) -> String {
        match wait {
            Wait::Turn { .. } => "its turn".to_owned(),
            Wait::Progress(_) => "work that a query called unfinished".to_owned(),
            Wait::Commands(commands) => {
                let unfinished = commands.iter().filter_map(|&command| self.executor.describe(command));
                let names: Vec<String> =
                    unfinished.take(4).map(|(label, actor)| format!("`{label}` on {actor}")).collect();
                format!("work on the device: {}", names.join(", "))
            }
            Wait::Bytes(_) => "memory that a running command touches".to_owned(),
            Wait::Room => "room in the queue of commands".to_owned(),
            Wait::Thread(host) => {
                format!("the end of host thread {host} `{}`", control.hosts[*host as usize].name)
            }
            Wait::Condition(what, _) => what.clone(),
        }
    }
}

impl Control {
    /// Whether every host thread is about to queue something.
    fn is_quiet(&self) -> bool {
        self.hosts.iter().all(|host| match host.phase {
            Phase::Parked(Wait::Turn { is_quiet }) => is_quiet,
            Phase::Finished => true,
            _ => false,
        })
    }
}

impl<'a> Offer<'a> {
    fn choice(&self) -> Choice<'a> {
        let &Offer { number, actor, label, is_needed, touched, .. } = self;
        let label = Some(label);
        let (is_current, is_quiet, is_beginning) = (false, false, false);
        Choice { actor, label, command: number, is_current, is_needed, is_quiet, is_beginning, touched }
    }
}

impl Machine {
    /// Enters the critical section for a call of the program, when it is the calling thread's turn.
    pub(super) fn call_in_turn(self: &Arc<Self>, call: &'static str, step: Step) -> Outcome<Locked<'_>> {
        let mut locked = self.enter_for(call)?;
        let control = locked.control();
        let wait = match control.host_here() {
            Some(host) => control.before(host, step),
            None => Wait::Turn { is_quiet: false },
        };
        let mut locked = locked.wait_in_turn(wait)?;
        if step == Step::Submit {
            locked.control().progress += 1;
        }
        Ok(locked)
    }

    /// The same for a call that only waits.
    pub(super) fn wait_in_call(self: &Arc<Self>, call: &'static str, wait: Wait) -> Outcome<Locked<'_>> {
        self.enter_for(call)?.wait_in_turn(wait)
    }

    /// Enters the critical section, whoever has the turn.
    fn enter_for(self: &Arc<Self>, call: &'static str) -> Outcome<Locked<'_>> {
        if INSIDE.get() == Arc::as_ptr(self).addr() {
            let detail = "a host function or kernel must not call the driver: CUDA forbids it";
            return Err(Refusal::new(Code::NotPermitted, detail));
        }
        self.entering.fetch_add(1, Ordering::SeqCst);
        let mut locked = self.lock();
        self.entering.fetch_sub(1, Ordering::SeqCst);
        let control = locked.control();
        if let Some(host) = control.host_here() {
            control.host(host).call = call;
        }
        Ok(locked)
    }

    /// Takes a host thread in that will begin when it gets the turn. No decision: the caller's next call is one.
    pub(super) fn introduce_host(self: &Arc<Self>, name: &str) -> Outcome<u32> {
        let mut locked = self.enter_for("SimDriver::spawn")?;
        let control = locked.control();
        if control.has_ended { Err(ended()) } else { Ok(control.introduce(name.to_owned())) }
    }

    /// The calling thread becomes the host thread that was introduced, and waits for its first turn.
    pub(super) fn begin_host(self: &Arc<Self>, host: u32) -> Outcome<()> {
        let mut locked = self.lock();
        let entry = locked.control().host(host);
        entry.bind();
        entry.call = "the start of the thread";
        locked.wait_in_turn(Wait::Turn { is_quiet: false }).map(drop)
    }

    /// A host thread has ended, or never began.
    pub(super) fn finish_host(self: &Arc<Self>, host: u32) {
        let mut locked = self.lock();
        let control = locked.control();
        control.progress += 1;
        let entry = control.host(host);
        let has_begun = entry.thread != 0;
        entry.phase = Phase::Finished;
        if has_begun {
            drop(locked.decide(host));
        }
    }
}

impl<'a> Locked<'a> {
    /// Waits, as a thread of the program, until the wait is over and it is this thread's turn.
    pub(super) fn wait_in_turn(mut self, wait: Wait) -> Outcome<Self> {
        if let Wait::Commands(commands) = &wait {
            self.executor.need(commands);
        }
        let (claim, is_for_commands) = match &wait {
            Wait::Bytes(claim) => (Some(*claim), false),
            other => (None, matches!(other, Wait::Commands(_))),
        };
        let host = self.control().host_here();
        let refusal = match host {
            Some(host) => {
                self.control().host(host).phase = Phase::Parked(wait);
                self = self.decide(host);
                match std::mem::replace(&mut self.control().host(host).phase, Phase::Running) {
                    Phase::Refused(refusal) => Some(refusal),
                    _ => None,
                }
            }
            None => {
                self = self.wait_as_stranger(&wait);
                None
            }
        };
        let refusal = if self.control().has_ended { Some(ended()) } else { refusal };
        let Some(refusal) = refusal else { return Ok(self) };
        if let Some(claim) = claim {
            self.executor.withdraw(claim);
        }
        while is_for_commands && self.control().running > 0 {
            self = self.rest(None);
        }
        Err(refusal)
    }

    /// Has the turn when it returns, granted, unless the run has ended or this thread has.
    fn decide(mut self, me: u32) -> Self {
        loop {
            let control = self.control();
            if control.has_ended {
                return self;
            }
            let is_finished = control.host(me).is_finished();
            match control.turn {
                Some(turn) if turn == me => {
                    if std::mem::take(&mut control.host(me).is_granted) {
                        return self;
                    }
                }
                None => control.turn = Some(me),
                Some(_) if is_finished => return self,
                Some(turn) => {
                    self = self.park(me, turn);
                    continue;
                }
            }
            self = self.quiesce(me);
            match self.choose(me) {
                Next::Host(host) if host == me => return self,
                Next::Host(host) => self.control().grant(host),
                Next::Command(index) => self = self.execute_chosen(index, Some(me)),
                Next::Begin(index) => self.begin(index),
                Next::Nothing => self = self.nothing_to_do(me),
            }
            let control = self.control();
            if control.turn == Some(me) && control.host(me).is_finished() && !control.has_others(me) {
                control.turn = None;
                return self;
            }
        }
    }

    /// Sleeps until the turn may be this thread's. Takes it from a thread that sleeps outside of the driver.
    fn park(mut self, me: u32, turn: u32) -> Self {
        self = self.rest(Some(me));
        let machine = self.machine();
        let control = self.control();
        let watcher = control.hosts.iter().position(Host::is_parked);
        let is_still_held = control.turn == Some(turn) && control.host(turn).is_running();
        if is_still_held && watcher == Some(me as usize) && control.is_asleep(turn, machine) {
            control.turn = Some(me);
        }
        self
    }

    /// Waits until every other host thread is parked, asleep or gone.
    fn quiesce(mut self, me: u32) -> Self {
        let mut host = 0;
        while (host as usize) < self.control().hosts.len() {
            let machine = self.machine();
            let control = self.control();
            let is_settled =
                host == me || !control.host(host).is_running() || control.is_asleep(host, machine);
            if is_settled {
                host += 1;
            } else {
                self = self.rest(Some(me));
                host = 0;
            }
        }
        self
    }

    /// Nothing can be chosen: somebody outside of the driver has to do something, or this is a deadlock.
    fn nothing_to_do(mut self, me: u32) -> Self {
        let begin = Instant::now();
        loop {
            let control = self.control();
            let may_change = control.hosts.iter().any(Host::is_running) || !control.trace.is_controlled;
            if !may_change || begin.elapsed() > PATIENCE {
                self.declare_deadlock();
                return self;
            }
            self = self.rest(Some(me));
            self = self.quiesce(me);
            let has_ended = self.control().has_ended;
            if has_ended
                || !self.hosts_that_can_go(me).is_empty()
                || self.executor.ready.all().next().is_some()
            {
                return self;
            }
        }
    }

    /// Leaves the critical section for a moment, or until somebody wakes this host thread.
    fn rest(mut self, me: Option<u32>) -> Self {
        let wake = me.map_or_else(Arc::default, |me| Arc::clone(&self.control().host(me).wake));
        self.sleep_on(&wake, LOOK)
    }

    /// Runs a command that the schedule has chosen, on this thread.
    fn execute_chosen(mut self, index: u32, me: Option<u32>) -> Self {
        let state = &mut *self;
        let offer = state.executor.offer(index);
        let (label, actor, number) = (offer.label, offer.actor, offer.number);
        state.control().trace.ran(label, actor, number);
        state.control().running += 1;
        let job = state.executor.take_chosen(index, &state.memory);
        if let Start::Run(resolved) = &job.start {
            state.memory.backing.note_writes(&resolved.pieces);
        }
        let before = INSIDE.replace(Arc::as_ptr(self.machine()).addr());
        let (mut locked, index, device, outcome) = self.run(job, || INSIDE.set(before));
        locked.control().running -= 1;
        if let Some(me) = me {
            locked = locked.regain(me);
        }
        locked.executor.finish(index, device, outcome);
        locked.control().progress += 1;
        locked.settle();
        locked
    }

    /// Waits for the turn again, if it was lost while this thread was asleep in a command.
    fn regain(mut self, me: u32) -> Self {
        while self.control().turn != Some(me) && !self.control().has_ended {
            let phase = Phase::Parked(Wait::Turn { is_quiet: false });
            let before = std::mem::replace(&mut self.control().host(me).phase, phase);
            self = self.decide(me);
            self.control().host(me).phase = before;
        }
        self
    }

    /// Serves a thread that the machine does not know: it takes no turn, and runs commands where it needs them.
    fn wait_as_stranger(mut self, wait: &Wait) -> Self {
        self.control().trace.is_controlled = false;
        loop {
            if self.control().has_ended || self.is_over(wait) {
                return self;
            }
            let state = &mut *self;
            let ready = state.executor.offers(&state.memory).first().copied();
            self = match ready {
                Some(index) => self.execute_chosen(index, None),
                None => self.rest(None),
            };
        }
    }

    /// Notes what a query answered.
    pub(super) fn answer(&mut self, object: u64, unfinished: &[CommandId]) {
        let control = self.control();
        let Some(host) = control.host_here() else { return };
        control.trace.answered(host, unfinished.is_empty());
        let progress = control.progress;
        let queries = &mut control.host(host).queries;
        if queries.progress != progress {
            (queries.progress, queries.answers) = (progress, SmallVec::new());
        }
        if unfinished.is_empty() {
            return;
        }
        match queries.answers.iter_mut().find(|(other, _)| *other == object) {
            Some((_, count)) => *count += 1,
            None => queries.answers.push((object, 1)),
        }
        let count = queries.answers.iter().find(|(other, _)| *other == object).map_or(0, |(_, count)| *count);
        if count >= FRUITLESS_QUERIES {
            self.executor.need(unfinished);
        }
    }
}

impl Control {
    /// Whether a host thread besides this one is parked.
    fn has_others(&self, me: u32) -> bool {
        self.hosts.iter().enumerate().any(|(number, host)| number as u32 != me && host.is_parked())
    }
}
