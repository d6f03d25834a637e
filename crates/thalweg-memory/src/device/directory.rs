//! A lookup of the shared pool's arena of a stream, without a lock.
//!
//! Every allocation begins here, so streams must not contend here either: a read-write lock would be one cache line that all of
//! them write. Arenas are only ever added, one per stream, so a table of slots that are written once is sufficient: a lookup is a
//! hash and a load or two. When a table is half full, a larger one follows it. The older tables are still read first, so the
//! streams that were added first, and are used most, are the fastest to find.

use std::sync::{Arc, OnceLock};

use thalweg_lock::Mutex;

use super::arena::Arena;
use crate::ids::StreamId;

/// The number of slots of the first table; each further table has four times as many as the one before it.
const FIRST_SLOTS: usize = 64;

struct Table {
    slots: Box<[OnceLock<Arc<Arena>>]>,
    next: OnceLock<Box<Table>>,
}

impl Table {
    fn new(slots: usize) -> Self {
        Self { slots: (0..slots).map(|_| OnceLock::new()).collect(), next: OnceLock::new() }
    }

    /// Returns the slots where a stream may be stored, the likeliest first.
    #[inline]
    fn probes(&self, stream: StreamId) -> impl Iterator<Item = &OnceLock<Arc<Arena>>> {
        // Fibonacci hashing: handles are small numbers or aligned pointers.
        let hash = stream.raw().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let mask = self.slots.len() - 1;
        (0..self.slots.len()).map(move |step| &self.slots[(hash as usize + step) & mask])
    }

    #[inline]
    fn find(&self, stream: StreamId) -> Option<&Arc<Arena>> {
        for slot in self.probes(stream) {
            match slot.get() {
                Some(arena) if arena.key.stream == stream => return Some(arena),
                Some(_) => {}
                None => break,
            }
        }
        None
    }
}

/// The arenas of the shared pool.
pub(crate) struct Directory {
    first: Table,
    /// The number of arenas; held while one is added.
    count: Mutex<usize>,
}

impl Default for Directory {
    fn default() -> Self {
        Self { first: Table::new(FIRST_SLOTS), count: Mutex::new(0) }
    }
}

impl Directory {
    /// Returns the arena of a stream, if it has one.
    #[inline]
    pub(crate) fn find(&self, stream: StreamId) -> Option<&Arc<Arena>> {
        let mut table = &self.first;
        loop {
            if let Some(arena) = table.find(stream) {
                return Some(arena);
            }
            table = table.next.get()?;
        }
    }

    /// Returns the arena of a stream; creates it if there is none.
    #[cold]
    pub(crate) fn find_or_add(&self, stream: StreamId, make: impl FnOnce() -> Arc<Arena>) -> &Arc<Arena> {
        let mut count = self.count.lock();
        // Another thread may have added it meanwhile.
        if let Some(arena) = self.find(stream) {
            return arena;
        }
        let (mut table, mut before) = (&self.first, 0);
        // Half of each table stays free, so that every search ends at a free slot.
        while *count - before >= table.slots.len() / 2 {
            before += table.slots.len() / 2;
            table = table.next.get_or_init(|| Box::new(Table::new(table.slots.len() * 4)));
        }
        let slot =
            table.probes(stream).find(|slot| slot.get().is_none()).expect("half of the slots are free");
        *count += 1;
        slot.get_or_init(make)
    }
}
