//! Functions of f32 for use in loops that are compiled for the processor's [`vectors`](super::processor::vectors).
//!
//! The bits of such a loop are the same on every processor: every primitive is correctly rounded, or is one of the functions
//! below, which have no branches that could be taken differently.
//!
//! [`ln`] computes in f64 and rounds once, so its error is that of the rounding, far below the budgets of a GPU; its series is
//! truncated where the remainder is below 10⁻¹¹ of the result. [`exp`], [`tanh`] and [`erf`] stay in f32, because a vector has
//! twice as many of them.

use std::f64::consts::LN_2;

/// (eʳ − 1 − r) / r² as a polynomial for |r| up to ln 2 / 2, by least squares of the relative error of eʳ: the constant term first.
const EXP: [f32; 5] = [0.499_999_94, 0.166_665_21, 0.041_668_39, 0.008_368_717, 0.001_381_459_9];

/// The number whose addition rounds an f32 to an integer, which is then in the lowest bits.
const ROUNDING_F32: f32 = 12_582_912.0;

/// Returns r and the bits of ROUNDING_F32 + n where x = n · ln 2 + r. ln 2 is split into two parts, so that r is exact enough.
#[inline(always)]
fn reduced(x: f32) -> (f32, u32) {
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUNDING_F32);
    let count = shifted - ROUNDING_F32;
    (count.mul_add(2.121_944_4e-4, count.mul_add(-0.693_359_4, x)), shifted.to_bits())
}

/// Returns eˣ, within a unit in the last place.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Beyond these bounds, f32 has 0 and infinity.
    let x = if x < -104.0 { -104.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let (rest, shifted) = reduced(x);
    let result = polynomial(&EXP, rest).mul_add(rest * rest, rest) + 1.0;
    // 2ⁿ as two factors, since a single factor may not be a normal number.
    let count = shifted.wrapping_sub(ROUNDING_F32.to_bits()) as i32;
    let power = |count: i32| f32::from_bits((count.wrapping_add(127) as u32) << 23);
    let half = count >> 1;
    result * power(half) * power(count.wrapping_sub(half))
}

/// The boundary between the two forms of [`tanh`].
const TANH_SPLIT: f32 = 0.8;

/// (tanh(x)/x − 1) / x² as a polynomial of x² below the split, by least squares of the relative error of tanh: the constant term first.
const TANH_NEAR: [f32; 6] =
    [-0.333_333, 0.133_322_21, -0.053_852_33, 0.021_302_987, -0.007_409_552_6, 0.001_584_753_5];

/// Returns tanh x, within a unit in the last place.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let (size, square) = (x.abs(), x * x);
    let near = (polynomial(&TANH_NEAR, square) * square).mul_add(size, size);
    let far = 1.0 - 2.0 / (exp(2.0 * size) + 1.0);
    let result = if size < TANH_SPLIT { near } else { far };
    result.copysign(x)
}

/// Returns ln x.
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    /// The bits of √½, and of 1.
    const ROOT: u64 = 0x3fe6_a09e_0000_0000;
    const ONE: u64 = 0x3ff0_0000_0000_0000;
    // x = 2ᵏ · m with m between √½ and √2. The exponent with its bias is converted to a number by placing it in the lowest bits
    // of 2⁵².
    let shifted = f64::from(x).to_bits().wrapping_add(ONE - ROOT);
    let exponent = f64::from_bits((shifted >> 52) | 0x4330_0000_0000_0000) - 4_503_599_627_371_519.0;
    let m = f64::from_bits((shifted & 0x000f_ffff_ffff_ffff) + ROOT);
    // ln m = 2 artanh s, by its series.
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut sum = 1.0 / 15.0;
    for divisor in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        sum = sum * square + 1.0 / divisor;
    }
    let result = (exponent * LN_2 + 2.0 * s * sum) as f32;
    let beyond = if x == 0.0 { f32::NEG_INFINITY } else { f32::NAN };
    let result = if x > 0.0 { result } else { beyond };
    if x == f32::INFINITY { x } else { result }
}

