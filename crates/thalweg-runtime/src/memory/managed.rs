//! Managed memory as a source of segments: the source of a pool with `use_uvm`.

use std::sync::Arc;

use thalweg_driver::{DevicePointer, Driver, MemoryAdvice, MemoryLocation};
use thalweg_memory::{SegmentSource, StreamId, UpstreamError};

use super::outside_capture;
use super::upstream::upstream_error;
use crate::Device;

/// Segments of managed memory: their pages move between the device and the host as they are touched, so a pool with this source
/// may contain more memory than the device has. Pages prefer to be on the device, and the host accesses those that are there
/// without moving them, if the device supports that.
#[derive(Debug)]
pub struct ManagedMemory {
    driver: Arc<dyn Driver>,
    device: u32,
    takes_advice: bool,
}

impl ManagedMemory {
    /// Returns the managed memory of a device. Whether the device supports it shows at the first allocation.
    pub fn new(device: &Device) -> Self {
        let takes_advice = device.properties().concurrent_managed_access;
        Self { driver: device.driver().clone(), device: device.index(), takes_advice }
    }

    fn advise(&self, pointer: DevicePointer, bytes: u64) -> thalweg_driver::Result<()> {
        if !self.takes_advice {
            return Ok(());
        }
        let here = MemoryLocation::Device(self.device);
        self.driver.memory_advise(pointer, bytes, MemoryAdvice::PreferredLocation(Some(here)))?;
        self.driver.memory_advise(pointer, bytes, MemoryAdvice::AccessedBy(MemoryLocation::Host))
    }
}

impl SegmentSource for ManagedMemory {
    fn allocate(&self, bytes: u64, _stream: StreamId) -> Result<u64, UpstreamError> {
        let allocate = || {
            let pointer = self.driver.memory_allocate_managed(self.device, bytes)?;
            match self.advise(pointer, bytes) {
                Ok(()) => Ok(pointer.address()),
                Err(error) => {
                    // Nothing refers to the memory yet; the first error is the one to report.
                    let _ = self.driver.memory_free(pointer);
                    Err(error)
                }
            }
        };
        outside_capture(&self.driver, allocate).map_err(upstream_error)
    }

    fn free(&self, address: u64, _bytes: u64, _stream: StreamId) -> Result<(), UpstreamError> {
        outside_capture(&self.driver, || self.driver.memory_free(DevicePointer::new(address)))
            .map_err(upstream_error)
    }
}
