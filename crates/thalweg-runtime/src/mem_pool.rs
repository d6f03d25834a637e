//! [`MemPool`]: memory reserved for a part of a program (`torch.cuda.MemPool`, `use_mem_pool`).
//!
//! While a [`MemPoolScope`] lives, allocations of its thread on the device come from the pool, and return to it when they are
//! freed. Scopes nest. A pool may have segments of a kind of its own: managed memory ([`crate::ManagedMemory`]), or memory that
//! is registered with communicators ([`MemPool::for_collectives`]).
//!
//! Pools for captured graphs, whose memory must not move, are [`crate::GraphPool`].

use std::sync::Arc;

use thalweg_memory::{PoolId, PoolOptions, PoolScope};

use crate::deferred::queue_deferred;
use crate::device::from_allocation;
use crate::graph::{GraphPool, OverwritePolicy};
use crate::memory::CollectiveMemory;
use crate::{Communicator, Device, Error, Label, Result};
use crate::{invalid, refuse_if};

/// A private memory pool. After it is dropped, its cached memory is released as soon as its last block is freed and no scope uses
/// it.
#[derive(Debug)]
pub struct MemPool {
    device: Device,
    id: PoolId,
    collective: Option<Arc<CollectiveMemory>>,
}

/// A scope: while it lives, its thread allocates from a [`MemPool`].
#[derive(Debug)]
#[must_use = "dropping the scope ends it"]
pub struct MemPoolScope(#[expect(dead_code, reason = "its drop is what it is for")] PoolScope);

impl MemPool {
    /// Creates a new pool.
    pub fn new(device: &Device, options: PoolOptions) -> Self {
        let id = device.allocator().create_pool_with(options);
        Self { device: device.clone(), id, collective: None }
    }

    /// Creates a pool of memory that can be registered with communicators (`torch.cuda.MemPool(backend.mem_allocator)`); NCCL
    /// allocates it. The source in the options is ignored.
    pub fn for_collectives(device: &Device, options: PoolOptions) -> Self {
        let memory = Arc::new(CollectiveMemory::new(device));
        let mut pool = Self::new(device, PoolOptions { source: Some(memory.clone()), ..options });
        pool.collective = Some(memory);
        pool
    }

    /// Registers the current and future memory of the pool with a communicator: collectives that use it may avoid copies. It
    /// stays registered until it is freed or [deregistered](Self::deregister), or the communicator is dropped.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the pool was not made by [`MemPool::for_collectives`], is of another device or is
    /// registered already; [`Error::is_not_supported`] if NCCL is older than 2.19.
    pub fn register(&self, communicator: &Arc<Communicator>, label: Label) -> Result<()> {
        let memory = self.memory_for(communicator, label)?;
        self.registered(memory.register(communicator, label), label)
    }

    /// Registers the memory that the pool has gained since the last such call as symmetric memory, together with the memory that
    /// the other ranks register in the same call. All ranks must call this, each with the same number of
    /// [`segments`](Self::segment_bytes) of the same sizes in the same order. *Blocks* on GPUs until all ranks have called.
    ///
    /// # Errors
    /// The errors of [`MemPool::register`], here if NCCL is older than 2.27.3; [`Error::is_not_supported`] also if the GPUs
    /// cannot reach each other's memory.
    pub fn register_symmetric(&self, communicator: &Arc<Communicator>, label: Label) -> Result<()> {
        let memory = self.memory_for(communicator, label)?;
        self.registered(memory.register_symmetric(communicator, label), label)
    }

    fn registered(&self, outcome: thalweg_driver::Result<bool>, label: Label) -> Result<()> {
        match self.device.check(outcome)? {
            true => Ok(()),
            false => {
                Err(invalid!("{}: the pool is registered with this communicator already", label.operator))
            }
        }
    }

    /// Returns the sizes of the segments that NCCL has allocated for the pool, in the order of their allocation; empty for other
    /// pools.
    pub fn segment_bytes(&self) -> Vec<u64> {
        self.collective.as_ref().map(|memory| memory.segment_bytes()).unwrap_or_default()
    }

    /// Removes the registration with a communicator. No collective that uses the pool's memory may be under way.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the pool is not registered with it.
    pub fn deregister(&self, communicator: &Arc<Communicator>, label: Label) -> Result<()> {
        let memory = self.memory_for(communicator, label)?;
        match self.device.check(memory.deregister(communicator))? {
            true => Ok(()),
            false => Err(invalid!("{}: the pool is not registered with this communicator", label.operator)),
        }
    }

    fn memory_for(&self, communicator: &Communicator, label: Label) -> Result<&CollectiveMemory> {
        let call = label.operator;
        refuse_if!(
            *communicator.device() != self.device,
            "{call}: the pool is one of {}, and the communicator has {}",
            self.device,
            communicator.device()
        );
        self.collective.as_deref().ok_or_else(|| {
            invalid!(
                "{call}: NCCL did not allocate the memory of this pool: make the pool by `MemPool::for_collectives`"
            )
        })
    }

    /// Returns a graph pool over this pool, which graphs may share with the rest of the program (`torch.cuda.graph(...,
    /// pool=pool.id)`).
    pub fn for_graphs(&self, policy: OverwritePolicy) -> Result<GraphPool> {
        GraphPool::over(&self.device, self.id, policy)
    }

    /// Returns the allocator's id of the pool.
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// Returns the number of users of the pool: this handle, and each open scope.
    pub fn use_count(&self) -> usize {
        self.device.allocator().pool_use_count(self.id)
    }

    /// Makes allocations of this thread on the device come from the pool until the scope is dropped
    /// (`torch.cuda.use_mem_pool`).
    pub fn enter(&self) -> Result<MemPoolScope> {
        queue_deferred(Label::here("use_mem_pool"))?;
        let scope = self.device.allocator().use_pool(self.id);
        scope.map(MemPoolScope).map_err(|error| from_allocation(&self.device, error))
    }
}

impl Drop for MemPoolScope {
    fn drop(&mut self) {
        // What was deferred in the scope allocates from the pool. A failure is reported by the thread's next command.
        let _ = queue_deferred(Label::here("use_mem_pool"));
    }
}

impl Drop for MemPool {
    fn drop(&mut self) {
        let allocator = self.device.allocator();
        let released = allocator.release_pool(self.id);
        debug_assert!(released.is_ok(), "a pool is released once: {released:?}");
        // During a capture, or on a lost device, the memory stays cached; the next `empty_cache` releases it.
        let _ = allocator.empty_pool_cache(self.id);
    }
}
