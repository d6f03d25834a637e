//! Sets of bytes at regular distances, as strided operands touch them.

use smallvec::{SmallVec, smallvec};
use thalweg_driver::{Access, Touch};

/// `chunk` bytes from `start` on, repeated at each step; each further step repeats the set so far.
///
/// Invariant: a step is at least as long as the bytes that it repeats, and its number of repetitions is at least 2.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Bytes {
    pub(super) start: u64,
    chunk: u64,
    /// The steps of the repetition, the shortest first: the length in bytes, and the number of repetitions.
    steps: SmallVec<[(u64, u64); 4]>,
}

/// Parts of a set.
pub(super) type Parts = SmallVec<[Bytes; 2]>;

impl Bytes {
    /// Creates the bytes from `start` to `end`.
    pub(super) fn range(start: u64, end: u64) -> Self {
        Self { start, chunk: end - start, steps: SmallVec::new() }
    }

    /// Returns the bytes that an access touches; `None` if they are not declared.
    pub(super) fn of(access: &Access) -> Option<Self> {
        let (chunk, steps) = match access.touch {
            Touch::All => return Some(Self::range(access.start, access.start.saturating_add(access.bytes))),
            Touch::Some { .. } | Touch::Chosen { .. } => return None,
            Touch::Strided { chunk_bytes, steps } => (chunk_bytes, steps),
        };
        let mut bytes = Self { start: access.start, chunk, steps: SmallVec::new() };
        for step in steps.iter().filter(|step| step.count > 1) {
            if step.bytes < bytes.reach() {
                return None;
            }
            bytes.steps.push((step.bytes, step.count));
        }
        (chunk > 0 && bytes.reach() <= access.bytes).then_some(bytes)
    }

    /// Returns the distance from the first byte to the end of the last.
    pub(super) fn reach(&self) -> u64 {
        let steps = self.steps.iter().map(|(step, count)| step.saturating_mul(count - 1));
        steps.fold(self.chunk, u64::saturating_add)
    }

    /// Returns the number of bytes in the set.
    #[cfg(test)]
    fn count(&self) -> u64 {
        self.steps.iter().fold(self.chunk, |product, (_, count)| product.saturating_mul(*count))
    }

    /// Returns the longest step, and its number of repetitions.
    pub(super) fn longest(&self) -> Option<(u64, u64)> {
        self.steps.last().copied()
    }

    /// Returns the end, if the set is one contiguous range.
    pub(super) fn end_of_range(&self) -> Option<u64> {
        self.steps.is_empty().then(|| self.start + self.chunk)
    }

    /// Returns the bytes that the longest step repeats, from `start` on.
    pub(super) fn repeated(&self, start: u64) -> Self {
        let steps = self.steps[..self.steps.len() - 1].into();
        Self { start, chunk: self.chunk, steps }
    }

    /// Returns the bytes repeated `count` times at a distance of `step`.
    pub(super) fn times(mut self, step: u64, count: u64) -> Self {
        debug_assert!(self.reach() <= step, "steps do not interleave");
        if count > 1 {
            self.steps.push((step, count));
        }
        self
    }

    /// Visits the bytes of the set that are in a range, as contiguous ranges in ascending order, until `visit` returns `false`.
    /// Returns whether it was never `false`.
    pub(super) fn common(&self, range: (u64, u64), visit: &mut dyn FnMut(u64, u64) -> bool) -> bool {
        let Some((step, count)) = self.longest() else {
            let (start, end) = (range.0.max(self.start), range.1.min(self.start + self.chunk));
            return start >= end || visit(start, end);
        };
        let one = self.repeated(self.start);
        // Each repetition ends before the next begins.
        let first = range.0.saturating_sub(self.start) / step;
        let last = range.1.saturating_sub(self.start).div_ceil(step).min(count);
        (first..last).all(|number| one.clone().moved(self.start + number * step).common(range, visit))
    }

