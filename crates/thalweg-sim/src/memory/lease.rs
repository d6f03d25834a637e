//! Backings that are used again.
//!
//! Mapping files of a few gigabytes and unmapping them costs more than a small program on a controlled machine does. Such
//! machines take their [`Backing`] from a cache of the process, and give it back when they go, with zeros where commands have
//! written and nothing mapped in its area: to the next machine it is fresh.
//!
//! Invariant: only commands write to device memory, and the lease has noted each stretch that they may have written.

use std::io;
use std::ops::Deref;
use std::sync::Mutex;

use thalweg_driver::Process;

use super::backing::Backing;
use crate::memory::{PHYSICAL_BITS, Piece};

/// The number of backings that wait for a machine.
const CACHED: usize = 16;
/// From so many written bytes on the host's memory is given back instead of cleared.
const CLEARED_BYTES: u64 = 4 << 20;

/// Those without a machine, with the process that made them: the child of a fork shares their memory with its parent.
static CACHE: Mutex<Vec<(Process, Backing)>> = Mutex::new(Vec::new());

/// A backing that goes back to the cache.
#[derive(Debug)]
pub(crate) struct Lease {
    /// `None` only while it is being dropped.
    backing: Option<Backing>,
    process: Process,
    is_recycled: bool,
    /// Physical stretches that may have been written: first address and end.
    written: Vec<(u64, u64)>,
    /// Offsets of the area below which something was mapped.
    mapped_end: u64,
}

impl Lease {
    /// Returns a fresh backing, or one that is as good; whether it may be used again is for its machine to say.
    pub(crate) fn new(devices: u32, device_bytes: u64, is_recycled: bool) -> io::Result<Self> {
        let process = Process::current();
        let cached = if is_recycled { take(process, devices, device_bytes) } else { None };
        let backing = match cached {
            Some(backing) => backing,
            None => Backing::new(devices, device_bytes)?,
        };
        Ok(Self { backing: Some(backing), process, is_recycled, written: Vec::new(), mapped_end: 0 })
    }

    /// Returns whether it will be used again: whether the machine is a controlled one.
    pub(crate) fn is_recycled(&self) -> bool {
        self.is_recycled
    }

    /// Notes what a command is about to write.
    pub(crate) fn note_writes(&mut self, pieces: &[Piece]) {
        for piece in pieces.iter().filter(|piece| piece.writes) {
            let (start, end) = (piece.start, piece.start + piece.bytes);
            let known = |&(from, to): &(u64, u64)| from <= start && end <= to;
            if !self.written.iter().rev().take(16).any(known) {
                self.written.push((start, end));
            }
        }
    }

    /// Maps a part of a device's memory into the area.
    pub(crate) fn map(&mut self, offset: u64, bytes: u64, device: u32, file_offset: u64) -> io::Result<()> {
        self.mapped_end = self.mapped_end.max(offset + bytes);
        Deref::deref(self).map(offset, bytes, device, file_offset)
    }

    /// Makes the backing fresh again, if that can be done.
    fn renew(&mut self, backing: &mut Backing) -> io::Result<()> {
        let (area_start, _) = backing.area();
        if self.mapped_end > area_start {
            backing.unmap(area_start, self.mapped_end - area_start)?;
        }
        self.written.sort_unstable();
        let mut cleared = 0;
        for &(start, end) in &self.written {
            // Pinned memory has physical addresses of its own, and goes with its allocation.
            let (device, offset) = (start >> PHYSICAL_BITS, start & ((1 << PHYSICAL_BITS) - 1));
            let Ok(device) = u32::try_from(device) else { continue };
            if !backing.has_device(device) {
                continue;
            }
            let begin = start.max(cleared);
            if begin < end {
                backing.renew(device, offset + (begin - start), end - begin, CLEARED_BYTES)?;
                cleared = end;
            }
        }
        Ok(())
    }
}

impl Deref for Lease {
    type Target = Backing;

    fn deref(&self) -> &Backing {
        self.backing.as_ref().expect("held until the drop")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(mut backing) = self.backing.take() else { return };
        if !self.is_recycled || self.process.is_left() || self.renew(&mut backing).is_err() {
            return;
        }
        // A lock that is not free (in the child of a fork it may never be) costs a backing, and nothing else.
        if let Ok(mut cache) = CACHE.try_lock()
            && cache.len() < CACHED
        {
            cache.push((self.process, backing));
        }
    }
}

/// Returns a backing of this size from the cache.
fn take(process: Process, devices: u32, device_bytes: u64) -> Option<Backing> {
    let mut cache = CACHE.try_lock().ok()?;
    let fits =
        |(made_in, backing): &(Process, Backing)| *made_in == process && backing.is_of(devices, device_bytes);
    let position = cache.iter().rposition(fits)?;
    Some(cache.remove(position).1)
}
