//! How far a card's results may be from the correctly rounded ones, primitive by primitive.
//!
//! The bounds are those of the tables of maximum errors in NVIDIA's CUDA programming guide (mathematical functions, default
//! compilation), in units in the last place of the result's type. Where editions of the guide differ, the larger bound
//! stands. Tolerances belong to primitives and never to tests: a test that compares a card with the host adds this budget to
//! the one of the host's own function, and follows it through the body.
//!
//! A bound of 0 is a promise of equal bits, save for the payload of a NaN.

use crate::{Binary, DType, Unary};

impl Unary {
    /// The largest error of the card's result in units in the last place. `dtype` is the operand's; what is no 64-bit float is
    /// computed as f32 or exactly.
    pub const fn ulp_budget(self, dtype: DType) -> u32 {
        let double = matches!(dtype, DType::F64);
        match self {
            Self::Neg
            | Self::Abs
            | Self::Not
            | Self::Sqrt
            | Self::Floor
            | Self::Ceil
            | Self::Trunc
            | Self::Round => 0,
            Self::Expm1 | Self::Log | Self::Log1p => 1,
            Self::Exp => {
                if double {
                    1
                } else {
                    2
                }
            }
            Self::Sin | Self::Cos | Self::Tanh | Self::Erf => 2,
        }
    }
}

impl Binary {
    /// The largest error of the card's result in units in the last place. `dtype` is the operands'.
    pub const fn ulp_budget(self, dtype: DType) -> u32 {
        match self {
            Self::Pow if matches!(dtype, DType::F64) => 2,
            Self::Pow => 4,
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
