//! Sets of addresses: ranges that never touch or overlap, in ascending order.

use std::collections::BTreeMap;

/// A set of addresses.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges {
    /// The end of each range by its start.
    ends: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Adds the addresses `start..end`.
    pub(super) fn insert(&mut self, start: u64, end: u64) {
        let (mut start, mut end) = (start, end);
        if start >= end {
            return;
        }
        // Merges the ranges that touch the new one, starting with the last.
        while let Some((&other, &other_end)) = self.ends.range(..=end).next_back()
            && other_end >= start
        {
            self.ends.remove(&other);
            (start, end) = (start.min(other), end.max(other_end));
        }
        self.ends.insert(start, end);
    }

    /// Removes the addresses `start..end`.
    pub(super) fn remove(&mut self, start: u64, end: u64) {
        while let Some((from, to)) = self.overlap(start, end) {
            let (&other, &other_end) =
                self.ends.range(..=from).next_back().expect("what overlaps begins there or before");
            self.ends.remove(&other);
            if other < from {
                self.ends.insert(other, from);
            }
            if to < other_end {
                self.ends.insert(to, other_end);
            }
        }
    }

    /// Returns the first contiguous part of `start..end` that is in the set.
    fn overlap(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        if start >= end {
            return None;
        }
        let before = self.ends.range(..=start).next_back().filter(|(_, other_end)| **other_end > start);
        let (&other, &other_end) = before.or_else(|| self.ends.range(start..end).next())?;
        Some((start.max(other), end.min(other_end)))
    }

    /// Returns all parts of `start..end` that are in the set, in ascending order.
    pub(super) fn overlaps(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut from = start;
        std::iter::from_fn(move || {
            let part = self.overlap(from, end)?;
            from = part.1;
            Some(part)
        })
    }

    /// Returns the number of addresses in the set.
    pub(super) fn bytes(&self) -> u64 {
        self.ends.iter().map(|(start, end)| end - start).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the set with a plain set of numbers.
    #[test]
    fn it_is_a_set() {
        let mut random = 1_u64;
        let mut next = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        for _ in 0..200 {
            let (mut ranges, mut model) = (Ranges::default(), [false; 64]);
            for _ in 0..12 {
                let (start, length) = (next(56), next(9));
                ranges.insert(start, start + length);
                (start..start + length).for_each(|place| model[place as usize] = true);
                let (start, length) = (next(56), next(5));
                ranges.remove(start, start + length);
                (start..start + length).for_each(|place| model[place as usize] = false);
                assert_eq!(ranges.bytes(), model.iter().filter(|is_in| **is_in).count() as u64);
                let starts = (0..64).filter(|&place| model[place] && (place == 0 || !model[place - 1]));
                assert_eq!(ranges.ends.len(), starts.count(), "no two ranges touch: {ranges:?}");
                let (from, to) = (next(33), 32 + next(32));
                let first = (from..to).find(|place| model[*place as usize]);
                let end = first.map(|first| (first..to).find(|place| !model[*place as usize]).unwrap_or(to));
                assert_eq!(ranges.overlap(from, to), first.zip(end), "{from}..{to} of {ranges:?}");
                let found: u64 = ranges.overlaps(from, to).map(|(start, end)| end - start).sum();
                let expected = (from..to).filter(|place| model[*place as usize]).count();
                assert_eq!(found, expected as u64, "{from}..{to} of {ranges:?}");
            }
        }
    }
}
