//! Element types.

use std::fmt;

use half::{bf16, f16};

/// The type of a tensor's elements, by PyTorch's names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum DType {
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned 8-bit integers.
    U8,
    /// Signed 32-bit integers.
    I32,
    /// Signed 64-bit integers.
    I64,
    /// IEEE 16-bit floats.
    F16,
    /// 16-bit brain floats.
    Bf16,
    /// 32-bit floats.
    F32,
    /// 64-bit floats.
    F64,
}

impl DType {
    /// Every dtype.
    pub const ALL: [Self; 8] =
        [Self::Bool, Self::U8, Self::I32, Self::I64, Self::F16, Self::Bf16, Self::F32, Self::F64];

    /// Bytes of an element.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::Bool | Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }

    /// Whether it is a floating-point type.
    pub const fn is_floating_point(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32 | Self::F64)
    }

    /// Whether it is an integer type; `Bool` is none.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::U8 | Self::I32 | Self::I64)
    }

    /// The type in which arithmetic on elements of this type is done (PyTorch's `opmath_t`): f32 for 16-bit floats, the
    /// type itself otherwise.
    pub const fn compute(self) -> Self {
        match self {
            Self::F16 | Self::Bf16 => Self::F32,
            other => other,
        }
    }

    /// PyTorch's name (`float32`).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::U8 => "uint8",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
            Self::F32 => "float32",
            Self::F64 => "float64",
        }
    }

    /// The type that both convert to when they meet in one operator (`torch.promote_types`).
    pub const fn promote(self, other: Self) -> Self {
        use DType::{Bf16, F16, F32};
        match (self, other) {
            (F16, Bf16) | (Bf16, F16) => F32,
            _ if (self as u8) >= (other as u8) => self,
            _ => other,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that is the element of a tensor. `bool` is none: device memory holds any byte, and a `bool` must be 0 or 1.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the element type of a tensor",
    label = "not one of u8, i32, i64, f16, bf16, f32 and f64",
    note = "tensors of truth values are made from `u8` and `to_dtype(DType::Bool)`, and read as `u8`"
)]
pub trait Element: bytemuck::Pod + PartialEq + fmt::Debug + Send + Sync {
    /// Its dtype. `u8` is [`DType::U8`]; `bool` tensors are read as `u8` through [`DType::Bool`].
    const DTYPE: DType;

    /// The nearest value of this type (saturating for integers, as Rust's `as`).
    fn from_f64(value: f64) -> Self;

    /// The value as an f64, rounded where f64 cannot hold it.
    fn to_f64(self) -> f64;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident, |$from:ident| $from_expression:expr, |$to:ident| $to_expression:expr;)*) => {$(
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;

            fn from_f64($from: f64) -> Self {
                $from_expression
            }

            fn to_f64(self) -> f64 {
                let $to = self;
                $to_expression
            }
        }
    )*};
}

elements! {
    u8 => U8, |x| x as u8, |x| f64::from(x);
    i32 => I32, |x| x as i32, |x| f64::from(x);
    i64 => I64, |x| x as i64, |x| x as f64;
    f16 => F16, |x| f16::from_f64(x), |x| x.to_f64();
    bf16 => Bf16, |x| bf16::from_f64(x), |x| x.to_f64();
    f32 => F32, |x| x as f32, |x| f64::from(x);
    f64 => F64, |x| x, |x| x;
}

#[cfg(test)]
mod tests {
    use super::DType;

    #[test]
    fn promotion_follows_pytorch() {
        // torch.promote_types, PyTorch 2.15: the rows that are not "the later one wins".
        assert_eq!(DType::F16.promote(DType::Bf16), DType::F32);
        assert_eq!(DType::I64.promote(DType::F16), DType::F16);
        assert_eq!(DType::Bool.promote(DType::U8), DType::U8);
        assert_eq!(DType::U8.promote(DType::I32), DType::I32);
        for a in DType::ALL {
            assert_eq!(a.promote(a), a);
            for b in DType::ALL {
                assert_eq!(a.promote(b), b.promote(a));
            }
        }
    }
}
