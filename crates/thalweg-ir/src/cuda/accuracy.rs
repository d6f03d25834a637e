//! Bounds for the error of a GPU's results against the correctly rounded ones, per primitive.
//!
//! The bounds are those of the tables of maximum errors in NVIDIA's CUDA programming guide (mathematical functions, default
//! compilation), in units in the last place of the result's type. Where editions of the guide differ, the larger bound is used.
//! Tolerances belong to primitives and never to tests: a test that compares a GPU with the host adds this budget to the budget of
//! the host's own function, and propagates it through the body.
//!
//! The budgets of functions of one number are listed with the functions, in the table of `functions.rs`. A bound of 0 guarantees
//! equal bits, except for the payload of a NaN.
//!
//! Exponentials of rows whose elements and results are all floats of 16 bits are CUDA's `__expf`
//! ([`Body::has_fast_exponentials`](crate::Body::has_fast_exponentials)), and so are those of which only results of 16 bits follow
//! ([`Body::rounded_coarsely`](crate::Body::rounded_coarsely)). Their error is 2 + |1.173 x| units of f32: 105 at the least x whose
//! exponential is a normal number, where a result of 16 bits is rounded at 2¹² units or more. Likewise, quotients by one plus an
//! exponential, from which only results of 16 bits follow, are products by an approximate reciprocal, two units off at most.

use crate::{Binary, DType};

impl Binary {
    /// Returns the largest error of the GPU's result in units in the last place. `dtype` is the operands'.
    pub const fn ulp_budget(self, dtype: DType) -> u32 {
        match self {
            Self::Pow if matches!(dtype, DType::F64) => 2,
            Self::Pow => 4,
            Self::Atan2 if matches!(dtype, DType::F64) => 2,
            Self::Atan2 => 3,
            Self::Add
            | Self::Sub
            | Self::Mul
            | Self::Div
            | Self::Rem
            | Self::Max
            | Self::Min
            | Self::Equal
            | Self::Less
            | Self::LessEqual
            | Self::And
            | Self::Or
            | Self::Xor => 0,
        }
    }
}
