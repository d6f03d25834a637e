//! Memory that is shared between processes: the driver's part of it, and [`SharedBuffer`].
//!
//! [`Buffer::share`] returns bytes, which the program sends by whatever means; [`Device::open_shared`] in another process opens
//! the same memory there. The bytes have PyTorch's format, as `thalweg_memory` writes it: one handle for plain memory, one handle
//! per page for memory of growing segments.
//!
//! - The descriptor of an exported page is opened once and closed with the page: a receiver may fetch it at any time in between.
//!   It fetches it through the number of this process, so this process must still run, and the receiver must be allowed to trace
//!   it.
//! - A plain handle does not contain the size of its memory: the driver is queried when it is open.
//!
//! Not covered here: sending the bytes; order between processes (both synchronise, or share an event by other means); and keeping
//! the memory alive for a receiver: the shared buffer must live until the other side has closed it.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use thalweg_driver::{DevicePointer, IpcHandle, PhysicalHandle, ShareableHandle, descriptor_of_process};
use thalweg_memory::{
    AllocationError, MemoryHandle, MemorySharing, PageHandle, PageId, SharedMemory, UpstreamError,
};

use super::buffer::{Buffer, Memory};
use super::outside_capture;
use super::upstream::{DriverUpstream, upstream_error};
use crate::device::from_allocation;
use crate::{Device, Error, Result, Stream};
use crate::{invalid, refuse, refuse_if};

impl MemorySharing for DriverUpstream {
    fn export_allocation(&self, base_address: u64) -> Result<[u8; 64], UpstreamError> {
        let exported = self.driver.ipc_export(DevicePointer::new(base_address));
        exported.map(|handle| handle.0).map_err(upstream_error)
    }

    fn import_allocation(&self, handle: &[u8; 64]) -> Result<u64, UpstreamError> {
        outside_capture(&self.driver, || self.driver.ipc_open(self.device, IpcHandle(*handle)))
            .map(DevicePointer::address)
            .map_err(upstream_error)
    }

    fn close_allocation(&self, address: u64) -> Result<(), UpstreamError> {
        outside_capture(&self.driver, || self.driver.ipc_close(DevicePointer::new(address)))
            .map_err(upstream_error)
    }

    fn export_page(&self, page: PageId) -> Result<PageHandle, UpstreamError> {
        let mut descriptors = self.descriptors.lock();
        if let Some(descriptor) = descriptors.get(&page) {
            return Ok(PageHandle::Descriptor(descriptor.as_raw_fd()));
        }
        let exported = self.driver.physical_export(PhysicalHandle::from_raw(page.raw()));
        Ok(match exported.map_err(upstream_error)? {
            ShareableHandle::FileDescriptor(descriptor) => {
                let number = descriptor.as_raw_fd();
                descriptors.insert(page, descriptor);
                PageHandle::Descriptor(number)
            }
            ShareableHandle::Fabric(bytes) => PageHandle::Fabric(bytes),
        })
    }

    fn serial(&self) -> u64 {
        self.serial.load(Ordering::Relaxed)
    }

    fn import_page(&self, process: u32, bytes: u64, handle: &PageHandle) -> Result<PageId, UpstreamError> {
        let handle = match handle {
            PageHandle::Descriptor(number) => {
                let descriptor = descriptor_of_process(process, *number).map_err(upstream_error)?;
                ShareableHandle::FileDescriptor(descriptor)
            }
            PageHandle::Fabric(bytes) => ShareableHandle::Fabric(bytes.clone()),
        };
        let imported = self.driver.physical_import(self.device, bytes, &handle);
        imported.map(|page| PageId::from_raw(page.raw())).map_err(upstream_error)
    }
}

/// The data that another process needs to open a buffer: send all three fields, and the number of the device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedHandle {
    /// The bytes that another process opens, in PyTorch's format.
    pub bytes: Vec<u8>,
    /// The distance from the beginning of the opened memory to the buffer, in bytes.
    pub offset_bytes: u64,
    /// The size of the buffer, in bytes.
    pub size_bytes: u64,
}

