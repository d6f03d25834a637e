//! [`Scalar`]: a number of any kind.

use std::fmt;

use crate::Category;

/// A constant or a run-time scalar.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scalar {
    /// A truth value.
    Bool(bool),
    /// An integer.
    I64(i64),
    /// A floating-point number.
    F64(f64),
}

impl Scalar {
    /// Returns the bits that are passed in a launch's arguments: 8 bytes for every kind.
    pub const fn to_bits(self) -> u64 {
        match self {
            Self::Bool(value) => value as u64,
            Self::I64(value) => value as u64,
            Self::F64(value) => value.to_bits(),
        }
    }

    /// Returns the value as an f64.
    pub const fn to_f64(self) -> f64 {
        match self {
            Self::Bool(value) => value as u8 as f64,
            Self::I64(value) => value as f64,
            Self::F64(value) => value,
        }
    }

    /// Returns the value as an i64; a floating-point number is truncated and saturates.
    pub const fn to_i64(self) -> i64 {
        match self {
            Self::Bool(value) => value as i64,
            Self::I64(value) => value,
            Self::F64(value) => value as i64,
        }
    }

    /// Returns whether the scalar is a floating-point number.
    pub const fn is_floating_point(self) -> bool {
        matches!(self, Self::F64(_))
    }

    /// Returns the category of dtypes that this number belongs to.
    pub const fn category(self) -> Category {
        match self {
            Self::Bool(_) => Category::Bool,
            Self::I64(_) => Category::Integer,
            Self::F64(_) => Category::FloatingPoint,
        }
    }
}

impl fmt::Display for Scalar {
    /// Writes the number as Python does: `True`, `1`, `1.0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(true) => f.write_str("True"),
            Self::Bool(false) => f.write_str("False"),
            Self::I64(value) => write!(f, "{value}"),
            Self::F64(value) => write!(f, "{value:?}"),
        }
    }
}

impl From<bool> for Scalar {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

macro_rules! from_integers {
    ($($type:ty)*) => {$(
        impl From<$type> for Scalar {
            /// Returns an integer, or a floating-point number if it is beyond i64.
            fn from(value: $type) -> Self {
                i64::try_from(value).map_or(Self::F64(value as f64), Self::I64)
            }
        }
    )*};
}

from_integers! { i8 i16 i32 i64 u8 u16 u32 u64 usize }

impl From<f64> for Scalar {
    fn from(value: f64) -> Self {
        Self::F64(value)
    }
}

impl From<f32> for Scalar {
    fn from(value: f32) -> Self {
        Self::F64(f64::from(value))
    }
}
