//! [`Work`]: a collective that was submitted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_runtime::{Error, Event, Result};
use thalweg_tensor::caller::outermost;

use crate::ProcessGroup;
use crate::flight::Entry;

/// The interval at which a wait with a limit polls.
const CHECK_INTERVAL: Duration = Duration::from_micros(200);

/// A collective that was submitted (`torch.distributed.Work`). It runs on the group's own stream: [`Work::wait`] makes the
/// current stream wait for it. Dropping it has no effect.
#[must_use = "what follows on the current stream is not ordered after the collective before `wait`"]
#[derive(Debug)]
pub struct Work {
    pub(crate) group: ProcessGroup,
    pub(crate) event: Arc<Event>,
    pub(crate) entry: Entry,
}

impl Work {
    /// Makes later work of the current stream wait for the collective. Does not block the host.
    ///
    /// # Errors
    /// The reason why the group failed, if it has.
    #[track_caller]
    pub fn wait(&self) -> Result<()> {
        self.group.check()?;
        self.group.device().current_stream().wait_event(&self.event)
    }

    /// Returns whether the collective is done.
    ///
    /// # Errors
    /// The reason why the group failed, if it has.
    #[track_caller]
    pub fn is_completed(&self) -> Result<bool> {
        let is_completed = self.event.query().map_err(|error| self.group.explain(error))?;
        if is_completed {
            self.group.flight().completed(self.entry);
        }
        Ok(is_completed)
    }

    /// *Blocks* until the collective is done. The group's timeout limits it where the group has a
    /// [watchdog](crate::GroupOptions::watchdog).
    ///
    /// # Errors
    /// The reason why the group failed, if it has.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        self.group.check()?;
        self.event.synchronize().map_err(|error| self.group.explain(error))?;
        self.group.flight().completed(self.entry);
        self.group.check()
    }

    /// *Blocks* until the collective is done, for at most `timeout`.
    ///
    /// # Errors
    /// [`Error::is_distributed`] if it took too long, with the ranks that have not made the call, if they are known. The
    /// collective still runs then: [`ProcessGroup::abort`] ends it.
    #[track_caller]
    pub fn wait_for(&self, timeout: Duration) -> Result<()> {
        let location = outermost(std::panic::Location::caller());
        let begin = Instant::now();
        while !self.is_completed()? {
            if begin.elapsed() >= timeout {
                let text = format!(
                    "rank {} waited {} ms for {}. {}",
                    self.group.rank(),
                    timeout.as_millis(),
                    self.entry.label,
                    self.group.who_is_missing(self.entry.sequence)
                );
                return Err(Error::distributed(text).at(location));
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
        self.group.check()
    }
}
