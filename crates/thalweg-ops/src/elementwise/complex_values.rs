//! Functions of a complex number over its parts, for loops that compute one part of the result.
//!
//! The functions do not overflow before the result does, lose no digits near 0 and 1, and choose the side of a branch cut by the
//! signs of zeros. Infinities and NaN have the results of C99 (Annex G). The inverse functions are those of W. Kahan, *Branch
//! cuts for complex elementary functions, or much ado about nothing's sign bit* (1987). Each odd hyperbolic function also serves
//! as its circular counterpart: sin z = −i sinh iz, and so on, with the parts exchanged.

use std::f64::consts::{FRAC_PI_2, LN_2};

use thalweg_ir::{DType, Value};

use super::length;

type Parts<'b> = (Value<'b>, Value<'b>);

/// Returns |x| with the sign of y.
pub(super) fn with_sign<'b>(x: Value<'b>, y: Value<'b>) -> Value<'b> {
    y.lt(0.0).or((1.0 / y).eq(f64::NEG_INFINITY)).select(-x.abs(), x.abs())
}

fn is_infinite(x: Value<'_>) -> Value<'_> {
    x.abs().eq(f64::INFINITY)
}

fn is_finite(x: Value<'_>) -> Value<'_> {
    x.abs().lt(f64::INFINITY)
}

/// Returns ln |a + b i|.
pub(super) fn log_size<'b>(a: Value<'b>, b: Value<'b>) -> Value<'b> {
    let (p, q) = (a.abs(), b.abs());
    let (large, small) = (p.maximum(q), p.minimum(q));
    let is_zero = large.eq(0.0);
    let ratio = small / is_zero.select(large.like(1.0), large);
    let far = large.log() + 0.5 * (ratio * ratio).log1p();
    let near = 0.5 * small.mul_add(small, (large - 1.0) * (large + 1.0)).log1p();
    let is_near = large.gt(0.7).and(large.lt(1.5));
    is_infinite(a).or(is_infinite(b)).select(large.like(f64::INFINITY), is_near.select(near, far))
}

/// Returns the parts of √(a + b i), whose real part is not negative.
pub(super) fn root<'b>(a: Value<'b>, b: Value<'b>) -> Parts<'b> {
    let (p, q) = (a.abs(), b.abs());
    let large = p.maximum(q);
    let is_zero = large.eq(0.0);
    let scale = is_zero.select(large.like(1.0), large);
    let (u, v) = (p / scale, q / scale);
    let wide = is_zero.select(large, scale.sqrt() * ((u + (u * u + v * v).sqrt()) * 0.5).sqrt());
    let narrow = is_zero.select(large, q / (wide * 2.0));
    let is_right = a.ge(0.0);
    let infinity = large.like(f64::INFINITY);
    // An infinite b makes both parts infinite. An infinite a makes one part infinite; the other is 0, or NaN if b is NaN.
    let choose = |is_wide: Value<'b>, finite: Value<'b>| {
        let of_infinite_a = is_wide.select(infinity, q * 0.0);
        is_infinite(b).select(infinity, is_infinite(a).select(of_infinite_a, finite))
    };
    let re = choose(is_right, is_right.select(wide, narrow));
    let im = choose(is_right.logical_not(), is_right.select(narrow, wide));
    (re, with_sign(im, b))
}

/// Returns the parts of e to the power of a + b i.
pub(super) fn exponential<'b>(a: Value<'b>, b: Value<'b>) -> Parts<'b> {
    let (size, half) = (a.exp(), (a * 0.5).exp());
    let overflows = is_infinite(size).and(is_finite(a));
    let times = |factor: Value<'b>| overflows.select(half * factor * half, size * factor);
    let has_no_angle = is_finite(b).logical_not();
    let zero = a.like(0.0);
    let vanishes = has_no_angle.and(a.eq(f64::NEG_INFINITY));
    let re = has_no_angle.and(a.eq(f64::INFINITY)).select(a, times(b.cos()));
    let im = b.eq(0.0).select(b, times(b.sin()));
    (vanishes.select(zero, re), vanishes.select(with_sign(zero, b), im))
}

/// Returns the parts of sinh (a + b i).
pub(super) fn sinh<'b>(a: Value<'b>, b: Value<'b>) -> Parts<'b> {
    let re = grown(a, a.sinh(), b.cos());
    // A zero or an infinity has no angle that could be lost.
    let keeps = is_finite(b).logical_not().and(a.eq(0.0).or(is_infinite(a)));
    let kept = a.eq(0.0).select(a, a.abs());
    (keeps.select(kept, re), b.eq(0.0).select(b, grown(a, a.cosh(), b.sin())))
}

/// Returns the parts of cosh (a + b i).
pub(super) fn cosh<'b>(a: Value<'b>, b: Value<'b>) -> Parts<'b> {
    let re = grown(a, a.cosh(), b.cos());
    let keeps = is_finite(b).logical_not().and(is_infinite(a));
    let sine = b.eq(0.0).select(b, b.sin());
    let zero = with_sign(a.like(0.0), a) * with_sign(a.like(1.0), sine);
    let im = a.eq(0.0).or(b.eq(0.0)).select(zero, grown(a, a.sinh(), sine));
    (keeps.select(a.abs(), re), im)
}

/// Returns a hyperbolic function of a times a factor, without overflow before the product overflows.
fn grown<'b>(a: Value<'b>, function: Value<'b>, factor: Value<'b>) -> Value<'b> {
    let half = (a.abs() * 0.5).exp();
    let product = with_sign(half, function) * (factor * 0.5) * half;
    is_infinite(function).and(is_finite(a)).select(product, function * factor)
}

