//! The state of a pool, and restoring it: for graphs that are recorded along different paths into one pool.
//!
//! A graph that is recorded behind another may use all memory that is free when it starts, and must leave alone what is live.
//! So before it is recorded, the pool is put back to what the graph before it leaves behind ([`GraphPool::restore`]), however
//! often other paths have been recorded meanwhile. `thalweg_memory`'s `checkpoint` has the rules.

use thalweg_memory::{Block, PoolCheckpoint};

use super::GraphPool;
use crate::Result;
use crate::device::from_allocation;

/// A state of a [`GraphPool`] that can be restored: which memory was live, not its content.
#[derive(Clone, Debug)]
pub struct PoolState(PoolCheckpoint);

/// Memory of a pool that is kept out of its free memory. It is used only through the [buffers](GraphPool::output_buffer) that the
/// owner makes of it.
#[derive(Debug)]
pub struct HeldMemory(Block);

impl PoolState {
    /// Returns where live blocks begin, in ascending order.
    pub fn live_addresses(&self) -> Vec<u64> {
        self.0.live_addresses()
    }
}

impl HeldMemory {
    pub(crate) fn new(block: Block) -> Self {
        Self(block)
    }

    /// Returns where it begins; 0 for 0 bytes.
    pub fn address(&self) -> u64 {
        self.0.address()
    }

    /// Returns the bytes that were asked for.
    pub fn size_bytes(&self) -> u64 {
        self.0.requested_bytes()
    }
}

impl GraphPool {
    /// Returns what the pool looks like now. *Blocks* until frees that wait for other streams are through.
    ///
    /// # Errors
    /// [`Error::is_capture`](crate::Error::is_capture) while any capture of the device is under way;
    /// [`Error::is_invalid_argument`](crate::Error::is_invalid_argument) where the settings leave caching to the driver.
    pub fn checkpoint(&self) -> Result<PoolState> {
        let state = self.device().allocator().checkpoint_pool(self.id());
        state.map(PoolState).map_err(|error| from_allocation(self.device(), error))
    }

    /// Puts the pool back to a state that it had, and gives the memory that was live then, in ascending order of the
    /// addresses. All that is live now is taken from its holders: what they drop later frees nothing. Memory that the pool took
    /// since stays with it, and is free. *Blocks* as [`checkpoint`](Self::checkpoint) does.
    ///
    /// The caller guarantees that nothing uses memory of the pool from now on, except as the graphs do that were recorded
    /// up to that state.
    ///
    /// # Errors
    /// Those of [`checkpoint`](Self::checkpoint); or if memory that was live is gone from the pool. Nothing has changed then.
    pub fn restore(&self, state: &PoolState) -> Result<Vec<HeldMemory>> {
        let restored = self.device().allocator().restore_pool(self.id(), &state.0);
        let restored = restored.map_err(|error| from_allocation(self.device(), error))?;
        Ok(restored.allocated.into_iter().map(HeldMemory).collect())
    }
}
