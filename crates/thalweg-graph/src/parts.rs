//! Parts of loops: a loop of points is divided where other loops read or write a part of what it writes or reads.
//!
//! `cat` writes each of its inputs into a part of its result, and `chunk` reads the parts of one. A loop over the whole then has other points
//! than those of the parts, and is not fused with any of them. Divided at their ends, it is one loop for each part, which is.
//!
//! # Invariants
//! - The loops of the parts together compute what the whole did, point by point: a loop that combines, draws or reads coordinates is not
//!   divided.

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_ir::{DType, InputKind, OutputPlace};
use thalweg_ops::Placement;
use thalweg_ops::lower::LoopLaunch;

use crate::loops::{canonical, strides};
use crate::segment::{Lifetime, Memory, Node, Operand, Segment, Touched, dtypes, walked};

/// The most parts of a loop by one division, and the most nodes that divisions add to a segment.
const MOST_PARTS: usize = 4;
const MOST_ADDED: usize = 64;

/// A segment with loops that are divided, or copied.
pub(crate) struct Changed {
    pub segment: Segment,
    pub live: Vec<u32>,
    /// The node of the former segment of which each node is a part, or a copy.
    pub origins: Vec<u32>,
}

impl Changed {
    /// Returns the segment of these nodes, each with its origin.
    pub fn of(memories: Vec<Memory>, pieces: impl Iterator<Item = (u32, Node)>) -> Self {
        let (origins, mut nodes): (Vec<u32>, Vec<Node>) = pieces.unzip();
        let first_of = |number: u32| origins.iter().position(|origin| *origin == number);
        for (number, node) in nodes.iter_mut().enumerate() {
            node.numbers_of = first_of(node.numbers_of).map_or(number as u32, |first| first as u32);
        }
        let segment = Segment { memories, nodes };
        // A part may be one that nothing reads.
        Self { live: crate::grouping::live(&segment), segment, origins }
    }
}

/// A division of one dimension of a loop into three nested ones: the outer one, the one that is cut into parts, and the inner one.
#[derive(Clone, Debug)]
struct Cut {
    /// The number of the row dimension.
    dimension: usize,
    /// The extents of the second and of the third of its parts.
    middle: u64,
    inner: u64,
    /// The places where it is cut, in order, without both ends.
    places: SmallVec<[u64; 4]>,
}

/// A sequence of elements in a memory at equal distances.
#[derive(Clone, Copy, Debug)]
struct Range {
    /// The distance from a step to the next, and from the first of some steps to the first of the following ones, in elements.
    step: u64,
    period: u64,
    count: u64,
}

/// A node of the segment, or a part of a node.
struct Piece {
    origin: u32,
    node: Node,
    touched: SmallVec<[Touched; 8]>,
    is_divisible: bool,
}

impl Piece {
    fn new(origin: u32, node: Node) -> Self {
        let is_divisible = is_divisible(&node.launch) && !node.launch.rows.contains(&0);
        Self { origin, touched: node.touched(), is_divisible, node }
    }

    /// Returns the operands: the inputs, then the outputs.
    fn operands(&self) -> impl Iterator<Item = (Operand, &Touched, DType)> {
        let operands = self.node.inputs.iter().chain(&self.node.outputs).copied();
        operands
            .zip(&self.touched)
            .zip(dtypes(&self.node.launch.body))
            .map(|((operand, touched), dtype)| (operand, touched, dtype))
    }
}

/// Returns the segment with its loops divided; `None` if no loop is.
pub(crate) fn divided(segment: &Segment, live: &[u32]) -> Option<Changed> {
    let mut in_parts = memories_in_parts(segment, live);
    if !in_parts.contains(&true) {
        return None;
    }
    let mut nodes: Vec<Piece> = (live.iter())
        .map(|&number| {
            let node = &segment.nodes[number as usize];
            let launch = if is_divisible(&node.launch) {
                Arc::new(canonical(&node.launch))
            } else {
                Arc::clone(&node.launch)
            };
            Piece::new(number, Node { launch, ..node.clone() })
        })
        .collect();
    let mut place = 0;
    let mut is_divided = false;
    // A part may end where another loop is to be divided in turn: that one is looked at again.
    let mut unchanged = 0;
    while unchanged < nodes.len() && nodes.len() < live.len() + MOST_ADDED {
        match cut(&in_parts, &nodes, place) {
            Some(cut) => {
                // What the loop reads and writes is now touched in parts, too.
                for (operand, ..) in nodes[place].operands() {
                    in_parts[operand.memory as usize] |= is_own(segment, operand.memory as usize);
                }
                let Piece { origin, node, .. } = &nodes[place];
                let parts: Vec<Piece> =
                    parts(node, &cut).into_iter().map(|part| Piece::new(*origin, part)).collect();
                nodes.splice(place..=place, parts);
                (is_divided, unchanged) = (true, 0);
            }
            None => {
                unchanged += 1;
                place = (place + 1) % nodes.len();
            }
        }
    }
    if !is_divided {
        return None;
    }
    let pieces = nodes.into_iter().map(|piece| (piece.origin, piece.node));
    Some(Changed::of(segment.memories.clone(), pieces))
}

