//! Functions of one tensor: entries of the table. See [`elementwise`](super).

/// Passes every entry of this file to a macro.
#[macro_export]
#[doc(hidden)]
macro_rules! functions_table {
    ($callback:ident $($first:tt)*) => {
        $callback! {
            $($first)*
            /// −x.
            neg(x) Negation { body: -x, reference: -x, samples: [[-2.0], [0.5]], numbers: [] }
            /// |x|.
            abs(x) Numeric { body: x.abs(), reference: x.abs(), samples: [[-2.0], [0.5]], numbers: [], complex: "thalweg::abs_of_complex" }
            /// −1, 0 or 1 with the sign of x.
            sign(x) NumericOrBool {
                body: x.lt(0.0).select(x.like(-1.0), x.gt(0.0).select(x.like(1.0), x.like(0.0))),
                reference: if x == 0.0 { 0.0 } else { x.signum() },
                samples: [[-2.0], [0.5]],
                numbers: [],
            }
            /// 1 / x.
            reciprocal(x) Floating {
                body: 1.0 / x,
                gradient(y, g): -(g * (y * y).conj()),
                reference: x.recip(),
                samples: [[-2.0], [0.5]],
                numbers: [],
                autocast: Full,
            }
            /// √x.
            sqrt(x) Floating {
                body: x.sqrt(),
                gradient(y, g): g / (y * 2.0),
                reference: x.sqrt(),
                samples: [[0.25], [2.0]],
                numbers: [],
                complex: "thalweg::sqrt_of_complex",
            }
            /// 1 / √x.
            rsqrt(x) Floating {
                body: x.rsqrt(),
                gradient(y, g): -0.5 * (g * y * y * y),
                reference: x.powf(-0.5),
                samples: [[0.25], [2.0]],
                numbers: [],
                autocast: Full,
                complex: "thalweg::rsqrt_of_complex",
            }
            /// eˣ.
            exp(x) Floating {
                body: x.exp(),
                gradient(y, g): g * y,
                reference: x.exp(),
                samples: [[-2.0], [0.5]],
                numbers: [],
                autocast: Full,
                complex: "thalweg::exp_of_complex",
            }
            /// eˣ − 1, exact near 0.
            expm1(x) Floating {
                body: x.expm1(),
                gradient(y, g): g * (y + 1.0),
                reference: x.exp_m1(),
                samples: [[-2.0], [0.001]],
                numbers: [],
                autocast: Full,
                complex: "thalweg::expm1_of_complex",
            }
            /// The natural logarithm.
            log(x) Floating { body: x.log(), reference: x.ln(), samples: [[0.25], [2.0]], numbers: [], autocast: Full, complex: "thalweg::log_of_complex" }
            /// ln (1 + x), exact near 0.
            log1p(x) Floating { body: x.log1p(), reference: x.ln_1p(), samples: [[-0.5], [0.001]], numbers: [], autocast: Full, complex: "thalweg::log1p_of_complex" }
            /// The sine.
            sin(x) Floating { body: x.sin(), reference: x.sin(), samples: [[-2.0], [0.5]], numbers: [], complex: "thalweg::sin_of_complex" }
            /// The cosine.
            cos(x) Floating { body: x.cos(), reference: x.cos(), samples: [[-2.0], [0.5]], numbers: [], complex: "thalweg::cos_of_complex" }
            /// The hyperbolic tangent.
            tanh(x) Floating {
                body: x.tanh(),
                gradient(y, g): g * (1.0 - y * y),
                reference: x.tanh(),
                samples: [[-2.0], [0.5]],
                numbers: [],
                complex: "thalweg::tanh_of_complex",
            }
            /// The largest integer that is not above x.
            floor(x) Numeric { body: if x.dtype().is_differentiable() { x.floor() } else { x }, reference: x.floor(), samples: [[-1.5], [0.5]], numbers: [] }
            /// The smallest integer that is not below x.
            ceil(x) Numeric { body: if x.dtype().is_differentiable() { x.ceil() } else { x }, reference: x.ceil(), samples: [[-1.5], [0.5]], numbers: [] }
            /// x without its fraction.
            trunc(x) Numeric { body: if x.dtype().is_differentiable() { x.trunc() } else { x }, reference: x.trunc(), samples: [[-1.5], [0.5]], numbers: [] }
            /// The nearest integer, ties to even.
            round(x) Numeric {
                body: if x.dtype().is_differentiable() { x.round() } else { x },
                reference: x.round_ties_even(),
                samples: [[-1.25], [0.75]],
                numbers: [],
            }
            /// The logical negation.
            logical_not(x) Logical {
                body: x.logical_not(),
                reference: f64::from(x == 0.0),
                samples: [[0.0], [3.0]],
                numbers: [],
            }
            /// x · other. Integers wrap around, and so does a number outside of their dtype's range, as in PyTorch.
            mul_scalar(x; other): "mul.Scalar(Tensor self, Scalar other) -> Tensor" Numeric { body: x * other, reference: x * other, samples: [[-2.0], [0.5]], numbers: [3.0] }
            /// Returns whether x = other, after rounding other to x's dtype (integers wrap around), as in PyTorch.
            eq_scalar(x; other): "eq.Scalar(Tensor self, Scalar other) -> Tensor" Comparison {
                body: x.eq(other),
                reference: f64::from(x == other),
                samples: [[2.0], [3.0]],
                numbers: [3.0],
            }
            /// Returns whether x > other, after rounding other to x's dtype (integers wrap around), as in PyTorch.
            gt_scalar(x; other): "gt.Scalar(Tensor self, Scalar other) -> Tensor" Comparison {
                body: x.gt(other),
                reference: f64::from(x > other),
                samples: [[2.0], [3.0], [4.0]],
                numbers: [3.0],
            }
            /// 2ˣ.
            exp2(x) Floating {
                body: x.exp2(),
                gradient(y, g): g * y * std::f64::consts::LN_2,
                reference: x.exp2(),
                samples: [[-2.0], [0.5]],
                numbers: [],
                complex: "thalweg::exp2_of_complex",
            }
            /// The logarithm to base 2.
            log2(x) Floating {
                body: x.log2(),
                reference: x.log2(),
                samples: [[0.25], [2.0]],
                numbers: [],
                autocast: Full,
                complex: "thalweg::log2_of_complex",
            }
            /// The logarithm to base 10.
            log10(x) Floating {
                body: x.log10(),
                reference: x.log10(),
                samples: [[0.25], [2.0]],
                numbers: [],
                autocast: Full,
                complex: "thalweg::log10_of_complex",
            }
            /// The tangent.
            tan(x) Floating {
                body: x.tan(),
                gradient(y, g): g * (1.0 + y * y),
                reference: x.sin() / x.cos(),
                samples: [[-1.0], [0.5]],
                numbers: [],
                autocast: Full,
                complex: "thalweg::tan_of_complex",
            }
            /// The inverse of the sine, in [−π/2, π/2].
            asin(x) Floating {
                body: x.asin(),
                reference: x.atan2((1.0 - x * x).sqrt()),
                samples: [[-0.5], [0.25]],
                numbers: [],
                autocast: Full,
                complex: "thalweg::asin_of_complex",
            }
            /// The inverse of the cosine, in [0, π].
            acos(x) Floating {
                body: x.acos(),
                reference: (1.0 - x * x).sqrt().atan2(x),
                samples: [[-0.5], [0.25]],
                numbers: [],
                autocast: Full,
                complex: "thalweg::acos_of_complex",
            }
            /// The inverse of the tangent, in [−π/2, π/2].
            atan(x) Floating {
                body: x.atan(),
                reference: x.atan2(1.0),
                samples: [[-0.5], [0.25]],
                numbers: [],
                complex: "thalweg::atan_of_complex",
            }
            /// The hyperbolic sine.
            sinh(x) Floating {
                body: x.sinh(),
                reference: (x.exp() - (-x).exp()) / 2.0,
                samples: [[-2.0], [0.5]],
                numbers: [],
                autocast: Full,
                complex: "thalweg::sinh_of_complex",
            }
            /// The hyperbolic cosine.
            cosh(x) Floating {
                body: x.cosh(),
                reference: (x.exp() + (-x).exp()) / 2.0,
                samples: [[-2.0], [0.5]],
                numbers: [],
                autocast: Full,
                complex: "thalweg::cosh_of_complex",
            }
            /// The inverse of the hyperbolic sine.
            asinh(x) Floating {
                body: x.asinh(),
                reference: (x + (x * x + 1.0).sqrt()).ln(),
                samples: [[-2.0], [0.5]],
                numbers: [],
                complex: "thalweg::asinh_of_complex",
            }
            /// The inverse of the hyperbolic cosine, at least 0.
            acosh(x) Floating {
                body: x.acosh(),
                reference: (x + (x * x - 1.0).sqrt()).ln(),
                samples: [[1.5], [4.0]],
                numbers: [],
                complex: "thalweg::acosh_of_complex",
            }
            /// The inverse of the hyperbolic tangent.
            atanh(x) Floating {
                body: x.atanh(),
                reference: 0.5 * ((1.0 + x) / (1.0 - x)).ln(),
                samples: [[-0.5], [0.25]],
                numbers: [],
                complex: "thalweg::atanh_of_complex",
            }
            /// The error function.
            erf(x) Floating {
                body: x.erf(),
                reference: libm::erf(x),
                samples: [[-1.0], [0.5]],
                numbers: [],
            }
            /// 1 minus the error function, exact where the error function is near 1.
            erfc(x) Floating {
                body: x.erfc(),
                reference: libm::erfc(x),
                samples: [[-1.0], [0.5], [3.0]],
                numbers: [],
            }
            /// The logarithm of |Γ(x)|.
            lgamma(x) Floating {
                body: x.lgamma(),
                reference: libm::lgamma(x),
                samples: [[0.5], [3.5]],
                numbers: [],
            }
            /// The derivative of ln Γ(x).
            digamma(x) Floating {
                body: x.digamma(),
                gradients(g): [g * x.trigamma()],
                // ψ at the two samples, from tables.
                reference: if x < 1.0 { -1.085_860_879_786_472_2 } else { 1.103_156_640_645_243 },
                samples: [[0.75], [3.5]],
                numbers: [],
            }
            /// Returns whether x is not a number.
            isnan(x) Comparison {
                body: x.eq(x).logical_not(),
                reference: f64::from(x.is_nan()),
                samples: [[1.0], [f64::NAN]],
                numbers: [],
            }
            /// Returns whether x is infinite.
            isinf(x) Comparison {
                body: if x.dtype().is_differentiable() { x.abs().eq(f64::INFINITY) } else { x.eq(x).logical_not() },
                reference: f64::from(x.is_infinite()),
                samples: [[1.0], [f64::NEG_INFINITY], [f64::NAN]],
                numbers: [],
                complex: "thalweg::isinf_of_complex",
            }
            /// Returns whether x is neither infinite nor NaN.
            isfinite(x) Comparison {
                body: if x.dtype().is_differentiable() { x.abs().lt(f64::INFINITY) } else { x.eq(x) },
                reference: f64::from(x.is_finite()),
                samples: [[1.0], [f64::NEG_INFINITY], [f64::NAN]],
                numbers: [],
                complex: "thalweg::isfinite_of_complex",
            }
            /// The fraction of x, with its sign.
            frac(x) Floating {
                body: x - x.trunc().detach(),
                reference: x.fract(),
                samples: [[-1.25], [0.75]],
                numbers: [],
            }
            /// Degrees in radians.
            deg2rad(x) Floating {
                body: x * (std::f64::consts::PI / 180.0),
                reference: x.to_radians(),
                samples: [[-90.0], [30.0]],
                numbers: [],
            }
            /// Radians in degrees.
            rad2deg(x) Floating {
                body: x * (180.0 / std::f64::consts::PI),
                reference: x.to_degrees(),
                samples: [[-1.5], [0.5]],
                numbers: [],
            }
            /// sin(πx) / πx, and 1 at 0.
            sinc(x) Floating {
                body: {
                    let angle = x * std::f64::consts::PI;
                    (angle * angle).eq(0.0).select(x.like(1.0), angle.sin() / angle)
                },
                reference: if x == 0.0 { 1.0 } else { (std::f64::consts::PI * x).sin() / (std::f64::consts::PI * x) },
                samples: [[-0.7], [0.3]],
                numbers: [],
                complex: "thalweg::sinc_of_complex",
            }
            /// Returns whether x ≠ other, after rounding other to x's dtype (integers wrap around), as in PyTorch.
            ne_scalar(x; other): "ne.Scalar(Tensor self, Scalar other) -> Tensor" Comparison {
                body: x.eq(other).logical_not(),
                reference: f64::from(x != other),
                samples: [[2.0], [3.0], [4.0]],
                numbers: [3.0],
            }
            /// Returns whether x < other, after rounding other to x's dtype (integers wrap around), as in PyTorch.
            lt_scalar(x; other): "lt.Scalar(Tensor self, Scalar other) -> Tensor" Comparison {
                body: x.lt(other),
                reference: f64::from(x < other),
                samples: [[2.0], [3.0], [4.0]],
                numbers: [3.0],
            }
            /// Returns whether x ≤ other, after rounding other to x's dtype (integers wrap around), as in PyTorch.
            le_scalar(x; other): "le.Scalar(Tensor self, Scalar other) -> Tensor" Comparison {
                body: x.le(other),
                reference: f64::from(x <= other),
                samples: [[2.0], [3.0], [4.0]],
                numbers: [3.0],
            }
            /// Returns whether x ≥ other, after rounding other to x's dtype (integers wrap around), as in PyTorch.
            ge_scalar(x; other): "ge.Scalar(Tensor self, Scalar other) -> Tensor" Comparison {
                body: x.ge(other),
                reference: f64::from(x >= other),
                samples: [[2.0], [3.0], [4.0]],
                numbers: [3.0],
            }
            /// The remainder of the truncating division; it has the sign of x.
            fmod_scalar(x; other): "fmod.Scalar(Tensor self, Scalar other) -> Tensor" Numeric {
                body: x % other,
                reference: x % other,
                samples: [[-5.5], [0.5]],
                numbers: [4.0],
            }
            /// The remainder of the division that rounds down; it has the sign of other.
            remainder_scalar(x; other): "remainder.Scalar(Tensor self, Scalar other) -> Tensor" Numeric {
                body: floored_remainder(x, other),
                reference: x - other * (x / other).floor(),
                samples: [[-5.5], [0.5]],
                numbers: [4.0],
            }
            /// The bits that are set in both of x and other; for truth values, whether both are true.
            bitwise_and_scalar(x; other): "bitwise_and.Scalar(Tensor self, Scalar other) -> Tensor" Bits {
                body: x.and(other),
                reference: ((x as i64) & (other as i64)) as f64,
                samples: [[5.0], [-2.0]],
                numbers: [3.0],
            }
            /// The bits that are set in at least one of x and other; for truth values, whether at least one is true.
            bitwise_or_scalar(x; other): "bitwise_or.Scalar(Tensor self, Scalar other) -> Tensor" Bits {
                body: x.or(other),
                reference: ((x as i64) | (other as i64)) as f64,
                samples: [[5.0], [-2.0]],
                numbers: [3.0],
            }
            /// The bits that are set in exactly one of x and other; for truth values, whether exactly one is true.
            bitwise_xor_scalar(x; other): "bitwise_xor.Scalar(Tensor self, Scalar other) -> Tensor" Bits {
                body: x.xor(other),
                reference: ((x as i64) ^ (other as i64)) as f64,
                samples: [[5.0], [-2.0]],
                numbers: [3.0],
            }
            /// x · 2 to the power of other, without the bits beyond the dtype; 0 where other is negative or at least the number
            /// of bits.
            bitwise_left_shift_scalar(x; other): "bitwise_left_shift.Tensor_Scalar(Tensor self, Scalar other) -> Tensor" Integers {
                body: shifted_left(x, other),
                reference: ((x as i64) << (other as i64)) as f64,
                samples: [[5.0], [-2.0]],
                numbers: [3.0],
            }
            /// x over 2 to the power of other, rounded down; 0 or −1, by the sign of x, where other is negative or at least the
            /// number of bits.
            bitwise_right_shift_scalar(x; other): "bitwise_right_shift.Tensor_Scalar(Tensor self, Scalar other) -> Tensor" Integers {
                body: shifted_right(x, other),
                reference: ((x as i64) >> (other as i64)) as f64,
                samples: [[45.0], [-2.0]],
                numbers: [3.0],
            }
            /// The bits that are not set; for a truth value, its negation.
            bitwise_not(x) Bits {
                body: if x.dtype() == DType::Bool { x.logical_not() } else { -x - 1.0 },
                reference: -x - 1.0,
                samples: [[5.0], [-2.0]],
                numbers: [],
            }
        }
    };
}
