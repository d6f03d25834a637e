//! Address arithmetic: segments that are divided into blocks without gaps.
//!
//! A *segment* is a range of addresses. At any time it is tiled by *blocks*: every byte belongs to exactly one block, and each
//! block knows its neighbours in address order. A block is in one of three states:
//!
//! - *free*: it has memory, and no caller holds it;
//! - *taken*: a caller holds it, or it is a stale mapping;
//! - *unmapped*: an address range without memory. Only expandable segments have such blocks.
//!
//! No two free blocks are adjacent, and no two unmapped ones. The operations that preserve this:
//!
//! ```text
//! add_segment   [            free            ]        or all unmapped, for an expandable one
//! split         [   free   |      free       ]        then at once:
//! take          [  taken   |      free       ]
//! release       [            free            ]        merged with free neighbours
//! map           [   free   |    unmapped     ]  ->  [ free            ]   merged with free neighbours
//! unmap         [ free     |    unmapped     ]  ->  [    unmapped     ]   merged with unmapped neighbours
//! ```
//!
//! Between `split` and the next call two equal blocks are adjacent; every caller makes that call at once.
//!
//! This module does not handle streams, pools, events, the upstream or physical pages. A block carries the *tag* of its segment,
//! which is opaque here. Whether a taken block is in use or waits for an event makes no difference to its address, so this module
//! does not distinguish the two.

use std::ops::{Index, IndexMut};

use super::slots::Slots;

/// The identifier of a block while it exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct BlockId(u32);

impl BlockId {
    /// The identifier that stands for no block.
    pub(crate) const NONE: Self = Self(u32::MAX);

    /// Returns a small number that is unique to the block, usable as an index for other data of blocks.
    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }

    #[cfg(test)]
    pub(crate) fn of_index(index: usize) -> Self {
        Self(u32::try_from(index).expect("a small number"))
    }

    /// Returns the block, or `None` for [`NONE`](Self::NONE).
    #[inline]
    pub(crate) fn some(self) -> Option<Self> {
        (self != Self::NONE).then_some(self)
    }
}

/// The identifier of a segment while it exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct SegmentId(u32);

/// A block with its address range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) block: BlockId,
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
}

impl Span {
    /// The span without memory.
    pub(crate) const NULL: Self = Self { block: BlockId::NONE, address: 0, size_bytes: 0 };

    pub(crate) fn end(self) -> u64 {
        self.address + self.size_bytes
    }
}

/// The state of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockUse {
    /// The block is free, since this time of its owner's clock.
    Free { since: u64 },
    /// The block is taken, by a request for this many bytes of it.
    Taken { requested_bytes: u64 },
    /// The block has addresses without memory.
    Unmapped,
}

/// The result of merging a block with its neighbours.
#[derive(Debug)]
pub(crate) struct Merged {
    /// The block that covers the merged range. It keeps the identifier of the first of the merged blocks; the identifiers of the
    /// others are void.
    pub(crate) span: Span,
    /// The neighbours that were merged, as they were: the one before, the one after.
    pub(crate) absorbed: [Option<Span>; 2],
}

/// A segment, as seen from outside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentView<Tag> {
    pub(crate) id: SegmentId,
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
    pub(crate) tag: Tag,
    first: BlockId,
}

#[derive(Debug)]
struct Segment<Tag> {
    address: u64,
    size_bytes: u64,
    first: BlockId,
    tag: Tag,
}

/// The state of a block, without the figures of [`BlockUse`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RecordState {
    Free,
    Taken,
    Unmapped,
    /// The record belongs to no block.
    Vacant,
}

/// A block. Allocating and freeing read and write half a dozen records in random places, so each is in one cache line, and none
/// is ever moved or copied.
#[derive(Debug)]
#[repr(align(64))]
struct Record<Tag> {
    address: u64,
    size_bytes: u64,
    /// The time since which a free block is free, or the requested bytes of a taken one.
    figure: u64,
    previous: BlockId,
    /// The next vacant record, in a vacant record.
    next: BlockId,
    segment: SegmentId,
    tag: Tag,
    state: RecordState,
}

