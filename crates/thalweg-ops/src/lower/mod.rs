//! Lowering: from an operator of the table, and the dtypes and layouts of its operands, to the launches that compute it.
//!
//! ```text
//!  LoopOp, Operand…, LoopArguments ──▶ LoweredLoop ──▶ LoopLaunch ──▶ plan, kernel       one launch
//!                                                          └──────▶ Steps                few long rows: several launches
//! ```
//!
//! Eager execution, kernels inside PyTorch and compiled programs share this path. `thalweg-execute` executes launches.
//!
//! # Invariants
//! - No address, no device, no tensor: lowering depends only on dtypes, layouts and numbers.
//! - A [`LoopLaunch`] is complete: apart from addresses, it determines everything that runs.

mod arguments;
mod channel_norm;
mod extents;
mod kept_layout;
mod launch;
mod lowered;
mod steps;

use std::fmt;

use thalweg_ir::{DType, Layout, LayoutError};

pub use arguments::{LoopArguments, Points};
pub use channel_norm::{ChannelNorm, ChannelNormGradient};
pub use extents::{Extents, Split, widen};
pub use kept_layout::layout_like;
pub use launch::{LaunchNumbers, LoopLaunch};
pub use lowered::{LoweredLoop, LoweredOutput, signature_of};
pub use steps::{Place, Step, Steps};

use crate::definition::DTypeError;

/// The dtype and the layout of a tensor, for lowering.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// The dtype.
    pub dtype: DType,
    /// The shape and the strides; the offset has no influence.
    pub layout: &'a Layout,
}

/// The reason why a call cannot be lowered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LowerError {
    /// The operator refuses the dtypes.
    DType(DTypeError),
    /// The shapes do not fit together.
    Layout(LayoutError),
    /// The operands do not fit the operator.
    Operands(String),
}

impl fmt::Display for LowerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DType(error) => error.fmt(f),
            Self::Layout(error) => error.fmt(f),
            Self::Operands(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for LowerError {}

impl From<DTypeError> for LowerError {
    fn from(error: DTypeError) -> Self {
        Self::DType(error)
    }
}

impl From<LayoutError> for LowerError {
    fn from(error: LayoutError) -> Self {
        Self::Layout(error)
    }
}

/// The result of lowering.
pub type Result<T, E = LowerError> = std::result::Result<T, E>;
