//! [`Storage`]: the memory shared by tensors that are views of each other, which may grow.
//!
//! `resize_` changes a tensor that other code may hold, too: the storage stays the same object and receives other memory.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use thalweg_lock::{Mutex, MutexGuard};
use thalweg_runtime::{
    Buffer, Device, DevicePointer, Error, Label, Result, Stream, invalid, queue_deferred, refuse_if,
};

use crate::dispatch::is_inference;

/// The memory shared by tensors that are views of each other.
pub(crate) struct Storage {
    device: Device,
    /// The address of the buffer, to be read without the lock; [`MOVES`] if only the buffer knows it.
    address: AtomicU64,
    buffer: Mutex<Buffer>,
    /// The object that allocates the storage's memory when it is needed, if the storage has none yet: see [`PENDING`].
    promise: OnceLock<Box<dyn Promise>>,
    /// Whether the memory may be replaced; memory of another library may not.
    is_resizable: AtomicBool,
    /// The number of holders that are deferred loops.
    deferred_holders: AtomicU32,
    /// The number of holders that are saved for backward.
    saved_holders: AtomicU32,
    /// Whether the memory must stay: a tensor that was saved has been read, so the address may be in use, or the memory was replaced.
    must_stay: AtomicBool,
    /// The number of writes in place by tensors without a version of their own. Backward checks it, since the tensors that it saved must
    /// not have changed.
    version: AtomicU32,
    /// The number of writes in place by any tensor.
    writes: AtomicU32,
    /// Whether another library has the address too, and may write the memory unnoticed.
    is_exported: AtomicBool,
    /// Whether the program requested pinned memory.
    is_pinned: AtomicBool,
    /// The size in bytes before the memory was freed while tensors over it were still alive.
    given_back_bytes: AtomicU64,
    /// Whether the storage was allocated in inference mode.
    pub(crate) is_inference: bool,
}

/// The address of a buffer that a graph may move to other memory.
const MOVES: u64 = u64::MAX;

/// The address if the memory was freed while tensors over it were still alive.
const GIVEN_BACK: u64 = u64::MAX - 1;

/// The address if the memory is allocated when it is first needed: by work that is deferred, or by who reads the address.
const PENDING: u64 = u64::MAX - 2;

/// An object that allocates the memory of a storage when it is needed.
pub(crate) trait Promise: Send + Sync {
    /// Returns the size of the memory in bytes.
    fn bytes(&self) -> u64;

    /// Returns the stream that the memory will belong to.
    fn stream(&self) -> &Stream;

    /// Returns whether the work that writes the storage waits on the calling thread, if it waits.
    fn is_of_this_thread(&self) -> bool;

    /// Allocates the memory.
    fn allocate(&self) -> Result<Buffer>;

    /// Notes that the work that was to write the storage failed: every later read of the address reports it.
    fn fail(&self, error: &Error);

    /// Returns the noted failure.
    fn check(&self) -> Result<()>;

    /// Queues the deferred work that writes the storage, and gives it memory ([`Storage::fulfil`]). If that fails, the thread's next
    /// command reports it.
    fn keep(&self, storage: &Storage);
}

impl Storage {
    pub(crate) fn new(buffer: Buffer) -> Self {
        Self {
            device: buffer.device().clone(),
            address: AtomicU64::new(buffer.pointer().address()),
            buffer: Mutex::new(buffer),
            promise: OnceLock::new(),
            deferred_holders: AtomicU32::new(0),
            saved_holders: AtomicU32::new(0),
            must_stay: AtomicBool::new(false),
            is_resizable: AtomicBool::new(true),
            version: AtomicU32::new(0),
            writes: AtomicU32::new(0),
            is_exported: AtomicBool::new(false),
            is_pinned: AtomicBool::new(false),
            given_back_bytes: AtomicU64::new(0),
            is_inference: is_inference(),
        }
    }

    /// Returns a storage over memory of another library, which may write it unnoticed if the memory is shared.
    pub(crate) fn external(buffer: Buffer, is_shared: bool) -> Self {
        Self {
            is_resizable: AtomicBool::new(false),
            is_exported: AtomicBool::new(is_shared),
            ..Self::new(buffer)
        }
    }

    /// Returns a storage over an output of a graph, which the graph may move to other memory.
    pub(crate) fn of_graph(buffer: Buffer) -> Self {
        Self { address: AtomicU64::new(MOVES), ..Self::new(buffer) }
    }

