//! Which blocks are in callers' hands, and who wants to hear when one is given back.
//!
//! A captured graph goes on using memory by its address alone. Who replays it must know that the blocks behind these
//! addresses are still held by the callers who held them at the capture, and must know it cheaply: a replay takes a few
//! microseconds, and a graph has hundreds of inputs. So nothing is asked at a replay. The graph keeps a [`Vigil`] over its
//! blocks, and a block that is given back says so there: as long as nobody has said anything, one load is the answer.
//!
//! ```text
//! capture   live_blocks ─▶ the blocks at the graph's addresses ─▶ watch_block, for each
//! drop      the arena takes the block back ─▶ is it watched? ─▶ the vigil has its address
//! replay    vigil.is_undisturbed(): one load
//! ```
//!
//! Invariants:
//!
//! - A block has died for its vigils when its arena takes it back, or takes it *from* its holder
//!   ([`restore_pool`](DeviceAllocator::restore_pool)); so before anybody else has its memory. (A drop that finds its arena
//!   busy is taken in by the next call there, and counts from then on.)
//! - An arena without watched blocks pays one look at an empty map for a drop.
//! - A vigil that nobody keeps any more is forgotten when its block dies, or gets another one.
//!
//! What is not here: graphs, and what their owner does when a block has died.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::allocator::DeviceAllocator;
use crate::device::arena::ArenaState;
use crate::device::blocks::{BlockId, Span};
use crate::device::pools::{Owner, PoolId};
use crate::upstream::StreamId;

/// A watch over blocks that somebody else holds.
#[derive(Debug, Default)]
pub struct Vigil {
    disturbed: AtomicBool,
    died: Mutex<Vec<u64>>,
}

impl Vigil {
    /// Whether none of the blocks has died. One load.
    #[inline]
    pub fn is_undisturbed(&self) -> bool {
        !self.disturbed.load(Ordering::Acquire)
    }

    /// Where the blocks began that have died, in the order of their deaths.
    pub fn died(&self) -> Vec<u64> {
        self.died.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn tell(&self, address: u64) {
        self.died.lock().unwrap_or_else(PoisonError::into_inner).push(address);
        self.disturbed.store(true, Ordering::Release);
    }
}

/// A block that was in a caller's hands when it was looked for. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveBlock {
    /// Where it begins.
    pub address: u64,
    /// How much there is.
    pub size_bytes: u64,
    /// How much was asked for.
    pub requested_bytes: u64,
    /// The private pool that it belongs to, if any.
    pub pool: Option<PoolId>,
    /// The stream of its arena.
    pub stream: StreamId,
    arena: u64,
    block: BlockId,
}

impl DeviceAllocator {
    /// All blocks that are in callers' hands, in ascending order of their addresses. Takes time with the number of all
    /// blocks: meant for a capture, not for an operator.
    pub fn live_blocks(&self) -> Vec<LiveBlock> {
        self.live_blocks_where(|_| true)
    }

    /// Those of one private pool.
    pub fn live_blocks_of(&self, pool: PoolId) -> Vec<LiveBlock> {
        self.live_blocks_where(|owner| owner == Owner::Private(pool))
    }

    fn live_blocks_where(&self, chosen: impl Fn(Owner) -> bool) -> Vec<LiveBlock> {
        let mut live = Vec::new();
        for arena in self.common().all_arenas().into_iter().filter(|arena| chosen(arena.home.owner)) {
            let state = arena.lock();
            live.extend(state.live_blocks().map(|block| {
                let Span { address, size_bytes, .. } = state.blocks.span(block);
                let requested_bytes = state.blocks.requested_bytes(block).unwrap_or(size_bytes);
                let (pool, stream) = (arena.home.owner.pool(), arena.home.stream);
                LiveBlock { address, size_bytes, requested_bytes, pool, stream, arena: arena.number, block }
            }));
        }
        live.sort_unstable_by_key(|block| block.address);
        live
    }

    /// Has `vigil` told when the block dies. `false` if it has died already.
    pub fn watch_block(&self, block: &LiveBlock, vigil: &Arc<Vigil>) -> bool {
        let Some(arena) = self.common().arena(block.arena) else { return false };
        let mut state = arena.lock();
        // The name may be another block's by now.
        let is_here = state
            .live_span(block.block)
            .is_some_and(|span| (span.address, span.size_bytes) == (block.address, block.size_bytes));
        if is_here {
            let vigils = state.watched.entry(block.block).or_default();
            vigils.retain(|vigil| Arc::strong_count(vigil) > 1);
            vigils.push(Arc::clone(vigil));
        }
        is_here
    }
}

impl ArenaState {
    /// The span of a block, if it is in a caller's hands.
    fn live_span(&self, block: BlockId) -> Option<Span> {
        let is_taken = self.blocks.requested_bytes(block).is_some() && !self.holes.contains_key(&block);
        let is_live =
            is_taken && !self.is_revoked(block) && !self.order.pending().any(|other| other == block);
        is_live.then(|| self.blocks.span(block))
    }

    /// A watched block is given back, or taken away.
    #[cold]
    pub(crate) fn tell_vigils(&mut self, block: BlockId) {
        for vigil in self.watched.remove(&block).into_iter().flatten() {
            vigil.tell(self.blocks.span(block).address);
        }
    }
}
