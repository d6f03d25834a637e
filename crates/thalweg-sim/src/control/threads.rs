//! Host threads of a controlled machine: how they start and end, and what the operating system knows of them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use thalweg_driver::{Code, Error, Result};

use super::Wait;
use crate::SimDriver;
use crate::machine::Machine;

/// A host thread of [`SimDriver::spawn`]. Dropping it leaves the thread alone.
#[derive(Debug)]
#[must_use = "a thread that is not joined may not have run when the program ends"]
pub struct SimThread<T>(Kind<T>);

#[derive(Debug)]
enum Kind<T> {
    /// On a machine with threads of its own.
    Plain(JoinHandle<T>),
    Controlled {
        machine: Arc<Machine>,
        host: u32,
        outcome: Arc<Mutex<Option<std::thread::Result<T>>>>,
    },
}

impl<T> SimThread<T> {
    /// Waits for the thread's end and gives what it returned. If it panicked, so does this call, with the same payload.
    ///
    /// # Errors
    /// On a controlled machine: [`Code::Timeout`] for a deadlock, with who waits for what; [`Code::Deinitialized`] where the
    /// run ended before the thread did.
    pub fn join(self) -> Result<T> {
        const CALL: &str = "SimThread::join";
        let result = match self.0 {
            Kind::Plain(thread) => thread.join(),
            Kind::Controlled { machine, host, outcome } => {
                let waited = machine.wait_in_call(CALL, Wait::Thread(host));
                drop(waited.map_err(|refusal| refusal.of(CALL))?);
                let outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
                let never = || Error::new(Code::Deinitialized, CALL, "the run ended before the thread began");
                outcome.ok_or_else(never)?
            }
        };
        result.or_else(|payload| resume_unwind(payload))
    }
}

/// A place for a host thread in the run of a controlled machine. The thread is over when this is dropped.
#[derive(Debug)]
pub struct Seat {
    machine: Arc<Machine>,
    host: u32,
}

impl Seat {
    /// The calling thread takes the seat and waits for its first turn.
    pub fn take(&self) -> Result<()> {
        self.machine.begin_host(self.host).map_err(|refusal| refusal.of("SimDriver::spawn"))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.machine.finish_host(self.host);
    }
}

impl SimDriver {
    /// Starts a host thread that is an actor of the run: the schedule decides when it gets ahead, from one call of the
    /// driver to the next. On a machine that is not controlled it is an ordinary thread.
    ///
    /// # Errors
    /// [`Code::OperatingSystem`] where the system starts no thread, and on a controlled machine what any call may answer.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> Result<SimThread<T>> {
        const CALL: &str = "SimDriver::spawn";
        let refused = |error| Error::new(Code::OperatingSystem, CALL, format!("thread `{name}`: {error}"));
        let builder = Builder::new().name(name.to_owned());
        if !self.is_controlled() {
            return Ok(SimThread(Kind::Plain(builder.spawn(body).map_err(refused)?)));
        }
        let seat = self.seat(name)?;
        let (machine, host) = (Arc::clone(&seat.machine), seat.host);
        let outcome = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&outcome);
        let run = move || {
            if seat.take().is_ok() {
                let ended = catch_unwind(AssertUnwindSafe(body));
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
            }
            // The result is there before the seat is free, and what the body owned is gone.
            drop(seat);
        };
        builder.spawn(run).map_err(refused)?;
        Ok(SimThread(Kind::Controlled { machine, host, outcome }))
    }

    /// A seat in the run of a controlled machine.
    pub fn seat(&self, name: &str) -> Result<Seat> {
        let introduced = self.machine.introduce_host(name);
        let host = introduced.map_err(|refusal| refusal.of("SimDriver::spawn"))?;
        Ok(Seat { machine: Arc::clone(&self.machine), host })
    }
}

/// What a thread is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Activity {
    Awake,
    Asleep,
    Gone,
}

/// What is believed of a thread after some looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Alive {
    Awake,
    Asleep,
    Gone,
}

/// How often a thread must be seen asleep in a row before that is believed.
const SIGHTINGS: u32 = 4;

/// A thread, and what it was seen to do.
#[derive(Clone, Default, Debug)]
pub(crate) struct Sighted {
    system: SystemThread,
    /// Goes with the thread: the system gives its number to others.
    life: Weak<()>,
    sightings: u32,
}

thread_local! {
    static LIFE: Arc<()> = Arc::new(());
}

impl Sighted {
    /// The calling thread.
    pub(crate) fn here() -> Self {
        let life = LIFE.try_with(Arc::downgrade).unwrap_or_default();
        Self { system: SystemThread::current(), life, sightings: 0 }
    }

    /// Whether it is the calling thread.
    pub(crate) fn is_here(&self) -> bool {
        self.activity() != Activity::Gone && self.system == SystemThread::current()
    }

    pub(crate) fn activity(&self) -> Activity {
        if self.life.strong_count() == 0 { Activity::Gone } else { self.system.activity() }
    }

    /// How long a processor has worked for it.
    pub(crate) fn busy(&self) -> Duration {
        self.system.busy()
    }

    /// Looks at it once more. A thread that waits for the machine's lock is on its way in, and not asleep.
    pub(crate) fn look(&mut self, machine: &Machine) -> Alive {
        match self.activity() {
            Activity::Gone => Alive::Gone,
            Activity::Asleep if !machine.is_being_entered() => {
                self.sightings += 1;
                if self.sightings >= SIGHTINGS { Alive::Asleep } else { Alive::Awake }
            }
            _ => {
                self.sightings = 0;
                Alive::Awake
            }
        }
    }
}

/// A thread as the operating system names it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct SystemThread(i32);

#[cfg(target_os = "linux")]
impl SystemThread {
    fn current() -> Self {
        // SAFETY: asks for a number; it cannot fail.
        Self(unsafe { libc::gettid() })
    }

    /// What the system says of it, from the state on.
    fn status(self) -> Option<String> {
        let text = std::fs::read_to_string(format!("/proc/self/task/{}/stat", self.0)).ok()?;
        // `4711 (a name) S 1 …`: the name may hold anything, a bracket too.
        Some(text.rsplit_once(") ")?.1.to_owned())
    }

    /// What the thread is doing. A thread that waits for a disk counts as awake: it goes on by itself.
    fn activity(self) -> Activity {
        match self.status().and_then(|status| status.chars().next()) {
            None | Some('Z' | 'X') => Activity::Gone,
            Some('S') => Activity::Asleep,
            _ => Activity::Awake,
        }
    }

    /// How long a processor has worked for the thread, in steps of the system's clock.
    fn busy(self) -> Duration {
        const TICK: Duration = Duration::from_millis(10);
        let status = self.status().unwrap_or_default();
        // Fields 14 and 15 of proc(5), of which the first here is the third.
        let ticks = status.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u32>().ok());
        TICK * ticks.sum()
    }
}

/// Elsewhere nobody tells: a thread that does not park for a few looks counts as asleep.
#[cfg(not(target_os = "linux"))]
impl SystemThread {
    fn current() -> Self {
        Self(0)
    }

    fn activity(self) -> Activity {
        Activity::Asleep
    }

    fn busy(self) -> Duration {
        Duration::ZERO
    }
}
