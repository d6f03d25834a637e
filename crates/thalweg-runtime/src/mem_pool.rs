//! [`MemPool`]: memory that a part of a program has to itself (`torch.cuda.MemPool`, `use_mem_pool`).
//!
//! While a [`MemPoolScope`] lives, what its thread allocates on the device comes from the pool, and goes back to it when it is
//! freed. Scopes nest. A pool may have segments of its own kind: managed memory ([`crate::ManagedMemory`]), or memory that a
//! library wants to have registered.
//!
//! What is not here: pools for captured graphs, whose memory must stay put ([`crate::GraphPool`]).

use thalweg_memory::{PoolId, PoolOptions, PoolScope};

use crate::device::from_allocation;
use crate::{Device, Result};

/// A private memory pool. Dropping it gives its cached memory back as soon as its last block is freed and no scope uses it.
#[derive(Debug)]
pub struct MemPool {
    device: Device,
    id: PoolId,
}

/// While it lives, its thread allocates from a [`MemPool`].
#[derive(Debug)]
#[must_use = "dropping the scope ends it"]
pub struct MemPoolScope(#[expect(dead_code, reason = "its drop is what it is for")] PoolScope);

impl MemPool {
    /// Creates a new pool.
    pub fn new(device: &Device, options: PoolOptions) -> Self {
        Self { device: device.clone(), id: device.allocator().create_pool_with(options) }
    }

    /// Returns the allocator's name of the pool.
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// Returns how many hold the pool: this handle, and each open scope.
    pub fn use_count(&self) -> usize {
        self.device.allocator().pool_use_count(self.id)
    }

    /// Makes allocations of this thread on the device come from the pool until the scope is dropped
    /// (`torch.cuda.use_mem_pool`).
    pub fn enter(&self) -> Result<MemPoolScope> {
        let scope = self.device.allocator().use_pool(self.id);
        scope.map(MemPoolScope).map_err(|error| from_allocation(&self.device, error))
    }
}

impl Drop for MemPool {
    fn drop(&mut self) {
        let allocator = self.device.allocator();
        let released = allocator.release_pool(self.id);
        debug_assert!(released.is_ok(), "a pool is released once: {released:?}");
        // During a capture, or on a lost device, the memory stays cached; the next `empty_cache` gives it back.
        let _ = allocator.empty_pool_cache(self.id);
    }
}