/// Returns whether a loop computes each point independently of others, from operands that it reads and writes point by point.
pub(crate) fn is_divisible(launch: &LoopLaunch) -> bool {
    let body = &launch.body;
    body.reductions.is_empty()
        && body.report.is_none()
        && !body.uses_coordinates()
        && !body.draws()
        && body.inputs.iter().all(|input| input.kind == InputKind::Strided)
        && body.outputs.iter().all(|output| {
            output.scatter.is_none() && (launch.inner.is_empty() || output.place == OutputPlace::Point)
        })
}

/// Returns, for each memory, whether the segment writes it and not all of its loops touch the same elements of it.
fn memories_in_parts(segment: &Segment, live: &[u32]) -> Vec<bool> {
    let mut known: Vec<Option<(Touched, bool)>> = vec![None; segment.memories.len()];
    let mut differs = vec![false; segment.memories.len()];
    for &number in live {
        let node = &segment.nodes[number as usize];
        for (at, touched) in node.touched().into_iter().enumerate() {
            let memory = touched.memory as usize;
            let (first, is_written) = known[memory].get_or_insert((touched, false));
            *is_written |= at >= node.inputs.len();
            differs[memory] |=
                (first.start, first.end, first.bytes) != (touched.start, touched.end, touched.bytes);
        }
    }
    let is_own = (0..segment.memories.len()).map(|memory| is_own(segment, memory));
    let is_written = known.iter().map(|known| known.is_some_and(|(_, is_written)| is_written));
    differs
        .into_iter()
        .zip(is_own)
        .zip(is_written)
        .map(|((differs, own), written)| differs && own && written)
        .collect()
}

/// Returns whether a memory is allocated for the segment.
fn is_own(segment: &Segment, memory: usize) -> bool {
    segment.memories[memory].lifetime != Lifetime::Existing
}

/// Returns where a node is to be divided, if anywhere.
fn cut(in_parts: &[bool], nodes: &[Piece], place: usize) -> Option<Cut> {
    let piece = &nodes[place];
    if !piece.is_divisible {
        return None;
    }
    for (number, (operand, own, dtype)) in piece.operands().enumerate() {
        if !in_parts[operand.memory as usize] {
            continue;
        }
        let mut cut: Option<Cut> = None;
        for (_, other) in nodes.iter().enumerate().filter(|(other, _)| *other != place) {
            for (at, (other_operand, touched, other_dtype)) in other.operands().enumerate() {
                let is_written = number >= piece.node.inputs.len() || at >= other.node.inputs.len();
                if !is_written || other_dtype.size_bytes() != dtype.size_bytes() || !touched.overlaps(own) {
                    continue;
                }
                let size = dtype.size_bytes() as u64;
                for range in ranges(&other.node.launch, at) {
                    if let Some(found) = cut_at(&piece.node, number, (operand, other_operand), range, size) {
                        add(&mut cut, found);
                    }
                }
            }
        }
        if let Some(cut) = cut.filter(|cut| cut.places.len() < MOST_PARTS) {
            return Some(cut);
        }
    }
    None
}

/// Adds the places of a cut to those of another one of the same dimension.
fn add(cut: &mut Option<Cut>, found: Cut) {
    match cut {
        None => *cut = Some(found),
        Some(cut)
            if (cut.dimension, cut.middle, cut.inner) == (found.dimension, found.middle, found.inner) =>
        {
            cut.places.extend(found.places);
            cut.places.sort_unstable();
            cut.places.dedup();
        }
        Some(_) => {}
    }
}

