//! Address arithmetic: segments, cut into blocks without a gap.
//!
//! A *segment* is a range that the upstream gave. At any time it is tiled by *blocks*: every byte belongs to exactly one,
//! in address order each knows its neighbours, and no two free blocks touch. Four movements keep it so:
//!
//! ```text
//! add_segment   [            free            ]
//! split         [   free   |      free       ]     then at once:
//! take          [  taken   |      free       ]
//! release       [            free            ]     merged with both neighbours
//! ```
//!
//! Between `split` and `take` two free blocks touch; no caller leaves it there.
//!
//! What this module never sees: a stream, a pool, an event, the upstream. A segment carries a *tag* for its owner, which is
//! opaque here. Whether a taken block is in use or waits for an event makes no difference to its address, so that is not
//! known here either.

use smallvec::SmallVec;

use crate::arena::Arena;

/// Names a block as long as it exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct BlockId(u32);

impl BlockId {
    /// The least of all names, for the bounds of ranges.
    pub(crate) const FIRST: Self = Self(0);
    /// The greatest of all names, for the bounds of ranges.
    pub(crate) const LAST: Self = Self(u32::MAX);
}

/// Names a segment as long as it exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SegmentId(u32);

/// A block with the range that it covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) block: BlockId,
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
}

/// What became of a released block.
#[derive(Debug)]
pub(crate) struct Released {
    /// The free block that covers it now.
    pub(crate) merged: Span,
    /// The free neighbours that it swallowed, as they were. Their names are void.
    pub(crate) absorbed: SmallVec<[Span; 2]>,
}

/// A segment, as seen from outside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentView<'a, Tag> {
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
    pub(crate) tag: &'a Tag,
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
struct Record {
    segment: SegmentId,
    address: u64,
    size_bytes: u64,
    previous: Option<BlockId>,
    next: Option<BlockId>,
    /// For a taken block, how many of its bytes were asked for. `None` for a free one.
    requested_bytes: Option<u64>,
}

/// All segments and blocks of one allocator.
#[derive(Debug)]
pub(crate) struct Blocks<Tag> {
    segments: Arena<Segment<Tag>>,
    records: Arena<Record>,
}

impl<Tag> Default for Blocks<Tag> {
    fn default() -> Self {
        Self { segments: Arena::default(), records: Arena::default() }
    }
}

impl<Tag> Blocks<Tag> {
    /// Adds a segment as one free block.
    pub(crate) fn add_segment(&mut self, address: u64, size_bytes: u64, tag: Tag) -> Span {
        assert!(
            size_bytes > 0 && address.checked_add(size_bytes).is_some(),
            "a segment is a range of addresses"
        );
        // The two name each other; the block's name is filled in as soon as there is one.
        let segment =
            SegmentId(self.segments.insert(Segment { address, size_bytes, first: BlockId::LAST, tag }));
        let record =
            Record { segment, address, size_bytes, previous: None, next: None, requested_bytes: None };
        let block = BlockId(self.records.insert(record));
        self.segments[segment.0].first = block;
        Span { block, address, size_bytes }
    }

    /// Removes the segment that `block` covers alone.
    ///
    /// # Panics
    /// If the block is taken, or is not alone.
    pub(crate) fn remove_segment(&mut self, block: BlockId) -> Tag {
        assert!(self.is_free(block) && !self.is_split(block), "only a wholly free segment can be removed");
        let record = self.records.remove(block.0);
        self.segments.remove(record.segment.0).tag
    }

    /// Cuts a free block in two and returns the second part, which is free too. The first keeps the name and has
    /// `size_bytes`.
    ///
    /// # Panics
    /// If the block is taken, or not larger than `size_bytes`.
    pub(crate) fn split(&mut self, block: BlockId, size_bytes: u64) -> Span {
        let record = &self.records[block.0];
        assert!(record.requested_bytes.is_none(), "only a free block can be split");
        assert!(0 < size_bytes && size_bytes < record.size_bytes, "both parts of a split block have bytes");
        let address = record.address + size_bytes;
        let rest_bytes = record.size_bytes - size_bytes;
        let next = record.next;
        let rest = BlockId(self.records.insert(Record {
            segment: record.segment,
            address,
            size_bytes: rest_bytes,
            previous: Some(block),
            next,
            requested_bytes: None,
        }));
        if let Some(next) = next {
            self.records[next.0].previous = Some(rest);
        }
        let record = &mut self.records[block.0];
        record.size_bytes = size_bytes;
        record.next = Some(rest);
        Span { block: rest, address, size_bytes: rest_bytes }
    }

    /// Marks a free block as taken; `requested_bytes` of it were asked for.
    ///
    /// # Panics
    /// If it is taken already, or too small.
    pub(crate) fn take(&mut self, block: BlockId, requested_bytes: u64) {
        let record = &mut self.records[block.0];
        assert!(
            requested_bytes <= record.size_bytes,
            "a block is at least as large as the request that it serves"
        );
        let before = record.requested_bytes.replace(requested_bytes);
        assert!(before.is_none(), "a block is taken once");
    }

