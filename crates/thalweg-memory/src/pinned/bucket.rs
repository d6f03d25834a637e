//! Blocks of about one size that no caller holds: free ones, and those that were freed and wait.
//!
//! A [`Bucket`] is one lock that guards everything needed to serve a request of its size, so that requests of different sizes
//! never contend. There is one for each power of two, and one for each private pool (for all its sizes).
//!
//! ```text
//!  drop ─▶ inbox ─▶ receive ─┬─ no use ──────────────────────────────▶ free ─▶ taken by a request
//!                            ├─ events ────▶ waiting ─┬─ passed ─────▶  (or discarded, if too large to be kept)
//!                            ├─ marks ──▶ deferred ─▶─┘  failed ──▶ retired
//!                            └─ captured ─▶ kept, until the pool that captured it closes
//! ```
//!
//! Invariants, which hold whenever the upstream is called and whenever the lock is free:
//!
//! - A block is in one of these places, or held by a caller, or retired.
//! - `active` counts the blocks that were taken from here and have not become free (or retired) here. A block that is kept by
//!   another pool's bucket is still counted by its own.
//!
//! This module does not handle captures, the choice of the bucket that serves a request, and how memory is pinned.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_lock::Mutex;
use thalweg_snapshot::Action;

use super::captures::PrivatePool;
use super::log::Log;
use super::rounding::{Request, Rounding};
use super::statistics::Tally;
use super::uses::{Recorder, Uses, WaitOutcome, Waiting};
use crate::device::inbox::Inbox;
use crate::pinned::unsplit::{Asked, PinnedBlock, Source};
use crate::statistics::stats::Statistic;
use crate::trace::history::{History, StackId};
use crate::upstream::HostUpstream;

/// The owner of a block: where it was taken from, and where it is returned to.
#[derive(Clone, Debug)]
pub(crate) enum PinnedOwner {
    /// The shared bucket of the block's size.
    Shared,
    /// A private pool.
    Private(Arc<PrivatePool>),
}

impl PinnedOwner {
    /// Returns whether the owner is a pool that has closed, whose blocks move on to the shared buckets.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, Self::Private(pool) if pool.is_closed())
    }

    /// Returns the owner's name in the history.
    pub(crate) fn pool_id(&self) -> (u64, u64) {
        match self {
            Self::Shared => (0, 0),
            Self::Private(pool) => pool.pool_id(),
        }
    }
}

/// A block that was freed.
#[derive(Debug)]
pub(crate) struct Freed {
    pub(crate) block: PinnedBlock,
    pub(crate) owner: PinnedOwner,
    pub(crate) uses: Uses,
    /// The pools whose captures used the block: it moves from one to the next, and finally to its owner.
    pub(crate) captured_by: SmallVec<[Arc<PrivatePool>; 1]>,
    /// Whether an event could not be recorded, so that the end of the uses can never be known.
    pub(crate) failed: bool,
    /// The stack of the free, if stacks are recorded.
    pub(crate) stack: Option<StackId>,
    /// Whether the free has been recorded in the history.
    pub(crate) reported: bool,
}

/// The state that all buckets read.
pub(crate) struct Common {
    pub(crate) rounding: Rounding,
    pub(crate) history: History,
}

/// A block that arrives in a bucket.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// A block that is returned to the bucket it was taken from.
    Returned(Freed),
    /// A block that stays here until the pool closes.
    Kept(Freed),
}

/// Free blocks, by size; those of one size form a stack.
#[derive(Default, Debug)]
pub(crate) struct FreeList {
    stacks: BTreeMap<u64, Vec<(u64, PinnedBlock)>>,
    /// The number of frees so far, which numbers them so that the latest can be found.
    frees: u64,
}

/// The number of empty stacks that are kept for the next free of the same size: one per class of a power of two.
const STACKS: usize = 9;

impl FreeList {
    pub(crate) fn push(&mut self, block: PinnedBlock) {
        self.frees += 1;
        self.stacks.entry(block.size_bytes).or_default().push((self.frees, block));
    }

    /// Takes the free block that serves the request best, if one does.
    pub(crate) fn take(&mut self, request: &Request) -> Option<PinnedBlock> {
        let stacks = self.stacks.range(request.requested_bytes..=request.most_bytes);
        let mut stacks = stacks.filter(|(_, stack)| !stack.is_empty());
        let size = if request.latest_first {
            *stacks.max_by_key(|(_, stack)| stack.last().map(|&(free, _)| free))?.0
        } else {
            *stacks.next()?.0
        };
        self.pop(size)
    }

    /// Takes the last-freed block of exactly this size.
    fn pop(&mut self, size_bytes: u64) -> Option<PinnedBlock> {
        let stack = self.stacks.get_mut(&size_bytes)?;
        let (_, block) = stack.pop()?;
        if stack.is_empty() && self.stacks.len() > STACKS {
            self.stacks.remove(&size_bytes);
        }
        Some(block)
    }

