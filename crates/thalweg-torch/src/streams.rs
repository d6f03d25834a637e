//! PyTorch's streams: native handles, and our names of them.
//!
//! A native stream is adopted when it is first named, and for good: PyTorch never destroys the streams of its pools. A stream
//! that a program made itself and destroyed may give its handle to the next one; both are then the same stream to us, as they
//! are to PyTorch's own allocator.
//!
//! The last stream that a thread named is remembered with the thread, so that in steady work nothing shared is touched.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use rustc_hash::FxHashMap;
use thalweg_memory::StreamId;
use thalweg_runtime::{Device, ForeignStream, Stream};

use crate::status::Result;

#[derive(Clone, Copy)]
struct Recent {
    /// Of which table.
    table: u64,
    native: u64,
    id: StreamId,
}

thread_local! {
    static RECENT: Cell<Recent> = const { Cell::new(Recent { table: 0, native: 0, id: StreamId::from_raw(0) }) };
}

/// The streams of one device.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Tells the tables of a process apart.
    number: u64,
    known: RwLock<Known>,
}

#[derive(Default, Debug)]
struct Known {
    by_native: FxHashMap<u64, Stream>,
    natives: FxHashMap<StreamId, u64>,
}

impl Default for Streams {
    fn default() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        Self { number: NUMBER.fetch_add(1, Ordering::Relaxed), known: RwLock::default() }
    }
}

impl Streams {
    /// Our name of a native stream of `device`.
    #[inline]
    pub(crate) fn id(&self, device: &Device, native: u64) -> Result<StreamId> {
        let recent = RECENT.get();
        if recent.table == self.number && recent.native == native {
            return Ok(recent.id);
        }
        let id = self.find_or_adopt(device, native)?.id();
        RECENT.set(Recent { table: self.number, native, id });
        Ok(id)
    }

    /// The stream itself.
    pub(crate) fn find_or_adopt(&self, device: &Device, native: u64) -> Result<Stream> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = known.by_native.get(&native) {
            return Ok(stream.clone());
        }
        drop(known);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = known.by_native.get(&native) {
            return Ok(stream.clone());
        }
        // SAFETY: the header asks for live streams of this device, and the driver looks whose it is. PyTorch's streams live
        // as long as the process; a program that destroys one of its own after it has used memory on it is wrong with
        // PyTorch's own allocator too.
        let stream = Stream::from_external(device, unsafe { ForeignStream::new(native) })?;
        // PyTorch does not insist on every use being recorded.
        device.allocator().add_unrecorded_user(stream.id());
        known.natives.insert(stream.id(), native);
        known.by_native.insert(native, stream.clone());
        Ok(stream)
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
