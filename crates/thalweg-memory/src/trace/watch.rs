//! The receivers of an allocator's events: its history, observers, and files for when memory runs out.
//!
//! Usually there are none; then an allocation only pays the load of one flag that never changes. Otherwise each event is reported
//! where it happens, under the lock of its arena, since only there is the order of events known. Slow work is done elsewhere: a
//! stack is taken before the lock, names are looked up when a snapshot is made, and observers are notified of a failed request
//! after all locks have been released.
//!
//! An arena keeps its events in a ring of its own, with the stacks of its live blocks and of its segments ([`Log`]). Events that
//! concern no arena, a snapshot or a failed request, are stored in the ring of the slow path. The events of arenas that no longer
//! exist are kept together in one ring.
//!
//! The kinds of events and their occasions are defined elsewhere (`arena`, `expandable`, `direct`).

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_snapshot::{Action, Snapshot};

use super::history::{Enabled, Event, History, Ring, StackId};
use super::observe::{EventObservers, OutOfMemoryObservers, SnapshotFiles};
use crate::device::blocks::{BlockId, SegmentId};
use crate::device::reentry::{self, Outside};
use crate::error::Kind;
use crate::ids::PoolId;

/// The flag that events are recorded or observed.
const ON: u8 = 1;
/// The flag that a function of the program may be called with an arena's lock held, now or later.
const CALLS_OUT: u8 = 2;

/// The history and observers that the arenas of one allocator share.
#[derive(Default)]
pub(crate) struct Watch {
    /// The flags that an allocation reads: [`ON`] and [`CALLS_OUT`].
    flags: AtomicU8,
    /// Held while the flags change.
    switch: Mutex<()>,
    pub(crate) history: History,
    pub(crate) events: EventObservers,
    /// The events of arenas that no longer exist.
    retired: Mutex<Ring>,
    pub(crate) failures: OutOfMemoryObservers,
    pub(crate) rejections: OutOfMemoryObservers,
    pub(crate) files: Mutex<Option<Arc<SnapshotFiles>>>,
    /// The pinned memory, which snapshots contain too.
    pub(crate) pinned: OnceLock<Arc<dyn SnapshotPart>>,
}

impl Watch {
    /// Returns whether events must be reported. A thread that takes an arena's lock after a change sees the change.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & ON != 0
    }

    /// Records that a function of the program may be called with an arena's lock held: an observer, a source of segments.
    pub(crate) fn note_calls_out(&self) {
        self.flags.fetch_or(CALLS_OUT, Ordering::Relaxed);
    }

    /// Returns the stack of an allocation, if it is to be recorded. No lock may be held.
    ///
    /// # Errors
    /// If the caller is a function that was called with a lock held.
    #[inline]
    pub(crate) fn stack_of_allocation(&self) -> Result<Option<StackId>, Kind> {
        if self.flags.load(Ordering::Relaxed) == 0 {
            return Ok(None);
        }
        reentry::check()?;
        Ok(if self.is_on() { self.history.stack_of_allocation() } else { None })
    }

    /// Returns the stack of a free, if it is to be recorded. No lock may be held.
    #[inline]
    pub(crate) fn stack_of_free(&self) -> Option<StackId> {
        if self.is_on() { self.history.stack_of_free() } else { None }
    }

    /// Reports an event to the observers and the history. `ring` belongs to the holder of the lock.
    pub(crate) fn report(&self, ring: &mut Ring, event: &Event) {
        self.report_each(ring, event, &[event.action]);
    }

    /// Reports an event that happens once with each of `actions`, at the same moment, to the observers and the history. `ring`
    /// belongs to the holder of the lock.
    pub(crate) fn report_each(&self, ring: &mut Ring, event: &Event, actions: &[Action]) {
        if !self.events.is_empty() {
            let _outside = Outside::enter();
            for &action in actions {
                // The caller is in the middle of a change, so the panic stops here. The hook has reported it.
                let _ = catch_unwind(AssertUnwindSafe(|| self.events.notify(&Event { action, ..*event })));
            }
        }
        ring.push_each(&self.history, event, actions);
    }

    /// Keeps the events of an arena that is being dropped.
    pub(crate) fn retire(&self, ring: &Ring) {
        if !ring.is_empty() {
            self.retired().absorb(&self.history, ring);
        }
    }

    pub(crate) fn files(&self) -> Option<Arc<SnapshotFiles>> {
        self.files.lock().clone()
    }

    pub(crate) fn retired(&self) -> MutexGuard<'_, Ring> {
        self.retired.lock()
    }

    /// Runs `change` and updates the flags afterwards. Returns the result, and whether the history records stacks.
    pub(crate) fn switch<T>(&self, change: impl FnOnce(&Self) -> T) -> (T, bool) {
        let _switch = self.switch.lock();
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

/// Memory other than a device's own that snapshots contain too.
pub trait SnapshotPart: fmt::Debug + Send + Sync {
    /// Adds the known state of this memory to the snapshot of a device.
    fn add_to_snapshot(&self, snapshot: &mut Snapshot, options: &SnapshotOptions);
}

/// The events that an arena records.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) ring: Ring,
    /// The stacks of the allocations of taken blocks, if they are recorded.
    pub(crate) allocations: FxHashMap<BlockId, StackId>,
    /// The stacks at which segments were taken, or last grew.
    pub(crate) segments: FxHashMap<SegmentId, StackId>,
}

impl Log {
    /// Moves a block's stack to its new identifier.
    pub(crate) fn rename(&mut self, from: BlockId, to: BlockId) {
        if let Some(stack) = self.allocations.remove(&from) {
            self.allocations.insert(to, stack);
        }
    }
}

/// The parts that a [`Snapshot`] contains.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SnapshotOptions {
    /// The private pool whose segments are included; all segments if `None`.
    pub pool: Option<PoolId>,
    /// Whether the events are included.
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
