//! Functions of complex numbers. Both parts of a result are loops over the parts of the argument, entries of the table of elementwise operators;
//! the gradient is the product with the conjugate of the function's derivative.

use std::f64::consts::{LN_2, LN_10, LOG2_E, LOG10_E, PI};

use thalweg_runtime::Result;

use super::Body::{Composite, Differentiable};
use super::complex::{of_parts, parts};
use super::{call as call_operator, operators, single};
use crate::autograd::formula::Formula;
use crate::dispatch::{Arguments, Call, built_in};
use crate::tensor::Tensor;

/// Calls an entry over the parts of complex numbers that computes one part of the result.
macro_rules! part {
    ($name:literal, $call:ident, $a:ident, $b:ident) => {
        call_operator(built_in!($name)?, &[(&$a).into(), (&$b).into()], None, $call.label.location)?
    };
}

operators! {
    /// Returns the exponentials of complex numbers.
    "thalweg::exp_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&part!("thalweg::exp_real", call, a, b), &part!("thalweg::exp_imag", call, a, b)).map(single)
    }, &EXP), complex: Taken;
    /// Returns eᶻ − 1 of complex numbers, exact near 0.
    "thalweg::expm1_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&part!("thalweg::expm1_real", call, a, b), &part!("thalweg::exp_imag", call, a, b)).map(single)
    }, &EXPM1), complex: Taken;
    /// Returns the natural logarithms of complex numbers.
    "thalweg::log_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&part!("thalweg::log_of_length", call, a, b), &b.atan2(&a)?).map(single)
    }, &LOG), complex: Taken;
    /// Returns the logarithms of complex numbers to base 2.
    "thalweg::log2_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&part!("thalweg::log_of_length", call, a, b).mul_scalar(LOG2_E)?, &b.atan2(&a)?.mul_scalar(LOG2_E)?).map(single)
    }, &LOG2), complex: Taken;
    /// Returns the logarithms of complex numbers to base 10.
    "thalweg::log10_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&part!("thalweg::log_of_length", call, a, b).mul_scalar(LOG10_E)?, &b.atan2(&a)?.mul_scalar(LOG10_E)?).map(single)
    }, &LOG10), complex: Taken;
    /// Returns ln (1 + z) of complex numbers, exact near 0.
    "thalweg::log1p_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&part!("thalweg::log1p_real", call, a, b), &b.atan2(&a.add_scalar(1.0)?)?).map(single)
    }, &LOG1P), complex: Taken;
    /// Returns the square roots of complex numbers whose real parts are not negative.
    "thalweg::sqrt_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&part!("thalweg::sqrt_real", call, a, b), &part!("thalweg::sqrt_imag", call, a, b)).map(single)
    }, &SQRT), complex: Taken;
    /// Returns the hyperbolic sines of complex numbers.
    "thalweg::sinh_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&part!("thalweg::sinh_real", call, a, b), &part!("thalweg::sinh_imag", call, a, b)).map(single)
    }, &SINH), complex: Taken;
    /// Returns the hyperbolic cosines of complex numbers.
    "thalweg::cosh_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&part!("thalweg::cosh_real", call, a, b), &part!("thalweg::cosh_imag", call, a, b)).map(single)
    }, &COSH), complex: Taken;
    /// Returns the hyperbolic tangents of complex numbers.
    "thalweg::tanh_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&part!("thalweg::tanh_real", call, a, b), &part!("thalweg::tanh_imag", call, a, b)).map(single)
    }, &TANH), complex: Taken;
    /// Returns the sines of complex numbers: −i sinh iz.
    "thalweg::sin_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&part!("thalweg::sinh_imag", call, b, a), &part!("thalweg::sinh_real", call, b, a)).map(single)
    }, &SIN), complex: Taken;
    /// Returns the cosines of complex numbers: cosh iz.
    "thalweg::cos_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&part!("thalweg::cosh_real", call, b, a), &part!("thalweg::cosh_imag", call, b, a).neg()?).map(single)
    }, &COS), complex: Taken;
    /// Returns the tangents of complex numbers: −i tanh iz.
    "thalweg::tan_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&part!("thalweg::tanh_imag", call, b, a), &part!("thalweg::tanh_real", call, b, a)).map(single)
    }, &TAN), complex: Taken;
    /// Returns the arc sines of complex numbers.
    "thalweg::asin_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&part!("thalweg::asin_real", call, a, b), &part!("thalweg::asin_imag", call, a, b)).map(single)
    }, &ASIN), complex: Taken;
    /// Returns the arc cosines of complex numbers.
    "thalweg::acos_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&part!("thalweg::acos_real", call, a, b), &part!("thalweg::acos_imag", call, a, b)).map(single)
    }, &ACOS), complex: Taken;
    /// Returns the arc tangents of complex numbers: −i artanh iz.
    "thalweg::atan_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&part!("thalweg::atanh_imag", call, b, a), &part!("thalweg::atanh_real", call, b, a)).map(single)
    }, &ATAN), complex: Taken;
    /// Returns the inverse hyperbolic sines of complex numbers: −i arcsin iz.
    "thalweg::asinh_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&part!("thalweg::asin_imag", call, b, a), &part!("thalweg::asin_real", call, b, a)).map(single)
    }, &ASINH), complex: Taken;
    /// Returns the inverse hyperbolic cosines of complex numbers, whose real parts are not negative: ±i arccos z.
    "thalweg::acosh_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [a, b] = parts(call.tensor(0))?;
        let (re, im) = (part!("thalweg::acos_imag", call, a, b).abs()?, part!("thalweg::acos_real", call, a, b));
        of_parts(&re, &im.copysign(&b)?).map(single)
    }, &ACOSH), complex: Taken;
    /// Returns the inverse hyperbolic tangents of complex numbers.
    "thalweg::atanh_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&part!("thalweg::atanh_real", call, a, b), &part!("thalweg::atanh_imag", call, a, b)).map(single)
    }, &ATANH), complex: Taken;
    /// Returns the reciprocal square roots of complex numbers.
    "thalweg::rsqrt_of_complex(Tensor self) -> Tensor"
        = Composite(|call| call.tensor(0).sqrt()?.reciprocal().map(single)), complex: Taken;
    /// Returns 2 to the power of complex numbers.
    "thalweg::exp2_of_complex(Tensor self) -> Tensor"
        = Composite(|call| scaled(call.tensor(0), LN_2)?.exp().map(single)), complex: Taken;
    /// Returns 1 / (1 + e⁻ᶻ) of complex numbers.
    "thalweg::sigmoid_of_complex(Tensor self) -> Tensor"
        = Composite(|call| call.tensor(0).neg()?.exp()?.add_scalar(1.0)?.reciprocal().map(single)), complex: Taken;
    /// Returns z / (1 + e⁻ᶻ) of complex numbers.
    "thalweg::silu_of_complex(Tensor self) -> Tensor" = Composite(|call| {
        call.tensor(0).div(&call.tensor(0).neg()?.exp()?.add_scalar(1.0)?).map(single)
    }), complex: Taken;
    /// Returns z / (1 + |z|) of complex numbers.
    "thalweg::softsign_of_complex(Tensor self) -> Tensor"
        = Composite(|call| call.tensor(0).div(&call.tensor(0).abs()?.add_scalar(1.0)?).map(single)), complex: Taken;
    /// Returns sin(πz) / πz of complex numbers, and 1 at 0.
    "thalweg::sinc_of_complex(Tensor self) -> Tensor" = Composite(|call| {
        let angle = scaled(call.tensor(0), PI)?;
        let one = Tensor::ones(&[], angle.dtype(), angle.device())?;
        let is_zero = angle.eq_scalar(0.0)?;
        let divisor = is_zero.select_where(&one, &angle)?;
        is_zero.select_where(&one, &angle.sin()?.div(&divisor)?).map(single)
    }), complex: Taken;
    /// Returns ln (eˣ + eʸ) of complex numbers, without overflow.
    "thalweg::logaddexp_of_complex(Tensor self, Tensor other) -> Tensor"
        = Composite(|call| logarithm_of_sum(call).map(single)), complex: Taken;
}

