//! PyTorch's streams: native handles, and our names of them.
//!
//! A native stream is adopted when it is first named, and for good: PyTorch never destroys the streams of its pools. A stream
//! that a program made itself (`torch.cuda.ExternalStream`, the streams of a green context) may be destroyed without a word, and
//! the driver does not survive it to be named then. PyTorch's own allocator names a stream only where it is recorded, so such
//! streams are [lent](Stream::lend): we do the same. The next stream may have the handle of one that was destroyed; both are then
//! the same stream to us, as they are there.
//!
//! The handle of the default stream, 0, is the primary context's, unless a green context is current, which has a default stream
//! of its own. PyTorch's own allocator takes both for one; since its programs order them only where the context is pushed and
//! popped, they are two here. The context may go, so its stream is lent.
//!
//! The last stream that a thread named is remembered with the thread, so that in steady work nothing shared is touched.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use rustc_hash::FxHashMap;
use thalweg_memory::StreamId;
use thalweg_runtime::{Device, ForeignStream, Stream};

use crate::status::Result;

#[derive(Clone, Copy)]
struct Recent {
    /// Of which table.
    table: u64,
    native: ForeignStream,
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
    by_native: FxHashMap<ForeignStream, Stream>,
    natives: FxHashMap<StreamId, u64>,
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
    /// Our name of a native stream of `device`.
    #[inline]
    pub(crate) fn id(&self, device: &Device, native: ForeignStream) -> Result<StreamId> {
        if let Some(recent) = RECENT.get()
            && (recent.table, recent.native) == (self.number, native)
        {
            return Ok(recent.id);
        }
        let id = self.find_or_adopt(device, native)?.id();
        RECENT.set(Some(Recent { table: self.number, native, id }));
        Ok(id)
    }

    /// The stream itself.
    pub(crate) fn find_or_adopt(&self, device: &Device, native: ForeignStream) -> Result<Stream> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = known.by_native.get(&native) {
            return Ok(stream.clone());
        }
        drop(known);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = known.by_native.get(&native) {
            return Ok(stream.clone());
        }
        let stream = Stream::from_external(device, native)?;
        if native.context().is_some() {
            stream.lend();
            self.has_green.store(true, Ordering::Relaxed);
        }
        // PyTorch does not insist on every use being recorded.
        device.allocator().add_unrecorded_user(stream.id());
        known.natives.insert(stream.id(), native.native());
        known.by_native.insert(native, stream.clone());
        Ok(stream)
    }

    /// Whether a default stream of a green context was named.
    #[inline]
    pub(crate) fn has_green(&self) -> bool {
        self.has_green.load(Ordering::Relaxed)
    }

    /// The native handle of a stream that was named before; 0, the default stream's, for any other.
    pub(crate) fn native(&self, id: StreamId) -> u64 {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.natives.get(&id).copied().unwrap_or(0)
    }

    /// Every stream that was named.
    pub(crate) fn ids(&self) -> Vec<StreamId> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut ids: Vec<StreamId> = known.natives.keys().copied().collect();
        ids.sort_unstable();
        ids
    }
}
