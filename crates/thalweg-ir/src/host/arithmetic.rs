//! The meaning of each primitive for one element of each type. Loops over blocks are in [`step`](super::step).

use super::register::Lane;
use super::vectors;
use crate::Unary;

/// Types with arithmetic: all but 16-bit floats, which are cast first.
pub(super) trait Number: Lane + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    /// The neutral value of [`Number::greater`].
    const LOWEST: Self;
    /// The neutral value of [`Number::smaller`].
    const HIGHEST: Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn rem(self, other: Self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    /// Returns self · b + c, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;

    /// Returns the greater; a NaN if either is NaN; the second operand if they are equal.
    #[inline(always)]
    #[expect(clippy::eq_op, reason = "a number that differs from itself is a NaN")]
    fn greater(self, other: Self) -> Self {
        if self > other || self != self { self } else { other }
    }

    /// Returns the smaller; a NaN if either is NaN; the second operand if they are equal.
    #[inline(always)]
    #[expect(clippy::eq_op, reason = "a number that differs from itself is a NaN")]
    fn smaller(self, other: Self) -> Self {
        if self < other || self != self { self } else { other }
    }
}

/// Integers, and bools for the bitwise operations.
pub(super) trait Bits: Number {
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
}

/// Floating-point types with arithmetic.
pub(super) trait Float: Number {
    fn sqrt(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn trunc(self) -> Self;
    fn round(self) -> Self;
    fn pow(self, exponent: Self) -> Self;
    fn atan2(self, x: Self) -> Self;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn tanh(self) -> Self;
    fn erf(self) -> Self;
    fn function(op: Unary) -> Option<fn(Self) -> Self>;
}

macro_rules! integers {
    (
        bool { $(#[$bool_doc:meta])* $bool:ident $bool_element:ident $bool_name:literal $bool_exchange:tt, }
        integer { $($(#[$doc:meta])* $variant:ident $integer:ident $name:literal $exchange:tt,)* }
        $($rest:tt)*
    ) => {$(
        impl Number for $integer {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const LOWEST: Self = $integer::MIN;
            const HIGHEST: Self = $integer::MAX;

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn div(self, other: Self) -> Self {
                if other == 0 { 0 } else { self.wrapping_div(other) }
            }

            #[inline(always)]
            fn rem(self, other: Self) -> Self {
                if other == 0 { 0 } else { self.wrapping_rem(other) }
            }

            #[inline(always)]
            fn neg(self) -> Self {
                self.wrapping_neg()
            }

            #[inline(always)]
            fn abs(self) -> Self {
                if self < Self::ZERO { self.wrapping_neg() } else { self }
            }

            #[inline(always)]
            fn fma(self, b: Self, c: Self) -> Self {
                self.wrapping_mul(b).wrapping_add(c)
            }
        }

        impl Bits for $integer {
            #[inline(always)]
            fn and(self, other: Self) -> Self {
                self & other
            }

            #[inline(always)]
            fn or(self, other: Self) -> Self {
                self | other
            }

            #[inline(always)]
            fn xor(self, other: Self) -> Self {
                self ^ other
            }
        }
    )*};
}

for_each_dtype! { integers }

macro_rules! floats {
    ($($float:ident, $fma:expr, $function:ident, $functions:ident, $erf:expr;)*) => {$(
        impl Number for $float {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LOWEST: Self = $float::NEG_INFINITY;
            const HIGHEST: Self = $float::INFINITY;

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self - other
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }

            #[inline(always)]
            fn div(self, other: Self) -> Self {
                self / other
            }

            #[inline(always)]
            fn rem(self, other: Self) -> Self {
                self % other
            }

            #[inline(always)]
            fn neg(self) -> Self {
                -self
            }

            #[inline(always)]
            fn abs(self) -> Self {
                $float::abs(self)
            }

            #[inline(always)]
            fn fma(self, b: Self, c: Self) -> Self {
                $fma(self, b, c)
            }
        }

        impl Float for $float {
            #[inline(always)]
            fn sqrt(self) -> Self {
                $float::sqrt(self)
            }

            #[inline(always)]
            fn floor(self) -> Self {
                $float::floor(self)
            }

            #[inline(always)]
            fn ceil(self) -> Self {
                $float::ceil(self)
            }

            #[inline(always)]
            fn trunc(self) -> Self {
                $float::trunc(self)
            }

            #[inline(always)]
            fn round(self) -> Self {
                $float::round_ties_even(self)
            }

            #[inline(always)]
            fn pow(self, exponent: Self) -> Self {
                $float::powf(self, exponent)
            }

            #[inline(always)]
            fn atan2(self, x: Self) -> Self {
                $float::atan2(self, x)
            }

            #[inline(always)]
            fn exp(self) -> Self {
                $functions::exp(self)
            }

            #[inline(always)]
            fn ln(self) -> Self {
                $functions::ln(self)
            }

            #[inline(always)]
            fn tanh(self) -> Self {
                $functions::tanh(self)
            }

            #[inline(always)]
            fn erf(self) -> Self {
                $erf(self)
            }

            fn function(op: Unary) -> Option<fn(Self) -> Self> {
                op.$function()
            }
        }
    )*};
}

floats! {
    f32, fma_f32, of_f32, vectors, vectors::erf;
    f64, f64::mul_add, of_f64, f64, libm::erf;
}

/// Returns a · b + c rounded once, without the FMA instruction, which not every x86-64 processor has. Calling the mathematical
/// library for each element costs far more, and does not vectorise.
///
/// # Note: rounding to odd
/// The product of two f32 is exact in f64. The sum with c may not be, and rounding it to f64 and then to f32 would round twice.
/// So the f64 sum is rounded *to odd* instead: if it is inexact, it is truncated and its last bit is set to 1. A value rounded to
/// odd with at least two more bits than the target rounds to the target as the exact value would (Boldo and Melquiond, "Emulation
/// of FMA and correctly rounded sums", 2008); here there are 29 more.
#[inline(always)]
fn fma_f32(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(target_feature = "fma") {
        return a.mul_add(b, c);
    }
    let product = f64::from(a) * f64::from(b);
    let c = f64::from(c);
    let sum = product + c;
    // Knuth's two-sum: exactly the part that the rounding of the sum dropped. NaN if the sum is not finite.
    let c_part = sum - product;
    let error = (product - (sum - c_part)) + (c - c_part);
    let bits = sum.to_bits();
    let inexact_and_even = ((error > 0.0) | (error < 0.0)) & (bits & 1 == 0);
    // Away from zero (to the next odd number up in magnitude) or towards it (to the next odd number down).
    let beyond = (error > 0.0) == (sum > 0.0);
    let odd = if beyond { bits | 1 } else { bits.wrapping_sub(1) };
    f64::from_bits(if inexact_and_even { odd } else { bits }) as f32
}

#[cfg(test)]
mod tests {
    use super::fma_f32;

    /// Bit patterns from a multiplicative generator, which cover all exponents, and triples constructed to be close to ties.
    #[test]
    fn fma_is_rounded_once() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 32) as u32
        };
        let check = |a: f32, b: f32, c: f32| {
            let (got, wanted) = (fma_f32(a, b, c), a.mul_add(b, c));
            assert!(
                got.to_bits() == wanted.to_bits() || (got.is_nan() && wanted.is_nan()),
                "{a:e} * {b:e} + {c:e} gives {got:e}, not {wanted:e}"
            );
        };
        for _ in 0..200_000 {
            let (a, b, c) = (f32::from_bits(next()), f32::from_bits(next()), f32::from_bits(next()));
            check(a, b, c);
            // Few significant bits and close exponents: sums that are ties of f32 except for a distant last bit.
            let short = |bits: u32| f32::from_bits((bits & 0x807f_f000) | 0x3f80_0000);
            let scale = f32::from_bits((0x7f - next() % 60) << 23);
            check(short(a.to_bits()), short(b.to_bits()), short(c.to_bits()) * scale);
            check(short(a.to_bits()) * scale, f32::from_bits(0x3f80_0001), short(c.to_bits()));
            // Subnormal results.
            check(
                short(a.to_bits()) * scale,
                f32::from_bits(next() & 0x00ff_ffff),
                short(c.to_bits()) * 1e-38,
            );
        }
        // Odd multiples of 2⁻¹² above 1 have products that are ties of f32; c breaks the tie from below the last bit of f64.
        for (i, j, exponent) in (1..16).flat_map(|i| (1..16).map(move |j| (2 * i - 1, 2 * j - 1, 40 + i + j)))
        {
            let (a, b) = (1.0 + i as f32 / 4096.0, 1.0 + j as f32 / 4096.0);
            let c = 2.0f32.powi(-exponent);
            for (a, c) in [(a, c), (a, -c), (-a, c), (-a, -c)] {
                check(a, b, c);
            }
        }
        for a in [0.0, -0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE] {
            for b in [0.0, -0.0, -1.0, f32::INFINITY, f32::MAX, 1e-45] {
                for c in [0.0, -0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, -1e-45] {
                    check(a, b, c);
                }
            }
        }
    }
}
