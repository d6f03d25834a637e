//! [`OutputHandle`]: an output of a graph that a caller holds as a [`Buffer`].
//!
//! A replay writes its outputs to the addresses at which they were captured. A graph tree or a graphed callable returns that
//! memory to its caller as a [`Buffer`] that owns no block: it keeps the pool alive, and with it the address. The tree keeps the
//! [`OutputHandle`]. Before a replay overwrites the memory, the tree checks the handle to see whether the buffer was dropped. It
//! then makes its stream wait for the recorded uses, or moves an output that is still held to memory of its own.
//!
//! ```text
//! output_buffer ─ replay writes ─ caller reads, records uses ─ drop ─▶ the next replay waits for the uses
//!                                                └─ still held ─▶ move_out: the buffer goes on in memory of its own
//! ```

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use smallvec::SmallVec;
use thalweg_driver::{BlockKind, UseKind};
use thalweg_driver::{DevicePointer, Label};
use thalweg_lock::{Mutex, MutexGuard};

use super::buffer::{Buffer, Memory};
use crate::graph::{GraphPool, HeldMemory};
use crate::refuse;
use crate::{Error, Event, Result, Stream};

/// The handle by which the owner of a graph reaches an output that a caller holds as a [`Buffer`].
pub struct OutputHandle(Arc<GraphOutput>);

/// The state that the buffer and the handle share.
pub(super) struct GraphOutput {
    pool: GraphPool,
    size_bytes: u64,
    label: Label,
    address: AtomicU64,
    state: Mutex<OutputState>,
    is_dropped: AtomicBool,
}

#[derive(Default)]
struct OutputState {
    uses: SmallVec<[Use; 1]>,
    /// The buffer's own memory, after it was moved out of the pool.
    moved: Option<Buffer>,
    /// An object that must live as long as the buffer.
    kept: Option<Arc<dyn Any + Send + Sync>>,
}

/// A use by a stream: up to an event, or all work that is on the stream when the use is waited for.
struct Use {
    stream: Stream,
    event: Option<Event>,
}

impl GraphOutput {
    fn new(pool: &GraphPool, address: u64, size_bytes: u64, label: Label) -> Arc<Self> {
        Arc::new(Self {
            pool: pool.clone(),
            size_bytes,
            label,
            address: AtomicU64::new(address),
            state: Mutex::default(),
            is_dropped: AtomicBool::new(false),
        })
    }

    pub(super) fn pointer(&self) -> DevicePointer {
        DevicePointer::new(self.address.load(Ordering::Acquire))
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn state(&self) -> MutexGuard<'_, OutputState> {
        self.state.lock()
    }

    /// Records a use by a stream: as an event, or, if none can be recorded (in a capture, say), as the whole stream.
    pub(super) fn record(&self, stream: &Stream, kind: UseKind) {
        self.pool.was_replayed_on(&[stream.id()]);
        let event = match (kind, stream.is_capturing()) {
            (UseKind::SoFar, Ok(false)) => stream.record_event().ok(),
            _ => None,
        };
        let mut state = self.state();
        if let Some(moved) = &state.moved {
            return moved.record_stream(stream);
        }
        match state.uses.iter_mut().find(|known| known.stream == *stream) {
            Some(known) if known.event.is_none() => {}
            Some(known) => known.event = event,
            None => state.uses.push(Use { stream: stream.clone(), event }),
        }
    }

    /// Notes that the buffer was dropped.
    pub(super) fn give_back(&self) {
        let (moved, kept) = {
            let mut state = self.state();
            (state.moved.take(), state.kept.take())
        };
        if let (None, Some(instrument)) = (&moved, self.pool.device().instrument()) {
            instrument.block_freed(self.pointer().address(), None);
        }
        self.is_dropped.store(true, Ordering::Release);
        drop((moved, kept));
    }

    pub(super) fn has_moved(&self) -> bool {
        self.state().moved.is_some()
    }
}

impl OutputHandle {
    /// Returns the address of the memory.
    pub fn pointer(&self) -> DevicePointer {
        self.0.pointer()
    }

    /// Returns the operator and source line that the output was made for.
    pub fn label(&self) -> Label {
        self.0.label
    }

    /// Returns whether the buffer was dropped. Recorded uses may still be under way.
    pub fn is_dropped(&self) -> bool {
        self.0.is_dropped.load(Ordering::Acquire)
    }

    /// Returns whether this is the handle of `buffer`, and the buffer is still in the pool.
    pub fn is_of(&self, buffer: &Buffer) -> bool {
        matches!(&buffer.memory, Memory::GraphOutput(output) if Arc::ptr_eq(output, &self.0))
            && !self.0.has_moved()
    }

