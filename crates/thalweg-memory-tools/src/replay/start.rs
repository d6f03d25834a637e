//! The state before a trace, and how an allocator is brought into it.
//!
//! The state is reconstructed backwards: the segments after the trace, minus those that it took, plus those that it returned. On
//! the way each allocation is assigned to the segment that contained it, which has its pool. So pools belong to *lifetimes* of
//! segments; an address may be in one pool now and in another later.
//!
//! If a trace is replayed under its own settings, that state is laid out as it was ([`Layout`]): each segment at its address, or
//! with the same distances in it if it is expandable, and each block at its address. Under other settings only the blocks are
//! requested ([`live_blocks`]).
//!
//! An entry that frees a block contains the requested size and not the size of the block. In a plain segment for large requests,
//! a remainder of up to 1 MiB is never free on its own, so it belongs to the block before it. In a larger remainder, the first
//! allocation shows where the free part begins. If there is no such allocation while the block is live, all of the remainder is
//! assumed to be free, until the replay shows that a part belonged to the block too ([`doubts`](super::doubts)).
//!
//! A recording does not contain the beginnings of expandable segments, only their mapped ranges. They are assumed to begin at the
//! lowest address that was ever mapped; addresses below it that were never used again make no difference.

use std::collections::BTreeMap;

use super::program::RecordedStep;
use super::reading::LastSegment;
use thalweg_memory::{MIN_BLOCK_BYTES, SizeClass, StreamId};
use thalweg_snapshot::{Action, Event};

/// The segment size of small requests, in every version of PyTorch.
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
/// The largest small request.
const SMALL_BYTES: u64 = 1 << 20;
/// The largest remainder that is not split off a block in a plain segment for large requests.
pub(super) const LARGEST_REST_BYTES: u64 = 1 << 20;
/// The default page size of expandable segments for large requests.
const LARGE_PAGE_BYTES: u64 = 20 << 20;
/// The number of the shared pool.
const SHARED: (u64, u64) = (0, 0);

/// A segment that existed at some moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldSegment {
    bytes: u64,
    stream: StreamId,
    class: SizeClass,
    pool: Option<u16>,
    pub(super) is_expandable: bool,
}

/// A block that was live when the trace began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OlderBlock {
    pub(super) number: u32,
    pub(super) requested_bytes: u64,
    /// The bytes that the block takes in its segment, if known.
    pub(super) size_bytes: Option<u64>,
    /// The greatest number of bytes that the block can take.
    pub(super) room_bytes: u64,
    pub(super) stream: StreamId,
    /// The entry of the trace that frees the block.
    pub(super) freed: Option<usize>,
}

impl OlderBlock {
    /// Returns a request for the block at any address.
    pub(super) fn request(&self, recorded_address: u64, pool: Option<u16>) -> RecordedStep {
        let &Self { number: block, requested_bytes: bytes, stream, .. } = self;
        RecordedStep::Allocate { block, pool, bytes, stream, recorded_address }
    }

    /// Returns the bytes that the block takes in a segment with `room_bytes` up to the next block or the end, if the request was
    /// rounded to `rounded_bytes`.
    pub(super) fn size_in(
        &self,
        segment: &LaidSegment,
        room_bytes: u64,
        rounded_bytes: u64,
        is_cut: bool,
    ) -> u64 {
        let room_bytes = room_bytes.min(self.room_bytes);
        let rest_bytes = room_bytes.saturating_sub(rounded_bytes);
        match self.size_bytes {
            Some(size) => size,
            _ if segment.is_expandable => rounded_bytes.min(room_bytes),
            _ if segment.class == SizeClass::Large && (!is_cut || rest_bytes <= LARGEST_REST_BYTES) => {
                room_bytes
            }
            _ => rounded_bytes.min(room_bytes),
        }
    }

    /// Returns whether the block may be larger than it is laid out, if `free_bytes` are free after it.
    pub(super) fn may_be_larger(&self, segment: &LaidSegment, is_cut: bool, free_bytes: u64) -> bool {
        let is_plain_large = segment.class == SizeClass::Large && !segment.is_expandable;
        self.size_bytes.is_none() && is_plain_large && is_cut && free_bytes > 0
    }

