//! Free blocks by size: the best fit in a few instructions.
//!
//! A [`Bins`] holds the free blocks of one size class of one arena. It answers one question: which is the smallest block of at
//! least n bytes, and among equal sizes the one whose segment was registered first, and then the one at the lowest address? An
//! ordered set gives exactly this answer, and PyTorch keeps one; but walking a tree touches cache lines that are cold by the time
//! of the next request. Here sizes fall into bins:
//!
//! ```text
//! size      512  1024 ...  64 KiB | 64..66 KiB  66..68 KiB ... 126..128 KiB | 128..132 KiB ...
//! bin         1     2 ...     127 |        128         129 ...          159 |          160 ...
//!           one size each         |               thirty-two per octave
//! ```
//!
//! A bitmap records which bins have any blocks. The blocks of a bin are in an unordered list, and each block stores its index in
//! the list. So a block is added at the end, and a removed block is replaced by the last one: nothing is searched or shifted, and
//! there is hardly a branch that a processor could mispredict, which is the largest cost here. Only a search for the best fit
//! reads a list, nearly always of one or two blocks. A bin with many blocks of nearly one size keeps them in an ordered map
//! instead.
//!
//! Not part of this module: splitting and merging ([`blocks`](super::blocks)), and every decision other than the order.

use std::collections::BTreeMap;

use super::blocks::{BlockId, Span};
use crate::upstream::UpstreamError;

/// A free block as stored in its bin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) size_bytes: u64,
    /// The rank of the block's segment among the segments of a pool whose addresses have no meaning; 0 elsewhere.
    pub(crate) registration: u32,
    pub(crate) block: BlockId,
    pub(crate) address: u64,
}

impl Entry {
    pub(crate) fn span(self) -> Span {
        Span { block: self.block, address: self.address, size_bytes: self.size_bytes }
    }
}

/// The key that orders blocks, packed: 48 bits of size, 32 of registration, 48 of address. (The block's identifier is not part of
/// it.) Sizes and addresses are multiples of 512, and no device has addresses of more than 57 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Key {
    high: u64,
    low: u64,
}

const GRANULE_SHIFT: u32 = UNIT_BYTES.ilog2();

impl Key {
    /// Packs a key.
    ///
    /// # Panics
    /// If the size or the address is not a multiple of 512, or too large: values from outside are [checked](checked) first.
    #[inline]
    fn new(size_bytes: u64, registration: u32, address: u64) -> Self {
        Self::checked(size_bytes, registration, address)
            .expect("sizes and addresses are multiples of 512 below 2^57")
    }

    #[inline]
    fn checked(size_bytes: u64, registration: u32, address: u64) -> Option<Self> {
        let rest = (size_bytes | address).rotate_right(GRANULE_SHIFT);
        let registration = u64::from(registration);
        (rest < 1 << 48).then_some(Self {
            high: (size_bytes >> GRANULE_SHIFT) << 16 | registration >> 16,
            low: registration << 48 | address >> GRANULE_SHIFT,
        })
    }

    #[inline]
    fn number(self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }

    #[inline]
    fn of_number(number: u128) -> Self {
        Self { high: (number >> 64) as u64, low: number as u64 }
    }

    #[inline]
    fn entry(self, block: BlockId) -> Entry {
        Entry {
            size_bytes: (self.high >> 16) << GRANULE_SHIFT,
            registration: (self.high << 16) as u32 | (self.low >> 48) as u32,
            block,
            address: (self.low & ((1 << 48) - 1)) << GRANULE_SHIFT,
        }
    }
}

/// The number of blocks above which a bin uses a map.
const FEW: usize = 64;

/// The blocks of a bin.
#[derive(Debug)]
enum Bin {
    /// A list in no order.
    Few(Vec<(Key, BlockId)>),
    Many(BTreeMap<u128, BlockId>),
}

impl Default for Bin {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Bin {
    /// Adds a block, and stores its index in `places`.
    #[inline]
    fn insert(&mut self, key: Key, block: BlockId, places: &mut [u32]) {
        match self {
            Self::Few(few) if few.len() < FEW => {
                places[block.index()] = few.len() as u32;
                few.push((key, block));
            }
            _ => self.insert_into_many(key, block),
        }
    }

