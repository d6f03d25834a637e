//! Host threads of a controlled machine: their start and end.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use thalweg_driver::{Code, Error, Result};
use thalweg_lock::Mutex;

use super::Wait;
use crate::SimDriver;
use crate::machine::Machine;

/// A host thread of [`SimDriver::spawn`]. Dropping it detaches the thread.
#[derive(Debug)]
#[must_use = "a thread that is not joined may not have run when the program ends"]
pub struct SimThread<T>(Kind<T>);

#[derive(Debug)]
enum Kind<T> {
    /// A thread on a machine that is not controlled.
    Plain(JoinHandle<T>),
    Controlled {
        machine: Arc<Machine>,
        host: u32,
        outcome: Arc<Mutex<Option<std::thread::Result<T>>>>,
    },
}

impl<T> SimThread<T> {
    /// Waits for the thread's end and returns its result. If the thread panicked, this call panics with the same payload.
    ///
    /// # Errors
    /// On a controlled machine: [`Code::Timeout`] for a deadlock, with the wait of each thread; [`Code::Deinitialized`] if
    /// the run ended before the thread did.
    pub fn join(self) -> Result<T> {
        const CALL: &str = "SimThread::join";
        let result = match self.0 {
            Kind::Plain(thread) => thread.join(),
            Kind::Controlled { machine, host, outcome } => {
                let waited = machine.wait_in_call(CALL, Wait::Thread(host));
                drop(waited.map_err(|refusal| refusal.of(CALL))?);
                let outcome = outcome.lock().take();
                let never = || Error::new(Code::Deinitialized, CALL, "the run ended before the thread began");
                outcome.ok_or_else(never)?
            }
        };
        result.or_else(|payload| resume_unwind(payload))
    }
}

/// A host thread's seat in the run of a controlled machine. The thread is over when this is dropped.
#[derive(Debug)]
pub struct HostThreadSlot {
    machine: Arc<Machine>,
    host: u32,
}

impl HostThreadSlot {
    /// Seats the calling thread, and waits for its first turn.
    pub fn take(&self) -> Result<()> {
        self.machine.begin_host(self.host).map_err(|refusal| refusal.of("SimDriver::spawn"))
    }
}

impl Drop for HostThreadSlot {
    fn drop(&mut self) {
        self.machine.finish_host(self.host);
    }
}

impl SimDriver {
    /// Starts a host thread that is an actor of the run: the schedule decides when it continues, from one call of the
    /// driver to the next. On a machine that is not controlled it is an ordinary thread.
    ///
    /// # Errors
    /// [`Code::OperatingSystem`] if the system cannot start a thread; on a controlled machine also the errors of any call.
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
        let own = self.host_thread_slot(name)?;
        let (machine, host) = (Arc::clone(&own.machine), own.host);
        let outcome = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&outcome);
        let run = move || {
            if own.take().is_ok() {
                let ended = catch_unwind(AssertUnwindSafe(body));
                *slot.lock() = Some(ended);
            }
            // The result is stored before the slot is free, and the body's values are dropped.
            drop(own);
        };
        builder.spawn(run).map_err(refused)?;
        Ok(SimThread(Kind::Controlled { machine, host, outcome }))
    }

    /// Returns a host thread's slot in the run of a controlled machine.
    pub fn host_thread_slot(&self, name: &str) -> Result<HostThreadSlot> {
        let introduced = self.machine.introduce_host(name);
        let host = introduced.map_err(|refusal| refusal.of("SimDriver::spawn"))?;
        Ok(HostThreadSlot { machine: Arc::clone(&self.machine), host })
    }
}
