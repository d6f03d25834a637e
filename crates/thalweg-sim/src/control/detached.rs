//! Work on threads that are not host threads of the program.
//!
//! CUDA runs host functions on a thread of its own. Here each gets one as well, because a function may wait for a lock that
//! its submitter holds: it runs *apart*. The machine waits until the function is over or asleep before it decides anything,
//! so the choices still depend on the program only.
//!
//! A host thread that waits for the device without a call of the driver, in a loop or on a lock, does not hand over the
//! turn. If it is the only one, the [`watch`](super::watch) starts a *deputy*, which runs commands in its place until it
//! calls again.

use std::sync::Arc;
use std::thread::Builder;
use std::time::Instant;

use thalweg_driver::Label;
use thalweg_lock::Mutex;

use super::sighting::{Alive, Entering, Sighted};
use super::{Control, DetachedThread, Next, PATIENCE};
use crate::executor::Job;
use crate::machine::{Locked, Machine};

impl Control {
    /// Returns whether all threads that run apart are asleep.
    pub(crate) fn detached_are_asleep(&mut self, entering: &Entering) -> bool {
        let mut all = self.detached.iter_mut();
        all.all(|detached| detached.sighted.as_mut().is_some_and(|seen| seen.look(entering) != Alive::Awake))
    }

    /// Adds a thread whose work is not a host thread's turn (a detached thread). Returns its number.
    fn add_detached(&mut self, label: Option<Label>) -> u64 {
        let number = self.detached.last().map_or(1, |last| last.number + 1);
        self.detached.push(DetachedThread { number, label, sighted: None });
        number
    }

    fn begun_apart(&mut self, number: u64) {
        if let Some(detached) = self.detached.iter_mut().find(|detached| detached.number == number) {
            detached.sighted = Some(Sighted::here());
        }
    }

    fn ended_apart(&mut self, number: u64) {
        self.detached.retain(|detached| detached.number != number);
        self.wake_all();
    }
}

impl<'a> Locked<'a> {
    /// Runs a host function on a thread of its own, or on this one if the system cannot start a thread.
    pub(crate) fn run_detached(mut self, label: Label, job: Job) -> Self {
        self.control().observe();
        let number = self.control().add_detached(Some(label));
        let slot = Arc::new(Mutex::new(Some(job)));
        let (machine, own) = (Arc::clone(self.machine()), Arc::clone(&slot));
        let started = Builder::new().name("sim-host-function".to_owned()).spawn(move || {
            machine.enter_apart().control().begun_apart(number);
            machine.run_function(number, &own);
        });
        if started.is_ok() {
            return self;
        }
        let machine = Arc::clone(self.machine());
        self.control().begun_apart(number);
        self.outside(|| machine.run_function(number, &slot)).0
    }
}

impl Machine {
    /// Enters the critical section as a thread that runs apart.
    fn enter_apart(self: &Arc<Self>) -> Locked<'_> {
        self.entering.during(|| self.lock())
    }

    fn run_function(self: &Arc<Self>, number: u64, slot: &Mutex<Option<Job>>) {
        let Some(job) = slot.lock().take() else { return };
        let (index, device, outcome) = job.run(self);
        let mut locked = self.enter_apart();
        locked.complete(index, device, outcome);
        locked.control().ended_apart(number);
    }

    /// Starts a thread that runs commands as long as this host thread makes no call.
    pub(crate) fn send_deputy(self: &Arc<Self>, mut locked: Locked<'_>, host: u32) {
        let number = locked.control().add_detached(None);
        let machine = Arc::clone(self);
        let deputy = move || {
            let mut locked = machine.enter_apart();
            locked.control().begun_apart(number);
            loop {
                let control = locked.control();
                let is_away = control.turn == Some(host) && control.host(host).is_running();
                if control.has_ended || !is_away {
                    break;
                }
                match locked.choose(host) {
                    Next::Command(index) => locked = locked.execute_chosen(index, None),
                    Next::Begin(index) => locked.begin(index),
                    Next::Host(_) | Next::Nothing => break,
                }
            }
            locked.control().ended_apart(number);
        };
        if Builder::new().name("sim-deputy".to_owned()).spawn(deputy).is_err() {
            // The next check of the watch tries again.
            locked.control().ended_apart(number);
        }
    }

    /// Waits, for a limited time, until all threads that run apart are over, asleep, or the calling thread itself.
    pub(crate) fn wait_for_apart(self: &Arc<Self>) {
        let (mut locked, begin) = (self.lock(), Instant::now());
        loop {
            let own = |detached: &DetachedThread| detached.sighted.as_ref().is_some_and(Sighted::is_here);
            let Some(control) = &mut locked.control else { return };
            let is_late = begin.elapsed() > PATIENCE;
            if is_late || control.detached.iter().any(own) || control.detached_are_asleep(&self.entering) {
                return;
            }
            locked = locked.rest(None);
        }
    }
}
