//! Finding memory for a request, from the cheapest way to the last.
//!
//! 1. A free block that fits.
//! 2. A new segment from the upstream.
//! 3. With `max_split_size`: give oversize blocks back, no more than needed, and ask the upstream again.
//! 4. Wait for all pending events, give every wholly free segment back, and ask the upstream again.
//! 5. A free block that fits after all, since some were pending before.
//! 6. An error that says what the memory looks like.
//!
//! Rungs 1 to 4 are PyTorch's, decision by decision; the fifth only serves what PyTorch would have refused. While a capture
//! is under way nothing may be waited for or given back, so rungs 3 to 5 are left out.
//!
//! The upstream's want of memory leads one rung down; any other failure of it ends the climb and goes to the caller. Either
//! way the state is as valid as before.

use crate::blocks::Span;
use crate::error::{AllocationError, Kind, OutOfMemory};
use crate::policy::best_fit;
use crate::pools::Owner;
use crate::state::{Home, Request, State};
use crate::upstream::{Upstream, UpstreamError};

impl State {
    /// A free block for `request`, in no free set any more.
    pub(crate) fn obtain(
        &mut self,
        request: &Request,
        upstream: &dyn Upstream,
    ) -> Result<Span, AllocationError> {
        if let Some(span) = self.cached(request) {
            return Ok(span);
        }
        if let Some(span) = self.reserve(request, upstream)? {
            return Ok(span);
        }
        if !self.order.is_capturing() {
            if self.release_oversize(request, upstream)?
                && let Some(span) = self.reserve(request, upstream)?
            {
                return Ok(span);
            }
            self.release_cached(upstream)?;
            self.statistics.num_alloc_retries += 1;
            if let Some(span) = self.reserve(request, upstream)? {
                return Ok(span);
            }
            if let Some(span) = self.cached(request) {
                return Ok(span);
            }
        }
        self.statistics.num_ooms += 1;
        Err(self.out_of_memory(request.requested_bytes, upstream))
    }

    /// Waits for all pending events, then gives every wholly free segment back that no private pool relies on. *Blocks*.
    ///
    /// # Errors
    /// The first failure of the upstream. What was given back before it is gone, the rest stays cached.
    pub(crate) fn release_cached(&mut self, upstream: &dyn Upstream) -> Result<(), AllocationError> {
        self.statistics.num_sync_all_streams += 1;
        let waited = self.order.synchronize(upstream);
        self.collect_ready();
        waited.map_err(|error| AllocationError::upstream("synchronize_event", error))?;
        let whole: Vec<Span> = self
            .pools
            .releasable()
            .flat_map(|pool| pool.spans())
            .filter(|span| !self.blocks.is_split(span.block))
            .collect();
        whole.into_iter().try_for_each(|span| self.release_segment(span, upstream))
    }

    /// Gives every segment back, at the end of the allocator's life. What the upstream refuses is lost: nobody is left to
    /// offer it again. *Blocks*.
    pub(crate) fn release_everything(&mut self, upstream: &dyn Upstream) {
        if !self.order.is_capturing() {
            // A failure to wait leaves blocks pending. Their segments go all the same: `free` itself waits for work.
            let _ = self.order.synchronize(upstream);
        }
        self.order.abandon(upstream);
        for segment in self.blocks.segments() {
            let _ = upstream.free(segment.address, segment.size_bytes, segment.tag.stream);
        }
    }

