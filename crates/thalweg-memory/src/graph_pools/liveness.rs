//! The blocks that callers hold, and notifications when a block is freed.
//!
//! A captured graph accesses memory only by its address. A replay must know that the blocks at these addresses are still held by
//! the callers that held them at the capture, and must know it cheaply: a replay takes a few microseconds, and a graph has
//! hundreds of inputs. So nothing is searched at a replay. The graph keeps a [`LivenessWatch`] over its blocks, and a block that
//! is freed sets a flag there: as long as none has been freed, the check is one load.
//!
//! ```text
//! capture   live_blocks ─▶ the blocks at the graph's addresses ─▶ watch_block, for each
//! drop      the arena takes the block back ─▶ is it watched? ─▶ the watch has its address
//! replay    watch.is_undisturbed(): one load
//! ```
//!
//! Invariants:
//!
//! - A block has died for its watches when its arena takes it back, or takes it *from* its holder
//!   ([`restore_pool`](crate::DeviceAllocator::restore_pool)); this is before its memory is reused. (A drop that finds its arena
//!   busy is processed by the next call there, and counts from then on.)
//! - In an arena without watched blocks, a drop pays one check of an empty map.
//! - A watch that its owner has dropped is forgotten when its block dies, or gets another watch.
//!
//! Graphs, and the reaction of their owner to the death of a block, are not handled here.

use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_lock::Mutex;

use crate::device::blocks::BlockId;
use crate::ids::{PoolId, StreamId};

/// A watch over blocks that callers hold: a flag that is cleared when one of the blocks is freed.
#[derive(Debug, Default)]
pub struct LivenessWatch {
    disturbed: AtomicBool,
    died: Mutex<Vec<u64>>,
}

impl LivenessWatch {
    /// Returns whether none of the blocks has died. One load.
    #[inline]
    pub fn is_undisturbed(&self) -> bool {
        !self.disturbed.load(Ordering::Acquire)
    }

    /// Returns the addresses of the blocks that have died, in the order of their deaths.
    pub fn died(&self) -> Vec<u64> {
        self.died.lock().clone()
    }

    pub(crate) fn report(&self, address: u64) {
        self.died.lock().push(address);
        self.disturbed.store(true, Ordering::Release);
    }
}

/// A block that a caller held when the blocks were listed. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveBlock {
    /// The address at which the block begins.
    pub address: u64,
    /// The size, in bytes.
    pub size_bytes: u64,
    /// The number of bytes that were requested.
    pub requested_bytes: u64,
    /// The private pool that the block belongs to, if any.
    pub pool: Option<PoolId>,
    /// The stream of the block's arena.
    pub stream: StreamId,
    pub(crate) arena: u64,
    pub(crate) block: BlockId,
}
