//! The one change with which a failed request would have been served.
//!
//! An error that lists everything that might help does not help. So the state is copied, as plain numbers, and the changes that a
//! user can make are tried on the copy, from the cheapest to the most expensive: is there a block then, or room in the driver?
//! The first change with which the request fits is the advice. A setting that is already on, or that changes nothing, is never
//! advised, since the request did not fit with it.
//!
//! | change | cost |
//! |---|---|
//! | wait for uses on other streams | time |
//! | `empty_cache`, if nothing can be returned now | time |
//! | end the capture, which postpones frees | the capture |
//! | release a private pool that is not used | its addresses |
//! | `cross_stream_reuse:ordered`, `max_split_size_mb`, `last_resort:True` | a setting |
//! | `expandable_segments:True`, `expandable_page_mb:2` | a setting, from the start of the program |
//! | a larger memory fraction | memory of other processes |
//! | freeing memory that others have on the device | work of other processes |
//! | smaller requests | a smaller batch |
//! | freeing live memory | a smaller model |
//!
//! `stitching` is not among them: before a request fails, the last attempt has returned to the driver, and requested again, all
//! the memory that stitching could move.
//!
//! The simulation models the stages of the [slow path](crate::device::slow_path) as arithmetic, and prefers no advice to wrong
//! advice: a change is only advised if, according to the copy, it is sufficient. Settings that shape segments from the start of a
//! program (`expandable_segments`, `expandable_page_mb`) are judged by the present segments.
//!
//! The figures of the error, and its observers, are elsewhere.

use std::sync::Arc;

use crate::device::allocator::DeviceAllocator;
use crate::device::arena::{Arena, ArenaState};
use crate::device::blocks::{BlockId, BlockUse, SegmentView};
use crate::device::central::Central;
use crate::device::spare::SparePage;
use crate::error::{Advice, OutOfMemory};
use crate::ids::{ArenaKey, Owner, PoolId, SegmentKind, SizeClass};
use crate::policy::{MAX_REQUEST_BYTES, MIN_BLOCK_BYTES, Policy, Request};
use crate::settings::CrossStreamReuse;
use crate::upstream::MemoryInfo;

const MIB: u64 = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CopyState {
    Live,
    Pending,
    Free,
    Unmapped,
}

#[derive(Clone, Copy, Debug)]
struct BlockCopy {
    size_bytes: u64,
    state: CopyState,
}

#[derive(Clone, Debug)]
struct SegmentCopy {
    class: SizeClass,
    /// The page size of an expandable segment.
    page_bytes: Option<u64>,
    blocks: Vec<BlockCopy>,
}

#[derive(Clone, Debug)]
struct ArenaCopy {
    owner: Owner,
    /// Whether the request is for this arena.
    own: bool,
    /// Whether the arena's free memory may be returned to the upstream.
    releasable: bool,
    /// Whether the arena's free blocks serve requests of the shared pool.
    helps: bool,
    /// Whether the arena takes segments from another source, so that the memory that it returns is not the device's.
    has_source: bool,
    segments: Vec<SegmentCopy>,
}

/// The plain numbers that decide whether a request fits.
#[derive(Clone, Debug)]
pub(crate) struct Situation {
    size_bytes: u64,
    requested_bytes: u64,
    class: SizeClass,
    key: ArenaKey,
    has_source: bool,
    policy: Policy,
    has_virtual_memory: bool,
    /// The size of the largest range of addresses that is available to grow in.
    reserve_bytes: u64,
    arenas: Vec<ArenaCopy>,
    /// Pages that are in no arena.
    spare: Vec<SparePage>,
    reserved_bytes: u64,
    allowed_bytes: Option<u64>,
    device: MemoryInfo,
    capturing: bool,
    rejected: bool,
}

