//! Allocation without a cache of our own: the driver's stream-ordered allocator, or plain memory.
//!
//! `backend:cudaMallocAsync` passes every request to the driver, whose allocator caches and orders by itself; with caching turned
//! off every request takes a segment of its own and returns it when it is freed. Both keep the same books as the caching
//! allocator: blocks, statistics, snapshots and observers are those of an arena in which every block is a segment.
//!
//! A block that other streams used is freed in stream order after its own stream has waited for them, on the device; plain memory
//! is freed when their events have passed.
//!
//! While a capture is under way nothing waits for the device, and freed blocks are returned when the capture is over, except for
//! the memory that the captured graph itself allocates and frees.

use std::sync::Arc;

use thalweg_snapshot::Action;

use super::allocator::DeviceAllocator;
use super::arena::{Arena, ArenaState};
use super::bins;
use super::blocks::{BlockId, BlockUse, Span};
use super::expandable::found;
use super::gauges::Quantity;
use super::pending::Uses;
use crate::error::AllocationError;
use crate::ids::SegmentKind;
use crate::policy::Request;
use crate::settings::Settings;
use crate::statistics::stats::{ByPool, DeviceStatistics};
use crate::upstream::StreamOrdered;

impl DeviceAllocator {
    /// Returns a new block in its own segment for `request`.
    pub(crate) fn allocate_directly(
        &self,
        arena: &Arc<Arena>,
        request: &Request,
    ) -> Result<Span, AllocationError> {
        if let Some(span) = self.try_directly(arena, request)? {
            return Ok(span);
        }
        // The driver may hold memory that was freed in stream order and is not free yet. While the lock is held no capture
        // begins.
        let mut central = self.central();
        central.ledger.statistics.num_alloc_retries += 1;
        if !self.common().is_capturing() {
            for other in self.common().all_arenas() {
                other.synchronize()?;
            }
            self.trim_driver()?;
            drop(central);
            if let Some(span) = self.try_directly(arena, request)? {
                return Ok(span);
            }
            central = self.central();
        }
        Err(self.out_of_memory(&mut central, arena, request))
    }

    /// Releases the free memory of the driver's own allocator to the system. *Blocks* until the device is idle. No capture may be
    /// under way: it would be invalidated.
    pub(crate) fn trim_driver(&self) -> Result<(), AllocationError> {
        assert!(!self.common().is_capturing(), "nothing waits for the device while a capture is under way");
        let Some(driver) = self.driver_pool(&self.settings()) else { return Ok(()) };
        driver.synchronize().map_err(|error| AllocationError::upstream("synchronize", error))?;
        driver.trim(0).map_err(|error| AllocationError::upstream("trim", error))
    }

    fn try_directly(&self, arena: &Arc<Arena>, request: &Request) -> Result<Option<Span>, AllocationError> {
        let upstream = &self.common().upstream;
        let allowed = self.central().ledger.allowed_bytes;
        let live = || -> u64 {
            let arenas = self.common().all_arenas();
            arenas.iter().map(|arena| arena.lock().gauges.current(Quantity::ActiveBytes)).sum()
        };
        if allowed.is_some_and(|allowed| live().saturating_add(request.size_bytes) > allowed) {
            return Ok(None);
        }
        let (bytes, stream) = (request.size_bytes, arena.key.stream);
        let address = match upstream.stream_ordered().filter(|_| arena.lock().policy.stream_ordered) {
            Some(driver) => {
                let checked = |address| bins::checked(address, bytes, || driver.free_async(address, stream));
                found("allocate_async", driver.allocate_async(bytes, stream).and_then(checked))?
            }
            None => {
                let checked =
                    |address| bins::checked(address, bytes, || upstream.free(address, bytes, stream));
                found("allocate", upstream.allocate(bytes, stream).and_then(checked))?
            }
        };
        let Some(address) = address else { return Ok(None) };
        let mut state = arena.lock();
        let tag = SegmentKind { class: request.class, is_expandable: false, registration: 0 };
        let usage = BlockUse::Free { since: 0 };
        let span = state.blocks.add_segment(address, request.size_bytes, usage, tag);
        state.report_gained(arena, Action::SegmentAlloc, span, request.stack);
        Ok(Some(state.hand_out(arena, request, span)))
    }

