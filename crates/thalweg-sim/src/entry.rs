//! The entry of a driver's call into the machine, which adds the name of the call to errors.

use thalweg_driver::{Result, StreamHandle};

use crate::SimDriver;
use crate::control::CallKind;
use crate::executor::command::Frontier;
use crate::machine::Locked;
use crate::refusal::{CallResult, Refusal};
use crate::state::MachineState;

impl SimDriver {
    /// Checks for a fork before any lock is taken, because a thread that the child lacks may have held it.
    fn check_process(&self, call: &'static str) -> Result<()> {
        self.process.check(call, "the simulated GPU")
    }

    /// Makes a call that does not wait.
    pub(crate) fn enter<T>(
        &self,
        call: &'static str,
        body: impl FnOnce(&mut MachineState) -> CallResult<T>,
    ) -> Result<T> {
        self.check_process(call)?;
        let entered = self.machine.call(call, CallKind::Other);
        entered.and_then(|mut locked| body(&mut locked)).map_err(|refusal| refusal.of(call))
    }

    /// Makes a call that queues work on a stream, once its queue has room.
    pub(crate) fn submit<T>(
        &self,
        call: &'static str,
        stream: StreamHandle,
        body: impl FnOnce(&mut MachineState) -> CallResult<T>,
    ) -> Result<T> {
        self.submit_on(call, std::iter::once(stream), body)
    }

    /// Makes a call that queues work on several streams, once their queues have room. It waits for commands on memory that the host
    /// accesses in place.
    pub(crate) fn submit_on<T>(
        &self,
        call: &'static str,
        streams: impl Iterator<Item = StreamHandle> + Clone,
        body: impl FnOnce(&mut MachineState) -> CallResult<T>,
    ) -> Result<T> {
        self.check_process(call)?;
        let submit = || {
            let mut locked = self.machine.lock_to_submit(call, streams)?;
            locked.awaited.clear();
            let answer = body(&mut locked)?;
            if !locked.awaited.is_empty() {
                let awaited = std::mem::take(&mut locked.awaited);
                locked.work_for(&awaited)?;
            }
            Ok(answer)
        };
        submit().map_err(|refusal: Refusal| refusal.of(call))
    }

    /// Makes a call that waits.
    pub(crate) fn enter_and_wait<T>(
        &self,
        call: &'static str,
        body: impl FnOnce(Locked<'_>) -> CallResult<T>,
    ) -> Result<T> {
        self.check_process(call)?;
        self.machine.call(call, CallKind::Other).and_then(body).map_err(|refusal| refusal.of(call))
    }

    /// Makes a call that waits, and reads state that other threads change. The number identifies that state.
    pub(crate) fn look_and_wait<T>(
        &self,
        call: &'static str,
        object: u64,
        body: impl FnOnce(Locked<'_>) -> CallResult<T>,
    ) -> Result<T> {
        self.check_process(call)?;
        self.machine.call(call, CallKind::Look(object)).and_then(body).map_err(|refusal| refusal.of(call))
    }

    pub(crate) fn query(
        &self,
        call: &'static str,
        object: u64,
        find: impl FnOnce(&mut MachineState) -> CallResult<Frontier>,
    ) -> Result<bool> {
        self.check_process(call)?;
        self.machine.query(call, object, find).map_err(|refusal| refusal.of(call))
    }
}
