//! Pinned host memory.

use std::sync::Arc;

use bytemuck::Pod;
use thalweg_driver::{BlockKind, UseKind};
use thalweg_driver::{HostPointer, Label, StreamHandle};
use thalweg_memory::{HostBlock, StreamId};

use crate::device::from_allocation;
use crate::refuse_if;
use crate::{Device, Error, Result, Stream};

/// Page-locked host memory from the cache: the only host memory that is copied asynchronously.
///
/// The host reads and writes it through methods, because a copy may be using it. They do not wait for the device, so the caller
/// must order them (synchronise an event that was recorded after the copy). The buffer may be dropped while a copy is under way:
/// the cache keeps the memory until the copy is done.
#[derive(Debug)]
pub struct PinnedBuffer {
    device: Device,
    /// The block, shared with the graphs that captured a copy from or to it.
    block: Arc<PinnedBlock>,
}

/// A block of the cache of pinned memory, with the device whose streams use it.
#[derive(Debug)]
pub(crate) struct PinnedBlock {
    device: Device,
    block: HostBlock,
}

impl PinnedBlock {
    /// Records a use of the block by work on the stream: until the free, or so far.
    pub(crate) fn record(&self, stream: StreamId, kind: UseKind, label: Label) {
        match kind {
            UseKind::UntilFree => self.block.record_stream(stream),
            UseKind::SoFar => self.block.record_use(stream),
        }
        if let Some(instrument) = self.device.instrument() {
            let stream = StreamHandle::from_raw(stream.raw());
            instrument.block_recorded(self.block.address(), stream, kind, label);
        }
    }

    /// Returns the requested size in bytes.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.block.requested_bytes()
    }
}

impl Drop for PinnedBlock {
    /// Reports the free before the block is returned: immediately afterwards it may have another owner.
    fn drop(&mut self) {
        if let Some(instrument) = self.device.instrument() {
            instrument.block_freed(self.block.address(), None);
        }
    }
}

impl PinnedBuffer {
    /// Allocates `bytes` of uninitialised pinned memory. If the current stream captures, the memory comes from the graph's pool.
    #[track_caller]
    pub fn new(device: &Device, bytes: u64) -> Result<Self> {
        device.check_process("PinnedBuffer::new")?;
        let (stream, label) = (device.current_stream(), Label::here("PinnedBuffer::new"));
        let block = device
            .host_allocator()
            .allocate_on(bytes, stream.id())
            .map_err(|error| from_allocation(device, error))?;
        if let Some(instrument) = device.instrument() {
            let (start, kind) = (block.address(), BlockKind::Pinned);
            instrument.block_allocated(start, block.requested_bytes(), kind, stream.handle(), label);
        }
        let block = Arc::new(PinnedBlock { device: device.clone(), block });
        Ok(Self { device: device.clone(), block })
    }

    /// Returns the requested size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.block.size_bytes()
    }

    /// Returns the address.
    pub fn pointer(&self) -> HostPointer {
        HostPointer::new(self.block.block.address())
    }

    /// Writes elements from a byte offset on. Does not wait for the device.
    #[track_caller]
    pub fn write<T: Pod>(&self, offset_bytes: u64, values: &[T]) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        self.check_range(offset_bytes, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.label(Label::here("write"));
        Ok(self.device.driver().host_write(self.pointer().offset(offset_bytes), bytes)?)
    }

    /// Reads elements from a byte offset on. Does not wait for the device.
    #[track_caller]
    pub fn read<T: Pod>(&self, offset_bytes: u64, values: &mut [T]) -> Result<()> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(values);
        self.check_range(offset_bytes, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.label(Label::here("read"));
        Ok(self.device.driver().host_read(self.pointer().offset(offset_bytes), bytes)?)
    }

    /// Sets the label of the next driver call.
    fn label(&self, label: Label) {
        if let Some(instrument) = self.device.instrument() {
            instrument.label_next(label);
        }
    }

    pub(crate) fn check_range(&self, offset_bytes: u64, bytes: u64) -> Result<()> {
        refuse_if!(
            offset_bytes.checked_add(bytes).is_none_or(|end| end > self.size_bytes()),
            "pinned buffer of {} bytes: bytes {offset_bytes} to {} are outside",
            self.size_bytes(),
            offset_bytes.saturating_add(bytes)
        );
        Ok(())
    }

    /// Records that work which was just submitted to the stream uses the memory: the cache keeps it until that work is done, and
    /// a graph that captured the work keeps it for as long as the graph lives.
    pub(crate) fn record_use(&self, stream: &Stream, label: Label) {
        self.block.record(stream.id(), UseKind::SoFar, label);
        stream.device().captures().keep(stream, &self.block);
    }
}
