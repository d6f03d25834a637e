//! [`Taken`]: loops that have waited and are to run, as a segment.

use std::sync::Arc;

use thalweg_execute::alignment_of;
use thalweg_graph::{Lifetime, Memory, Node, Segment};
use thalweg_ir::{DType, Node as Expression};
use thalweg_ops::lower::LoopLaunch;
use thalweg_runtime::Stream;

use super::waiters::{Known, Waiting};
use super::window::Deferral;
use crate::storage::Storage;

/// Loops that have waited and are to run. The numbers of their memories are those of the segment: by first use.
#[derive(Default)]
pub(super) struct Taken {
    pub stream: Option<Stream>,
    pub loops: Vec<Waiting>,
    pub memories: Vec<Known>,
    /// For each loop, the first one with the same body and the same numbers.
    numbers_of: Vec<u32>,
    /// Numbers that determine the loops.
    pub key: Vec<u64>,
}

/// A loop that widens the numbers of a memory.
pub(super) struct Widening {
    number: usize,
    source: u32,
    /// The memory of the result.
    result: u32,
}

impl Taken {
    /// Returns no loops of a stream, with room for `count`.
    pub fn on(stream: Option<Stream>, count: usize) -> Self {
        Self {
            stream,
            loops: Vec::with_capacity(count),
            memories: Vec::with_capacity(4 * count),
            numbers_of: Vec::with_capacity(count),
            // A launch, and four operands with their offsets and memories.
            key: Vec::with_capacity(20 * count),
        }
    }

    /// Adds a memory. Returns its number.
    pub fn memory(&mut self, known: Known) -> u32 {
        self.memories.push(known);
        self.memories.len() as u32 - 1
    }

    /// Adds a loop with the numbers of its memories.
    pub fn add(&mut self, waiting: Waiting) {
        self.key.push(waiting.launch.number);
        for operand in waiting.inputs.iter().chain(&waiting.outputs) {
            self.key.extend_from_slice(&[u64::from(operand.memory), operand.offset]);
        }
        let mut first = self.loops.len();
        if !waiting.numbers.is_empty() {
            let id = waiting.launch.launch.id;
            let is_alike = |other: &Waiting| other.launch.launch.id == id && other.numbers == waiting.numbers;
            first = self.loops.iter().position(is_alike).unwrap_or(first);
            self.key.push(first as u64);
        }
        self.numbers_of.push(first as u32);
        self.loops.push(waiting);
    }

    /// Returns the segment's memory, and completes the key by what it is. `alive` has the storages that are alive.
    pub fn memory_of_segment(&mut self, alive: &[Option<Arc<Storage>>]) -> Vec<Memory> {
        let memories: Vec<Memory> = (self.memories.iter().zip(alive))
            .map(|(known, alive)| match *known {
                Known::Existing { pointer, .. } => Memory {
                    bytes: 0,
                    alignment_bytes: alignment_of([pointer]),
                    lifetime: Lifetime::Existing,
                },
                Known::Pending { bytes, .. } => {
                    let lifetime = if alive.is_some() { Lifetime::Kept } else { Lifetime::Temporary };
                    Memory { bytes, alignment_bytes: 256, lifetime }
                }
            })
            .collect();
        for memory in &memories {
            self.key.extend_from_slice(&[memory.bytes, memory.alignment_bytes << 8 | memory.lifetime as u64]);
        }
        memories
    }

    /// Returns the segment with this memory.
    pub fn segment(&self, memories: Vec<Memory>) -> Segment {
        let node = |(waiting, &numbers_of): (&Waiting, &u32)| Node {
            launch: Arc::clone(&waiting.launch.launch),
            inputs: waiting.inputs.clone(),
            outputs: waiting.outputs.clone(),
            numbers_of,
        };
        Segment { memories, nodes: self.loops.iter().zip(&self.numbers_of).map(node).collect() }
    }

    /// Returns the loops that widen numbers exactly (`float` of a 16-bit tensor) from memory that only waiting loops hold, so that
    /// nothing can change it, into a result that is larger, is alive, and is not written otherwise.
    pub fn widening(&self, alive: &[Option<Arc<Storage>>]) -> Vec<Widening> {
        let writes = |memory: u32| {
            let outputs = self.loops.iter().flat_map(|waiting| &waiting.outputs);
            outputs.filter(|output| output.memory == memory).count()
        };
        let of = |(number, waiting): (usize, &Waiting)| {
            let ([input], [output]) = (waiting.inputs.as_slice(), waiting.outputs.as_slice()) else {
                return None;
            };
            let (source, result) = (input.memory, output.memory);
            let Known::Existing { holder: Some(holder), bytes, .. } = &self.memories[source as usize] else {
                return None;
            };
            let Known::Pending { bytes: wide, .. } = &self.memories[result as usize] else { return None };
            let is_safe = holder.is_alone() && writes(source) == 0 && writes(result) == 1;
            let is_kept = alive[result as usize].is_some() && wide > bytes;
            (is_safe && is_kept && is_widening(&waiting.launch.launch)).then_some(Widening {
                number,
                source,
                result,
            })
        };
        self.loops.iter().enumerate().filter_map(of).collect()
    }

    /// Returns a widening loop for the next window.
    pub fn again(
        &self,
        widening: &Widening,
        stream: &Stream,
        alive: &[Option<Arc<Storage>>],
    ) -> Option<(u32, Vec<Deferral>)> {
        let waiting = &self.loops[widening.number];
        let Known::Existing { holder: Some(holder), .. } = &self.memories[widening.source as usize] else {
            return None;
        };
        let read = (Arc::clone(holder.storage()), waiting.inputs[0].offset);
        let written = (alive[widening.result as usize].clone()?, waiting.outputs[0].offset);
        let deferral = Deferral {
            launch: Arc::clone(&waiting.launch),
            numbers: waiting.numbers.clone(),
            read: std::iter::once(read).collect(),
            written: std::iter::once(written).collect(),
            stream: stream.clone(),
            label: waiting.label,
        };
        Some((widening.result, vec![deferral]))
    }
}

/// Returns whether a loop only casts numbers to a dtype that has all of them.
fn is_widening(launch: &LoopLaunch) -> bool {
    let body = &launch.body;
    let ([input], [output]) = (body.inputs.as_slice(), body.outputs.as_slice()) else { return false };
    let mut value = body.nodes[output.value.index()];
    while let Expression::Cast(id) = value {
        value = body.nodes[id.index()];
    }
    let is_exact = matches!(
        (input.dtype, output.dtype),
        (DType::F16 | DType::Bf16, DType::F32 | DType::F64) | (DType::F32, DType::F64)
    );
    let is_load = matches!(value, Expression::Load { .. });
    let casts_are_wide =
        body.dtypes.iter().all(|&dtype| dtype == input.dtype || dtype == output.dtype || dtype == DType::F32);
    is_exact
        && is_load
        && casts_are_wide
        && output.scatter.is_none()
        && body.reductions.is_empty()
        && body.report.is_none()
}
