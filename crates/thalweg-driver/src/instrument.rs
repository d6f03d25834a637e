//! [`Instrument`]: the interface by which the layers above a driver notify a sanitizer of events that no driver sees.
//!
//! A caching allocator divides its memory into blocks and reuses them without a call of the driver, and host threads wait
//! for one another without it. Such code reports these events to the sanitizer, if
//! [`Driver::instrument`](crate::Driver::instrument) returns one.

use std::any::Any;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::{Label, StreamHandle};

/// The kind of memory of a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BlockKind {
    /// Device memory that belongs to the work of a stream: after the free, later work of that stream may reuse it at once.
    Device,
    /// Device memory of a graph's pool that a caller keeps until a replay of the graph overwrites it. Otherwise like
    /// `Device`.
    GraphOutput,
    /// Pinned host memory that belongs to the host: after the free, any request may reuse it at once.
    Pinned,
}

impl BlockKind {
    /// Returns whether the block belongs to the work of a stream.
    pub fn is_of_stream(self) -> bool {
        matches!(self, Self::Device | Self::GraphOutput)
    }
}

/// The time for which a block is kept for another stream's work.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UseKind {
    /// The block is kept until the work that the stream has when the block is freed is done (`record_stream`).
    UntilFree,
    /// The block is kept until the work that the stream has now is done (`record_use`).
    SoFar,
}

/// The knowledge of a host thread at some moment: the work that is ordered before everything that the thread does next.
///
/// Opaque: only the [`Instrument`] that created it can read it.
#[derive(Clone, Debug)]
pub struct HostClock(pub Arc<dyn Any + Send + Sync>);

/// The events of which a sanitizer must be notified.
///
/// No method changes what a program does, and none blocks. Calls that make no sense (for a block that was not announced,
/// say) are ignored.
pub trait Instrument: Send + Sync {
    /// Reports that a caching allocator returned a block to a caller: `bytes` from the address `start` on, requested on
    /// `stream`.
    fn block_allocated(&self, start: u64, bytes: u64, kind: BlockKind, stream: StreamHandle, label: Label);

    /// Reports that the block at this address is about to be freed. Called before the allocator frees it. The label is
    /// usually missing, because a drop does not know its caller.
    fn block_freed(&self, start: u64, label: Option<Label>);

    /// Reports that `stream` was recorded as a user of the block, and that the allocator keeps the block as `kind`
    /// specifies.
    fn block_recorded(&self, start: u64, stream: StreamHandle, kind: UseKind, label: Label);

    /// Declares that the graph that `stream` captures may use memory of earlier captures, freed or not, and graph outputs,
    /// whenever it is launched. The program that launches the graph must make sure that the memory then has the same contents
    /// again.
    fn capture_vouched(&self, stream: StreamHandle);

    /// Reports where the program created a stream. If a stream is returned to the program again later, the first place
    /// counts.
    fn stream_made(&self, stream: StreamHandle, label: Label);

    /// Names a stream for reports. Streams without a name are numbered in the order of their creation.
    fn name_stream(&self, stream: StreamHandle, name: &str);

    /// Sets the site of the next call of this thread that has no label of its own: a graph launch, a stream's wait for an
    /// event, or the host's reads and writes of pinned memory.
    fn label_next(&self, label: Label);

    /// Sets whether the calling thread's calls from now on are internal to an allocator, and returns the previous setting.
    /// Work that an internal call waits for, or finds complete, is over, so its memory may be reused. But the call orders
    /// nothing for the program, which does not know of the call and must not rely on it.
    fn exchange_internal(&self, is_internal: bool) -> bool;

    /// Makes the calling thread a host thread of its own, ordered with others only by [`host_release`] and
    /// [`host_acquire`]. A thread that is not introduced becomes a host thread at its first call: it starts with the
    /// knowledge of all threads, and older threads get its knowledge when it ends.
    ///
    /// [`host_release`]: Self::host_release
    /// [`host_acquire`]: Self::host_acquire
    fn introduce_thread(&self, name: &str);

    /// Returns the knowledge of the calling thread, to be passed to another thread: at a spawn, at the end of a thread that
    /// is joined, or with a message. In a host function it is the knowledge of the work that precedes the function.
    fn host_release(&self) -> HostClock;

    /// Adds the knowledge in `clock`, another thread's, to the calling thread's knowledge.
    fn host_acquire(&self, clock: &HostClock);
}

thread_local! {
    /// The call that contains the work of this thread.
    static WITHIN: Cell<Option<Label>> = const { Cell::new(None) };
}

/// The guard of [`within`]: while it lives, the calling thread's work is part of a call.
#[must_use = "work is part of the call only while this lives"]
#[derive(Debug)]
pub struct Within {
    is_outermost: bool,
    /// Keeps the guard on the thread that created it.
    thread: PhantomData<*const ()>,
}

/// Marks the work that the calling thread submits from now on as part of a call of the program, until the returned guard is
/// dropped. Reports name both: the backward pass submits operators that were written in the forward pass, and a wait before
/// the line there would be useless. A call within a call is part of the outermost one.
pub fn within(call: Label) -> Within {
    let is_outermost = WITHIN.get().is_none();
    if is_outermost {
        WITHIN.set(Some(call));
    }
    Within { is_outermost, thread: PhantomData }
}

impl Drop for Within {
    fn drop(&mut self) {
        if self.is_outermost {
            WITHIN.set(None);
        }
    }
}

/// Returns the call that contains the calling thread's work, if there is one.
pub fn current_call() -> Option<Label> {
    WITHIN.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_within_a_call_is_part_of_the_outermost() {
        let now = || current_call().map(|label| label.operator);
        assert_eq!(now(), None);
        let outer = within(Label::here("outer"));
        let inner = within(Label::here("inner"));
        assert_eq!(now(), Some("outer"));
        drop(inner);
        assert_eq!(now(), Some("outer"));
        drop(outer);
        assert_eq!(now(), None);
    }
}
