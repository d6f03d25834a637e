//! Without a cache of our own: the driver's stream-ordered allocator, or plain memory.
//!
//! `backend:cudaMallocAsync` gives every request to the driver, whose allocator caches and orders by itself; with caching
//! turned off every request takes a segment of its own and gives it back. Both keep the same books as the caching allocator:
//! blocks, statistics, snapshots and observers are those of an arena in which every block is a segment.
//!
//! A block that other streams used is given back in stream order when its own stream has waited for them, on the device;
//! plain memory is given back when their events have passed.

use std::sync::Arc;

use crate::allocator::DeviceAllocator;
use crate::arena::{Arena, ArenaState, Request, Tag};
use crate::blocks::{BlockId, BlockUse, Span};
use crate::error::AllocationError;
use crate::gauges::Quantity;
use crate::grow::found;
use crate::order::Uses;
use crate::snapshot::Action;
use crate::stats::{ByPool, DeviceStatistics};

impl DeviceAllocator {
    /// A block of its own for `request`.
    pub(crate) fn allocate_directly(
        &self,
        arena: &Arc<Arena>,
        request: &Request,
    ) -> Result<Span, AllocationError> {
        if let Some(span) = self.try_directly(arena, request)? {
            return Ok(span);
        }
        // The driver may hold memory that was freed in stream order and is not free yet.
        self.cold().ledger.statistics.num_alloc_retries += 1;
        if !self.common().is_capturing() {
            arena.synchronize()?;
            if let Some(driver) = self.common().upstream.stream_ordered() {
                driver.synchronize().map_err(|error| AllocationError::upstream("synchronize", error))?;
                driver.trim(0).map_err(|error| AllocationError::upstream("trim", error))?;
            }
            if let Some(span) = self.try_directly(arena, request)? {
                return Ok(span);
            }
        }
        Err(self.out_of_memory(&mut self.cold(), arena, request))
    }

    fn try_directly(&self, arena: &Arc<Arena>, request: &Request) -> Result<Option<Span>, AllocationError> {
        let upstream = &self.common().upstream;
        let allowed = self.cold().ledger.allowed_bytes;
        let live = || -> u64 {
            let arenas = self.common().all_arenas();
            arenas.iter().map(|arena| arena.lock().gauges.current(Quantity::ActiveBytes)).sum()
        };
        if allowed.is_some_and(|allowed| live().saturating_add(request.size_bytes) > allowed) {
            return Ok(None);
        }
        let address = match upstream.stream_ordered().filter(|_| arena.lock().policy.stream_ordered) {
            Some(driver) => {
                found("allocate_async", driver.allocate_async(request.size_bytes, arena.home.stream))?
            }
            None => found("allocate", upstream.allocate(request.size_bytes, arena.home.stream))?,
        };
        let Some(address) = address else { return Ok(None) };
        let mut state = arena.lock();
        let tag = Tag { class: request.class, grows: false, registration: 0 };
        let usage = BlockUse::Free { since: 0 };
        let span = state.blocks.add_segment(address, request.size_bytes, usage, tag);
        state.tell_gained(arena, Action::SegmentAlloc, span, request.stack);
        Ok(Some(state.hand_out(arena, request, span)))
    }

    /// What is reserved is what the driver's pool holds, or what is allocated.
    pub(crate) fn complete_directly(&self, statistics: &mut DeviceStatistics) {
        let settings = self.settings();
        if settings.is_cached_here() {
            return;
        }
        statistics.reserved_bytes = statistics.active_bytes;
        if let Some(driver) = self.common().upstream.stream_ordered().filter(|_| settings.caching())
            && let Ok(bytes) = driver.reserved_bytes()
        {
            let ByPool { all, .. } = &mut statistics.reserved_bytes;
            all.current = bytes;
            all.peak = all.peak.max(bytes);
        }
    }
}

impl ArenaState {
    /// Takes a block back that no cache will hold.
    pub(crate) fn free_directly(&mut self, arena: &Arena, block: BlockId, uses: Uses) {
        if uses.is_empty() {
            self.release_directly(arena, block);
            return;
        }
        let around = arena.common.surroundings();
        self.order.free(block, uses, &around);
        if self.policy.stream_ordered {
            // If the stream cannot be made to wait, the events are polled for.
            let _ = self.order.order_before(block, arena.home.stream, &around);
        }
        self.collect_ready(arena);
    }

    /// Gives a block back that nothing uses any more.
    pub(crate) fn release_directly(&mut self, arena: &Arena, block: BlockId) {
        let Span { address, size_bytes, .. } = self.blocks.span(block);
        let upstream = &arena.common.upstream;
        let freed = match upstream.stream_ordered().filter(|_| self.policy.stream_ordered) {
            Some(driver) => driver.free_async(address, arena.home.stream),
            None => upstream.free(address, size_bytes, arena.home.stream),
        };
        if freed.is_err() {
            // It is tried again behind a later event.
            let again = vec![crate::order::Use::noted(arena.home.stream)];
            self.order.free(block, again, &arena.common.surroundings());
            return;
        }
        let Tag { class, .. } = self.blocks.tag(block);
        let requested_bytes = self.blocks.requested_bytes(block).expect("what is given back was taken");
        self.blocks.release(block, 0);
        self.blocks.remove_segment(block);
        let gauges = &mut self.gauges;
        gauges.subtract(class, Quantity::Active, 1);
        gauges.subtract(class, Quantity::ActiveBytes, size_bytes);
        gauges.subtract(class, Quantity::RequestedBytes, requested_bytes);
        arena.common.totals.changed(arena.number, gauges, class);
    }
}
