//! Restoring private pools to an earlier state.
//!
//! Several graphs may be captured into one pool, and replayed in more than one order. After a replay, the live memory of the pool
//! is the memory that was live at the end of the capture, whatever has happened to the pool since. So the pool is *checkpointed*
//! after the capture ([`checkpoint_pool`](crate::DeviceAllocator::checkpoint_pool)), and *restored* before anything that relies
//! on that state ([`restore_pool`](crate::DeviceAllocator::restore_pool)): the blocks that are live now lose their memory, and
//! those that were live then have it again, at the same addresses, with the same free memory between them.
//!
//! ```text
//! segment at the checkpoint   [ live a ][  free  ][ live b ][     free     ]
//! before restore              [     live c     ][ live d  ][ live e ][free]
//! after                       [ live a'][  free  ][ live b'][     free     ]    c, d, e and the old a, b are revoked
//! ```
//!
//! # Blocks whose memory was taken back
//!
//! Every live block of the pool is *revoked*, even if it is live in the checkpoint too: new [`Block`]s are returned for those. A
//! revoked block ([`Block::is_revoked`]) keeps only its address, as a number: dropping it frees nothing, and uses recorded on it
//! are forgotten. The code that restores a pool guarantees that no work touches memory through a revoked block except as the
//! checkpointed state allows (a tensor that represents an output of the graph may continue to do so), and that work which uses
//! the pool's memory on *other* streams than its own is ordered before later work: uses that were noted on a revoked block are
//! forgotten, not waited for. Frees that were waiting for uses are waited for.
//!
//! Internally the identifier of a revoked block remains without an address range until its holder drops it. So a late drop cannot
//! be mistaken for the drop of the block that is at the address now, and the usual drop pays one check of an empty set.
//!
//! # Changes since the checkpoint
//!
//! The pool may have taken more segments since, and expandable ones may have grown: new memory is free after the restoration. The
//! memory in the checkpoint must still exist. If not, nothing is changed.
//!
//! The lock of the slow path is held throughout, so that no segment is added or removed meanwhile. Blocks that other threads
//! allocate from the pool or free to it at that time are ordered before or after the restoration.

use std::fmt;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use thalweg_lock::BiasedMutexGuard;
use thalweg_snapshot::Action;

use crate::device::arena::{Arena, ArenaState};
use crate::device::block::Block;
use crate::device::blocks::{BlockId, BlockUse, SegmentView, Span};
use crate::device::pending::Uses;
use crate::error::{AllocationError, Kind};
use crate::ids::{PoolId, SegmentKind, StreamId};
use crate::policy::Request;

