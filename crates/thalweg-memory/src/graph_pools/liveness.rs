//! Which blocks callers hold, and what is notified when one is given back.
//!
//! A captured graph goes on using memory by its address alone. A replay must know that the blocks behind these
//! addresses are still held by the callers that held them at the capture, and must know it cheaply: a replay takes a few
//! microseconds, and a graph has hundreds of inputs. So nothing is asked at a replay. The graph keeps a [`LivenessWatch`] over its
//! blocks, and a block that is given back says so there: as long as no block has, one load is the answer.
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
//!   ([`restore_pool`](crate::DeviceAllocator::restore_pool)); so before its memory serves again. (A drop that finds its arena
//!   busy is taken in by the next call there, and counts from then on.)
//! - An arena without watched blocks pays one look at an empty map for a drop.
//! - A watch that its owner has dropped is forgotten when its block dies, or gets another one.
//!
//! Not here: graphs, and what their owner does when a block has died.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::device::blocks::BlockId;
use crate::ids::{PoolId, StreamId};

/// A watch over blocks that others hold: a flag that is cleared when one of them is given back.
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

    /// Returns where the blocks began that have died, in the order of their deaths.
    pub fn died(&self) -> Vec<u64> {
        self.died.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn tell(&self, address: u64) {
        self.died.lock().unwrap_or_else(PoisonError::into_inner).push(address);
        self.disturbed.store(true, Ordering::Release);
    }
}

/// A block that was in a caller's hands when it was looked for. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveBlock {
    /// The address at which it begins.
    pub address: u64,
    /// The size, in bytes.
    pub size_bytes: u64,
    /// The number of bytes that were asked for.
    pub requested_bytes: u64,
    /// The private pool that it belongs to, if any.
    pub pool: Option<PoolId>,
    /// The stream of its arena.
    pub stream: StreamId,
    pub(crate) arena: u64,
    pub(crate) block: BlockId,
}