    /// Records that while the block was live another one began `distance_bytes` after its beginning.
    pub(super) fn learn_room(&mut self, distance_bytes: u64) {
        self.room_bytes = distance_bytes.min(self.room_bytes);
    }
}

/// The results of walking a trace backwards.
#[derive(Default)]
pub(super) struct Backwards {
    /// The segments; at the end of the walk, those before the trace.
    pub(super) segments: BTreeMap<u64, HeldSegment>,
    /// The private pools, by PyTorch's numbers.
    pub(super) pools: Vec<(u64, u64)>,
    /// The pools of the allocations, the last one first; empty if there is no private pool.
    pub(super) of_allocations: Vec<Option<u16>>,
}

impl Backwards {
    /// Walks backwards through a trace whose last state is known.
    pub(super) fn over(last: &[LastSegment], trace: impl DoubleEndedIterator<Item = Event> + Clone) -> Self {
        let mut this = Self::default();
        for segment in last {
            let &LastSegment { address, bytes, stream, class, is_expandable, .. } = segment;
            let pool = this.pool(segment.pool_id);
            this.segments.insert(address, HeldSegment { bytes, stream, class, pool, is_expandable });
        }
        let has_pools =
            !this.pools.is_empty() || trace.clone().any(|event| event.pool_id.is_some_and(|id| id != SHARED));
        for event in trace.rev() {
            if event.action != Action::Alloc {
                this.undo(&event);
            } else if has_pools {
                let pool = match event.pool_id {
                    Some(id) => this.pool(id),
                    None => this.segment_at(event.address).and_then(|(_, segment)| segment.pool),
                };
                this.of_allocations.push(pool);
            }
        }
        this
    }

    fn undo(&mut self, event: &Event) {
        let (address, bytes, stream) = (event.address, event.size_bytes, event.stream);
        match event.action {
            Action::SegmentAlloc | Action::SegmentMap => self.cut_out(address, address.saturating_add(bytes)),
            Action::SegmentFree => {
                let class = if bytes <= SMALL_SEGMENT_BYTES { SizeClass::Small } else { SizeClass::Large };
                let pool = event.pool_id.and_then(|id| self.pool(id));
                self.segments
                    .insert(address, HeldSegment { bytes, stream, class, pool, is_expandable: false });
            }
            Action::SegmentUnmap => {
                // Memory that a private pool relies on is not returned.
                let pool = event.pool_id.and_then(|id| self.pool(id));
                let touched = self.touched(address, address.saturating_add(bytes));
                let class = touched.unwrap_or_else(|| class_of_pages(bytes));
                self.segments
                    .insert(address, HeldSegment { bytes, stream, class, pool, is_expandable: true });
            }
            _ => {}
        }
    }

    /// Returns the class of a mapped range that is adjacent to this one or overlaps it.
    fn touched(&self, start: u64, end: u64) -> Option<SizeClass> {
        let before = self.last_before(start).filter(|(at, segment)| end_of(*at, segment) == start);
        let after = self.segments.get(&end).copied();
        let touching = before.map(|(_, segment)| segment).into_iter().chain(after);
        touching.filter(|segment| segment.is_expandable).map(|segment| segment.class).next()
    }

    /// Removes a range of addresses: entire segments, or a part of an expandable one.
    fn cut_out(&mut self, start: u64, end: u64) {
        while let Some((address, segment)) =
            self.last_before(end).filter(|(at, segment)| end_of(*at, segment) > start)
        {
            self.segments.remove(&address);
            let segment_end = end_of(address, &segment);
            if segment_end > end {
                self.segments.insert(end, HeldSegment { bytes: segment_end - end, ..segment });
            }
            if address < start {
                self.segments.insert(address, HeldSegment { bytes: start - address, ..segment });
            }
        }
    }

    /// Returns the segment that contains an address, and its beginning.
    fn segment_at(&self, address: u64) -> Option<(u64, HeldSegment)> {
        self.last_before(address.saturating_add(1)).filter(|(at, segment)| end_of(*at, segment) > address)
    }

    fn last_before(&self, end: u64) -> Option<(u64, HeldSegment)> {
        self.segments.range(..end).next_back().map(|(&address, &segment)| (address, segment))
    }

