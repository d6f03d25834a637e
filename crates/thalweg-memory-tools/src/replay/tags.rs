//! Tags: which block may touch which address, and from when on.
//!
//! The ranges do not overlap. A live range may not be touched by another block at all. A freed range may be touched by work that
//! comes after given points of given streams; the caller decides whether a stream is past such a point.

use std::collections::BTreeMap;
use std::fmt;

use smallvec::SmallVec;
use thalweg_memory::StreamId;

/// Points of streams: each is past when the event with that number on that stream is past.
pub(crate) type Points = SmallVec<[(StreamId, u64); 2]>;

#[derive(Clone, Debug)]
struct Tag {
    end: u64,
    block: u32,
    /// The points of the free; `None` while the block is live.
    after: Option<Points>,
}

/// The reason why a block may not be where it was put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Conflict {
    /// The block that is live at the same address.
    Live(u32),
    /// The block that was at the same address, and the stream whose work with it the new block is not ordered after.
    Unordered(u32, StreamId),
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Live(block) => write!(f, "block {block} is live"),
            Self::Unordered(block, stream) => {
                write!(f, "block {block} was, and work of {stream:?} with that may still run")
            }
        }
    }
}

/// The tags, by the beginnings of their ranges.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    ranges: BTreeMap<u64, Tag>,
}

impl Tags {
    /// Assigns a range to a live block, even on a conflict. `is_past` decides whether the block's stream is past a point.
    pub(crate) fn place(
        &mut self,
        address: u64,
        bytes: u64,
        block: u32,
        is_past: impl Fn(StreamId, u64) -> bool,
    ) -> Result<(), Conflict> {
        let end = address + bytes;
        let mut result = Ok(());
        for tag in self.cut_out(address, end) {
            let conflict = match &tag.after {
                None => Some(Conflict::Live(tag.block)),
                Some(points) => points
                    .iter()
                    .find(|&&(stream, place)| !is_past(stream, place))
                    .map(|&(stream, _)| Conflict::Unordered(tag.block, stream)),
            };
            result = result.and(conflict.map_or(Ok(()), Err));
        }
        self.ranges.insert(address, Tag { end, block, after: None });
        result
    }

    /// Frees the live range at `address`.
    pub(crate) fn release(&mut self, address: u64, after: Points) {
        // A range may have been replaced by another that wrongly overlapped it, which was reported then.
        if let Some(tag) = self.ranges.get_mut(&address) {
            tag.after = Some(after);
        }
    }

    /// Forgets freed memory in a range that was returned to the upstream, which waits for all work with it.
    pub(crate) fn forget(&mut self, address: u64, bytes: u64) {
        self.cut_out(address, address + bytes);
    }

    /// Removes all tags that overlap the range from `start` to `end`; parts outside of it stay.
    fn cut_out(&mut self, start: u64, end: u64) -> Vec<Tag> {
        let before = self.ranges.range(..start).next_back().filter(|(_, tag)| tag.end > start);
        let from = before.map_or(start, |(&from, _)| from);
        let starts: Vec<u64> = self.ranges.range(from..end).map(|(&from, _)| from).collect();
        let mut cut = Vec::with_capacity(starts.len());
        for from in starts {
            let tag = self.ranges.remove(&from).expect("it was just seen");
            if from < start {
                self.ranges.insert(from, Tag { end: start, ..tag.clone() });
            }
            if tag.end > end {
                self.ranges.insert(end, tag.clone());
            }
            cut.push(tag);
        }
        cut
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    #[test]
    fn live_ranges_conflict_and_freed_ones_wait_for_their_points() {
        let (a, b) = (StreamId::from_raw(1), StreamId::from_raw(2));
        let mut tags = Tags::default();
        let never = |_, _| false;
        assert_eq!(tags.place(0, 10, 0, never), Ok(()));
        assert_eq!(tags.place(10, 10, 1, never), Ok(()));
        tags.release(0, smallvec![(a, 3), (b, 7)]);
        assert_eq!(tags.place(5, 10, 2, |_, _| true), Err(Conflict::Live(1)));
        assert_eq!(tags.place(0, 5, 3, |stream, _| stream == a), Err(Conflict::Unordered(0, b)));
        // Block 1 still has 15 to 20, and block 0 has nothing.
        assert_eq!(tags.place(15, 1, 4, |_, _| true), Err(Conflict::Live(1)));
        tags.forget(0, 100);
        assert_eq!(tags.place(0, 100, 5, never), Ok(()));
    }
}