/// The records of blocks, by identifier.
#[derive(Debug)]
struct Records<Tag> {
    records: Vec<Record<Tag>>,
    /// The record that became vacant last.
    vacant: BlockId,
}

impl<Tag> Index<BlockId> for Records<Tag> {
    type Output = Record<Tag>;

    #[inline]
    fn index(&self, block: BlockId) -> &Record<Tag> {
        &self.records[block.0 as usize]
    }
}

impl<Tag> IndexMut<BlockId> for Records<Tag> {
    #[inline]
    fn index_mut(&mut self, block: BlockId) -> &mut Record<Tag> {
        &mut self.records[block.0 as usize]
    }
}

impl<Tag> Records<Tag> {
    /// Stores a record and returns the identifier of its block.
    #[inline]
    fn insert(&mut self, record: Record<Tag>) -> BlockId {
        let Some(vacant) = self.vacant.some() else { return self.insert_after(record) };
        let slot = &mut self[vacant];
        let next = slot.next;
        *slot = record;
        self.vacant = next;
        vacant
    }

    #[cold]
    fn insert_after(&mut self, record: Record<Tag>) -> BlockId {
        let name = u32::try_from(self.records.len()).ok().map(BlockId);
        let name = name.filter(|name| *name != BlockId::NONE).expect("there are fewer than 2^32 blocks");
        self.records.push(record);
        name
    }

    /// Marks the identifier of a removed block as vacant.
    #[inline]
    fn vacate(&mut self, block: BlockId) {
        let vacant = self.vacant;
        let record = &mut self[block];
        assert!(record.state != RecordState::Vacant, "a block goes once");
        (record.state, record.next) = (RecordState::Vacant, vacant);
        self.vacant = block;
    }
}

/// All segments and blocks of one arena.
#[derive(Debug)]
pub(crate) struct Blocks<Tag> {
    segments: Slots<Segment<Tag>>,
    records: Records<Tag>,
}

impl<Tag> Default for Blocks<Tag> {
    fn default() -> Self {
        Self { segments: Slots::default(), records: Records { records: Vec::new(), vacant: BlockId::NONE } }
    }
}

impl<Tag: Copy> Blocks<Tag> {
    /// Adds a segment as one block, which is free or unmapped.
    pub(crate) fn add_segment(&mut self, address: u64, size_bytes: u64, usage: BlockUse, tag: Tag) -> Span {
        assert!(
            size_bytes > 0 && address.checked_add(size_bytes).is_some(),
            "a segment is a range of addresses"
        );
        let (state, figure) = match usage {
            BlockUse::Free { since } => (RecordState::Free, since),
            BlockUse::Unmapped => (RecordState::Unmapped, 0),
            BlockUse::Taken { .. } => panic!("a new segment is free or unmapped"),
        };
        // Segment and block refer to each other; the block's identifier is filled in as soon as it exists.
        let segment =
            SegmentId(self.segments.insert(Segment { address, size_bytes, first: BlockId::NONE, tag }));
        let (previous, next) = (BlockId::NONE, BlockId::NONE);
        let block =
            self.records.insert(Record { address, size_bytes, figure, previous, next, segment, tag, state });
        self.segments[segment.0].first = block;
        Span { block, address, size_bytes }
    }

    /// Removes the segment that consists only of `block`.
    ///
    /// # Panics
    /// If the block is taken, or is not the only one.
    pub(crate) fn remove_segment(&mut self, block: BlockId) -> SegmentId {
        let taken = self.requested_bytes(block).is_some();
        assert!(!taken && !self.is_split(block), "only a segment without a taken block can be removed");
        let segment = self.records[block].segment;
        self.records.vacate(block);
        self.segments.remove(segment.0);
        segment
    }

