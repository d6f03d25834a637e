//! The allocator's functions for captured graphs: checkpoints and restoration of their pools, memory at two addresses, and the
//! list of live blocks. [`graph_pools`](crate::graph_pools) explains how each works.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::allocator::DeviceAllocator;
use super::arena::{Arena, ArenaState};
use super::blocks::{BlockId, Span};
use super::central::Central;
use super::pages::PageTable;
use crate::error::{AllocationError, Kind};
use crate::graph_pools::aliases::Alias;
use crate::graph_pools::checkpoint::{LiveDifference, PoolCheckpoint, Restored, check_live};
use crate::graph_pools::liveness::{LiveBlock, LivenessWatch};
use crate::ids::{Owner, PoolId};
use crate::upstream::PageId;

/// Checkpoints of private pools.
impl DeviceAllocator {
    /// Returns the present state of a private pool. *Blocks* until frees that wait for other streams are complete, so that they
    /// are free in the checkpoint.
    ///
    /// # Errors
    /// If the pool has no reference left, since its memory may then be freed at any time; if there is something to wait for and a
    /// capture is under way ([`is_capture`](AllocationError::is_capture)); if nothing is cached (`backend:cudaMallocAsync`); or
    /// the upstream's error from the wait.
    pub fn checkpoint_pool(&self, pool: PoolId) -> Result<PoolCheckpoint, AllocationError> {
        let mut central = self.central();
        let checkpoint = PoolCheckpoint::of(pool, &self.arenas_of(&central, pool)?)?;
        // The present mappings may be needed again for the restoration.
        central.pools.keep_in_place(pool);
        Ok(checkpoint)
    }

    /// Restores a private pool to one of its checkpoints, whatever `max_split_size` is now. *Blocks* as
    /// [`checkpoint_pool`](Self::checkpoint_pool) does.
    ///
    /// All live blocks of the pool are *revoked* ([`Block::is_revoked`](crate::Block::is_revoked)), including those that other
    /// requests borrowed (`use_on_oom`): dropping them frees nothing from then on. New blocks are returned for those that are
    /// live in the checkpoint. Memory that the pool took since the checkpoint stays in the pool, and is free.
    ///
    /// The caller guarantees that no work touches memory through a revoked block any more, except where the checkpoint has the
    /// same block, and that work on other streams that uses such memory is ordered before later work: uses that were recorded on
    /// a revoked block are forgotten, not waited for.
    ///
    /// # Errors
    /// If the checkpoint is of another pool, or memory in the checkpoint no longer belongs to the pool; and those of
    /// [`checkpoint_pool`](Self::checkpoint_pool). Nothing has changed then.
    pub fn restore_pool(
        &self,
        pool: PoolId,
        checkpoint: &PoolCheckpoint,
    ) -> Result<Restored, AllocationError> {
        let central = self.central();
        let arenas = self.arenas_of(&central, pool)?;
        checkpoint.restore(pool, &arenas)
    }

    /// Checks that the live blocks of a private pool begin at `expected` and nowhere else. A pool that does not exist has no live
    /// blocks.
    ///
    /// # Errors
    /// Returns the difference.
    pub fn check_pool_live_allocations(&self, pool: PoolId, expected: &[u64]) -> Result<(), LiveDifference> {
        check_live(pool, &self.common().arenas_of(Owner::Private(pool)), expected)
    }

    /// Returns the arenas of a private pool, if it can be checkpointed now.
    fn arenas_of(&self, central: &Central, pool: PoolId) -> Result<Vec<Arc<Arena>>, AllocationError> {
        if central.pools.references(pool) == 0 {
            return Err(Kind::UnknownPool(pool).into());
        }
        if !self.settings().is_cached_here() {
            let problem = "the settings leave caching to the driver, or turn it off".to_owned();
            return Err(Kind::Checkpoint { pool, problem }.into());
        }
        Ok(self.common().arenas_of(Owner::Private(pool)))
    }
}

