//! PyTorch's pools: pairs of numbers that PyTorch chooses, mapped to the allocator's names.
//!
//! PyTorch counts references to a pool implicitly: code that begins to allocate to a pool holds a reference from then on, also
//! after the end of the scope, until it releases it. The first call that names a pool creates it. Our references are counted in
//! the same way, so both counts agree, except for the reference that an open scope holds.
//!
//! A pool whose last reference was released may still have live blocks, and snapshots name it, so its name is kept until its
//! memory is gone. If PyTorch names it again, a new pool is created.
//!
//! Observers of events look up names while the lock of an arena is held. So names have their own lock, which is never held while
//! the allocator is called.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use thalweg_lock::{Mutex, RwLock};
use thalweg_memory::{DeviceAllocator, PoolId, PoolOptions, SegmentSource, StreamFilter};

use crate::status::{Error, Result};
use thalweg_runtime::{invalid, refuse_if};

/// PyTorch's name of a pool (`MempoolId_t`). (0, 0) is the shared pool.
pub type PoolName = (u64, u64);

struct Pool {
    id: PoolId,
    /// Whether allocations go to the pool; the allocator then holds a reference, too.
    is_open: bool,
}

/// The pools of one device.
#[derive(Default)]
pub(crate) struct Pools {
    pools: Mutex<FxHashMap<PoolName, Pool>>,
    /// The names by the allocator's numbers, including those of released pools.
    names: RwLock<FxHashMap<u64, (PoolId, PoolName)>>,
}

/// The number of names of released pools at which a search for those without memory begins.
const NAMES_KEPT: usize = 256;

impl Pools {
    fn keep_name(&self, id: PoolId, name: PoolName) {
        self.names.write().insert(id.raw(), (id, name));
    }

    /// Adds a reference to a pool, and creates it if it does not exist. A source of segments is used only for a new pool.
    pub(crate) fn retain(
        &self,
        allocator: &DeviceAllocator,
        name: PoolName,
        source: Option<Arc<dyn SegmentSource>>,
    ) -> Result<PoolId> {
        check_name(name)?;
        let mut pools = self.pools.lock();
        if let Some(pool) = pools.get(&name) {
            allocator.retain_pool(pool.id)?;
            return Ok(pool.id);
        }
        // PyTorch relies only on addresses.
        let options = PoolOptions { may_alias: source.is_none(), source, ..PoolOptions::default() };
        let id = allocator.create_pool_with(options);
        pools.insert(name, Pool { id, is_open: false });
        self.forget_names(allocator, &pools);
        self.keep_name(id, name);
        Ok(id)
    }

    /// Adds a reference, and routes requests that match `filter` to the pool until [`end`](Self::end).
    pub(crate) fn begin(
        &self,
        allocator: &DeviceAllocator,
        name: PoolName,
        filter: StreamFilter,
    ) -> Result<()> {
        let id = self.retain(allocator, name, None)?;
        if let Err(error) = allocator.begin_use_pool(id, filter) {
            self.release(allocator, name)?;
            return Err(error.into());
        }
        if let Some(pool) = self.pools.lock().get_mut(&name) {
            pool.is_open = true;
        }
        Ok(())
    }

    /// Stops routing requests to a pool. The reference stays.
    pub(crate) fn end(&self, allocator: &DeviceAllocator, name: PoolName) -> Result<()> {
        let id = self.id(name)?;
        allocator.end_use_pool(id)?;
        if let Some(pool) = self.pools.lock().get_mut(&name) {
            pool.is_open = false;
        }
        Ok(())
    }

    /// Removes a reference.
    pub(crate) fn release(&self, allocator: &DeviceAllocator, name: PoolName) -> Result<()> {
        let mut pools = self.pools.lock();
        let id = pools.get(&name).ok_or_else(|| unknown(name))?.id;
        allocator.release_pool(id)?;
        if allocator.pool_use_count(id) == 0 {
            pools.remove(&name);
        }
        Ok(())
    }

    /// Returns the number of references that PyTorch holds; 0 if there is no such pool.
    pub(crate) fn use_count(&self, allocator: &DeviceAllocator, name: PoolName) -> usize {
        self.pools
            .lock()
            .get(&name)
            .map_or(0, |pool| allocator.pool_use_count(pool.id) - usize::from(pool.is_open))
    }

    /// Returns the allocator's name of a pool.
    pub(crate) fn id(&self, name: PoolName) -> Result<PoolId> {
        self.pools.lock().get(&name).map(|pool| pool.id).ok_or_else(|| unknown(name))
    }

    /// Returns all pools that ever had this name and may still have memory.
    pub(crate) fn ids_named(&self, name: PoolName) -> Vec<PoolId> {
        let names = self.names.read();
        let mut ids: Vec<PoolId> =
            names.values().filter(|(_, other)| *other == name).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// Returns PyTorch's name of a pool of a snapshot or an event; (0, 0) for the shared one.
    pub(crate) fn name(&self, number: (u64, u64)) -> PoolName {
        match number {
            (0, 0) => (0, 0),
            (_, raw) => {
                let names = self.names.read();
                names.get(&raw).map_or(number, |(_, name)| *name)
            }
        }
    }

    /// Drops the names of pools that are gone, when there are many.
    fn forget_names(&self, allocator: &DeviceAllocator, pools: &FxHashMap<PoolName, Pool>) {
        let count = self.names.read().len();
        if count < NAMES_KEPT + 2 * pools.len() {
            return;
        }
        let here = pools.values().map(|pool| pool.id.raw());
        let holding = allocator.snapshot();
        let holding = holding.iter().filter_map(|segment| segment.pool.map(PoolId::raw));
        let kept: FxHashSet<u64> = here.chain(holding).collect();
        self.names.write().retain(|raw, _| kept.contains(raw));
    }
}

fn check_name(name: PoolName) -> Result<()> {
    refuse_if!(name == (0, 0), "the pool (0, 0) is the shared one; it is neither begun nor released");
    Ok(())
}

fn unknown(name: PoolName) -> Error {
    invalid!("there is no pool {name:?}: it was never begun, or has been released")
}
