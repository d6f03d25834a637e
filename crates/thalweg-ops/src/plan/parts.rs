//! Few long rows, in parts: which points are one.

use smallvec::SmallVec;
use thalweg_ir::{Body, Dimensions};

use super::{Iteration, Placement, merge, strided};
use crate::stages::Stages;

/// The number of rows that fill a GPU without being divided into parts.
const MANY_ROWS: u64 = 1024;

/// The number of rows from which on it is faster to read them once by few blocks than several times by all.
const SEVERAL_ROWS: u64 = 64;

/// A row with fewer points is not worth another launch.
const LONG_ROW: u64 = 1 << 16;

/// The points of a part.
const PART: u64 = 4096;

/// So many columns are a block's: with fewer than [`MANY_BLOCKS`] of them a GPU has too little to do.
const COLUMNS: u64 = 256;

/// So many blocks of columns fill a GPU by themselves.
const MANY_BLOCKS: u64 = 512;

/// As [`SEVERAL_ROWS`], of blocks of columns.
const SEVERAL_BLOCKS: u64 = 64;

/// The points of a part of columns.
const PART_OF_COLUMNS: u64 = 1024;

/// A matrix with fewer elements is not worth another launch.
const LARGE_MATRIX: u64 = 1 << 22;

/// Rows with fewer points are never divided.
pub const LEAST_DIVIDED: usize = 2 * PART_OF_COLUMNS as usize;

/// An iteration whose points are divided into parts. They follow from the shape and the strides alone, so the same call combines in the
/// same order on every device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Divided {
    /// The iteration, whose inner dimensions are merged where they can be.
    pub iteration: Iteration,
    /// The number of its inner dimensions, from the first on, that tell parts apart; the next one is cut.
    pub apart: usize,
    /// The number of indices of the cut dimension that a part has; the last one may have fewer.
    pub cut: u64,
}

/// Returns the parts of a body's rows, where the rows are few and long. `stages` are the body's.
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
    let behind = |dimension: usize| iteration.inner[dimension + 1..].iter().product::<u64>();
    let apart = (0..iteration.inner.len()).find(|&dimension| behind(dimension) < part)?;
    let cut = (part / behind(apart)).clamp(1, iteration.inner[apart]);
    Some(Divided { iteration, apart, cut })
}

/// Returns how many points a part has, where rows are few and long. Rows that lie side by side, as columns do, share blocks, so that
/// more of them are few.
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
    if side_by_side && rows >= COLUMNS {
        // In parts, what all columns share at a point is no longer at one place for all rows, which whole lines want.
        let shared = |operand: &Placement| match operand {
            Placement::Strided { rows, inner } => {
                rows.iter().all(|&stride| stride == 0) && inner.iter().any(|&stride| stride > 0)
            }
            Placement::Gathered(_) => false,
        };
        if inputs.iter().any(shared) {
            return None;
        }
        let most = if stages.is_one_pass() { MANY_BLOCKS } else { SEVERAL_BLOCKS };
        (rows / COLUMNS < most && rows.saturating_mul(points) >= LARGE_MATRIX).then_some(PART_OF_COLUMNS)
    } else {
        let most = if stages.is_one_pass() { MANY_ROWS } else { SEVERAL_ROWS };
        (rows < most && points >= LONG_ROW).then_some(PART)
    }
}

impl Divided {
    /// Returns the extents that tell parts apart: whole dimensions, then the parts of the one that is cut.
    pub fn parts(&self) -> Dimensions {
        let inner = &self.iteration.inner;
        inner[..self.apart].iter().copied().chain([inner[self.apart].div_ceil(self.cut)]).collect()
    }

    /// Returns how many parts of the dimension that is cut are whole ones, and how many indices the last one has else.
    pub fn wholes_and_rest(&self) -> (u64, u64) {
        let extent = self.iteration.inner[self.apart];
        (extent / self.cut, extent % self.cut)
    }

    /// Returns how many points a part with so many indices of the dimension that is cut has.
    pub fn points(&self, cut: u64) -> u64 {
        self.iteration.inner[self.apart + 1..].iter().product::<u64>() * cut
    }
}
