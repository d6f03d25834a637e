//! Lists of the arenas that need attention, so that no call checks all arenas.
//!
//! A program may have thousands of streams and private pools, with an arena each, and an operation of every step must not walk
//! all of them. So the arenas that matter are listed, on one [`PendingList`] per question:
//!
//! | pending list | the arenas on it | read by |
//! |---|---|---|
//! | `waiting` | arenas with frees that wait, waits in flight, or an inbox that is not empty | [`process_events`](crate::DeviceAllocator::process_events), the end of captures |
//! | `free_memory` | arenas with free memory, by owner | the [slow path](super::slow_path), for memory of other streams |
//! | `stale` | arenas with stale mappings | the return of [spare](super::spare) pages |
//!
//! An arena is added when the condition becomes true, and removed when a check finds that it no longer holds. So each check is
//! paid for by an entry: with N streams of which K have an entry, all queries together cost N + K checks.
//!
//! # Threads
//!
//! A pending list has a lock of its own, under which no other lock is taken; an arena's lock is taken before it. The condition changes
//! under the arena's lock, and so do the arena's entries: it is added *before* the condition becomes true, and removed when it is
//! false. So a query while no arena is busy finds all arenas that it should, even after a panic of the upstream. Whether an arena
//! is on a pending list is also stored under its lock, so that it is added once: a free on the fast path checks only a plain `bool`.
//!
//! Only the inbox is filled without the arena's lock, by a thread that could not get it: it fills the inbox first and then adds
//! the arena to the pending list. The thread that removes the arena checks the inbox with the pending list's lock held. If the other thread was
//! first, its entry is seen and the arena stays on the pending list; if not, the other thread adds it again. At worst an arena is on the
//! pending list without need, until the next check.
//!
//! The number of entries is also stored in an atomic, which is changed with the pending list's lock held: a query of an empty pending list is one
//! load, and sees every entry that was made before it.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::device::arena::{Arena, ArenaState};
use crate::device::common::Common;
use crate::ids::Owner;
use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering};
use crate::upstream::EventId;

/// The greatest number of other arenas that are checked for being idle as long as more memory can be taken: each check queries an
/// event of the driver.
pub(crate) const MOST_ASKED: usize = 64;

/// A set of names. See the [module's essay](self).
#[derive(Debug)]
pub(crate) struct PendingList<K> {
    len: AtomicUsize,
    inner: Mutex<Inner<K>>,
}

#[derive(Debug)]
struct Inner<K> {
    names: BTreeSet<K>,
    /// The last name that [`some`](PendingList::some) returned.
    last: Option<K>,
}

impl<K> Default for PendingList<K> {
    fn default() -> Self {
        let inner = Inner { names: BTreeSet::new(), last: None };
        Self { len: AtomicUsize::new(0), inner: Mutex::new(inner) }
    }
}

impl<K: Ord + Copy> PendingList<K> {
    /// Adds a name.
    pub(crate) fn insert(&self, name: K) {
        let mut inner = self.lock();
        inner.names.insert(name);
        self.len.store(inner.names.len(), Ordering::Release);
    }

    /// Removes a name if `is_done` returns `true`; it is called with the pending list's lock held.
    pub(crate) fn strike_if(&self, name: K, is_done: impl FnOnce() -> bool) {
        let mut inner = self.lock();
        if is_done() {
            inner.names.remove(&name);
            self.len.store(inner.names.len(), Ordering::Release);
        }
    }

    /// Returns whether the pending list was empty at the time of the call. One atomic load.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Returns the names within a range, in order.
    pub(crate) fn within(&self, range: RangeInclusive<K>) -> Vec<K> {
        if self.is_empty() { Vec::new() } else { self.lock().names.range(range).copied().collect() }
    }

    /// Returns the names within a range, in order, if there are at most `most`; otherwise `most` of them, different ones at each
    /// call.
    pub(crate) fn some(&self, range: RangeInclusive<K>, most: usize) -> Vec<K> {
        let mut inner = self.lock();
        let all = || inner.names.range(range.clone());
        let last = inner.last.filter(|last| range.contains(last) && all().nth(most).is_some());
        let names: Vec<K> = match last {
            None => all().take(most).copied().collect(),
            Some(last) => {
                let after = inner.names.range((Excluded(last), Unbounded));
                let after = after.take_while(|name| range.contains(name));
                after.chain(all().take_while(|name| **name <= last)).take(most).copied().collect()
            }
        };
        inner.last = names.last().copied().or(inner.last);
        names
    }