/// Building and changing the copy.
impl Situation {
    pub(crate) fn of(
        allocator: &DeviceAllocator,
        central: &mut Central,
        arena: &Arc<Arena>,
        request: &Request,
        figures: &OutOfMemory,
    ) -> Self {
        let common = allocator.common();
        let policy = arena.lock().policy.clone();
        let helping = central.pools.helping_out(arena.key.stream);
        let copy = |one: Arc<Arena>| ArenaCopy {
            owner: one.key.owner,
            own: one.number == arena.number,
            releasable: central.pools.is_releasable(one.key.owner),
            helps: helping.iter().any(|helper| helper.number == one.number),
            has_source: one.source.is_some(),
            segments: copy_segments(&one.lock()),
        };
        Self {
            size_bytes: request.size_bytes,
            requested_bytes: request.requested_bytes,
            class: request.class,
            key: arena.key,
            has_source: arena.source.is_some(),
            policy,
            has_virtual_memory: common.upstream.virtual_memory().is_some(),
            reserve_bytes: match central.addresses_are_short {
                true => 0,
                false => allocator.full_reserve_bytes(arena.key.stream).unwrap_or(0),
            },
            arenas: common.all_arenas().into_iter().map(copy).collect(),
            spare: common.spare.copy(),
            reserved_bytes: figures.reserved_bytes,
            allowed_bytes: figures.allowed_bytes,
            device: figures.device.unwrap_or(MemoryInfo { free_bytes: 0, total_bytes: 0 }),
            capturing: figures.capturing,
            rejected: figures.rejected,
        }
    }
}

fn copy_segments(state: &ArenaState) -> Vec<SegmentCopy> {
    let mut pending: Vec<BlockId> = state.pending.iter().chain(state.deferred.iter().copied()).collect();
    pending.sort_unstable();
    let block = |block: BlockId| BlockCopy {
        size_bytes: state.blocks.span(block).size_bytes,
        state: match state.blocks.usage(block) {
            BlockUse::Free { .. } => CopyState::Free,
            BlockUse::Unmapped => CopyState::Unmapped,
            // A stale mapping has no memory, but its addresses are taken.
            BlockUse::Taken { .. } if state.stale_mappings.contains_key(&block) => CopyState::Live,
            BlockUse::Taken { .. } if pending.binary_search(&block).is_ok() => CopyState::Pending,
            BlockUse::Taken { .. } => CopyState::Live,
        },
    };
    let segment = |segment: SegmentView<SegmentKind>| SegmentCopy {
        class: segment.tag.class,
        page_bytes: segment.tag.is_expandable.then(|| state.policy.page_bytes[segment.tag.class as usize]),
        blocks: state.blocks.blocks_of(segment).map(block).collect(),
    };
    state.blocks.segments().map(segment).collect()
}

impl SegmentCopy {
    fn free_blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.blocks.iter().filter(|block| block.state == CopyState::Free).map(|block| block.size_bytes)
    }

    /// Marks pending blocks as free.
    fn finish_pending(&mut self) {
        let mut merged: Vec<BlockCopy> = Vec::with_capacity(self.blocks.len());
        for mut block in self.blocks.drain(..) {
            if block.state == CopyState::Pending {
                block.state = CopyState::Free;
            }
            push(&mut merged, block);
        }
        self.blocks = merged;
    }

    /// Releases all memory that can be released. Returns its size.
    fn release(&mut self) -> u64 {
        let Some(page_bytes) = self.page_bytes else {
            let whole = self.blocks.len() == 1 && self.blocks[0].state == CopyState::Free;
            return if whole { self.blocks.drain(..).map(|block| block.size_bytes).sum() } else { 0 };
        };
        let mut released_bytes = 0;
        let mut kept: Vec<BlockCopy> = Vec::with_capacity(self.blocks.len());
        let mut address = 0;
        for block in self.blocks.drain(..) {
            let end = address + block.size_bytes;
            let (from, to) = (u64::next_multiple_of(address, page_bytes), end / page_bytes * page_bytes);
            if block.state == CopyState::Free && from < to {
                let mut part = |size_bytes, state| push(&mut kept, BlockCopy { size_bytes, state });
                part(from - address, CopyState::Free);
                part(to - from, CopyState::Unmapped);
                part(end - to, CopyState::Free);
                released_bytes += to - from;
            } else {
                push(&mut kept, block);
            }
            address = end;
        }
        self.blocks = kept;
        released_bytes
    }

    /// Makes the segment expandable: its memory becomes pages, with room to grow in the addresses that follow.
    fn expand(&mut self, page_bytes: [u64; 2], reserve_bytes: u64) {
        self.page_bytes = Some(page_bytes[self.class as usize]);
        let bytes: u64 = self.blocks.iter().map(|block| block.size_bytes).sum();
        let size_bytes = reserve_bytes.saturating_sub(bytes);
        push(&mut self.blocks, BlockCopy { size_bytes, state: CopyState::Unmapped });
    }

    /// Returns the fewest bytes of additional pages that would make room for `size_bytes` here.
    fn missing_bytes(&self, size_bytes: u64) -> Option<u64> {
        let page_bytes = self.page_bytes?;
        (0..self.blocks.len())
            .filter_map(|first| missing_from(&self.blocks[first..], size_bytes, page_bytes))
            .min()
    }
}