    #[inline(never)]
    fn insert_into_many(&mut self, key: Key, block: BlockId) {
        let before = match self {
            Self::Few(few) => {
                let mut many: BTreeMap<u128, BlockId> =
                    few.iter().map(|(key, block)| (key.number(), *block)).collect();
                let before = many.insert(key.number(), block);
                *self = Self::Many(many);
                before
            }
            Self::Many(many) => many.insert(key.number(), block),
        };
        debug_assert!(before.is_none(), "a free block is in its bin once");
    }

    /// Removes a block. Returns whether the bin is empty now.
    ///
    /// # Panics
    /// If the block is not in this bin.
    #[inline]
    fn remove(&mut self, key: Key, block: BlockId, places: &mut [u32]) -> bool {
        match self {
            Self::Few(few) => {
                let place = places[block.index()];
                let last = *few.last().expect("a free block is in its bin");
                let gone = std::mem::replace(&mut few[place as usize], last);
                assert!(gone == (key, block), "a free block is in its bin");
                places[last.1.index()] = place;
                few.truncate(few.len() - 1);
                few.is_empty()
            }
            Self::Many(many) => {
                many.remove(&key.number()).expect("a free block is in its bin");
                many.is_empty()
            }
        }
    }

    /// Returns the first block in the order whose key is at least `floor`.
    #[inline(always)]
    fn first_from(&self, floor: u128) -> Option<Entry> {
        match self {
            Self::Few(few) => {
                let (mut best, mut block) = (u128::MAX, BlockId::NONE);
                for (key, other) in few {
                    let number = key.number();
                    let better = number >= floor && number < best;
                    (best, block) = if better { (number, *other) } else { (best, block) };
                }
                block.some().map(|block| Key::of_number(best).entry(block))
            }
            Self::Many(many) => {
                many.range(floor..).next().map(|(key, block)| Key::of_number(*key).entry(*block))
            }
        }
    }

    /// Returns the blocks in order.
    fn entries(&self) -> impl DoubleEndedIterator<Item = Entry> {
        let (mut few, many) = match self {
            Self::Few(few) => (few.clone(), None),
            Self::Many(many) => (Vec::new(), Some(many)),
        };
        few.sort_by_key(|(key, _)| key.number());
        let few = few.into_iter().map(|(key, block)| key.entry(block));
        let many = many.into_iter().flatten().map(|(key, block)| Key::of_number(*key).entry(*block));
        few.chain(many)
    }
}

/// The size below which every size has its own bin.
const LINEAR_BYTES: u64 = 64 << 10;
const UNIT_BYTES: u64 = 512;

/// The number of bits that no device's addresses exceed.
const ADDRESS_BITS: u32 = 57;

/// Returns the address of a range after checking that the range's blocks can be stored in bins. A failed check is an error and
/// not an assertion, because the range comes from an upstream. The range is then returned to the upstream.
pub(crate) fn checked(
    address: u64,
    size_bytes: u64,
    give_back: impl FnOnce() -> Result<(), UpstreamError>,
) -> Result<u64, UpstreamError> {
    let are_units = address.is_multiple_of(UNIT_BYTES) && size_bytes.is_multiple_of(UNIT_BYTES);
    let ends = address.checked_add(size_bytes).is_some_and(|end| end <= 1 << ADDRESS_BITS);
    if address > 0 && are_units && ends {
        return Ok(address);
    }
    // The range then belongs to neither side. The upstream has already broken the contract, so the result does not matter.
    let _ = give_back();
    let refusal = format!(
        "an upstream, or a source of segments, handed out {size_bytes} bytes at {address:#x}: ranges begin at positive \
         multiples of {UNIT_BYTES} and end at 2^{ADDRESS_BITS} at the latest"
    );
    Err(UpstreamError::Other(refusal.into()))
}
const LINEAR_BINS: usize = (LINEAR_BYTES / UNIT_BYTES) as usize;
///
/// Bins per octave, as a power of two.
const OCTAVE_SHIFT: u32 = 5;

#[inline]
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
    /// The bins, up to the largest that was ever needed.
    bins: Vec<Bin>,
    /// One bit per bin: whether it has a block.
    occupied: Vec<u64>,
    /// The index of each block in the list of its bin, by block identifier. Entries of other blocks are meaningless.
    places: Vec<u32>,
}

