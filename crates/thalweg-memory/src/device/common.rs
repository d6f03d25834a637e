//! State that the arenas of one allocator share.
//!
//! It contains everything that a block needs after its allocator was dropped: the upstream, and the sequence numbers of events.
//! It also has the list of all arenas, for the slow path, the statistics and snapshots. An arena owns it and not the other way
//! round, so that it is dropped with the last block.
//!
//! An allocation in steady state writes nothing here, except with `policy:pytorch`, which counts the searches of all streams
//! together. The fields that it reads do not change in steady state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use rustc_hash::FxHashSet;
use thalweg_lock::{RwLock, RwLockReadGuard};

use super::arena::Arena;
use super::gauges::{Gauges, Quantity, Totals};
use super::pending::EventContext;
use super::pending_list::PendingLists;
use super::spare::{SparePage, SparePages};
use crate::ids::{Owner, SizeClass, StreamId};
use crate::trace::watch::Watch;
use crate::upstream::{PageId, Upstream, UpstreamError, VirtualMemory};

/// The state that the arenas of one allocator share.
pub(crate) struct Common {
    pub(crate) upstream: Arc<dyn Upstream>,
    pub(crate) totals: Totals,
    pub(crate) watch: Watch,
    pub(crate) spare: SparePages,
    pub(crate) pending_lists: PendingLists,
    /// The number of captures that are under way on the device.
    captures: AtomicUsize,
    /// Held for reading while events are touched without an arena's lock, because the arena is being dropped or there is none. No
    /// capture can begin while it is held.
    gate: RwLock<()>,
    /// The sequence number of the next recorded event.
    sequence: AtomicU64,
    /// The number of searches for a free block of the shared pool, by class and on all streams: PyTorch's clock. Only
    /// `policy:pytorch` uses it, which checks all streams each time anyway.
    searches: [AtomicU64; 2],
    /// The number of times that one stream was made to wait for another, so that memory could move between them.
    waits: AtomicU64,
    /// Streams that may use memory without a record of the use.
    unrecorded: RwLock<Vec<StreamId>>,
    arenas: RwLock<Arenas>,
    /// The number of arenas that have been created.
    numbered: AtomicU64,
}

/// All arenas that are alive. They are not owned here: an arena owns [`Common`].
#[derive(Default)]
struct Arenas {
    /// The arenas by number, so the oldest first.
    all: BTreeMap<u64, Weak<Arena>>,
    of_owners: BTreeSet<(Owner, u64)>,
}

impl Common {
    pub(crate) fn new(upstream: Arc<dyn Upstream>) -> Arc<Self> {
        Arc::new(Self {
            upstream,
            totals: Totals::default(),
            watch: Watch::default(),
            spare: SparePages::default(),
            pending_lists: PendingLists::default(),
            captures: AtomicUsize::new(0),
            gate: RwLock::default(),
            sequence: AtomicU64::new(1),
            searches: Default::default(),
            waits: AtomicU64::new(0),
            unrecorded: RwLock::default(),
            arenas: RwLock::default(),
            numbered: AtomicU64::new(0),
        })
    }

    /// Returns whether a capture is under way. One may begin at any moment, unless the caller holds the lock of the slow path, an
    /// arena's, or the [gate](Self::hold_gate).
    pub(crate) fn is_capturing(&self) -> bool {
        self.captures.load(Ordering::Acquire) > 0
    }

    /// Processes in all arenas the frees that waited for the end of captures. No capture is under way any more.
    pub(crate) fn end_captures(&self) {
        for arena in self.waiting_arenas() {
            arena.end_captures();
        }
    }

    /// Begins a capture. *Waits* for threads that have seen none under way and still touch events: otherwise an event could be
    /// recorded in the capture, and never pass. The caller holds the lock of the slow path, and no other.
    pub(crate) fn begin_capture(&self) {
        self.captures.fetch_add(1, Ordering::AcqRel);
        drop(self.gate.write());
        self.all_arenas().iter().for_each(|arena| drop(arena.state()));
    }