fn missing_from(blocks: &[BlockCopy], size_bytes: u64, page_bytes: u64) -> Option<u64> {
    let (mut covered, mut missing_bytes) = (0, 0);
    for block in blocks {
        match block.state {
            CopyState::Live | CopyState::Pending => return None,
            CopyState::Free => covered += block.size_bytes,
            CopyState::Unmapped => {
                let mapped = (size_bytes - covered).next_multiple_of(page_bytes).min(block.size_bytes);
                covered += mapped;
                missing_bytes += mapped;
            }
        }
        if covered >= size_bytes {
            return Some(missing_bytes);
        }
    }
    None
}

/// Adds a block at the end, merged with the last one if they are alike.
fn push(blocks: &mut Vec<BlockCopy>, block: BlockCopy) {
    let joins = |last: &BlockCopy| {
        last.state == block.state && matches!(block.state, CopyState::Free | CopyState::Unmapped)
    };
    match blocks.last_mut().filter(|last| joins(last)) {
        Some(last) => last.size_bytes += block.size_bytes,
        None if block.size_bytes > 0 => blocks.push(block),
        None => {}
    }
}

/// The check whether the request fits.
impl Situation {
    /// Returns the number of bytes that would be taken from the driver.
    pub(crate) fn segment_bytes(&self) -> u64 {
        if self.policy.direct || self.size_bytes > MAX_REQUEST_BYTES {
            return self.size_bytes;
        }
        if self.policy.expandable && !self.has_source {
            let page_bytes = self.policy.page_bytes[self.class as usize];
            return self.size_bytes.next_multiple_of(page_bytes);
        }
        self.policy.segment_size(self.size_bytes)
    }

    /// Returns whether the request would be served by the allocator's usual stages.
    pub(crate) fn fits(&self) -> bool {
        if self.is_served() {
            return true;
        }
        if self.policy.throw_on_cudamalloc_oom && !self.is_allowed(self.segment_bytes()) {
            return false;
        }
        if self.capturing {
            return self.has_room() || self.is_borrowed();
        }
        let mut after = self.clone();
        after.release();
        after.has_room() || after.is_served() || after.is_borrowed()
    }

    fn is_served(&self) -> bool {
        !self.policy.direct && self.arenas.iter().any(|arena| self.is_served_by(arena))
    }

    /// Returns whether the request is served by a free block of its own arena, or of a pool that helps.
    fn is_served_by(&self, arena: &ArenaCopy) -> bool {
        let helps = arena.helps && self.key.owner == Owner::Shared;
        let segments = || arena.segments.iter().filter(|segment| segment.class == self.class);
        (arena.own || helps) && segments().flat_map(SegmentCopy::free_blocks).any(|bytes| self.takes(bytes))
    }

    fn takes(&self, block_bytes: u64) -> bool {
        block_bytes >= self.size_bytes && self.policy.may_serve(self.size_bytes, block_bytes)
    }

