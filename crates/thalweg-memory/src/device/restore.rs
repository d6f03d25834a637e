//! Recreating a recorded state: segments where there are none, and blocks at their recorded places.
//!
//! Only a replay of `thalweg-memory-tools` uses this, when its trace does not begin with the start of the program. Requests
//! cannot recreate the state: they are rounded, merged and served by the best fit.
//!
//! Restoring a private pool that a graph has changed is in `checkpoint`.

use std::sync::Arc;

use super::allocator::DeviceAllocator;
use super::arena::Arena;
use super::block::Block;
use super::blocks::{BlockId, BlockUse};
use crate::error::AllocationError;
use crate::ids::{SizeClass, StreamId};
use crate::policy::{MAX_REQUEST_BYTES, MIN_BLOCK_BYTES, Policy, Request};
use crate::settings::Settings;

/// Returns the function by which `settings` round the size of a request.
pub fn rounding(settings: &Settings) -> impl Fn(u64) -> u64 {
    let policy = Policy::new(settings, true, false);
    move |requested_bytes| policy.round_size(requested_bytes.min(MAX_REQUEST_BYTES))
}

/// The arena that serves a stream, in the pool that allocations are directed to now.
#[derive(Clone)]
pub struct RestoreArena(Arc<Arena>);

impl RestoreArena {
    /// Returns the size of a block for `requested_bytes`, and whether the excess of a larger block is split off.
    pub fn rounding(&self, requested_bytes: u64) -> (u64, bool) {
        let state = self.0.lock();
        let size_bytes = state.request(requested_bytes.clamp(1, MAX_REQUEST_BYTES)).size_bytes;
        (size_bytes, size_bytes < state.policy.max_split_bytes)
    }

    /// Returns the stream.
    pub fn stream(&self) -> StreamId {
        self.0.key.stream
    }
}

impl DeviceAllocator {
    /// Returns the arena that serves a stream.
    ///
    /// # Errors
    /// If the pool that allocations are directed to has lost its last reference.
    pub fn restore_arena(&self, stream: StreamId) -> Result<RestoreArena, AllocationError> {
        self.arena_for(stream).map(RestoreArena)
    }

    /// Returns the arena of a block.
    pub fn restore_arena_of(&self, block: &Block) -> RestoreArena {
        RestoreArena(Arc::clone(block.place().0))
    }

    /// Takes a plain segment from the upstream; all of it is free.
    pub fn restore_plain(
        &self,
        arena: &RestoreArena,
        class: SizeClass,
        bytes: u64,
    ) -> Result<u64, AllocationError> {
        let arena = &arena.0;
        let address =
            arena.take_segment(bytes).map_err(|error| AllocationError::upstream("allocate", error))?;
        let mut central = self.central();
        let mut state = arena.lock();
        let span = state.add_plain(arena, &mut central.ledger, class, address, bytes);
        let registration = state.blocks.tag(span.block).registration;
        state.note_free(arena);
        state.free[class as usize].insert(span, registration);
        Ok(address)
    }

    /// Reserves addresses for an expandable segment, and maps these ranges of it, given as (offset, bytes); they are free.
    /// Returns the address of the segment; `None` if the ranges are not whole pages or do not fit, or the upstream has no room.
    /// Ranges that were mapped before stay mapped.
    pub fn restore_expandable(
        &self,
        arena: &RestoreArena,
        class: SizeClass,
        ranges: &[(u64, u64)],
    ) -> Result<Option<u64>, AllocationError> {
        let arena = &arena.0;
        let upstream = Arc::clone(&arena.common.upstream);
        let Some(memory) = upstream.virtual_memory() else { return Ok(None) };
        let ends = ranges.iter().map(|(offset, bytes)| offset.saturating_add(*bytes));
        let reserve_bytes = self.segment_reserve_bytes(arena.key.stream, ends.max().unwrap_or(0))?;
        let Some(reserve_bytes) = reserve_bytes else { return Ok(None) };
        let mut central = self.central();
        let mut state = arena.lock();
        if !state.add_expandable(class, reserve_bytes, memory)? {
            return Ok(None);
        }
        let Some(base) = state.last_unmapped(class) else { return Ok(None) };
        state.note_free(arena);
        for &(offset, bytes) in ranges {
            if !state.map_at(base + offset, bytes, class, memory)? {
                return Ok(None);
            }
            central.ledger.bytes_taken(arena.key.owner, class, bytes);
        }
        Ok(Some(base))
    }

    /// Hands out `size_bytes` at `address`, not rounded, if that range is free and large enough for the request.
    pub fn restore_block(
        &self,
        arena: &RestoreArena,
        address: u64,
        size_bytes: u64,
        requested_bytes: u64,
        stream: StreamId,
    ) -> Option<Block> {
        let arena = &arena.0;
        let size_bytes = size_bytes.checked_next_multiple_of(MIN_BLOCK_BYTES)?;
        if size_bytes < requested_bytes || !address.is_multiple_of(MIN_BLOCK_BYTES) {
            return None;
        }
        let mut state = arena.lock();
        let request = Request { size_bytes, ..state.request(requested_bytes.max(1)) };
        let span = state.take_at(arena, &request, address).ok()?;
        drop(state);
        Some(Block::new(Arc::clone(arena), span, requested_bytes, stream))
    }

    /// Returns the number of free bytes right after a block.
    pub fn restore_free_after(&self, block: &Block) -> u64 {
        let (arena, Some(block)) = block.place() else { return 0 };
        let state = arena.lock();
        let is_free = |block: &BlockId| matches!(state.blocks.usage(*block), BlockUse::Free { .. });
        state.blocks.next(block).filter(is_free).map_or(0, |next| state.blocks.span(next).size_bytes)
    }
}
