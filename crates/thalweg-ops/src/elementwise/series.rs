//! Special functions as Chebyshev series, and the references that they are tested against.
//!
//! The coefficients are computed from the functions' values at 64 Chebyshev points, which follow from their definitions in 40
//! digits, and are truncated where they no longer matter in f64. Each table states its function, variable and interval. The
//! formulas that combine them are in Abramowitz and Stegun, *Handbook of Mathematical Functions*: 9.1 and 9.2 (J, Y), 9.6 and 9.7
//! (I, K), 10.4 (Ai), 7.1 (erf).

#[rustfmt::skip]
mod coefficients;

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI, LN_2, PI};

use thalweg_ir::Value;

use coefficients::*;

/// Returns the sum of a Chebyshev series at a point of [−1, 1], by Clenshaw's recurrence.
fn sum<'b>(series: &[f64], point: Value<'b>) -> Value<'b> {
    let twice = point * 2.0;
    let (mut one, mut two) = (point.like(0.0), point.like(0.0));
    for &coefficient in series[1..].iter().rev() {
        (one, two) = (twice * one - two + coefficient, one);
    }
    point * one - two + series[0]
}

/// Returns the sum of a series over [0, 1].
fn of_unit<'b>(series: &[f64], place: Value<'b>) -> Value<'b> {
    sum(series, place * 2.0 - 1.0)
}

/// Returns |x|, with slope 1 at 0; NaN for NaN.
fn size(x: Value<'_>) -> Value<'_> {
    x.lt(0.0).select(-x, x)
}

/// Returns I₀(x) or I₁(x), times e⁻|x| if `is_scaled`. The power series up to |x| = 8 has terms of one sign, and has derivatives
/// at 0.
pub(super) fn bessel_i<'b>(order: u8, x: Value<'b>, is_scaled: bool) -> Value<'b> {
    let size = size(x);
    let square = x * x / 4.0;
    // Term k is the previous term times x²/4 / (k (k + n)).
    let series = (1..=30).rev().fold(x.like(1.0), |sum, k| {
        let divisor = f64::from(k) * f64::from(k + i32::from(order));
        square / divisor * sum + 1.0
    });
    let small = if order == 0 { series } else { x / 2.0 * series };
    let large = of_unit(if order == 0 { I0E_LARGE } else { I1E_LARGE }, 8.0 / size) / size.sqrt();
    let large = if order == 0 { large } else { x.lt(0.0).select(-large, large) };
    let (small, large) =
        if is_scaled { (small * (-x.abs()).exp(), large) } else { (small, large * size.exp()) };
    size.le(8.0).select(small, large)
}

/// Returns the factors of cosine and sine in J and Y of order 0 or 1 for x ≥ 8, times √(2 / πx).
fn waves<'b>(order: u8, x: Value<'b>) -> [Value<'b>; 2] {
    let (p, q) = if order == 0 { (P0, Q0) } else { (P1, Q1) };
    let over = 8.0 / x;
    let scale = (FRAC_2_PI / x).sqrt();
    [of_unit(p, over * over) * scale, of_unit(q, over * over) * over * scale]
}

/// Returns cosine and sine of x − π/4, or for order 1 of x − 3π/4.
fn phase<'b>(order: u8, x: Value<'b>) -> [Value<'b>; 2] {
    let (sine, cosine) = (x.sin() * FRAC_1_SQRT_2, x.cos() * FRAC_1_SQRT_2);
    if order == 0 { [cosine + sine, sine - cosine] } else { [sine - cosine, -(sine + cosine)] }
}

/// Returns J₀(x) or J₁(x).
pub(super) fn bessel_j<'b>(order: u8, x: Value<'b>) -> Value<'b> {
    let size = size(x);
    let square = x * x / 64.0;
    let small = if order == 0 { of_unit(J0_SMALL, square) } else { x * of_unit(J1_SMALL, square) };
    let ([p, q], [cosine, sine]) = (waves(order, size), phase(order, size));
    let large = size.eq(f64::INFINITY).select(x.like(0.0), p * cosine - q * sine);
    let large = if order == 0 { large } else { x.lt(0.0).select(-large, large) };
    size.le(8.0).select(small, large)
}