    /// Returns a storage whose memory is allocated when it is first needed; `nothing` is a buffer of no bytes.
    pub(crate) fn promised(nothing: Buffer, promise: Box<dyn Promise>) -> Self {
        Self { address: AtomicU64::new(PENDING), promise: OnceLock::from(promise), ..Self::new(nothing) }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn pointer(&self) -> DevicePointer {
        // Ordered after the note of a node that reads: see `forget`. On the processors of today's machines it costs no more than `Acquire`.
        match self.address.load(Ordering::SeqCst) {
            MOVES => self.buffer().pointer(),
            GIVEN_BACK => DevicePointer::new(0),
            PENDING => self.awaited(),
            address => DevicePointer::new(address),
        }
    }

    /// Returns whether the memory is not allocated yet.
    pub(crate) fn is_pending(&self) -> bool {
        self.address.load(Ordering::Acquire) == PENDING
    }

    /// Gives the storage its memory if work of another thread is to write it.
    pub(crate) fn keep_of_other_thread(&self) {
        if let Some(promise) =
            self.promise.get().filter(|promise| self.is_pending() && !promise.is_of_this_thread())
        {
            promise.keep(self);
        }
    }

    /// Returns the size of the memory that is not allocated yet; `None` if it is.
    pub(crate) fn promised_bytes(&self) -> Option<u64> {
        self.promise.get().filter(|_| self.is_pending()).map(|promise| promise.bytes())
    }

    /// Waits for the memory on the host. Returns its address; 0 if there is none, which the thread's next command reports.
    #[cold]
    fn awaited(&self) -> DevicePointer {
        if let Some(promise) = self.promise.get() {
            promise.keep(self);
        }
        if self.is_pending() { DevicePointer::new(0) } else { self.pointer() }
    }

    /// Returns the addresses of the memory; none if it is not there.
    pub(crate) fn range(&self) -> Range<u64> {
        let buffer = self.buffer.lock();
        let start = buffer.pointer().address();
        start..start + buffer.size_bytes()
    }

    /// Returns whether the memory is not allocated yet, and will belong to a stream.
    fn is_promised_on(&self, stream: &Stream) -> bool {
        self.is_pending() && self.promise.get().is_some_and(|promise| promise.stream() == stream)
    }

    /// Records that work on a stream uses the memory, as [`Buffer::record_stream`] does.
    #[track_caller]
    pub(crate) fn record_stream(&self, stream: &Stream) {
        if !self.is_promised_on(stream) {
            self.buffer().record_stream(stream);
        }
    }

    /// Returns whether no stream but this one uses the memory: see [`Buffer::is_used_only_on`].
    pub(crate) fn is_used_only_on(&self, stream: &Stream) -> bool {
        self.is_promised_on(stream) || self.buffer().is_used_only_on(stream)
    }

    /// Allocates the memory that was promised.
    pub(crate) fn allocated(&self) -> Result<Buffer> {
        let promise = self.promise.get().expect("memory that is to be allocated was promised");
        promise.allocate()
    }

    /// Notes that the work that was to write the storage failed.
    pub(crate) fn fail(&self, error: &Error) {
        if let Some(promise) = self.promise.get() {
            promise.fail(error);
        }
    }

    /// Returns the failure of the work that was to write the storage, if it has no memory for that reason.
    pub(crate) fn check_promise(&self) -> Result<()> {
        self.promise.get().filter(|_| self.is_pending()).map_or(Ok(()), |promise| promise.check())
    }

    /// Gives the storage its memory.
    pub(crate) fn fulfil(&self, buffer: Buffer) {
        let mut own = self.buffer.lock();
        self.address.store(buffer.pointer().address(), Ordering::Release);
        *own = buffer;
    }

    /// Returns whether only nodes that have not run yet hold the storage, apart from `own` references of the caller.
    pub(crate) fn is_only_saved(this: &Arc<Self>, own: usize) -> bool {
        let saved = this.saved_holders.load(Ordering::Acquire) as usize;
        saved > 0
            && Self::holders(this) == saved + own
            && !this.must_stay.load(Ordering::Acquire)
            && !this.is_exported()
    }

    /// Returns whether it is saved for backward.
    pub(crate) fn is_saved(&self) -> bool {
        self.saved_holders.load(Ordering::Acquire) > 0
    }

    /// Makes the memory permanent: [`forget`](Self::forget) no longer takes it.
    pub(crate) fn keep_memory(&self) {
        // Ordered before the reader's load of the address: see [`Storage::forget`].
        self.must_stay.store(true, Ordering::SeqCst);
    }

    /// Takes the memory from a storage whose content deferred work can compute again when its address is read. The caller must add
    /// that work before another thread can search for it. Returns `None` if a node has begun to read the memory, or if it was never
    /// promised. `nothing` is an empty buffer.
    pub(crate) fn forget(&self, nothing: Buffer) -> Option<Buffer> {
        let address = self.address.load(Ordering::Acquire);
        if self.promise.get().is_none() || address >= PENDING {
            return None;
        }
        let mut own = self.buffer.lock();
        // A node notes that it reads before it loads the address. It finds that the memory is to be awaited, or this finds the note.
        self.address.store(PENDING, Ordering::SeqCst);
        if self.must_stay.load(Ordering::SeqCst) {
            self.address.store(address, Ordering::SeqCst);
            return None;
        }
        Some(std::mem::replace(&mut *own, nothing))
    }

    /// Returns the buffer, which cannot be replaced while the guard is held.
    pub(crate) fn buffer(&self) -> MutexGuard<'_, Buffer> {
        if self.is_pending() {
            self.awaited();
        }
        self.buffer.lock()
    }