    fn lock(&self) -> MutexGuard<'_, Inner<K>> {
        // Neither an addition nor a removal leaves the pending list half changed.
        self.inner.lock()
    }
}

/// The pending lists of one allocator, with arenas by number.
#[derive(Debug, Default)]
pub(crate) struct PendingLists {
    pub(crate) waiting: PendingList<u64>,
    pub(crate) free_memory: PendingList<(Owner, u64)>,
    pub(crate) stale: PendingList<u64>,
}

impl PendingLists {
    /// Removes an arena that is being dropped.
    pub(crate) fn forget(&self, arena: &Arena) {
        self.waiting.strike_if(arena.number, || true);
        self.free_memory.strike_if((arena.key.owner, arena.number), || true);
        self.stale.strike_if(arena.number, || true);
    }
}

impl Common {
    /// Returns the arenas that may have waiting blocks, the oldest first.
    pub(crate) fn waiting_arenas(&self) -> Vec<Arc<Arena>> {
        let waiting = self.pending_lists.waiting.within(0..=u64::MAX);
        waiting.into_iter().filter_map(|number| self.arena(number)).collect()
    }

    /// Returns the arenas that have free memory of an owner, oldest first; if there are more than `most`, different ones at each
    /// call.
    pub(crate) fn arenas_with_free(&self, owner: Owner, most: usize) -> Vec<Arc<Arena>> {
        let arenas = self.pending_lists.free_memory.some((owner, 0)..=(owner, u64::MAX), most);
        arenas.into_iter().filter_map(|(_, number)| self.arena(number)).collect()
    }

    /// Returns the arenas that have stale mappings, oldest first.
    pub(crate) fn arenas_with_stale_mappings(&self) -> Vec<Arc<Arena>> {
        let mut arenas: Vec<Arc<Arena>> = Vec::new();
        for number in self.pending_lists.stale.within(0..=u64::MAX) {
            let Some(arena) = self.arena(number) else { continue };
            let state = arena.state();
            if state.stale_mappings.is_empty() {
                self.pending_lists.stale.strike_if(number, || true);
            }
            drop(state);
            arenas.push(arena);
        }
        arenas
    }
}

impl Arena {
    /// Adds events that this stream was made to wait for. Does not call the upstream.
    pub(crate) fn add_waits(&self, events: impl ExactSizeIterator<Item = EventId>) {
        if events.len() > 0 {
            let mut state = self.state();
            state.note_waiting(self);
            state.pending.add_waits(events);
        }
    }
}

impl ArenaState {
    /// Adds the arena to the pending list before a free may wait here.
    pub(crate) fn note_waiting(&mut self, arena: &Arena) {
        if !self.is_on_waiting {
            self.is_on_waiting = true;
            arena.common.pending_lists.waiting.insert(arena.number);
        }
    }

    /// Removes the arena from the pending list if nothing waits here, after a check that found nothing.
    pub(crate) fn strike_waiting(&mut self, arena: &Arena) {
        if self.pending.is_idle() && self.deferred.is_empty() {
            self.is_on_waiting = false;
            arena.common.pending_lists.waiting.strike_if(arena.number, || arena.has_empty_inbox());
        }
    }

    /// Adds the arena to the pending list when memory becomes free here.
    #[inline]
    pub(crate) fn note_free(&mut self, arena: &Arena) {
        if !self.is_on_free_memory {
            self.enter_free_memory(arena);
        }
    }

    #[cold]
    #[inline(never)]
    fn enter_free_memory(&mut self, arena: &Arena) {
        self.is_on_free_memory = true;
        arena.common.pending_lists.free_memory.insert((arena.key.owner, arena.number));
    }

