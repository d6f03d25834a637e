//! [`Buffer`]: a piece of device memory.
//!
//! This module is a hub: a buffer may own, among others, memory of another library (`external`) or an output of a graph
//! (`graph_output`), and both modules return buffers.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use thalweg_driver::{BlockKind, DevicePointer, Label, UseKind};
use thalweg_memory::{AllocationError, Block};
use thalweg_profiler::{MemoryChange, record_memory};

use super::external::External;
use super::graph_output::GraphOutput;
use super::in_place::View;
use crate::deferred::queue_deferred;
use crate::device::from_allocation;
use crate::recorder::note_allocated;
use crate::{Device, Result, Stream};

/// A piece of device memory from the caching allocator, or of [another library](Self::external). It belongs to the stream it was
/// allocated on: work of that stream may use it immediately, and dropping it makes it available to later work of that stream. Use
/// on another stream needs ordering (an event), and [`Buffer::record_use`] or [`Buffer::record_stream`] before the drop.
pub struct Buffer {
    pub(super) device: Device,
    pub(super) memory: Memory,
    /// The host's view of the memory, if there is one.
    view: OnceLock<Box<View>>,
}

/// The owner of the memory of a buffer.
pub(super) enum Memory {
    /// The buffer's own block.
    Owned(Block),
    /// Memory of a graph's pool ([`OutputHandle`]).
    GraphOutput(Arc<GraphOutput>),
    /// Memory of another library.
    External(External),
}

impl Buffer {
    /// Returns at least `bytes` of device memory for work on `stream`. For 0 bytes it returns a null pointer and allocates
    /// nothing.
    #[track_caller]
    pub fn new(stream: &Stream, bytes: u64) -> Result<Self> {
        Self::labelled(stream, bytes, Label::here("Buffer::new"))
    }

    /// Allocates memory with the operator and the line that reports name as the allocation.
    pub fn labelled(stream: &Stream, bytes: u64, label: Label) -> Result<Self> {
        let device = stream.device();
        device.check_process("Buffer::new")?;
        let block = match device.allocator().allocate(bytes, stream.id()) {
            Ok(block) => block,
            Err(error) => allocate_again(stream, bytes, error).map_err(|error| error.at(label.location))?,
        };
        if let Some(instrument) = device.instrument() {
            let (start, kind) = (block.address(), BlockKind::Device);
            instrument.block_allocated(start, block.requested_bytes(), kind, stream.handle(), label);
        }
        device.captures().allocated(&block, label);
        record_memory(device.driver(), || taken(device, &block));
        note_allocated(DevicePointer::new(block.address()), block.requested_bytes());
        Ok(Self::over(device, Memory::Owned(block)))
    }

    /// Returns a buffer over memory.
    pub(super) fn over(device: &Device, memory: Memory) -> Self {
        Self { device: device.clone(), memory, view: OnceLock::new() }
    }

    /// Returns the address at which the host accesses the memory in place, as long as the buffer lives. Waits for the device's work
    /// when it is called first. After that, each call that queues a command on the memory waits for it. `None` if there is no memory,
    /// or a graph may move it.
    ///
    /// # Errors
    /// On any device but a simulated GPU.
    pub fn host_address(&self) -> Result<Option<u64>> {
        if matches!(self.memory, Memory::GraphOutput(_)) || self.size_bytes() == 0 {
            return Ok(None);
        }
        if let Some(view) = self.view.get() {
            return Ok(Some(view.address));
        }
        let made = Box::new(View::new(&self.device, self.pointer(), self.size_bytes())?);
        Ok(Some(self.view.get_or_init(|| made).address))
    }

