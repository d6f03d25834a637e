//! The table of measured speeds: the kernels that are faster than PyTorch's, with dtypes, shapes, and both speeds.
//!
//! The table has a row if the kernel was measured on a GPU and is faster by 5 % or more (`docs/record`). The speeds of a row are
//! those at the measured length, within its columns, at which the advantage is smallest. All other calls are left to PyTorch.

use thalweg_ir::DType::{self, Bf16, F32};

/// A class of calls, and its measured speeds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Speed {
    /// PyTorch's name of the operator.
    pub operator: &'static str,
    /// The layout of the rows.
    pub form: Form,
    /// The dtypes of the tensors.
    pub dtypes: &'static [DType],
    /// The minimum and maximum number of columns, which are the points of a row. Contiguous sizes must be multiples of
    /// [`COLUMNS`].
    pub columns: [u64; 2],
    /// The minimum number of elements of the tensor: with fewer, the host takes longer than the GPU.
    pub elements: u64,
    /// Our speed, in % of that of a copy of the same number of bytes.
    pub ours: f32,
    /// PyTorch's speed, in % of that of a copy.
    pub pytorch: f32,
}

impl Speed {
    /// Returns the row of an operator that was not measured.
    pub(crate) const fn unknown(operator: &'static str) -> Self {
        speed(operator, &[], [0, 0], f32::NAN, f32::NAN)
    }
}

/// The layout of rows in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// The points of a row are contiguous.
    Rows,
    /// Adjacent points are of different rows: the dimension is not the last.
    Columns,
    /// A copy that turns columns into rows.
    Transposed,
    /// Consecutive planes of channels; the points of a plane count as columns.
    Planes,
    /// A list of tensors, whose mean number of elements counts as columns.
    List,
}

impl Form {
    /// Returns the form's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Columns => "columns",
            Self::Transposed => "transposed",
            Self::Planes => "planes",
            Self::List => "list",
        }
    }

    /// Returns the minimum number of contiguous elements in the measured calls.
    const fn contiguous(self) -> u64 {
        match self {
            Self::Rows | Self::Planes | Self::List => COLUMNS,
            Self::Columns => 256,
            Self::Transposed => 64,
        }
    }
}

/// The properties of a call that the table depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Class {
    pub(crate) form: Form,
    pub(crate) dtype: DType,
    pub(crate) columns: u64,
    /// The minimum number of contiguous elements.
    pub(crate) contiguous: u64,
    pub(crate) elements: u64,
}

/// Rows whose number of points is a multiple of this were measured: vectors of 16 bytes.
pub const COLUMNS: u64 = 8;

/// The minimum number of elements. A call through the boxed interface costs the host more than PyTorch's own; with this number,
/// of which 32 MiB are moved, the GPU's time is longer than that of both.
const ELEMENTS: u64 = 1 << 23;

const BF16S: &[DType] = &[Bf16];
const F32S: &[DType] = &[F32];

const fn speed(
    operator: &'static str,
    dtypes: &'static [DType],
    columns: [u64; 2],
    ours: f32,
    pytorch: f32,
) -> Speed {
    speed_of(operator, Form::Rows, dtypes, columns, ours, pytorch)
}

const fn speed_of(
    operator: &'static str,
    form: Form,
    dtypes: &'static [DType],
    columns: [u64; 2],
    ours: f32,
    pytorch: f32,
) -> Speed {
    Speed { operator, form, dtypes, columns, elements: ELEMENTS, ours, pytorch }
}

