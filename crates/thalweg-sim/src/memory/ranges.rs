//! Free ranges of numbers: physical pages, addresses, the inside of a pool.
//!
//! Invariants: ranges do not overlap, none is empty, and no two are adjacent (neighbours are merged on release). First fit,
//! from the lowest number on, or, if the ranges *rotate*, from the end of the last one taken. Rotating reuses numbers as
//! late as possible, so a stale number stays invalid for as long. The same requests always get the same ranges.

use std::collections::BTreeMap;

use smallvec::SmallVec;

/// A range: its first number and its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

impl Range {
    pub(crate) const fn end(self) -> u64 {
        self.start + self.bytes
    }
}

/// A list of free ranges.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeRanges {
    by_start: BTreeMap<u64, u64>,
    total: u64,
    /// The number at which the next search begins, if searches continue where the last one ended.
    cursor: Option<u64>,
}

impl FreeRanges {
    /// Creates a list of one free range.
    pub(crate) fn new(start: u64, bytes: u64) -> Self {
        let mut ranges = Self::default();
        ranges.release(Range { start, bytes });
        ranges
    }

    /// Creates a list of one free range; with `rotates`, each search starts after the last range taken.
    pub(crate) fn rotating(start: u64, bytes: u64, rotates: bool) -> Self {
        Self { cursor: rotates.then_some(start), ..Self::new(start, bytes) }
    }

    /// Returns the sum of all lengths.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Takes `bytes` in one piece, starting at a multiple of `alignment`.
    pub(crate) fn take(&mut self, bytes: u64, alignment: u64) -> Option<u64> {
        if bytes > self.total {
            return None;
        }
        let fits = |(&start, &length): (&u64, &u64)| {
            let aligned = start.next_multiple_of(alignment);
            (aligned - start)
                .checked_add(bytes)
                .is_some_and(|needed| needed <= length)
                .then_some((start, length, aligned))
        };
        // A merged range that contains the cursor is split in two for the search.
        let around = |cursor: u64| {
            let (&start, &length) = self.by_start.range(..cursor).next_back()?;
            let aligned = cursor.next_multiple_of(alignment);
            let end = aligned.checked_add(bytes)?;
            (end <= start + length).then_some((start, length, aligned))
        };
        let ahead = |cursor: u64| around(cursor).or_else(|| self.by_start.range(cursor..).find_map(fits));
        let found = self.cursor.and_then(ahead).or_else(|| self.by_start.iter().find_map(fits));
        let (start, length, aligned) = found?;
        if let Some(cursor) = &mut self.cursor {
            *cursor = aligned + bytes;
        }
        self.carve(Range { start, bytes: length }, Range { start: aligned, bytes });
        Some(aligned)
    }

    /// Takes `bytes` in as many pieces as needed, if there is enough in all.
    pub(crate) fn take_pieces(&mut self, bytes: u64) -> Option<SmallVec<[Range; 1]>> {
        if bytes > self.total {
            return None;
        }
        if let Some(start) = self.take(bytes, 1) {
            return Some(SmallVec::from_iter([Range { start, bytes }]));
        }
        let mut pieces = SmallVec::new();
        let mut missing = bytes;
        while missing > 0 {
            let (&start, &length) = self.by_start.first_key_value().expect("the total is large enough");
            let piece = Range { start, bytes: length.min(missing) };
            self.carve(Range { start, bytes: length }, piece);
            missing -= piece.bytes;
            pieces.push(piece);
        }
        Some(pieces)
    }

    /// Releases a range. It must not be free already.
    pub(crate) fn release(&mut self, range: Range) {
        let Range { mut start, mut bytes } = range;
        if bytes == 0 {
            return;
        }
        self.total += bytes;
        if let Some((&before, &length)) = self.by_start.range(..start).next_back() {
            assert!(before + length <= start, "range at {start:#x} was released twice");
            if before + length == start {
                self.by_start.remove(&before);
                (start, bytes) = (before, length + bytes);
            }
        }
        if let Some((&after, &length)) = self.by_start.range(start..).next() {
            assert!(start + bytes <= after, "range at {start:#x} was released twice");
            if start + bytes == after {
                self.by_start.remove(&after);
                bytes += length;
            }
        }
        self.by_start.insert(start, bytes);
    }

    fn carve(&mut self, whole: Range, part: Range) {
        self.by_start.remove(&whole.start);
        if whole.start < part.start {
            self.by_start.insert(whole.start, part.start - whole.start);
        }
        if part.end() < whole.end() {
            self.by_start.insert(part.end(), whole.end() - part.end());
        }
        self.total -= part.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with a plain model that has one bit per unit.
    #[test]
    fn agrees_with_a_bitmap() {
        const UNITS: u64 = 96;
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut ranges = FreeRanges::new(0, UNITS);
        let mut free = [true; UNITS as usize];
        let mut held: Vec<Range> = Vec::new();
        for _ in 0..4000 {
            let wanted = 1 + random(12);
            if random(2) == 0 && !held.is_empty() {
                let range = held.swap_remove(random(held.len() as u64) as usize);
                ranges.release(range);
                free[range.start as usize..range.end() as usize].fill(true);
            } else {
                let pieces = if random(2) == 0 {
                    let alignment = 1 << random(3);
                    let fits = (0..UNITS).step_by(alignment as usize).find(|&start| {
                        start + wanted <= UNITS
                            && free[start as usize..][..wanted as usize].iter().all(|f| *f)
                    });
                    let taken = ranges.take(wanted, alignment);
                    assert_eq!(taken, fits);
                    taken.map(|start| SmallVec::from_iter([Range { start, bytes: wanted }]))
                } else {
                    let enough = free.iter().filter(|f| **f).count() as u64 >= wanted;
                    let taken = ranges.take_pieces(wanted);
                    assert_eq!(taken.is_some(), enough);
                    taken
                };
                for range in pieces.into_iter().flatten() {
                    let bits = &mut free[range.start as usize..range.end() as usize];
                    assert!(bits.iter().all(|f| *f), "{range:?} was not free");
                    bits.fill(false);
                    held.push(range);
                }
            }
            assert_eq!(ranges.total(), free.iter().filter(|f| **f).count() as u64);
        }
    }
}
