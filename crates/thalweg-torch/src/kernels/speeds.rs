//! The table: which kernels of ours are ahead of PyTorch's, for which dtypes and shapes, and by how much.
//!
//! A row is there if it was measured on a GPU and is ahead by 5 % or more (`docs/record`). Its speeds are those at the length, of those that were measured
//! within its columns, where the lead is smallest. All other calls are PyTorch's.

use thalweg_ir::DType::{self, Bf16};

/// A class of calls, and what was measured of it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Speed {
    /// PyTorch's name of the operator.
    pub operator: &'static str,
    /// The dtypes of its tensors.
    pub dtypes: &'static [DType],
    /// The fewest and the most columns (points of a row), which are a multiple of [`COLUMNS`].
    pub columns: [u64; 2],
    /// The fewest elements of the tensor: with fewer, the host takes longer than the GPU.
    pub elements: u64,
    /// Speed in % of a copy of as many bytes: ours.
    pub ours: f32,
    /// PyTorch's.
    pub pytorch: f32,
}

/// Rows of so many points, or a multiple of it, were measured: vectors of 16 bytes.
pub const COLUMNS: u64 = 8;

/// The fewest elements. A call through the boxed interface costs the host more than PyTorch's own; with so many, of which 32 MiB are moved, the GPU
/// works for longer than either.
const ELEMENTS: u64 = 1 << 23;

const fn speed(operator: &'static str, columns: [u64; 2], ours: f32, pytorch: f32) -> Speed {
    Speed { operator, dtypes: &[Bf16], columns, elements: ELEMENTS, ours, pytorch }
}

/// One H100, PyTorch 2.11, 2²⁸ elements (2026-11-23).
pub const SPEEDS: &[Speed] = &[
    speed("_softmax", [768, 1024], 100.5, 79.3),
    speed("_softmax", [1032, 65_536], 89.0, 66.6),
    speed("_log_softmax", [768, 1024], 100.5, 78.2),
    speed("_log_softmax", [1032, 65_536], 97.3, 72.1),
    speed("_softmax_backward_data", [768, 131_072], 60.7, 43.3),
    speed("native_layer_norm", [768, 65_536], 91.8, 60.8),
    speed("native_layer_norm_backward", [768, 1024], 102.7, 96.8),
    speed("native_layer_norm_backward", [1032, 65_536], 83.8, 59.2),
    speed("cross_entropy_loss", [1024, 131_072], 86.1, 37.4),
    speed("cross_entropy_loss_backward", [1024, 131_072], 96.5, 51.7),
];

/// Returns whether a call is in the table.
pub(crate) fn is_ahead(operator: &str, dtype: DType, rows: u64, columns: u64) -> bool {
    SPEEDS.iter().any(|speed| {
        speed.operator == operator
            && speed.dtypes.contains(&dtype)
            && (speed.columns[0]..=speed.columns[1]).contains(&columns)
            && columns.is_multiple_of(COLUMNS)
            && rows * columns >= speed.elements
    })
}
