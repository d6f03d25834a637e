//! The turn: the thread that goes next, one step after another.
//!
//! [`control`](crate::control) explains turns and their invariants.

use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_driver::{INTERRUPTION_INTERVAL, interruption};

use crate::control::{Host, Next, PATIENCE, Phase, Wait};
use crate::executor::Start;
use crate::executor::command::CommandId;
use crate::machine::{Locked, interrupted};
use crate::refusal::CallResult;

/// The time between two checks of other threads.
const CHECK_INTERVAL: Duration = Duration::from_micros(300);

/// The number of consecutive checks that must find no thread outside of the driver that could continue, before a deadlock is
/// declared. The system's list of threads may miss a thread while other threads end ([`control`](crate::control) explains why
/// this number suffices).
const DEADLOCK_CHECKS: u32 = 16;

impl<'a> Locked<'a> {
    /// Waits, as a thread of the program, until `wait` is over and it is this thread's turn.
    pub(crate) fn wait_in_turn(mut self, wait: Wait) -> CallResult<Self> {
        if let Wait::Commands(commands) = &wait {
            self.executor.need(commands);
        }
        let claim = if let Wait::Bytes(claim) = &wait { Some(*claim) } else { None };
        let me = self.control().host_here().expect("every call begins by taking its thread in");
        self.control().host(me).phase = Phase::Parked(wait);
        self = self.decide(me);
        let control = self.control();
        control.host(me).waits += 1;
        control.host(me).asks = None;
        let refusal = match std::mem::replace(&mut control.host(me).phase, Phase::Running) {
            Phase::Refused(refusal) => Some(refusal),
            _ => None,
        };
        let refusal = if control.has_ended { Some(control.ended()) } else { refusal };
        let Some(refusal) = refusal else { return Ok(self) };
        if let Some(claim) = claim {
            self.executor.withdraw(claim);
        }
        Err(refusal)
    }

    /// Makes decisions until this thread has the turn, granted, unless the run or this thread has ended.
    pub(crate) fn decide(mut self, me: u32) -> Self {
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
            self = self.ask_for_interruption(me);
            if matches!(self.control().host(me).phase, Phase::Refused(_)) && self.control().turn == Some(me) {
                return self;
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

    /// Refuses the wait of this thread if the program interrupts it. The program's function may wait for other threads, and
    /// so lose the turn.
    fn ask_for_interruption(mut self, me: u32) -> Self {
        let host = self.control().host(me);
        let (Some(asks), Some(is_interrupted)) = (host.asks, interruption()) else { return self };
        if !matches!(host.phase, Phase::Parked(_)) || Instant::now() < asks {
            return self;
        }
        host.asks = Some(Instant::now() + INTERRUPTION_INTERVAL);
        let is_over;
        (self, is_over) = self.outside(is_interrupted);
        let host = self.control().host(me);
        if is_over && matches!(host.phase, Phase::Parked(_)) {
            host.phase = Phase::Refused(interrupted());
        }
        self
    }

    /// Sleeps until the turn may be this thread's. Takes it from a thread that sleeps outside of the driver.
    fn park(mut self, me: u32, turn: u32) -> Self {
        self = self.rest(Some(me));
        let entering = &self.machine().entering;
        let control = self.control();
        let watcher = control.hosts.iter().position(Host::is_parked);
        let is_still_held = control.turn == Some(turn) && control.host(turn).is_running();
        if is_still_held && watcher == Some(me as usize) && control.is_asleep(turn, entering) {
            control.turn = Some(me);
        }
        self
    }

    /// Waits until every other host thread is parked, asleep or gone, and so are the detached threads.
    fn quiesce(mut self, me: u32) -> Self {
        let mut host = 0;
        loop {
            let entering = &self.machine().entering;
            let control = self.control();
            let is_settled = if (host as usize) < control.hosts.len() {
                host == me || !control.host(host).is_running() || control.is_asleep(host, entering)
            } else if control.detached_are_asleep(entering) && !control.awaits_newcomer() {
                return self;
            } else {
                false
            };
            if is_settled {
                host += 1;
            } else {
                self = self.rest(Some(me));
                host = 0;
            }
        }
    }

    /// Handles a moment without choices: code outside of the driver must make progress, or this is a deadlock.
    fn nothing_to_do(mut self, me: u32) -> Self {
        let begin = Instant::now();
        let mut looks = 0;
        loop {
            let control = self.control();
            let is_work_outside = !control.detached.is_empty() || control.hosts.iter().any(Host::is_running);
            let may_change = is_work_outside || !control.trace.is_controlled || control.has_newcomer();
            looks = if may_change { 0 } else { looks + 1 };
            if looks == DEADLOCK_CHECKS || begin.elapsed() > PATIENCE {
                self.declare_stuck("deadlock: no host thread can go on and no command is ready. ");
                return self;
            }
            self = self.rest(Some(me));
            self = self.quiesce(me).ask_for_interruption(me);
            let has_ended = self.control().has_ended;
            if has_ended
                || !self.hosts_that_can_go(me).is_empty()
                || self.executor.ready.all().next().is_some()
            {
                return self;
            }
        }
    }

    /// Leaves the critical section for a moment, or until another thread wakes this host thread.
    pub(crate) fn rest(mut self, me: Option<u32>) -> Self {
        let wake = me.map_or_else(Arc::default, |me| Arc::clone(&self.control().host(me).wake));
        self.sleep_on(&wake, CHECK_INTERVAL)
    }

    /// Runs a command that the schedule has chosen, on this thread. A host function gets a thread of its own.
    pub(crate) fn execute_chosen(mut self, index: u32, me: Option<u32>) -> Self {
        let state = &mut *self;
        let offer = state.executor.offer(index);
        let (label, actor, number) = (offer.label, offer.actor, offer.number);
        state.control().trace.ran(label, actor, number);
        let job = state.executor.take_chosen(index, &state.memory);
        if job.is_host_function() {
            return self.run_detached(label, job);
        }
        let state = &mut *self;
        if let Start::Run(resolved) = &job.start {
            state.memory.backing.note_writes(&resolved.pieces);
        }
        let (mut locked, index, device, outcome) = self.run(job);
        if let Some(me) = me {
            locked = locked.regain(me);
        }
        locked.complete(index, device, outcome);
        locked
    }

    /// Records that a command has run.
    pub(crate) fn complete(&mut self, index: u32, device: u32, outcome: CallResult<()>) {
        self.executor.finish(index, device, outcome);
        self.control().progress += 1;
        self.settle();
    }

    /// Waits for the turn again, if this thread lost the turn while it was asleep in a command.
    fn regain(mut self, me: u32) -> Self {
        while self.control().turn != Some(me) && !self.control().has_ended {
            let phase = Phase::Parked(Wait::Turn { is_quiet: false });
            let before = std::mem::replace(&mut self.control().host(me).phase, phase);
            self = self.decide(me);
            self.control().host(me).phase = before;
        }
        self
    }

    /// Records the result of a query.
    pub(crate) fn answer(&mut self, object: u64, unfinished: &[CommandId]) {
        let control = self.control();
        let Some(host) = control.host_here() else { return };
        let is_ready = unfinished.is_empty();
        if !is_ready {
            control.observe();
        }
        if control.notes_polls() {
            control.trace.answered(host, is_ready);
        }
        if control.looked(host, object, is_ready) && !is_ready {
            self.executor.need(unfinished);
        }
    }
}