    /// Returns whether there is free memory here, with every free block in its bin. If there is none, the arena is removed from
    /// the pending list.
    pub(crate) fn has_free(&mut self, arena: &Arena) -> bool {
        let has_free = self.free.iter().any(|bins| bins.iter().next().is_some());
        if !has_free && self.is_on_free_memory {
            self.is_on_free_memory = false;
            arena.common.pending_lists.free_memory.strike_if((arena.key.owner, arena.number), || true);
        }
        has_free
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::device::allocator::DeviceAllocator;
    use crate::device::block::Block;
    use crate::fake::FakeUpstream;
    use crate::ids::StreamId;
    use crate::settings::Settings;

    fn allocator() -> (Arc<FakeUpstream>, Arc<DeviceAllocator>) {
        let upstream = Arc::new(FakeUpstream::new(1 << 40));
        (upstream.clone(), DeviceAllocator::new(upstream, Settings::default()))
    }

    /// Returns one block on each of `streams` streams.
    fn blocks(allocator: &DeviceAllocator, streams: u64, bytes: u64) -> Vec<Block> {
        let streams = (1..=streams).map(StreamId::from_raw);
        streams.map(|stream| allocator.allocate(bytes, stream).expect("there is room")).collect()
    }

    #[test]
    fn only_arenas_in_which_something_waits_are_looked_at() {
        let (upstream, allocator) = allocator();
        let blocks = blocks(&allocator, 1000, 20 << 20);
        let waiting = || allocator.common().waiting_arenas().len();
        let other = StreamId::from_raw(5000);
        blocks.iter().take(10).for_each(|block| block.record_stream(other));
        assert_eq!(waiting(), 0);
        drop(blocks);
        assert_eq!(waiting(), 10);
        let before = upstream.calls().query_event;
        allocator.process_events();
        assert_eq!((waiting(), upstream.calls().query_event - before), (10, 10));
        upstream.complete_stream(other);
        // The first call processes them, the second finds nothing.
        (0..2).for_each(|_| allocator.process_events());
        assert_eq!(waiting(), 0);
    }

    #[test]
    fn only_arenas_that_have_free_memory_are_asked_for_it() {
        let (_, allocator) = allocator();
        let mut blocks = blocks(&allocator, 100, 20 << 20);
        let with_free = || allocator.common().arenas_with_free(Owner::Shared, usize::MAX).len();
        assert_eq!(with_free(), 0, "each block fills its segment");
        blocks.truncate(97);
        assert_eq!(with_free(), 3);
        let again = allocator.allocate(20 << 20, StreamId::from_raw(100)).expect("it is cached");
        // Another thread checks there, and finds nothing.
        drop(allocator.allocate(20 << 20, StreamId::from_raw(200)).expect("there is room"));
        assert_eq!(with_free(), 3, "two of the three, and the new one");
        drop(again);
        assert_eq!(with_free(), 4);
    }

    #[test]
    fn the_events_of_many_streams_are_not_all_asked_for_at_each_request() {
        const STREAMS: u64 = 600;
        let (upstream, allocator) = allocator();
        // Each leaves a part of its segment free, and none is known to be done.
        drop(blocks(&allocator, STREAMS, 1000));
        let asked = upstream.calls().query_event;
        assert!(asked <= 65 * STREAMS, "{asked} looks at events, of {STREAMS} streams");
    }

    #[test]
    fn some_are_all_if_they_are_few_and_else_all_have_their_turn() {
        let pending_list = PendingList::default();
        assert!(pending_list.some(0..=9, 3).is_empty() && pending_list.is_empty());
        [3, 1, 2, 20].into_iter().for_each(|name| pending_list.insert(name));
        assert_eq!(
            [(); 2].map(|()| pending_list.some(0..=9, 3)),
            [[1, 2, 3], [1, 2, 3]],
            "20 is beyond the range"
        );
        pending_list.insert(4);
        assert_eq!(pending_list.some(0..=9, 3), [4, 1, 2]);
        assert_eq!(pending_list.some(0..=9, 3), [3, 4, 1]);
        pending_list.strike_if(4, || false);
        assert_eq!(pending_list.within(2..=20), [2, 3, 4, 20]);
        pending_list.strike_if(4, || true);
        assert_eq!(pending_list.within(2..=20), [2, 3, 20]);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;
    use crate::device::inbox::Inbox;
    use crate::sync::thread;

    #[test]
    fn loom_who_has_something_in_the_inbox_is_on_the_roll() {
        loom::model(|| {
            let shared = Arc::new((Mutex::new(()), Inbox::default(), PendingList::default()));
            let leave = |shared: &(Mutex<()>, Inbox<u32>, PendingList<u64>), entry| {
                shared.1.push(entry);
                shared.2.insert(7);
            };
            leave(&shared, 1);
            let other = Arc::clone(&shared);
            let handle = thread::spawn(move || leave(&other, 2));
            {
                let _arena = shared.0.lock();
                while shared.1.pop().is_some() {}
                shared.2.strike_if(7, || shared.1.is_empty());
            }
            handle.join().expect("no thread panics");
            assert!(shared.1.is_empty() || !shared.2.is_empty(), "what came is never found");
        });
    }
}
