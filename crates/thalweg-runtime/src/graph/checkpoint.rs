//! The states of a pool, and restoring them, for graphs that are recorded along different paths into one pool.
//!
//! A graph that is recorded after another may use all memory that is free when it starts, and must not touch live memory. So
//! before it is recorded, the pool is restored to the state that the previous graph leaves ([`GraphPool::restore`]), however
//! often other paths have been recorded meanwhile. `thalweg_memory`'s `checkpoint` has the rules.

use thalweg_memory::{Block, PoolCheckpoint};

use super::GraphPool;
use crate::Result;
use crate::device::from_allocation;

/// A restorable state of a [`GraphPool`]: which memory was live, not its content.
#[derive(Clone, Debug)]
pub struct PoolState(PoolCheckpoint);

/// Memory of a pool that is kept out of its free memory. It is used only through the [buffers](GraphPool::output_buffer) that the
/// owner makes of it.
#[derive(Debug)]
pub struct HeldMemory(Block);

impl PoolState {
    /// Returns the addresses of the live blocks, in ascending order.
    pub fn live_addresses(&self) -> Vec<u64> {
        self.0.live_addresses()
    }
}

impl HeldMemory {
    pub(crate) fn new(block: Block) -> Self {
        Self(block)
    }

    /// Returns the address of the memory; 0 for 0 bytes.
    pub fn address(&self) -> u64 {
        self.0.address()
    }

    /// Returns the requested size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.0.requested_bytes()
    }
}

impl GraphPool {
    /// Returns the current state of the pool. *Blocks* until frees that wait for other streams are complete.
    ///
    /// # Errors
    /// [`Error::is_capture`](crate::Error::is_capture) while any capture of the device is under way;
    /// [`Error::is_invalid_argument`](crate::Error::is_invalid_argument) where the settings leave caching to the driver.
    pub fn checkpoint(&self) -> Result<PoolState> {
        let state = self.device().allocator().checkpoint_pool(self.id());
        state.map(PoolState).map_err(|error| from_allocation(self.device(), error))
    }

    /// Restores the pool to an earlier state, and returns the memory that was live then, in ascending order of the addresses. All
    /// memory that is live now is taken from its holders: dropping it later frees nothing. Memory that the pool reserved since
    /// stays with it, and is free. *Blocks* as [`checkpoint`](Self::checkpoint) does.
    ///
    /// The caller guarantees that from now on nothing uses memory of the pool except the graphs that were recorded up to that
    /// state.
    ///
    /// # Errors
    /// The errors of [`checkpoint`](Self::checkpoint); or if memory that was live is gone from the pool. In that case nothing has
    /// changed.
    pub fn restore(&self, state: &PoolState) -> Result<Vec<HeldMemory>> {
        let restored = self.device().allocator().restore_pool(self.id(), &state.0);
        let restored = restored.map_err(|error| from_allocation(self.device(), error))?;
        Ok(restored.allocated.into_iter().map(HeldMemory).collect())
    }
}
