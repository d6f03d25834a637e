//! The newest events of one stream.
//!
//! Memory is allocated in pieces, so that a large limit costs nothing before it is needed and nothing is ever moved. When the
//! limit is reached, each new event overwrites the oldest.
//!
//! This module and its parent use each other: a ring is a part of a [`History`], and reads from it what is recorded.

use thalweg_snapshot::Action;

use super::texts::{self, Held};
use super::{Configured, Event, History, Mode, StackId};
use crate::ids::StreamId;

/// The number of events in a piece: 64 KiB.
const PIECE: usize = 1024;

/// An event as it is stored.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) time_ns: u64,
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    pub(super) stream: StreamId,
    pub(super) pool_id: (u64, u64),
    pub(super) stack: Option<StackId>,
    pub(super) metadata: Option<Held>,
    pub(super) compile_context: Option<Held>,
    pub(super) action: Action,
    pub(super) exact_address: bool,
}

const _: () = assert!(size_of::<Entry>() == 64, "an event is one line of the cache");

/// The events of one stream. Its owner guards it with the lock of the stream's memory.
#[derive(Debug)]
pub struct Ring {
    /// Pieces of [`PIECE`] events; only the last may be smaller, because of the capacity.
    pieces: Vec<Vec<Entry>>,
    /// The position of the next event.
    next: usize,
    /// Whether the ring is full, so that the next event overwrites the oldest, which is at `next`.
    full: bool,
    capacity: usize,
    /// The number of changes of the history's settings when this ring last checked.
    changes: u32,
}

impl Default for Ring {
    fn default() -> Self {
        Self::new()
    }
}

impl Ring {
    /// Creates a ring without events that has not allocated memory yet.
    pub const fn new() -> Self {
        Self { pieces: Vec::new(), next: 0, full: false, capacity: usize::MAX, changes: 0 }
    }

    /// Returns whether nothing was ever recorded here.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Adds the events of a ring whose owner is being dropped. All events are in order afterwards.
    pub fn absorb(&mut self, history: &History, other: &Self) {
        let configured = history.configured();
        let (capacity, cleared_at) = (configured.settings.max_entries, configured.cleared_at);
        let mut kept: Vec<Entry> = self.entries(cleared_at).chain(other.entries(cleared_at)).collect();
        kept.sort_by_key(|entry| entry.time_ns);
        kept.drain(..kept.len().saturating_sub(capacity));
        *self = Self { capacity, changes: configured.changes, ..Self::new() };
        kept.into_iter().for_each(|entry| self.put(entry));
    }

    /// Records `event` with the present time, if `history` records it; otherwise this costs one load and one branch.
    #[inline]
    pub fn push(&mut self, history: &History, event: &Event) {
        self.push_each(history, event, &[event.action]);
    }

    /// Records `event` once with each of `actions`, in this order and with the same time, if `history` records the action.
    #[inline]
    pub(crate) fn push_each(&mut self, history: &History, event: &Event, actions: &[Action]) {
        let mode = history.mode();
        // Reading the clock is the largest part of an event's cost.
        let mut now = None;
        for &action in actions.iter().filter(|action| mode.records(**action)) {
            let time_ns = *now.get_or_insert_with(|| history.now_ns());
            self.record(history, mode, &Event { action, ..*event }, time_ns);
        }
    }

    fn record(&mut self, history: &History, mode: Mode, event: &Event, time_ns: u64) {
        if self.changes != mode.changes() {
            self.follow(&history.configured());
        }
        let (metadata, compile_context) = texts::of_this_thread();
        self.put(Entry {
            time_ns,
            address: event.address,
            size_bytes: event.size_bytes,
            stream: event.stream,
            pool_id: event.pool_id,
            stack: event.stack.filter(|_| mode.has(Mode::STACK_IN_EVENT)),
            metadata: event.metadata.map_or(metadata, Held::of_id),
            compile_context: compile_context.filter(|_| mode.has(Mode::COMPILE_CONTEXT)),
            action: event.action,
            exact_address: event.exact_address,
        });
    }

    fn put(&mut self, entry: Entry) {
        let (piece, place) = (self.next / PIECE, self.next % PIECE);
        if self.full {
            self.pieces[piece][place] = entry;
        } else {
            if piece == self.pieces.len() {
                self.pieces.push(Vec::with_capacity(PIECE.min(self.capacity - self.next)));
            }
            self.pieces[piece].push(entry);
        }
        self.next += 1;
        if self.next == self.capacity {
            self.next = 0;
            self.full = true;
        }
    }

    /// Applies the settings that were configured since this ring last checked.
    #[cold]
    fn follow(&mut self, configured: &Configured) {
        let capacity = configured.settings.max_entries;
        if capacity == self.capacity && !self.is_cleared(configured.cleared_at) {
            self.changes = configured.changes;
            return;
        }
        let mut kept: Vec<Entry> = self.entries(configured.cleared_at).collect();
        kept.drain(..kept.len().saturating_sub(capacity));
        *self = Self { capacity, changes: configured.changes, ..Self::new() };
        kept.into_iter().for_each(|entry| self.put(entry));
    }

    /// Returns whether all events here precede the configuration change that last cleared the history.
    fn is_cleared(&self, cleared_at: u32) -> bool {
        // The number may wrap around, but a ring never lags behind by half of its range.
        (self.changes.wrapping_sub(cleared_at) as i32) < 0
    }

    /// Returns the events that are not forgotten, oldest first.
    pub(super) fn entries(&self, cleared_at: u32) -> impl Iterator<Item = Entry> + '_ {
        let at = |index: usize| self.pieces[index / PIECE][index % PIECE].clone();
        let older = if self.full { self.next..self.capacity } else { 0..0 };
        let all = older.chain(0..self.next).map(at);
        all.take(if self.is_cleared(cleared_at) { 0 } else { usize::MAX })
    }
}