    /// Returns the index of a private pool. Pools after the first 65 535 share the last index.
    fn pool(&mut self, id: (u64, u64)) -> Option<u16> {
        if id == SHARED {
            return None;
        }
        let index = self.pools.iter().position(|known| *known == id).unwrap_or_else(|| {
            if self.pools.len() < usize::from(u16::MAX) {
                self.pools.push(id);
            }
            self.pools.len() - 1
        });
        Some(index as u16)
    }
}

fn end_of(address: u64, segment: &HeldSegment) -> u64 {
    address.saturating_add(segment.bytes)
}

/// The state before a trace, as far as it is known.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Layout {
    /// The segments in the order of their addresses. They do not overlap.
    pub(super) segments: Vec<LaidSegment>,
    /// Blocks that are in none of the segments.
    pub(super) others: Vec<RecordedStep>,
}

/// A segment of the state before a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LaidSegment {
    /// The address; for an expandable segment, the beginning of its addresses.
    pub(super) address: u64,
    pub(super) stream: StreamId,
    pub(super) class: SizeClass,
    pub(super) pool: Option<u16>,
    pub(super) is_expandable: bool,
    /// The ranges with memory, as (address, bytes); of a plain segment, all of it.
    pub(super) ranges: Vec<(u64, u64)>,
    /// The blocks by address.
    pub(super) blocks: Vec<(u64, OlderBlock)>,
}

impl Layout {
    pub(super) fn of(found: &Backwards, older: &BTreeMap<u64, OlderBlock>, bases: &Bases) -> Self {
        let mut this = Self::default();
        // The expandable segments, by their purpose: there is one of each.
        let mut expandable: BTreeMap<Key, usize> = BTreeMap::new();
        let mut done = 0;
        for (&address, segment) in &found.segments {
            // In a damaged file segments overlap.
            if address < done || !segment.is_usual() {
                continue;
            }
            this.others.extend(older.range(done..address).map(|(at, block)| request(found, *at, block)));
            done = end_of(address, segment);
            let key = segment.key();
            let at = match expandable.get(&key) {
                Some(&at) if segment.is_expandable => at,
                _ => {
                    let address = if segment.is_expandable { bases.base_of(key, address) } else { address };
                    let &HeldSegment { stream, class, pool, is_expandable, .. } = segment;
                    let (ranges, blocks) = (Vec::new(), Vec::new());
                    this.segments.push(LaidSegment {
                        address,
                        stream,
                        class,
                        pool,
                        is_expandable,
                        ranges,
                        blocks,
                    });
                    this.segments.len() - 1
                }
            };
            if segment.is_expandable {
                expandable.insert(key, at);
            }
            let laid = &mut this.segments[at];
            match laid.ranges.last_mut() {
                Some((start, bytes)) if *start + *bytes == address => *bytes += segment.bytes,
                _ => laid.ranges.push((address, segment.bytes)),
            }
            laid.blocks.extend(older.range(address..done).map(|(at, block)| (*at, *block)));
        }
        this.others.extend(older.range(done..).map(|(at, block)| request(found, *at, block)));
        this
    }
}

/// Returns the class of an expandable segment in which this many bytes are mapped at once. Segments of the small class grow by
/// one page of 2 MiB.
fn class_of_pages(bytes: u64) -> SizeClass {
    if bytes.is_multiple_of(LARGE_PAGE_BYTES) { SizeClass::Large } else { SizeClass::Small }
}

/// The arena that an expandable segment serves.
pub(super) type Key = (StreamId, Option<u16>, SizeClass);

/// The beginnings of the segments that were expandable and had memory before the trace: the lowest addresses that were ever
/// mapped.
#[derive(Default)]
pub(super) struct Bases(BTreeMap<Key, u64>);