/// A state of a private pool: its segments and blocks, without their contents. It holds no memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolCheckpoint {
    pool: PoolId,
    arenas: Vec<SavedArena>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct SavedArena {
    stream: StreamId,
    /// The segments, by address.
    segments: Vec<SavedSegment>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct SavedSegment {
    address: u64,
    size_bytes: u64,
    tag: SegmentKind,
    /// The mapped ranges, in address order. The gaps between live blocks are free.
    mapped: Vec<(u64, u64)>,
    /// The blocks that callers held: address, size and requested size.
    live: Vec<(u64, u64, u64)>,
}

impl PoolCheckpoint {
    /// Saves the state of a pool's arenas. *Blocks* until frees that wait for other streams are complete.
    pub(crate) fn of(pool: PoolId, of: &[Arc<Arena>]) -> Result<Self, AllocationError> {
        let mut arenas = Vec::new();
        for arena in of {
            let state = settled(arena, "checkpoint_pool")?;
            arenas.push(SavedArena { stream: arena.key.stream, segments: state.saved() });
        }
        Ok(Self { pool, arenas })
    }

    /// Restores a pool's arenas. The lock of the slow path is held.
    ///
    /// # Errors
    /// Those of [`DeviceAllocator::restore_pool`](crate::DeviceAllocator::restore_pool); nothing has changed then.
    pub(crate) fn restore(&self, pool: PoolId, arenas: &[Arc<Arena>]) -> Result<Restored, AllocationError> {
        let refused = |problem: String| AllocationError::from(Kind::Checkpoint { pool, problem });
        if self.pool != pool {
            return Err(refused(format!("the checkpoint is of {:?}", self.pool)));
        }
        let streams: FxHashMap<StreamId, &Vec<SavedSegment>> =
            self.arenas.iter().map(|saved| (saved.stream, &saved.segments)).collect();
        for arena in arenas {
            // Arenas that are not in the checkpoint are included: memory that was freed there may also be in use by other
            // streams.
            let state = settled(arena, "restore_pool")?;
            if let Some(segments) = streams.get(&arena.key.stream) {
                state.check(segments).map_err(refused)?;
            }
        }
        for (stream, segments) in &streams {
            let is_here = arenas.iter().any(|arena| arena.key.stream == *stream);
            if !is_here && !segments.is_empty() {
                return Err(refused(format!("it has no memory of {stream:?} any more")));
            }
        }
        let mut restored = Restored { freed: Vec::new(), allocated: Vec::new() };
        for arena in arenas {
            let mut state = arena.lock();
            state.revoke_live(arena, &mut restored.freed);
            let live = streams.get(&arena.key.stream).into_iter().flat_map(|segments| segments.iter());
            for (segment, &(address, size_bytes, requested_bytes)) in
                live.flat_map(|segment| segment.live.iter().map(move |live| (segment, live)))
            {
                let class = segment.tag.class;
                let request =
                    Request { requested_bytes, size_bytes, class, stack: None, exact_address: false };
                let span = state.take_at(arena, &request, address).expect("all is free, and it was checked");
                let stream = arena.key.stream;
                restored.allocated.push(Block::new(Arc::clone(arena), span, requested_bytes, stream));
            }
        }
        restored.freed.sort_unstable();
        restored.allocated.sort_by_key(Block::address);
        Ok(restored)
    }

    /// Returns the pool.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// Returns the addresses of the blocks that were live, in ascending order.
    pub fn live_addresses(&self) -> Vec<u64> {
        let segments = self.arenas.iter().flat_map(|arena| &arena.segments);
        let mut live: Vec<u64> =
            segments.flat_map(|segment| segment.live.iter().map(|(address, ..)| *address)).collect();
        live.sort_unstable();
        live
    }
}

/// The result of [`DeviceAllocator::restore_pool`](crate::DeviceAllocator::restore_pool).
#[derive(Debug)]
#[must_use = "the blocks in it are freed when it is dropped"]
pub struct Restored {
    /// The addresses of the blocks that were live before, in ascending order. These blocks are revoked.
    pub freed: Vec<u64>,
    /// The blocks that are live in the checkpoint, in ascending order of their addresses.
    pub allocated: Vec<Block>,
}

/// The difference between the live blocks of a pool and the expected ones. Addresses are in ascending order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveDifference {
    /// The pool.
    pub pool: PoolId,
    /// The addresses at which live blocks were expected and none begins.
    pub missing: Vec<u64>,
    /// The addresses at which live blocks begin although none was expected there.
    pub unexpected: Vec<u64>,
}

impl fmt::Display for LiveDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pool, missing, unexpected } = self;
        write!(f, "the live blocks of {pool:?} are not those expected: ")?;
        write!(f, "not live, but expected: {missing:#x?}; live, but not expected: {unexpected:#x?}")
    }
}

impl std::error::Error for LiveDifference {}

/// Compares the live blocks of a pool with those that begin at `expected`.
///
/// # Errors
/// Returns the difference.
pub(crate) fn check_live(
    pool: PoolId,
    arenas: &[Arc<Arena>],
    expected: &[u64],
) -> Result<(), LiveDifference> {
    let mut live = FxHashSet::default();
    for arena in arenas {
        let state = arena.lock();
        live.extend(state.live_blocks().map(|block| state.blocks.span(block).address));
    }
    let expected: FxHashSet<u64> = expected.iter().copied().collect();
    let sorted = |one: &FxHashSet<u64>, other: &FxHashSet<u64>| {
        let mut only: Vec<u64> = one.difference(other).copied().collect();
        only.sort_unstable();
        only
    };
    let (missing, unexpected) = (sorted(&expected, &live), sorted(&live, &expected));
    if missing.is_empty() && unexpected.is_empty() {
        return Ok(());
    }
    Err(LiveDifference { pool, missing, unexpected })
}

impl Block {
    /// Returns whether the memory was taken back, because its pool was restored to a checkpoint
    /// ([`DeviceAllocator::restore_pool`](crate::DeviceAllocator::restore_pool)). Dropping the block then frees nothing.
    pub fn is_revoked(&self) -> bool {
        let (arena, block) = self.place();
        block.is_some_and(|block| arena.lock().is_revoked(block))
    }
}

/// Locks an arena's state and completes all waiting frees. *Blocks*.
fn settled<'a>(
    arena: &'a Arc<Arena>,
    call: &'static str,
) -> Result<BiasedMutexGuard<'a, ArenaState>, AllocationError> {
    let mut state = arena.lock();
    let context = arena.common.event_context();
    if context.capturing {
        // Waiting is impossible during a capture. If no free waits, it is not necessary.
        let waits = state.pending.iter().next().is_some();
        return if waits { Err(Kind::Capturing { call }.into()) } else { Ok(state) };
    }
    let waited = state.pending.synchronize(&context);
    state.collect_ready(arena);
    waited.map_err(|error| AllocationError::upstream("synchronize_event", error))?;
    Ok(state)
}

