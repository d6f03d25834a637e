//! PyTorch's streams: each `cudaStream_t` with the runtime's stream that wraps it.
//!
//! A CUDA stream is wrapped when it is first named, and stays wrapped: PyTorch never destroys the streams of its pools. A stream
//! that a program made itself (`torch.cuda.ExternalStream`, the streams of a green context) may be destroyed without notice, and
//! the driver crashes if it is used afterwards. PyTorch's own allocator uses a stream only when it is recorded. Such streams are
//! [transient](Stream::set_transient) here, which has the same effect. A new stream may have the handle of a destroyed one; both
//! are then the same stream here, as in PyTorch.
//!
//! The handle of the default stream, 0, is the primary context's, unless a green context is current, which has its own default
//! stream. PyTorch's own allocator takes both for the same stream; since programs order them only when the context is pushed and
//! popped, they are two here. The context may be destroyed, so its stream is transient.
//!
//! Each thread caches the last stream that it named, so that steady work touches no shared state.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustc_hash::FxHashMap;
use thalweg_lock::RwLock;
use thalweg_memory::StreamId;
use thalweg_runtime::{Device, ExternalStream, Stream};

use crate::status::Result;

#[derive(Clone, Copy)]
struct Recent {
    /// The number of the table.
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
    /// The number that distinguishes the tables of a process.
    number: u64,
    known: RwLock<Known>,
    /// Whether a default stream of a green context was named.
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

    /// Returns the runtime's stream, and wraps it first if necessary.
    pub(crate) fn find_or_wrap(&self, device: &Device, cuda_stream: ExternalStream) -> Result<Stream> {
        let known = self.known.read();
        if let Some(stream) = known.by_cuda_stream.get(&cuda_stream) {
            return Ok(stream.clone());
        }
        drop(known);
        let mut known = self.known.write();
        if let Some(stream) = known.by_cuda_stream.get(&cuda_stream) {
            return Ok(stream.clone());
        }
        let stream = Stream::from_external(device, cuda_stream)?;
        if cuda_stream.context().is_some() {
            stream.set_transient();
            self.has_green.store(true, Ordering::Relaxed);
        }
        // PyTorch does not require every use to be recorded.
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
        let known = self.known.read();
        known.cuda_streams.get(&id).copied().unwrap_or(0)
    }

    /// Returns every stream that was named.
    pub(crate) fn ids(&self) -> Vec<StreamId> {
        let known = self.known.read();
        let mut ids: Vec<StreamId> = known.cuda_streams.keys().copied().collect();
        ids.sort_unstable();
        ids
    }
}