/// Returns the parts of tanh (a + b i). Far from 0, the real part is ±1 in any precision.
pub(super) fn tanh<'b>(a: Value<'b>, b: Value<'b>) -> Parts<'b> {
    let is_far = a.abs().gt(20.0);
    let (s, t) = (is_far.select(a.like(0.0), a).sinh(), b.tan());
    let beta = t * t + 1.0;
    let divisor = beta * (s * s) + 1.0;
    let near = beta * (s * s + 1.0).sqrt() * s / divisor;
    let angle = is_infinite(a).and(is_finite(b).logical_not()).select(with_sign(b.like(0.0), b), b);
    let (sine, cosine) = (angle.sin(), angle.cos());
    // NaN where the angle is undefined.
    let unit = with_sign(a.like(1.0), a) + sine * 0.0;
    let small = 4.0 * sine * cosine * (-2.0 * a.abs()).exp();
    let re = is_far.select(unit, a.eq(0.0).select(a, near));
    (re, b.eq(0.0).select(b, is_far.select(small, t / divisor)))
}

/// Returns whether a number is so large that an inverse function equals a logarithm of it. Infinities next to NaN count as well.
fn is_large<'b>(x: Value<'b>, y: Value<'b>) -> Value<'b> {
    let limit = if x.dtype() == DType::F64 { 1e9 } else { 1e5 };
    x.abs().gt(limit).or(y.abs().gt(limit))
}

/// Returns the parts of √(1 − z) and √(1 + z).
fn roots_beside_one<'b>(x: Value<'b>, y: Value<'b>) -> [Parts<'b>; 2] {
    [root(1.0 - x, -y), root(1.0 + x, y)]
}

/// Returns the parts of arcsin (x + y i).
pub(super) fn asin<'b>(x: Value<'b>, y: Value<'b>) -> Parts<'b> {
    let [(a, b), (c, d)] = roots_beside_one(x, y);
    let is_far = is_large(x, y);
    let re = is_far.select(x.atan2(y.abs()), x.atan2(a * c - b * d));
    let im = is_far.select(log_size(x, y) + LN_2, (a * d - b * c).asinh());
    (x.eq(0.0).select(x, re), with_sign(im, y))
}

/// Returns the parts of arccos (x + y i).
pub(super) fn acos<'b>(x: Value<'b>, y: Value<'b>) -> Parts<'b> {
    let [(a, b), (c, d)] = roots_beside_one(x, y);
    let is_far = is_large(x, y);
    let re = is_far.select(y.abs().atan2(x), 2.0 * a.atan2(c));
    let im = is_far.select(log_size(x, y) + LN_2, (c * b - d * a).asinh());
    (x.eq(0.0).select(x.like(FRAC_PI_2), re), -with_sign(im, y))
}

/// Returns the parts of artanh (x + y i).
pub(super) fn atanh<'b>(x: Value<'b>, y: Value<'b>) -> Parts<'b> {
    let (p, q) = (x.abs(), y.abs());
    let gap = length(1.0 - p, y);
    let smallest = if x.dtype() == DType::F64 { 1e-150 } else { 1e-15 };
    let plain = 0.25 * (4.0 * p / (gap * gap)).log1p();
    let near = gap.lt(smallest).select(0.5 * (LN_2 - gap.log()), plain);
    // For large numbers only the inverse matters.
    let large = p.maximum(q);
    let (u, v) = (p / large, q / large);
    let square = (u * u + v * v) * large;
    let is_endless = is_infinite(x).or(is_infinite(y));
    let far = is_endless.select(p.like(0.0), u / square);
    let is_far = is_large(x, y);
    let re = with_sign(is_far.select(far, near), x);
    let rest = is_infinite(y).select(y.like(0.0), is_endless.select(y * 0.0, v / square));
    let right = FRAC_PI_2 - rest;
    let angle = 0.5 * (2.0 * y).atan2((1.0 - p) * (1.0 + p) - y * y);
    (x.eq(0.0).select(x, re), with_sign(is_far.select(right, angle), y))
}

/// Returns ln |1 + z|, exact near z = 0.
pub(super) fn log_size_beside_one<'b>(a: Value<'b>, b: Value<'b>) -> Value<'b> {
    // |1 + z|² − 1 = a · (a + 2) + b².
    let is_near = a.abs().lt(0.5).and(b.abs().lt(0.5));
    is_near.select(0.5 * b.mul_add(b, a * (a + 2.0)).log1p(), log_size(a + 1.0, b))
}

/// Returns the real part of e to the power of a + b i, less 1, exact near 0.
pub(super) fn real_expm1<'b>(a: Value<'b>, b: Value<'b>) -> Value<'b> {
    let sine = (b * 0.5).sin();
    let near = a.expm1() * b.cos() - 2.0 * sine * sine;
    a.abs().le(1.0).select(near, exponential(a, b).0 - 1.0)
}
