//! Pinned host memory.

use std::sync::Arc;

use bytemuck::Pod;
use thalweg_device::HostPointer;
use thalweg_memory::HostBlock;

use crate::memory::from_allocation;
use crate::{Device, Error, Result, Stream};

/// Page-locked host memory from the cache: the only host memory that is copied asynchronously.
///
/// The host reads and writes it through methods, because a copy may be using it: those do not wait for the device, so
/// order them yourself (synchronise an event that was recorded behind the copy). Dropping it while a copy is under way is
/// fine: the cache keeps the memory until the copy is done.
#[derive(Debug)]
pub struct PinnedBuffer {
    device: Device,
    /// Shared with the graphs that captured a copy from or to it.
    block: Arc<HostBlock>,
}

impl PinnedBuffer {
    /// `bytes` of pinned memory. Its content is anything. While the current stream captures, it comes from the graph's pool.
    pub fn new(device: &Device, bytes: u64) -> Result<Self> {
        let block = device
            .host_allocator()
            .allocate_on(bytes, device.current_stream().id())
            .map_err(|error| from_allocation(device, error))?;
        Ok(Self { device: device.clone(), block: Arc::new(block) })
    }

    /// The bytes that were asked for.
    pub fn size_bytes(&self) -> u64 {
        self.block.requested_bytes()
    }

    /// The address.
    pub fn pointer(&self) -> HostPointer {
        HostPointer::new(self.block.address())
    }

    /// Writes elements from a byte offset on. Does not wait for the device.
    pub fn write<T: Pod>(&self, offset_bytes: u64, values: &[T]) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        self.check_range(offset_bytes, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        Ok(self.device.driver().host_write(self.pointer().offset(offset_bytes), bytes)?)
    }

    /// Reads elements from a byte offset on. Does not wait for the device.
    pub fn read<T: Pod>(&self, offset_bytes: u64, values: &mut [T]) -> Result<()> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(values);
        self.check_range(offset_bytes, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        Ok(self.device.driver().host_read(self.pointer().offset(offset_bytes), bytes)?)
    }

    pub(crate) fn check_range(&self, offset_bytes: u64, bytes: u64) -> Result<()> {
        if offset_bytes.checked_add(bytes).is_none_or(|end| end > self.size_bytes()) {
            return Err(Error::invalid(format!(
                "pinned buffer of {} bytes: bytes {offset_bytes} to {} are outside",
                self.size_bytes(),
                offset_bytes.saturating_add(bytes)
            )));
        }
        Ok(())
    }

    /// Remembers that work the stream was just given uses the memory: the cache keeps it until that work is done, and a graph
    /// that captured the work keeps it for as long as it lives.
    pub(crate) fn record_use(&self, stream: &Stream) {
        self.block.record_use(stream.id());
        stream.device().captures().keep(stream, &self.block);
    }
}
