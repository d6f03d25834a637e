//! Address arithmetic: segments, cut into blocks without a gap.
//!
//! A *segment* is a range of addresses. At any time it is tiled by *blocks*: every byte belongs to exactly one, and in
//! address order each knows its neighbours. A block is in one of three states:
//!
//! - *free*: memory stands behind it, and nobody has it;
//! - *taken*: somebody has it;
//! - *unmapped*: an address range without memory. Only segments that grow have such blocks.
//!
//! No two free blocks touch, and no two unmapped ones. The movements that keep it so:
//!
//! ```text
//! add_segment   [            free            ]        or all unmapped, for one that grows
//! split         [   free   |      free       ]        then at once:
//! take          [  taken   |      free       ]
//! release       [            free            ]        merged with free neighbours
//! map           [   free   |    unmapped     ]  ->  [ free            ]   merged with free neighbours
//! unmap         [ free     |    unmapped     ]  ->  [    unmapped     ]   merged with unmapped neighbours
//! ```
//!
//! Between `split` and the next call two equal blocks touch; no caller leaves it there.
//!
//! What this module never sees: a stream, a pool, an event, the upstream, a physical page. A block carries the *tag* of
//! its segment, which is opaque here. Whether a taken block is in use or waits for an event makes no difference to its
//! address, so that is not known here either.

use crate::slots::Slots;

/// Names a block as long as it exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct BlockId(u32);

impl BlockId {
    /// The least of all names, where any will do.
    pub(crate) const FIRST: Self = Self(0);
    /// No block.
    const NONE: Self = Self(u32::MAX);

    fn some(self) -> Option<Self> {
        (self != Self::NONE).then_some(self)
    }
}

/// Names a segment as long as it exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct SegmentId(u32);

/// A block with the range that it covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) block: BlockId,
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
}

impl Span {
    pub(crate) fn end(self) -> u64 {
        self.address + self.size_bytes
    }
}

/// Who has a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockUse {
    /// Nobody, since this moment of its owner's clock.
    Free { since: u64 },
    /// Somebody, who asked for so many bytes of it.
    Taken { requested_bytes: u64 },
    /// No memory is there.
    Unmapped,
}

/// What became of a block that joined its neighbours.
#[derive(Debug)]
pub(crate) struct Merged {
    /// The block that covers it now. It keeps the name of the block that changed.
    pub(crate) span: Span,
    /// The neighbours that it swallowed, as they were: the one before, the one behind. Their names are void.
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

#[derive(Debug)]
struct Record<Tag> {
    address: u64,
    size_bytes: u64,
    usage: BlockUse,
    previous: BlockId,
    next: BlockId,
    segment: SegmentId,
    tag: Tag,
}

/// All segments and blocks of one arena.
#[derive(Debug)]
pub(crate) struct Blocks<Tag> {
    segments: Slots<Segment<Tag>>,
    records: Slots<Record<Tag>>,
}

impl<Tag> Default for Blocks<Tag> {
    fn default() -> Self {
        Self { segments: Slots::default(), records: Slots::default() }
    }
}

impl<Tag: Copy> Blocks<Tag> {
    /// Adds a segment as one block, which is free or unmapped.
    pub(crate) fn add_segment(&mut self, address: u64, size_bytes: u64, usage: BlockUse, tag: Tag) -> Span {
        assert!(
            size_bytes > 0 && address.checked_add(size_bytes).is_some(),
            "a segment is a range of addresses"
        );
        assert!(!matches!(usage, BlockUse::Taken { .. }), "nobody has a new segment");
        // The two name each other; the block's name is filled in as soon as there is one.
        let segment =
            SegmentId(self.segments.insert(Segment { address, size_bytes, first: BlockId::NONE, tag }));
        let (previous, next) = (BlockId::NONE, BlockId::NONE);
        let record = Record { address, size_bytes, usage, previous, next, segment, tag };
        let block = BlockId(self.records.insert(record));
        self.segments[segment.0].first = block;
        Span { block, address, size_bytes }
    }

