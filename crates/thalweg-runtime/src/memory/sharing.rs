//! Memory that several processes have: the driver's part of it, and [`SharedBuffer`].
//!
//! [`Buffer::share`] gives bytes, which the program sends by whatever means; [`Device::open_shared`] of another process gives
//! the same memory there. The bytes are PyTorch's, as `thalweg_memory` writes them: one handle for plain memory, a handle per page
//! for memory of growing segments.
//!
//! - The descriptor of an exported page is opened once and closed with the page: a receiver may come for it at any time
//!   between. It comes by the number of this process, which therefore has to be there, and the receiver be allowed to trace it.
//! - A plain handle does not say how much memory it stands for: the driver is asked when it is open.
//!
//! What is not here: sending the bytes, order between processes (both synchronise, or share an event by other means), and
//! keeping the memory alive for a receiver: the buffer that was shared lives until the other side has closed it.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use thalweg_driver::{DevicePointer, IpcHandle, PhysicalHandle, ShareableHandle, descriptor_of_process};
use thalweg_memory::{
    AllocationError, MemoryHandle, MemorySharing, PageHandle, PageId, SharedMemory, UpstreamError,
};

use super::buffer::{Buffer, Memory};
use super::outside_capture;
use super::upstream::{DriverUpstream, lock, upstream_error};
use crate::device::from_allocation;
use crate::{Device, Error, Result, Stream};

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
        let mut descriptors = lock(&self.descriptors);
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

/// A buffer as another process may be given it: all three are to be sent, and which device it is on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedHandle {
    /// The bytes that another process opens, in PyTorch's format.
    pub bytes: Vec<u8>,
    /// The distance from the beginning of that to the buffer, in bytes.
    pub offset_bytes: u64,
    /// The size of the buffer, in bytes.
    pub size_bytes: u64,
}

impl Buffer {
    /// Returns what another process needs to open this memory (`shareIpcHandle`). The buffer must live until no process has it
    /// open any more. Other buffers may lie in the same segment or the same pages: a process that opens this one can touch those.
    ///
    /// Plain memory takes one handle. Memory of a growing segment takes an open file descriptor for each of its pages, which stays
    /// open while the page is there: to share large buffers, turn `expandable_segments` off. Nothing is synchronised: what the
    /// receiver is to see must be done before it looks.
    ///
    /// # Errors
    /// If there is nothing to share (0 bytes), or the memory cannot be shared: that of the driver's stream-ordered allocator,
    /// of a pool with a source of its own, of an output of a graph, or of a device without the means.
    pub fn share(&self) -> Result<SharedHandle> {
        let (device, size_bytes) = (self.device(), self.size_bytes());
        let Memory::Owned(block) = &self.memory else {
            return Err(Error::invalid(format!(
                "{device}: sharing a buffer of {size_bytes} bytes: it is an output of a graph, which will write it again, or memory of another library; share a copy"
            )));
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
    /// Opens memory of this device that another process shared (`getIpcDevPtr`), or finds it open already. May block. The
    /// buffer there must still live. A GPU does not open plain memory of the process itself, and the simulator opens no
    /// memory of others.
    ///
    /// The bytes may come from anywhere: what is not a handle, or stands for memory that is gone or elsewhere, is an error, and so
    /// is a size that does not fit.
    ///
    /// # Errors
    /// If the bytes are not a handle, or the buffer is not within what they stand for; or the driver's, or the operating system's
    /// where this process may not have the other's file descriptors. Then nothing is open that was not before.
    pub fn open_shared(&self, handle: &SharedHandle) -> Result<SharedBuffer> {
        let SharedHandle { bytes, offset_bytes, size_bytes } = handle;
        let decoded =
            MemoryHandle::decode(bytes).map_err(|error| Error::invalid(format!("{self}: {error}")))?;
        let memory = self.allocator().open_shared(&decoded).map_err(|error| {
            let advice = "the process that shared it, another one on a GPU and this one on a simulated device, must still \
                          have it, on this device";
            in_context(self, error, format!("{self}: opening {size_bytes} bytes that were shared ({advice})"))
        })?;
        // Where the handle does not say how large the memory is, the driver knows.
        let extent_bytes = match decoded.extent_bytes() {
            Some(bytes) => bytes,
            None => {
                let pointer = DevicePointer::new(memory.address());
                let (start, bytes) = self.check(self.driver().address_range(pointer))?;
                bytes - (memory.address() - start.address())
            }
        };
        if offset_bytes.checked_add(*size_bytes).is_none_or(|end| end > extent_bytes) {
            return Err(Error::invalid(format!(
                "{self}: {size_bytes} bytes at offset {offset_bytes} are not within the {extent_bytes} bytes that were \
                 shared; send the offset and the size as `Buffer::share` gave them"
            )));
        }
        let pointer = DevicePointer::new(memory.address()).offset(*offset_bytes);
        Ok(SharedBuffer { device: self.clone(), memory, pointer, size_bytes: *size_bytes })
    }
}

fn in_context(device: &Device, error: AllocationError, context: String) -> Error {
    from_allocation(device, error).context(context)
}

/// Memory that another process shared. It belongs to no stream and comes from no cache. The last drop of what was opened by
/// one handle closes it, and *blocks* until the recorded streams are through with it; during a capture it stays open for as
/// long as the process lives.
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

    /// Returns the address in this process: another one than in the process that shared it, as a rule.
    pub fn pointer(&self) -> DevicePointer {
        self.pointer
    }

    /// Returns the bytes that were shared.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Says that work on `stream` uses the memory: it stays open until the work that the stream has by the drop is done. Every
    /// stream that uses it has to be recorded.
    pub fn record_stream(&self, stream: &Stream) {
        self.memory.record_stream(stream.id());
    }
}
