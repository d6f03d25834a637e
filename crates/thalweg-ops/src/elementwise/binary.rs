//! Functions of two and three tensors: entries of the table. See [`elementwise`](super).

/// Passes every entry of this file to a macro.
#[macro_export]
#[doc(hidden)]
macro_rules! binary_functions_table {
    ($callback:ident $($first:tt)*) => {
        $callback! {
            $($first)*
            /// x · y; for truth values, whether both are true.
            mul(x, y): "mul.Tensor(Tensor self, Tensor other) -> Tensor" NumericOrBool { body: x * y, reference: x * y, samples: [[-2.0, 3.0], [0.5, 4.0]] }
            /// x / y; integers are divided as f32.
            div(x, y): "div.Tensor(Tensor self, Tensor other) -> Tensor" Floating { body: x / y, gradients(g): [g / y.conj(), -(g * ((x / y) / y).conj())], reference: x / y, samples: [[-2.0, 3.0], [0.5, 4.0]] }
            /// The greater of x and y.
            maximum(x, y): "maximum(Tensor self, Tensor other) -> Tensor" NumericOrBool {
                body: x.maximum(y),
                reference: x.max(y),
                samples: [[-2.0, 3.0], [0.5, -4.0]],
            }
            /// The smaller of x and y.
            minimum(x, y): "minimum(Tensor self, Tensor other) -> Tensor" NumericOrBool {
                body: x.minimum(y),
                reference: x.min(y),
                samples: [[-2.0, 3.0], [0.5, -4.0]],
            }
            /// Returns whether x = y.
            eq(x, y): "eq.Tensor(Tensor self, Tensor other) -> Tensor" Comparison {
                body: x.eq(y),
                reference: f64::from(x == y),
                samples: [[-2.0, 3.0], [4.0, 4.0]],
            }
            /// Returns whether x ≠ y.
            ne(x, y): "ne.Tensor(Tensor self, Tensor other) -> Tensor" Comparison {
                body: x.eq(y).logical_not(),
                reference: f64::from(x != y),
                samples: [[-2.0, 3.0], [4.0, 4.0]],
            }
            /// Returns whether x < y.
            lt(x, y): "lt.Tensor(Tensor self, Tensor other) -> Tensor" Comparison {
                body: x.lt(y),
                reference: f64::from(x < y),
                samples: [[-2.0, 3.0], [4.0, 4.0], [5.0, 4.0]],
            }
            /// Returns whether x ≤ y.
            le(x, y): "le.Tensor(Tensor self, Tensor other) -> Tensor" Comparison {
                body: x.le(y),
                reference: f64::from(x <= y),
                samples: [[-2.0, 3.0], [4.0, 4.0], [5.0, 4.0]],
            }
            /// Returns whether x > y.
            gt(x, y): "gt.Tensor(Tensor self, Tensor other) -> Tensor" Comparison {
                body: x.gt(y),
                reference: f64::from(x > y),
                samples: [[-2.0, 3.0], [4.0, 4.0], [5.0, 4.0]],
            }
            /// Returns whether x ≥ y.
            ge(x, y): "ge.Tensor(Tensor self, Tensor other) -> Tensor" Comparison {
                body: x.ge(y),
                reference: f64::from(x >= y),
                samples: [[-2.0, 3.0], [4.0, 4.0], [5.0, 4.0]],
            }
            /// Returns whether both are true.
            logical_and(x, y): "logical_and(Tensor self, Tensor other) -> Tensor" Logical {
                body: x.and(y),
                reference: f64::from(x != 0.0 && y != 0.0),
                samples: [[0.0, 1.0], [2.0, 1.0]],
            }
            /// Returns whether at least one is true.
            logical_or(x, y): "logical_or(Tensor self, Tensor other) -> Tensor" Logical {
                body: x.or(y),
                reference: f64::from(x != 0.0 || y != 0.0),
                samples: [[0.0, 0.0], [0.0, 1.0]],
            }
            /// x where the condition is true, else y (`torch.where`).
            select_where(condition, x, y): "where.self(Tensor condition, Tensor self, Tensor other) -> Tensor" Condition {
                body: condition.select(x, y),
                reference: if condition != 0.0 { x } else { y },
                samples: [[0.0, 3.0, 4.0], [1.0, 3.0, 4.0]],
            }
            /// The remainder of the truncating division; it has the sign of x.
            fmod(x, y): "fmod.Tensor(Tensor self, Tensor other) -> Tensor" Numeric {
                body: x % y,
                reference: x % y,
                samples: [[-5.5, 4.0], [0.5, 4.0]],
            }
            /// The remainder of the division that rounds down; it has the sign of y.
            remainder(x, y): "remainder.Tensor(Tensor self, Tensor other) -> Tensor" Numeric {
                body: floored_remainder(x, y),
                reference: x - y * (x / y).floor(),
                samples: [[-5.5, 4.0], [0.5, 4.0], [5.5, -4.0]],
            }
            /// The angle of the point (y, x), in (−π, π].
            atan2(x, y): "atan2(Tensor self, Tensor other) -> Tensor" Floating {
                body: x.atan2(y),
                reference: x.atan2(y),
                samples: [[-2.0, 3.0], [0.5, 4.0]],
                autocast: Widest,
            }
            /// √(x² + y²), without overflow.
            hypot(x, y): "hypot(Tensor self, Tensor other) -> Tensor" Floating {
                body: length(x, y),
                gradients(g): [
                    length(x, y).eq(0.0).select(x.like(0.0), g * (x / length(x, y))),
                    length(x, y).eq(0.0).select(x.like(0.0), g * (y / length(x, y)))
                ],
                reference: x.hypot(y),
                samples: [[-2.0, 3.0], [0.5, 4.0]],
            }
            /// ln (eˣ + eʸ), without overflow.
            logaddexp(x, y): "logaddexp(Tensor self, Tensor other) -> Tensor" Floating {
                body: {
                    let is_less = x.lt(y);
                    let (large, small) = (is_less.select(y, x), is_less.select(x, y));
                    let is_tie = x.eq(y).and(x.abs().eq(f64::INFINITY));
                    is_tie.select(x.maximum(y), large + (small - large).exp().log1p())
                },
                reference: (x.exp() + y.exp()).ln(),
                samples: [[-2.0, 3.0], [0.5, 0.25]],
                complex: "thalweg::logaddexp_of_complex",
            }
            /// log₂ (2ˣ + 2ʸ), without overflow.
            logaddexp2(x, y): "logaddexp2(Tensor self, Tensor other) -> Tensor" Floating {
                body: {
                    let is_less = x.lt(y);
                    let (large, small) = (is_less.select(y, x), is_less.select(x, y));
                    let is_tie = x.eq(y).and(x.abs().eq(f64::INFINITY));
                    let rest = (small - large).exp2().log1p() * std::f64::consts::LOG2_E;
                    is_tie.select(x.maximum(y), large + rest)
                },
                reference: (x.exp2() + y.exp2()).log2(),
                samples: [[-2.0, 3.0], [0.5, 0.25]],
            }
            /// x · ln y, and 0 where x is 0.
            xlogy(x, y): "xlogy.Tensor(Tensor self, Tensor other) -> Tensor" Floating {
                body: times_logarithm(x, y, 0.0, y.log()),
                gradients(g): [
                    x.eq(0.0).and(y.le(0.0)).select(x.like(0.0), times_logarithm(g, y, 0.0, y.log())),
                    g * x / y
                ],
                reference: if x == 0.0 { 0.0 } else { x * y.ln() },
                samples: [[-2.0, 3.0], [0.5, 4.0]],
            }
            /// The greater of x and y; if one is NaN, the other.
            fmax(x, y): "fmax(Tensor self, Tensor other) -> Tensor" NumericOrBool {
                // The gradient of equal numbers goes entirely to the first, as in PyTorch.
                body: y.le(x).or(y.eq(y).logical_not()).select(x, y),
                reference: x.max(y),
                samples: [[-2.0, 3.0], [0.5, -4.0]],
            }
            /// The smaller of x and y; if one is NaN, the other.
            fmin(x, y): "fmin(Tensor self, Tensor other) -> Tensor" NumericOrBool {
                body: x.le(y).or(y.eq(y).logical_not()).select(x, y),
                reference: x.min(y),
                samples: [[-2.0, 3.0], [0.5, -4.0]],
            }
            /// Returns whether exactly one is true.
            logical_xor(x, y): "logical_xor(Tensor self, Tensor other) -> Tensor" Logical {
                body: x.xor(y),
                reference: f64::from((x != 0.0) != (y != 0.0)),
                samples: [[0.0, 1.0], [2.0, 1.0]],
            }
            /// The bits that are set in both; for truth values, whether both are true.
            bitwise_and(x, y): "bitwise_and.Tensor(Tensor self, Tensor other) -> Tensor" Bits {
                body: x.and(y),
                reference: ((x as i64) & (y as i64)) as f64,
                samples: [[5.0, 3.0], [-2.0, 7.0]],
            }
            /// The bits that are set in at least one; for truth values, whether at least one is true.
            bitwise_or(x, y): "bitwise_or.Tensor(Tensor self, Tensor other) -> Tensor" Bits {
                body: x.or(y),
                reference: ((x as i64) | (y as i64)) as f64,
                samples: [[5.0, 3.0], [-2.0, 7.0]],
            }
            /// The bits that are set in exactly one; for truth values, whether exactly one is true.
            bitwise_xor(x, y): "bitwise_xor.Tensor(Tensor self, Tensor other) -> Tensor" Bits {
                body: x.xor(y),
                reference: ((x as i64) ^ (y as i64)) as f64,
                samples: [[5.0, 3.0], [-2.0, 7.0]],
            }
            /// x · 2ʸ without the bits beyond the dtype; 0 where y is negative or at least the number of bits.
            bitwise_left_shift(x, y): "bitwise_left_shift.Tensor(Tensor self, Tensor other) -> Tensor" Integers {
                body: shifted_left(x, y),
                reference: ((x as i64) << (y as i64)) as f64,
                samples: [[5.0, 3.0], [-2.0, 4.0], [1.0, 0.0]],
            }
            /// ⌊x / 2ʸ⌋; 0 or −1, by the sign of x, where y is negative or at least the number of bits.
            bitwise_right_shift(x, y): "bitwise_right_shift.Tensor(Tensor self, Tensor other) -> Tensor" Integers {
                body: shifted_right(x, y),
                reference: ((x as i64) >> (y as i64)) as f64,
                samples: [[45.0, 3.0], [-2.0, 4.0], [1.0, 0.0]],
            }
        }
    };
}