    /// Returns whether the last stages of the slow path find a free block.
    fn is_borrowed(&self) -> bool {
        // While a capture is under way no stream can be made to wait for another.
        let others = self.policy.cross_stream_reuse != CrossStreamReuse::Never && !self.capturing;
        let serves = |arena: &&ArenaCopy| arena.owner == self.key.owner && (arena.own || others);
        let mut segments = self.arenas.iter().filter(serves).flat_map(|arena| arena.segments.iter());
        !self.policy.direct
            && segments.any(|segment| {
                let regular = |bytes| segment.class == self.class && self.takes(bytes);
                let lenient = |bytes| self.policy.last_resort && bytes >= self.size_bytes;
                segment.free_blocks().any(|bytes| regular(bytes) || lenient(bytes))
            })
    }

    /// Returns whether the driver has room for the memory that the request lacks.
    fn has_room(&self) -> bool {
        if self.policy.direct || !self.policy.expandable || self.has_source {
            let bytes = self.segment_bytes();
            return self.is_allowed(bytes) && (self.has_source || bytes <= self.device.free_bytes);
        }
        let smaller = self.policy.stitching && self.policy.last_resort && self.class == SizeClass::Large;
        self.has_room_in(self.class) || smaller && self.has_room_in(SizeClass::Small)
    }

    /// Returns whether the driver has room for the pages that the request lacks in segments of a class.
    fn has_room_in(&self, class: SizeClass) -> bool {
        let page_bytes = self.policy.page_bytes[class as usize];
        let own = self.arenas.iter().filter(|arena| arena.own).flat_map(|arena| &arena.segments);
        let own = own.filter(|segment| segment.class == class);
        let anew = Some(self.size_bytes.next_multiple_of(page_bytes))
            .filter(|_| self.size_bytes <= self.reserve_bytes);
        let missing_bytes =
            own.filter_map(|segment| segment.missing_bytes(self.size_bytes)).chain(anew).min();
        missing_bytes.is_some_and(|missing_bytes| {
            let spare = self.spare.iter().filter(|spare| spare.serves(page_bytes, self.key));
            let taken_bytes = missing_bytes.saturating_sub(spare.map(|spare| spare.bytes).sum());
            let asked_bytes = match self.policy.stitching {
                true => taken_bytes,
                false => self.policy.segment_size(self.size_bytes),
            };
            taken_bytes == 0 || self.is_allowed(asked_bytes) && taken_bytes <= self.device.free_bytes
        })
    }

    fn is_allowed(&self, bytes: u64) -> bool {
        self.allowed_bytes.is_none_or(|allowed| self.reserved_bytes.saturating_add(bytes) <= allowed)
    }

    fn finish_pending(&mut self) {
        if self.policy.direct {
            self.give_back(self.bytes(CopyState::Pending), false);
        }
        let segments = self.arenas.iter_mut().flat_map(|arena| arena.segments.iter_mut());
        segments.for_each(SegmentCopy::finish_pending);
    }

    /// Simulates `empty_cache`.
    fn release(&mut self) {
        self.finish_pending();
        self.release_free();
    }

    /// Simulates `empty_cache`, without waiting for pending blocks.
    fn release_free(&mut self) {
        for index in 0..self.arenas.len() {
            let arena = &mut self.arenas[index];
            if arena.releasable {
                let bytes = arena.segments.iter_mut().map(SegmentCopy::release).sum();
                let has_source = arena.has_source;
                self.give_back(bytes, has_source);
            }
        }
        // Pages that serve only one pool may still be mapped there.
        let spare_bytes =
            self.spare.extract_if(.., |spare| spare.pool.is_none()).map(|spare| spare.bytes).sum();
        self.give_back(spare_bytes, false);
    }

    fn give_back(&mut self, bytes: u64, has_source: bool) {
        self.reserved_bytes = self.reserved_bytes.saturating_sub(bytes);
        self.device.free_bytes += if has_source { 0 } else { bytes };
    }

    fn bytes(&self, state: CopyState) -> u64 {
        let segments = self.arenas.iter().flat_map(|arena| &arena.segments);
        let blocks = segments.flat_map(|segment| &segment.blocks);
        blocks.filter(|block| block.state == state).map(|block| block.size_bytes).sum()
    }

    /// Returns the situation after a change.
    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut changed = self.clone();
        change(&mut changed);
        changed
    }
}