    /// Completes statistics without a cache: the reserved bytes are the reserved bytes of the driver's pool, or, without a pool,
    /// the allocated bytes.
    pub(crate) fn complete_directly(&self, statistics: &mut DeviceStatistics) {
        let settings = self.settings();
        if settings.is_cached_here() {
            return;
        }
        // Every block is a segment of its own.
        statistics.reserved_bytes = statistics.active_bytes;
        statistics.segment = statistics.active;
        statistics.num_device_alloc = statistics.active.all.allocated;
        statistics.num_device_free = statistics.active.all.freed;
        if let Some(driver) = self.driver_pool(&settings)
            && let Ok(reserved) = driver.reserved()
        {
            let ByPool { all, .. } = &mut statistics.reserved_bytes;
            (all.current, all.peak) = (reserved.current_bytes, reserved.peak_bytes);
        }
    }

    /// Resets the peak that the driver's own allocator keeps, if that allocator is used. A failure leaves the peak as it was.
    pub(crate) fn reset_driver_peak(&self) {
        if let Some(driver) = self.driver_pool(&self.settings()) {
            let _ = driver.reset_reserved_peak();
        }
    }

    /// Returns the driver's own allocator, if it is used.
    fn driver_pool(&self, settings: &Settings) -> Option<&dyn StreamOrdered> {
        let is_asked = settings.caching() && !settings.is_cached_here();
        self.common().upstream.stream_ordered().filter(|_| is_asked)
    }
}

impl ArenaState {
    /// Takes a block back that is not cached.
    pub(crate) fn free_directly(&mut self, arena: &Arena, block: BlockId, uses: Uses) {
        let context = arena.common.event_context();
        if !uses.is_empty() {
            self.note_waiting(arena);
        }
        self.pending.free(block, uses, &context);
        if self.policy.stream_ordered {
            // If the stream cannot be made to wait, the events are polled.
            let _ = self.pending.order_before(block, arena.key.stream, &context);
        }
        self.collect_ready(arena);
    }

    /// Frees the first block that is ready.
    pub(crate) fn release_first_directly(&mut self, arena: &Arena, block: BlockId) {
        if arena.common.is_capturing() && !self.frees_in_graph(arena) {
            self.pending.pop_ready();
            self.note_waiting(arena);
            self.deferred.push(block);
            return;
        }
        let Span { address, size_bytes, .. } = self.blocks.span(block);
        let upstream = &arena.common.upstream;
        let freed = match upstream.stream_ordered().filter(|_| self.policy.stream_ordered) {
            Some(driver) => driver.free_async(address, arena.key.stream),
            None => upstream.free(address, size_bytes, arena.key.stream),
        };
        self.pending.pop_ready();
        // The driver refuses memory that no launch has left allocated, and memory that was freed with the graph: it belongs to
        // the graph.
        if freed.is_err() && !self.frees_in_graph(arena) {
            // The free is tried again after a later event.
            self.note_waiting(arena);
            let again = vec![super::pending::Use::noted(arena.key.stream)];
            self.pending.free(block, again, &arena.common.event_context());
            return;
        }
        if arena.common.watch.is_on() {
            self.report_freed(arena, &[Action::FreeCompleted], block, None);
        }
        let (SegmentKind { class, .. }, size_bytes, requested_bytes) = self.blocks.taken(block);
        self.gauges.passed(class, size_bytes, requested_bytes);
        self.report_lost(arena, Action::SegmentFree, self.blocks.span(block), None);
        self.blocks.release(block, 0);
        self.blocks.remove_segment(block);
        arena.common.totals.changed(arena.number, &mut self.gauges, class);
    }

    /// Returns whether a free during a capture becomes a part of the graph. It does for memory that a capture's pool has from the
    /// driver's allocator, on its own stream. Anything else would be freed by every replay.
    fn frees_in_graph(&self, arena: &Arena) -> bool {
        self.policy.stream_ordered && arena.key.owner.pool().is_some()
    }

    /// Frees the blocks that had to wait for the end of a capture.
    pub(crate) fn release_deferred(&mut self, arena: &Arena) {
        for block in std::mem::take(&mut self.deferred) {
            self.pending.free(block, Uses::new(), &arena.common.event_context());
        }
        self.collect_ready(arena);
    }
}