    /// Removes the segment that `block` covers alone.
    ///
    /// # Panics
    /// If the block is taken, or is not alone.
    pub(crate) fn remove_segment(&mut self, block: BlockId) -> SegmentId {
        let taken = self.requested_bytes(block).is_some();
        assert!(!taken && !self.is_split(block), "only a segment that nobody has a part of can be removed");
        let record = self.records.remove(block.0);
        self.segments.remove(record.segment.0);
        record.segment
    }

    /// Cuts a free or unmapped block in two and returns the second part. The first keeps the name and has `size_bytes`.
    ///
    /// # Panics
    /// If the block is taken, or not larger than `size_bytes`.
    pub(crate) fn split(&mut self, block: BlockId, size_bytes: u64) -> Span {
        let record = &mut self.records[block.0];
        assert!(!matches!(record.usage, BlockUse::Taken { .. }), "a block that somebody has is not split");
        assert!(0 < size_bytes && size_bytes < record.size_bytes, "both parts of a split block have bytes");
        let address = record.address + planted!(SplitOverlaps, size_bytes, size_bytes - 512);
        let rest_bytes = record.size_bytes - size_bytes;
        let Record { usage, next, segment, tag, .. } = *record;
        record.size_bytes = size_bytes;
        let rest = Record { address, size_bytes: rest_bytes, usage, previous: block, next, segment, tag };
        let rest = BlockId(self.records.insert(rest));
        self.records[block.0].next = rest;
        if let Some(next) = next.some() {
            self.records[next.0].previous = rest;
        }
        Span { block: rest, address, size_bytes: rest_bytes }
    }

    /// Marks a free block as taken; `requested_bytes` of it were asked for.
    ///
    /// # Panics
    /// If it is not free, or too small.
    #[inline]
    pub(crate) fn take(&mut self, block: BlockId, requested_bytes: u64) {
        let record = &mut self.records[block.0];
        assert!(
            requested_bytes <= record.size_bytes,
            "a block is at least as large as the request that it serves"
        );
        assert!(matches!(record.usage, BlockUse::Free { .. }), "a block is taken once");
        record.usage = BlockUse::Taken { requested_bytes };
    }

    /// A taken block changes hands; `requested_bytes` of it were asked for this time. Its address and tag.
    ///
    /// # Panics
    /// If it is not taken, or too small.
    #[inline]
    pub(crate) fn take_again(&mut self, block: BlockId, requested_bytes: u64) -> (u64, Tag) {
        let record = &mut self.records[block.0];
        assert!(matches!(record.usage, BlockUse::Taken { .. }), "only what is taken changes hands");
        assert!(requested_bytes <= record.size_bytes, "a block is at least as large as its request");
        record.usage = BlockUse::Taken { requested_bytes };
        (record.address, record.tag)
    }

    /// Marks a taken block as free, since `since`, and merges it with its free neighbours.
    ///
    /// # Panics
    /// If it is not taken.
    #[inline]
    pub(crate) fn release(&mut self, block: BlockId, since: u64) -> Merged {
        let record = &mut self.records[block.0];
        assert!(matches!(record.usage, BlockUse::Taken { .. }), "a block is released once");
        record.usage = BlockUse::Free { since };
        self.merge(block)
    }

    /// Marks a taken block as unmapped and merges it with its unmapped neighbours.
    ///
    /// # Panics
    /// If it is not taken.
    pub(crate) fn release_unmapped(&mut self, block: BlockId) -> Merged {
        let record = &mut self.records[block.0];
        assert!(matches!(record.usage, BlockUse::Taken { .. }), "a block is released once");
        record.usage = BlockUse::Unmapped;
        self.merge(block)
    }

