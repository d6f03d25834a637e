//! Division of a launch into parts of rows that write disjoint memory, so that threads can share it.

use super::HostProgram;
use crate::kernel::{Geometry, OperandGeometry};

/// The rows of a launch whose coordinate in one dimension is in a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The row dimension.
    pub dimension: usize,
    /// The first coordinate.
    pub first: u64,
    /// The number of coordinates.
    pub count: u64,
}

impl Part {
    /// Returns the geometry of the part, whose operands start [`offset`](Self::offset) elements after those of the complete
    /// launch.
    #[must_use]
    pub fn geometry(&self, whole: &Geometry) -> Geometry {
        let mut geometry = whole.clone();
        geometry.row_shape[self.dimension] = self.count;
        geometry
    }

    /// Returns how many elements of an operand precede the part's first; 0 if data choose the elements.
    #[must_use]
    pub fn offset(&self, whole: &Geometry, operand: usize) -> u64 {
        match &whole.operands[operand] {
            OperandGeometry::Gathered { .. } => 0,
            OperandGeometry::Strided { row_strides, .. } => self.first * row_strides[self.dimension],
        }
    }
}

impl HostProgram {
    /// Divides a launch into at most `most` parts, whose outputs are disjoint ranges of memory. Each part has at least `least`
    /// elements to compute, counted once per step of the program. Returns `None` if there would be fewer than two.
    #[must_use]
    pub fn parts(&self, geometry: &Geometry, least: u64, most: u64) -> Option<Vec<Part>> {
        let wanted = (self.work(geometry) / least).min(most);
        if wanted < 2 {
            return None;
        }
        let (dimension, extent) = self.dimension_of_parts(geometry)?;
        let wanted = wanted.min(extent);
        let bound = |part: u64| extent / wanted * part + part.min(extent % wanted);
        let part = |at| Part { dimension, first: bound(at), count: bound(at + 1) - bound(at) };
        (wanted > 1).then(|| (0..wanted).map(part).collect())
    }

    /// Returns the number of elements that a launch computes, counted once per step of the program.
    #[must_use]
    pub fn work(&self, geometry: &Geometry) -> u64 {
        let of_phase =
            |phase: &super::program::Phase| phase.row.len() + phase.spread.len() + phase.point.len();
        let steps: usize = self.0.phases.iter().map(of_phase).sum();
        geometry.rows().saturating_mul(geometry.points()).saturating_mul(steps as u64)
    }

    /// Returns the longest row dimension in which every output's elements of one coordinate precede those of the next, and its
    /// extent.
    fn dimension_of_parts(&self, geometry: &Geometry) -> Option<(usize, u64)> {
        let last = |shape: &[u64], strides: &[u64]| -> u64 {
            shape.iter().zip(strides).map(|(&extent, &stride)| (extent.max(1) - 1) * stride).sum()
        };
        let lies_apart = |dimension: usize, operand: &OperandGeometry| match operand {
            OperandGeometry::Gathered { .. } => false,
            OperandGeometry::Strided { row_strides, inner_strides } => {
                let own = (geometry.row_shape[dimension] - 1) * row_strides[dimension];
                let others = last(&geometry.row_shape, row_strides) - own;
                row_strides[dimension] > others + last(&geometry.inner_shape, inner_strides)
            }
        };
        let outputs = &geometry.operands[self.0.inputs.len()..];
        (0..geometry.row_shape.len())
            .filter(|&dimension| outputs.iter().all(|output| lies_apart(dimension, output)))
            .map(|dimension| (dimension, geometry.row_shape[dimension]))
            .max_by_key(|&(_, extent)| extent)
    }
}
