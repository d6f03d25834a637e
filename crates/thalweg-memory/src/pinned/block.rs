//! [`HostBlock`]: pinned memory held by a caller.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_lock::{Mutex, MutexGuard};

use super::HostAllocator;
use super::bucket::{Freed, PinnedOwner};
use super::captures::PrivatePool;
use super::unsplit::PinnedBlock;
use super::uses::Uses;
use crate::ids::StreamId;

/// The streams and captures that use a block.
#[derive(Default)]
struct Users {
    uses: Uses,
    captured_by: SmallVec<[Arc<PrivatePool>; 1]>,
}

/// Pinned host memory held by a caller. Dropping it frees it, without failing and without waiting, on any thread.
pub struct HostBlock {
    allocator: Arc<HostAllocator>,
    /// `None` for a null block.
    block: Option<PinnedBlock>,
    owner: PinnedOwner,
    users: Mutex<Users>,
}

impl HostBlock {
    pub(crate) fn new(allocator: Arc<HostAllocator>, block: Option<PinnedBlock>, owner: PinnedOwner) -> Self {
        Self { allocator, block, owner, users: Mutex::default() }
    }

    /// Returns the address; 0 for a null block.
    pub fn address(&self) -> u64 {
        self.block.map_or(0, |block| block.address)
    }

    /// Returns the size: the requested size, rounded up (see [`Settings`](crate::Settings)).
    pub fn size_bytes(&self) -> u64 {
        self.block.map_or(0, |block| block.size_bytes)
    }

    /// Returns the number of bytes that were requested.
    pub fn requested_bytes(&self) -> u64 {
        self.block.map_or(0, |block| block.requested_bytes)
    }

    /// Returns whether this is a null block, which holds no memory.
    pub fn is_null(&self) -> bool {
        self.block.is_none()
    }

    /// Records that the work submitted to `stream` so far uses the memory: an event is recorded there now, and the memory is not
    /// reused before it has passed. Call this right after the copy. A later call for the same stream replaces an earlier one, so
    /// that the list is bounded by the number of streams.
    ///
    /// While a capture is under way nothing is recorded. If the stream takes part in it, the block is kept for the capture's
    /// pool: once freed, it serves no request until the pool's last reference is released. If not, this is the same as
    /// [`record_stream`](Self::record_stream).
    ///
    /// An event that cannot be recorded now is recorded at the drop. Waits for a capture that is just beginning or ending.
    pub fn record_use(&self, stream: StreamId) {
        self.record(stream, |uses| uses.record(stream, &self.allocator.core.recorder));
    }

    /// Records that `stream` uses the memory, by the work that has been submitted when the block is dropped: the event is
    /// recorded then. Cheaper than [`record_use`](Self::record_use) if one block is used many times, but the memory becomes free
    /// later.
    ///
    /// In a capture this is the same as `record_use`.
    pub fn record_stream(&self, stream: StreamId) {
        self.record(stream, |uses| uses.mark(stream));
    }

    fn record(&self, stream: StreamId, now: impl FnOnce(&mut Uses)) {
        if self.is_null() {
            return;
        }
        let gate = self.allocator.core.gate.hold();
        let mut users = self.users();
        if gate.is_open() {
            now(&mut users.uses);
        } else if let Some(pool) = gate.pool_for(Some(stream)) {
            if !users.captured_by.iter().any(|known| Arc::ptr_eq(known, pool)) {
                users.captured_by.push(Arc::clone(pool));
            }
        } else {
            users.uses.mark(stream);
        }
    }

    /// Attaches `text` to this block, in the history: as a separate event, in addition to the record of its allocation.
    pub fn annotate(&self, text: &str) {
        if let Some(block) = self.block {
            self.allocator.core.annotate(block, &self.owner, text);
        }
    }

    fn users(&self) -> MutexGuard<'_, Users> {
        // The uses are valid whenever the upstream, which may panic, is called.
        self.users.lock()
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        let Some(block) = self.block else { return };
        let Users { uses, captured_by } = std::mem::take(self.users.get_mut());
        let owner = std::mem::replace(&mut self.owner, PinnedOwner::Shared);
        let core = &self.allocator.core;
        let stack = core.common.history.stack_of_free();
        core.take_back(Freed { block, owner, uses, captured_by, failed: false, stack, reported: false });
    }
}

impl fmt::Debug for HostBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBlock")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("size_bytes", &self.size_bytes())
            .field("requested_bytes", &self.requested_bytes())
            .finish_non_exhaustive()
    }
}