/// Returns Y₀(x) or Y₁(x); NaN for negative numbers.
pub(super) fn bessel_y<'b>(order: u8, x: Value<'b>) -> Value<'b> {
    let square = x * x / 64.0;
    let small = match order {
        0 => of_unit(Y0_SMALL, square) + FRAC_2_PI * x.log() * of_unit(J0_SMALL, square),
        _ => {
            let j = x * of_unit(J1_SMALL, square);
            x * of_unit(Y1_SMALL, square) + FRAC_2_PI * (x.log() * j - 1.0 / x)
        }
    };
    let ([p, q], [cosine, sine]) = (waves(order, x), phase(order, x));
    let large = x.eq(f64::INFINITY).select(x.like(0.0), p * sine + q * cosine);
    x.eq(0.0).select(-1.0 / (x * x), x.le(8.0).select(small, large))
}

/// Returns K₀(x) or K₁(x), times eˣ if `is_scaled`; NaN for negative numbers.
pub(super) fn bessel_k<'b>(order: u8, x: Value<'b>, is_scaled: bool) -> Value<'b> {
    let square = x * x / 4.0;
    let logarithm = x.log() - LN_2;
    let small = match order {
        0 => of_unit(K0_SMALL, square) - logarithm * of_unit(I0_TINY, square),
        _ => of_unit(K1_SMALL, square) / x + logarithm * x * of_unit(I1_TINY, square),
    };
    let large = of_unit(if order == 0 { K0E_LARGE } else { K1E_LARGE }, 2.0 / x) / x.sqrt();
    let (small, large) = if is_scaled { (small * x.exp(), large) } else { (small, large * (-x).exp()) };
    x.eq(0.0).select(1.0 / (x * x), x.le(2.0).select(small, large))
}

/// Returns Ai(x).
pub(super) fn airy<'b>(x: Value<'b>) -> Value<'b> {
    // ζ(2) = ⅔ 2^(3/2).
    let first = 4.0 / 3.0 * std::f64::consts::SQRT_2;
    let middle = sum(AIRY_MIDDLE, x / 2.0);
    let zeta = |size: Value<'b>| size * size.sqrt() / 1.5;
    let decay = (-zeta(x)).exp() / (x.sqrt().sqrt() * (2.0 * PI.sqrt()));
    let positive = decay * of_unit(AIRY_POSITIVE, first / zeta(x));
    let down = -x;
    let angle = zeta(down);
    let (sine, cosine) = (angle.sin() * FRAC_1_SQRT_2, angle.cos() * FRAC_1_SQRT_2);
    let over = first / angle;
    let (f, g) = (of_unit(AIRY_F, over * over), of_unit(AIRY_G, over * over) * over);
    let negative = ((sine + cosine) * f - (cosine - sine) * g) / (down.sqrt().sqrt() * PI.sqrt());
    x.gt(2.0).select(positive, x.lt(-2.0).select(negative, middle))
}

/// Returns sin x / x.
pub(super) fn spherical_j0<'b>(x: Value<'b>) -> Value<'b> {
    let (size, square) = (x.abs(), x * x);
    let series = [156.0, 110.0, 72.0, 42.0, 20.0, 6.0];
    let small = series.iter().fold(x.like(1.0), |sum, &divisor| 1.0 - square / divisor * sum);
    size.lt(0.5).select(small, size.eq(f64::INFINITY).select(x.like(0.0), x.sin() / x))
}

/// Returns eˣ² erfc x.
pub(super) fn scaled_erfc<'b>(x: Value<'b>) -> Value<'b> {
    let (is_negative, size) = (x.lt(0.0), size(x));
    let value = sum(ERFCX, 1.0 - 8.0 / (size + 4.0)) / (1.0 + 2.0 * size);
    is_negative.select(2.0 * (x * x).exp() - value, value)
}

/// Returns the logarithm of the normal distribution's cumulative probability up to x.
pub(super) fn log_normal_cdf<'b>(x: Value<'b>) -> Value<'b> {
    let below = (scaled_erfc(-x * FRAC_1_SQRT_2) / 2.0).log() - x * x / 2.0;
    x.lt(-1.0).select(below, (-(x * FRAC_1_SQRT_2).erfc() / 2.0).log1p())
}

/// Returns erf⁻¹(x) / x as a function of w = −ln (1 − x²).
fn inverse_erf_over<'b>(w: Value<'b>) -> Value<'b> {
    let root = w.sqrt();
    let start = 6f64.sqrt();
    let low = of_unit(ERFINV_LOW, w / 6.0);
    let middle = of_unit(ERFINV_MIDDLE, (root - start) / (6.0 - start));
    let over = 6.0 / root;
    let least = 6.0 / 28.0;
    let high = root * of_unit(ERFINV_HIGH, (over - least) / (1.0 - least));
    w.le(6.0).select(low, root.le(6.0).select(middle, high))
}