    /// Splits a free or unmapped block in two and returns the second part. The first part keeps the identifier and has
    /// `size_bytes`.
    ///
    /// # Panics
    /// If the block is taken, or not larger than `size_bytes`.
    #[inline(always)]
    pub(crate) fn split(&mut self, block: BlockId, size_bytes: u64) -> Span {
        let record = &mut self.records[block];
        assert!(
            matches!(record.state, RecordState::Free | RecordState::Unmapped),
            "a taken block is not split"
        );
        assert!(0 < size_bytes && size_bytes < record.size_bytes, "both parts of a split block have bytes");
        let address = record.address + size_bytes;
        let rest_bytes = record.size_bytes - size_bytes;
        let Record { figure, next, segment, tag, state, .. } = *record;
        record.size_bytes = size_bytes;
        let previous = block;
        let rest = self.records.insert(Record {
            address,
            size_bytes: rest_bytes,
            figure,
            previous,
            next,
            segment,
            tag,
            state,
        });
        self.records[block].next = rest;
        if let Some(next) = next.some() {
            self.records[next].previous = rest;
        }
        Span { block: rest, address, size_bytes: rest_bytes }
    }

    /// Marks a free block as taken, by a request for `requested_bytes` of it.
    ///
    /// # Panics
    /// If it is not free, or too small.
    #[inline]
    pub(crate) fn take(&mut self, block: BlockId, requested_bytes: u64) {
        let record = &mut self.records[block];
        assert!(
            requested_bytes <= record.size_bytes,
            "a block is at least as large as the request that it serves"
        );
        assert!(record.state == RecordState::Free, "a block is taken once");
        (record.state, record.figure) = (RecordState::Taken, requested_bytes);
    }

    /// Hands the last-freed block, which is still marked as taken, to its next holder, which requested `requested_bytes` of it.
    /// Returns its address and tag.
    ///
    /// # Panics
    /// If it is not taken, or too small.
    #[inline]
    pub(crate) fn take_again(&mut self, block: BlockId, requested_bytes: u64) -> (u64, Tag) {
        let record = &mut self.records[block];
        assert!(record.state == RecordState::Taken, "only what is taken changes hands");
        assert!(requested_bytes <= record.size_bytes, "a block is at least as large as its request");
        record.figure = requested_bytes;
        (record.address, record.tag)
    }

    /// Marks a taken block as free, since `since`, and merges it with its free neighbours.
    ///
    /// # Panics
    /// If it is not taken.
    #[inline(always)]
    pub(crate) fn release(&mut self, block: BlockId, since: u64) -> Merged {
        let record = &mut self.records[block];
        assert!(record.state == RecordState::Taken, "a block is released once");
        (record.state, record.figure) = (RecordState::Free, since);
        self.merge(block)
    }

    /// Marks a taken block as unmapped and merges it with its unmapped neighbours.
    ///
    /// # Panics
    /// If it is not taken.
    pub(crate) fn release_unmapped(&mut self, block: BlockId) -> Merged {
        let record = &mut self.records[block];
        assert!(record.state == RecordState::Taken, "a block is released once");
        record.state = RecordState::Unmapped;
        self.merge(block)
    }

    /// Marks an unmapped block as free and merges it with its free neighbours.
    ///
    /// # Panics
    /// If it is not unmapped.
    pub(crate) fn map(&mut self, block: BlockId, since: u64) -> Merged {
        let record = &mut self.records[block];
        assert!(record.state == RecordState::Unmapped, "only what is unmapped is mapped");
        (record.state, record.figure) = (RecordState::Free, since);
        self.merge(block)
    }

    /// Marks a free block as unmapped and merges it with its unmapped neighbours.
    ///
    /// # Panics
    /// If it is not free.
    pub(crate) fn unmap(&mut self, block: BlockId) -> Merged {
        let record = &mut self.records[block];
        assert!(record.state == RecordState::Free, "only what is free is unmapped");
        record.state = RecordState::Unmapped;
        self.merge(block)
    }

