//! [`Key`]: everything that the choice of a product's algorithm depends on.

use super::epilogue::ActivationKey;
use super::{OPERATION_NONE, OPERATION_TRANSPOSE};
use crate::DevicePointer;
use crate::library::{ComputeFormat, ElementFormat, MatmulAlgorithm, MatmulCall, Matrix, ReductionSchemes};

/// A matrix as the library sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Layout {
    pub(super) rows: u64,
    pub(super) columns: u64,
    pub(super) leading_dimension: u64,
    pub(super) batch_stride: u64,
    pub(super) transposed: bool,
    /// The largest power of two, up to 256, that divides the address.
    pub(super) alignment_bytes: u32,
}

impl Layout {
    /// Creates the layout of the transpose of a row-major operand of `rows` × `columns`.
    fn new(matrix: &Matrix, rows: u64, columns: u64) -> Self {
        // The stored matrix: a transposed operand has its numbers of rows and columns swapped.
        let (rows, columns) = if matrix.transposed { (columns, rows) } else { (rows, columns) };
        Self {
            rows: columns,
            columns: rows,
            leading_dimension: matrix.leading_dimension,
            batch_stride: matrix.batch_stride,
            transposed: matrix.transposed,
            alignment_bytes: alignment_of(matrix.address),
        }
    }

    pub(super) const fn operation(&self) -> u32 {
        if self.transposed { OPERATION_TRANSPOSE } else { OPERATION_NONE }
    }
}

/// Returns the largest power of two, up to 256, that divides an address.
pub(in crate::cuda) fn alignment_of(address: DevicePointer) -> u32 {
    1 << address.address().trailing_zeros().min(8)
}

/// A cache key: everything that the choice of an algorithm depends on. The operands are the library's: `a` is our `b`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::cuda) struct Key {
    pub(in crate::cuda) device: u32,
    pub(super) a: Layout,
    pub(super) b: Layout,
    pub(super) d: Layout,
    pub(super) batch: i32,
    pub(in crate::cuda) format: ElementFormat,
    pub(super) output_format: ElementFormat,
    pub(in crate::cuda) compute: ComputeFormat,
    has_addend: bool,
    /// The alignment of the bias's address; 0 without a bias.
    bias_alignment: u32,
    pub(super) activation: Option<ActivationKey>,
    pub(in crate::cuda) workspace_bytes: u64,
    pub(super) reductions: ReductionSchemes,
    pub(super) algorithm: Option<MatmulAlgorithm>,
}

impl Key {
    /// Creates the key of a call; the error is the reason why its shapes are invalid.
    pub(in crate::cuda) fn new(device: u32, call: &MatmulCall) -> Result<Self, String> {
        let (m, n, k) = (call.m, call.n, call.k);
        let (a, b) = (Layout::new(&call.b, k, n), Layout::new(&call.a, m, k));
        let d = Layout::new(&call.d, m, n);
        if k == 0 {
            return Err("k is 0: the product is a fill, which is another command".to_owned());
        }
        if call.d.transposed {
            return Err("the output cannot be transposed".to_owned());
        }
        for (name, layout) in [("b", &a), ("a", &b), ("d", &d)] {
            if layout.leading_dimension < layout.rows {
                let (rows, leading) = (layout.rows, layout.leading_dimension);
                return Err(format!("the rows of {name} have {rows} elements and are {leading} apart"));
            }
            let farthest = layout.leading_dimension.max(layout.batch_stride);
            if i64::try_from(farthest).is_err() {
                return Err(format!(
                    "rows or matrices of {name} are {farthest} elements apart, more than 2^63 - 1"
                ));
            }
        }
        let batch = i32::try_from(call.batch).map_err(|_| {
            format!("a batch of {} products: one call takes {} at most, so divide it", call.batch, i32::MAX)
        })?;
        if call.batch > 1 && d.batch_stride == 0 {
            return Err("all outputs of the batch would lie in one place".to_owned());
        }
        if call.beta.is_nan() || call.alpha.is_nan() {
            return Err("a factor is not a number".to_owned());
        }
        let is_plain = |factor: f64| factor == 0.0 || factor == 1.0;
        if call.compute == ComputeFormat::F16 && !(is_plain(call.alpha) && is_plain(call.beta)) {
            return Err("a product that is accumulated in 16-bit floats has factors of 0 or 1".to_owned());
        }
        let is_wide = call.output_format == ElementFormat::R_32F
            && [ElementFormat::R_16F, ElementFormat::R_16BF].contains(&call.format);
        if call.output_format != call.format && !is_wide {
            return Err(format!(
                "operands of format {} give no output of format {}",
                call.format.0, call.output_format.0
            ));
        }
        if call.epilogue.bias.is_some() && call.compute == ComputeFormat::F64 {
            return Err("products in 64-bit floats take no bias".to_owned());
        }
        let workspace_bytes = call.workspace.map_or(0, |(_, bytes)| bytes);
        Ok(Self {
            device,
            a,
            b,
            d,
            batch,
            format: call.format,
            output_format: call.output_format,
            compute: call.compute,
            has_addend: call.beta != 0.0,
            bias_alignment: call.epilogue.bias.map_or(0, alignment_of),
            activation: ActivationKey::new(call)?,
            workspace_bytes,
            reductions: call.reductions,
            algorithm: call.algorithm,
        })
    }

    /// Returns the key of the product whose algorithm this one takes: the extents that are of no matrix's rows in memory, which neither
    /// alignments nor formats depend on, are rounded up. So a program whose number of rows changes from step to step does not ask the
    /// library in each, which takes some 50 us, and equal calls have equal algorithms.
    pub(in crate::cuda) fn coarse(&self) -> Self {
        let mut coarse = *self;
        if self.batch > 1 {
            return coarse;
        }
        let (a, b, d) = (&mut coarse.a, &mut coarse.b, &mut coarse.d);
        match (a.transposed, b.transposed) {
            // The columns of b are those of d.
            (_, false) => {
                b.columns = rounded(b.columns);
                d.columns = b.columns;
            }
            // The columns of both are what is summed.
            (false, true) => {
                a.columns = rounded(a.columns);
                b.columns = a.columns;
            }
            (true, true) => {}
        }
        coarse
    }

    /// Returns the format of `alpha` and `beta`.
    pub(in crate::cuda) fn scale(&self) -> ElementFormat {
        match self.compute {
            ComputeFormat::F64 => ElementFormat::R_64F,
            ComputeFormat::F16 => ElementFormat::R_16F,
            _ => ElementFormat::R_32F,
        }
    }
}

/// Rounds an extent up to one of 16 per power of two.
pub(super) fn rounded(extent: u64) -> u64 {
    let step = 1 << extent.max(1).ilog2().saturating_sub(4);
    extent.checked_next_multiple_of(if extent > LEAST_ROUNDED { step } else { 1 }).unwrap_or(extent)
}

/// The extents up to which every one has an algorithm of its own.
const LEAST_ROUNDED: u64 = 128;
