//! [`Block`]: device memory held by a caller.
//!
//! A block carries everything needed to use it and to free it: its arena, address, sizes, stream, its identifier in the arena,
//! and the uses by other streams. So neither freeing nor [`record_use`](Block::record_use) needs a lookup by address.

use std::fmt;
use std::sync::Arc;

use thalweg_lock::{Mutex, MutexGuard};

use super::arena::Arena;
use super::blocks::{BlockId, Span};
use super::pending::{Uses, use_of};
use super::reentry;
use crate::ids::{PoolId, StreamId};

/// Device memory held by a caller. Dropping the block frees it; this never fails and never waits.
///
/// The memory may be used on [`stream`](Self::stream) without further precautions, even by work that is still queued when the
/// block is dropped. The caller must order work on another stream against it, and must record that use before the drop, with
/// [`record_use`](Self::record_use) or [`record_stream`](Self::record_stream).
pub struct Block {
    /// `Some` until the block is dropped, which moves the reference to the arena.
    arena: Option<Arc<Arena>>,
    /// [`BlockId::NONE`] for a null block.
    block: BlockId,
    address: u64,
    size_bytes: u64,
    requested_bytes: u64,
    /// The stream of the block; not the arena's stream if the block is borrowed from another stream.
    stream: StreamId,
    /// Uses by other streams, nearly always `None`. Boxed because a block is moved often and should be small.
    uses: Mutex<Option<Box<Uses>>>,
}

impl Block {
    #[inline]
    pub(crate) fn new(arena: Arc<Arena>, span: Span, requested_bytes: u64, stream: StreamId) -> Self {
        let Span { block, address, size_bytes } = span;
        let uses = Mutex::new(None);
        Self { arena: Some(arena), block, address, size_bytes, requested_bytes, stream, uses }
    }

    pub(crate) fn null(arena: Arc<Arena>) -> Self {
        let stream = arena.key.stream;
        Self::new(arena, Span::NULL, 0, stream)
    }

    /// Returns the address: a multiple of 512, or 0 for a null block.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the size: the requested size, rounded up. A cached block that was not split may be larger still.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the number of bytes that were requested.
    pub fn requested_bytes(&self) -> u64 {
        self.requested_bytes
    }

    /// Returns the stream that the block was allocated on.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Returns the private pool that the memory belongs to; `None` for the shared one.
    pub fn pool(&self) -> Option<PoolId> {
        self.arena().key.owner.pool()
    }

    /// Returns whether this is a null block, which holds no memory.
    pub fn is_null(&self) -> bool {
        self.block == BlockId::NONE
    }

    /// Records that `stream` uses the memory too. When the block is dropped, an event is recorded on `stream` after all its work
    /// so far, and the memory is not reused before that event has passed, or before the block's own stream waits for it. On the
    /// block's own stream this is a no-op, as is a second call for the same stream. Calls neither the allocator nor the device.
    pub fn record_stream(&self, stream: StreamId) {
        let is_other = stream != self.stream;
        if is_other && !self.is_null() {
            use_of(self.uses().get_or_insert_default(), stream).note(self.arena().common.is_capturing());
        }
    }

    /// Declares that the work submitted to `stream` so far is the last, until the next call, that uses the memory: an event is
    /// recorded there *now*. The memory is not reused before the event has passed, or before the block's own stream waits for it;
    /// later work of `stream` does not delay the reuse. So the block may be dropped at any time, on any thread.
    ///
    /// On the block's own stream this is a no-op. Of several calls for one stream only the last counts. If an event cannot be
    /// recorded now, this is the same as [`record_stream`](Self::record_stream).
    ///
    /// During a capture the call records the position in the graph: within the capture, the memory is reused where the graph
    /// itself orders the new use after the old one.
    pub fn record_use(&self, stream: StreamId) {
        if stream == self.stream || self.is_null() {
            return;
        }
        if reentry::check().is_err() {
            return self.record_stream(stream);
        }
        let mut uses = self.uses();
        // Held so that no capture begins between the check and the record.
        let _state = self.arena().state();
        let context = self.arena().common.event_context();
        let one = use_of(uses.get_or_insert_default(), stream);
        if one.at_free {
            return;
        }
        // Until there is an event or a mark, at least the use is noted, in case the call below panics.
        let was_eager = one.eager;
        one.note(context.capturing);
        if context.capturing {
            if let Some(marks) = context.marks(stream) {
                one.marks = marks;
                one.at_free = false;
            }
            return;
        }
        if let Ok(recorded) = context.record(stream) {
            one.at_free = false;
            one.eager = was_eager;
            let kept = recorded;
            if let Some(before) = one.event.replace(kept) {
                context.events.release_event(before.event);
            }
        }
    }

    /// Returns whether, according to the recorded uses, no stream but this one has work that uses the memory: `stream` is the
    /// block's own, and no use by another was recorded.
    pub fn is_used_only_on(&self, stream: StreamId) -> bool {
        stream == self.stream && self.uses().is_none()
    }

    /// Leaks the memory instead of freeing it: for a forked child, which does not own it, and where a drop could wait for a
    /// thread that does not exist there. Call this right before the drop, and no other method in between.
    pub fn abandon(&mut self) {
        std::mem::forget(self.arena.take());
    }

    /// Moves the block out of a value that is being dropped, so that its memory is freed later: for checks that delay the reuse
    /// of freed memory. Its [watches](crate::LivenessWatch) are notified now. Do not call another method of the remaining value.
    /// Returns `None` if the block is of a private pool and a capture is under way: the capture must then be able to reuse the
    /// memory, as every replay will.
    pub fn hold_back(&mut self) -> Option<Self> {
        if self.pool().is_some() && self.arena().common.is_capturing() {
            return None;
        }
        let arena = self.arena.take();
        if let (Some(arena), Some(block)) = (&arena, self.block.some()) {
            arena.lock().notify_watches(block);
        }
        let uses = Mutex::new(self.uses().take());
        Some(Self { arena, uses, ..*self })
    }

    /// Returns the block's arena, and its identifier there.
    pub(crate) fn place(&self) -> (&Arc<Arena>, Option<BlockId>) {
        (self.arena(), self.block.some())
    }

    fn arena(&self) -> &Arc<Arena> {
        self.arena.as_ref().expect("a block has its arena until it is dropped")
    }

    fn uses(&self) -> MutexGuard<'_, Option<Box<Uses>>> {
        self.uses.lock()
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        let (Some(block), Some(arena)) = (self.block.some(), self.arena.take()) else { return };
        let uses = self.uses.get_mut();
        if uses.is_none() && self.stream == arena.key.stream {
            Arena::take_back(arena, block, Uses::new());
        } else {
            let uses = uses.take().map(|uses| *uses).unwrap_or_default();
            self.give_back_after(arena, block, uses);
        }
    }
}

impl Block {
    #[cold]
    fn give_back_after(&self, arena: Arc<Arena>, block: BlockId, mut uses: Uses) {
        if self.stream != arena.key.stream {
            // A borrowed block: its owner gets it back only after all work that the borrower has been given so far.
            use_of(&mut uses, self.stream).note(false);
            arena.forget_own_use(&mut uses);
        }
        Arena::take_back(arena, block, uses);
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("address", &format_args!("{:#x}", self.address))
            .field("size_bytes", &self.size_bytes)
            .field("requested_bytes", &self.requested_bytes)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