impl Buffer {
    /// Returns the handle with which another process opens this memory (`shareIpcHandle`). The buffer must live until no process
    /// has it open any more. Other buffers may be in the same segment or the same pages: a process that opens this one can access
    /// those.
    ///
    /// Plain memory takes one handle. Memory of a growing segment takes an open file descriptor for each of its pages, which
    /// stays open while the page exists: to share large buffers, turn `expandable_segments` off. Nothing is synchronised: the
    /// writes that the receiver should see must be complete before it reads.
    ///
    /// # Errors
    /// If there is nothing to share (0 bytes), or the memory cannot be shared: memory of the driver's stream-ordered allocator,
    /// of a pool with a source of its own, of an output of a graph, or of a device without support for sharing.
    pub fn share(&self) -> Result<SharedHandle> {
        let (device, size_bytes) = (self.device(), self.size_bytes());
        let Memory::Owned(block) = &self.memory else {
            refuse!(
                "{device}: sharing a buffer of {size_bytes} bytes: it is an output of a graph, which will write it again, or memory of another library; share a copy"
            );
        };
        let shared = block.share().map_err(|error| {
            let advice =
                "allocate it from a plain segment or a growing one, on a device that can share those";
            in_context(device, error, format!("{device}: sharing a buffer of {size_bytes} bytes ({advice})"))
        })?;
        Ok(SharedHandle { bytes: shared.memory.encode(), offset_bytes: shared.offset_bytes, size_bytes })
    }
}

impl Device {
    /// Opens memory of this device that another process shared (`getIpcDevPtr`), or reuses it if it is open already. May block.
    /// The buffer there must still live. A GPU does not open plain memory of the same process, and the simulator does not open
    /// memory of other processes.
    ///
    /// The bytes may come from an untrusted source: bytes that are not a handle, a handle of memory that is gone or of another
    /// device, and a size that does not fit are errors.
    ///
    /// # Errors
    /// If the bytes are not a handle, or the buffer is not within the memory of the handle; or the driver's error, or the
    /// operating system's if this process may not fetch the other's file descriptors. Then everything that was opened is closed
    /// again.
    pub fn open_shared(&self, handle: &SharedHandle) -> Result<SharedBuffer> {
        let SharedHandle { bytes, offset_bytes, size_bytes } = handle;
        let decoded = MemoryHandle::decode(bytes).map_err(|error| invalid!("{self}: {error}"))?;
        let memory = self.allocator().open_shared(&decoded).map_err(|error| {
            let advice = "the process that shared it, another one on a GPU and this one on a simulated device, must still \
                          have it, on this device";
            in_context(self, error, format!("{self}: opening {size_bytes} bytes that were shared ({advice})"))
        })?;
        // If the handle does not contain the size of the memory, the driver knows it.
        let extent_bytes = match decoded.extent_bytes() {
            Some(bytes) => bytes,
            None => {
                let pointer = DevicePointer::new(memory.address());
                let (start, bytes) = self.check(self.driver().address_range(pointer))?;
                bytes - (memory.address() - start.address())
            }
        };
        refuse_if!(
            offset_bytes.checked_add(*size_bytes).is_none_or(|end| end > extent_bytes),
            "{self}: {size_bytes} bytes at offset {offset_bytes} are not within the {extent_bytes} bytes that were \
             shared; send the offset and the size as `Buffer::share` gave them"
        );
        let pointer = DevicePointer::new(memory.address()).offset(*offset_bytes);
        Ok(SharedBuffer { device: self.clone(), memory, pointer, size_bytes: *size_bytes })
    }
}

fn in_context(device: &Device, error: AllocationError, context: String) -> Error {
    from_allocation(device, error).context(context)
}

/// Memory that another process shared. It belongs to no stream and comes from no cache. Dropping the last user of a handle closes
/// it, and *blocks* until the recorded streams are done with it; during a capture it stays open for as long as the process lives.
#[derive(Debug)]
pub struct SharedBuffer {
    device: Device,
    memory: Arc<SharedMemory>,
    pointer: DevicePointer,
    size_bytes: u64,
}

impl SharedBuffer {
    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the address in this process, which usually differs from the address in the process that shared the memory.
    pub fn pointer(&self) -> DevicePointer {
        self.pointer
    }

    /// Returns the size of the shared buffer in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Records that work on `stream` uses the memory: it stays open until the work that is on the stream at the drop is complete.
    /// Every stream that uses the memory has to be recorded.
    pub fn record_stream(&self, stream: &Stream) {
        self.memory.record_stream(stream.id());
    }
}