    fn is_empty(&self) -> bool {
        self.stacks.values().all(Vec::is_empty)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &PinnedBlock> {
        self.stacks.values().flatten().map(|(_, block)| block)
    }

    /// Takes all blocks that can be returned to the upstream, or all blocks.
    pub(crate) fn take_all(&mut self, with_reserve: bool) -> Vec<PinnedBlock> {
        let mut taken = Vec::new();
        for stack in self.stacks.values_mut() {
            let goes = |block: &PinnedBlock| with_reserve || block.source != Source::Reserve;
            taken.extend(stack.extract_if(.., |(_, block)| goes(block)).map(|(_, block)| block));
        }
        self.stacks.retain(|_, stack| !stack.is_empty());
        taken
    }
}

/// The state guarded by a bucket's lock.
#[derive(Default, Debug)]
pub(crate) struct Shelf {
    pub(crate) free: FreeList,
    pub(crate) waiting: Waiting,
    /// Blocks with marks whose events could not be recorded yet because a capture was under way; the oldest first.
    pub(crate) deferred: VecDeque<(PinnedBlock, Uses)>,
    pub(crate) kept: Vec<Freed>,
    /// Free blocks that are too large to be kept: returned as soon as a call may wait for that.
    pub(crate) discarded: Vec<PinnedBlock>,
    /// Blocks that are never used again.
    pub(crate) retired: Vec<PinnedBlock>,
    pub(crate) active_requests: Statistic,
    pub(crate) active_bytes: Statistic,
    pub(crate) log: Log,
}

impl Shelf {
    /// Takes a free block.
    pub(crate) fn take(&mut self, asked: &Asked, common: &Common) -> Option<PinnedBlock> {
        let block = self.free.take(&asked.request)?;
        Some(self.taken(block, asked, common))
    }

    /// Counts a block that is handed from here to a caller. Returns the block with the request's size.
    pub(crate) fn taken(&mut self, block: PinnedBlock, asked: &Asked, common: &Common) -> PinnedBlock {
        let block = PinnedBlock { requested_bytes: asked.request.requested_bytes, ..block };
        self.active_requests.increase(1);
        self.active_bytes.increase(block.size_bytes);
        if common.history.is_on() {
            self.log.report_allocated(&common.history, block, asked.stack);
        }
        block
    }

    /// Takes any free block that is large enough, without counting it as active.
    pub(crate) fn take_any(&mut self, request: &Request) -> Option<PinnedBlock> {
        for block in self.discarded.drain(..) {
            self.free.push(block);
        }
        self.free.take(&Request { most_bytes: u64::MAX, latest_first: false, ..*request })
    }

    pub(crate) fn receive(&mut self, mut arrival: Arrival, common: &Common) {
        let (Arrival::Kept(freed) | Arrival::Returned(freed)) = &mut arrival;
        if !std::mem::replace(&mut freed.reported, true) && common.history.is_on() {
            let pool_id = freed.owner.pool_id();
            self.log.report_freed(&common.history, Action::FreeRequested, freed.block, pool_id, freed.stack);
        }
        match arrival {
            Arrival::Kept(freed) => self.kept.push(freed),
            Arrival::Returned(Freed { block, stack, failed: true, .. }) => {
                self.settle(block, WaitOutcome::Failed, stack, common);
            }
            Arrival::Returned(Freed { block, uses, .. }) if uses.has_marks() => {
                self.deferred.push_back((block, uses));
            }
            Arrival::Returned(Freed { block, uses, stack, .. }) if uses.is_empty() => {
                self.settle(block, WaitOutcome::Passed, stack, common);
            }
            Arrival::Returned(Freed { block, uses, .. }) => self.waiting.add(block, uses),
        }
    }

    /// Returns whether any block here could become free when events are checked.
    pub(crate) fn has_pending(&self) -> bool {
        !self.deferred.is_empty() || !self.waiting.is_empty()
    }

    /// Records events that could not be recorded before, and checks the progress of the streams; or *blocks* until they are done.
    /// No capture is under way.
    pub(crate) fn process(
        &mut self,
        recorder: &Recorder,
        upstream: &dyn HostUpstream,
        common: &Common,
        wait: bool,
    ) {
        self.settle_all(common);
        while let Some((block, uses)) = self.deferred.front_mut() {
            // The block stays where it is while events are recorded, which may panic.
            let (block, recorded) = (*block, uses.record_marks(recorder));
            let (_, uses) = self.deferred.pop_front().expect("the front is there");
            match recorded {
                Ok(()) => self.waiting.add(block, uses),
                Err(_) => self.settle(block, WaitOutcome::Failed, None, common),
            }
        }
        if wait {
            self.waiting.synchronize(upstream);
        } else {
            self.waiting.poll(upstream);
        }
        self.settle_all(common);
    }