/// Returns the number whose error function is x; NaN outside [−1, 1].
pub(super) fn inverse_erf<'b>(x: Value<'b>) -> Value<'b> {
    let size = x.abs();
    let near = size.lt(0.5);
    let w = near.select(-(-(x * x)).log1p(), -((1.0 - size) * (1.0 + size)).log());
    let ends = size.eq(1.0).select(x * f64::INFINITY, x.like(f64::NAN));
    size.lt(1.0).select(x * inverse_erf_over(w), ends)
}

/// Returns the number up to which the normal distribution's cumulative probability is p; NaN outside [0, 1].
pub(super) fn inverse_normal_cdf<'b>(p: Value<'b>) -> Value<'b> {
    let (x, w) = (2.0 * p - 1.0, -(4.0 * p * (1.0 - p)).log());
    let ends = p
        .eq(0.0)
        .select(p.like(f64::NEG_INFINITY), p.eq(1.0).select(p.like(f64::INFINITY), p.like(f64::NAN)));
    p.gt(0.0).and(p.lt(1.0)).select(x * std::f64::consts::SQRT_2 * inverse_erf_over(w), ends)
}

/// The integrals that define the functions, for the tests.
pub(super) mod reference {
    use std::f64::consts::PI;

    /// Returns an integral by Simpson's rule.
    pub fn integral(from: f64, to: f64, function: impl Fn(f64) -> f64) -> f64 {
        let steps = 20_000;
        let step = (to - from) / f64::from(steps);
        let weight = |at: i32| if at == 0 || at == steps { 1.0 } else { f64::from(2 + 2 * (at % 2)) };
        (0..=steps).map(|at| weight(at) * function(from + f64::from(at) * step)).sum::<f64>() * step / 3.0
    }

    /// Returns Jₙ(x): the mean of cos (nθ − x sin θ).
    pub fn j(order: f64, x: f64) -> f64 {
        integral(0.0, PI, |angle| (order * angle - x * angle.sin()).cos()) / PI
    }

    /// Returns Yₙ(x) for order 0 or 1 and x above 0.
    pub fn y(order: f64, x: f64) -> f64 {
        let waves = integral(0.0, PI, |angle| (x * angle.sin() - order * angle).sin());
        let sign = 1.0 - 2.0 * order;
        let tail =
            integral(0.0, 12.0, |t| ((order * t).exp() + sign * (-order * t).exp()) * (-x * t.sinh()).exp());
        (waves - tail) / PI
    }

    /// Returns Iₙ(x).
    pub fn i(order: f64, x: f64) -> f64 {
        integral(0.0, PI, |angle| (x * angle.cos()).exp() * (order * angle).cos()) / PI
    }

    /// Returns Kₙ(x) for x above 0.
    pub fn k(order: f64, x: f64) -> f64 {
        integral(0.0, 12.0, |t| (-x * t.cosh()).exp() * (order * t).cosh())
    }

    /// Returns Ai(x) by its power series.
    pub fn airy(x: f64) -> f64 {
        let (mut first, mut second) = (0.355_028_053_887_817_2, -0.258_819_403_792_806_8 * x);
        let mut sum = first + second;
        for n in (3..120).step_by(3).map(f64::from) {
            first *= x * x * x / (n * (n - 1.0));
            second *= x * x * x / (n * (n + 1.0));
            sum += first + second;
        }
        sum
    }

    /// Returns eˣ² erfc x.
    pub fn erfcx(x: f64) -> f64 {
        integral(0.0, 12.0, |t| (-t * (t + 2.0 * x)).exp()) * 2.0 / PI.sqrt()
    }

    /// Returns the normal distribution's cumulative probability up to x.
    pub fn normal_cdf(x: f64) -> f64 {
        integral(x - 30.0, x, |t| (-t * t / 2.0).exp()) / (2.0 * PI).sqrt()
    }

    /// Returns the argument between −9 and 9 at which a rising function has this value.
    pub fn inverse(value: f64, function: impl Fn(f64) -> f64) -> f64 {
        let (mut low, mut high) = (-9.0, 9.0);
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            if function(middle) < value { low = middle } else { high = middle }
        }
        low
    }
}
