//! Private pools: memory whose addresses stay fixed for as long as a graph, or a handle of the pool, lives.

use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use thalweg_lock::Mutex;
use thalweg_memory::{PoolId, PoolOptions, StreamId};

use super::members::{Members, OverwritePolicy};
use super::report::PoolMemory;
use crate::{Device, Error, Result};

/// A private memory pool for captures (`torch.cuda.graph_pool_handle`). Graphs that share a pool reuse each other's freed memory;
/// the pool's [`OverwritePolicy`] decides what happens when a replay would overwrite an output that is still needed. The caller
/// must order replays of graphs of one pool on different streams. Clones refer to the same pool.
#[derive(Clone, Debug)]
pub struct GraphPool(Arc<PoolOwner>);

#[derive(Debug)]
struct PoolOwner {
    device: Device,
    id: PoolId,
    members: Members,
    /// Whether the pool was made for one capture.
    is_of_one_graph: bool,
    /// The streams on which dropped graphs of the pool were replayed.
    replayed_on: Mutex<SmallVec<[StreamId; 2]>>,
}

/// A pool that may be gone.
#[derive(Debug)]
pub(super) struct WeakPool {
    pub(super) id: PoolId,
    owner: Weak<PoolOwner>,
}

impl WeakPool {
    pub(super) fn is_there(&self) -> bool {
        self.owner.strong_count() > 0
    }

    pub(super) fn pool(&self) -> Option<GraphPool> {
        self.owner.upgrade().map(GraphPool)
    }
}

impl GraphPool {
    /// Creates a new pool on a device, in which an output that is still needed is not overwritten ([`OverwritePolicy::Refuse`]).
    pub fn new(device: &Device) -> Self {
        Self::with_policy(device, OverwritePolicy::default())
    }

    /// Creates a new pool with this policy.
    pub fn with_policy(device: &Device, policy: OverwritePolicy) -> Self {
        Self::made(device, policy, false)
    }

    /// Creates a pool for one capture. If the device `is_idle`, this may reuse the remaining memory of the pool of a dropped
    /// graph, since nothing touches that memory any more. So a program that captures again and again does not accumulate memory.
    pub(super) fn of_one_graph(device: &Device, policy: OverwritePolicy, is_idle: bool) -> Self {
        let allocator = device.allocator();
        let left = if is_idle { device.captures().take_left() } else { None };
        let left = left.filter(|id| allocator.live_blocks_of(*id).is_empty() && allocator.revive_pool(*id));
        if let Some(id) = left {
            if device.host_allocator().retain_pool(id).is_ok() {
                return Self::named(device, id, policy, true);
            }
            // Pinned memory of the pool is still held.
            let released = allocator.release_pool(id);
            debug_assert!(released.is_ok(), "it was revived a moment ago: {released:?}");
        }
        Self::made(device, policy, true)
    }

    fn made(device: &Device, policy: OverwritePolicy, is_of_one_graph: bool) -> Self {
        // Graphs that share a pool identify the owner of memory by its address; a pool of one graph does not need to.
        let options = PoolOptions { may_alias: is_of_one_graph, ..PoolOptions::default() };
        let id = device.allocator().create_pool_with(options);
        // The graphs' pinned memory is in a pool with the same id.
        let retained = device.host_allocator().retain_pool(id);
        debug_assert!(retained.is_ok(), "a new name is not known: {retained:?}");
        Self::named(device, id, policy, is_of_one_graph)
    }

    fn named(device: &Device, id: PoolId, policy: OverwritePolicy, is_of_one_graph: bool) -> Self {
        let (device, members) = (device.clone(), Members::new(policy));
        let replayed_on = Mutex::default();
        let pool = Self(Arc::new(PoolOwner { device, id, members, is_of_one_graph, replayed_on }));
        if is_of_one_graph {
            let owner = Arc::downgrade(&pool.0);
            pool.device().captures().made_for_one_graph(WeakPool { id, owner });
        }
        pool
    }

    /// Creates a graph pool on an allocator's pool that a part of the program uses too.
    pub(crate) fn over(device: &Device, id: PoolId, policy: OverwritePolicy) -> Result<Self> {
        device.allocator().retain_pool(id).map_err(|error| Error::invalid(error.to_string()))?;
        let retained = device.host_allocator().retain_pool(id);
        debug_assert!(retained.is_ok(), "pinned memory has a pool of any name: {retained:?}");
        Ok(Self::named(device, id, policy, false))
    }

    /// Returns the allocator's id of the pool.
    pub fn id(&self) -> PoolId {
        self.0.id
    }

    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }

    /// Returns the memory that the pool and its graphs use now.
    pub fn memory(&self) -> PoolMemory {
        let held = self.0.device.allocator().live_blocks_of(self.0.id);
        PoolMemory {
            reserved_bytes: self.reserved_bytes(),
            held_bytes: held.iter().map(|block| block.size_bytes).sum(),
            graphs: self.0.members.memory(),
        }
    }

    pub(super) fn members(&self) -> &Members {
        &self.0.members
    }

    /// Returns the bytes that the pool has reserved from the driver.
    pub fn reserved_bytes(&self) -> u64 {
        self.0.device.allocator().pool_reserved_bytes(self.0.id)
    }

    /// Notes streams whose work touches the pool's memory, and continues after its graph is dropped.
    pub(crate) fn was_replayed_on(&self, graphs_streams: &[StreamId]) {
        let mut streams = self.0.replayed_on.lock();
        for stream in graphs_streams {
            if !streams.contains(stream) {
                streams.push(*stream);
            }
        }
    }
}

impl Drop for PoolOwner {
    fn drop(&mut self) {
        let streams = self.replayed_on.get_mut();
        let released = self.device.allocator().release_pool_after(self.id, streams);
        debug_assert!(released.is_ok(), "a pool is released once: {released:?}");
        let host = self.device.host_allocator();
        let released = host.release_pool(self.id);
        debug_assert!(released.is_ok(), "a pool is released once: {released:?}");
        if self.is_of_one_graph {
            self.device.captures().leave(self.id);
        }
    }
}
