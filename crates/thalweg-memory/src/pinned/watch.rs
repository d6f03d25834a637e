//! The history of pinned memory, and its part of a snapshot.
//!
//! Each bucket records the events of its blocks in a ring of its own, with its lock held; memory that is taken from the upstream
//! and returned to it is recorded together with its accounts. With the history off this costs one load per allocation and two per
//! free. A pinned block is a segment with one block.
//!
//! ```text
//!  allocate ─▶ segment_alloc (if it had to be pinned) ─▶ alloc
//!  drop     ─▶ free_requested ─▶ free_completed when all uses are over (with the next look at the bucket)
//!  empty_cache, and what is too large to be kept ─▶ segment_free
//! ```
//!
//! A block that is freed while another thread holds its bucket is recorded when that thread's call or the next one processes it:
//! never after the memory is reused, but possibly later than the drop.
//!
//! All blocks are known, recorded or not. The requested size, the stack and the pool are known only of blocks that were handed
//! out while something was recorded. A block that a caller has held since before that is shown as requested in full, in the
//! shared pool.
//!
//! A snapshot locks all buckets at once, so that it shows one moment. (No other code locks two.)

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use thalweg_lock::MutexGuard;
use thalweg_snapshot::{BlockState, Frames, Segment, SegmentBlock, Snapshot, TraceEntry};

use super::HostAllocator;
use super::bucket::{PinnedOwner, Shelf};
use super::core::Core;
use super::unsplit::PinnedBlock;
use crate::ids::SizeClass;
use crate::pinned::log::NO_STREAM;
use crate::trace::history::{HistorySettings, StackId, StackSource};
use crate::trace::watch::{SnapshotOptions, SnapshotPart};

/// The number of the host in snapshots.
const HOST: i32 = -1;
/// A block as seen by a snapshot, before names are looked up.
struct Seen {
    size_bytes: u64,
    requested_bytes: u64,
    state: BlockState,
    pool_id: (u64, u64),
    allocated_at: Option<StackId>,
    pinned_at: Option<StackId>,
}

impl Seen {
    fn segment(self, address: u64, frames: &mut impl FnMut(Option<StackId>) -> Frames) -> Segment {
        let Self { size_bytes, state, .. } = self;
        let if_in = |states: &[BlockState], bytes| if states.contains(&state) { bytes } else { 0 };
        let requested_bytes =
            if_in(&[BlockState::ActiveAllocated, BlockState::ActivePendingFree], self.requested_bytes);
        Segment {
            device: HOST,
            address,
            total_bytes: size_bytes,
            allocated_bytes: if_in(&[BlockState::ActiveAllocated], size_bytes),
            active_bytes: if_in(&[BlockState::ActiveAllocated, BlockState::ActivePendingFree], size_bytes),
            requested_bytes,
            stream: NO_STREAM,
            // Pinned memory does not have two kinds of segments.
            class: SizeClass::Large,
            pool_id: self.pool_id,
            is_expandable: false,
            frames: frames(self.pinned_at),
            blocks: vec![SegmentBlock {
                address,
                size_bytes,
                requested_bytes,
                state,
                frames: frames(self.allocated_at),
                forward_frames: None,
            }],
        }
    }
}

/// Adds the state of all blocks of one bucket.
fn look(shelf: &Shelf, seen: &mut BTreeMap<u64, Seen>) {
    let pool_id = shelf.log.pool_id;
    for (address, holding) in &shelf.log.held {
        if let Some(seen) = seen.get_mut(address) {
            seen.requested_bytes = holding.requested_bytes;
            seen.allocated_at = holding.stack;
            seen.pool_id = pool_id;
        }
    }
    let mut note = |block: &PinnedBlock, state| {
        if let Some(seen) = seen.get_mut(&block.address) {
            (seen.state, seen.requested_bytes, seen.pool_id) = (state, block.requested_bytes, pool_id);
        }
    };
    let free = shelf.free.iter().chain(&shelf.discarded);
    free.for_each(|block| note(block, BlockState::Inactive));
    let pending = shelf.pending_blocks().chain(&shelf.retired);
    pending.for_each(|block| note(block, BlockState::ActivePendingFree));
}

