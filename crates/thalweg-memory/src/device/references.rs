//! The references to an arena that freed blocks leave in the arena's locked state.
//!
//! A block refers to its arena, so that its memory outlives the allocator, and counting references is atomic. So a freed block
//! leaves its reference in the arena, and the next block takes it from there: under the lock this is a plain counter. In
//! addition, the thread that uses the arena takes its lock by plain stores. So an allocation and a free that the arena serves
//! execute no atomic read-modify-write.
//!
//! This makes the arena its own owner. So the code that keeps arenas ([`DeviceAllocator`](crate::DeviceAllocator),
//! [`Pools`](super::pools::Pools)) closes an arena that it drops: the references in it are dropped, no more are left, and the
//! arena is freed with its last block.
//!
//! Counting references instead costs 7 ns on top of a pair of 24 (`docs/record/`, 2026-11-22). The guard of the lock is not
//! passed through a function of this module, because that costs as much.

use std::sync::Arc;

use thalweg_lock::DeferredReferences;

use super::arena::Arena;

/// The references that blocks left in the arena, and whether more may be left. See the [module's essay](self).
#[derive(Default)]
pub(crate) struct LeftReferences {
    left: DeferredReferences<Arena>,
    is_closed: bool,
}

impl LeftReferences {
    /// Returns a reference for a block: one that was left, otherwise a new one.
    #[inline]
    pub(crate) fn take(&mut self, arena: &Arc<Arena>) -> Arc<Arena> {
        self.left.pop().unwrap_or_else(|| Arc::clone(arena))
    }

    /// Returns the pile on which a freed block leaves its reference, unless [`is_closed`](Self::is_closed).
    #[inline]
    pub(crate) fn left(&mut self) -> &mut DeferredReferences<Arena> {
        &mut self.left
    }

    /// Returns whether references are dropped instead of left.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Stops accepting references. Returns those that were left, to be dropped after the arena is unlocked.
    pub(crate) fn close(&mut self) -> DeferredReferences<Arena> {
        self.is_closed = true;
        self.left.take()
    }
}