    /// Asks the upstream for a segment for `request`; `None` if it, or the limit, has no room.
    fn reserve(
        &mut self,
        request: &Request,
        upstream: &dyn Upstream,
    ) -> Result<Option<Span>, AllocationError> {
        let Home { owner, class, .. } = request.home;
        let segment_bytes = best_fit::segment_size(request.size_bytes);
        let reserved_bytes = self.statistics.reserved_bytes.all.current;
        if self.allowed_bytes.is_some_and(|allowed| reserved_bytes + segment_bytes > allowed) {
            return Ok(None);
        }
        let address = match upstream.allocate(segment_bytes, request.home.stream) {
            Ok(address) => address,
            Err(UpstreamError::OutOfMemory) => return Ok(None),
            Err(error) => return Err(AllocationError::upstream("allocate", error)),
        };
        assert!(
            address > 0 && address.is_multiple_of(best_fit::MIN_BLOCK_BYTES),
            "an upstream's address is a positive multiple of 512, not {address:#x}"
        );
        let span = self.blocks.add_segment(address, segment_bytes, request.home);
        self.pools.segment_added(owner);
        let oversize = segment_bytes >= self.max_split_bytes();
        let statistics = &mut self.statistics;
        statistics.segment.increase(class, 1);
        statistics.reserved_bytes.increase(class, segment_bytes);
        statistics.num_device_alloc += 1;
        if oversize {
            statistics.oversize_segments.increase(1);
        }
        Ok(Some(span))
    }

    /// Gives oversize blocks of the request's stream back: the smallest that alone makes enough room, or else the largest
    /// ones until there is enough. Whether there is.
    fn release_oversize(
        &mut self,
        request: &Request,
        upstream: &dyn Upstream,
    ) -> Result<bool, AllocationError> {
        let Some(max_split_bytes) = self.settings.max_split_size_bytes() else { return Ok(false) };
        let Home { stream, owner, class } = request.home;
        let needed_bytes = request.size_bytes.max(max_split_bytes);
        let free_set = self.pools.pool(owner).of(class);
        let mut chosen = Vec::new();
        let mut chosen_bytes = 0;
        if let Some(span) = free_set.best_fit(stream, needed_bytes) {
            chosen.push(span);
            chosen_bytes = span.size_bytes;
        } else {
            for span in free_set.at_least(stream, max_split_bytes).rev() {
                if chosen_bytes >= needed_bytes {
                    break;
                }
                chosen.push(span);
                chosen_bytes += span.size_bytes;
            }
        }
        for span in chosen {
            self.release_segment(span, upstream)?;
        }
        Ok(chosen_bytes >= needed_bytes)
    }

    /// Gives the segment back that a free block covers alone.
    fn release_segment(&mut self, span: Span, upstream: &dyn Upstream) -> Result<(), AllocationError> {
        assert!(!self.blocks.is_split(span.block), "only whole segments go back");
        let Home { stream, owner, class } = *self.blocks.tag(span.block);
        upstream
            .free(span.address, span.size_bytes, stream)
            .map_err(|error| AllocationError::upstream("free", error))?;
        self.pools.pool_mut(owner).of_mut(class).remove(stream, span);
        self.blocks.remove_segment(span.block);
        self.pools.segment_removed(owner);
        let oversize = span.size_bytes >= self.max_split_bytes();
        let statistics = &mut self.statistics;
        statistics.segment.decrease(class, 1);
        statistics.reserved_bytes.decrease(class, span.size_bytes);
        statistics.num_device_free += 1;
        if oversize {
            statistics.oversize_segments.decrease(1);
        }
        Ok(())
    }

    /// The error for a request that finds no room.
    pub(crate) fn out_of_memory(&self, requested_bytes: u64, upstream: &dyn Upstream) -> AllocationError {
        let statistics = &self.statistics;
        let private_pool_bytes = self
            .blocks
            .segments()
            .filter(|segment| segment.tag.owner != Owner::Shared)
            .flat_map(|segment| self.blocks.blocks_of(segment))
            .filter(|block| self.blocks.requested_bytes(*block).is_some())
            .map(|block| self.blocks.span(block).size_bytes)
            .sum();
        Kind::OutOfMemory(OutOfMemory {
            label: self.settings.label().to_owned(),
            requested_bytes,
            allocated_bytes: statistics.allocated_bytes.all.current,
            reserved_bytes: statistics.reserved_bytes.all.current,
            pending_bytes: statistics.active_bytes.all.current - statistics.allocated_bytes.all.current,
            private_pool_bytes,
            allowed_bytes: self.allowed_bytes,
            device: upstream.memory_info().ok(),
            capturing: self.order.is_capturing(),
        })
        .into()
    }
}