/// The boundary between the two forms of [`erf`].
const ERF_SPLIT: f32 = 0.921_875;

/// erf(x)/x − 1 as a polynomial of x² below the split, by least squares of the relative error of erf: the constant term first.
const ERF_NEAR: [f32; 7] = [
    0.128_379_17,
    -0.376_126_35,
    0.112_836_96,
    -0.026_859_399,
    0.005_201_032_4,
    -0.000_814_270_34,
    8.370_097e-5,
];

/// −ln(1 − erf x) as a polynomial of x from the split to 4, by least squares of the relative error of erf.
const ERF_FAR: [f32; 7] = [
    0.000_198_545_6,
    1.127_663_7,
    0.637_202_2,
    0.103_914_1,
    -0.022_218_486,
    0.003_041_102_6,
    -0.000_195_721_72,
];

/// Returns the value of a polynomial, the coefficient of the constant term first.
#[inline(always)]
fn polynomial<const TERMS: usize>(coefficients: &[f32; TERMS], x: f32) -> f32 {
    let mut sum = coefficients[TERMS - 1];
    for &coefficient in coefficients[..TERMS - 1].iter().rev() {
        sum = sum.mul_add(x, coefficient);
    }
    sum
}

/// Returns erf x, within a unit in the last place. Beyond 4 it is 1 in f32.
///
/// The inaccuracy of the exponential has little effect on its difference from 1.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let size = x.abs();
    let near = polynomial(&ERF_NEAR, x * x).mul_add(x, x);
    let size = if size > 4.0 { 4.0 } else { size };
    // e^logarithm = 2ⁿ · eʳ.
    let logarithm = -polynomial(&ERF_FAR, size);
    let (rest, shifted) = reduced(logarithm);
    let power = f32::from_bits(shifted.wrapping_add(127) << 23);
    let series = [1.0, 1.0, 1.0 / 2.0, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0];
    let far = (1.0 - polynomial(&series, rest) * power).copysign(x);
    if size < ERF_SPLIT { near } else { far }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::processor::{Loop, vectors};

    /// Checks a function against one of f64 at numbers of all exponents, within a unit in the last place.
    fn is_near(function: fn(f32) -> f32, wanted: fn(f64) -> f64) {
        let many = (0..u32::MAX).step_by(1 << 10).map(f32::from_bits);
        let close = (0..40_000).map(|at| (at as f32 - 20_000.0) / 1_700.0);
        for x in many.chain(close).chain([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN]) {
            let (found, wanted) = (function(x), wanted(f64::from(x)) as f32);
            let apart = (i64::from(found.to_bits()) - i64::from(wanted.to_bits())).abs();
            assert!(apart <= 1 || (found.is_nan() && wanted.is_nan()), "of {x:e}: {found:e}, not {wanted:e}");
        }
    }

    #[test]
    fn functions_are_within_a_unit_in_the_last_place() {
        is_near(exp, f64::exp);
        is_near(tanh, f64::tanh);
        is_near(ln, f64::ln);
        is_near(erf, libm::erf);
    }

    struct Each<'e> {
        function: fn(f32) -> f32,
        numbers: &'e [f32],
        found: &'e mut [f32],
    }

    impl Loop for Each<'_> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            self.found.iter_mut().zip(self.numbers).for_each(|(to, &x)| *to = (self.function)(x));
        }
    }

    #[test]
    fn a_loop_has_the_same_bits_in_vectors() {
        let numbers: Vec<f32> = (0..1003).map(|at| (at as f32 - 500.0) / 37.0).collect();
        for function in [exp, tanh, ln, erf] {
            let mut found = vec![0.0; numbers.len()];
            vectors(Each { function, numbers: &numbers, found: &mut found });
            let bits = |x: &f32| x.to_bits();
            assert!(found.iter().map(bits).eq(numbers.iter().map(|&x| function(x).to_bits())));
        }
    }
}
