//! Ways to combine elements, on the host and in CUDA C.

use thalweg_ir::Element;
use thalweg_ir::elements::{bf16, f16};

use crate::arguments::choices;

/// The way in which an element is combined with the existing one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Combine {
    /// The new element replaces the existing one: the last one remains.
    Replace = 0,
    /// The sum; wraps around for integers.
    Sum = 1,
    /// The product; wraps around for integers.
    Product = 2,
    /// The greater one; NaN if either is NaN.
    Max = 3,
    /// The smaller one; NaN if either is NaN.
    Min = 4,
}

impl Combine {
    /// Every way.
    pub const ALL: [Self; 5] = [Self::Replace, Self::Sum, Self::Product, Self::Max, Self::Min];

    /// Returns the name: PyTorch's name of the scatter's reduction, or `replace`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Replace => "replace",
            Self::Sum => "sum",
            Self::Product => "prod",
            Self::Max => "amax",
            Self::Min => "amin",
        }
    }
}

choices! { Combine: Combine::ALL }

/// An element that can be combined.
pub trait Term: Element {
    /// Returns the element that an index out of range results in: NaN, or 0 for integers.
    fn no_number() -> Self;

    /// Returns the existing element combined with a new one.
    #[must_use]
    fn combine(self, combine: Combine, other: Self) -> Self;
}

macro_rules! term {
    ($($T:ty: $no_number:expr, $sum:expr, $product:expr;)*) => {$(
        impl Term for $T {
            fn no_number() -> Self {
                $no_number
            }

            #[allow(clippy::eq_op)] // NaN is not equal to itself
            fn combine(self, combine: Combine, other: Self) -> Self {
                let (sum, product): (fn($T, $T) -> $T, fn($T, $T) -> $T) = ($sum, $product);
                match combine {
                    Combine::Replace => other,
                    Combine::Sum => sum(self, other),
                    Combine::Product => product(self, other),
                    Combine::Max => if self > other || self != self { self } else { other },
                    Combine::Min => if self < other || self != self { self } else { other },
                }
            }
        }
    )*};
}

term! {
    i64: 0, i64::wrapping_add, i64::wrapping_mul;
    f32: f32::NAN, |a, b| a + b, |a, b| a * b;
    f64: f64::NAN, |a, b| a + b, |a, b| a * b;
}

/// An element with the type in which it is combined: 16-bit floats are combined in f32, and rounded once.
pub trait Wide: Element {
    /// The type that elements are combined in.
    type Sum: Term;

    /// Returns the element in that type.
    fn widened(self) -> Self::Sum;

    /// Returns the element nearest to a value.
    fn narrowed(value: Self::Sum) -> Self;
}

macro_rules! wide {
    ($($T:ty => $Sum:ty: $widen:expr, $narrow:expr;)*) => {$(
        impl Wide for $T {
            type Sum = $Sum;

            fn widened(self) -> $Sum {
                let widen: fn($T) -> $Sum = $widen;
                widen(self)
            }

            fn narrowed(value: $Sum) -> Self {
                let narrow: fn($Sum) -> $T = $narrow;
                narrow(value)
            }
        }
    )*};
}

wide! {
    i64 => i64: |x| x, |x| x;
    f32 => f32: |x| x, |x| x;
    f64 => f64: |x| x, |x| x;
    f16 => f32: |x| x.to_f32(), |x| f16::from_f64(f64::from(x));
    bf16 => f32: |x| x.to_f32(), |x| bf16::from_f64(f64::from(x));
}

/// Runs a function for each dtype that scatters support, with its type: `typed!(dtype, T => …)`.
macro_rules! typed {
    ($dtype:expr, $T:ident => $run:expr) => {{
        use thalweg_ir::elements::{bf16, f16};
        match $dtype {
            thalweg_ir::DType::I64 => {
                type $T = i64;
                $run
            }
            thalweg_ir::DType::F32 => {
                type $T = f32;
                $run
            }
            thalweg_ir::DType::F16 => {
                type $T = f16;
                $run
            }
            thalweg_ir::DType::Bf16 => {
                type $T = bf16;
                $run
            }
            _ => {
                type $T = f64;
                $run
            }
        }
    }};
}
pub(crate) use typed;