/// Returns the smallest number from `low` to `high` for which `holds` is true; `None` if it is false for `high`. If `holds` is
/// true for a number, it must be true for all greater numbers.
fn least(low: u64, high: u64, holds: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut low, mut high) = (low, high);
    if low > high || !holds(high) {
        return None;
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) { high = middle } else { low = middle + 1 }
    }
    Some(high)
}

/// The changes.
impl Situation {
    /// Returns the first change that would have let the request succeed.
    pub(crate) fn advice(&self) -> Option<Advice> {
        if self.size_bytes > MAX_REQUEST_BYTES {
            return Some(Advice::Divide);
        }
        if self.device.total_bytes > 0 && self.size_bytes > self.device.total_bytes && !self.has_source {
            return Some(Advice::Divide);
        }
        if self.fits() {
            // The allocator has already repeated the request, and it failed: the cause is something that the copy does not
            // contain.
            return None;
        }
        let tries: [fn(&Self) -> Option<Advice>; 12] = [
            Self::wait_for_uses,
            Self::empty_cache,
            Self::end_capture,
            Self::release_pool,
            Self::reuse_across_streams,
            Self::raise_max_split_size,
            Self::last_resort,
            Self::expandable_segments,
            Self::small_pages,
            Self::raise_memory_fraction,
            Self::free_outside,
            Self::ask_for_less,
        ];
        tries.iter().find_map(|attempt| attempt(self)).or_else(|| self.free_live())
    }

    fn wait_for_uses(&self) -> Option<Advice> {
        let bytes = self.bytes(CopyState::Pending);
        let waited = || self.with(Self::finish_pending);
        (!self.capturing && bytes > 0 && waited().fits()).then_some(Advice::WaitForUses { bytes })
    }

    fn empty_cache(&self) -> Option<Advice> {
        // Memory whose free the capture postpones stays where it is.
        let release = if self.capturing { Self::release_free } else { Self::release };
        let helps = self.capturing || self.rejected;
        (helps && self.with(release).fits()).then_some(Advice::EmptyCache)
    }

    fn end_capture(&self) -> Option<Advice> {
        let ended = || self.with(|now| now.capturing = false);
        let bytes = self.bytes(CopyState::Pending);
        (self.capturing && ended().fits()).then_some(Advice::EndCapture { bytes })
    }

    /// Returns the smallest pool that is sufficient.
    fn release_pool(&self) -> Option<Advice> {
        let mut kept: Vec<(u64, PoolId)> = Vec::new();
        for arena in self.arenas.iter().filter(|arena| !arena.releasable && arena.owner != self.key.owner) {
            let bytes: u64 = arena.segments.iter().flat_map(SegmentCopy::free_blocks).sum();
            let Some(pool) = arena.owner.pool().filter(|_| bytes > 0) else { continue };
            match kept.iter_mut().find(|(_, known)| *known == pool) {
                Some((sum, _)) => *sum += bytes,
                None => kept.push((bytes, pool)),
            }
        }
        kept.sort_unstable();
        kept.into_iter().find_map(|(bytes, pool)| {
            let released = self.with(|now| {
                let of_pool = |arena: &&mut ArenaCopy| arena.owner == Owner::Private(pool);
                now.arenas.iter_mut().filter(of_pool).for_each(|arena| arena.releasable = true);
            });
            released.fits().then_some(Advice::ReleasePool { pool, bytes })
        })
    }

    fn reuse_across_streams(&self) -> Option<Advice> {
        let off = self.policy.cross_stream_reuse != CrossStreamReuse::Ordered && !self.policy.direct;
        let reused = || self.with(|now| now.policy.cross_stream_reuse = CrossStreamReuse::Ordered);
        (off && reused().fits()).then_some(Advice::ReuseAcrossStreams)
    }

    fn last_resort(&self) -> Option<Advice> {
        let off = !self.policy.last_resort && !self.policy.direct;
        (off && self.with(|now| now.policy.last_resort = true).fits()).then_some(Advice::LastResort)
    }

