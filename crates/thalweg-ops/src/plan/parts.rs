//! Division of few long rows into parts.

use smallvec::SmallVec;
use thalweg_ir::{Body, Dimensions};

use super::{Iteration, Placement, merge, strided};
use crate::stages::Stages;

/// The number of rows that fill a GPU without being divided into parts.
const MANY_ROWS: u64 = 1024;

/// The least number of rows that are read faster once with few blocks than several times with all.
const SEVERAL_ROWS: u64 = 64;

/// The fewest points of a row for which another launch pays.
const LONG_ROW: u64 = 1 << 16;

/// The number of points of a part.
const PART: u64 = 4096;

/// The number of columns that a block handles.
const COLUMNS: u64 = 256;

/// The number of blocks of columns that fill a GPU without division.
const MANY_BLOCKS: u64 = 512;

/// The least number of blocks of columns that are read faster once than several times with all blocks.
const SEVERAL_BLOCKS: u64 = 64;

/// The fewest columns that share blocks when they are divided.
const FEWEST_COLUMNS: u64 = 32;

/// The most points of a part of columns, unless there are many columns.
const PART_OF_COLUMNS: u64 = 1024;

/// The number of columns of all parts together that fill a GPU: a block handles 128.
const COLUMNS_OF_PARTS: u64 = 1 << 17;

/// The fewest elements of a matrix for which another launch pays, or the fewest bytes of what is read of it, and the fewest points of a few
/// columns.
const LARGE_MATRIX: u64 = 1 << 22;
const LARGE_BYTES: u64 = 1 << 24;
const TALL: u64 = 1 << 13;

/// The most parts of a few columns, whose results one block combines.
const PARTS_OF_TALL: u64 = 512;

/// The fewest points of rows that are divided.
pub const LEAST_DIVIDED: usize = 2 * PART_OF_COLUMNS as usize;

/// An iteration whose points are divided into parts. The division depends only on shape and strides, so the same call combines in
/// the same order on every device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Divided {
    /// The iteration, whose inner dimensions are merged where they can be.
    pub iteration: Iteration,
    /// The number of leading inner dimensions that are divided completely; the next one is cut.
    pub cut_dimension: usize,
    /// The number of indices of the cut dimension in a part; the last part may have fewer.
    pub cut: u64,
}

/// Divides the rows of a body, if they are few and long. `stages` are the body's.
pub fn divided(body: &Body, stages: &Stages, iteration: &Iteration) -> Option<Divided> {
    if body.uses_coordinates() && iteration.inner.len() != 1 {
        return None;
    }
    let part = part_of(body, stages, iteration)?;
    let inner_strides: SmallVec<[&[u64]; 8]> =
        strided(&iteration.operands, |_, inner| (!inner.is_empty()).then_some(inner));
    let merged = merge(&iteration.inner, &inner_strides, false);
    let operands = iteration.operands.iter().map(|operand| match operand {
        Placement::Strided { rows, inner } if !inner.is_empty() => {
            Placement::Strided { rows: rows.clone(), inner: merged.strides(inner) }
        }
        other => other.clone(),
    });
    let iteration = Iteration {
        rows: iteration.rows.clone(),
        inner: merged.extents(&iteration.inner),
        operands: operands.collect(),
        ..*iteration
    };
    let after = |dimension: usize| iteration.inner[dimension + 1..].iter().product::<u64>();
    let cut_dimension = (0..iteration.inner.len()).find(|&dimension| after(dimension) < part)?;
    let cut = (part / after(cut_dimension)).clamp(1, iteration.inner[cut_dimension]);
    Some(Divided { iteration, cut_dimension, cut })
}

/// Returns the number of points of a part, if rows are few and long. Adjacent rows, such as columns, share blocks, so more of
/// them still count as few.
fn part_of(body: &Body, stages: &Stages, iteration: &Iteration) -> Option<u64> {
    let (rows, points) = (iteration.rows.iter().product::<u64>(), iteration.inner.iter().product::<u64>());
    if rows == 0 || points < LEAST_DIVIDED as u64 {
        return None;
    }
    let inputs = &iteration.operands[..body.inputs.len()];
    let walking = inputs.iter().find_map(|operand| match operand {
        Placement::Strided { rows, inner } => inner.iter().any(|&stride| stride > 0).then_some(rows),
        Placement::Gathered(_) => None,
    });
    let mut rows_and_strides = iteration.rows.iter().zip(walking.into_iter().flatten());
    let side_by_side = rows_and_strides.any(|(&extent, &stride)| extent > 1 && stride == 1);
    let is_walked = |operand: &Placement| match operand {
        Placement::Strided { rows, inner } => rows.iter().chain(inner).all(|&stride| stride > 0),
        Placement::Gathered(_) => false,
    };
    let walked = body.inputs.iter().zip(inputs).filter(|(_, operand)| is_walked(operand));
    let bytes: u64 = walked.map(|(input, _)| input.dtype.size_bytes() as u64).sum();
    let elements = rows.saturating_mul(points);
    let is_large = elements >= LARGE_MATRIX || elements.saturating_mul(bytes) >= LARGE_BYTES;
    if side_by_side && !is_large && rows < MANY_ROWS && points >= TALL && stages.is_one_pass() {
        Some(part_of_columns(rows, points).max(points / PARTS_OF_TALL))
    } else if side_by_side && rows >= FEWEST_COLUMNS && is_large {
        let most = if stages.is_one_pass() { MANY_BLOCKS } else { SEVERAL_BLOCKS };
        (rows / COLUMNS < most).then(|| part_of_columns(rows, points))
    } else {
        let most = if stages.is_one_pass() { MANY_ROWS } else { SEVERAL_ROWS };
        (rows < most && points >= LONG_ROW).then_some(PART)
    }
}

/// Returns the number of points of a part of columns: as many as leave work for a GPU.
fn part_of_columns(columns: u64, points: u64) -> u64 {
    let parts = [PART_OF_COLUMNS, PART_OF_COLUMNS / 2];
    let fills = |part: &u64| columns.saturating_mul(points / part) >= COLUMNS_OF_PARTS;
    parts.into_iter().find(fills).unwrap_or(PART_OF_COLUMNS / 4)
}

impl Divided {
    /// Returns the extents of the parts: the dimensions that are divided completely, then the number of parts of the one that is
    /// cut.
    pub fn parts(&self) -> Dimensions {
        let inner = &self.iteration.inner;
        inner[..self.cut_dimension]
            .iter()
            .copied()
            .chain([inner[self.cut_dimension].div_ceil(self.cut)])
            .collect()
    }

    /// Returns the number of full parts of the cut dimension, and the number of indices of the last, shorter one.
    pub fn wholes_and_rest(&self) -> (u64, u64) {
        let extent = self.iteration.inner[self.cut_dimension];
        (extent / self.cut, extent % self.cut)
    }

    /// Returns the number of points of a part with `cut` indices of the cut dimension.
    pub fn points(&self, cut: u64) -> u64 {
        self.iteration.inner[self.cut_dimension + 1..].iter().product::<u64>() * cut
    }
}