    /// Ends a capture. Returns whether it was the last one.
    pub(crate) fn end_capture(&self) -> bool {
        self.captures.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Prevents captures from beginning while the guard is alive.
    pub(crate) fn hold_gate(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read()
    }

    pub(crate) fn event_context(&self) -> EventContext<'_> {
        EventContext {
            events: &*self.upstream,
            captures: self.upstream.captures(),
            capturing: self.is_capturing(),
            sequence: &self.sequence,
        }
    }

    /// Returns the number of searches so far that are counted for all streams together.
    pub(crate) fn searches(&self, class: SizeClass) -> u64 {
        self.searches[class as usize].load(Ordering::Relaxed)
    }

    /// Counts one more search, of an arena that has seen `seen` so far. Returns the new number.
    pub(crate) fn count_search(&self, class: SizeClass, seen: u64) -> u64 {
        let searches = &self.searches[class as usize];
        searches.fetch_max(seen, Ordering::Relaxed);
        searches.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn count_wait(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    pub(crate) fn reset_waits(&self) {
        self.waits.store(0, Ordering::Relaxed);
    }

    /// Returns the function by which [`Totals`] accesses one arena's gauges.
    pub(crate) fn with(&self) -> impl Fn(u64, &mut dyn FnMut(&mut Gauges)) -> bool + '_ {
        |number, change| self.change_gauges(number, change)
    }

    /// Returns the active bytes of all arenas together. May return less than that if the sum is certain to be at most `known`.
    pub(crate) fn active_bytes(&self, known: u64) -> u64 {
        match self.totals.sum(Quantity::ActiveBytes, &self.with()) {
            (sum, is_exact) if is_exact || sum <= known => sum,
            _ => {
                let arenas = self.all_arenas();
                arenas.iter().map(|arena| arena.state().gauges.current(Quantity::ActiveBytes)).sum()
            }
        }
    }

    /// Returns the function by which [`Totals`] accesses the gauges of all arenas.
    pub(crate) fn each(arenas: &[Arc<Arena>]) -> impl Fn(&mut dyn FnMut(&mut Gauges)) + '_ {
        |change| arenas.iter().for_each(|arena| change(&mut arena.state().gauges))
    }

    /// Runs `change` on the gauges of the arena with a number, under its lock.
    fn change_gauges(&self, number: u64, change: &mut dyn FnMut(&mut Gauges)) -> bool {
        if let Some(arena) = self.arena(number) {
            change(&mut arena.state().gauges);
        }
        true
    }

    /// Changes one arena's gauges under its lock, unless the lock is taken. Returns whether the lock was free.
    pub(crate) fn try_change_gauges(&self, number: u64, change: &mut dyn FnMut(&mut Gauges)) -> bool {
        let Some(arena) = self.arena(number) else { return true };
        arena.try_state().map(|mut state| change(&mut state.gauges)).is_some()
    }

    /// Adds the arena that `make` creates for the next number.
    pub(crate) fn add(&self, make: impl FnOnce(u64) -> Arena) -> Arc<Arena> {
        let number = self.numbered.fetch_add(1, Ordering::Relaxed);
        let arena = Arc::new(make(number));
        let mut arenas = self.arenas.write();
        arenas.all.insert(number, Arc::downgrade(&arena));
        arenas.of_owners.insert((arena.key.owner, number));
        arena
    }

    /// Removes an arena that is being dropped from the list.
    pub(crate) fn forget(&self, arena: &Arena) {
        self.pending_lists.forget(arena);
        let mut listed = self.arenas.write();
        listed.all.remove(&arena.number);
        listed.of_owners.remove(&(arena.key.owner, arena.number));
    }

    pub(crate) fn arena(&self, number: u64) -> Option<Arc<Arena>> {
        self.arenas.read().all.get(&number)?.upgrade()
    }

