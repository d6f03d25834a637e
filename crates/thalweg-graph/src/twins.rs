//! Common subexpressions: a node that repeats the computation of an earlier one is left out, and its readers read the earlier result.

use smallvec::SmallVec;

use crate::segment::{Lifetime, Node, Operand, Segment, Touched};

/// Removes nodes that compute again what memory of an earlier node still contains, if nothing but later nodes reads them. Returns the
/// pairs: the earlier node, and the one that is removed.
pub(crate) fn join_twins(segment: &mut Segment, live: &mut Vec<u32>) -> Vec<(u32, u32)> {
    let keys: Vec<_> = segment.nodes.iter().map(|node| node.launch.key(0)).collect();
    let mut pairs: Vec<(u32, u32)> = Vec::new();
    for place in 0..live.len() {
        let number = live[place];
        let is_alike = |earlier: &u32| {
            let [first, second] = [*earlier, number].map(|node| &segment.nodes[node as usize]);
            let has_numbers = !first.launch.body.scalars.is_empty();
            first.inputs == second.inputs
                && keys[*earlier as usize] == keys[number as usize]
                && (!has_numbers || first.numbers_of == second.numbers_of)
                && !pairs.iter().any(|(_, removed)| removed == earlier)
        };
        let mut candidates = live[..place].iter().copied().filter(is_alike);
        if let Some(earlier) = candidates.find(|&earlier| is_repeated(segment, live, earlier, number)) {
            read_instead(segment, earlier, number);
            pairs.push((earlier, number));
        }
    }
    live.retain(|number| !pairs.iter().any(|(_, removed)| removed == number));
    pairs
}

/// Returns whether a node computes exactly what an earlier one did, in memory of its own that has no other use.
fn is_repeated(segment: &Segment, live: &[u32], earlier: u32, number: u32) -> bool {
    let (first, second) = (&segment.nodes[earlier as usize], &segment.nodes[number as usize]);
    let body = &first.launch.body;
    if body.report.is_some() || body.outputs.iter().any(|output| output.scatter.is_some()) {
        return false;
    }
    let touched = first.touched();
    let (reads, writes) = touched.split_at(first.inputs.len());
    let is_overwritten = |ranges: &[Touched], from: u32, to: u32| {
        let later = live.iter().filter(|&&node| node >= from && node < to && node != earlier);
        later
            .flat_map(|&node| written(&segment.nodes[node as usize]))
            .any(|write| ranges.iter().any(|range| range.overlaps(&write)))
    };
    let is_in_place = writes.iter().any(|write| reads.iter().any(|read| read.overlaps(write)));
    if is_in_place || is_overwritten(reads, earlier, number) || is_overwritten(writes, earlier, u32::MAX) {
        return false;
    }
    first.outputs.iter().zip(&second.outputs).all(|(own, other)| {
        let [one, two] = [own, other].map(|operand| &segment.memories[operand.memory as usize]);
        let has_other_use = live.iter().filter(|&&node| node != number).any(|&node| {
            let is_before = node < number && uses(&segment.nodes[node as usize], other.memory);
            is_before || written(&segment.nodes[node as usize]).any(|write| write.memory == other.memory)
        });
        two.lifetime == Lifetime::Temporary
            && own.offset == other.offset
            && (one.lifetime == Lifetime::Existing || one.bytes == two.bytes)
            && one.alignment_bytes >= two.alignment_bytes
            && !has_other_use
    })
}

fn written(node: &Node) -> impl Iterator<Item = Touched> + '_ {
    node.touched().into_iter().skip(node.inputs.len())
}

fn uses(node: &Node, memory: u32) -> bool {
    node.inputs.iter().chain(&node.outputs).any(|operand| operand.memory == memory)
}

/// Makes later nodes read the results of an earlier node instead of those of a node.
fn read_instead(segment: &mut Segment, earlier: u32, number: u32) {
    let outputs = |node: u32| -> SmallVec<[Operand; 2]> { segment.nodes[node as usize].outputs.clone() };
    let (own, others) = (outputs(earlier), outputs(number));
    for node in &mut segment.nodes[number as usize + 1..] {
        for input in &mut node.inputs {
            if let Some(place) = others.iter().position(|other| other.memory == input.memory) {
                input.memory = own[place].memory;
            }
        }
    }
}