impl Bases {
    /// Determines the beginnings from the ranges that the trace maps in segments that had memory before it, and ever since.
    pub(super) fn over(found: &Backwards, trace: impl Iterator<Item = Event>) -> Self {
        let mut mapped: BTreeMap<Key, (u64, i128)> = BTreeMap::new();
        for (&address, segment) in found.segments.iter().filter(|(_, segment)| segment.is_expandable) {
            let (base, bytes) = mapped.entry(segment.key()).or_insert((address, 0));
            (*base, *bytes) = (address.min(*base), *bytes + i128::from(segment.bytes));
        }
        if mapped.is_empty() {
            return Self::default();
        }
        // An entry that maps memory does not contain the pool; the allocation after it does.
        let mut pools = found.of_allocations.iter().rev();
        let mut waiting: Vec<(u64, u64)> = Vec::new();
        for event in trace {
            let (address, size_bytes) = (event.address, event.size_bytes);
            match event.action {
                Action::SegmentMap => waiting.push((address, size_bytes)),
                Action::Alloc => {
                    let pool = pools.next().copied().flatten();
                    for (address, bytes) in waiting.drain(..) {
                        let key = (event.stream, pool, class_of_pages(bytes));
                        if let Some((base, now)) = mapped.get_mut(&key).filter(|(_, now)| *now > 0) {
                            (*base, *now) = (address.min(*base), *now + i128::from(bytes));
                        }
                    }
                }
                Action::SegmentUnmap => {
                    let key = (event.stream, None, class_of_pages(size_bytes));
                    if let Some((_, now)) = mapped.get_mut(&key) {
                        *now -= i128::from(size_bytes);
                    }
                }
                _ => {}
            }
        }
        Self(mapped.into_iter().map(|(key, (base, _))| (key, base)).collect())
    }

    fn base_of(&self, key: Key, lowest: u64) -> u64 {
        self.0.get(&key).copied().unwrap_or(lowest).min(lowest)
    }
}

fn request(found: &Backwards, recorded_address: u64, older: &OlderBlock) -> RecordedStep {
    older.request(recorded_address, found.segment_at(recorded_address).and_then(|(_, segment)| segment.pool))
}

/// Returns requests for only the live blocks, in the order of their addresses.
pub(super) fn live_blocks(found: &Backwards, older: &BTreeMap<u64, OlderBlock>) -> Vec<RecordedStep> {
    older.iter().map(|(&address, older)| request(found, address, older)).collect()
}

/// Segments as (address, bytes), each with the number of the block for which it was taken.
type Opened = Vec<(u32, (u64, u64))>;

/// Returns requests that recreate the plain segments if nothing is live before the trace, and the block that takes each segment.
/// New blocks are numbered from `first` on.
pub(super) fn free_segments(found: &Backwards, first: u32) -> (Vec<RecordedStep>, Opened) {
    let plain = || found.segments.iter().filter(|(_, segment)| segment.is_usual() && !segment.is_expandable);
    // The last segment of each kind of small ones, which need not be filled.
    let small = plain().filter(|(_, segment)| segment.class == SizeClass::Small);
    let last: BTreeMap<Key, u64> = small.map(|(&address, segment)| (segment.key(), address)).collect();
    let (mut steps, mut opened) = (Vec::new(), Vec::new());
    let mut block = first;
    for (&address, segment) in plain() {
        opened.push((block, (address, segment.bytes)));
        let requests = match segment.class {
            SizeClass::Small if last.get(&segment.key()) == Some(&address) => &[1][..],
            SizeClass::Small => &[SMALL_BYTES; 2],
            SizeClass::Large => &[segment.bytes],
        };
        for &bytes in requests {
            let (pool, stream) = (segment.pool, segment.stream);
            steps.push(RecordedStep::Allocate { block, pool, bytes, stream, recorded_address: 0 });
            block += 1;
        }
    }
    steps.extend((first..block).map(|block| RecordedStep::Free { block }));
    (steps, opened)
}

impl HeldSegment {
    /// Returns whether the allocator could have made the segment: its size is a multiple of the unit, and a small plain segment
    /// has the usual size.
    fn is_usual(&self) -> bool {
        let is_whole = self.bytes > 0 && self.bytes.is_multiple_of(MIN_BLOCK_BYTES);
        is_whole
            && (self.is_expandable || self.class == SizeClass::Large || self.bytes == SMALL_SEGMENT_BYTES)
    }

    fn key(&self) -> Key {
        (self.stream, self.pool, self.class)
    }
}
