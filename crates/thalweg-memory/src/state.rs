//! What stands behind the lock of a device allocator: blocks, order, pools and statistics, moved together.
//!
//! Each part knows one thing and none of the others: [`blocks`](crate::blocks) the addresses, [`order`](crate::order) the
//! streams and events, [`pools`](crate::pools) who serves whom, [`stats`](crate::stats) the sums. This module moves a block
//! through all of them, and keeps these invariants, which hold whenever the upstream is called:
//!
//! - A block is free and in exactly one free set, or taken and in none. A taken block is in a caller's hands, or pending.
//! - The statistics are those of the blocks as they are.
//!
//! How memory is found when no free block serves is next door ([`ladder`](crate::ladder)).

use crate::allocator::Settings;
use crate::blocks::{BlockId, Blocks, Span};
use crate::order::{Order, Uses};
use crate::policy::best_fit;
use crate::pools::{Owner, Pools};
use crate::snapshot::{BlockSnapshot, BlockState, SegmentSnapshot};
use crate::stats::{DeviceStatistics, SizeClass};
use crate::upstream::{StreamId, Upstream};

/// Where a segment belongs, and so all its blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    pub(crate) stream: StreamId,
    pub(crate) owner: Owner,
    pub(crate) class: SizeClass,
}

/// A request with everything that is known of it before memory is looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) requested_bytes: u64,
    pub(crate) size_bytes: u64,
    pub(crate) home: Home,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) blocks: Blocks<Home>,
    pub(crate) order: Order<BlockId>,
    pub(crate) pools: Pools,
    pub(crate) statistics: DeviceStatistics,
    /// The most that may be taken from the upstream.
    pub(crate) allowed_bytes: Option<u64>,
}

impl State {
    /// What a request of `requested_bytes` on `stream` comes to now.
    pub(crate) fn request(&self, requested_bytes: u64, stream: StreamId) -> Request {
        let size_bytes = best_fit::round_size(requested_bytes);
        let home =
            Home { stream, owner: self.pools.owner_for(stream), class: best_fit::size_class(size_bytes) };
        Request { requested_bytes, size_bytes, home }
    }

    /// Takes the best free block for a request out of its free set.
    pub(crate) fn cached(&mut self, request: &Request) -> Option<Span> {
        let Home { stream, owner, class } = request.home;
        let free_set = self.pools.pool(owner).of(class);
        let span = free_set.best_fit(stream, request.size_bytes)?;
        if !best_fit::may_serve(request.size_bytes, span.size_bytes, self.max_split_bytes()) {
            return None;
        }
        self.pools.pool_mut(owner).of_mut(class).remove(stream, span);
        Some(span)
    }

    /// Gives a free block, which is in no free set, to the caller: cuts off what is too much and counts.
    pub(crate) fn hand_out(&mut self, request: &Request, found: Span) -> Span {
        let Home { stream, owner, class } = request.home;
        let was_split = self.blocks.is_split(found.block);
        let rest_bytes = found.size_bytes - request.size_bytes;
        let mut inactive = (0, 0);
        if best_fit::should_split(class, request.size_bytes, rest_bytes, self.max_split_bytes()) {
            let rest = self.blocks.split(found.block, request.size_bytes);
            self.pools.pool_mut(owner).of_mut(class).insert(stream, rest);
            inactive = (1, rest.size_bytes);
        }
        let was_inactive = if was_split { (1, found.size_bytes) } else { (0, 0) };
        self.blocks.take(found.block, request.requested_bytes);
        let span = self.blocks.span(found.block);

        let oversize = span.size_bytes >= self.max_split_bytes();
        let statistics = &mut self.statistics;
        statistics.inactive_split.change(class, inactive.0, was_inactive.0);
        statistics.inactive_split_bytes.change(class, inactive.1, was_inactive.1);
        statistics.allocation.increase(class, 1);
        statistics.allocated_bytes.increase(class, span.size_bytes);
        statistics.active.increase(class, 1);
        statistics.active_bytes.increase(class, span.size_bytes);
        statistics.requested_bytes.increase(class, request.requested_bytes);
        if oversize {
            statistics.oversize_allocations.increase(1);
        }
        span
    }

    /// Takes a block back from the caller. It is used again when its uses are over.
    pub(crate) fn free(&mut self, block: BlockId, uses: Uses, upstream: &dyn Upstream) {
        let size_bytes = self.blocks.span(block).size_bytes;
        let class = self.blocks.tag(block).class;
        let oversize = size_bytes >= self.max_split_bytes();
        let statistics = &mut self.statistics;
        statistics.allocation.decrease(class, 1);
        statistics.allocated_bytes.decrease(class, size_bytes);
        if oversize {
            statistics.oversize_allocations.decrease(1);
        }
        self.order.free(block, uses, upstream);
        self.collect_ready();
    }

    /// Returns to the pools what the order holds back no longer.
    pub(crate) fn collect_ready(&mut self) {
        while let Some(block) = self.order.pop_ready() {
            self.return_to_pool(block);
        }
    }

    fn return_to_pool(&mut self, block: BlockId) {
        let Home { stream, owner, class } = *self.blocks.tag(block);
        let size_bytes = self.blocks.span(block).size_bytes;
        let requested_bytes = self.blocks.requested_bytes(block).expect("what is returned was taken");
        let released = self.blocks.release(block);
        let free_set = self.pools.pool_mut(owner).of_mut(class);
        for absorbed in &released.absorbed {
            free_set.remove(stream, *absorbed);
        }
        free_set.insert(stream, released.merged);

        let split = self.blocks.is_split(block);
        let (added, added_bytes) = if split { (1, released.merged.size_bytes) } else { (0, 0) };
        let absorbed = released.absorbed.len() as u64;
        let absorbed_bytes = released.absorbed.iter().map(|span| span.size_bytes).sum();
        let statistics = &mut self.statistics;
        statistics.inactive_split.change(class, added, absorbed);
        statistics.inactive_split_bytes.change(class, added_bytes, absorbed_bytes);
        statistics.active.decrease(class, 1);
        statistics.active_bytes.decrease(class, size_bytes);
        statistics.requested_bytes.decrease(class, requested_bytes);
    }

    /// The size from which blocks are oversize; larger than any if that is off.
    pub(crate) fn max_split_bytes(&self) -> u64 {
        self.settings.max_split_size_bytes().unwrap_or(u64::MAX)
    }

    /// All segments in address order, each with its blocks.
    pub(crate) fn snapshot(&self) -> Vec<SegmentSnapshot> {
        let mut segments: Vec<_> = self
            .blocks
            .segments()
            .map(|segment| SegmentSnapshot {
                address: segment.address,
                total_bytes: segment.size_bytes,
                stream: segment.tag.stream,
                class: segment.tag.class,
                pool: match segment.tag.owner {
                    Owner::Shared => None,
                    Owner::Private(id) => Some(id),
                },
                blocks: self.blocks.blocks_of(segment).map(|block| self.block_snapshot(block)).collect(),
            })
            .collect();
        segments.sort_by_key(|segment| segment.address);
        segments
    }

    fn block_snapshot(&self, block: BlockId) -> BlockSnapshot {
        let Span { address, size_bytes, .. } = self.blocks.span(block);
        let requested_bytes = self.blocks.requested_bytes(block);
        let state = match requested_bytes {
            None => BlockState::Inactive,
            Some(_) if self.order.is_pending(block) => BlockState::ActivePendingFree,
            Some(_) => BlockState::ActiveAllocated,
        };
        BlockSnapshot { address, size_bytes, requested_bytes: requested_bytes.unwrap_or(0), state }
    }
}
