//! Plans of temporary memory: pieces whose lifetimes are known before any of them is allocated.
//!
//! [`offsets`] places pieces in one block, which lasts from the first use of a piece to the last use of another one. Where other memory
//! comes and goes meanwhile, one block would be there, whole, when the other memory is largest. [`blocks`] divides the pieces by time
//! into few blocks, so that a block of its own is allocated late or freed early where the most memory at a time would grow otherwise.

use std::cmp::Reverse;

/// A piece of memory that is in use from a step to another one, both included.
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    /// The number of the piece.
    pub memory: u32,
    /// The size in bytes.
    pub bytes: u64,
    /// The first step.
    pub first: usize,
    /// The last step.
    pub last: usize,
}

/// Pieces of memory that are allocated and freed together.
#[derive(Clone, Debug)]
pub struct Block {
    /// The size in bytes.
    pub bytes: u64,
    /// The first step that uses a piece.
    pub first: usize,
    /// The last step that uses a piece.
    pub last: usize,
    /// The pieces with their offsets.
    pub placed: Vec<(u32, u64)>,
}

/// The alignment of every offset, in bytes.
const ALIGNMENT: u64 = 256;

/// The most blocks of a plan. Each costs the host an allocation.
const MOST_BLOCKS: usize = 8;

/// The most divisions into blocks that are tried one after the other.
const MOST_TRIED: usize = 4;

/// The part of the least possible peak by which a plan may exceed it rather than have another block.
const EXCESS: u64 = 128;

/// Returns the offset of each piece of memory, and the size of the block. The pieces are placed one after the other, each at the lowest
/// offset that is free throughout its life: in several orders, of which the one with the smallest block counts. `may_follow` says whether the
/// second piece may take the place of the first in the step in which the first is read for the last time. It then begins where the first
/// does: otherwise what the step writes would be what it is still to read.
pub fn offsets(
    intervals: &[Interval],
    may_follow: impl Fn(&Interval, &Interval) -> bool,
) -> (Vec<(u32, u64)>, u64) {
    let by_size = |piece: &&Interval| (Reverse(piece.bytes), piece.first, piece.memory);
    let by_time = |piece: &&Interval| (piece.first, Reverse(piece.bytes), piece.memory);
    let by_end = |piece: &&Interval| (Reverse(piece.last), Reverse(piece.bytes), piece.memory);
    let mut orders: [Vec<&Interval>; 3] = std::array::from_fn(|_| intervals.iter().collect());
    orders[0].sort_by_key(by_size);
    orders[1].sort_by_key(by_time);
    orders[2].sort_by_key(by_end);
    let placed = orders.into_iter().map(|order| placed_in_order(order, &may_follow));
    placed.min_by_key(|(_, bytes)| *bytes).unwrap_or_default()
}

/// Returns the offset of each piece of memory, and the size of the block. The pieces are placed in this order.
fn placed_in_order(
    order: Vec<&Interval>,
    may_follow: &impl Fn(&Interval, &Interval) -> bool,
) -> (Vec<(u32, u64)>, u64) {
    let mut placed: Vec<(&Interval, u64)> = Vec::new();
    for interval in order {
        let offset = lowest(interval, &placed, may_follow);
        placed.push((interval, offset));
    }
    let size = placed.iter().map(|(interval, offset)| offset + rounded(interval.bytes)).max().unwrap_or(0);
    (placed.into_iter().map(|(interval, offset)| (interval.memory, offset)).collect(), size)
}

/// Returns the lowest offset of a piece at which it is apart from the pieces that are in use together with it, or takes the place of one.
fn lowest(
    interval: &Interval,
    placed: &[(&Interval, u64)],
    may_follow: &impl Fn(&Interval, &Interval) -> bool,
) -> u64 {
    let size = rounded(interval.bytes);
    let mut taken: Vec<(u64, u64)> = Vec::new();
    let mut places: Vec<u64> = Vec::new();
    for &(other, offset) in placed {
        let (earlier, later) =
            if other.first <= interval.first { (other, interval) } else { (interval, other) };
        if later.first > earlier.last {
            continue;
        }
        taken.push((offset, offset + rounded(other.bytes)));
        if later.first == earlier.last && earlier.first < later.first && may_follow(earlier, later) {
            places.push(offset);
        }
    }
    taken.sort_unstable();
    let mut free = 0;
    for &(start, end) in &taken {
        if free + size <= start {
            break;
        }
        free = free.max(end);
    }
    // The piece whose place is taken is the only one there.
    let is_free =
        |place: &u64| taken.iter().filter(|&&(start, end)| start < place + size && *place < end).count() == 1;
    places.into_iter().filter(is_free).fold(free, u64::min)
}

fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT)
}