/// One H100, inside eager PyTorch 2.11, from 2²³ elements (2026-11-23; group norm one H200, 2026-11-26; its gradient, batch norm,
/// lists, softmax and layer norm one H200, 2026-11-27); cross entropy was compared kernel by kernel. Lists are those whose step
/// takes the GPU longer than the host. Adam moves the same bytes as AdamW, and was measured on one of its lists.
pub const SPEEDS: &[Speed] = &[
    speed("_softmax", BF16S, [64, 131_072], 47.0, 43.1),
    speed("_log_softmax", BF16S, [64, 128], 77.5, 66.1),
    speed("_log_softmax", BF16S, [512, 65_536], 94.9, 69.7),
    speed("_softmax_backward_data", BF16S, [64, 131_072], 60.5, 41.0),
    speed("_log_softmax_backward_data", BF16S, [64, 128], 105.2, 97.6),
    speed("_log_softmax_backward_data", BF16S, [512, 1024], 102.8, 95.5),
    speed("_log_softmax_backward_data", BF16S, [32_768, 65_536], 93.4, 74.9),
    speed("native_layer_norm", BF16S, [64, 131_072], 73.8, 52.1),
    speed("native_layer_norm_backward", BF16S, [64, 131_072], 88.7, 80.3),
    speed("native_group_norm", BF16S, [64, 8192], 25.4, 21.0),
    speed("native_group_norm_backward", BF16S, [64, 131_072], 56.4, 24.8),
    speed("_fused_rms_norm", BF16S, [64, 131_072], 98.8, 90.7),
    speed("_fused_rms_norm_backward", BF16S, [64, 768], 97.7, 87.8),
    speed("_fused_rms_norm_backward", BF16S, [4096, 131_072], 60.1, 42.9),
    speed("_softmax", F32S, [4096, 50_304], 80.6, 74.8),
    speed("_log_softmax", F32S, [4096, 50_304], 50.8, 46.6),
    speed("_softmax_backward_data", F32S, [64, 131_072], 60.2, 43.5),
    speed("_log_softmax_backward_data", F32S, [16_384, 50_304], 78.4, 70.6),
    speed("native_layer_norm", F32S, [64, 32_768], 96.3, 76.8),
    speed("native_layer_norm_backward", F32S, [64, 256], 100.4, 76.7),
    speed("native_layer_norm_backward", F32S, [1280, 16_384], 102.6, 88.2),
    speed("native_group_norm", F32S, [64, 8192], 41.2, 34.3),
    speed("native_group_norm_backward", F32S, [64, 131_072], 62.7, 46.5),
    speed("_fused_rms_norm", F32S, [64, 256], 100.3, 73.3),
    speed("_fused_rms_norm", F32S, [1280, 32_768], 101.5, 90.7),
    speed("_fused_rms_norm_backward", F32S, [64, 128], 104.6, 76.6),
    speed("_fused_rms_norm_backward", F32S, [1024, 32_768], 103.0, 92.2),
    speed("cross_entropy_loss", BF16S, [1024, 131_072], 86.1, 37.4),
    speed("cross_entropy_loss_backward", BF16S, [1024, 131_072], 96.5, 51.7),
    speed_of("sum.dim_IntList", Form::Rows, BF16S, [64, 16_384], 90.8, 83.0),
    speed_of("mean.dim", Form::Rows, BF16S, [64, 16_384], 89.6, 84.2),
    speed_of("amax", Form::Rows, BF16S, [64, 65_536], 87.2, 75.9),
    speed_of("logsumexp", Form::Rows, BF16S, [64, 65_536], 63.5, 12.0),
    speed_of("_softmax", Form::Columns, BF16S, [16, 65_536], 64.7, 36.9),
    speed_of("_log_softmax", Form::Columns, BF16S, [16, 65_536], 70.4, 49.0),
    speed_of("_softmax_backward_data", Form::Columns, BF16S, [16, 65_536], 58.6, 35.6),
    speed_of("_log_softmax_backward_data", Form::Columns, BF16S, [16, 65_536], 69.7, 63.9),
    speed_of("amax", Form::Columns, BF16S, [16, 4096], 36.3, 33.1),
    speed_of("logsumexp", Form::Columns, BF16S, [16, 65_536], 25.3, 10.3),
    speed_of("clone", Form::Transposed, BF16S, [64, 65_536], 63.7, 26.8),
    speed_of("sum.dim_IntList", Form::Rows, F32S, [64, 256], 95.5, 89.6),
    speed_of("mean.dim", Form::Rows, F32S, [64, 16_384], 97.9, 92.2),
    speed_of("amax", Form::Rows, F32S, [64, 16_384], 98.4, 92.6),
    speed_of("logsumexp", Form::Rows, F32S, [64, 65_536], 52.2, 15.2),
    speed_of("_softmax", Form::Columns, F32S, [16, 65_536], 78.8, 60.3),
    speed_of("_log_softmax", Form::Columns, F32S, [16, 65_536], 74.2, 64.3),
    speed_of("_softmax_backward_data", Form::Columns, F32S, [16, 65_536], 60.8, 41.7),
    speed_of("_log_softmax_backward_data", Form::Columns, F32S, [16, 64], 86.0, 80.0),
    speed_of("_log_softmax_backward_data", Form::Columns, F32S, [1024, 65_536], 73.0, 37.9),
    speed_of("logsumexp", Form::Columns, F32S, [16, 65_536], 40.4, 14.0),
    speed_of("clone", Form::Transposed, F32S, [64, 65_536], 71.7, 55.1),
    speed_of("native_batch_norm", Form::Planes, BF16S, [64, 131_072], 56.4, 22.2),
    speed_of("native_batch_norm_backward", Form::Planes, BF16S, [64, 131_072], 58.7, 29.6),
    speed_of("native_batch_norm", Form::Planes, F32S, [64, 131_072], 62.6, 38.4),
    speed_of("native_batch_norm_backward", Form::Planes, F32S, [64, 131_072], 57.9, 47.9),
    speed_of("_fused_adam_", Form::List, F32S, [841_048, 67_108_864], 99.7, 85.0),
    speed_of("_fused_adamw_", Form::List, F32S, [841_048, 67_108_864], 94.0, 87.7),
];

/// Returns whether a call is in the table.
pub(crate) fn is_ahead(operator: &str, class: &Class) -> bool {
    SPEEDS.iter().any(|speed| {
        speed.operator == operator
            && speed.form == class.form
            && speed.dtypes.contains(&class.dtype)
            && (speed.columns[0]..=speed.columns[1]).contains(&class.columns)
            && class.contiguous.is_multiple_of(COLUMNS)
            && class.contiguous >= speed.form.contiguous()
            && class.elements >= speed.elements
    })
}
