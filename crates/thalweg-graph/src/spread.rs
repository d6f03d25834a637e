//! Loops that are computed again in each loop that reads their result, where that moves fewer bytes than storing it.
//!
//! A value that is widened for several readers, as numbers of 16 bits are for a norm and for what is multiplied with it, is stored with
//! twice the bytes that it is made of. Where each reader widens it itself, nothing is stored. The same holds for other values that cost
//! little, such as a sum of gradients that sums of rows and of columns read: one reader more reads what they are made of, but none of
//! them is written ([`Reach`]).
//!
//! # Invariants
//! - What a copy reads is unchanged until its reader runs, so the copy computes the same elements.
//! - A loop that draws, reports, combines or reads coordinates is not copied.

use smallvec::SmallVec;

use crate::grouping::{Apart, grouped};
use crate::loops::{Loop, is_cheap};
use crate::machine::Machine;
use crate::parts::{Changed, is_divisible};
use crate::segment::{Lifetime, Memory, Node, Operand, Segment, Touched};

/// The most loops that read a result, and the most nodes that copies add to a segment.
const MOST_READERS: usize = 6;
const MOST_ADDED: usize = 64;

/// The loops that are copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// Those that read less than they write.
    Widened,
    /// Those that read less than twice what they write, and compute little.
    Cheap,
}

/// A node of the segment, or a copy of one.
struct Piece {
    origin: u32,
    node: Node,
    touched: SmallVec<[Touched; 8]>,
}

impl Piece {
    fn new(origin: u32, node: Node) -> Self {
        Self { origin, touched: node.touched(), node }
    }

    fn reads(&self) -> &[Touched] {
        &self.touched[..self.node.inputs.len()]
    }

    fn writes(&self) -> &[Touched] {
        &self.touched[self.node.inputs.len()..]
    }

    fn reads_memory(&self, memory: u32) -> bool {
        self.node.inputs.iter().any(|input| input.memory == memory)
    }
}

/// The most times that a segment is grouped to find the copies that become part of their readers.
const MOST_TRIALS: usize = 3;

/// A segment whose loops were changed, and its loops as they are fused.
pub(crate) struct Variant {
    pub changed: Changed,
    pub loops: Vec<Loop>,
    pub apart: Vec<Apart>,
}

/// Returns the segment with copies that all become part of their readers; `None` if there are none.
pub(crate) fn spread(segment: &Segment, live: &[u32], reach: Reach, machine: &Machine) -> Option<Variant> {
    let first = segment.memories.len() as u32;
    let mut left: Vec<u32> = Vec::new();
    for _ in 0..MOST_TRIALS {
        let (changed, origins) = copied(segment, live, reach, &left)?;
        // Copies wait for their readers, rather than join others that read the same. So does what only others read.
        let waits = |number: u32| {
            let node = &changed.segment.nodes[number as usize];
            let is_copy = node.outputs.iter().any(|output| output.memory >= first);
            is_copy || reach == Reach::Cheap && is_between(node, &changed.segment)
        };
        let (loops, apart) = grouped(&changed.segment, changed.live.clone(), waits, machine);
        let touched = loops.iter().flat_map(|of| &of.touched);
        // A copy that does not become part of its reader stores what it was to save.
        let stored = touched.filter_map(|touched| touched.memory.checked_sub(first));
        let stored: Vec<u32> = stored.map(|copy| origins[copy as usize]).collect();
        if stored.is_empty() {
            return Some(Variant { changed, loops, apart });
        }
        left.extend(stored);
    }
    None
}

/// Returns whether a loop of points computes only what other loops read.
fn is_between(node: &Node, segment: &Segment) -> bool {
    let is_own = |output: &Operand| segment.memories[output.memory as usize].lifetime == Lifetime::Temporary;
    is_divisible(&node.launch) && node.outputs.iter().all(is_own)
}

/// Returns the segment with a copy of each such loop, but for some, before each of its readers, and the node of which each copy is one.
/// The results of copies are memories after those of the segment. Returns `None` if there are no copies.
fn copied(segment: &Segment, live: &[u32], reach: Reach, left: &[u32]) -> Option<(Changed, Vec<u32>)> {
    let mut copies = Vec::new();
    let mut pieces: Vec<Piece> =
        live.iter().map(|&number| Piece::new(number, segment.nodes[number as usize].clone())).collect();
    let mut memories = segment.memories.clone();
    // The last ones first, so that what their copies read is copied in turn.
    for place in (0..pieces.len()).rev() {
        let origin = pieces[place].origin;
        let found = readers(&pieces, &memories, place, reach);
        let Some(readers) = found.filter(|_| !left.contains(&origin)) else { continue };
        if pieces.len() + readers.len() > live.len() + MOST_ADDED {
            break;
        }
        for &reader in readers.iter().rev() {
            let (copy, own) = (pieces[place].node.clone(), memories.len() as u32);
            let former = copy.outputs[0].memory;
            memories.push(Memory { lifetime: Lifetime::Temporary, ..memories[former as usize] });
            copies.push(origin);
            let mut changed = pieces[reader].node.clone();
            for input in changed.inputs.iter_mut().filter(|input| input.memory == former) {
                input.memory = own;
            }
            pieces[reader] = Piece::new(pieces[reader].origin, changed);
            let outputs = SmallVec::from_slice(&[Operand { memory: own, ..copy.outputs[0] }]);
            pieces.insert(reader, Piece::new(origin, Node { outputs, ..copy }));
        }
        pieces.remove(place);
    }
    if memories.len() == segment.memories.len() {
        return None;
    }
    let pieces = pieces.into_iter().map(|piece| (piece.origin, piece.node));
    Some((Changed::of(memories, pieces), copies))
}

/// Returns the places of the loops that read the result of the loop at a place, if copies of it may be computed there instead.
fn readers(pieces: &[Piece], memories: &[Memory], place: usize, reach: Reach) -> Option<Vec<usize>> {
    let piece = &pieces[place];
    let [output] = piece.node.outputs.as_slice() else { return None };
    let bytes = |ranges: &[Touched]| ranges.iter().map(|range| range.bytes).sum::<u64>();
    let is_own = memories[output.memory as usize].lifetime == Lifetime::Temporary;
    let (read, written) = (bytes(piece.reads()), bytes(piece.writes()));
    let is_in_reach = match reach {
        Reach::Widened => read < written,
        Reach::Cheap => read < 2 * written && is_cheap(&piece.node.launch),
    };
    if !is_own || !is_in_reach || !is_divisible(&piece.node.launch) {
        return None;
    }
    let writes = |other: &Piece, memory: u32| other.writes().iter().any(|write| write.memory == memory);
    let is_written_once = (0..).zip(pieces).all(|(at, other)| at == place || !writes(other, output.memory));
    let readers: Vec<usize> =
        (0..pieces.len()).filter(|&at| pieces[at].reads_memory(output.memory)).collect();
    let last = *readers.last()?;
    let is_unchanged = pieces[place..last].iter().all(|other| {
        other.writes().iter().all(|write| !piece.reads().iter().any(|read| read.overlaps(write)))
    });
    let is_read_later = readers.first().is_some_and(|&first| first > place);
    let is_of_use = (2..=MOST_READERS).contains(&readers.len());
    (is_written_once && is_read_later && is_unchanged && is_of_use).then_some(readers)
}
