//! [`Loan`]: memory of a graph's pool in the hands of a caller.
//!
//! What a replay wrote lies where it was captured. Whoever replays graphs for others (a graph tree, a graphed callable)
//! hands that memory out as a [`Buffer`] which owns no block: it keeps the pool, and with it the address, and tells when it is
//! gone. The lender keeps the [`Loan`], and before it overwrites the memory it asks whether it was returned, makes its stream
//! wait for the uses that were recorded, or moves what is still wanted out of the way.
//!
//! ```text
//! lend ─ replay writes ─ caller reads, records uses ─ drop ─▶ returned: the next replay waits for the uses
//!                                       └─ still held ─▶ move_out: the buffer lives on in memory of its own
//! ```

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use thalweg_driver::{BlockKind, UseKind};
use thalweg_driver::{DevicePointer, Label};

use super::{Buffer, Memory};
use crate::graph::{GraphPool, HeldMemory};
use crate::{Error, Event, Result, Stream};

/// The lender's side of memory that a graph's pool has lent to a [`Buffer`].
pub struct Loan(Arc<Lent>);

/// What the two sides share.
pub(super) struct Lent {
    pool: GraphPool,
    size_bytes: u64,
    label: Label,
    address: AtomicU64,
    state: Mutex<State>,
    is_returned: AtomicBool,
}

#[derive(Default)]
struct State {
    uses: SmallVec<[Use; 1]>,
    /// The memory of its own that it has moved to.
    moved: Option<Buffer>,
    /// What must not go before the buffer does.
    kept: Option<Arc<dyn Any + Send + Sync>>,
}

/// A use by a stream: up to an event, or up to whatever the stream has when it is asked.
struct Use {
    stream: Stream,
    event: Option<Event>,
}

impl Lent {
    fn new(pool: &GraphPool, address: u64, size_bytes: u64, label: Label) -> Arc<Self> {
        Arc::new(Self {
            pool: pool.clone(),
            size_bytes,
            label,
            address: AtomicU64::new(address),
            state: Mutex::default(),
            is_returned: AtomicBool::new(false),
        })
    }

    pub(super) fn pointer(&self) -> DevicePointer {
        DevicePointer::new(self.address.load(Ordering::Acquire))
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream uses the memory. What cannot be noted as an event (in a capture, say) is noted as the whole stream.
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

    /// The buffer is gone.
    pub(super) fn give_back(&self) {
        let (moved, kept) = {
            let mut state = self.state();
            (state.moved.take(), state.kept.take())
        };
        if let (None, Some(instrument)) = (&moved, self.pool.device().driver().instrument()) {
            instrument.block_freed(self.pointer().address(), None);
        }
        self.is_returned.store(true, Ordering::Release);
        drop((moved, kept));
    }

    pub(super) fn has_moved(&self) -> bool {
        self.state().moved.is_some()
    }
}

impl Loan {
    /// Where the memory is.
    pub fn pointer(&self) -> DevicePointer {
        self.0.pointer()
    }

    /// Who lent it, from where.
    pub fn label(&self) -> Label {
        self.0.label
    }

    /// Whether nobody has the buffer any more. The uses that were recorded may still be under way.
    pub fn is_returned(&self) -> bool {
        self.0.is_returned.load(Ordering::Acquire)
    }

    /// Whether the buffer is what was lent, and still lies in the pool.
    pub fn is_of(&self, buffer: &Buffer) -> bool {
        matches!(&buffer.memory, Memory::Lent(lent) if Arc::ptr_eq(lent, &self.0)) && !self.0.has_moved()
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

    /// Copies what is there to memory that the buffer then has to itself, so that the pool's may be overwritten. Asynchronous on
    /// `stream`, which must be ordered behind the work that wrote it. To the buffer's holder this is a write in place: use on
    /// other streams that follows must be ordered behind `stream`, and recorded.
    pub fn move_out(&self, stream: &Stream) -> Result<()> {
        if self.0.has_moved() {
            return Ok(());
        }
        let Lent { size_bytes, label, .. } = *self.0;
        let (copy, old) = (Buffer::labelled(stream, size_bytes, label)?, self.pointer());
        self.wait_for_uses(stream)?;
        if size_bytes > 0 {
            stream.copy_on_device(copy.pointer(), old, size_bytes, label)?;
        }
        if let Some(instrument) = stream.device().driver().instrument() {
            instrument.block_freed(old.address(), None);
        }
        let mut state = self.0.state();
        self.0.address.store(copy.pointer().address(), Ordering::Release);
        state.moved = Some(copy);
        Ok(())
    }

    /// Keeps something alive until the buffer is gone: the blocks of the memory, where the lender may go first and others
    /// allocate from the pool.
    pub fn keep(&self, kept: Arc<dyn Any + Send + Sync>) {
        self.0.state().kept = Some(kept);
    }
}

impl GraphPool {
    /// Lends memory of the pool that a replay on `stream` is about to write: `size_bytes` from `pointer` on, of which the lender
    /// knows that nobody has it. Call this before the replay.
    pub fn lend(
        &self,
        pointer: DevicePointer,
        size_bytes: u64,
        stream: &Stream,
        label: Label,
    ) -> (Buffer, Loan) {
        let device = self.device();
        if let Some(instrument) = device.driver().instrument() {
            let kind = BlockKind::Lent;
            instrument.block_allocated(pointer.address(), size_bytes, kind, stream.handle(), label);
        }
        let lent = Lent::new(self, pointer.address(), size_bytes, label);
        (Buffer { device: device.clone(), memory: Memory::Lent(lent.clone()) }, Loan(lent))
    }
}

impl GraphPool {
    /// Whether a buffer's own memory is of the pool. 0 bytes are of any.
    pub fn owns(&self, buffer: &Buffer) -> bool {
        matches!(&buffer.memory, Memory::Owned(block) if block.is_null() || block.pool() == Some(self.id()))
    }

    /// Says that whoever replays the graph that `stream` captures answers for what it uses of other captures' memory, live or
    /// freed: that the graphs which write it were replayed before, and nothing else has written it since. Without this, checkers
    /// report such use as a graph's input that has died.
    pub fn vouch(&self, stream: &Stream) {
        if let Some(instrument) = self.device().driver().instrument() {
            instrument.capture_vouched(stream.handle());
        }
    }
}

impl Buffer {
    /// Makes a buffer that was allocated in a capture a lent one: the memory is the lender's from now on.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the buffer is lent already.
    pub fn lend(&mut self, pool: &GraphPool, label: Label) -> Result<(HeldMemory, Loan)> {
        let Memory::Owned(block) = &self.memory else {
            return Err(Error::invalid("lend: the buffer is lent already, and has no block to give"));
        };
        let lent = Lent::new(pool, block.address(), block.requested_bytes(), label);
        match std::mem::replace(&mut self.memory, Memory::Lent(lent.clone())) {
            Memory::Owned(block) => Ok((HeldMemory::new(block), Loan(lent))),
            Memory::Lent(_) => unreachable!("looked at above"),
        }
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan")
            .field("pointer", &self.pointer())
            .field("size_bytes", &self.0.size_bytes)
            .field("label", &self.0.label)
            .field("is_returned", &self.is_returned())
            .finish()
    }
}