impl ArenaState {
    /// Returns whether this block was revoked, so that it has no address range.
    #[inline]
    pub(crate) fn is_revoked(&self, block: BlockId) -> bool {
        !self.revoked.is_empty() && self.revoked.contains(&block)
    }

    /// Forgets a revoked block that its holder has dropped.
    #[cold]
    pub(crate) fn forget_revoked(&mut self, arena: &Arena, block: BlockId, uses: Uses) {
        let was_revoked = self.revoked.remove(&block);
        assert!(was_revoked, "only a name without a place is forgotten");
        self.blocks.forget(block);
        let events = uses.into_iter().filter_map(|one| one.event);
        events.for_each(|recorded| arena.common.upstream.release_event(recorded.event));
    }

    /// Returns all blocks that are neither free nor unmapped, nor stale mappings: live ones, and pending ones.
    fn taken_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        let all = self.blocks.segments().flat_map(|segment| self.blocks.blocks_of(segment));
        all.filter(|block| {
            matches!(self.blocks.usage(*block), BlockUse::Taken { .. })
                && !self.stale_mappings.contains_key(block)
        })
    }

    /// Returns the blocks that callers hold.
    pub(crate) fn live_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        let pending: FxHashSet<BlockId> = self.pending.iter().collect();
        self.taken_blocks().filter(move |block| !pending.contains(block))
    }

    /// Takes all memory back from its holders, and from pending frees. The addresses of live blocks are added to `freed`.
    fn revoke_live(&mut self, arena: &Arena, freed: &mut Vec<u64>) {
        let live: FxHashSet<BlockId> = self.live_blocks().collect();
        let taken: Vec<BlockId> = self.taken_blocks().collect();
        for block in taken {
            let heir = self.blocks.rename(block);
            self.log.rename(block, heir);
            self.revoked.insert(block);
            if live.contains(&block) {
                self.notify_watches(block);
                freed.push(self.blocks.span(heir).address);
                self.free(arena, heir, Uses::new(), None);
            } else {
                if arena.common.watch.is_on() {
                    self.report_freed(arena, &[Action::FreeCompleted], heir, None);
                }
                let (SegmentKind { class, .. }, size_bytes, requested_bytes) = self.blocks.taken(heir);
                self.gauges.passed(class, size_bytes, requested_bytes);
                self.return_to_bins(arena, heir);
            }
        }
        self.bin_last_freed(arena);
    }

    fn saved(&self) -> Vec<SavedSegment> {
        let mut segments: Vec<SavedSegment> = self.blocks.segments().map(|view| self.save(view)).collect();
        segments.sort_by_key(|segment| segment.address);
        segments
    }

    fn save(&self, view: SegmentView<SegmentKind>) -> SavedSegment {
        let SegmentView { address, size_bytes, tag, .. } = view;
        let mut mapped: Vec<(u64, u64)> = Vec::new();
        let mut live = Vec::new();
        for block in self.blocks.blocks_of(view) {
            let Span { address, size_bytes, .. } = self.blocks.span(block);
            match self.blocks.usage(block) {
                _ if self.stale_mappings.contains_key(&block) => continue,
                BlockUse::Unmapped => continue,
                BlockUse::Free { .. } => {}
                BlockUse::Taken { requested_bytes } => live.push((address, size_bytes, requested_bytes)),
            }
            match mapped.last_mut() {
                Some((start, bytes)) if *start + *bytes == address => *bytes += size_bytes,
                _ => mapped.push((address, size_bytes)),
            }
        }
        SavedSegment { address, size_bytes, tag, mapped, live }
    }

    /// Checks that all the memory of `segments` still exists in this arena. The error is the reason.
    fn check(&self, segments: &[SavedSegment]) -> Result<(), String> {
        let here: FxHashMap<u64, SegmentView<SegmentKind>> =
            self.blocks.segments().map(|view| (view.address, view)).collect();
        for saved in segments {
            let SavedSegment { address, size_bytes, .. } = *saved;
            let Some(view) = here.get(&address) else {
                return Err(format!("its segment at {address:#x} ({size_bytes} bytes) was given back since"));
            };
            if (view.size_bytes, view.tag) != (size_bytes, saved.tag) {
                let (is, was) = ((view.size_bytes, view.tag), (size_bytes, saved.tag));
                return Err(format!("another segment is at {address:#x}: {is:?} instead of {was:?}"));
            }
            let now = self.save(*view).mapped;
            let is_mapped = |(from, bytes): &(u64, u64)| {
                now.iter().any(|(start, all)| start <= from && from + bytes <= start + all)
            };
            if let Some((from, bytes)) = saved.mapped.iter().find(|range| !is_mapped(range)) {
                let range = format!("{bytes} bytes from {from:#x} on");
                return Err(format!(
                    "of its segment at {address:#x}, some of the {range} was given back since"
                ));
            }
        }
        Ok(())
    }
}
