//! [`Block`]: device memory in a caller's hands.
//!
//! A block carries all that is needed to use it and to free it: its arena, address, sizes, stream, its name there, and
//! the uses by other streams. So neither freeing nor [`record_use`](Block::record_use) looks anything up by address.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::arena::Arena;
use super::blocks::{BlockId, Span};
use super::pending::{Uses, use_of};
use super::reentry;
use crate::ids::{PoolId, StreamId};

/// Device memory in the caller's hands. Dropping it frees it, without failing and without waiting.
///
/// The memory may be used on [`stream`](Self::stream) without further ado, also by work that is still queued when the block
/// is dropped. Work on another stream must be ordered against it by the caller, and be told of before the drop, by
/// [`record_use`](Self::record_use) or [`record_stream`](Self::record_stream).
pub struct Block {
    /// There until the block is dropped, which leaves it to the arena.
    arena: Option<Arc<Arena>>,
    /// [`BlockId::NONE`] for a null block.
    block: BlockId,
    address: u64,
    size_bytes: u64,
    requested_bytes: u64,
    /// Not the arena's if the block is borrowed from another stream.
    stream: StreamId,
    /// Nearly always none: a block is small, because it is moved about a lot.
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

    /// Returns where the memory begins: a multiple of 512, or 0 for a null block.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns how many bytes there are: what was asked for, rounded up. A block that was cached whole may be larger still.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns how many bytes were asked for.
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

    /// Says that `stream` uses the memory too. When the block is dropped, an event is recorded there, behind all its work so
    /// far, and the memory is not used again before that has passed, or before its own stream waits for it. On the block's
    /// own stream it is a no-op, and so it is the second time. Touches neither the allocator nor the device.
    pub fn record_stream(&self, stream: StreamId) {
        let is_other = stream != self.stream;
        if is_other && !self.is_null() {
            use_of(self.uses().get_or_insert_default(), stream).note(self.arena().common.is_capturing());
        }
    }

    /// Says that what `stream` has been given so far is the last, until the next call, that it does with the memory: an event
    /// is recorded there *now*. The memory is not used again before it has passed, or before its own stream waits for it;
    /// whatever else `stream` does meanwhile holds nothing up. So the block may be dropped at any time, on any thread.
    ///
    /// On the block's own stream it is a no-op. Many calls for one stream are as good as the last one. If an event cannot be
    /// recorded now, this is [`record_stream`](Self::record_stream).
    ///
    /// During a capture it is a note of the place in the graph: within the capture, the memory is used again where the graph
    /// itself orders the new use behind the old one.
    pub fn record_use(&self, stream: StreamId) {
        if stream == self.stream || self.is_null() {
            return;
        }
        if reentry::check().is_err() {
            return self.record_stream(stream);
        }
        let mut uses = self.uses();
        // Held so that no capture begins between the look and the record.
        let _state = self.arena().state();
        let context = self.arena().common.event_context();
        let one = use_of(uses.get_or_insert_default(), stream);
        if one.at_free {
            return;
        }
        // Until there is an event, or a mark, the use is noted at least: a call that panics tells of nothing else.
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

    /// Returns whether no stream but this one was given work that uses the memory, as far as was said: it is the block's own, and no
    /// use was recorded.
    pub fn is_used_only_on(&self, stream: StreamId) -> bool {
        stream == self.stream && self.uses().is_none()
    }

    /// Gives the memory up for good instead of back: for a forked child, to which it does not belong, and where a drop could wait
    /// for a thread that does not exist there. Call it right before the drop, and no other method in between.
    pub fn abandon(&mut self) {
        std::mem::forget(self.arena.take());
    }

    /// Takes the block out of a value that is being dropped, so that its memory goes back later: for checks that hold freed
    /// memory back. Its [watches](crate::LivenessWatch) are notified now. Call no other method of what is left. Returns `None` if
    /// the block is of a private pool and a capture is under way: then what is captured next gets the memory, as it does in every
    /// replay.
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

    /// Returns its arena, and its name there.
    pub(crate) fn place(&self) -> (&Arc<Arena>, Option<BlockId>) {
        (self.arena(), self.block.some())
    }

    fn arena(&self) -> &Arc<Arena> {
        self.arena.as_ref().expect("a block has its arena until it is dropped")
    }

    fn uses(&self) -> MutexGuard<'_, Option<Box<Uses>>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        let (Some(block), Some(arena)) = (self.block.some(), self.arena.take()) else { return };
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        if uses.is_none() && self.stream == arena.key.stream {
            Arena::take_back(arena, block, Uses::new());
        } else {
            let uses = uses.take().map(|uses| *uses).unwrap_or_default();
            self.give_back_behind(arena, block, uses);
        }
    }
}

impl Block {
    #[cold]
    fn give_back_behind(&self, arena: Arc<Arena>, block: BlockId, mut uses: Uses) {
        if self.stream != arena.key.stream {
            // A borrowed block: all that its borrower was given so far comes before its owner has it back.
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
