//! Deferred work: commands of a thread that a layer above has not queued yet, so that it can queue better ones.
//!
//! Nothing may notice that they were deferred. So the runtime asks for them before every call that a command could affect or be
//! affected by: another command, an event, a wait, a capture, a record of a use of memory. A command whose memory is known only needs
//! the work that it could affect or be affected by ([`Before::Command`]). Threads without deferred work pay one load.

use std::cell::Cell;

use thalweg_driver::{Access, StreamHandle};

use crate::{Label, Result};

/// The event that deferred work must precede.
#[derive(Clone, Copy, Debug)]
pub enum Before<'a> {
    /// Anything that writes no device memory: all of it is queued.
    Anything,
    /// Commands that may write any device memory: all of it is queued.
    Unlisted,
    /// A command on a stream, and all device memory that it may touch. Work of that stream that does not touch this memory, or only
    /// reads what the command only reads, may wait on.
    Command {
        /// The stream of the command ([`Stream::key`](crate::Stream::key)).
        stream: (u64, StreamHandle),
        /// The memory.
        accesses: &'a [Access],
    },
}

/// A function that queues this thread's deferred work, before a call with this label.
pub type QueueDeferred = fn(Label, Before<'_>) -> Result<()>;

thread_local! {
    static DEFERRED: Cell<Option<QueueDeferred>> = const { Cell::new(None) };
}

/// Sets the function that queues this thread's deferred work; `None` if there is none. Returns the former one.
pub fn set_deferred(queue: Option<QueueDeferred>) -> Option<QueueDeferred> {
    DEFERRED.replace(queue)
}

/// Returns whether this thread has deferred work.
#[inline]
pub(crate) fn has_deferred() -> bool {
    DEFERRED.get().is_some()
}

/// Queues this thread's deferred work, before a call with this label.
#[inline]
pub fn queue_deferred(label: Label) -> Result<()> {
    queue_deferred_before(label, Before::Anything)
}

/// Queues this thread's deferred work as far as it must run before something, with this label.
#[inline]
pub(crate) fn queue_deferred_before(label: Label, before: Before<'_>) -> Result<()> {
    match DEFERRED.get() {
        None => Ok(()),
        Some(queue) => queue(label, before),
    }
}
