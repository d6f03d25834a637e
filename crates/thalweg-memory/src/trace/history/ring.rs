//! The events of one stream, the newest ones.
//!
//! Room is taken in pieces, so that a large limit costs nothing before it is needed and nothing is ever moved. When as many
//! events are there as may be, each new one overwrites the oldest.
//!
//! This module and the one around it use each other: a ring is a part of a [`History`], and asks it for what is recorded.

use thalweg_snapshot::Action;

use super::texts::{self, Held};
use super::{Configured, Event, History, Mode, StackId};
use crate::ids::StreamId;

/// The number of events that a piece has: 64 KiB.
const PIECE: usize = 1024;

/// An event as it is kept.
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

/// The events of one stream. Its owner keeps it behind the lock that the stream's memory has anyway.
#[derive(Debug)]
pub struct Ring {
    /// All of [`PIECE`] events, but the last when the capacity says so.
    pieces: Vec<Vec<Entry>>,
    /// The place where the next event goes.
    next: usize,
    /// Whether there is no room left but that of the oldest event, which is at `next`.
    full: bool,
    capacity: usize,
    /// The number of changes of the history's settings when this ring last looked.
    changes: u32,
}

impl Default for Ring {
    fn default() -> Self {
        Self::new()
    }
}

impl Ring {
    /// Creates a ring without events, and without room yet.
    pub const fn new() -> Self {
        Self { pieces: Vec::new(), next: 0, full: false, capacity: usize::MAX, changes: 0 }
    }

    /// Returns whether nothing was ever recorded here.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Takes over the events of a ring whose owner goes. They are in order afterwards.
    pub fn absorb(&mut self, history: &History, other: &Self) {
        let configured = history.configured();
        let (capacity, cleared_at) = (configured.settings.max_entries, configured.cleared_at);
        let mut kept: Vec<Entry> = self.entries(cleared_at).chain(other.entries(cleared_at)).collect();
        kept.sort_by_key(|entry| entry.time_ns);
        kept.drain(..kept.len().saturating_sub(capacity));
        *self = Self { capacity, changes: configured.changes, ..Self::new() };
        kept.into_iter().for_each(|entry| self.put(entry));
    }

    /// Records `event` as happening now, if `history` wants it; else this is one load and one branch.
    #[inline]
    pub fn push(&mut self, history: &History, event: &Event) {
        self.push_each(history, event, &[event.action]);
    }

    /// Records `event` once with each of `actions`, in this order and at the same moment, as far as `history` wants them.
    #[inline]
    pub(crate) fn push_each(&mut self, history: &History, event: &Event, actions: &[Action]) {
        let mode = history.mode();
        // The clock is the largest part of what an event costs.
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

    /// Takes over what was configured since this ring last looked.
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

    /// Returns whether everything here is from before the change at which all was forgotten.
    fn is_cleared(&self, cleared_at: u32) -> bool {
        // The number may wrap around; a ring is never half of all numbers behind.
        (self.changes.wrapping_sub(cleared_at) as i32) < 0
    }

    /// Returns the events that were not forgotten, oldest first.
    pub(super) fn entries(&self, cleared_at: u32) -> impl Iterator<Item = Entry> + '_ {
        let at = |index: usize| self.pieces[index / PIECE][index % PIECE].clone();
        let older = if self.full { self.next..self.capacity } else { 0..0 };
        let all = older.chain(0..self.next).map(at);
        all.take(if self.is_cleared(cleared_at) { 0 } else { usize::MAX })
    }
}