impl Core {
    /// Returns all blocks at one moment, and the events until then.
    fn see(&self, include_traces: bool) -> (BTreeMap<u64, Seen>, Vec<TraceEntry>) {
        let still = self.moving.write();
        let pools = self.pools.all();
        let shelves: Vec<MutexGuard<'_, Shelf>> =
            self.buckets(&pools).map(|bucket| self.lock(bucket)).collect();
        let accounts = self.pinning.lock();
        let mut seen: BTreeMap<u64, Seen> = accounts
            .pieces
            .iter()
            .map(|(address, piece)| {
                let state =
                    if piece.lost { BlockState::ActivePendingFree } else { BlockState::ActiveAllocated };
                let seen = Seen {
                    size_bytes: piece.size_bytes,
                    requested_bytes: piece.size_bytes,
                    state,
                    pool_id: (0, 0),
                    allocated_at: None,
                    pinned_at: piece.stack,
                };
                (*address, seen)
            })
            .collect();
        shelves.iter().for_each(|shelf| look(shelf, &mut seen));
        if !include_traces {
            return (seen, Vec::new());
        }
        let mut merge = self.common.history.merge();
        shelves.iter().for_each(|shelf| merge.add(&shelf.log.ring));
        merge.add(&accounts.ring);
        drop((shelves, accounts, still));
        (seen, merge.finish())
    }

    fn forget_stacks(&self) {
        self.each_bucket(|shelf| shelf.log.held.clear());
        self.pinning.lock().pieces.values_mut().for_each(|piece| piece.stack = None);
    }

    pub(crate) fn annotate(&self, block: PinnedBlock, owner: &PinnedOwner, text: &str) {
        if self.common.history.is_on() {
            let mut shelf = self.lock(self.bucket(owner, block.size_bytes));
            shelf.log.annotate(&self.common.history, block, text);
        }
    }
}

/// History and snapshots.
impl HostAllocator {
    /// Begins to record the events of pinned memory, as
    /// [`DeviceAllocator::record_memory_history`](crate::DeviceAllocator::record_memory_history) does for a device's: the two are
    /// switched independently. When recording ends, all records are dropped.
    pub fn record_memory_history(&self, settings: HistorySettings) {
        let history = &self.core.common.history;
        history.configure(settings);
        if !history.is_on() {
            self.core.forget_stacks();
        }
    }

    /// Sets the source of the stacks in the history. It cannot be changed later.
    ///
    /// # Errors
    /// Returns `source` if there is one already.
    pub fn set_stack_source(&self, source: Arc<dyn StackSource>) -> Result<(), Arc<dyn StackSource>> {
        self.core.common.history.set_stack_source(source)
    }

    /// Returns the known state of pinned memory: the `host_segments` and `host_traces` of a snapshot, and nothing else. Waits for
    /// calls that free memory or wait for uses.
    pub fn memory_snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        self.add_to_snapshot(&mut snapshot, &SnapshotOptions::default());
        snapshot
    }
}

impl SnapshotPart for HostAllocator {
    fn add_to_snapshot(&self, snapshot: &mut Snapshot, options: &SnapshotOptions) {
        let (seen, traces) = self.core.see(options.include_traces);
        let history = &self.core.common.history;
        let mut known: FxHashMap<StackId, Frames> = FxHashMap::default();
        let mut frames = |stack: Option<StackId>| match stack {
            Some(stack) => known.entry(stack).or_insert_with(|| history.frames(stack)).clone(),
            None => Frames::default(),
        };
        let pool_id = options.pool.map(|pool| (0, pool.raw()));
        let wanted = seen.into_iter().filter(|(_, seen)| pool_id.is_none_or(|id| id == seen.pool_id));
        snapshot.host_segments = wanted.map(|(address, seen)| seen.segment(address, &mut frames)).collect();
        snapshot.host_traces = traces;
    }
}
