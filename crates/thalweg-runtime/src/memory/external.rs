//! Buffers over memory of other libraries.
//!
//! Such memory is released when its owner is dropped, and only after the runtime's work that used it is complete. A buffer does
//! not wait for that when it is dropped: it records an event on each stream that used the memory, and puts the owner on a list,
//! which later buffers of this kind check. Memory that its library reuses in the order of one stream, and that no other stream has
//! used, is released immediately.
//!
//! # Invariants
//! - An owner is dropped once, outside of the list's lock, because its drop may call this module again.
//! - If it cannot be determined when the work is complete (a capture, a lost device, a forked child), the owner is never dropped.

use std::any::Any;

use thalweg_driver::{DevicePointer, ExternalMemory};
use thalweg_lock::Mutex;

use super::Buffer;
use super::buffer::Memory;
use crate::{Event, Result, Stream};

type Owner = Box<dyn Any + Send + Sync>;

/// The owners of memory that no buffer refers to any more, with events recorded after the work that used it.
static LEAVING: Mutex<Vec<(Vec<Event>, Owner)>> = Mutex::new(Vec::new());

/// The memory of a buffer that another library owns.
pub(super) struct External {
    /// The memory; `Some` until the buffer is dropped.
    memory: Option<ExternalMemory>,
    pointer: DevicePointer,
    size_bytes: u64,
    streams: Mutex<Vec<Stream>>,
}

impl External {
    pub(super) fn pointer(&self) -> DevicePointer {
        self.pointer
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the owner of memory of the process.
    pub(super) fn owner(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.memory.as_ref()?.owner_in_process()
    }

    /// Notes that work on a stream uses the memory.
    pub(super) fn record(&self, stream: &Stream) {
        let mut streams = self.streams.lock();
        if streams.iter().all(|known| known.id() != stream.id()) {
            streams.push(stream.clone());
        }
    }

    /// Releases the memory when the streams are done with it.
    pub(super) fn give_back(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let streams = std::mem::take(self.streams.get_mut());
        if memory.is_in_stream_order() && streams.len() == 1 {
            return drop(memory.into_owner());
        }
        match streams.iter().map(recorded).collect::<Option<Vec<_>>>() {
            Some(events) => leave(events, memory.into_owner()),
            None => std::mem::forget(memory),
        }
    }

    /// Keeps the memory for as long as the process lives.
    pub(super) fn abandon(&mut self) {
        std::mem::forget(self.memory.take());
    }
}

/// Records an event after the current work of a stream; `None` if no event can be recorded that the host may query.
fn recorded(stream: &Stream) -> Option<Event> {
    if stream.is_capturing().ok()? {
        return None;
    }
    stream.record_event().ok()
}

/// Drops the owners whose work is complete, including this one if its work is.
fn leave(events: Vec<Event>, owner: Owner) {
    let mut leaving = LEAVING.lock();
    leaving.push((events, owner));
    drop(leaving);
    collect();
}

/// Drops the owners whose work is complete.
fn collect() {
    let is_done = |events: &[Event]| events.iter().all(|event| event.query().unwrap_or(false));
    let mut leaving = LEAVING.lock();
    let (done, rest): (Vec<_>, Vec<_>) = leaving.drain(..).partition(|(events, _)| is_done(events));
    *leaving = rest;
    drop(leaving);
    drop(done);
}

impl Buffer {
    /// Returns a buffer over memory of another library, without a copy. Work on `stream` may use it immediately; the caller must
    /// order that work after the work that the memory's owner has queued. After the buffer is dropped, the owner is dropped as
    /// soon as the streams that used it are done: later buffers of this kind check for that when they are made or dropped.
    ///
    /// # Errors
    /// In a forked child of the process that opened the device.
    pub fn external(stream: &Stream, memory: ExternalMemory) -> Result<Self> {
        let device = stream.device();
        device.check_process("Buffer::external")?;
        collect();
        let (pointer, size_bytes) = (memory.pointer(), memory.size_bytes());
        let streams = Mutex::new(vec![stream.clone()]);
        let memory = Memory::External(External { memory: Some(memory), pointer, size_bytes, streams });
        Ok(Self::over(device, memory))
    }
}
