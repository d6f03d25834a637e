//! The references to an arena that freed blocks leave behind its lock.
//!
//! A block refers to its arena, so that its memory outlives the allocator, and counting references is atomic. So a block that is
//! freed leaves its reference with the arena, and the next block takes it from there: behind the lock that is a plain number.
//! With that, and a lock that the thread that uses the arena takes by plain stores, a pair of an allocation and a free that the
//! arena serves has no atomic read-modify-write.
//!
//! That makes the arena its own owner. So the code that keeps arenas ([`DeviceAllocator`](crate::DeviceAllocator),
//! [`Pools`](super::pools::Pools)) closes one that it gives up: what was left is dropped, nothing is left any more, and the arena
//! goes with its last block.
//!
//! Counting references instead costs 7 ns beside a pair of 24 (`docs/record/`, 2026-11-22). The guard of the lock is not moved
//! through a function of this module on the way: that costs as much.

use std::sync::Arc;

use thalweg_lock::Pile;

use super::arena::Arena;

/// The references that were left, and whether more may be. See the [module's essay](self).
#[derive(Default)]
pub(crate) struct LeftReferences {
    left: Pile<Arena>,
    is_closed: bool,
}

impl LeftReferences {
    /// Returns a reference for a block: one that was left, or else a new one.
    #[inline]
    pub(crate) fn take(&mut self, arena: &Arc<Arena>) -> Arc<Arena> {
        self.left.pop().unwrap_or_else(|| Arc::clone(arena))
    }

    /// Returns where a block leaves its reference, unless [`is_closed`](Self::is_closed).
    #[inline]
    pub(crate) fn left(&mut self) -> &mut Pile<Arena> {
        &mut self.left
    }

    /// Returns whether references are dropped instead of left.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Ends the leaving of references. Returns those that were left, to be dropped when the arena is unlocked.
    pub(crate) fn close(&mut self) -> Pile<Arena> {
        self.is_closed = true;
        self.left.take()
    }
}
