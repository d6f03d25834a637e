//! Bytes chosen by data: for some accesses, the bytes that they touch are known only when they run.
//!
//! `index_copy_` or `embedding` touches the rows that a tensor of indices names. When such work is submitted the indices are not
//! available yet, so it counts as touching some bytes of its operand: it is *uncertain*. An unordered access to the same bytes
//! may be a race. That is kept here as a [`Pending`] question: is there a byte that both touch? Each such access gets a *ticket*.
//! The host function that does the work reports the bytes under this ticket ([`HostLaunch::touched`]), which answers the
//! question, yes or no. If the work never reports (it never ran, or it runs on a GPU or in a graph), the question stays a
//! possible race.
//!
//! # Why the answers are right
//! - *Every reported race is one.* Both accesses were made in this run, both touch the byte, one writes it, and their clocks,
//!   which do not depend on when anything runs, leave them unordered. If the indices themselves depended on chance, that is
//!   another race, or a race in another run.
//! - *Every dropped question was not a race in this run.* The bytes of both accesses are known exactly: the question has the
//!   bytes of the span, of which certain accesses touch every byte, and uncertain accesses are narrowed down by their tickets. A
//!   host function reports all bytes that it touches of an access, or nothing at all.
//! - *No other race is lost by this.* An access hides an earlier one of the same byte only if everything that is not ordered
//!   after the earlier is not ordered after the later either, and surely conflicts with it. Uncertain work may not have touched
//!   the byte, so it hides nothing: it is remembered in addition to the earlier accesses. Certain work hides uncertain work as it
//!   does any other: if both touch the byte and are not ordered, that is already a question of its own. So the first race of each
//!   byte is found, as long as at most [`UNCERTAIN`](super::shadow::UNCERTAIN) uncertain accesses of it are remembered; beyond
//!   that the oldest are forgotten.
//!
//! Reads are checked in the same way: bytes that no certain work has written were never written if none of the uncertain writers
//! reports them.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_driver::{HostFault, HostKernel, HostLaunch, Touched};
use thalweg_lock::Mutex;

use super::bytes::Bytes;
use super::finding::{Finding, FindingKind};
use super::shadow::Ticket;
use super::site::SiteId;
use super::space::{ObjectId, Pieces};

/// The key that makes findings count as equal: the kind, and for both accesses the site and the call that the access was part of.
pub(super) type Key = (FindingKind, [SiteId; 4]);

/// The tickets of several accesses.
pub(super) type Tickets = SmallVec<[Ticket; 2]>;

/// The maximum number of questions that wait for an answer. Beyond it the oldest counts as unanswered.
const PENDING: usize = 4096;

/// The maximum numbers of accesses that are remembered, and of all their ranges. Beyond them the oldest are forgotten.
const ACCESSES: usize = 1 << 16;
const RANGES: usize = 1 << 20;

/// The maximum number of pieces that are examined for a question; beyond it the question has no answer.
const PIECES: usize = 1 << 16;

/// Sorted, disjoint ranges: the first byte and the end of each.
type Ranges = Vec<(u64, u64)>;

/// The reports of host functions that have not been processed yet.
pub(super) type Said = Arc<Mutex<Vec<Touched>>>;

/// A host function whose reports are passed on.
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
            self.said.lock().append(&mut touched);
        }
        Ok(())
    }
}

/// Sorts parts (first byte and length) and merges those that touch each other.
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

/// The bytes of an object that a question is about.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) object: ObjectId,
    /// The bytes, as offsets in the object.
    pub(super) bytes: Bytes,
    /// The number that is added to an offset to get an address.
    pub(super) address: u64,
    /// The accesses that must all have touched the byte.
    pub(super) touched: Tickets,
    /// The accesses that must not have touched the byte.
    pub(super) spared: Tickets,
}

/// A possible finding. It is certain if one of the parts contains a byte that all accesses in `touched` have touched and none in
/// `spared` has.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) key: Key,
    pub(super) finding: Finding,
    pub(super) parts: Vec<Part>,
}

/// The answer to the question whether a [`Pending`] finding is certain.
pub(super) enum Answer {
    /// The finding is certain: the first address of the bytes that prove it, and their number.
    Yes(u64, u64),
    No,
    /// The answer is not known yet.
    Open,
    /// The answer will never be known.
    Never,
}

/// The bytes of an access with a ticket.
struct Access {
    pieces: Pieces,
    /// The bytes that the access touched, by object, once they are known.
    known: Option<SmallVec<[(ObjectId, Ranges); 1]>>,
}

/// The accesses whose bytes are chosen by data, and the questions that depend on them.
#[derive(Default)]
pub(super) struct Chosen {
    pub(super) said: Said,
    /// The last ticket that was assigned.
    last: Ticket,
    accesses: FxHashMap<Ticket, Access>,
    /// The tickets of the accesses, the oldest first.
    order: VecDeque<Ticket>,
    /// The total number of known ranges.
    ranges: usize,
    pub(super) pending: VecDeque<Pending>,
    /// The number of pending questions at which all questions are examined again.
    patience: usize,
}

impl Chosen {
    /// Returns a ticket for an access to these pieces, whose bytes will be reported.
    pub(super) fn enter(&mut self, pieces: Pieces) -> Ticket {
        self.process_reports();
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

    /// Processes the reports of host functions.
    pub(super) fn process_reports(&mut self) {
        let said = std::mem::take(&mut *self.said.lock());
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
            // The pieces of one object may be in any order.
            known.iter_mut().for_each(|(_, ranges)| ranges.sort_unstable());
            self.ranges += known.iter().map(|(_, ranges)| ranges.len()).sum::<usize>();
            access.known = Some(known);
        }
    }

    /// Adds a question. Returns whether the questions should be examined now.
    pub(super) fn ask(&mut self, pending: Pending) -> bool {
        self.pending.push_back(pending);
        self.pending.len() > self.patience.max(64)
    }

    /// Replaces the pending questions by those that are still open; the next examination is due when there are twice as many.
    pub(super) fn left(&mut self, pending: VecDeque<Pending>) {
        self.patience = (2 * pending.len()).min(PENDING);
        self.pending = pending;
    }

    /// Returns the oldest question if there are too many.
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

    /// Returns the ranges of an object that an access touched and that overlap the given range.
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

/// The error for a question that would require examining too many pieces.
struct TooMany;

/// Returns the intersection of two lists of sorted ranges.
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

/// Returns the first bytes of a range that are outside all of some ranges, which are sorted by their beginnings.
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
