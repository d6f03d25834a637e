//! The receivers of an allocator's events: its history, observers, and files for when memory runs out.
//!
//! As a rule there are none; then all that an allocation pays is the load of one flag that never changes. Otherwise each event is reported
//! where it happens, under the lock of the arena that it happens in, since only there is it known what came before what. What
//! takes time is done elsewhere: a stack is taken before the lock, names are looked up when a snapshot is made, and observers
//! are told of a failed request when no lock is held any more.
//!
//! An arena keeps its events in a ring of its own, with the stacks of its live blocks and of its segments ([`Log`]). What
//! concerns no arena, a snapshot or a failed request, goes into the ring of the slow path. The events of an arena that is gone
//! are kept with those of all that went before it.
//!
//! Not here: which events there are and when they happen (`arena`, `expandable`, `direct`).

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustc_hash::FxHashMap;
use thalweg_snapshot::{Action, Snapshot};

use super::history::{Enabled, Event, History, Ring, StackId};
use super::observe::{EventObservers, OutOfMemoryObservers, SnapshotFiles};
use crate::device::blocks::{BlockId, SegmentId};
use crate::device::reentry::{self, Outside};
use crate::error::Kind;
use crate::ids::PoolId;

/// The flag that events are recorded or observed.
const ON: u8 = 1;
/// The flag that a function of the program's may be called with an arena's lock held, now or later.
const CALLS_OUT: u8 = 2;

/// The history and observers that the arenas of one allocator share.
#[derive(Default)]
pub(crate) struct Watch {
    /// The flags that an allocation looks at: [`ON`] and [`CALLS_OUT`].
    flags: AtomicU8,
    /// Held while that changes.
    switch: Mutex<()>,
    pub(crate) history: History,
    pub(crate) events: EventObservers,
    /// The events of arenas that are gone.
    retired: Mutex<Ring>,
    pub(crate) failures: OutOfMemoryObservers,
    pub(crate) rejections: OutOfMemoryObservers,
    pub(crate) files: Mutex<Option<Arc<SnapshotFiles>>>,
    /// The pinned memory, which snapshots contain too.
    pub(crate) pinned: OnceLock<Arc<dyn SnapshotPart>>,
}

impl Watch {
    /// Returns whether events are to be told. A thread that takes an arena's lock after that has changed sees the change.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & ON != 0
    }

    /// Notes that a function of the program's may be called with an arena's lock held: an observer, a source of segments.
    pub(crate) fn note_calls_out(&self) {
        self.flags.fetch_or(CALLS_OUT, Ordering::Relaxed);
    }

    /// Returns the stack of an allocation, if one is wanted. No lock may be held.
    ///
    /// # Errors
    /// If it is a function that was called with one held that allocates.
    #[inline]
    pub(crate) fn stack_of_allocation(&self) -> Result<Option<StackId>, Kind> {
        if self.flags.load(Ordering::Relaxed) == 0 {
            return Ok(None);
        }
        reentry::check()?;
        Ok(if self.is_on() { self.history.stack_of_allocation() } else { None })
    }

    /// Returns the stack of a free, if one is wanted. No lock may be held.
    #[inline]
    pub(crate) fn stack_of_free(&self) -> Option<StackId> {
        if self.is_on() { self.history.stack_of_free() } else { None }
    }

    /// Tells the observers and the history of an event. `ring` belongs to the holder of the lock.
    pub(crate) fn tell(&self, ring: &mut Ring, event: &Event) {
        self.tell_each(ring, event, &[event.action]);
    }

    /// Tells the observers and the history of an event that happens once with each of `actions`, at the same moment. `ring` belongs
    /// to the holder of the lock.
    pub(crate) fn tell_each(&self, ring: &mut Ring, event: &Event, actions: &[Action]) {
        if !self.events.is_empty() {
            let _outside = Outside::enter();
            for &action in actions {
                // The caller is in the middle of a change. The panic has been reported by the hook.
                let _ = catch_unwind(AssertUnwindSafe(|| self.events.notify(&Event { action, ..*event })));
            }
        }
        ring.push_each(&self.history, event, actions);
    }

    /// Keeps the events of an arena that goes.
    pub(crate) fn retire(&self, ring: &Ring) {
        if !ring.is_empty() {
            self.retired().absorb(&self.history, ring);
        }
    }

    pub(crate) fn files(&self) -> Option<Arc<SnapshotFiles>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn retired(&self) -> MutexGuard<'_, Ring> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `change` and updates the flags afterwards; whether the history remembers stacks.
    pub(crate) fn switch<T>(&self, change: impl FnOnce(&Self) -> T) -> (T, bool) {
        let _switch = self.switch.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(self);
        let remembers = self.history.settings().enabled != Enabled::Off;
        if remembers || !self.events.is_empty() {
            self.flags.fetch_or(ON, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!ON, Ordering::Relaxed);
        }
        (changed, remembers)
    }
}

/// Memory beside a device's own that snapshots contain too.
pub trait SnapshotPart: fmt::Debug + Send + Sync {
    /// Adds what is known of it to the snapshot of a device.
    fn add_to_snapshot(&self, snapshot: &mut Snapshot, options: &SnapshotOptions);
}

/// The events that an arena remembers.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) ring: Ring,
    /// The places where blocks that are taken were allocated, if that was asked for.
    pub(crate) allocations: FxHashMap<BlockId, StackId>,
    /// The places where segments were taken, or grew last.
    pub(crate) segments: FxHashMap<SegmentId, StackId>,
}

impl Log {
    /// Gives a block's stack to its new identifier.
    pub(crate) fn rename(&mut self, from: BlockId, to: BlockId) {
        if let Some(stack) = self.allocations.remove(&from) {
            self.allocations.insert(to, stack);
        }
    }
}

/// The parts that a [`Snapshot`] is to contain.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SnapshotOptions {
    /// The segments of this private pool only.
    pub pool: Option<PoolId>,
    /// The events too.
    pub include_traces: bool,
}

impl Default for SnapshotOptions {
    fn default() -> Self {
        Self { pool: None, include_traces: true }
    }
}

impl SnapshotOptions {
    /// Restricts the snapshot to the segments of one private pool.
    #[must_use]
    pub fn with_pool(mut self, pool: PoolId) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Includes the events, or leaves them out.
    #[must_use]
    pub fn with_traces(mut self, include_traces: bool) -> Self {
        self.include_traces = include_traces;
        self
    }
}