    /// Marks a taken block as free and merges it with its free neighbours.
    ///
    /// # Panics
    /// If it is free already.
    pub(crate) fn release(&mut self, block: BlockId) -> Released {
        let before = self.records[block.0].requested_bytes.take();
        assert!(before.is_some(), "a block is released once");
        let mut absorbed = SmallVec::new();
        if let Some(previous) = self.records[block.0].previous
            && self.is_free(previous)
        {
            absorbed.push(self.span(previous));
            let gone = self.records.remove(previous.0);
            let record = &mut self.records[block.0];
            record.address = gone.address;
            record.size_bytes += gone.size_bytes;
            record.previous = gone.previous;
            let segment = record.segment;
            match gone.previous {
                Some(before) => self.records[before.0].next = Some(block),
                None => self.segments[segment.0].first = block,
            }
        }
        if let Some(next) = self.records[block.0].next
            && self.is_free(next)
        {
            absorbed.push(self.span(next));
            let gone = self.records.remove(next.0);
            let record = &mut self.records[block.0];
            record.size_bytes += gone.size_bytes;
            record.next = gone.next;
            if let Some(after) = gone.next {
                self.records[after.0].previous = Some(block);
            }
        }
        Released { merged: self.span(block), absorbed }
    }

    /// The range of a block.
    pub(crate) fn span(&self, block: BlockId) -> Span {
        let record = &self.records[block.0];
        Span { block, address: record.address, size_bytes: record.size_bytes }
    }

    /// How many bytes of a taken block were asked for; `None` for a free block.
    pub(crate) fn requested_bytes(&self, block: BlockId) -> Option<u64> {
        self.records[block.0].requested_bytes
    }

    /// Whether a block shares its segment with others.
    pub(crate) fn is_split(&self, block: BlockId) -> bool {
        let record = &self.records[block.0];
        record.previous.is_some() || record.next.is_some()
    }

    /// The tag of the segment that a block lies in.
    pub(crate) fn tag(&self, block: BlockId) -> &Tag {
        &self.segments[self.records[block.0].segment.0].tag
    }

    /// All segments, in no particular order.
    pub(crate) fn segments(&self) -> impl Iterator<Item = SegmentView<'_, Tag>> {
        self.segments.iter().map(|segment| SegmentView {
            address: segment.address,
            size_bytes: segment.size_bytes,
            tag: &segment.tag,
            first: segment.first,
        })
    }

    /// The blocks of a segment, in address order.
    pub(crate) fn blocks_of(&self, segment: SegmentView<'_, Tag>) -> impl Iterator<Item = BlockId> {
        std::iter::successors(Some(segment.first), |block| self.records[block.0].next)
    }

    fn is_free(&self, block: BlockId) -> bool {
        self.records[block.0].requested_bytes.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(blocks: &Blocks<&str>) -> Vec<(u64, u64, bool)> {
        let segment = blocks.segments().next().expect("one segment");
        blocks
            .blocks_of(segment)
            .map(|block| (blocks.span(block).address, blocks.span(block).size_bytes, blocks.is_free(block)))
            .collect()
    }

    #[test]
    fn a_block_between_two_free_ones_swallows_both() {
        let mut blocks = Blocks::default();
        let first = blocks.add_segment(4096, 4096, "tag").block;
        let second = blocks.split(first, 1024).block;
        blocks.take(first, 1000);
        let third = blocks.split(second, 1024).block;
        blocks.take(second, 1024);
        blocks.take(third, 1);
        assert_eq!(sizes(&blocks), [(4096, 1024, false), (5120, 1024, false), (6144, 2048, false)]);
        assert!(blocks.release(first).absorbed.is_empty());
        assert!(blocks.release(third).absorbed.is_empty());
        let released = blocks.release(second);
        assert_eq!(released.absorbed.iter().map(|span| span.address).collect::<Vec<_>>(), [4096, 6144]);
        assert_eq!((released.merged.address, released.merged.size_bytes), (4096, 4096));
        assert_eq!(sizes(&blocks), [(4096, 4096, true)]);
        assert_eq!(blocks.remove_segment(released.merged.block), "tag");
        assert_eq!(blocks.segments().count(), 0);
    }

    #[test]
    fn the_neighbours_of_a_merged_block_know_it() {
        let mut blocks = Blocks::default();
        let mut rest = blocks.add_segment(0, 5 * 512, "tag").block;
        let mut taken = Vec::new();
        for _ in 0..4 {
            let block = rest;
            rest = blocks.split(block, 512).block;
            blocks.take(block, 512);
            taken.push(block);
        }
        blocks.take(rest, 512);
        taken.push(rest);
        blocks.release(taken[1]);
        blocks.release(taken[3]);
        // 0 taken, 1 free, 2 taken, 3 free, 4 taken: now 2 joins 1 and 3.
        let merged = blocks.release(taken[2]).merged;
        assert_eq!((merged.address, merged.size_bytes), (512, 3 * 512));
        // Both outer neighbours must find it.
        assert_eq!(blocks.release(taken[4]).merged.size_bytes, 4 * 512);
        assert_eq!(blocks.release(taken[0]).merged.size_bytes, 5 * 512);
    }

    #[test]
    #[should_panic(expected = "released once")]
    fn releasing_twice_is_a_bug() {
        let mut blocks = Blocks::default();
        let block = blocks.add_segment(512, 512, "tag").block;
        blocks.take(block, 1);
        blocks.release(block);
        blocks.release(block);
    }
}