    /// Makes later work of `stream`, which is about to overwrite the memory, wait for the uses that were recorded on other
    /// streams. Nothing blocks.
    pub fn wait_for_uses(&self, stream: &Stream) -> Result<()> {
        let uses = std::mem::take(&mut self.0.state().uses);
        uses.iter().filter(|one| one.stream != *stream).try_for_each(|one| match &one.event {
            Some(event) => event.wait(stream),
            None => stream.wait_stream(&one.stream),
        })
    }

    /// Copies the output to memory of the buffer's own, so that the pool's memory may be overwritten. Asynchronous on `stream`,
    /// which must be ordered after the work that wrote the output. To the buffer's holder this is a write in place: later use on
    /// other streams must be ordered after `stream`, and recorded.
    pub fn move_out(&self, stream: &Stream) -> Result<()> {
        if self.0.has_moved() {
            return Ok(());
        }
        let GraphOutput { size_bytes, label, .. } = *self.0;
        let (copy, old) = (Buffer::labelled(stream, size_bytes, label)?, self.pointer());
        self.wait_for_uses(stream)?;
        if size_bytes > 0 {
            stream.copy_on_device(copy.pointer(), old, size_bytes, label)?;
        }
        if let Some(instrument) = stream.device().instrument() {
            // The next writer of the pool's memory is ordered after the copy, whatever stream the memory was handed out for.
            instrument.block_recorded(old.address(), stream.handle(), UseKind::UntilFree, label);
            instrument.block_freed(old.address(), None);
        }
        let mut state = self.0.state();
        self.0.address.store(copy.pointer().address(), Ordering::Release);
        state.moved = Some(copy);
        Ok(())
    }

    /// Keeps an object alive until the buffer is dropped. Pass the blocks of the memory if the handle may be dropped first and
    /// other work allocates from the pool.
    pub fn keep(&self, kept: Arc<dyn Any + Send + Sync>) {
        self.0.state().kept = Some(kept);
    }
}

impl GraphPool {
    /// Returns a buffer over memory of the pool that a replay on `stream` is about to write: `size_bytes` from `pointer` on,
    /// which no other buffer may own. Call this before the replay.
    pub fn output_buffer(
        &self,
        pointer: DevicePointer,
        size_bytes: u64,
        stream: &Stream,
        label: Label,
    ) -> (Buffer, OutputHandle) {
        let device = self.device();
        if let Some(instrument) = device.instrument() {
            let kind = BlockKind::GraphOutput;
            instrument.block_allocated(pointer.address(), size_bytes, kind, stream.handle(), label);
        }
        let output = GraphOutput::new(self, pointer.address(), size_bytes, label);
        (Buffer::over(device, Memory::GraphOutput(output.clone())), OutputHandle(output))
    }
}

impl GraphPool {
    /// Returns whether a buffer owns memory of the pool. A buffer of 0 bytes belongs to every pool.
    pub fn owns(&self, buffer: &Buffer) -> bool {
        matches!(&buffer.memory, Memory::Owned(block) if block.is_null() || block.pool() == Some(self.id()))
    }

    /// Declares to the sanitizer that the caller is responsible for the memory of other captures, live or freed, that the graph
    /// which `stream` captures uses: at each replay, the graphs that write it have been replayed before, and nothing else has
    /// written it since. Without this, such a use is reported as a dead input of the graph.
    pub fn vouch(&self, stream: &Stream) {
        if let Some(instrument) = self.device().instrument() {
            instrument.capture_vouched(stream.handle());
        }
    }
}

impl Buffer {
    /// Turns a buffer that was allocated in a capture into an output of the graph, and returns its memory and its handle to the
    /// graph's owner.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the buffer is already a graph's output.
    pub fn make_graph_output(
        &mut self,
        pool: &GraphPool,
        label: Label,
    ) -> Result<(HeldMemory, OutputHandle)> {
        let Memory::Owned(block) = &self.memory else {
            refuse!("make_graph_output: the buffer is already an output of a graph");
        };
        let output = GraphOutput::new(pool, block.address(), block.requested_bytes(), label);
        match std::mem::replace(&mut self.memory, Memory::GraphOutput(output.clone())) {
            Memory::Owned(block) => Ok((HeldMemory::new(block), OutputHandle(output))),
            Memory::GraphOutput(_) | Memory::External(_) => unreachable!("looked at above"),
        }
    }
}

impl fmt::Debug for OutputHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutputHandle")
            .field("pointer", &self.pointer())
            .field("size_bytes", &self.0.size_bytes)
            .field("label", &self.0.label)
            .field("is_dropped", &self.is_dropped())
            .finish()
    }
}