/// Returns the ranges of a memory's dimensions that an operand of a launch has, where these are not whole as far as the launch shows: at the
/// largest distance any range may be one.
fn ranges(launch: &LoopLaunch, number: usize) -> SmallVec<[Range; 4]> {
    let Some(strides) = strides(launch, number) else { return SmallVec::new() };
    let extents = launch.rows.iter().chain(&launch.inner).map(|&extent| extent as u64);
    // Neighbours that are traversed like one.
    let mut merged: SmallVec<[(u64, u64); 6]> = SmallVec::new();
    for (extent, stride) in walked(extents.zip(strides)) {
        match merged.last_mut() {
            Some((step, count)) if *step * *count == stride => *count *= extent,
            _ => merged.push((stride, extent)),
        }
    }
    let outer = merged.iter().skip(1).map(|(stride, _)| *stride).chain([u64::MAX]);
    merged.iter().zip(outer).map(|(&(step, count), period)| Range { step, period, count }).collect()
}

/// Returns the division of a node so that the part of an operand that another operand shows is one of the parts. `None` if it is one already,
/// or the dimensions do not fit each other.
fn cut_at(
    node: &Node,
    number: usize,
    (own, other): (Operand, Operand),
    range: Range,
    size: u64,
) -> Option<Cut> {
    let strides = strides(&node.launch, number)?;
    let distance = i128::from(other.offset) - i128::from(own.offset);
    let extents = node.launch.rows.iter().map(|&extent| extent as u64);
    for (dimension, (extent, stride)) in extents.zip(strides).enumerate() {
        if stride == 0 || extent == 1 || !range.step.is_multiple_of(stride) {
            continue;
        }
        // The steps of the other operand within this dimension, or within the part of it that repeats.
        let inner = range.step / stride;
        let whole = extent.checked_mul(stride)?;
        let period = if range.period == u64::MAX { whole } else { range.period.min(whole) };
        if period % range.step != 0 || whole % period != 0 || !extent.is_multiple_of(inner) {
            continue;
        }
        let middle = period / range.step;
        // The first step of the other operand, among those of this dimension.
        let first = distance.rem_euclid(i128::from(period) * i128::from(size));
        let step_bytes = i128::from(range.step) * i128::from(size);
        let is_aligned = first % step_bytes == 0;
        let from = (first / step_bytes) as u64;
        let to = from + range.count;
        let is_inside = range.period != u64::MAX
            || distance >= 0
            || distance % (i128::from(period) * i128::from(size)) == 0;
        if !is_aligned || !is_inside || to > middle || middle == 1 {
            continue;
        }
        let places: SmallVec<[u64; 4]> =
            [from, to].into_iter().filter(|&place| place > 0 && place < middle).collect();
        if !places.is_empty() {
            return Some(Cut { dimension, middle, inner, places });
        }
    }
    None
}

/// Returns the loops of a node's parts.
fn parts(node: &Node, cut: &Cut) -> Vec<Node> {
    let ends = cut.places.iter().copied().chain([cut.middle]);
    let mut from = 0;
    let sizes: SmallVec<[u64; 8]> =
        dtypes(&node.launch.body).map(|dtype| dtype.size_bytes() as u64).collect();
    let mut parts = Vec::new();
    for to in ends {
        let extent = node.launch.rows[cut.dimension] as u64;
        let outer = extent / (cut.middle * cut.inner);
        let mut launch = LoopLaunch::clone(&node.launch);
        let divided: [usize; 3] = [outer as usize, (to - from) as usize, cut.inner as usize];
        launch.rows.remove(cut.dimension);
        launch.rows.insert_many(cut.dimension, divided);
        let mut offsets: SmallVec<[u64; 8]> = SmallVec::new();
        for (placement, size) in launch.placements.iter_mut().zip(&sizes) {
            let Placement::Strided { rows, .. } = placement else {
                unreachable!("all operands follow the points")
            };
            let stride = rows.remove(cut.dimension);
            rows.insert_many(cut.dimension, [stride * cut.middle * cut.inner, stride * cut.inner, stride]);
            offsets.push(from * stride * cut.inner * size);
        }
        let mut moved = node
            .inputs
            .iter()
            .chain(&node.outputs)
            .zip(offsets)
            .map(|(operand, offset)| Operand { offset: operand.offset + offset, ..*operand });
        let inputs = moved.by_ref().take(node.inputs.len()).collect();
        let outputs = moved.collect();
        parts.push(Node {
            launch: Arc::new(canonical(&launch)),
            inputs,
            outputs,
            numbers_of: node.numbers_of,
        });
        from = to;
    }
    parts
}