/// Divides pieces of memory into blocks, so that at no step they take much more, together with `others`, than if each piece was allocated by
/// itself. `others` is the size of the other memory that is in use at each step.
pub fn blocks(intervals: &[Interval], others: &[u64]) -> Vec<Block> {
    if intervals.is_empty() {
        return Vec::new();
    }
    let mut single = others.to_vec();
    intervals.iter().for_each(|piece| add(&mut single, piece.first..=piece.last, rounded(piece.bytes)));
    let least = single.into_iter().max().unwrap_or(0);
    let bound = least + least / EXCESS;
    let mut parts = vec![intervals.to_vec()];
    let mut made = vec![block(intervals)];
    while made.len() < MOST_BLOCKS {
        let total = sum(others, &made);
        if excess(&total, bound) == (0, 0) {
            break;
        }
        let mut divisions: Vec<_> = (0..parts.len())
            .flat_map(|place| {
                let mut rest = total.clone();
                let Block { bytes, first, last, .. } = made[place];
                rest[first..=last].iter_mut().for_each(|all| *all -= bytes);
                let found = divisions(&parts[place], &rest, bound).into_iter();
                found.map(move |(excess, division)| (excess, place, division))
            })
            .collect();
        divisions.sort_by_key(|(excess, ..)| *excess);
        // They are compared by the most that is live at a time, and their blocks may need more.
        let found = divisions.into_iter().take(MOST_TRIED).find_map(|(_, place, division)| {
            let mut blocks = made.clone();
            blocks.swap_remove(place);
            blocks.extend(division.iter().map(|part| block(part)));
            let is_better = excess(&sum(others, &blocks), bound) < excess(&total, bound);
            is_better.then_some((place, division, blocks))
        });
        let Some((place, division, blocks)) = found else { break };
        parts.swap_remove(place);
        parts.extend(division);
        made = blocks;
    }
    made.sort_by_key(|block| (block.first, block.last));
    made
}

