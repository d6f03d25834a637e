//! Free blocks, where a request looks for them.
//!
//! A [`FreeSet`] holds the free blocks of one size class of one pool, ordered by stream, then size, then address. The best
//! fit for a request is then the first entry that is not smaller, on the same stream: the smallest block that serves, the
//! lowest address among equals. Blocks never wander between streams here; [`order`](crate::order) says why that is safe.
//!
//! The set is an index only. It neither cuts nor merges ([`blocks`](crate::blocks)), and decides nothing beyond the order
//! ([`policy`](crate::policy)).

use std::collections::BTreeSet;

use crate::blocks::{BlockId, Span};
use crate::stats::SizeClass;
use crate::upstream::StreamId;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Entry {
    stream: StreamId,
    size_bytes: u64,
    address: u64,
    block: BlockId,
}

impl Entry {
    fn new(stream: StreamId, span: Span) -> Self {
        Self { stream, size_bytes: span.size_bytes, address: span.address, block: span.block }
    }

    fn span(self) -> Span {
        Span { block: self.block, address: self.address, size_bytes: self.size_bytes }
    }
}

/// The free blocks of one size class.
#[derive(Debug, Default)]
pub(crate) struct FreeSet {
    entries: BTreeSet<Entry>,
}

impl FreeSet {
    pub(crate) fn insert(&mut self, stream: StreamId, span: Span) {
        let new = self.entries.insert(Entry::new(stream, span));
        assert!(new, "a free block is in its set once");
    }

    /// # Panics
    /// If the block is not in the set as it is described.
    pub(crate) fn remove(&mut self, stream: StreamId, span: Span) {
        let found = self.entries.remove(&Entry::new(stream, span));
        assert!(found, "a free block is in its set");
    }

    /// The smallest block of `stream` that has at least `size_bytes`; the one at the lowest address among equals.
    pub(crate) fn best_fit(&self, stream: StreamId, size_bytes: u64) -> Option<Span> {
        let from = Entry { stream, size_bytes, address: 0, block: BlockId::FIRST };
        self.entries.range(from..).next().filter(|entry| entry.stream == stream).map(|entry| entry.span())
    }

    /// The blocks of `stream` that have at least `size_bytes`, smallest first.
    pub(crate) fn at_least(
        &self,
        stream: StreamId,
        size_bytes: u64,
    ) -> impl DoubleEndedIterator<Item = Span> {
        let from = Entry { stream, size_bytes, address: 0, block: BlockId::FIRST };
        let to = Entry { stream, size_bytes: u64::MAX, address: u64::MAX, block: BlockId::LAST };
        self.entries.range(from..=to).map(|entry| entry.span())
    }

    /// All blocks, in the order of the set.
    pub(crate) fn spans(&self) -> impl Iterator<Item = Span> {
        self.entries.iter().map(|entry| entry.span())
    }
}

/// The two size classes of one pool.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    small: FreeSet,
    large: FreeSet,
}

impl Pool {
    pub(crate) fn of(&self, class: SizeClass) -> &FreeSet {
        match class {
            SizeClass::Small => &self.small,
            SizeClass::Large => &self.large,
        }
    }

    pub(crate) fn of_mut(&mut self, class: SizeClass) -> &mut FreeSet {
        match class {
            SizeClass::Small => &mut self.small,
            SizeClass::Large => &mut self.large,
        }
    }

    /// All free blocks, the large ones first.
    pub(crate) fn spans(&self) -> impl Iterator<Item = Span> {
        self.large.spans().chain(self.small.spans())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::Blocks;

    #[test]
    fn the_smallest_that_serves_then_the_lowest_address_and_never_another_stream() {
        let (one, two) = (StreamId::from_raw(1), StreamId::from_raw(2));
        let mut blocks = Blocks::default();
        let mut set = FreeSet::default();
        for (stream, address, size_bytes) in [
            (one, 0x9000, 2048),
            (one, 0x5000, 2048),
            (one, 0x1000, 4096),
            (one, 0x3000, 512),
            (two, 0x7000, 1024),
        ] {
            set.insert(stream, blocks.add_segment(address, size_bytes, ()));
        }
        let fit = |size_bytes| set.best_fit(one, size_bytes).map(|span| span.address);
        assert_eq!(fit(512), Some(0x3000));
        assert_eq!(fit(1024), Some(0x5000));
        assert_eq!(fit(2560), Some(0x1000));
        assert_eq!(fit(4608), None, "what stream 2 has does not count");
        assert_eq!(
            set.at_least(one, 2048).map(|span| span.address).collect::<Vec<_>>(),
            [0x5000, 0x9000, 0x1000]
        );
    }
}