    /// Marks an unmapped block as free and merges it with its free neighbours.
    ///
    /// # Panics
    /// If it is not unmapped.
    pub(crate) fn map(&mut self, block: BlockId, since: u64) -> Merged {
        let record = &mut self.records[block.0];
        assert!(matches!(record.usage, BlockUse::Unmapped), "only what is unmapped is mapped");
        record.usage = BlockUse::Free { since };
        self.merge(block)
    }

    /// Marks a free block as unmapped and merges it with its unmapped neighbours.
    ///
    /// # Panics
    /// If it is not free.
    pub(crate) fn unmap(&mut self, block: BlockId) -> Merged {
        let record = &mut self.records[block.0];
        assert!(matches!(record.usage, BlockUse::Free { .. }), "only what is free is unmapped");
        record.usage = BlockUse::Unmapped;
        self.merge(block)
    }

    /// Gives the place of a taken block to a new name, which is returned. The old name has no place and no neighbours from
    /// then on, until it is [forgotten](Self::forget).
    ///
    /// # Panics
    /// If it is not taken.
    pub(crate) fn rename(&mut self, block: BlockId) -> BlockId {
        let record = &mut self.records[block.0];
        assert!(matches!(record.usage, BlockUse::Taken { .. }), "only what somebody has is taken from him");
        let Record { address, size_bytes, usage, previous, next, segment, tag } = *record;
        (record.previous, record.next) = (BlockId::NONE, BlockId::NONE);
        let heir = Record { address, size_bytes, usage, previous, next, segment, tag };
        let heir = BlockId(self.records.insert(heir));
        match previous.some() {
            Some(previous) => self.records[previous.0].next = heir,
            None => self.segments[segment.0].first = heir,
        }
        if let Some(next) = next.some() {
            self.records[next.0].previous = heir;
        }
        heir
    }

    /// Forgets a name that has no place.
    pub(crate) fn forget(&mut self, block: BlockId) {
        self.records.remove(block.0);
    }

    /// Joins a block with those neighbours that are in the same state.
    #[inline]
    fn merge(&mut self, block: BlockId) -> Merged {
        let mut absorbed = [None, None];
        let Record { previous, next, .. } = self.records[block.0];
        if let Some(previous) = previous.some()
            && self.are_alike(previous, block)
        {
            absorbed[0] = Some(self.span(previous));
            let gone = self.records.remove(previous.0);
            let record = &mut self.records[block.0];
            record.address = gone.address;
            self.swallow(block, &gone);
            self.records[block.0].previous = gone.previous;
            match gone.previous.some() {
                Some(before) => self.records[before.0].next = block,
                None => self.segments[gone.segment.0].first = block,
            }
        }
        if let Some(next) = next.some()
            && self.are_alike(next, block)
        {
            absorbed[1] = Some(self.span(next));
            let gone = self.records.remove(next.0);
            self.swallow(block, &gone);
            self.records[block.0].next = gone.next;
            if let Some(after) = gone.next.some() {
                self.records[after.0].previous = block;
            }
        }
        Merged { span: self.span(block), absorbed }
    }

    fn are_alike(&self, one: BlockId, other: BlockId) -> bool {
        use BlockUse::{Free, Unmapped};
        let uses = (self.records[one.0].usage, self.records[other.0].usage);
        planted!(
            MergesWithTaken,
            matches!(uses, (Free { .. }, Free { .. }) | (Unmapped, Unmapped)),
            matches!(uses, (Free { .. } | BlockUse::Taken { .. }, Free { .. }) | (Unmapped, Unmapped)),
        )
    }

    /// Adds the bytes of a removed neighbour. What is free in part since later is free as a whole since later.
    fn swallow(&mut self, block: BlockId, gone: &Record<Tag>) {
        let record = &mut self.records[block.0];
        record.size_bytes += gone.size_bytes;
        if let (BlockUse::Free { since }, BlockUse::Free { since: other }) = (&mut record.usage, gone.usage) {
            *since = other.max(*since);
        }
    }

    /// The range of a block.
    #[inline]
    pub(crate) fn span(&self, block: BlockId) -> Span {
        let record = &self.records[block.0];
        Span { block, address: record.address, size_bytes: record.size_bytes }
    }

