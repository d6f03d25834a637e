//! Bytes that data chooses: of some accesses it is known only when they run which bytes they touch.
//!
//! `index_copy_` or `embedding` touches the rows that a tensor of indices names. When such work is submitted the indices are not
//! there yet, so it counts as touching some bytes of its operand: it is *uncertain*. What it meets without order may be a race,
//! which is kept here as a [`Pending`] question: is there a byte that both touch? Each such access gets a *ticket*; the host
//! function that does the work says under it which bytes they were ([`HostLaunch::touched`]), and then the question has an
//! answer, yes or no. A question whose work never says (it never ran, or runs on a GPU or in a graph) stays a race that may be.
//!
//! # Why the answers hold
//! - *What is reported is a race.* Both accesses were made in this run, both touch the byte, one writes it, and their clocks, which
//!   do not depend on when anything runs, leave them without order. Where the indices were themselves a matter of luck, that is
//!   another race, or another run's.
//! - *What is dropped was none in this run.* The bytes of both are known exactly: the question holds the bytes of the span, in which
//!   all that is certain touches every byte, and what is uncertain is narrowed down by its ticket. A host function says all that
//!   it touches of an access, or nothing at all.
//! - *Nothing else is lost by it.* An access hides an earlier one of the same byte only where whatever is not ordered after the
//!   earlier is not ordered after the later either, and surely meets it. Uncertain work may not have touched the byte, so it hides
//!   nothing: it is remembered beside what was there. Work that is certain hides uncertain work as it does any other: if both
//!   touch the byte and are not ordered, that is a question of its own already. So each byte still has the first of its races,
//!   as long as not more than [`UNCERTAIN`](super::shadow::UNCERTAIN) uncertain accesses of it are remembered: then the oldest go.
//!
//! The same is asked of reads: bytes that no certain work has written were never written if none of the uncertain writers says
//! that it was them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_driver::{HostFault, HostKernel, HostLaunch, Touched};

use super::bytes::Bytes;
use super::finding::{Finding, FindingKind};
use super::shadow::Ticket;
use super::site::SiteId;
use super::space::{ObjectId, Pieces};

/// The key by which two findings are one: the kind, and the sites of both, each with the call that it was part of.
pub(super) type Key = (FindingKind, [SiteId; 4]);

/// Some tickets.
pub(super) type Tickets = SmallVec<[Ticket; 2]>;

/// Questions that wait for an answer. Of more than these the oldest counts as one without.
const PENDING: usize = 4096;

/// Accesses that are remembered, and ranges of all of them together. Of more than these the oldest are unknown again.
const ACCESSES: usize = 1 << 16;
const RANGES: usize = 1 << 20;

/// The most pieces that a question is taken apart into; of more it has no answer.
const PIECES: usize = 1 << 16;

/// Sorted ranges that do not meet: the first byte and the end of each.
type Ranges = Vec<(u64, u64)>;

/// The bytes that host functions have named, and that were not taken in yet.
pub(super) type Said = Arc<Mutex<Vec<Touched>>>;

/// A host function that passes on what it says.
pub(super) struct Speaking {
    pub(super) kernel: Arc<dyn HostKernel>,
    pub(super) said: Said,
}

impl HostKernel for Speaking {
    fn run(&self, launch: &HostLaunch<'_>) -> Result<(), HostFault> {
        self.kernel.run(launch)?;
        let mut touched = launch.take_touched();
        if !touched.is_empty() {
            touched.iter_mut().for_each(|touched| unite(&mut touched.parts));
            self.said.lock().unwrap_or_else(PoisonError::into_inner).append(&mut touched);
        }
        Ok(())
    }
}

/// Makes parts (first byte and length) sorted ones that do not touch each other.
fn unite(parts: &mut Vec<(u64, u64)>) {
    parts.retain(|part| part.1 > 0);
    parts.sort_unstable();
    parts.dedup_by(|next, kept| {
        let joins = next.0 <= kept.0.saturating_add(kept.1);
        if joins {
            kept.1 = kept.1.max(next.0.saturating_add(next.1) - kept.0);
        }
        joins
    });
}

