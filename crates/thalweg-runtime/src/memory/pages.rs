//! The driver's virtual memory, as the allocators use it: addresses and physical memory are managed separately.
//!
//! These calls are allowed in every capture and are not captured, so they need no wrapper here. A page is one piece of physical
//! memory. If the device supports it, pages can be shared with another process, and registered with a network adapter (GPUDirect
//! RDMA), as plain memory can: this costs nothing, and cannot be added to a page later.

use std::sync::atomic::Ordering;

use thalweg_driver::{DevicePointer, HandleType, MemoryAccess, PhysicalFlags, PhysicalHandle};
use thalweg_memory::{PageId, StreamId, UpstreamError, VirtualMemory};

use super::upstream::{DriverUpstream, handle, upstream_error};

impl DriverUpstream {
    /// Maps the pages contiguously and makes them accessible to the device and its peers. On an error some of them may be mapped:
    /// the error includes the number of bytes.
    fn map_and_open(
        &self,
        start: DevicePointer,
        page_bytes: u64,
        pages: &[PageId],
    ) -> Result<(), (u64, thalweg_driver::Error)> {
        let mut mapped = 0;
        for page in pages {
            let page = PhysicalHandle::from_raw(page.raw());
            self.driver
                .memory_map(start.offset(mapped), page_bytes, page, 0)
                .map_err(|error| (mapped, error))?;
            mapped += page_bytes;
        }
        // One call for all pages: on a GPU it costs half as much as one call per page.
        let peers = self.peers.read();
        for device in std::iter::once(self.device).chain(peers.iter().copied()) {
            self.driver
                .memory_set_access(start, mapped, device, MemoryAccess::ReadWrite)
                .map_err(|error| (mapped, error))?;
        }
        Ok(())
    }
}

impl VirtualMemory for DriverUpstream {
    fn granularity_bytes(&self) -> u64 {
        // `virtual_memory` has queried the driver, which reported support.
        self.properties().map_or(1 << 21, |properties| properties.virtual_memory_granularity_bytes)
    }

    fn reserve_addresses(&self, bytes: u64) -> Result<u64, UpstreamError> {
        let reserved = self.driver.address_reserve(self.device, bytes);
        reserved.map(DevicePointer::address).map_err(upstream_error)
    }

    fn free_addresses(&self, address: u64, bytes: u64) -> Result<(), UpstreamError> {
        self.driver.address_free(DevicePointer::new(address), bytes).map_err(upstream_error)
    }

    fn create_page(&self, bytes: u64) -> Result<PageId, UpstreamError> {
        let flags = self.properties().map_or_else(PhysicalFlags::default, |properties| PhysicalFlags {
            share_as: properties.shares_file_descriptors.then_some(HandleType::FileDescriptor),
            gpu_direct_rdma: properties.gpu_direct_rdma_with_virtual_memory,
        });
        let page = self.driver.physical_create(self.device, bytes, flags).map_err(upstream_error)?;
        Ok(PageId::from_raw(page.raw()))
    }

    fn destroy_page(&self, page: PageId) -> Result<(), UpstreamError> {
        // The lock is held meanwhile: once the page is released, its number may be reused.
        let mut descriptors = self.descriptors.lock();
        self.driver.physical_release(PhysicalHandle::from_raw(page.raw())).map_err(upstream_error)?;
        // An exported file keeps the memory alive on a GPU.
        if descriptors.remove(&page).is_some() {
            self.serial.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn map(&self, address: u64, page_bytes: u64, pages: &[PageId]) -> Result<(), UpstreamError> {
        if pages.is_empty() {
            return Ok(());
        }
        let start = DevicePointer::new(address);
        let (mapped, error) = match self.map_and_open(start, page_bytes, pages) {
            Ok(()) => return Ok(()),
            Err(failure) => failure,
        };
        if mapped == 0 {
            return Err(upstream_error(error));
        }
        match self.driver.memory_unmap(start, mapped) {
            Ok(()) => Err(upstream_error(error)),
            // Most likely the device is unusable; the error must report that the range is not empty.
            Err(second) => {
                let more =
                    format!("and {mapped} bytes stay mapped at {address:#x}, since undoing failed: {second}");
                Err(UpstreamError::Other(Box::new(error.with_detail(&more))))
            }
        }
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), UpstreamError> {
        self.driver.memory_unmap(DevicePointer::new(address), bytes).map_err(upstream_error)
    }

    fn synchronize_stream(&self, stream: StreamId) -> Result<(), UpstreamError> {
        self.wait_for_stream(handle(stream)).map_err(upstream_error)
    }
}