    /// Returns the pages of stale mappings.
    pub(crate) fn pages_of_stale_mappings(&self) -> FxHashSet<PageId> {
        let arenas = self.arenas_with_stale_mappings();
        arenas
            .iter()
            .flat_map(|arena| {
                arena
                    .state()
                    .stale_mappings
                    .values()
                    .flat_map(|stale| stale.pages.clone())
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Returns the arenas of one owner that are alive, oldest first.
    pub(crate) fn arenas_of(&self, owner: Owner) -> Vec<Arc<Arena>> {
        let arenas = self.arenas.read();
        let numbers = arenas.of_owners.range((owner, 0)..=(owner, u64::MAX));
        numbers.filter_map(|(_, number)| arenas.all.get(number)?.upgrade()).collect()
    }

    pub(crate) fn add_unrecorded_user(&self, stream: StreamId) {
        let mut unrecorded = self.unrecorded.write();
        if !unrecorded.contains(&stream) {
            unrecorded.push(stream);
        }
    }

    /// Returns the streams that may use memory without a record of the use.
    pub(crate) fn unrecorded_users(&self) -> Vec<StreamId> {
        self.unrecorded.read().clone()
    }

    /// Returns whether free memory may move from one stream to another after events. It may not if one of the two, or another
    /// stream that may be using it, may end: no event can be recorded there any more.
    pub(crate) fn may_reuse_across(&self, from: StreamId, to: StreamId) -> bool {
        let unrecorded = self.unrecorded.read();
        !unrecorded.iter().chain([&from, &to]).any(|stream| self.upstream.may_end(*stream))
    }

    /// *Blocks* until the work of a stream is done. A stream that may have ended can only be waited for together with the whole
    /// device, which would invalidate a capture.
    pub(crate) fn synchronize_stream(
        &self,
        memory: &dyn VirtualMemory,
        stream: StreamId,
    ) -> Result<(), UpstreamError> {
        if self.upstream.may_end(stream) && self.is_capturing() {
            let why = "the stream may have ended, and during a capture the device cannot be waited for";
            return Err(UpstreamError::Other(why.into()));
        }
        memory.synchronize_stream(stream)
    }

    /// Releases spare pages to the upstream, and calls `destroyed` for each. See [`SparePages::destroy`].
    pub(crate) fn destroy_spare_pages(
        &self,
        memory: &dyn VirtualMemory,
        destroyed: impl FnMut(&SparePage),
    ) -> Result<(), (&'static str, UpstreamError)> {
        let wait = |stream| self.synchronize_stream(memory, stream);
        self.spare.destroy(memory, &self.pages_of_stale_mappings(), wait, destroyed)
    }

    /// Returns all arenas that are alive, oldest first.
    pub(crate) fn all_arenas(&self) -> Vec<Arc<Arena>> {
        let arenas = self.arenas.read();
        arenas.all.values().filter_map(Weak::upgrade).collect()
    }
}

impl Drop for Common {
    fn drop(&mut self) {
        // No arena is left, so no page is mapped. Memory that the upstream refuses now is leaked.
        if let Some(memory) = self.upstream.virtual_memory() {
            let _ = self.destroy_spare_pages(memory, |_| {});
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::allocator::DeviceAllocator;
    use super::*;
    use crate::fake::FakeUpstream;
    use crate::ids::StreamFilter;
    use crate::settings::Settings;

    #[test]
    fn arenas_that_are_gone_are_not_listed() {
        let upstream = Arc::new(FakeUpstream::with_virtual_memory(1 << 30));
        let allocator = DeviceAllocator::new(upstream, Settings::default());
        let stream = StreamId::from_raw(1);
        for _ in 0..100 {
            let pool = allocator.create_pool();
            allocator.begin_allocate_to_pool(pool, StreamFilter::All).expect("the pool is there");
            drop(allocator.allocate(1000, stream).expect("there is room"));
            allocator.end_allocate_to_pool(pool).expect("it was begun");
            allocator.release_pool(pool).expect("one reference");
            let listed = allocator.common().arenas.read().all.len();
            assert!(listed <= 1, "{listed} arenas are listed, and one pool has memory");
        }
        drop(allocator.allocate(1000, stream).expect("there is room"));
        assert_eq!(allocator.common().all_arenas().len(), 2, "that of the stream, and the last pool's");
    }
}
