//! The blocks that PyTorch holds, by address: PyTorch passes only a pointer when it frees one.
//!
//! Nearly every call names the first address of a block. The table is ordered, and cut into shards. A shard is chosen by the
//! upper bits of the address: blocks of one region of memory share a shard, and a region belongs to one stream. So threads that
//! use different streams seldom contend for a shard, and the shard that they use stays in their cache. An address inside a block,
//! or one of another owner's memory, takes one ordered lookup in every shard.
//!
//! # Invariants
//!
//! - The key of a block is its first address, in the shard of that address.
//! - No block is dropped while a shard's lock is held. It may be *used* then: `record_use` records an event, which takes no lock
//!   of this crate.

use std::collections::BTreeMap;

use thalweg_lock::{Mutex, MutexGuard};
use thalweg_memory::Block;

/// A block that PyTorch holds.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) block: Block,
    /// The number of the block's device.
    pub(crate) device: u32,
}

const SHARDS: usize = 256;
/// The shift from an address to its region: addresses within 2 MiB share a shard: the page of virtual memory, and the segment of
/// small requests.
const REGION_SHIFT: u32 = 21;

/// A shard with its lock, in its own cache line, since different threads use adjacent shards.
#[derive(Default)]
#[repr(align(128))]
struct Shard(Mutex<BTreeMap<u64, Live>>);

/// Blocks by address. See the [module](self).
pub(crate) struct LiveBlocks {
    shards: Box<[Shard]>,
}

impl Default for LiveBlocks {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }
}

impl LiveBlocks {
    #[inline]
    fn shard(&self, address: u64) -> MutexGuard<'_, BTreeMap<u64, Live>> {
        // The product's upper bits depend on all bits of the region's number.
        let mixed = (address >> REGION_SHIFT).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        lock(&self.shards[(mixed >> (u64::BITS - SHARDS.ilog2())) as usize])
    }

    /// Adds a block, and returns the previous block at its address, if any.
    #[inline]
    pub(crate) fn insert(&self, live: Live) -> Option<Live> {
        let address = live.block.address();
        self.shard(address).insert(address, live)
    }

    /// Removes and returns the block that begins at an address.
    #[inline]
    pub(crate) fn remove(&self, address: u64) -> Option<Live> {
        self.shard(address).remove(&address)
    }

    /// Removes a block if `condition` holds for it.
    pub(crate) fn remove_if(&self, address: u64, condition: impl FnOnce(&Live) -> bool) -> Option<Live> {
        let mut shard = self.shard(address);
        if shard.get(&address).is_some_and(condition) { shard.remove(&address) } else { None }
    }

    /// Calls `body` with the block that contains an address, if there is one.
    pub(crate) fn with<T>(&self, address: u64, body: impl FnOnce(&Live) -> T) -> Option<T> {
        if let Some(live) = self.shard(address).get(&address) {
            return Some(body(live));
        }
        for shard in &self.shards {
            let shard = lock(shard);
            if let Some((&start, live)) = shard.range(..=address).next_back()
                && address - start < live.block.size_bytes()
            {
                return Some(body(live));
            }
        }
        None
    }

    /// Removes all blocks.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let blocks = std::mem::take(&mut *lock(shard));
            drop(blocks);
        }
    }
}

fn lock(shard: &Shard) -> MutexGuard<'_, BTreeMap<u64, Live>> {
    shard.0.lock()
}
