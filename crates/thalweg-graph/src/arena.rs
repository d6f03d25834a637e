//! Offsets of temporary memory in one arena.

/// A piece of memory that is in use from a step to another one, both included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interval {
    pub memory: u32,
    pub bytes: u64,
    pub first: usize,
    pub last: usize,
}

/// The alignment of every offset, in bytes.
pub(crate) const ALIGNMENT: u64 = 256;

/// Returns the offset of each piece of memory, and the size of the arena: the largest pieces first, each at the lowest offset that is
/// free throughout its life. `may_follow` says whether the second piece may take the place of the first in the step in which the first
/// is read for the last time.
pub(crate) fn offsets(
    intervals: &[Interval],
    may_follow: impl Fn(&Interval, &Interval) -> bool,
) -> (Vec<(u32, u64)>, u64) {
    let mut order: Vec<&Interval> = intervals.iter().collect();
    order.sort_by_key(|interval| (std::cmp::Reverse(interval.bytes), interval.first, interval.memory));
    let mut placed: Vec<(&Interval, u64)> = Vec::new();
    for interval in order {
        let meets = |other: &Interval| {
            let (earlier, later) =
                if other.first <= interval.first { (other, interval) } else { (interval, other) };
            let takes_its_place = earlier.first < later.first && may_follow(earlier, later);
            later.first < earlier.last || later.first == earlier.last && !takes_its_place
        };
        let mut taken: Vec<(u64, u64)> = (placed.iter())
            .filter(|(other, _)| meets(other))
            .map(|&(other, offset)| (offset, offset + rounded(other.bytes)))
            .collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (start, end) in taken {
            if offset + rounded(interval.bytes) <= start {
                break;
            }
            offset = offset.max(end);
        }
        placed.push((interval, offset));
    }
    let size = placed.iter().map(|(interval, offset)| offset + rounded(interval.bytes)).max().unwrap_or(0);
    (placed.into_iter().map(|(interval, offset)| (interval.memory, offset)).collect(), size)
}

fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(memory: u32, bytes: u64, first: usize, last: usize) -> Interval {
        Interval { memory, bytes, first, last }
    }

    #[test]
    fn pieces_that_are_in_use_together_are_apart() {
        let mut state = 7u64;
        let mut next = |limit: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) % limit
        };
        for _ in 0..300 {
            let count = 1 + next(12) as u32;
            let intervals: Vec<Interval> = (0..count)
                .map(|memory| {
                    let first = next(10) as usize;
                    interval(memory, 1 + next(2000), first, first + next(5) as usize)
                })
                .collect();
            let (places, size) = offsets(&intervals, |_, _| false);
            let at = |memory: u32| places.iter().find(|(other, _)| *other == memory).unwrap().1;
            for a in &intervals {
                let (start, end) = (at(a.memory), at(a.memory) + a.bytes);
                assert!(end <= size && start.is_multiple_of(ALIGNMENT));
                for b in intervals.iter().filter(|b| b.memory < a.memory) {
                    let is_together = a.first <= b.last && b.first <= a.last;
                    let is_apart = end <= at(b.memory) || at(b.memory) + b.bytes <= start;
                    assert!(!is_together || is_apart, "{a:?} {b:?}");
                }
            }
            let live = |step: usize| {
                intervals
                    .iter()
                    .filter(|i| (i.first..=i.last).contains(&step))
                    .map(|i| rounded(i.bytes))
                    .sum::<u64>()
            };
            assert!(size >= (0..16).map(live).max().unwrap());
        }
    }

    #[test]
    fn a_chain_needs_two_places_or_one_if_each_step_writes_over_what_it_reads() {
        let chain: Vec<Interval> =
            (0..5).map(|step| interval(step, 1000, step as usize, step as usize + 1)).collect();
        assert_eq!(offsets(&chain, |_, _| false).1, 2048);
        assert_eq!(offsets(&chain, |_, _| true).1, 1024);
    }
}
