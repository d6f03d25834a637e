//! [`Segment`]: launches in program order, with the memory that each reads and writes.

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_ir::{Body, DType};
use thalweg_ops::Placement;
use thalweg_ops::lower::LoopLaunch;

/// The life of a piece of memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lifetime {
    /// The memory exists already, and remains.
    Existing,
    /// The memory is allocated for the segment, and is read afterwards.
    Kept,
    /// The memory is the segment's own: nothing reads it afterwards.
    Temporary,
}

/// A piece of memory. Two pieces do not overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// The size in bytes.
    pub bytes: u64,
    /// The alignment of its address in bytes: a power of two.
    pub alignment_bytes: u64,
    /// The life of the memory.
    pub lifetime: Lifetime,
}

/// The first element of an operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Operand {
    /// The number of the memory.
    pub memory: u32,
    /// The offset in bytes.
    pub offset: u64,
}

/// A launch with its operands.
#[derive(Clone, Debug)]
pub struct Node {
    /// The launch. Its numbers have no influence on the program, but for whether they are those of another node.
    pub launch: Arc<LoopLaunch>,
    /// The operands that are read, one per input of the body.
    pub inputs: SmallVec<[Operand; 4]>,
    /// The operands that are written, one per output of the body.
    pub outputs: SmallVec<[Operand; 2]>,
    /// The first node of the segment with the same body and the same numbers: the node itself if there is no other.
    pub numbers_of: u32,
}

/// Launches in program order.
#[derive(Clone, Debug, Default)]
pub struct Segment {
    /// The memory, by number.
    pub memories: Vec<Memory>,
    /// The launches.
    pub nodes: Vec<Node>,
}

/// A range of a memory that an operand touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Touched {
    pub memory: u32,
    pub start: u64,
    pub end: u64,
    /// The bytes of the elements.
    pub bytes: u64,
    /// The parts of lines that contain all elements, for the shortest and the longest possible length of a line. Both entries are the
    /// same if only one length is possible; a length of 0 means none.
    lines: [Line; 2],
}

/// A part of each line of a memory that is divided into lines of one length, in bytes. It may wrap around the line's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Line {
    length: u64,
    start: u64,
    width: u64,
}

impl Line {
    fn is_apart(&self, other: &Self) -> bool {
        let to_other =
            |own: &Self, other: &Self| (other.start + own.length - own.start) % own.length >= own.width;
        self.length > 0 && self.length == other.length && to_other(self, other) && to_other(other, self)
    }
}

impl Touched {
    /// Returns whether two ranges may have a byte in common. It never returns `false` for ranges that do, but may return `true` for
    /// ranges that do not.
    pub fn overlaps(&self, other: &Self) -> bool {
        let are_apart =
            || self.lines.iter().any(|line| other.lines.iter().any(|others| line.is_apart(others)));
        self.memory == other.memory && self.start < other.end && other.start < self.end && !are_apart()
    }
}

/// Returns the dtype of each operand of a body: the inputs, then the outputs.
pub(crate) fn dtypes(body: &Body) -> impl Iterator<Item = DType> {
    let inputs = body.inputs.iter().map(|input| input.dtype);
    inputs.chain(body.outputs.iter().map(|output| output.dtype))
}

/// Returns the dimensions, by extent and stride, along which an operand moves: the smallest stride first.
pub(crate) fn walked(dims: impl Iterator<Item = (u64, u64)>) -> SmallVec<[(u64, u64); 6]> {
    let mut walked: SmallVec<_> = dims.filter(|&(extent, stride)| extent > 1 && stride > 0).collect();
    walked.sort_unstable_by_key(|&(extent, stride)| (stride, extent));
    walked
}

/// Returns the range that an operand with a placement touches in a launch.
pub(crate) fn touched(launch: &LoopLaunch, operand: Operand, placement: &Placement, dtype: DType) -> Touched {
    let (memory, start, size) = (operand.memory, operand.offset, dtype.size_bytes() as u64);
    let dims: SmallVec<[(u64, u64); 6]> = match placement {
        Placement::Gathered(elements) => {
            let bytes = elements * size;
            return Touched { memory, start, end: start + bytes, bytes, lines: [Line::default(); 2] };
        }
        Placement::Strided { rows, inner } => {
            // A result of rows has no inner strides, and is written even where a row has no points.
            let rows = launch.rows.iter().zip(rows);
            let dims = rows.chain(launch.inner.iter().zip(inner));
            dims.map(|(&extent, &stride)| (extent as u64, stride * size)).collect()
        }
    };
    if dims.iter().any(|(extent, _)| *extent == 0) {
        return Touched { memory, start, end: start, bytes: 0, lines: [Line::default(); 2] };
    }
    let walked = walked(dims.into_iter());
    let mut lines: SmallVec<[Line; 4]> = SmallVec::new();
    // Longer lines show something new if they leave out more than the shorter ones do.
    let (mut width, mut gap) = (size, 0);
    for (number, &(extent, length)) in walked.iter().enumerate() {
        let is_line = walked[number..].iter().all(|(_, stride)| stride.is_multiple_of(length));
        if is_line && width + gap < length {
            lines.push(Line { length, start: start % length, width });
            gap = length - width;
        }
        width += (extent - 1) * length;
    }
    let ends = [lines.first(), lines.last()].map(|line| line.copied().unwrap_or_default());
    let bytes = walked.iter().fold(size, |bytes, (extent, _)| bytes.saturating_mul(*extent)).min(width);
    Touched { memory, start, end: start + width, bytes, lines: ends }
}

impl Node {
    /// Returns the ranges that the launch touches: those of the inputs, then those of the outputs.
    pub(crate) fn touched(&self) -> SmallVec<[Touched; 8]> {
        let operands = self.inputs.iter().chain(&self.outputs);
        (operands.zip(&self.launch.placements).zip(dtypes(&self.launch.body)))
            .map(|((&operand, placement), dtype)| touched(&self.launch, operand, placement, dtype))
            .collect()
    }
}
