//! Free blocks by size: the best fit in a few instructions.
//!
//! A [`Bins`] holds the free blocks of one size class of one arena. It answers one question: which is the smallest block of
//! at least so many bytes, and among equals the one whose segment was registered first, and then the one at the lowest
//! address? That is exactly what an ordered set answers, and PyTorch keeps one; but a tree is walked through caches that
//! are cold by the time the next request comes. Here sizes fall into bins:
//!
//! ```text
//! size      512  1024 ...  64 KiB | 64..66 KiB  66..68 KiB ... 126..128 KiB | 128..132 KiB ...
//! bin         1     2 ...     127 |        128         129 ...          159 |          160 ...
//!           one size each         |               thirty-two an octave
//! ```
//!
//! and a bitmap says which bins have any. The first block of a bin stands in the bin itself, the others in a short sorted
//! list beside it, which is nearly always empty, and in an ordered set when there are many of nearly one size. So a search
//! looks at one bin, and at one or two words of the bitmap if that bin has nothing large enough.
//!
//! What is not here: the cutting and merging ([`blocks`](crate::blocks)), and every decision beyond the order.

use std::collections::BTreeSet;

use crate::blocks::{BlockId, Span};

/// A free block as its bin knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) size_bytes: u64,
    /// The place of its segment among those of a pool whose addresses mean nothing; 0 elsewhere.
    pub(crate) registration: u32,
    pub(crate) block: BlockId,
    pub(crate) address: u64,
}

impl Entry {
    pub(crate) fn new(span: Span, registration: u32) -> Self {
        Self { size_bytes: span.size_bytes, registration, block: span.block, address: span.address }
    }

    pub(crate) fn span(self) -> Span {
        Span { block: self.block, address: self.address, size_bytes: self.size_bytes }
    }

    /// What decides between blocks. The name of a block decides nothing.
    fn key(&self) -> (u64, u32, u64) {
        (self.size_bytes, self.registration, self.address)
    }
}

/// An entry in the order of keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Keyed(Entry);

impl PartialOrd for Keyed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Keyed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.key().cmp(&other.0.key())
    }
}

impl Keyed {
    /// Not after any entry of this size.
    fn floor(size_bytes: u64) -> Self {
        Self(Entry { size_bytes, registration: 0, block: BlockId::FIRST, address: 0 })
    }
}

/// More than these are kept in a tree.
const FEW: usize = 48;

/// The blocks of a bin but the first, in order.
#[derive(Debug)]
enum Rest {
    /// A handful: moving them up and down is faster than walking a tree.
    Few(Vec<Entry>),
    Many(BTreeSet<Keyed>),
}

impl Default for Rest {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Rest {
    fn insert(&mut self, entry: Entry) {
        match self {
            Self::Few(few) if few.len() < FEW => {
                let place = few.partition_point(|other| other.key() < entry.key());
                few.insert(place, entry);
            }
            Self::Few(few) => {
                let mut many: BTreeSet<Keyed> = few.drain(..).map(Keyed).collect();
                many.insert(Keyed(entry));
                *self = Self::Many(many);
            }
            Self::Many(many) => {
                let new = many.insert(Keyed(entry));
                debug_assert!(new, "a free block is in its bin once");
            }
        }
    }

    /// Whether it was there.
    fn remove(&mut self, entry: Entry) -> bool {
        match self {
            Self::Few(few) => {
                let place = few.iter().position(|other| other.address == entry.address);
                place.map(|place| few.remove(place)).is_some()
            }
            Self::Many(many) => many.remove(&Keyed(entry)),
        }
    }

    fn pop_first(&mut self) -> Option<Entry> {
        match self {
            Self::Few(few) if few.is_empty() => None,
            Self::Few(few) => Some(few.remove(0)),
            Self::Many(many) => many.pop_first().map(|keyed| keyed.0),
        }
    }

    fn at_least(&self, size_bytes: u64) -> Option<Entry> {
        match self {
            Self::Few(few) => few.iter().find(|entry| entry.size_bytes >= size_bytes).copied(),
            Self::Many(many) => many.range(Keyed::floor(size_bytes)..).next().map(|keyed| keyed.0),
        }
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = Entry> {
        let (few, many) = match self {
            Self::Few(few) => (Some(few), None),
            Self::Many(many) => (None, Some(many)),
        };
        few.into_iter().flatten().copied().chain(many.into_iter().flatten().map(|keyed| keyed.0))
    }
}

#[derive(Debug, Default)]
struct Bin {
    first: Option<Entry>,
    rest: Rest,
}

impl Bin {
    #[inline]
    fn insert(&mut self, entry: Entry) {
        match &mut self.first {
            None => self.first = Some(entry),
            Some(first) => {
                let later = if entry.key() < first.key() { std::mem::replace(first, entry) } else { entry };
                self.rest.insert(later);
            }
        }
    }

    #[inline]
    fn remove(&mut self, span: Span, registration: u32) {
        if self.first.is_some_and(|first| first.address == span.address) {
            self.first = self.rest.pop_first();
        } else {
            let found = self.rest.remove(Entry::new(span, registration));
            assert!(found, "a free block is in its bin");
        }
    }

    #[inline]
    fn at_least(&self, size_bytes: u64) -> Option<Entry> {
        let first = self.first?;
        if first.size_bytes >= size_bytes { Some(first) } else { self.rest.at_least(size_bytes) }
    }