impl Bins {
    #[inline]
    pub(crate) fn insert(&mut self, span: Span, registration: u32) {
        let index = bin_of(span.size_bytes);
        if index >= self.bins.len() || span.block.index() >= self.places.len() {
            self.grow(index, span.block);
        }
        let key = Key::new(span.size_bytes, registration, span.address);
        self.bins[index].insert(key, span.block, &mut self.places);
        self.occupied[index / 64] |= 1 << (index % 64);
    }

    #[cold]
    fn grow(&mut self, index: usize, block: BlockId) {
        let bins = self.bins.len().max((index + 1).next_multiple_of(64));
        self.bins.resize_with(bins, Bin::default);
        self.occupied.resize(bins / 64, 0);
        let places = self.places.len().max((block.index() + 1).next_power_of_two());
        self.places.resize(places, 0);
    }

    /// Removes a block.
    ///
    /// # Panics
    /// If there is no block with this range and registration.
    #[inline]
    pub(crate) fn remove(&mut self, span: Span, registration: u32) {
        let index = bin_of(span.size_bytes);
        let key = Key::new(span.size_bytes, registration, span.address);
        let empty = self.bins[index].remove(key, span.block, &mut self.places);
        self.occupied[index / 64] &= !(u64::from(empty) << (index % 64));
    }

    /// Returns the first block in the order that has at least `size_bytes`. Every block is smaller than 2^57 bytes, but a setting
    /// may request more.
    #[inline(always)]
    pub(crate) fn best_fit(&self, size_bytes: u64) -> Option<Entry> {
        self.first_from(Key::checked(size_bytes, 0, 0)?.number(), bin_of(size_bytes))
    }

    /// Returns the block after this one in the order.
    pub(crate) fn after(&self, entry: Entry) -> Option<Entry> {
        let key = Key::new(entry.size_bytes, entry.registration, entry.address);
        self.first_from(key.number() + 1, bin_of(entry.size_bytes))
    }

    /// Returns the first block in the order whose key is at least `floor`; `bin` is the bin of `floor`.
    #[inline(always)]
    fn first_from(&self, floor: u128, bin: usize) -> Option<Entry> {
        let mut index = self.next_occupied(bin)?;
        loop {
            // The bin of the key itself may contain only smaller blocks; the next bins do not.
            match self.bins[index].first_from(floor) {
                Some(entry) => return Some(entry),
                None => index = self.next_occupied(index + 1)?,
            }
        }
    }

    /// Returns the first occupied bin from `index` on.
    #[inline]
    fn next_occupied(&self, index: usize) -> Option<usize> {
        let mut word = index / 64;
        let mut bits = self.occupied.get(word)? & (!0 << (index % 64));
        while bits == 0 {
            word += 1;
            bits = *self.occupied.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }

    /// Returns the blocks from the first of at least `size_bytes` on, in order.
    pub(crate) fn at_least(&self, size_bytes: u64) -> impl Iterator<Item = Entry> {
        std::iter::successors(self.best_fit(size_bytes), |entry| self.after(*entry))
    }

    /// Returns all blocks, in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = Entry> {
        self.bins.iter().flat_map(Bin::entries)
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
        /// Compares the bins with an ordered map that has the same key.
        #[test]
        fn the_best_fit_is_that_of_an_ordered_map(
            steps in prop::collection::vec((0..5u8, 1..4000u64, 0..400u64, 0..2u32), 1..400),
            crowded in any::<bool>()
        ) {
            let mut bins = Bins::default();
            let mut map: BTreeMap<(u64, u32, u64), Span> = BTreeMap::new();
            for (kind, units, place, registration) in steps {
                // If crowded, many blocks share a bin.
                let units = if crowded { 1000 + units % 3 } else { units };
                let size_bytes = units * units * 512;
                match kind {
                    0 | 3 | 4 => {
                        let span = Span { block: BlockId::of_index(place as usize), address: place * 512, size_bytes };
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
                let all: Vec<Entry> = bins.iter().collect();
                prop_assert_eq!(
                    all.iter().map(|entry| entry.span()).collect::<Vec<_>>(),
                    map.values().copied().collect::<Vec<_>>()
                );
                for pair in all.windows(2) {
                    prop_assert_eq!(bins.after(pair[0]).map(Entry::span), Some(pair[1].span()));
                }
                prop_assert!(all.last().is_none_or(|last| bins.after(*last).is_none()));
            }
        }
    }
}
