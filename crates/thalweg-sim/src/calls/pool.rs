//! Pools of stream-ordered memory, and their allocations and frees.

use smallvec::SmallVec;
use thalweg_driver::{Code, PoolAttributes, PoolUsage};

use crate::executor::command::Body;
use crate::executor::faults::Point;
use crate::machine::Locked;
use crate::refusal::CallResult;
use crate::state::{MachineState, unknown};

impl MachineState {
    /// Returns the handle of a new pool.
    pub(crate) fn pool_create(&mut self, device: u32) -> CallResult<u64> {
        self.usable(device)?;
        let pool = self.pools.create(device);
        Ok(self.pool_handles.insert(pool))
    }

    /// Removes the handle of a pool. The pool itself lives as long as its allocations.
    pub(crate) fn pool_destroy(&mut self, handle: u64) -> CallResult<()> {
        let pool = self.pool_handles.remove(handle).ok_or_else(|| unknown("pool", handle))?;
        self.pools.destroy(pool, &mut self.memory);
        Ok(())
    }

    /// Returns unused memory of the pool to the device, down to `keep_bytes`.
    pub(crate) fn pool_trim(&mut self, handle: u64, keep_bytes: u64) -> CallResult<()> {
        let pool = self.pool(handle)?;
        self.pools.trim(pool, keep_bytes, &mut self.memory);
        Ok(())
    }

    /// Returns the pool's attributes.
    pub(crate) fn pool_attributes(&mut self, handle: u64) -> CallResult<&mut PoolAttributes> {
        let pool = self.pool(handle)?;
        Ok(self.pools.attributes(pool))
    }

    /// Returns the pool's usage.
    pub(crate) fn pool_usage(&mut self, handle: u64) -> CallResult<&mut PoolUsage> {
        let pool = self.pool(handle)?;
        Ok(self.pools.usage(pool))
    }

    /// Frees memory of a pool in the order of a stream, or captures the free.
    pub(crate) fn free_async(&mut self, address: u64, stream: u64) -> CallResult<()> {
        let own = self.enter(stream)?;
        self.pools.check_live(address)?;
        if self.stream(own).capture.is_some() {
            return self.capture_free(own, address);
        }
        if self.free_of_graph(address)? {
            return Ok(());
        }
        let command = self.append(own, Body::PoolFree(address));
        self.pools.set_freeing(address, SmallVec::from_slice(&[command]));
        Ok(())
    }
}

/// Allocates memory of a pool in the order of a stream. If memory is freed earlier in stream order but the free has not been
/// reached yet, waits for it.
pub(crate) fn allocate_async(mut locked: Locked<'_>, pool: u64, bytes: u64, stream: u64) -> CallResult<u64> {
    let own = locked.enter(stream)?;
    let pool = locked.pool(pool)?;
    let device = locked.pools.device(pool);
    locked.check_alive(device)?;
    locked.check_capture(own)?;
    locked.executor.faults.pass(Point::DeviceMemory)?;
    loop {
        let MachineState { pools, memory, .. } = &mut *locked;
        let refusal = match pools.allocate(pool, bytes, memory) {
            Err(refusal) if refusal.code == Code::OutOfMemory => refusal,
            outcome => {
                let address = outcome?;
                locked.capture_allocation(stream, address)?;
                return Ok(address);
            }
        };
        let frees = locked.pools.pending_frees(pool);
        if frees.is_empty() {
            return Err(refusal);
        }
        locked = locked.wait_for(&frees)?;
        locked.settle();
    }
}
