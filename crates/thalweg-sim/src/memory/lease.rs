//! Backings that are reused.
//!
//! Mapping files of a few gigabytes and unmapping them costs more than a small program on a controlled machine. Such
//! machines take their [`Backing`] from a cache of the process, and return it when they are dropped, with zeros where
//! commands have written and nothing mapped in its area: the next machine sees it as fresh.
//!
//! Invariant: only commands write to device memory, and the lease has recorded every range that they may have written.

use std::io;
use std::ops::Deref;

use thalweg_driver::Process;
use thalweg_lock::Mutex;

use super::backing::Backing;
use crate::memory::{PHYSICAL_BITS, Piece};

/// The greatest number of backings in the cache.
const CACHED: usize = 16;
/// The number of written bytes from which the host's memory is returned to the system instead of being cleared.
const CLEARED_BYTES: u64 = 4 << 20;

/// The unused backings, with the process that created them: the child of a fork shares their memory with its parent.
static CACHE: Mutex<Vec<(Process, Backing)>> = Mutex::new(Vec::new());

/// A backing that returns to the cache.
#[derive(Debug)]
pub(crate) struct Lease {
    /// The backing; `None` only while this is being dropped.
    backing: Option<Backing>,
    process: Process,
    is_recycled: bool,
    /// Physical ranges that may have been written: first address and end.
    written: Vec<(u64, u64)>,
    /// The end of the part of the area that was used for mappings.
    mapped_end: u64,
}

impl Lease {
    /// Returns a fresh backing, or a cached one that is equivalent if `is_recycled` is set. With it, the backing is cached
    /// later.
    pub(crate) fn new(devices: u32, device_bytes: u64, is_recycled: bool) -> io::Result<Self> {
        let process = Process::current();
        let cached = if is_recycled { take(process, devices, device_bytes) } else { None };
        let backing = match cached {
            Some(backing) => backing,
            None => Backing::new(devices, device_bytes)?,
        };
        Ok(Self { backing: Some(backing), process, is_recycled, written: Vec::new(), mapped_end: 0 })
    }

    /// Returns whether the backing will be reused, as on a controlled machine.
    pub(crate) fn is_recycled(&self) -> bool {
        self.is_recycled
    }

    /// Records the bytes that a command is about to write.
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

    /// Makes the backing fresh again, if that is possible.
    fn renew(&mut self, backing: &mut Backing) -> io::Result<()> {
        let (area_start, _) = backing.area();
        if self.mapped_end > area_start {
            backing.unmap(area_start, self.mapped_end - area_start)?;
        }
        self.written.sort_unstable();
        let mut cleared = 0;
        for &(start, end) in &self.written {
            // Pinned memory has physical addresses of its own, and is freed with its allocation.
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
        if let Some(mut cache) = CACHE.try_lock()
            && cache.len() < CACHED
        {
            cache.push((self.process, backing));
        }
    }
}

/// Takes a backing of this size from the cache.
fn take(process: Process, devices: u32, device_bytes: u64) -> Option<Backing> {
    let mut cache = CACHE.try_lock()?;
    let fits =
        |(made_in, backing): &(Process, Backing)| *made_in == process && backing.is_of(devices, device_bytes);
    let position = cache.iter().rposition(fits)?;
    Some(cache.remove(position).1)
}