    /// Moves the range of a taken block to a new identifier, which is returned. The old identifier has no range and no neighbours
    /// until it is [forgotten](Self::forget).
    ///
    /// # Panics
    /// If it is not taken.
    pub(crate) fn rename(&mut self, block: BlockId) -> BlockId {
        let record = &mut self.records[block];
        assert!(record.state == RecordState::Taken, "only a taken block is revoked");
        let Record { address, size_bytes, figure, previous, next, segment, tag, state } = *record;
        (record.previous, record.next) = (BlockId::NONE, BlockId::NONE);
        let heir =
            self.records.insert(Record { address, size_bytes, figure, previous, next, segment, tag, state });
        match previous.some() {
            Some(previous) => self.records[previous].next = heir,
            None => self.segments[segment.0].first = heir,
        }
        if let Some(next) = next.some() {
            self.records[next].previous = heir;
        }
        heir
    }

    /// Forgets an identifier that has no range.
    pub(crate) fn forget(&mut self, block: BlockId) {
        self.records.vacate(block);
    }

    /// Merges a block with its neighbours that are in the same state. The first of them keeps its identifier, so nothing before
    /// it changes.
    #[inline(always)]
    fn merge(&mut self, block: BlockId) -> Merged {
        let Record { previous, next, state, .. } = self.records[block];
        let mut first = block;
        let mut absorbed = [None, None];
        if let Some(previous) = previous.some().filter(|previous| self.is_alike(*previous, state)) {
            absorbed[0] = Some(self.span(previous));
            self.absorb(previous, block);
            first = previous;
        }
        if let Some(next) = next.some().filter(|next| self.is_alike(*next, state)) {
            absorbed[1] = Some(self.span(next));
            self.absorb(first, next);
        }
        Merged { span: self.span(first), absorbed }
    }

    /// Returns whether a neighbour is in the state of the block that joins it.
    #[inline]
    fn is_alike(&self, neighbour: BlockId, state: RecordState) -> bool {
        let other = self.records[neighbour].state;
        other == state
    }

    /// Merges the block `after`, which follows, into this one. The merged block counts as free since the later of the two times.
    #[inline]
    fn absorb(&mut self, block: BlockId, after: BlockId) {
        let Record { size_bytes, figure, next, .. } = self.records[after];
        self.records.vacate(after);
        let record = &mut self.records[block];
        record.size_bytes += size_bytes;
        record.figure = record.figure.max(figure);
        record.next = next;
        if let Some(next) = next.some() {
            self.records[next].previous = block;
        }
    }

    /// Returns the range of a block.
    #[inline]
    pub(crate) fn span(&self, block: BlockId) -> Span {
        let record = &self.records[block];
        Span { block, address: record.address, size_bytes: record.size_bytes }
    }

    /// Returns the state of a block.
    pub(crate) fn usage(&self, block: BlockId) -> BlockUse {
        let Record { state, figure, .. } = self.records[block];
        match state {
            RecordState::Free => BlockUse::Free { since: figure },
            RecordState::Taken => BlockUse::Taken { requested_bytes: figure },
            RecordState::Unmapped => BlockUse::Unmapped,
            RecordState::Vacant => panic!("the name of a block that is gone says nothing"),
        }
    }

    /// Returns the requested bytes of a taken block; `None` for another.
    #[inline]
    pub(crate) fn requested_bytes(&self, block: BlockId) -> Option<u64> {
        let record = &self.records[block];
        (record.state == RecordState::Taken).then_some(record.figure)
    }

    /// Returns the tag of a taken block, its size, and its requested bytes.
    ///
    /// # Panics
    /// If it is not taken.
    #[inline]
    pub(crate) fn taken(&self, block: BlockId) -> (Tag, u64, u64) {
        let record = &self.records[block];
        assert!(record.state == RecordState::Taken, "a block is given back once");
        (record.tag, record.size_bytes, record.figure)
    }

    /// Returns whether a block shares its segment with others.
    #[inline]
    pub(crate) fn is_split(&self, block: BlockId) -> bool {
        let record = &self.records[block];
        record.previous != BlockId::NONE || record.next != BlockId::NONE
    }

    /// Returns the block before this one in its segment.
    pub(crate) fn previous(&self, block: BlockId) -> Option<BlockId> {
        self.records[block].previous.some()
    }

    /// Returns the block after this one in its segment.
    pub(crate) fn next(&self, block: BlockId) -> Option<BlockId> {
        self.records[block].next.some()
    }