/// Makes formulas of gradients from derivatives, each a function of the argument or of the result.
macro_rules! derivatives {
    ($($name:ident($of:ident $x:ident): $slope:expr;)*) => {$(
        static $name: Formula = derivatives!(@$of $x, $slope);
    )*};
    (@argument $z:ident, $slope:expr) => {
        Formula {
            inputs: &[0],
            outputs: &[],
            backward: |call| {
                call.one(0, || {
                    let $z = call.saved(0)?;
                    call.gradient()?.mul(&$slope.conj()?)
                })
            },
        }
    };
    (@result $w:ident, $slope:expr) => {
        Formula {
            inputs: &[],
            outputs: &[0],
            backward: |call| {
                call.one(0, || {
                    let $w = call.result(0)?;
                    call.gradient()?.mul(&$slope.conj()?)
                })
            },
        }
    };
}

derivatives! {
    EXP(result w): w;
    EXPM1(result w): w.add_scalar(1.0)?;
    LOG(argument z): z.reciprocal()?;
    LOG2(argument z): z.mul_scalar(LN_2)?.reciprocal()?;
    LOG10(argument z): z.mul_scalar(LN_10)?.reciprocal()?;
    LOG1P(argument z): z.add_scalar(1.0)?.reciprocal()?;
    SQRT(result w): w.mul_scalar(2.0)?.reciprocal()?;
    SINH(argument z): z.cosh()?;
    COSH(argument z): z.sinh()?;
    TANH(result w): w.square()?.neg()?.add_scalar(1.0)?;
    SIN(argument z): z.cos()?;
    COS(argument z): z.sin()?.neg()?;
    TAN(result w): w.square()?.add_scalar(1.0)?;
    ASIN(argument z): z.square()?.neg()?.add_scalar(1.0)?.rsqrt()?;
    ACOS(argument z): z.square()?.neg()?.add_scalar(1.0)?.rsqrt()?.neg()?;
    ATAN(argument z): z.square()?.add_scalar(1.0)?.reciprocal()?;
    ASINH(argument z): z.square()?.add_scalar(1.0)?.rsqrt()?;
    ACOSH(argument z): z.add_scalar(-1.0)?.rsqrt()?.mul(&z.add_scalar(1.0)?.rsqrt()?)?;
    ATANH(argument z): z.square()?.neg()?.add_scalar(1.0)?.reciprocal()?;
}

/// Returns complex numbers times a real one, each part separately, so that an infinite part leaves a zero in the other unchanged.
fn scaled(z: &Tensor, factor: f64) -> Result<Tensor> {
    z.view_as_real()?.mul_scalar(factor)?.contiguous()?.view_as_complex()
}

/// Returns ln (eˣ + eʸ): the argument with the greater real part, plus ln (1 + a small number).
fn logarithm_of_sum(call: &Call<'_>) -> Result<Tensor> {
    let (x, y) = (call.tensor(0), call.tensor(1));
    let (a, b) = (x.real()?, y.real()?);
    let is_less = a.lt(&b)?;
    let (large, small) = (is_less.select_where(y, x)?, is_less.select_where(x, y)?);
    let is_tie = a.eq(&b)?.logical_and(&a.isinf()?)?;
    is_tie.select_where(&large, &large.add(&small.sub(&large)?.exp()?.log1p()?)?)
}
