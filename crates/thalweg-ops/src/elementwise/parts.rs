//! Formulas from which operators choose by their arguments: entries of the table. See [`elementwise`](super).

/// Passes every entry of this file to a macro.
#[macro_export]
#[doc(hidden)]
macro_rules! parts_table {
    ($callback:ident $($first:tt)*) => {
        $callback! {
            $($first)*
            /// ln (1 + e^(beta · x)) / beta, without overflow; x where beta · x is above the limit.
            softplus_of(x; beta, limit) Floating {
                body: {
                    let scaled = x * beta;
                    let negative = scaled.lt(0.0);
                    let rest = negative.select(scaled, -scaled).exp().log1p();
                    scaled.gt(limit).select(x, (negative.select(x.like(0.0), scaled) + rest) * (1.0 / beta))
                },
                reference: if beta * x > limit { x } else { (1.0 + (beta * x).exp()).ln() / beta },
                samples: [[-2.0], [0.5], [30.0]],
                numbers: [0.5, 8.0],
            }
            /// The fraction of x, between ½ and 1 with the sign of x, such that x is this times a power of 2; x where it is 0 or
            /// not finite.
            fraction_of_power(x) Floating {
                body: halves(x).0,
                reference: { let (mut m, mut e) = (x.abs(), 0); while m >= 1.0 { m /= 2.0; e += 1 } while m < 0.5 { m *= 2.0; e -= 1 } let _ = e; m.copysign(x) },
                samples: [[-3.0], [0.75], [0.011]],
            }
            /// The exponent of 2 that belongs to `fraction_of_power`; 0 where x is 0 or not finite.
            exponent_of_power(x) Floating {
                body: halves(x).1.detach(),
                reference: { let (mut m, mut e) = (x.abs(), 0.0); while m >= 1.0 { m /= 2.0; e += 1.0 } while m < 0.5 { m *= 2.0; e -= 1.0 } e },
                samples: [[-3.0], [0.75], [0.011]],
            }
            /// x, but not below min. The gradient is 0 where x or min is NaN.
            clamp_min(x; min) Numeric {
                body: x.ge(min).select(x, x.lt(min).select(min, x.detach())),
                reference: x.max(min),
                samples: [[-2.0], [0.5]],
                numbers: [-1.0],
            }
            /// x, but not above max. The gradient is 0 where x or max is NaN.
            clamp_max(x; max) Numeric {
                body: x.le(max).select(x, x.gt(max).select(max, x.detach())),
                reference: x.min(max),
                samples: [[-2.0], [0.5]],
                numbers: [0.25],
            }
            /// x / other; integers are divided as f32.
            div_scalar(x; other) Floating {
                body: x / other,
                reference: x / other,
                samples: [[-2.0], [0.5]],
                numbers: [4.0],
            }
            /// x · (1 / other): a quotient for floats of 16 bits, whose rounding is coarser than the two of f32 by far.
            mul_reciprocal(x; other) Floating {
                body: x * (x.like(1.0) / other),
                reference: x / other,
                samples: [[-2.0], [0.5]],
                numbers: [4.0],
            }
            /// x + alpha · y.
            add_scaled(x, y; alpha) NumericOrBool {
                body: if x.dtype().is_floating_point() { alpha.mul_add(y, x) } else { x + alpha * y },
                reference: x + alpha * y,
                samples: [[-2.0, 3.0], [0.5, 4.0]],
                numbers: [2.0],
            }
            /// x − alpha · y.
            sub_scaled(x, y; alpha) Numeric {
                body: if x.dtype().is_floating_point() { (-alpha).mul_add(y, x) } else { x - alpha * y },
                reference: x - alpha * y,
                samples: [[-2.0, 3.0], [0.5, 4.0]],
                numbers: [2.0],
            }
            /// The Gaussian error linear unit: x · Φ(x).
            gelu(x) Floating {
                body: 0.5 * x * (1.0 + (x * std::f64::consts::FRAC_1_SQRT_2).erf()),
                // The tanh form cannot serve as oracle for the exact one, so Φ is computed by its series, Φ(x) = ½ + φ(x) · Σ
                // x^(2n+1) / (2n+1)!!.
                reference: {
                    let (mut term, mut sum) = (x, x);
                    for n in 1..60 {
                        term *= x * x / f64::from(2 * n + 1);
                        sum += term;
                    }
                    x * (0.5 + sum * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt())
                },
                samples: [[-2.0], [0.5]],
            }
            /// The tanh form of `gelu` (`approximate='tanh'`): x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))).
            gelu_tanh(x) Floating {
                body: {
                    let inner = 0.5 * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::SQRT_2;
                    0.5 * x * (1.0 + (inner * (x + 0.044715 * (x * x * x))).tanh())
                },
                // tanh as a logistic function: (1 + tanh y) / 2 = 1 / (1 + e^−2y).
                reference: {
                    let y = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                    x / (1.0 + (-2.0 * y).exp())
                },
                samples: [[-2.0], [0.5]],
            }
            /// x + other. Integers wrap around, and so does a number outside of their dtype's range, as in PyTorch.
            add_scalar(x; other) Numeric { body: x + other, reference: x + other, samples: [[-2.0], [0.5]], numbers: [3.0] }
            /// x, but not below min and not above max; max where min is above it, and NaN where a bound is NaN. At the bounds the
            /// gradient is x's, and bounds outside of the dtype's range are refused, as in PyTorch.
            clamp(x; min, max) Numeric {
                body: {
                    let raised = x.lt(min).select(min, x);
                    let clamped = raised.gt(max).select(max, raised);
                    let outside = min.eq(min).select(max.eq(max).select(clamped, max), min);
                    x.ge(min).and(x.le(max)).select(x, outside.detach())
                },
                reference: x.clamp(min, max),
                samples: [[-2.0], [0.5], [4.0]],
                numbers: [-1.0, 2.0],
            }
            /// x + y; for truth values, whether at least one is true.
            add(x, y) NumericOrBool { body: x + y, reference: x + y, samples: [[-2.0, 3.0], [0.5, 4.0]] }
            /// The conjugate of x, for real numbers.
            conj_of(x) Numeric { body: x.conj(), reference: x, samples: [[-2.0], [0.5]] }
            /// x − y.
            sub(x, y) Numeric { body: x - y, reference: x - y, samples: [[-2.0, 3.0], [0.5, 4.0]] }
            /// x · mask · scale: the gradient of dropout.
            masked_scale(x, mask; scale) Floating {
                body: x * mask * scale,
                reference: scale * (x * mask),
                samples: [[-2.0, 1.0], [0.5, 0.0]],
                numbers: [1.25],
            }
            /// other − alpha · x.
            rsub_scalar(x; other, alpha) Numeric {
                body: if x.dtype().is_floating_point() { (-alpha).mul_add(x, other) } else { other - alpha * x },
                reference: other - alpha * x,
                samples: [[-2.0], [0.5]],
                numbers: [3.0, 2.0],
            }
            /// x / y without its fraction.
            trunc_divide(x, y) Numeric {
                body: if x.dtype().is_differentiable() { (x / y).trunc().detach() } else { x / y },
                reference: (x / y).trunc(),
                samples: [[-5.5, 4.0], [9.5, 4.0]],
            }
            /// The largest integer that is not above x / y.
            floor_divide_of(x, y) Numeric {
                body: floored_quotient(x, y).detach(),
                reference: (x / y).floor(),
                samples: [[-5.5, 4.0], [9.5, 4.0], [9.5, -4.0]],
            }
            /// x / other without its fraction.
            trunc_divide_scalar(x; other) Numeric {
                body: if x.dtype().is_differentiable() { (x / other).trunc().detach() } else { x / other },
                reference: (x / other).trunc(),
                samples: [[-5.5], [9.5]],
                numbers: [4.0],
            }
            /// The largest integer that is not above x / other.
            floor_divide_scalar(x; other) Numeric {
                body: floored_quotient(x, other).detach(),
                reference: (x / other).floor(),
                samples: [[-5.5], [9.5]],
                numbers: [4.0],
            }
            /// base to the power of x.
            pow_of_scalar(x; base) Floating {
                body: base.pow(x),
                reference: base.powf(x),
                samples: [[-2.0], [0.5]],
                numbers: [3.0],
            }
            /// ln (x / (1 − x)).
            logit_of(x) Floating {
                body: (x / (1.0 - x)).log(),
                gradients(g): [x.ge(0.0).and(x.le(1.0)).select(g / (x * (1.0 - x)), x.like(f64::NAN))],
                reference: (x / (1.0 - x)).ln(),
                samples: [[0.25], [0.75]],
            }
            /// ln (x / (1 − x)) for x between low and high; outside, that of the nearer bound, with a gradient of 0.
            logit_within(x; low, high) Floating {
                body: {
                    let inside = x.lt(low).select(low, x.gt(high).select(high, x));
                    (inside / (1.0 - inside)).log()
                },
                gradients(g): [x.lt(low).or(x.gt(high)).select(x.like(0.0), g / (x * (1.0 - x)))],
                reference: { let inside = x.clamp(low, high); (inside / (1.0 - inside)).ln() },
                samples: [[0.05], [0.25], [0.95]],
                numbers: [0.1, 0.9],
            }
            /// x where it is above the threshold, else value.
            threshold(x; limit, value) Numeric {
                body: x.le(limit).select(value, x),
                reference: if x > limit { x } else { value },
                samples: [[-2.0], [0.5]],
                numbers: [0.25, -3.0],
            }
            /// nan where x is NaN, posinf where it is +∞, neginf where it is −∞, else x.
            nan_to_num_of(x; nan, posinf, neginf) Floating {
                body: x.eq(x).select(x.eq(f64::INFINITY).select(posinf, x.eq(f64::NEG_INFINITY).select(neginf, x)), nan),
                reference: if x.is_nan() { nan } else { x.clamp(neginf, posinf) },
                samples: [[-2.0], [0.5]],
                numbers: [0.0, 9.0, -9.0],
            }
            /// x, but not below min and not above max; max where min is above it, and NaN where any of the three is NaN.
            clamp_between(x, min, max) NumericOrBool {
                // Where both bounds are equal, no gradient flows to the lower one, as in PyTorch.
                body: {
                    let raised = x.lt(min).select(min.lt(max).select(min, min.detach()), x.detach());
                    let bound = x.gt(max).or(max.lt(min)).select(max, raised);
                    let is_number = x.eq(x).and(min.eq(min)).and(max.eq(max));
                    x.ge(min).and(x.le(max)).select(x, is_number.select(bound, (x + min + max).detach()))
                },
                reference: x.max(min).min(max),
                samples: [[-2.0, -1.0, 2.0], [0.5, -1.0, 2.0], [4.0, -1.0, 2.0]],
            }
            /// x, but not below min; NaN where either is NaN.
            clamp_above(x, min) NumericOrBool {
                body: x.ge(min).select(x, x.lt(min).select(min, (x + min).detach())),
                reference: x.max(min),
                samples: [[-2.0, -1.0], [0.5, -1.0]],
            }
            /// x, but not above max; NaN where either is NaN.
            clamp_below(x, max) NumericOrBool {
                body: x.le(max).select(x, x.gt(max).select(max, (x + max).detach())),
                reference: x.min(max),
                samples: [[-2.0, -1.0], [0.5, -1.0]],
            }
            /// 0 where x is negative, y where it is 0, else 1.
            heaviside(x, y) NumericOrBool {
                body: x.eq(0.0).select(y, x.gt(0.0).select(x.like(1.0), x.like(0.0))).detach(),
                reference: if x == 0.0 { y } else { f64::from(x > 0.0) },
                samples: [[-2.0, 3.0], [0.5, -4.0]],
            }
            /// x to the power of y.
            power(x, y) Floating { body: x.pow(y), reference: x.powf(y), samples: [[2.0, 3.0], [0.5, 4.0]] }
            /// x to the power of y, for integers: 0 where y is negative and |x| is above 1.
            integer_power(x, y) Numeric {
                body: if x.dtype().is_differentiable() { x.pow(y) } else { integer_power_of(x, y) },
                reference: x.powf(y),
                samples: [[2.0, 3.0], [3.0, 4.0]],
            }
            /// x to the power of exponent.
            power_scalar(x; exponent) Floating {
                body: x.pow(exponent),
                reference: x.powf(exponent),
                samples: [[0.25], [2.0]],
                numbers: [3.0],
            }
            /// x to the power of 1: gradients of squares have it.
            power_1(x) Floating { body: x, reference: x, samples: [[0.25], [-2.0]] }
            /// x to the power of 2.
            power_2(x) Floating { body: x * x, reference: x * x, samples: [[0.25], [-2.0]] }
            /// x to the power of 3.
            power_3(x) Floating { body: x * x * x, reference: x.powi(3), samples: [[0.25], [-2.0]] }
            /// x to the power of −2.
            power_minus_2(x) Floating {
                body: 1.0 / (x * x),
                gradients(g): [g * -2.0 * x.pow(-3.0)],
                reference: x.powi(-2),
                samples: [[0.25], [-2.0]],
            }
            /// x to the power of exponent, for integers.
            integer_power_scalar(x; exponent) Numeric {
                body: if x.dtype().is_differentiable() { x.pow(exponent) } else { integer_power_of(x, exponent) },
                reference: x.powf(exponent),
                samples: [[-3.0], [2.0]],
                numbers: [3.0],
            }
            /// base to the power of x, for integers.
            integer_power_of_scalar(x; base) Numeric {
                body: if x.dtype().is_differentiable() { base.pow(x) } else { integer_power_of(base, x) },
                reference: base.powf(x),
                samples: [[3.0], [2.0]],
                numbers: [3.0],
            }
            /// |x| with the sign of y.
            copysign_of(x, y) Floating {
                body: y.lt(0.0).or((1.0 / y).eq(f64::NEG_INFINITY)).select(-x.abs(), x.abs()),
                reference: x.copysign(y),
                samples: [[-2.0, 3.0], [0.5, -4.0]],
            }
            /// |x| with the sign of other.
            copysign_scalar(x; other) Floating {
                body: other.lt(0.0).or((1.0 / other).eq(f64::NEG_INFINITY)).select(-x.abs(), x.abs()),
                reference: x.copysign(other),
                samples: [[-2.0], [0.5]],
                numbers: [-3.0],
            }
            /// x between min_val and max_val. The gradient at the bounds is 0.
            hardtanh_of(x; min_val, max_val) Numeric {
                body: x.le(min_val).select(min_val, x.ge(max_val).select(max_val, x)),
                reference: x.clamp(min_val, max_val),
                samples: [[-2.0], [0.5], [4.0]],
                numbers: [-1.0, 2.0],
            }
            /// x between min_val and max_val, which the dtype of the result has: where it is a bound, so is x, or x is beyond it.
            hardtanh_exact(x; min_val, max_val) Numeric {
                body: x.le(min_val).select(min_val, x.ge(max_val).select(max_val, x)),
                gradient(y, g): y.le(min_val).or(y.ge(max_val)).select(g.like(0.0), g),
                reference: x.clamp(min_val, max_val),
                samples: [[-2.0], [0.5], [4.0]],
                numbers: [-1.0, 2.0],
            }
            /// x where it is positive, else x · negative_slope.
            leaky_relu_of(x; negative_slope) Floating {
                body: x.gt(0.0).select(x, x * negative_slope),
                reference: if x > 0.0 { x } else { negative_slope * x },
                samples: [[-2.0], [0.5]],
                numbers: [-0.25],
            }
            /// x where it is positive, else x · negative_slope, which is not negative: the result is positive where x is.
            leaky_relu_rising(x; negative_slope) Floating {
                body: x.gt(0.0).select(x, x * negative_slope),
                gradient(y, g): y.gt(0.0).select(g, g * negative_slope),
                reference: if x > 0.0 { x } else { negative_slope * x },
                samples: [[-2.0], [0.5]],
                numbers: [0.25],
            }
            /// x moved towards 0 by lambd; 0 where |x| is at most lambd.
            softshrink_of(x; lambd) Floating {
                body: x.abs().le(lambd).select(x.like(0.0), x.lt(0.0).select(x + lambd, x - lambd)),
                reference: if x > lambd { x - lambd } else if x < -lambd { x + lambd } else { 0.0 },
                samples: [[-2.0], [0.25], [3.0]],
                numbers: [0.5],
            }
            /// The second derivative of ln Γ(x).
            trigamma(x) Floating {
                body: x.trigamma(),
                // At 3/4 it is π² − 8 G, with Catalan's constant G; at 7/2 it is π²/2 − 4 (1 + 1/9 + 1/25).
                reference: {
                    let square = std::f64::consts::PI.powi(2);
                    let sum = 1.0 + 1.0 / 9.0 + 1.0 / 25.0;
                    if x < 1.0 { square - 8.0 * 0.915_965_594_177_219 } else { square / 2.0 - 4.0 * sum }
                },
                samples: [[0.75], [3.5]],
            }
            /// x + weight · (y − x).
            lerp(x, y; weight) Floating {
                body: between(x, y, weight),
                reference: (1.0 - weight) * x + weight * y,
                samples: [[-2.0, 3.0], [0.5, 4.0]],
                numbers: [0.25],
            }
            /// x + weight · (y − x).
            lerp_tensor(x, y, weight) Floating {
                body: between(x, y, weight),
                reference: (1.0 - weight) * x + weight * y,
                samples: [[1.0, -2.0, 0.25], [0.5, 4.0, 0.75]],
            }
            /// x + value · y · z.
            addcmul(x, y, z; value) Numeric {
                body: x + value * y * z,
                reference: x + value * y * z,
                samples: [[1.0, -2.0, 3.0], [0.5, 4.0, 0.25]],
                numbers: [2.0],
            }
            /// x + value · y / z; integers are divided as f32.
            addcdiv(x, y, z; value) Floating {
                body: x + value * y / z,
                reference: x + value * (y / z),
                samples: [[1.0, -2.0, 3.0], [0.5, 4.0, 0.25]],
                numbers: [2.0],
            }
            /// Returns whether the sign of x is negative, that of −0 too.
            signbit(x) Comparison {
                body: if x.dtype().is_differentiable() { x.lt(0.0).or((1.0 / x).eq(f64::NEG_INFINITY)) } else { x.lt(0.0) },
                reference: f64::from(x.is_sign_negative()),
                samples: [[-2.0], [0.0], [-0.0], [0.5]],
            }
            /// Returns whether x is +∞.
            isposinf(x) Comparison {
                body: if x.dtype().is_differentiable() { x.ge(f64::INFINITY) } else { x.eq(x).logical_not() },
                reference: f64::from(x == f64::INFINITY),
                samples: [[1.0], [f64::NEG_INFINITY], [f64::INFINITY]],
            }
            /// Returns whether x is −∞.
            isneginf(x) Comparison {
                body: if x.dtype().is_differentiable() { x.le(f64::NEG_INFINITY) } else { x.eq(x).logical_not() },
                reference: f64::from(x == f64::NEG_INFINITY),
                samples: [[1.0], [f64::NEG_INFINITY], [f64::INFINITY]],
            }
            /// x².
            square_of(x) Numeric { body: x * x, reference: x.powi(2), samples: [[-2.0], [0.5]] }
        }
    };
}