    /// Returns the same bytes, moved to begin at `start`.
    pub(super) fn moved(mut self, start: u64) -> Self {
        self.start = start;
        self
    }

    /// Returns the bytes below `at`, and those from `at` on.
    pub(super) fn split(self, at: u64) -> (Parts, Parts) {
        if at <= self.start {
            return (Parts::new(), smallvec![self]);
        }
        if at >= self.start + self.reach() {
            return (smallvec![self], Parts::new());
        }
        let Some((step, count)) = self.longest() else {
            let end = self.start + self.chunk;
            return (smallvec![Self::range(self.start, at)], smallvec![Self::range(at, end)]);
        };
        let one = self.repeated(self.start);
        let reach = one.reach();
        // The number of repetitions that end below.
        let below = (at - self.start).checked_sub(reach).map_or(0, |rest| rest / step + 1);
        let (mut low, mut high) = (Parts::new(), Parts::new());
        if below > 0 {
            low.push(one.clone().times(step, below));
        }
        let mut next = below;
        let start = self.start + below * step;
        if start < at {
            let (left, right) = one.clone().moved(start).split(at);
            low.extend(left);
            high.extend(right);
            next += 1;
        }
        if next < count {
            high.push(one.moved(self.start + next * step).times(step, count - next));
        }
        (low, high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(parts: &[Bytes]) -> Vec<u64> {
        let mut found = Vec::new();
        for part in parts {
            let mut starts = vec![part.start];
            for &(step, count) in &part.steps {
                starts = starts.iter().flat_map(|start| (0..count).map(move |i| start + i * step)).collect();
            }
            found.extend(starts.iter().flat_map(|start| *start..start + part.chunk));
        }
        found.sort_unstable();
        found
    }

    #[test]
    fn a_set_is_split_at_every_place() {
        let set = Bytes { start: 5, chunk: 3, steps: smallvec![(4, 3), (20, 2), (50, 3)] };
        let all = list(std::slice::from_ref(&set));
        assert_eq!(all.len() as u64, set.count());
        assert_eq!(all.last().copied(), Some(set.start + set.reach() - 1));
        for at in 0..170 {
            let (low, high) = set.clone().split(at);
            let (low, high) = (list(&low), list(&high));
            assert!(low.iter().all(|byte| *byte < at) && high.iter().all(|byte| *byte >= at), "at {at}");
            assert_eq!([low, high].concat(), all, "at {at}");
        }
    }

    #[test]
    fn what_lies_in_a_range_is_shown_in_order() {
        let set = Bytes { start: 5, chunk: 3, steps: smallvec![(4, 3), (20, 2), (50, 3)] };
        let all = list(std::slice::from_ref(&set));
        for (start, end) in (0..170).flat_map(|start| (start..=170).step_by(7).map(move |end| (start, end))) {
            let mut found = Vec::new();
            assert!(set.common((start, end), &mut |start, end| {
                found.extend(start..end);
                true
            }));
            let expected: Vec<u64> = all.iter().copied().filter(|at| (start..end).contains(at)).collect();
            assert_eq!(found, expected, "{start} to {end}");
        }
        let mut calls = 0;
        assert!(!set.common((0, 170), &mut |_, _| {
            calls += 1;
            calls < 2
        }));
        assert_eq!(calls, 2, "it ends when `visit` says so");
    }

    #[test]
    fn what_interleaves_is_not_said() {
        let of = |touch| Bytes::of(&Access::new(0, 100, thalweg_driver::AccessMode::Read).touching(touch));
        assert!(of(Touch::rows(4, 8, 12)).is_some());
        assert!(of(Touch::rows(9, 8, 4)).is_none(), "a chunk longer than its step");
        assert!(of(Touch::rows(4, 8, 14)).is_none(), "more than the range has");
        assert!(of(Touch::Some { most_bytes: 4 }).is_none());
    }
}