    /// Returns the owner of memory of the process ([`map_process`](crate::map_process)).
    pub fn owner(&self) -> Option<&(dyn Any + Send + Sync)> {
        match &self.memory {
            Memory::External(external) => external.owner(),
            Memory::Owned(_) | Memory::GraphOutput(_) => None,
        }
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the address.
    pub fn pointer(&self) -> DevicePointer {
        match &self.memory {
            Memory::Owned(block) => DevicePointer::new(block.address()),
            Memory::GraphOutput(output) => output.pointer(),
            Memory::External(external) => external.pointer(),
        }
    }

    /// Returns the requested size in bytes.
    pub fn size_bytes(&self) -> u64 {
        match &self.memory {
            Memory::Owned(block) => block.requested_bytes(),
            Memory::GraphOutput(output) => output.size_bytes(),
            Memory::External(external) => external.size_bytes(),
        }
    }

    /// Records that work on `stream` uses the memory: after the drop it is not reused until all work that is on the stream at
    /// that moment is complete.
    #[track_caller]
    pub fn record_stream(&self, stream: &Stream) {
        match &self.memory {
            Memory::Owned(block) => block.record_stream(stream.id()),
            Memory::GraphOutput(output) => output.record(stream, UseKind::UntilFree),
            Memory::External(external) => external.record(stream),
        }
        self.recorded(stream, UseKind::UntilFree, Label::here("record_stream"));
    }

    /// Records that the work submitted to `stream` so far is the last that uses the memory, until the next call: an event is
    /// recorded there *now*. After the drop the memory waits for that event, and not for later work of the stream. Nothing
    /// blocks. See [`thalweg_memory::Block::record_use`].
    #[track_caller]
    pub fn record_use(&self, stream: &Stream) {
        // The event is recorded now. A failure is reported by the thread's next command.
        let _ = queue_deferred(Label::here("record_use"));
        match &self.memory {
            Memory::Owned(block) => block.record_use(stream.id()),
            Memory::GraphOutput(output) => output.record(stream, UseKind::SoFar),
            Memory::External(external) => external.record(stream),
        }
        self.recorded(stream, UseKind::SoFar, Label::here("record_use"));
    }

    /// Returns whether the memory is the buffer's own and was not used by streams other than this one. If so, work queued on this
    /// stream may write the memory without waiting for other streams.
    pub fn is_used_only_on(&self, stream: &Stream) -> bool {
        match &self.memory {
            Memory::Owned(block) => block.is_used_only_on(stream.id()),
            Memory::GraphOutput(_) | Memory::External(_) => false,
        }
    }

    /// Returns a copy of the memory's content, made in the order of `stream`, in newly allocated memory of that stream. (It takes
    /// the place of `clone`, which CUDA cannot do without a stream.)
    #[track_caller]
    pub fn duplicate(&self, stream: &Stream) -> Result<Self> {
        let label = Label::here("duplicate");
        let copy = Self::labelled(stream, self.size_bytes(), label)?;
        stream.copy_on_device(copy.pointer(), self.pointer(), self.size_bytes(), label)?;
        Ok(copy)
    }

    fn recorded(&self, stream: &Stream, kind: UseKind, label: Label) {
        if let Some(instrument) = self.device.instrument() {
            instrument.block_recorded(self.pointer().address(), stream.handle(), kind, label);
        }
    }
}

/// Allocates again after memory was short, if freed blocks were held back: these are released first.
#[cold]
fn allocate_again(stream: &Stream, bytes: u64, mut error: AllocationError) -> Result<Block> {
    let device = stream.device();
    if error.is_out_of_memory() && device.give_back_held() {
        match device.allocator().allocate(bytes, stream.id()) {
            Ok(block) => return Ok(block),
            Err(again) => error = again,
        }
    }
    Err(from_allocation(device, error))
}

/// Returns the memory event of a block that was handed out.
fn taken(device: &Device, block: &Block) -> MemoryChange {
    MemoryChange {
        device: device.index(),
        address: block.address(),
        bytes: i64::try_from(block.size_bytes()).unwrap_or(i64::MAX),
        total_allocated: device.memory_allocated(),
        total_reserved: device.memory_reserved(),
    }
}

/// Returns the memory event of a block that is about to be freed.
fn given_back(device: &Device, block: &Block) -> MemoryChange {
    let change = taken(device, block);
    let total_allocated = change.total_allocated.saturating_sub(block.size_bytes());
    MemoryChange { bytes: -change.bytes, total_allocated, ..change }
}

impl Drop for Buffer {
    /// Reports the free before the block is returned: immediately afterwards it may have another owner. In a forked child nothing
    /// is returned: the block is the parent's, whose locks may be held by threads that do not exist in the child.
    fn drop(&mut self) {
        if self.device.is_left() {
            return match &mut self.memory {
                Memory::Owned(block) => block.abandon(),
                Memory::GraphOutput(output) => std::mem::forget(output.clone()),
                Memory::External(external) => external.abandon(),
            };
        }
        drop(self.view.take());
        match &mut self.memory {
            Memory::Owned(block) => {
                record_memory(self.device.driver(), || given_back(&self.device, block));
                if let Some(instrument) = self.device.instrument() {
                    instrument.block_freed(block.address(), None);
                    if let Some(quarantine) = self.device.quarantine() {
                        quarantine.hold(block);
                    }
                }
            }
            Memory::GraphOutput(output) => output.give_back(),
            Memory::External(external) => external.give_back(),
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer")
            .field("device", &self.device)
            .field("pointer", &self.pointer())
            .field("size_bytes", &self.size_bytes())
            .field("is_graph_output", &matches!(self.memory, Memory::GraphOutput(_)))
            .finish()
    }
}
