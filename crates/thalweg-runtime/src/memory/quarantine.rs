//! [`Quarantine`]: freed blocks that are not reused for a while, so that a pointer which is used after the free points to memory
//! without an owner.
//!
//! An allocator serves a stream's next request with the bytes that the stream freed last. A stale pointer then accesses memory of
//! the new owner, in an order that is right for the new owner, and no sanitizer can distinguish it from a valid one. Address
//! sanitizers hold freed memory back for that reason; so do checks ([`Check::quarantine`](crate::sim::Check::quarantine)).
//!
//! Memory of private pools is held back if it is freed outside captures: outputs of a graph that were dropped, which another
//! capture into the pool may reuse. Memory that is freed within a capture is not held back: the rest of the capture reuses it at
//! every replay.

use std::collections::VecDeque;

use thalweg_lock::Mutex;
use thalweg_memory::Block;

/// The maximum share of the device's memory that is held back: one in this many bytes.
const SHARE: u64 = 4;

/// The maximum number of blocks that are held back.
const MOST_BLOCKS: usize = 4096;

/// The freed blocks of a device that are held back.
pub(crate) struct Quarantine {
    most_bytes: u64,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// The blocks, in the order of their frees.
    blocks: VecDeque<Block>,
    bytes: u64,
}

impl Quarantine {
    /// Creates an empty quarantine, which holds back at most a share of a device's memory.
    pub(crate) fn new(device_bytes: u64) -> Self {
        Self { most_bytes: device_bytes / SHARE, held: Mutex::default() }
    }

    /// Holds back a block that is being dropped, and releases the oldest blocks if the limits are exceeded.
    pub(super) fn hold(&self, block: &mut Block) {
        let bytes = block.size_bytes();
        if block.is_null() || bytes > self.most_bytes {
            return;
        }
        let Some(kept) = block.hold_back() else { return };
        // Dropped after the lock is released, because the allocator calls out.
        let mut expired = Vec::new();
        let mut held = self.held.lock();
        held.bytes += bytes;
        held.blocks.push_back(kept);
        while held.bytes > self.most_bytes || held.blocks.len() > MOST_BLOCKS {
            let Some(oldest) = held.blocks.pop_front() else { break };
            held.bytes -= oldest.size_bytes();
            expired.push(oldest);
        }
        drop(held);
    }

    /// Releases all blocks, and returns whether there were any.
    pub(crate) fn give_back(&self) -> bool {
        let held = std::mem::take(&mut *self.held.lock());
        !held.blocks.is_empty()
    }
}