    fn entries(&self) -> impl DoubleEndedIterator<Item = Entry> {
        self.first.into_iter().chain(self.rest.iter())
    }
}

/// Below this every size has its own bin.
const LINEAR_BYTES: u64 = 64 << 10;
const UNIT_BYTES: u64 = 512;
const LINEAR_BINS: usize = (LINEAR_BYTES / UNIT_BYTES) as usize;
/// Bins an octave, as a power of two.
const OCTAVE_SHIFT: u32 = 5;

fn bin_of(size_bytes: u64) -> usize {
    if size_bytes < LINEAR_BYTES {
        return (size_bytes / UNIT_BYTES) as usize;
    }
    let exponent = size_bytes.ilog2();
    let within = (size_bytes >> (exponent - OCTAVE_SHIFT)) as usize & ((1 << OCTAVE_SHIFT) - 1);
    LINEAR_BINS + (((exponent - LINEAR_BYTES.ilog2()) as usize) << OCTAVE_SHIFT) + within
}

/// The free blocks of one size class of one arena.
#[derive(Debug, Default)]
pub(crate) struct Bins {
    /// As many as were needed so far.
    bins: Vec<Bin>,
    /// One bit a bin: whether it has a block.
    occupied: Vec<u64>,
}

impl Bins {
    #[inline]
    pub(crate) fn insert(&mut self, span: Span, registration: u32) {
        let index = bin_of(span.size_bytes);
        if index >= self.bins.len() {
            self.grow(index);
        }
        self.bins[index].insert(Entry::new(span, registration));
        self.occupied[index / 64] |= 1 << (index % 64);
    }

    #[cold]
    fn grow(&mut self, index: usize) {
        self.bins.resize_with((index + 1).next_multiple_of(64), Bin::default);
        self.occupied.resize(self.bins.len() / 64, 0);
    }

    /// # Panics
    /// If the block is not here as it is described.
    #[inline]
    pub(crate) fn remove(&mut self, span: Span, registration: u32) {
        let index = bin_of(span.size_bytes);
        let bin = &mut self.bins[index];
        bin.remove(span, registration);
        if bin.first.is_none() {
            self.occupied[index / 64] &= !(1 << (index % 64));
        }
    }

    /// The first block in the order that has at least `size_bytes`.
    #[inline]
    pub(crate) fn best_fit(&self, size_bytes: u64) -> Option<Entry> {
        let index = bin_of(size_bytes);
        if let Some(entry) = self.bins.get(index)?.at_least(size_bytes) {
            return Some(entry);
        }
        self.bins[self.next_occupied(index + 1)?].first
    }

    /// The first occupied bin from `index` on.
    fn next_occupied(&self, index: usize) -> Option<usize> {
        let mut word = index / 64;
        let mut bits = self.occupied.get(word)? & (!0 << (index % 64));
        while bits == 0 {
            word += 1;
            bits = *self.occupied.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }

    /// The blocks from the first of at least `size_bytes` on, in order.
    pub(crate) fn at_least(&self, size_bytes: u64) -> impl DoubleEndedIterator<Item = Entry> {
        let from = bin_of(size_bytes).min(self.bins.len());
        self.bins[from..].iter().flat_map(Bin::entries).filter(move |entry| entry.size_bytes >= size_bytes)
    }

    /// All blocks, in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = Entry> {
        self.at_least(0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bins_follow_sizes() {
        let sizes =
            [512, 1024, 64 << 10, (64 << 10) + 512, 68 << 10, 1 << 20, (1 << 20) + 512, 1 << 40, 1 << 60];
        assert!(sizes.map(bin_of).is_sorted());
        assert_eq!(
            bin_of((64 << 10) - 512) + 1,
            bin_of(64 << 10),
            "no bin is left out between the two parts"
        );
        assert_eq!(bin_of(64 << 10), bin_of((66 << 10) - 512));
        assert_ne!(bin_of(64 << 10), bin_of(66 << 10));
        assert_eq!(bin_of((128 << 10) - 512) + 1, bin_of(128 << 10));
    }

    proptest! {
        /// The bins against an ordered map with the same key.
        #[test]
        fn the_best_fit_is_that_of_an_ordered_map(
            steps in prop::collection::vec((0..5u8, 1..4000u64, 0..400u64, 0..2u32), 1..400),
            crowded in any::<bool>()
        ) {
            let mut bins = Bins::default();
            let mut map: BTreeMap<(u64, u32, u64), Span> = BTreeMap::new();
            for (kind, units, place, registration) in steps {
                // Crowded, many blocks share a bin.
                let units = if crowded { 1000 + units % 3 } else { units };
                let size_bytes = units * units * 512;
                match kind {
                    0 | 3 | 4 => {
                        let span = Span { block: BlockId::FIRST, address: place * 512, size_bytes };
                        let free = !map.keys().any(|key| key.2 == span.address);
                        if free {
                            bins.insert(span, registration);
                            map.insert((size_bytes, registration, span.address), span);
                        }
                    }
                    1 => {
                        if let Some((&key, &span)) = map.iter().nth(place as usize % map.len().max(1)) {
                            bins.remove(span, key.1);
                            map.remove(&key);
                        }
                    }
                    _ => {
                        let expected = map.range((size_bytes, 0, 0)..).next().map(|(_, span)| *span);
                        prop_assert_eq!(bins.best_fit(size_bytes).map(Entry::span), expected);
                    }
                }
                let all: Vec<Span> = bins.iter().map(Entry::span).collect();
                prop_assert_eq!(all, map.values().copied().collect::<Vec<_>>());
            }
        }
    }
}
