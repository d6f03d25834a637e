//! Shadow memory: what is known of every byte of one piece of memory.
//!
//! A [`Shadow`] divides its bytes into spans whose bytes have the same history: the last write, the reads since, whether they
//! have been written since somebody got them, and the block of a caching allocator that they belong to. Spans are cut where an
//! access begins or ends inside one, and fused again where a write makes them alike. So their number is bounded by the layout of
//! what a program keeps there, and not by how much it does.
//!
//! Invariant: the spans cover all bytes without gap or overlap.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::clock::{Clock, Strand};
use super::site::SiteId;
use crate::AccessMode;

/// The number of a block of an allocator; 0 is no block.
pub(super) type BlockId = u32;

/// What kind of thing touched the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MarkKind {
    /// A command of a stream, or a node of a graph.
    Command,
    /// The memory was given out there: whoever uses it comes after.
    Allocation,
    /// The memory was taken back there.
    Free,
    /// A host thread.
    Host,
}

/// A piece of work that touched bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    pub(super) strand: Strand,
    pub(super) site: SiteId,
    pub(super) number: u64,
    /// The range that the work touched, as an address.
    pub(super) start: u64,
    pub(super) bytes: u64,
    /// The launch that it was part of, for nodes of graphs.
    pub(super) launch: SiteId,
    pub(super) mode: AccessMode,
    pub(super) kind: MarkKind,
}

impl Mark {
    /// Whether it comes before whoever has this clock.
    pub(super) fn is_before(&self, clock: &Clock) -> bool {
        clock.covers(self.strand, self.number)
    }
}

/// What is known of the bytes of a span.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct State {
    /// The last write.
    pub(super) write: Option<Mark>,
    /// The reads since then, without those that come before others of them.
    pub(super) reads: SmallVec<[Mark; 1]>,
    /// Whether the bytes have been written since they were given out.
    pub(super) is_written: bool,
    /// The block that they belong to, or belonged to last.
    pub(super) block: BlockId,
}

impl State {
    /// All that is remembered.
    pub(super) fn marks(&self) -> impl Iterator<Item = &Mark> {
        self.write.iter().chain(&self.reads)
    }

    /// Remembers a read by somebody with this clock.
    pub(super) fn read(&mut self, mark: &Mark, clock: &Clock) {
        // What comes before this read comes before whatever comes after this read.
        self.reads.retain(|read| !read.is_before(clock));
        self.reads.push(*mark);
    }

    /// Remembers a write.
    pub(super) fn wrote(&mut self, mark: &Mark) {
        self.write = Some(*mark);
        self.reads.clear();
        self.is_written = true;
    }
}

struct Span {
    end: u64,
    state: State,
}

/// What is known of the bytes of one piece of memory.
pub(super) struct Shadow {
    /// By their first byte.
    spans: BTreeMap<u64, Span>,
}

impl Shadow {
    /// `bytes` that nobody has touched.
    pub(super) fn new(bytes: u64, is_written: bool) -> Self {
        let state = State { is_written, ..State::default() };
        Self { spans: BTreeMap::from([(0, Span { end: bytes, state })]) }
    }

    fn cut(&mut self, at: u64) {
        let Some((&start, span)) = self.spans.range_mut(..at).next_back() else { return };
        if at < span.end {
            let right = Span { end: span.end, state: span.state.clone() };
            span.end = at;
            debug_assert!(start < at);
            self.spans.insert(at, right);
        }
    }

    /// Shows every span of a range, cut to the range, to be changed: its first byte, its end, its state.
    pub(super) fn each(&mut self, start: u64, end: u64, mut visit: impl FnMut(u64, u64, &mut State)) {
        // Mostly an access has the range of the one before.
        if let Some(span) = self.spans.get_mut(&start)
            && span.end == end
        {
            return visit(start, end, &mut span.state);
        }
        self.cut(start);
        self.cut(end);
        for (&first, span) in self.spans.range_mut(start..end) {
            visit(first, span.end, &mut span.state);
        }
    }

    /// Shows every span that meets a range, uncut.
    pub(super) fn look(&self, start: u64, end: u64, mut visit: impl FnMut(u64, u64, &State)) {
        let before = self.spans.range(..=start).next_back().map_or(start, |(&first, _)| first);
        for (&first, span) in self.spans.range(before..end) {
            if span.end > start {
                visit(first.max(start), span.end.min(end), &span.state);
            }
        }
    }

    /// Makes spans of a range one where their states are alike.
    pub(super) fn fuse(&mut self, start: u64, end: u64) {
        let mut spans = self.spans.range(start..end);
        let Some((&first, head)) = spans.next() else { return };
        if head.end >= end {
            return;
        }
        let (mut keep, mut keep_end, mut state) = (first, head.end, &head.state);
        let mut gone: SmallVec<[u64; 8]> = SmallVec::new();
        let mut grown: SmallVec<[(u64, u64); 4]> = SmallVec::new();
        for (&next, span) in spans {
            if span.state == *state {
                gone.push(next);
                keep_end = span.end;
            } else {
                grown.push((keep, keep_end));
                (keep, keep_end, state) = (next, span.end, &span.state);
            }
        }
        grown.push((keep, keep_end));
        for next in gone {
            self.spans.remove(&next);
        }
        for (first, end) in grown {
            self.spans.get_mut(&first).expect("it was kept").end = end;
        }
    }

    #[cfg(test)]
    fn ranges(&self) -> Vec<(u64, u64, bool)> {
        self.spans.iter().map(|(&start, span)| (start, span.end, span.state.is_written)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_cut_and_fused() {
        let mut shadow = Shadow::new(100, false);
        shadow.each(10, 20, |_, _, state| state.is_written = true);
        assert_eq!(shadow.ranges(), [(0, 10, false), (10, 20, true), (20, 100, false)]);
        shadow.each(15, 30, |_, _, state| state.is_written = true);
        assert_eq!(shadow.ranges().len(), 5);
        shadow.fuse(0, 100);
        assert_eq!(shadow.ranges(), [(0, 10, false), (10, 30, true), (30, 100, false)]);
        shadow.each(0, 100, |_, _, state| state.is_written = true);
        shadow.fuse(0, 100);
        assert_eq!(shadow.ranges(), [(0, 100, true)]);
        let mut seen = Vec::new();
        shadow.look(40, 50, |start, end, _| seen.push((start, end)));
        assert_eq!(seen, [(40, 50)], "looking cuts nothing");
        assert_eq!(shadow.ranges().len(), 1);
    }
}
