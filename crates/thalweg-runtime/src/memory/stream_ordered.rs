//! The driver's stream-ordered allocator, as the allocators use it.
//!
//! Each device has a pool of its own, made at the first request: the driver's default pool is shared with every other library of
//! the process, whose settings would affect ours. The pool keeps freed memory until it is trimmed.

use thalweg_driver::{DevicePointer, PoolHandle};
use thalweg_memory::{Reserved, StreamId, StreamOrdered, UpstreamError};

use super::outside_capture;
use super::upstream::{DriverUpstream, handle, upstream_error};

impl DriverUpstream {
    fn pool(&self) -> Result<PoolHandle, UpstreamError> {
        let mut pool = self.pool.lock();
        match *pool {
            Some(pool) => Ok(pool),
            None => {
                let made = outside_capture(&self.driver, || self.driver.pool_create(self.device));
                Ok(*pool.insert(made.map_err(upstream_error)?))
            }
        }
    }
}

impl StreamOrdered for DriverUpstream {
    fn allocate_async(&self, bytes: u64, stream: StreamId) -> Result<u64, UpstreamError> {
        let allocated = self.driver.memory_allocate_async(self.pool()?, bytes, handle(stream));
        allocated.map(DevicePointer::address).map_err(upstream_error)
    }

    fn free_async(&self, address: u64, stream: StreamId) -> Result<(), UpstreamError> {
        let after = self.stream_after(handle(stream));
        let freed =
            after.and_then(|stream| self.driver.memory_free_async(DevicePointer::new(address), stream));
        freed.map_err(upstream_error)
    }

    fn trim(&self, keep_bytes: u64) -> Result<(), UpstreamError> {
        let Some(pool) = *self.pool.lock() else { return Ok(()) };
        outside_capture(&self.driver, || self.driver.pool_trim(pool, keep_bytes)).map_err(upstream_error)
    }

    fn reserved(&self) -> Result<Reserved, UpstreamError> {
        let Some(pool) = *self.pool.lock() else { return Ok(Reserved::default()) };
        let usage = self.driver.pool_usage(pool).map_err(upstream_error)?;
        Ok(Reserved { current_bytes: usage.reserved_bytes, peak_bytes: usage.reserved_peak_bytes })
    }

    fn reset_reserved_peak(&self) -> Result<(), UpstreamError> {
        let Some(pool) = *self.pool.lock() else { return Ok(()) };
        self.driver.pool_reset_peaks(pool).map_err(upstream_error)
    }

    fn synchronize(&self) -> Result<(), UpstreamError> {
        outside_capture(&self.driver, || self.driver.device_synchronize(self.device)).map_err(upstream_error)
    }
}
