//! [`Instrument`]: what those above a driver tell a checker, because no driver sees it.
//!
//! A caching allocator cuts its memory into blocks and gives them out again without a call of the driver, and host threads
//! wait for one another without it. Code that does so says so here, if [`Driver::instrument`](crate::Driver::instrument) gives
//! a sanitizer to say it to.

use std::any::Any;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::{Label, StreamHandle};

/// The kind of memory of a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BlockKind {
    /// Device memory, which belongs to the work of a stream: after the free, later work of that stream may have it at once.
    Device,
    /// Device memory of a graph's pool, which a caller holds until a replay of the graph writes it again. Else like `Device`.
    GraphOutput,
    /// Pinned host memory, which belongs to the host: after the free, any request may have it at once.
    Pinned,
}

impl BlockKind {
    /// Returns whether it belongs to the work of a stream.
    pub fn is_of_stream(self) -> bool {
        matches!(self, Self::Device | Self::GraphOutput)
    }
}

/// The time for which a block is kept for another stream's work.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UseKind {
    /// Until the work is done that the stream has when the block is freed (`record_stream`).
    UntilFree,
    /// Until the work is done that the stream has now (`record_use`).
    SoFar,
}

/// The knowledge of a host thread at some moment: the work that comes before all that it does next.
///
/// Opaque: only the [`Instrument`] that gave it can read it.
#[derive(Clone, Debug)]
pub struct HostClock(pub Arc<dyn Any + Send + Sync>);

/// The events that a sanitizer must be told of.
///
/// None of this changes what a program does, nothing blocks, and what makes no sense (a block that was not announced, say)
/// is ignored.
pub trait Instrument: Send + Sync {
    /// Reports that a caching allocator has given a block to a caller: `bytes` from the address `start` on. It was asked for
    /// on `stream`.
    fn block_allocated(&self, start: u64, bytes: u64, kind: BlockKind, stream: StreamHandle, label: Label);

    /// Reports that the block at this address is about to be freed. Call this before the allocator hears of it. Where that
    /// happens is mostly not known: a drop does not know its caller.
    fn block_freed(&self, start: u64, label: Option<Label>);

    /// Reports that the allocator was told that `stream` uses the block, and keeps it as `kind` says.
    fn block_recorded(&self, start: u64, stream: StreamHandle, kind: UseKind, label: Label);

    /// Declares that the graph that `stream` captures may use memory of earlier captures whenever it is launched, freed or
    /// not, and graph outputs: the program that launches it is responsible that the same bytes are there again then.
    fn capture_vouched(&self, stream: StreamHandle);

    /// Says where the program made a stream. Of a stream that it is given again later, the first place counts.
    fn stream_made(&self, stream: StreamHandle, label: Label);

    /// Names a stream for reports. Streams without a name are numbered in the order of their making.
    fn name_stream(&self, stream: StreamHandle, name: &str);

    /// Sets the site of the next call of this thread that has no label of its own: a graph launch, a stream's wait for an
    /// event, or the host's reads and writes of pinned memory.
    fn label_next(&self, label: Label);

    /// Says whether the calling thread's calls from now on are an allocator's own, and gives what was so before. What such a call
    /// waits for, or asks about and finds done, is over, so its memory may be used again; but it orders nothing of the
    /// program, which knows nothing of that call and may not count on it.
    fn exchange_internal(&self, is_internal: bool) -> bool;

    /// Makes the calling thread a host thread of its own, ordered with others by [`host_release`] and [`host_acquire`]
    /// alone. A thread that is not introduced is a host thread of its own from its first call on: it knows what any thread
    /// knew then, and older threads know what it knew when it ends.
    ///
    /// [`host_release`]: Self::host_release
    /// [`host_acquire`]: Self::host_acquire
    fn introduce_thread(&self, name: &str);

    /// Returns what the calling thread knows, to be handed to another: at a spawn, at the end of a thread that is joined, with
    /// a message. In a host function: what the function comes after.
    fn host_release(&self) -> HostClock;

    /// Gives the calling thread the knowledge of another.
    fn host_acquire(&self, clock: &HostClock);
}

thread_local! {
    /// The call that the work of this thread is part of.
    static WITHIN: Cell<Option<Label>> = const { Cell::new(None) };
}

/// The guard of [`within`]: while it lives, the calling thread's work is part of a call.
#[must_use = "work is part of the call only while this lives"]
#[derive(Debug)]
pub struct Within {
    is_outermost: bool,
    /// It belongs to the thread that made it.
    thread: PhantomData<*const ()>,
}

/// Says that the work which the calling thread submits from now on is part of a call of the program, until what this gives is
/// dropped. Reports name both: the backward pass submits what was written in the forward pass, and a wait before the
/// line there would be of no use. A call within a call is part of the outermost.
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

/// Returns the call that the calling thread's work is part of, if it is part of one.
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