    /// Returns the buffer of a storage that nothing else holds, to be made an output of a graph.
    pub(crate) fn buffer_mut(&mut self) -> &mut Buffer {
        if self.is_pending() {
            self.awaited();
        }
        *self.address.get_mut() = MOVES;
        self.buffer.get_mut()
    }

    /// Returns the number of holders of a storage, without deferred loops: commands that write the storage are ordered after these
    /// loops anyway.
    pub(crate) fn holders(this: &Arc<Self>) -> usize {
        let deferred = this.deferred_holders.load(Ordering::Acquire) as usize;
        Arc::strong_count(this).saturating_sub(deferred)
    }

    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the number of counted writes: in-place writes, and writes by loops that waited.
    pub(crate) fn writes(&self) -> u32 {
        self.writes.load(Ordering::Acquire)
    }

    /// Counts a write that no tensor's version counts.
    pub(crate) fn count_write(&self) {
        self.writes.fetch_add(1, Ordering::AcqRel);
    }

    /// Records a write in place, by a tensor that may have a version of its own.
    pub(crate) fn note_write(&self, own: Option<&AtomicU32>) {
        own.unwrap_or(&self.version).fetch_add(1, Ordering::AcqRel);
        self.count_write();
    }

    /// Sets the number of writes in place that are counted for backward.
    pub(crate) fn set_version(&self, version: u32) {
        self.version.store(version, Ordering::Release);
    }

    pub(crate) fn is_exported(&self) -> bool {
        self.is_exported.load(Ordering::Acquire)
    }

    pub(crate) fn mark_exported(&self) {
        self.is_exported.store(true, Ordering::Release);
    }

    fn is_resizable(&self) -> bool {
        self.is_resizable.load(Ordering::Relaxed)
    }

    /// Returns the address at which the host accesses the memory in place ([`Buffer::host_address`]), and lets no work on it wait from
    /// now on. If the memory `stays`, it is never replaced: another library keeps the address.
    pub(crate) fn host_address(&self, stays: bool, label: Label) -> Result<Option<u64>> {
        queue_deferred(label)?;
        self.keep_memory();
        self.mark_exported();
        if self.address.load(Ordering::Acquire) == MOVES {
            return Ok(None);
        }
        let address = self.buffer().host_address()?;
        if stays && address.is_some() {
            self.is_resizable.store(false, Ordering::Relaxed);
        }
        Ok(address)
    }

    /// Moves the content to memory that may be written from outside, and uses that memory from now on.
    pub(crate) fn move_to(&self, memory: Buffer, label: Label) -> Result<()> {
        queue_deferred(label)?;
        self.keep_memory();
        let mut own = self.buffer();
        refuse_if!(
            self.address.load(Ordering::Acquire) >= PENDING,
            "the storage has no memory of its own to be moved: it was freed, or belongs to a graph"
        );
        let stream = self.device.current_stream();
        stream.copy_on_device(
            memory.pointer(),
            own.pointer(),
            own.size_bytes().min(memory.size_bytes()),
            label,
        )?;
        own.record_use(&stream);
        self.mark_exported();
        self.is_resizable.store(false, Ordering::Relaxed);
        self.address.store(memory.pointer().address(), Ordering::Release);
        let former = std::mem::replace(&mut *own, memory);
        // Its owner may be an object of Python, whose drop waits for the interpreter, while that waits for this lock.
        drop(own);
        drop(former);
        Ok(())
    }

    /// Swaps memory with another storage that nothing else holds, if that is larger. Returns whether it did.
    pub(crate) fn adopt(&self, other: &Self) -> bool {
        let can_move =
            |storage: &Self| storage.is_resizable() && storage.address.load(Ordering::Acquire) != MOVES;
        if !can_move(self) || !can_move(other) || queue_deferred(Label::here("set_")).is_err() {
            return false;
        }
        self.keep_memory();
        other.keep_memory();
        let (mut own, mut given) = (self.buffer(), other.buffer());
        if own.size_bytes() >= given.size_bytes() {
            return false;
        }
        std::mem::swap(&mut *own, &mut *given);
        self.address.store(own.pointer().address(), Ordering::Release);
        other.address.store(given.pointer().address(), Ordering::Release);
        true
    }