    /// Returns the tag of the segment that contains a block.
    #[inline]
    pub(crate) fn tag(&self, block: BlockId) -> Tag {
        self.records[block].tag
    }

    /// Returns the segment that contains a block.
    pub(crate) fn segment_of(&self, block: BlockId) -> SegmentView<Tag> {
        self.view(self.records[block].segment)
    }

    /// Returns all segments, in no particular order.
    pub(crate) fn segments(&self) -> impl Iterator<Item = SegmentView<Tag>> + '_ {
        self.segments.indices().map(|index| self.view(SegmentId(index)))
    }

    fn view(&self, id: SegmentId) -> SegmentView<Tag> {
        let Segment { address, size_bytes, first, tag } = self.segments[id.0];
        SegmentView { id, address, size_bytes, tag, first }
    }

    /// Returns the blocks of a segment, in address order.
    pub(crate) fn blocks_of(&self, segment: SegmentView<Tag>) -> impl Iterator<Item = BlockId> + '_ {
        std::iter::successors(segment.first.some(), |block| self.next(*block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: BlockUse = BlockUse::Free { since: 0 };

    fn sizes(blocks: &Blocks<&'static str>) -> Vec<u64> {
        let all = blocks.segments().flat_map(|segment| blocks.blocks_of(segment));
        all.map(|block| blocks.span(block).size_bytes / 512).collect()
    }

    #[test]
    fn a_block_in_the_middle_joins_both_neighbours_and_those_behind_a_merged_block_know_it() {
        let mut blocks = Blocks::default();
        let mut rest = blocks.add_segment(0, 5 * 512, FREE, "tag").block;
        let mut taken = Vec::new();
        for _ in 0..4 {
            let block = rest;
            rest = blocks.split(block, 512).block;
            blocks.take(block, 512);
            taken.push(block);
        }
        blocks.take(rest, 512);
        taken.push(rest);
        blocks.release(taken[1], 3);
        blocks.release(taken[3], 9);
        // 0 taken, 1 free, 2 taken, 3 free, 4 taken: releasing 2 merges it with 1 and 3.
        let merged = blocks.release(taken[2], 7).span;
        assert_eq!((merged.address, merged.size_bytes), (512, 3 * 512));
        assert_eq!(
            blocks.usage(merged.block),
            BlockUse::Free { since: 9 },
            "free as a whole since the last part is"
        );
        // Both outer neighbours must find the merged block.
        assert_eq!(blocks.release(taken[4], 0).span.size_bytes, 4 * 512);
        assert_eq!(blocks.release(taken[0], 0).span.size_bytes, 5 * 512);
    }

    #[test]
    fn free_and_unmapped_neighbours_do_not_merge_with_each_other() {
        let mut blocks = Blocks::default();
        let all = blocks.add_segment(0, 8 * 512, BlockUse::Unmapped, "is_expandable").block;
        let rest = blocks.split(all, 2 * 512).block;
        let mapped = blocks.map(all, 0).span;
        assert_eq!(sizes(&blocks), [2, 6]);
        blocks.split(rest, 4 * 512);
        let merged = blocks.map(rest, 0);
        assert_eq!(merged.absorbed, [Some(mapped), None]);
        assert_eq!(sizes(&blocks), [6, 2]);
        let stale = blocks.split(merged.span.block, 512).block;
        blocks.split(stale, 3 * 512);
        blocks.unmap(stale);
        assert_eq!(sizes(&blocks), [1, 3, 2, 2]);
        let end = blocks.next(stale).expect("a free block is behind the stale");
        assert_eq!(blocks.unmap(end).span.size_bytes, 7 * 512, "three unmapped blocks in a row are one");
        assert_eq!(sizes(&blocks), [1, 7]);
    }

    #[test]
    #[should_panic(expected = "released once")]
    fn releasing_twice_is_a_bug() {
        let mut blocks = Blocks::default();
        let block = blocks.add_segment(512, 512, FREE, "tag").block;
        blocks.take(block, 1);
        blocks.release(block, 0);
        blocks.release(block, 0);
    }
}
