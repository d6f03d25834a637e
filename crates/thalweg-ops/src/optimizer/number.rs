//! [`Number`]: values that are the same for all elements of a parameter.

use std::ops::{Add, Div, Mul, Sub};

use thalweg_ir::{DType, Value};

/// A number of a step in f64: an option, the number of steps, the learning rate, or a value computed only from these.
///
/// The number is rounded to the dtype of an element's arithmetic only when it is combined with an element, as in PyTorch's fused
/// kernels: 1 − β in f32 would lose four digits.
#[derive(Clone, Copy)]
pub struct Number<'b>(Value<'b>);

impl<'b> Number<'b> {
    /// Creates a number from a value of any floating-point dtype.
    pub(super) fn new(value: Value<'b>) -> Self {
        Self(value.to(DType::F64))
    }

    /// Returns the number as a value of this dtype.
    pub(super) fn to(self, dtype: DType) -> Value<'b> {
        self.0.to(dtype)
    }

    /// Returns the number to the power of another.
    #[must_use]
    pub(super) fn pow(self, exponent: Self) -> Self {
        Self(self.0.pow(exponent.0))
    }

    /// Returns a constant to the power of the number.
    #[must_use]
    pub(super) fn power_of(self, base: f64) -> Self {
        Self(self.0.like(base).pow(self.0))
    }

    /// Returns the square root.
    #[must_use]
    pub(super) fn sqrt(self) -> Self {
        Self(self.0.sqrt())
    }

    /// Returns the greater of the number and a constant.
    #[must_use]
    pub(super) fn maximum(self, other: f64) -> Self {
        Self(self.0.maximum(other))
    }

    /// Returns the number where a condition holds, and another one elsewhere.
    #[must_use]
    pub(super) fn where_or(self, condition: Value<'b>, other: Self) -> Self {
        Self(condition.select(self.0, other.0))
    }

    /// Returns whether the number is above a constant.
    #[must_use]
    pub(super) fn is_above(self, other: f64) -> Value<'b> {
        self.0.gt(other)
    }

    /// Returns whether the number is equal to a constant.
    #[must_use]
    pub(super) fn is(self, other: f64) -> Value<'b> {
        self.0.eq(other)
    }
}

impl<'b> thalweg_ir::Operand<'b> for Number<'b> {
    fn value(self, like: Value<'b>) -> Value<'b> {
        self.to(like.dtype())
    }
}

macro_rules! arithmetic {
    ($($trait:ident $method:ident;)*) => {$(
        impl<'b> $trait for Number<'b> {
            type Output = Self;

            fn $method(self, other: Self) -> Self {
                Self(self.0.$method(other.0))
            }
        }

        impl<'b> $trait<f64> for Number<'b> {
            type Output = Self;

            fn $method(self, other: f64) -> Self {
                Self(self.0.$method(other))
            }
        }

        impl<'b> $trait<Number<'b>> for f64 {
            type Output = Number<'b>;

            fn $method(self, other: Number<'b>) -> Number<'b> {
                Number(self.$method(other.0))
            }
        }

        impl<'b> $trait<Value<'b>> for Number<'b> {
            type Output = Value<'b>;

            fn $method(self, other: Value<'b>) -> Value<'b> {
                self.to(other.dtype()).$method(other)
            }
        }
    )*};
}

arithmetic! {
    Add add;
    Sub sub;
    Mul mul;
    Div div;
}