    /// Returns whether the memory was freed while tensors over it were still alive: nothing may access their elements.
    #[inline]
    pub(crate) fn is_given_back(&self) -> bool {
        self.address.load(Ordering::Acquire) == GIVEN_BACK
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.is_pinned.load(Ordering::Relaxed)
    }

    pub(crate) fn mark_pinned(&self) {
        self.is_pinned.store(true, Ordering::Relaxed);
    }

    /// Frees the memory (0 bytes), or changes its size to this many bytes, of which the first keep their values.
    pub(crate) fn resize(&self, bytes: u64, label: Label) -> Result<()> {
        queue_deferred(label)?;
        self.keep_memory();
        if !self.is_given_back() && bytes != 0 {
            let former = self.grow(bytes, label)?;
            return if bytes >= former { Ok(()) } else { Err(shrunk(former, bytes)) };
        }
        let mut buffer = self.buffer();
        if bytes == 0 {
            let former = buffer.size_bytes();
            if former == 0 {
                return Ok(());
            }
            refuse_if!(
                !self.is_resizable() || self.address.load(Ordering::Acquire) == MOVES,
                "Trying to resize storage that is not resizable: the memory is another library's, or a graph's"
            );
            let nothing = Buffer::labelled(&self.device.current_stream(), 0, label)?;
            self.given_back_bytes.store(former, Ordering::Relaxed);
            self.address.store(GIVEN_BACK, Ordering::Release);
            *buffer = nothing;
            return Ok(());
        }
        let former = self.given_back_bytes.load(Ordering::Relaxed);
        if bytes < former {
            return Err(shrunk(former, bytes));
        }
        let again = Buffer::labelled(&self.device.current_stream(), bytes, label)?;
        self.address.store(again.pointer().address(), Ordering::Release);
        *buffer = again;
        Ok(())
    }

    /// Grows the storage to at least this many bytes, on the current stream; if it has fewer, its contents are copied to new
    /// memory. Returns the previous number of bytes.
    pub(crate) fn grow(&self, bytes: u64, label: Label) -> Result<u64> {
        queue_deferred(label)?;
        self.keep_memory();
        let mut buffer = self.buffer();
        let former = buffer.size_bytes();
        if bytes <= former {
            return Ok(former);
        }
        refuse_if!(
            !self.is_resizable(),
            "Trying to resize storage that is not resizable: the memory is another library's. Clone the tensor before"
        );
        let stream = self.device.current_stream();
        let grown = Buffer::labelled(&stream, bytes, label)?;
        if former > 0 {
            stream.copy_on_device(grown.pointer(), buffer.pointer(), former, label)?;
            buffer.record_use(&stream);
        }
        self.address.store(grown.pointer().address(), Ordering::Release);
        *buffer = grown;
        Ok(former)
    }
}

/// The note that a tensor of a storage is saved for backward.
pub(crate) struct SavedHolder(std::sync::Weak<Storage>);

impl SavedHolder {
    pub(crate) fn new(storage: &Arc<Storage>) -> Self {
        storage.saved_holders.fetch_add(1, Ordering::AcqRel);
        Self(Arc::downgrade(storage))
    }
}

impl Drop for SavedHolder {
    fn drop(&mut self) {
        if let Some(storage) = self.0.upgrade() {
            storage.saved_holders.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// A storage that a deferred loop holds.
pub(crate) struct DeferredHolder(Arc<Storage>);

impl DeferredHolder {
    pub(crate) fn new(storage: Arc<Storage>) -> Self {
        storage.deferred_holders.fetch_add(1, Ordering::AcqRel);
        Self(storage)
    }

    /// Returns the storage.
    pub(crate) fn storage(&self) -> &Arc<Storage> {
        &self.0
    }

    /// Returns whether only deferred loops hold the storage.
    pub(crate) fn is_alone(&self) -> bool {
        Storage::holders(&self.0) == 0
    }
}

impl Drop for DeferredHolder {
    fn drop(&mut self) {
        self.0.deferred_holders.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Returns the error of a request to shrink a storage.
fn shrunk(former: u64, bytes: u64) -> Error {
    invalid!(
        "a storage of {former} bytes cannot have {bytes}: tensors over it would reach beyond. It gives its memory back at 0, and has \
         {former} or more again later"
    )
}