/// Memory at two addresses.
impl DeviceAllocator {
    /// Returns the former addresses of a pool's memory that has moved but can still be accessed at these addresses. One range per
    /// page, in address order.
    pub fn aliases(&self, pool: PoolId) -> Vec<Alias> {
        // Pages move under this lock only.
        let _cold = self.central();
        let arenas = self.common().arenas_of(Owner::Private(pool));
        let places = |arena: &Arc<Arena>| {
            arena.lock().pages.values().flat_map(PageTable::places).collect::<Vec<(PageId, u64)>>()
        };
        let now_at: FxHashMap<PageId, u64> = arenas.iter().flat_map(places).collect();
        let mut aliases: Vec<Alias> = arenas.iter().flat_map(|arena| arena.lock().aliases(&now_at)).collect();
        aliases.sort_unstable();
        aliases
    }

    /// Unmaps the aliases of a pool that nothing relies on and no work touches. Aliases that the upstream refuses to unmap are
    /// kept.
    pub(crate) fn close_aliases(&self, pool: PoolId) {
        let Some(memory) = self.common().upstream.virtual_memory() else { return };
        for arena in self.common().arenas_of(Owner::Private(pool)) {
            let _ = arena.lock().close_aliases(memory);
        }
    }

    /// Keeps the pages of a pool at their addresses from now on, even if a page could move and stay mapped. Aliases may exist
    /// already.
    pub fn keep_pool_in_place(&self, pool: PoolId) {
        self.central().pools.keep_in_place(pool);
    }
}

/// The blocks that callers hold.
impl DeviceAllocator {
    /// Returns all blocks that callers hold, in ascending order of their addresses. The time grows with the number of all blocks,
    /// so call this once per capture, not per operator.
    pub fn live_blocks(&self) -> Vec<LiveBlock> {
        self.live_blocks_where(|_| true)
    }

    /// Returns the blocks of one private pool that callers hold.
    pub fn live_blocks_of(&self, pool: PoolId) -> Vec<LiveBlock> {
        self.live_blocks_where(|owner| owner == Owner::Private(pool))
    }

    fn live_blocks_where(&self, chosen: impl Fn(Owner) -> bool) -> Vec<LiveBlock> {
        let mut live = Vec::new();
        for arena in self.common().all_arenas().into_iter().filter(|arena| chosen(arena.key.owner)) {
            let state = arena.lock();
            live.extend(state.live_blocks().map(|block| {
                let Span { address, size_bytes, .. } = state.blocks.span(block);
                let requested_bytes = state.blocks.requested_bytes(block).unwrap_or(size_bytes);
                let (pool, stream) = (arena.key.owner.pool(), arena.key.stream);
                LiveBlock { address, size_bytes, requested_bytes, pool, stream, arena: arena.number, block }
            }));
        }
        live.sort_unstable_by_key(|block| block.address);
        live
    }

    /// Notifies `watch` when the block is freed. Returns `false` if it has been freed already.
    pub fn watch_block(&self, block: &LiveBlock, watch: &Arc<LivenessWatch>) -> bool {
        let Some(arena) = self.common().arena(block.arena) else { return false };
        let mut state = arena.lock();
        // The identifier may belong to another block by now.
        let is_here = state
            .live_span(block.block)
            .is_some_and(|span| (span.address, span.size_bytes) == (block.address, block.size_bytes));
        if is_here {
            let watches = state.watched.entry(block.block).or_default();
            watches.retain(|watch| Arc::strong_count(watch) > 1);
            watches.push(Arc::clone(watch));
        }
        is_here
    }
}

impl ArenaState {
    /// Returns the span of a block, if a caller holds it.
    fn live_span(&self, block: BlockId) -> Option<Span> {
        let is_taken =
            self.blocks.requested_bytes(block).is_some() && !self.stale_mappings.contains_key(&block);
        let is_live = is_taken && !self.is_revoked(block) && !self.pending.iter().any(|other| other == block);
        is_live.then(|| self.blocks.span(block))
    }

    /// Notifies the watches of a block that is freed or revoked.
    #[cold]
    pub(crate) fn notify_watches(&mut self, block: BlockId) {
        for watch in self.watched.remove(&block).into_iter().flatten() {
            watch.report(self.blocks.span(block).address);
        }
    }
}
