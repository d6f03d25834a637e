//! PyTorch's streams: a `cudaStream_t` each, and the runtime's stream that wraps it.
//!
//! A CUDA stream is wrapped when it is first named, and for good: PyTorch never destroys the streams of its pools. A stream
//! that a program made itself (`torch.cuda.ExternalStream`, the streams of a green context) may be destroyed without a word, and
//! the driver does not survive it to be named then. PyTorch's own allocator names a stream only where it is recorded, so such
//! streams are [transient](Stream::set_transient): we do the same. The next stream may have the handle of one that was destroyed; both are then
//! the same stream to us, as they are there.
//!
//! The handle of the default stream, 0, is the primary context's, unless a green context is current, which has a default stream
//! of its own. PyTorch's own allocator takes both for one; since its programs order them only where the context is pushed and
//! popped, they are two here. The context may go, so its stream is transient.
//!
//! The last stream that a thread named is remembered with the thread, so that in steady work nothing shared is touched.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use rustc_hash::FxHashMap;
use thalweg_memory::StreamId;
use thalweg_runtime::{Device, ExternalStream, Stream};

use crate::status::Result;

#[derive(Clone, Copy)]
struct Recent {
    /// Of which table.
    table: u64,
    cuda_stream: ExternalStream,
    id: StreamId,
}

thread_local! {
    static RECENT: Cell<Option<Recent>> = const { Cell::new(None) };
}

/// The streams of one device.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Tells the tables of a process apart.
    number: u64,
    known: RwLock<Known>,
    /// A default stream of a green context was named.
    has_green: AtomicBool,
}

#[derive(Default, Debug)]
struct Known {
    by_cuda_stream: FxHashMap<ExternalStream, Stream>,
    cuda_streams: FxHashMap<StreamId, u64>,
}

impl Default for Streams {
    fn default() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        Self {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            known: RwLock::default(),
            has_green: AtomicBool::new(false),
        }
    }
}

impl Streams {
    /// Returns the runtime's identifier of a CUDA stream of `device`.
    #[inline]
    pub(crate) fn id(&self, device: &Device, cuda_stream: ExternalStream) -> Result<StreamId> {
        if let Some(recent) = RECENT.get()
            && (recent.table, recent.cuda_stream) == (self.number, cuda_stream)
        {
            return Ok(recent.id);
        }
        let id = self.find_or_wrap(device, cuda_stream)?.id();
        RECENT.set(Some(Recent { table: self.number, cuda_stream, id }));
        Ok(id)
    }

    /// Returns the stream itself.
    pub(crate) fn find_or_wrap(&self, device: &Device, cuda_stream: ExternalStream) -> Result<Stream> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = known.by_cuda_stream.get(&cuda_stream) {
            return Ok(stream.clone());
        }
        drop(known);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = known.by_cuda_stream.get(&cuda_stream) {
            return Ok(stream.clone());
        }
        let stream = Stream::from_external(device, cuda_stream)?;
        if cuda_stream.context().is_some() {
            stream.set_transient();
            self.has_green.store(true, Ordering::Relaxed);
        }
        // PyTorch does not insist on every use being recorded.
        device.allocator().add_unrecorded_user(stream.id());
        known.cuda_streams.insert(stream.id(), cuda_stream.cuda_stream());
        known.by_cuda_stream.insert(cuda_stream, stream.clone());
        Ok(stream)
    }

    /// Returns whether a default stream of a green context was named.
    #[inline]
    pub(crate) fn has_green(&self) -> bool {
        self.has_green.load(Ordering::Relaxed)
    }

    /// Returns the `cudaStream_t` of a stream that was named before; 0, the default stream's, for any other.
    pub(crate) fn cuda_stream(&self, id: StreamId) -> u64 {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.cuda_streams.get(&id).copied().unwrap_or(0)
    }

    /// Returns every stream that was named.
    pub(crate) fn ids(&self) -> Vec<StreamId> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut ids: Vec<StreamId> = known.cuda_streams.keys().copied().collect();
        ids.sort_unstable();
        ids
    }
}
