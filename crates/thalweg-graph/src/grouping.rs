//! The choice of the loops that are fused.
//!
//! Loops are taken in program order. Each is fused with the earlier loop with which it shares the most bytes, as long as there is one
//! that accepts it.

use crate::fuse::{Refusal, fuse};
use crate::loops::Loop;
use crate::machine::Machine;
use crate::segment::{Lifetime, Segment, Touched};

/// A pair of nodes that is not fused although the second one reads a result of the first one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Apart {
    /// The first node.
    pub first: u32,
    /// The second node.
    pub second: u32,
    /// The reason.
    pub reason: Refusal,
}

/// Returns the numbers of the nodes whose results are read.
pub(crate) fn live(segment: &Segment) -> Vec<u32> {
    let mut live = Vec::new();
    let mut read: Vec<Touched> = Vec::new();
    for (number, node) in segment.nodes.iter().enumerate().rev() {
        let touched = node.touched();
        let (reads, writes) = touched.split_at(node.inputs.len());
        let is_read = writes.iter().any(|write| {
            let lifetime = segment.memories[write.memory as usize].lifetime;
            lifetime != Lifetime::Temporary || read.iter().any(|read| read.overlaps(write))
        });
        if is_read || node.launch.body.report.is_some() {
            read.extend_from_slice(reads);
            live.push(number as u32);
        }
    }
    live.reverse();
    live
}

/// The loops of a segment, as they are fused.
struct Grouping<'s> {
    segment: &'s Segment,
    machine: &'s Machine,
    loops: Vec<Loop>,
    /// The memory that nodes read which are not in a loop yet, with the nodes' numbers.
    later: Vec<(u32, Touched)>,
    apart: Vec<Apart>,
}

/// Returns the loops of a segment's nodes in an order in which they may run, and the pairs that were not fused. Nodes that wait for their
/// readers are not fused with earlier loops.
pub(crate) fn grouped(
    segment: &Segment,
    live: Vec<u32>,
    waits: impl Fn(u32) -> bool,
    machine: &Machine,
) -> (Vec<Loop>, Vec<Apart>) {
    let mut grouping = Grouping { segment, machine, loops: Vec::new(), later: Vec::new(), apart: Vec::new() };
    for &number in &live {
        let node = &segment.nodes[number as usize];
        let reads = node.touched().into_iter().take(node.inputs.len());
        grouping.later.extend(reads.map(|read| (number, read)));
    }
    for number in live {
        grouping.later.retain(|(node, _)| *node != number);
        grouping.add(number, waits(number));
    }
    (grouping.loops, grouping.apart)
}

impl Grouping<'_> {
    fn add(&mut self, number: u32, waits: bool) {
        let node = &self.segment.nodes[number as usize];
        self.loops.push(Loop::of(number, node, &self.segment.memories));
        let mut place = self.loops.len() - 1;
        while !waits && let Some(joined) = self.join(place) {
            place = joined;
        }
    }

    /// Fuses the loop at a place with an earlier one, if one accepts it. Returns the place of the result.
    fn join(&mut self, place: usize) -> Option<usize> {
        let mut candidates: Vec<(u64, usize)> = (0..place)
            .map(|other| (shared_bytes(&self.loops[other], &self.loops[place]), other))
            .filter(|(bytes, _)| *bytes > 0)
            .collect();
        // The most bytes first, and the latest loop first of those.
        candidates.sort_unstable_by_key(|&candidate| std::cmp::Reverse(candidate));
        for (_, other) in candidates {
            let (first, second) = (&self.loops[other], &self.loops[place]);
            let between = other + 1..place;
            let first_may_wait = between.clone().all(|number| !self.loops[number].conflicts(first));
            let second_may_hurry = between.clone().all(|number| !self.loops[number].conflicts(second));
            let fused = match first_may_wait || second_may_hurry {
                true => fuse(
                    first,
                    second,
                    |output| self.is_kept(other, place, output),
                    &self.segment.memories,
                    self.machine,
                ),
                false => Err(Refusal::Between),
            };
            match fused {
                Ok(fused) => {
                    let target = if first_may_wait { place } else { other };
                    self.loops[target] = fused;
                    self.loops.remove(if first_may_wait { other } else { place });
                    return Some(if first_may_wait { place - 1 } else { other });
                }
                Err(reason) => self.note(other, place, reason),
            }
        }
        None
    }

    /// Notes why two loops are not fused, if the second one reads a result of the first one.
    fn note(&mut self, first: usize, second: usize, reason: Refusal) {
        let (first, second) = (&self.loops[first], &self.loops[second]);
        let is_read =
            first.writes().iter().any(|write| second.reads().iter().any(|read| read.overlaps(write)));
        let last = |of: &Loop| *of.members.last().expect("a loop has a member");
        let apart = Apart { first: last(first), second: last(second), reason };
        if is_read && !self.apart.contains(&apart) {
            self.apart.push(apart);
        }
    }

    /// Returns whether anything but the loop at `second` reads an output of the loop at `first`.
    fn is_kept(&self, first: usize, second: usize, output: usize) -> bool {
        let write = &self.loops[first].writes()[output];
        let others = (0..self.loops.len()).filter(|&other| other != first && other != second);
        self.segment.memories[write.memory as usize].lifetime != Lifetime::Temporary
            || self.later.iter().any(|(_, read)| read.overlaps(write))
            || others.flat_map(|other| self.loops[other].reads()).any(|read| read.overlaps(write))
    }
}

/// Returns the number of bytes that the second loop reads and the first one reads or writes.
fn shared_bytes(first: &Loop, second: &Loop) -> u64 {
    let is_written = |read: &Touched| first.writes().iter().any(|write| write.overlaps(read));
    let shared = |read: &&Touched| first.reads().contains(read) || is_written(read);
    second.reads().iter().filter(shared).map(|read| read.bytes).sum()
}
