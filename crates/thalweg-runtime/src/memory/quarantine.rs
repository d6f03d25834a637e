//! [`Quarantine`]: freed blocks that are not reused for a while, so that a pointer which is used too long meets memory without an owner.
//!
//! An allocator gives the bytes that a stream freed last to the stream's next request. A stale pointer then reads and
//! writes what belongs to another, in an order that is right for the other, and no sanitizer can tell it from a good one. Address
//! sanitizers hold freed memory back for that reason; so do checks ([`Check::quarantine`](crate::sim::Check::quarantine)).
//!
//! Of the memory of private pools that is held back which is freed outside captures: outputs of a graph that were dropped, which another
//! capture into the pool may get. What is freed within a capture is not: the rest of it has it again at every replay.

use std::collections::VecDeque;
use std::sync::Mutex;

use thalweg_memory::Block;

use super::upstream::lock;

/// The part of the device's memory that is held back at most: one in so many bytes.
const SHARE: u64 = 4;

/// The number of blocks that are held back at most.
const MOST_BLOCKS: usize = 4096;

/// The freed blocks of a device that are held back.
pub(crate) struct Quarantine {
    most_bytes: u64,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// The one that was freed last is the last.
    blocks: VecDeque<Block>,
    bytes: u64,
}

impl Quarantine {
    /// Holds nothing back yet, and a share of a device's memory at most.
    pub(crate) fn new(device_bytes: u64) -> Self {
        Self { most_bytes: device_bytes / SHARE, held: Mutex::default() }
    }

    /// Takes a block that is being dropped, and gives back those that were freed first, if it is too much now.
    pub(super) fn hold(&self, block: &mut Block) {
        let bytes = block.size_bytes();
        if block.is_null() || bytes > self.most_bytes {
            return;
        }
        let Some(kept) = block.hold_back() else { return };
        // Dropped when the lock is free again: the allocator calls out.
        let mut outlived = Vec::new();
        let mut held = lock(&self.held);
        held.bytes += bytes;
        held.blocks.push_back(kept);
        while held.bytes > self.most_bytes || held.blocks.len() > MOST_BLOCKS {
            let Some(oldest) = held.blocks.pop_front() else { break };
            held.bytes -= oldest.size_bytes();
            outlived.push(oldest);
        }
        drop(held);
    }

    /// Gives everything back, and says whether there was anything.
    pub(crate) fn give_back(&self) -> bool {
        let held = std::mem::take(&mut *lock(&self.held));
        !held.blocks.is_empty()
    }
}