    /// Who has a block.
    pub(crate) fn usage(&self, block: BlockId) -> BlockUse {
        self.records[block.0].usage
    }

    /// How many bytes of a taken block were asked for; `None` for another.
    #[inline]
    pub(crate) fn requested_bytes(&self, block: BlockId) -> Option<u64> {
        match self.records[block.0].usage {
            BlockUse::Taken { requested_bytes } => Some(requested_bytes),
            _ => None,
        }
    }

    /// The tag of a taken block, its size, and how many bytes of it were asked for.
    ///
    /// # Panics
    /// If it is not taken.
    #[inline]
    pub(crate) fn taken(&self, block: BlockId) -> (Tag, u64, u64) {
        let record = &self.records[block.0];
        match record.usage {
            BlockUse::Taken { requested_bytes } => (record.tag, record.size_bytes, requested_bytes),
            _ => panic!("a block is given back once"),
        }
    }

    /// Whether a block shares its segment with others.
    #[inline]
    pub(crate) fn is_split(&self, block: BlockId) -> bool {
        let record = &self.records[block.0];
        record.previous != BlockId::NONE || record.next != BlockId::NONE
    }

    /// The block before this one in its segment.
    pub(crate) fn previous(&self, block: BlockId) -> Option<BlockId> {
        self.records[block.0].previous.some()
    }

    /// The block behind this one in its segment.
    pub(crate) fn next(&self, block: BlockId) -> Option<BlockId> {
        self.records[block.0].next.some()
    }

    /// The tag of the segment that a block lies in.
    #[inline]
    pub(crate) fn tag(&self, block: BlockId) -> Tag {
        self.records[block.0].tag
    }

    /// The segment that a block lies in.
    pub(crate) fn segment_of(&self, block: BlockId) -> SegmentView<Tag> {
        self.view(self.records[block.0].segment)
    }

    /// All segments, in no particular order.
    pub(crate) fn segments(&self) -> impl Iterator<Item = SegmentView<Tag>> + '_ {
        self.segments.indices().map(|index| self.view(SegmentId(index)))
    }

    fn view(&self, id: SegmentId) -> SegmentView<Tag> {
        let Segment { address, size_bytes, first, tag } = self.segments[id.0];
        SegmentView { id, address, size_bytes, tag, first }
    }

    /// The blocks of a segment, in address order.
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
        // 0 taken, 1 free, 2 taken, 3 free, 4 taken: now 2 joins 1 and 3.
        let merged = blocks.release(taken[2], 7).span;
        assert_eq!((merged.address, merged.size_bytes), (512, 3 * 512));
        assert_eq!(
            blocks.usage(merged.block),
            BlockUse::Free { since: 9 },
            "free as a whole since the last part is"
        );
        // Both outer neighbours must find it.
        assert_eq!(blocks.release(taken[4], 0).span.size_bytes, 4 * 512);
        assert_eq!(blocks.release(taken[0], 0).span.size_bytes, 5 * 512);
    }

    #[test]
    fn free_and_unmapped_neighbours_do_not_merge_with_each_other() {
        let mut blocks = Blocks::default();
        let all = blocks.add_segment(0, 8 * 512, BlockUse::Unmapped, "grows").block;
        let rest = blocks.split(all, 2 * 512).block;
        let mapped = blocks.map(all, 0).span;
        assert_eq!(sizes(&blocks), [2, 6]);
        blocks.split(rest, 4 * 512);
        let merged = blocks.map(rest, 0);
        assert_eq!(merged.absorbed, [Some(mapped), None]);
        assert_eq!(sizes(&blocks), [6, 2]);
        let hole = blocks.split(merged.span.block, 512).block;
        blocks.split(hole, 3 * 512);
        blocks.unmap(hole);
        assert_eq!(sizes(&blocks), [1, 3, 2, 2]);
        let end = blocks.next(hole).expect("a free block is behind the hole");
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