/// Returns the divisions of a part by time, and into one piece and the others, each with the excess that then remains. `rest` is all other
/// memory.
fn divisions(part: &[Interval], rest: &[u64], bound: u64) -> Vec<(Excess, Vec<Vec<Interval>>)> {
    // What is small beside the bound changes little.
    let is_large = |piece: &&Interval| piece.bytes.saturating_mul(EXCESS) >= bound;
    let mut cuts: Vec<usize> =
        part.iter().filter(is_large).flat_map(|piece| [piece.first, piece.last + 1]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let by_time = cuts.iter().map(|&cut| divided(part, cut));
    let by_piece = (0..part.len()).filter(|&place| is_large(&&part[place])).map(|place| {
        let mut others = part.to_vec();
        let piece = others.swap_remove(place);
        vec![others, vec![piece]]
    });
    let remains = |division: &[Vec<Interval>]| {
        let mut total = rest.to_vec();
        for part in division {
            let [first, last] = span(part);
            let mut live = vec![0; last + 1 - first];
            part.iter().for_each(|piece| {
                add(&mut live, piece.first - first..=piece.last - first, rounded(piece.bytes));
            });
            add(&mut total, first..=last, live.into_iter().max().unwrap_or(0));
        }
        excess(&total, bound)
    };
    let divisions = by_time.chain(by_piece).filter(|division| division.iter().all(|part| !part.is_empty()));
    divisions.map(|division| (remains(&division), division)).collect()
}

/// Divides pieces into those that end before a step, those that begin there or later, and those that last from before until after, if there
/// are any.
fn divided(part: &[Interval], cut: usize) -> Vec<Vec<Interval>> {
    let (before, rest): (Vec<_>, Vec<_>) = part.iter().partition(|piece| piece.last < cut);
    let (after, across): (Vec<_>, Vec<_>) = rest.into_iter().partition(|piece: &Interval| piece.first >= cut);
    let mut parts = vec![before, after, across];
    parts.truncate(if parts[2].is_empty() { 2 } else { 3 });
    parts
}

/// Returns the memory that is in use at each step.
fn sum(others: &[u64], made: &[Block]) -> Vec<u64> {
    let mut total = others.to_vec();
    made.iter().for_each(|block| add(&mut total, block.first..=block.last, block.bytes));
    total
}

fn block(part: &[Interval]) -> Block {
    let (placed, bytes) = offsets(part, |_, _| false);
    let [first, last] = span(part);
    Block { bytes, first, last, placed }
}

/// Returns the first and the last step in which one of the pieces is in use.
fn span(part: &[Interval]) -> [usize; 2] {
    let first = part.iter().map(|piece| piece.first).min().unwrap_or(0);
    [first, part.iter().map(|piece| piece.last).max().unwrap_or(first)]
}

fn add(sums: &mut [u64], steps: std::ops::RangeInclusive<usize>, bytes: u64) {
    sums[steps].iter_mut().for_each(|sum| *sum += bytes);
}

/// The bytes above a bound: the most at a time, and their sum over the steps.
type Excess = (u64, u64);

fn excess(total: &[u64], bound: u64) -> Excess {
    let above = total.iter().map(|bytes| bytes.saturating_sub(bound));
    (above.clone().max().unwrap_or(0), above.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(memory: u32, bytes: u64, first: usize, last: usize) -> Interval {
        Interval { memory, bytes, first, last }
    }

    fn numbers(mut state: u64) -> impl FnMut(u64) -> u64 {
        move |limit| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) % limit
        }
    }

    fn peak(intervals: &[Interval], others: &[u64], made: &[Block]) -> [u64; 2] {
        let mut single = others.to_vec();
        intervals.iter().for_each(|piece| add(&mut single, piece.first..=piece.last, rounded(piece.bytes)));
        [single, sum(others, made)].map(|sums| sums.into_iter().max().unwrap())
    }

    #[test]
    fn pieces_that_are_in_use_together_are_apart() {
        let mut next = numbers(7);
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
    fn a_piece_begins_where_the_piece_does_whose_place_it_takes() {
        let mut next = numbers(8);
        let mut taken = 0;
        for _ in 0..500 {
            let intervals: Vec<Interval> = (0..2 + next(12) as u32)
                .map(|memory| {
                    let first = next(8) as usize;
                    interval(memory, 300 * (1 + next(4)), first, first + next(4) as usize)
                })
                .collect();
            let may_follow = |a: &Interval, b: &Interval| a.bytes == b.bytes && a.memory + b.memory != 7;
            let (places, _) = offsets(&intervals, may_follow);
            let at = |memory: u32| places.iter().find(|(other, _)| *other == memory).unwrap().1;
            for a in &intervals {
                for b in intervals
                    .iter()
                    .filter(|b| b.memory != a.memory && a.first <= b.first && b.first <= a.last)
                {
                    let (first, second) = (at(a.memory), at(b.memory));
                    let is_apart = first + a.bytes <= second || second + b.bytes <= first;
                    let may_meet = a.first < b.first && b.first == a.last && may_follow(a, b);
                    assert!(is_apart || may_meet && first == second, "{a:?} at {first}, {b:?} at {second}");
                    taken += u32::from(!is_apart);
                }
            }
        }
        assert!(taken > 100, "{taken}");
    }

    #[test]
    fn a_chain_needs_two_places_or_one_if_each_step_writes_over_what_it_reads() {
        let chain: Vec<Interval> =
            (0..5).map(|step| interval(step, 1000, step as usize, step as usize + 1)).collect();
        assert_eq!(offsets(&chain, |_, _| false).1, 2048);
        assert_eq!(offsets(&chain, |_, _| true).1, 1024);
    }

    /// The steps of a backward pass: saved memory ends, gradients begin, and each layer has some memory of its own, of which one layer
    /// has by far the most.
    fn backward(mut next: impl FnMut(u64) -> u64) -> (Vec<Interval>, Vec<u64>) {
        let (layers, large) = (4 + next(12) as usize, 1 << 20);
        let widest = next(layers as u64) as usize;
        let (mut intervals, mut others) = (Vec::new(), Vec::new());
        let (saved, gradients) = (1 + next(4), next(3));
        for layer in 0..layers {
            let width = if layer == widest { 8 } else { 1 };
            for _ in 0..2 + next(6) {
                let first = others.len();
                let bytes = (large / 2 + next(large)) * width;
                intervals.push(interval(intervals.len() as u32, bytes, first, first + 1 + next(3) as usize));
                others.push((saved * (layers - layer) as u64 + gradients * layer as u64) * large);
            }
        }
        others.resize(others.len() + 5, gradients * layers as u64 * large);
        (intervals, others)
    }

    #[test]
    fn few_blocks_take_little_more_than_each_piece_by_itself() {
        let (mut excess, mut whole) = (Vec::new(), Vec::new());
        for seed in 0..100 {
            let (intervals, others) = backward(numbers(seed));
            let made = blocks(&intervals, &others);
            let mut pieces: Vec<u32> =
                made.iter().flat_map(|block| &block.placed).map(|&(piece, _)| piece).collect();
            pieces.sort_unstable();
            assert!(pieces.into_iter().eq(0..intervals.len() as u32), "seed {seed}");
            assert!(made.len() <= MOST_BLOCKS + 1, "seed {seed}");
            for block in &made {
                let piece = |number: u32| &intervals[number as usize];
                assert!(block.placed.iter().all(|&(number, offset)| {
                    let piece = piece(number);
                    offset + piece.bytes <= block.bytes
                        && block.first <= piece.first
                        && piece.last <= block.last
                }));
            }
            let [least, found] = peak(&intervals, &others, &made);
            assert!(found <= least + least / 6, "seed {seed}: {found}, and {least} is possible");
            excess.push(found as f64 / least as f64);
            let [_, one] = peak(&intervals, &others, &[block(&intervals)]);
            whole.push(one as f64 / least as f64);
            assert!(found <= one, "seed {seed}");
        }
        let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
        assert!(mean(&excess) < 1.02 && mean(&whole) > 1.1, "{} {}", mean(&excess), mean(&whole));
    }

    #[test]
    fn one_block_is_enough_where_nothing_else_changes() {
        let (intervals, others) = backward(numbers(3));
        assert_eq!(blocks(&intervals, &vec![0; others.len()]).len(), 1);
        assert!(blocks(&[], &others).is_empty());
    }
}