/// Bytes of an object of which something is asked.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) object: ObjectId,
    /// By their places in the object.
    pub(super) bytes: Bytes,
    /// The number to add to a place to get its address.
    pub(super) address: u64,
    /// Whether all of these touched a byte of them.
    pub(super) touched: Tickets,
    /// And none of these.
    pub(super) spared: Tickets,
}

/// A finding that is one if there is such a byte in any of the parts.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) key: Key,
    pub(super) finding: Finding,
    pub(super) parts: Vec<Part>,
}

/// The answer to a question.
pub(super) enum Answer {
    /// There are such bytes: the first address and how many.
    Yes(u64, u64),
    No,
    /// It is not known yet.
    Open,
    /// It will not be known.
    Never,
}

/// The bytes of an access with a ticket.
struct Access {
    pieces: Pieces,
    /// Those that it touched, by object, once that is known.
    known: Option<SmallVec<[(ObjectId, Ranges); 1]>>,
}

/// The accesses whose bytes data chooses, and the questions that depend on them.
#[derive(Default)]
pub(super) struct Chosen {
    pub(super) said: Said,
    /// The last ticket that was given.
    last: Ticket,
    accesses: FxHashMap<Ticket, Access>,
    /// Their tickets, the oldest first.
    order: VecDeque<Ticket>,
    /// The number of ranges that are known in all.
    ranges: usize,
    pub(super) pending: VecDeque<Pending>,
    /// The number of those that may be pending until they are looked through again.
    patience: usize,
}

impl Chosen {
    /// Returns the ticket of an access to these pieces, whose bytes will be known.
    pub(super) fn enter(&mut self, pieces: Pieces) -> Ticket {
        self.hear();
        self.last += 1;
        let ticket = self.last;
        self.accesses.insert(ticket, Access { pieces, known: None });
        self.order.push_back(ticket);
        while self.order.len() > ACCESSES || self.ranges > RANGES {
            let Some(oldest) = self.order.pop_front() else { break };
            let known = self.accesses.remove(&oldest).and_then(|access| access.known);
            self.ranges -= known.map_or(0, |known| known.iter().map(|(_, ranges)| ranges.len()).sum());
        }
        ticket
    }

    /// Takes in what host functions have said.
    pub(super) fn hear(&mut self) {
        let said = std::mem::take(&mut *self.said.lock().unwrap_or_else(PoisonError::into_inner));
        for Touched { ticket, parts } in said {
            let Some(access) = self.accesses.get_mut(&ticket) else { continue };
            let mut known: SmallVec<[(ObjectId, Ranges); 1]> = SmallVec::new();
            for piece in &access.pieces {
                let end = piece.address + (piece.end - piece.start);
                let within = parts.iter().filter_map(|&(start, bytes)| {
                    let (start, past) = (start.max(piece.address), start.saturating_add(bytes).min(end));
                    (start < past)
                        .then(|| (start - piece.address + piece.start, past - piece.address + piece.start))
                });
                match known.iter_mut().find(|(object, _)| *object == piece.object) {
                    Some((_, ranges)) => ranges.extend(within),
                    None => known.push((piece.object, within.collect())),
                }
            }
            // Pieces of one object may come in any order.
            known.iter_mut().for_each(|(_, ranges)| ranges.sort_unstable());
            self.ranges += known.iter().map(|(_, ranges)| ranges.len()).sum::<usize>();
            access.known = Some(known);
        }
    }

    /// Adds a question. Returns whether it is time to look for answers.
    pub(super) fn ask(&mut self, pending: Pending) -> bool {
        self.pending.push_back(pending);
        self.pending.len() > self.patience.max(64)
    }

    /// Says how many questions are left: it is time again when there are twice as many.
    pub(super) fn left(&mut self, pending: VecDeque<Pending>) {
        self.patience = (2 * pending.len()).min(PENDING);
        self.pending = pending;
    }

    /// Returns the oldest of too many questions.
    pub(super) fn excess(&mut self) -> Option<Pending> {
        if self.pending.len() > PENDING { self.pending.pop_front() } else { None }
    }