    /// Processes the blocks that have finished waiting. Only a panic of the upstream leaves any behind.
    pub(crate) fn settle_all(&mut self, common: &Common) {
        while let Some((block, outcome)) = self.waiting.pop_settled() {
            self.settle(block, outcome, None, common);
        }
    }

    /// Ends the wait of a block, which becomes free or retired. `stack` is the stack of the block's free, if still known.
    fn settle(&mut self, block: PinnedBlock, outcome: WaitOutcome, stack: Option<StackId>, common: &Common) {
        self.active_requests.decrease(1);
        self.active_bytes.decrease(block.size_bytes);
        match outcome {
            WaitOutcome::Passed => {
                if common.history.is_on() {
                    let pool_id = self.log.pool_id;
                    self.log.report_freed(&common.history, Action::FreeCompleted, block, pool_id, stack);
                }
                self.put(block, &common.rounding);
            }
            WaitOutcome::Failed => self.retired.push(block),
        }
    }

    /// Adds a free block.
    pub(crate) fn put(&mut self, block: PinnedBlock, rounding: &Rounding) {
        if rounding.is_cached(block.size_bytes) || block.source == Source::Reserve {
            self.free.push(block);
        } else {
            self.discarded.push(block);
        }
    }

    /// Returns whether no block is here, and none will be returned here.
    pub(crate) fn is_empty(&self) -> bool {
        let counted = self.active_requests.current == 0 && self.kept.is_empty() && self.discarded.is_empty();
        counted && self.free.is_empty()
    }

    /// Returns the freed blocks that wait for uses.
    pub(crate) fn pending_blocks(&self) -> impl Iterator<Item = &PinnedBlock> {
        let deferred = self.deferred.iter().map(|(block, _)| block);
        let kept = self.kept.iter().map(|freed| &freed.block);
        deferred.chain(kept).chain(self.waiting.blocks())
    }

    /// Returns the number and bytes of the freed blocks that wait for uses.
    pub(crate) fn pending(&self) -> Tally {
        let deferred = Tally::of(self.deferred.iter().map(|(block, _)| block.size_bytes));
        let kept = Tally::of(self.kept.iter().map(|freed| freed.block.size_bytes));
        let waiting = Tally { count: self.waiting.len() as u64, bytes: self.waiting.bytes() };
        deferred + kept + waiting
    }
}

/// A lock with the blocks that it guards. Buckets of neighbouring sizes do not share a cache line.
#[derive(Default, Debug)]
#[repr(align(128))]
pub(crate) struct Bucket {
    pub(crate) shelf: Mutex<Shelf>,
    pub(crate) inbox: Inbox<Arrival>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Policy, Settings};

    const MIB: u64 = 1 << 20;

    fn block(address: u64, size_bytes: u64) -> PinnedBlock {
        PinnedBlock { address, size_bytes, requested_bytes: size_bytes, source: Source::Reserve }
    }

    fn list(blocks: &[(u64, u64)]) -> FreeList {
        let mut free = FreeList::default();
        blocks.iter().for_each(|&(address, size_bytes)| free.push(block(address, size_bytes)));
        free
    }

    #[test]
    fn the_smallest_that_is_large_enough_serves_within_the_bound() {
        let mut free = list(&[(1, 208 * MIB), (2, 200 * MIB), (3, 240 * MIB), (4, 200 * MIB)]);
        let request = Rounding::new(&Settings::default()).request(199 * MIB);
        let order: Vec<_> = std::iter::from_fn(|| free.take(&request).map(|block| block.address)).collect();
        assert_eq!(order, [4, 2, 1], "240 MiB would waste more than an eighth");
    }

    #[test]
    fn pytorchs_choice_is_the_latest_that_is_large_enough() {
        let mut free = list(&[(1, 200 * MIB), (2, 240 * MIB), (3, 150 * MIB), (4, 210 * MIB)]);
        let settings = Settings::default()
            .with_policy(Policy::PyTorch)
            .with_pinned_max_round_threshold_bytes(0)
            .expect("a whole number of MiB");
        let request = Rounding::new(&settings).request(200 * MIB);
        let order: Vec<_> = std::iter::from_fn(|| free.take(&request).map(|block| block.address)).collect();
        assert_eq!(order, [4, 2, 1], "150 MiB are too few");
    }

    #[test]
    fn sizes_that_never_come_again_leave_nothing_behind() {
        let mut free = FreeList::default();
        for bytes in 1..1000 {
            free.push(block(bytes, bytes));
            let request =
                Request { requested_bytes: bytes, size_bytes: bytes, most_bytes: bytes, latest_first: false };
            assert_eq!(free.take(&request).map(|block| block.address), Some(bytes));
        }
        assert!(free.stacks.len() <= STACKS);
    }
}