    fn raise_max_split_size(&self) -> Option<Advice> {
        let now_mebibytes = Some(self.policy.max_split_bytes).filter(|bytes| *bytes < u64::MAX)? / MIB;
        let raised = |mebibytes: u64| {
            self.with(|now| now.policy.max_split_bytes = mebibytes.saturating_mul(MIB)).fits()
        };
        let mebibytes = least(now_mebibytes + 1, MAX_REQUEST_BYTES / MIB, raised)?;
        Some(Advice::RaiseMaxSplitSize { mebibytes })
    }

    fn expandable_segments(&self) -> Option<Advice> {
        if self.policy.expandable || self.policy.direct || self.has_source || !self.has_virtual_memory {
            return None;
        }
        let expanded = self.with(|now| {
            now.policy.expandable = true;
            let page_bytes = now.policy.page_bytes;
            for arena in now.arenas.iter_mut().filter(|arena| !arena.has_source) {
                let plain = arena.segments.iter_mut().filter(|segment| segment.page_bytes.is_none());
                plain.for_each(|segment| segment.expand(page_bytes, now.reserve_bytes));
            }
        });
        if !expanded.fits() {
            return None;
        }
        let own = self.arenas.iter().filter(|arena| arena.own).flat_map(|arena| &arena.segments);
        let bytes: u64 = own.flat_map(SegmentCopy::free_blocks).sum();
        Some(match self.key.owner.pool().filter(|_| bytes > 0) {
            Some(pool) => Advice::ExpandablePool { pool, bytes },
            None => Advice::ExpandableSegments,
        })
    }

    fn small_pages(&self) -> Option<Advice> {
        let [small_bytes, large_bytes] = self.policy.page_bytes;
        if !self.policy.stitching || self.has_source || large_bytes <= small_bytes {
            return None;
        }
        let smaller = self.with(|now| {
            now.policy.page_bytes = [small_bytes; 2];
            let segments = now.arenas.iter_mut().flat_map(|arena| arena.segments.iter_mut());
            segments.filter_map(|segment| segment.page_bytes.as_mut()).for_each(|bytes| *bytes = small_bytes);
        });
        smaller.fits().then_some(Advice::SmallPages)
    }

    fn raise_memory_fraction(&self) -> Option<Advice> {
        let allowed = self.allowed_bytes?;
        let total = self.device.total_bytes;
        let of = |percent: u64| (percent < 100).then(|| total / 100 * percent);
        let now_percent =
            (0..100).find(|percent| of(*percent).is_some_and(|bytes| bytes > allowed)).unwrap_or(100);
        let raised = |percent| self.with(|now| now.allowed_bytes = of(percent)).fits();
        let percent = least(now_percent, 100, raised)?;
        Some(Advice::RaiseMemoryFraction { percent: u32::try_from(percent).unwrap_or(100) })
    }

    fn free_outside(&self) -> Option<Advice> {
        let MemoryInfo { free_bytes, total_bytes } = self.device;
        let outside_bytes = total_bytes.saturating_sub(free_bytes).saturating_sub(self.reserved_bytes);
        let freed = |mebibytes: u64| self.with(|now| now.device.free_bytes += mebibytes * MIB).fits();
        let bytes = least(1, outside_bytes / MIB, freed)? * MIB;
        Some(Advice::FreeOutside { bytes })
    }

    fn ask_for_less(&self) -> Option<Advice> {
        let units = self.size_bytes / MIN_BLOCK_BYTES;
        let fits = |less: u64| {
            let smaller = self.with(|now| {
                now.size_bytes = (units - less) * MIN_BLOCK_BYTES;
                now.class = crate::policy::size_class(now.size_bytes);
            });
            smaller.fits()
        };
        let size_bytes = (units - least(1, units.checked_sub(1)?, fits)?) * MIN_BLOCK_BYTES;
        Some(Advice::AskForLess { bytes: self.requested_bytes.saturating_sub(size_bytes).max(1) })
    }

    fn free_live(&self) -> Option<Advice> {
        let freed = |mebibytes: u64| self.with(|now| now.give_back(mebibytes * MIB, false)).fits();
        let bytes = least(1, self.bytes(CopyState::Live).div_ceil(MIB), freed)? * MIB;
        Some(Advice::FreeLive { bytes })
    }
}