    /// Returns the answer to a question.
    pub(super) fn answer(&self, pending: &Pending) -> Answer {
        let mut is_open = false;
        for ticket in pending.parts.iter().flat_map(|part| part.touched.iter().chain(&part.spared)) {
            match self.accesses.get(ticket) {
                None => return Answer::Never,
                Some(access) => is_open |= access.known.is_none(),
            }
        }
        if is_open {
            return Answer::Open;
        }
        for part in &pending.parts {
            match self.first(part) {
                Ok(Some((start, end))) => return Answer::Yes(start.wrapping_add(part.address), end - start),
                Ok(None) => {}
                Err(TooMany) => return Answer::Never,
            }
        }
        Answer::No
    }

    /// Returns the ranges of an object that an access touched, as far as they meet one.
    fn ranges(&self, ticket: Ticket, object: ObjectId, (start, end): (u64, u64)) -> &[(u64, u64)] {
        let known = self.accesses.get(&ticket).and_then(|access| access.known.as_ref());
        let ranges = known.and_then(|known| known.iter().find(|(other, _)| *other == object));
        let ranges = ranges.map_or(&[][..], |(_, ranges)| ranges);
        let from = ranges.partition_point(|range| range.1 <= start);
        let to = ranges.partition_point(|range| range.0 < end);
        &ranges[from.min(to)..to]
    }

    /// Returns the first bytes of a part that all of `touched` touched and none of `spared`.
    fn first(&self, part: &Part) -> Result<Option<(u64, u64)>, TooMany> {
        let whole = (part.bytes.start, part.bytes.start + part.bytes.reach());
        let of = |ticket: &Ticket| self.ranges(*ticket, part.object, whole);
        let mut wanted = vec![whole];
        for ticket in &part.touched {
            wanted = intersection(&wanted, of(ticket));
        }
        let mut spared: Ranges = part.spared.iter().flat_map(of).copied().collect();
        spared.sort_unstable();
        let (mut found, mut looked) = (None, 0);
        for range in wanted {
            part.bytes.common(range, &mut |start, end| {
                looked += 1;
                found = first_outside((start, end), &spared);
                found.is_none() && looked < PIECES
            });
            if found.is_some() {
                return Ok(found);
            }
            if looked >= PIECES {
                return Err(TooMany);
            }
        }
        Ok(None)
    }
}

/// A question was too long.
struct TooMany;

/// Returns what is in both of two lists of sorted ranges.
fn intersection(a: &[(u64, u64)], b: &[(u64, u64)]) -> Ranges {
    let (mut i, mut j, mut both) = (0, 0, Ranges::new());
    while i < a.len() && j < b.len() {
        let (start, end) = (a[i].0.max(b[j].0), a[i].1.min(b[j].1));
        if start < end {
            both.push((start, end));
        }
        if a[i].1 < b[j].1 {
            i += 1;
        } else {
            j += 1;
        }
    }
    both
}

/// Returns the first bytes of a range that are in none of some ranges, sorted by their beginnings.
fn first_outside((mut start, end): (u64, u64), ranges: &[(u64, u64)]) -> Option<(u64, u64)> {
    for &(from, past) in ranges {
        if from > start {
            return Some((start, end.min(from))).filter(|_| start < end);
        }
        start = start.max(past);
        if start >= end {
            return None;
        }
    }
    Some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_united_intersected_and_subtracted() {
        let mut parts = vec![(8, 4), (0, 4), (4, 0), (4, 2), (10, 1), (20, 4)];
        unite(&mut parts);
        assert_eq!(parts, [(0, 6), (8, 4), (20, 4)]);
        let (a, b) = ([(0, 6), (8, 12), (20, 24)], [(5, 9), (11, 21), (23, 30)]);
        assert_eq!(intersection(&a, &b), [(5, 6), (8, 9), (11, 12), (20, 21), (23, 24)]);
        assert_eq!(intersection(&a, &[]), []);
        assert_eq!(first_outside((0, 8), &[]), Some((0, 8)));
        assert_eq!(first_outside((0, 8), &[(0, 4), (2, 3), (6, 9)]), Some((4, 6)));
        assert_eq!(first_outside((2, 8), &[(0, 4), (4, 8)]), None);
        assert_eq!(first_outside((2, 8), &[(8, 9)]), Some((2, 8)));
        assert_eq!(first_outside((2, 8), &[(9, 12)]), Some((2, 8)));
    }
}
