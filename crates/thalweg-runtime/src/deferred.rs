//! Deferred work: commands of a thread that a layer above has not queued yet, so that it can queue better ones.
//!
//! Nothing may notice that they were deferred. So the runtime asks for them before every call that a command could affect or be
//! affected by: another command, an event, a wait, a capture, a record of a use of memory. Threads without deferred work pay one load.

use std::cell::Cell;

use crate::{Label, Result};

/// A function that queues this thread's deferred work, before a call with this label.
pub type QueueDeferred = fn(Label) -> Result<()>;

thread_local! {
    static DEFERRED: Cell<Option<QueueDeferred>> = const { Cell::new(None) };
}

/// Sets the function that queues this thread's deferred work; `None` if there is none.
pub fn set_deferred(queue: Option<QueueDeferred>) {
    DEFERRED.set(queue);
}

/// Queues this thread's deferred work, before a call with this label.
///
/// # Errors
/// Those of the deferred work.
#[inline]
pub fn queue_deferred(label: Label) -> Result<()> {
    match DEFERRED.get() {
        None => Ok(()),
        Some(queue) => queue(label),
    }
}
