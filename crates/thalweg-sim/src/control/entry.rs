//! The entry of the program's threads into a controlled machine.

use std::sync::Arc;

use super::{CallKind, Phase, Wait};
use crate::machine::{Locked, Machine};
use crate::refusal::CallResult;

impl Machine {
    /// Enters the critical section for a call of the program, once it is the calling thread's turn.
    pub(crate) fn call_in_turn(
        self: &Arc<Self>,
        call: &'static str,
        step: CallKind,
    ) -> CallResult<Locked<'_>> {
        let mut locked = self.enter_for(call)?;
        let control = locked.control();
        let host = control.host_here().unwrap_or_default();
        let wait = control.before(host, step);
        let mut locked = locked.wait_in_turn(wait)?;
        let control = locked.control();
        match step {
            CallKind::Submit => control.progress += 1,
            CallKind::Look(object) => {
                control.observe();
                control.looked(host, object, true);
            }
            CallKind::Query(_) | CallKind::Other => {}
        }
        Ok(locked)
    }

    /// Waits, in a call that does nothing else.
    pub(crate) fn wait_in_call(self: &Arc<Self>, call: &'static str, wait: Wait) -> CallResult<Locked<'_>> {
        self.enter_for(call)?.wait_in_turn(wait)
    }

    /// Enters the critical section, whichever thread has the turn.
    fn enter_for(self: &Arc<Self>, call: &'static str) -> CallResult<Locked<'_>> {
        self.refuse_inside(call)?;
        let mut locked = self.entering.during(|| self.lock());
        let control = locked.control();
        let host = control.host_here().unwrap_or_else(|| control.attach());
        let host = control.host(host);
        (host.call, host.is_spinning) = (call, false);
        Ok(locked)
    }

    /// Adds a host thread that will begin when it gets the turn. Makes no decision: the caller's next call does.
    pub(crate) fn introduce_host(self: &Arc<Self>, name: &str) -> CallResult<u32> {
        let mut locked = self.enter_for("SimDriver::spawn")?;
        let control = locked.control();
        if control.has_ended { Err(control.ended()) } else { Ok(control.introduce(name.to_owned())) }
    }

    /// Makes the calling thread the introduced host thread, and waits for its first turn.
    pub(crate) fn begin_host(self: &Arc<Self>, host: u32) -> CallResult<()> {
        let mut locked = self.lock();
        let entry = locked.control().host(host);
        entry.bind();
        entry.call = "the start of the thread";
        locked.wait_in_turn(Wait::Turn { is_quiet: false }).map(drop)
    }

    /// Records that a host thread has ended, or never began.
    pub(crate) fn finish_host(self: &Arc<Self>, host: u32) {
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
