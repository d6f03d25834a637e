//! The elementwise operators: **one entry here is one operator**.
//!
//! From an entry are derived its CUDA kernel, its host execution, its gradient, its dispatch, its method on `Tensor`, and
//! its tests (against the reference in f64, against finite differences, kernel against host function, and the compilation
//! for every supported architecture). An entry reads:
//!
//! ```text
//! /// What it computes, in a sentence: this becomes the method's documentation.
//! name(x, y; number): "name.overload(Tensor self, Tensor other, Scalar number) -> Tensor" Rule {
//!     body: a formula over the inputs, in the primitives of `thalweg_ir::Value`,
//!     gradient(y, g): optional: the input's gradient by the result y and its gradient g, so that y is kept and not x,
//!     reference: the same function over f64, written independently,
//!     samples: [[x, y], …] inputs clear of kinks and poles,
//!     numbers: [values of the scalar arguments],
//! }
//! ```
//!
//! The schema is in the notation of `native_functions.yaml`; without one it is `name(Tensor self) -> Tensor`. What stands under
//! `parts` is a body of operators whose schema says more than the body takes, such as an `alpha`.
//!
//! `Rule` is a [`DTypeRule`](crate::DTypeRule). Inputs are broadcast against each other and arrive in the compute dtype.

/// Hands every entry of the table to a macro. The entries are the only list of elementwise operators there is.
#[macro_export]
macro_rules! elementwise_operators {
    ($callback:ident) => {
        $callback! {
            operators {
                /// −x.
                neg(x) Numeric { body: -x, reference: -x, samples: [[-2.0], [0.5]], numbers: [] }
                /// |x|.
                abs(x) Numeric { body: x.abs(), reference: x.abs(), samples: [[-2.0], [0.5]], numbers: [] }
                /// −1, 0 or 1 with the sign of x.
                sign(x) Numeric {
                    body: x.lt(0.0).select(x.like(-1.0), x.gt(0.0).select(x.like(1.0), x.like(0.0))),
                    reference: if x == 0.0 { 0.0 } else { x.signum() },
                    samples: [[-2.0], [0.5]],
                    numbers: [],
                }
                /// x².
                square(x) Numeric { body: x * x, reference: x.powi(2), samples: [[-2.0], [0.5]], numbers: [] }
                /// 1 / x.
                reciprocal(x) Floating {
                    body: 1.0 / x,
                    gradient(y, g): -(g * y * y),
                    reference: x.recip(),
                    samples: [[-2.0], [0.5]],
                    numbers: [],
                }
                /// √x.
                sqrt(x) Floating {
                    body: x.sqrt(),
                    gradient(y, g): g / (y * 2.0),
                    reference: x.sqrt(),
                    samples: [[0.25], [2.0]],
                    numbers: [],
                }
                /// 1 / √x.
                rsqrt(x) Floating {
                    body: 1.0 / x.sqrt(),
                    gradient(y, g): -0.5 * (g * y * y * y),
                    reference: x.powf(-0.5),
                    samples: [[0.25], [2.0]],
                    numbers: [],
                }
                /// eˣ.
                exp(x) Floating {
                    body: x.exp(),
                    gradient(y, g): g * y,
                    reference: x.exp(),
                    samples: [[-2.0], [0.5]],
                    numbers: [],
                }
                /// eˣ − 1, exact near 0.
                expm1(x) Floating {
                    body: x.expm1(),
                    gradient(y, g): g * (y + 1.0),
                    reference: x.exp_m1(),
                    samples: [[-2.0], [0.001]],
                    numbers: [],
                }
                /// The natural logarithm.
                log(x) Floating { body: x.log(), reference: x.ln(), samples: [[0.25], [2.0]], numbers: [] }
                /// ln (1 + x), exact near 0.
                log1p(x) Floating { body: x.log1p(), reference: x.ln_1p(), samples: [[-0.5], [0.001]], numbers: [] }
                /// The sine.
                sin(x) Floating { body: x.sin(), reference: x.sin(), samples: [[-2.0], [0.5]], numbers: [] }
                /// The cosine.
                cos(x) Floating { body: x.cos(), reference: x.cos(), samples: [[-2.0], [0.5]], numbers: [] }
                /// The hyperbolic tangent.
                tanh(x) Floating {
                    body: x.tanh(),
                    gradient(y, g): g * (1.0 - y * y),
                    reference: x.tanh(),
                    samples: [[-2.0], [0.5]],
                    numbers: [],
                }
                /// 1 / (1 + e⁻ˣ), without overflow in value or gradient.
                sigmoid(x) Floating {
                    // e^−|x|, with a derivative at 0 as well: |x| has none there.
                    body: {
                        let negative = x.lt(0.0);
                        let small = negative.select(x, -x).exp();
                        negative.select(small, x.like(1.0)) / (1.0 + small)
                    },
                    gradient(y, g): g * y * (1.0 - y),
                    reference: 0.5 * (1.0 + (0.5 * x).tanh()),
                    samples: [[-200.0], [-2.0], [0.5]],
                    numbers: [],
                }
                /// x · sigmoid(x).
                silu(x) Floating {
                    body: {
                        let negative = x.lt(0.0);
                        let small = negative.select(x, -x).exp();
                        x * (negative.select(small, x.like(1.0)) / (1.0 + small))
                    },
                    reference: x * 0.5 * (1.0 + (0.5 * x).tanh()),
                    samples: [[-2.0], [0.5]],
                    numbers: [],
                }
                /// The greater of x and 0. The gradient at 0 is 0, as in PyTorch.
                relu(x) Numeric {
                    body: x.le(0.0).select(x.like(0.0), x),
                    gradient(y, g): y.le(0.0).select(g.like(0.0), g),
                    reference: x.max(0.0),
                    samples: [[-2.0], [0.5]],
                    numbers: [],
                }
                /// x where it is positive, else x · negative_slope.
                leaky_relu(x; negative_slope): "leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor" Floating {
                    body: x.gt(0.0).select(x, x * negative_slope),
                    reference: if x > 0.0 { x } else { negative_slope * x },
                    samples: [[-2.0], [0.5]],
                    numbers: [0.25],
                }
                /// The largest integer that is not above x.
                floor(x) Floating { body: x.floor(), reference: x.floor(), samples: [[-1.5], [0.5]], numbers: [] }
                /// The smallest integer that is not below x.
                ceil(x) Floating { body: x.ceil(), reference: x.ceil(), samples: [[-1.5], [0.5]], numbers: [] }
                /// x without its fraction.
                trunc(x) Floating { body: x.trunc(), reference: x.trunc(), samples: [[-1.5], [0.5]], numbers: [] }
                /// The nearest integer, ties to even.
                round(x) Floating {
                    body: x.round(),
                    reference: x.round_ties_even(),
                    samples: [[-1.25], [0.75]],
                    numbers: [],
                }
                /// The logical opposite.
                logical_not(x) Logical {
                    body: x.logical_not(),
                    reference: f64::from(x == 0.0),
                    samples: [[0.0], [3.0]],
                    numbers: [],
                }
                /// x · other. Integers wrap around, and so does a number that their dtype does not hold, as in PyTorch.
                mul_scalar(x; other): "mul.Scalar(Tensor self, Scalar other) -> Tensor" Numeric { body: x * other, reference: x * other, samples: [[-2.0], [0.5]], numbers: [3.0] }
                /// x to the power of exponent.
                pow_scalar(x; exponent): "pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor" Floating {
                    body: x.pow(exponent),
                    reference: x.powf(exponent),
                    samples: [[0.25], [2.0]],
                    numbers: [3.0],
                }
                /// Whether x = other, which is rounded to x's dtype, and among integers wraps around, as in PyTorch.
                eq_scalar(x; other): "eq.Scalar(Tensor self, Scalar other) -> Tensor" Comparison {
                    body: x.eq(other),
                    reference: f64::from(x == other),
                    samples: [[2.0], [3.0]],
                    numbers: [3.0],
                }
                /// Whether x > other, which is rounded to x's dtype, and among integers wraps around, as in PyTorch.
                gt_scalar(x; other): "gt.Scalar(Tensor self, Scalar other) -> Tensor" Comparison {
                    body: x.gt(other),
                    reference: f64::from(x > other),
                    samples: [[2.0], [3.0], [4.0]],
                    numbers: [3.0],
                }
                /// x · y; of truth values, whether both are true.
                mul(x, y): "mul.Tensor(Tensor self, Tensor other) -> Tensor" NumericOrBool { body: x * y, reference: x * y, samples: [[-2.0, 3.0], [0.5, 4.0]], numbers: [] }
                /// x / y; integers are divided as f32.
                div(x, y): "div.Tensor(Tensor self, Tensor other) -> Tensor" Floating { body: x / y, reference: x / y, samples: [[-2.0, 3.0], [0.5, 4.0]], numbers: [] }
                /// x to the power of y.
                pow(x, y): "pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor" Floating { body: x.pow(y), reference: x.powf(y), samples: [[2.0, 3.0], [0.5, 4.0]], numbers: [] }
                /// The greater of x and y.
                maximum(x, y): "maximum(Tensor self, Tensor other) -> Tensor" NumericOrBool {
                    body: x.maximum(y),
                    reference: x.max(y),
                    samples: [[-2.0, 3.0], [0.5, -4.0]],
                    numbers: [],
                }
                /// The smaller of x and y.
                minimum(x, y): "minimum(Tensor self, Tensor other) -> Tensor" NumericOrBool {
                    body: x.minimum(y),
                    reference: x.min(y),
                    samples: [[-2.0, 3.0], [0.5, -4.0]],
                    numbers: [],
                }
                /// x + weight · (y − x).
                lerp(x, y; weight): "lerp.Scalar(Tensor self, Tensor end, Scalar weight) -> Tensor" Floating {
                    body: x + weight * (y - x),
                    reference: (1.0 - weight) * x + weight * y,
                    samples: [[-2.0, 3.0], [0.5, 4.0]],
                    numbers: [0.25],
                }
                /// Whether x = y.
                eq(x, y): "eq.Tensor(Tensor self, Tensor other) -> Tensor" Comparison {
                    body: x.eq(y),
                    reference: f64::from(x == y),
                    samples: [[-2.0, 3.0], [4.0, 4.0]],
                    numbers: [],
                }
                /// Whether x ≠ y.
                ne(x, y): "ne.Tensor(Tensor self, Tensor other) -> Tensor" Comparison {
                    body: x.eq(y).logical_not(),
                    reference: f64::from(x != y),
                    samples: [[-2.0, 3.0], [4.0, 4.0]],
                    numbers: [],
                }
                /// Whether x < y.
                lt(x, y): "lt.Tensor(Tensor self, Tensor other) -> Tensor" Comparison {
                    body: x.lt(y),
                    reference: f64::from(x < y),
                    samples: [[-2.0, 3.0], [4.0, 4.0], [5.0, 4.0]],
                    numbers: [],
                }
                /// Whether x ≤ y.
                le(x, y): "le.Tensor(Tensor self, Tensor other) -> Tensor" Comparison {
                    body: x.le(y),
                    reference: f64::from(x <= y),
                    samples: [[-2.0, 3.0], [4.0, 4.0], [5.0, 4.0]],
                    numbers: [],
                }
                /// Whether x > y.
                gt(x, y): "gt.Tensor(Tensor self, Tensor other) -> Tensor" Comparison {
                    body: x.gt(y),
                    reference: f64::from(x > y),
                    samples: [[-2.0, 3.0], [4.0, 4.0], [5.0, 4.0]],
                    numbers: [],
                }
                /// Whether x ≥ y.
                ge(x, y): "ge.Tensor(Tensor self, Tensor other) -> Tensor" Comparison {
                    body: x.ge(y),
                    reference: f64::from(x >= y),
                    samples: [[-2.0, 3.0], [4.0, 4.0], [5.0, 4.0]],
                    numbers: [],
                }
                /// Whether both are true.
                logical_and(x, y): "logical_and(Tensor self, Tensor other) -> Tensor" Logical {
                    body: x.and(y),
                    reference: f64::from(x != 0.0 && y != 0.0),
                    samples: [[0.0, 1.0], [2.0, 1.0]],
                    numbers: [],
                }
                /// Whether one of both is true.
                logical_or(x, y): "logical_or(Tensor self, Tensor other) -> Tensor" Logical {
                    body: x.or(y),
                    reference: f64::from(x != 0.0 || y != 0.0),
                    samples: [[0.0, 0.0], [0.0, 1.0]],
                    numbers: [],
                }
                /// x where the condition is true, else y (`torch.where`).
                select_where(condition, x, y): "where.self(Tensor condition, Tensor self, Tensor other) -> Tensor" Condition {
                    body: condition.select(x, y),
                    reference: if condition != 0.0 { x } else { y },
                    samples: [[0.0, 3.0, 4.0], [1.0, 3.0, 4.0]],
                    numbers: [],
                }
            }
            parts {
                /// ln (1 + e^(beta · x)) / beta, without overflow; x where beta · x is above the threshold.
                softplus_of(x; beta, threshold) Floating {
                    body: {
                        let scaled = x * beta;
                        let negative = scaled.lt(0.0);
                        let rest = negative.select(scaled, -scaled).exp().log1p();
                        scaled.gt(threshold).select(x, (negative.select(x.like(0.0), scaled) + rest) / beta)
                    },
                    reference: if beta * x > threshold { x } else { (1.0 + (beta * x).exp()).ln() / beta },
                    samples: [[-2.0], [0.5], [30.0]],
                    numbers: [0.5, 8.0],
                }
                /// x, but not below min; NaN where min is.
                clamp_min(x; min) Numeric {
                    body: min.eq(min).select(x.lt(min).select(min, x), min),
                    reference: x.max(min),
                    samples: [[-2.0], [0.5]],
                    numbers: [-1.0],
                }
                /// x, but not above max; NaN where max is.
                clamp_max(x; max) Numeric {
                    body: max.eq(max).select(x.gt(max).select(max, x), max),
                    reference: x.min(max),
                    samples: [[-2.0], [0.5]],
                    numbers: [0.25],
                }
                /// x + alpha · y.
                add_scaled(x, y; alpha) NumericOrBool {
                    body: x + alpha * y,
                    reference: x + alpha * y,
                    samples: [[-2.0, 3.0], [0.5, 4.0]],
                    numbers: [2.0],
                }
                /// x − alpha · y.
                sub_scaled(x, y; alpha) Numeric {
                    body: x - alpha * y,
                    reference: x - alpha * y,
                    samples: [[-2.0, 3.0], [0.5, 4.0]],
                    numbers: [2.0],
                }
                /// The Gaussian error linear unit: x · Φ(x).
                gelu(x) Floating {
                    body: 0.5 * x * (1.0 + (x * std::f64::consts::FRAC_1_SQRT_2).erf()),
                    // The tanh form is no oracle for the exact one: Φ by its series, Φ(x) = ½ + φ(x) · Σ x^(2n+1) / (2n+1)!!.
                    reference: {
                        let (mut term, mut sum) = (x, x);
                        for n in 1..60 {
                            term *= x * x / f64::from(2 * n + 1);
                            sum += term;
                        }
                        x * (0.5 + sum * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt())
                    },
                    samples: [[-2.0], [0.5]],
                    numbers: [],
                }
                /// The tanh form of `gelu` (`approximate='tanh'`): x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))).
                gelu_tanh(x) Floating {
                    body: {
                        let inner = 0.5 * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::SQRT_2;
                        0.5 * x * (1.0 + (inner * (x + 0.044715 * (x * x * x))).tanh())
                    },
                    // With tanh as a logistic function: (1 + tanh y) / 2 = 1 / (1 + e^−2y).
                    reference: {
                        let y = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                        x / (1.0 + (-2.0 * y).exp())
                    },
                    samples: [[-2.0], [0.5]],
                    numbers: [],
                }
                /// x + other. Integers wrap around, and so does a number that their dtype does not hold, as in PyTorch.
                add_scalar(x; other) Numeric { body: x + other, reference: x + other, samples: [[-2.0], [0.5]], numbers: [3.0] }
                /// x, but not below min and not above max; max where min is above it, and NaN where a bound is. At the bounds the
                /// gradient is x's, and bounds that the dtype does not hold are refused, as in PyTorch.
                clamp(x; min, max) Numeric {
                    body: {
                        let raised = x.lt(min).select(min, x);
                        let clamped = raised.gt(max).select(max, raised);
                        min.eq(min).select(max.eq(max).select(clamped, max), min)
                    },
                    reference: x.clamp(min, max),
                    samples: [[-2.0], [0.5], [4.0]],
                    numbers: [-1.0, 2.0],
                }
                /// x + y; of truth values, whether one of both is true.
                add(x, y) NumericOrBool { body: x + y, reference: x + y, samples: [[-2.0, 3.0], [0.5, 4.0]], numbers: [] }
                /// x − y.
                sub(x, y) Numeric { body: x - y, reference: x - y, samples: [[-2.0, 3.0], [0.5, 4.0]], numbers: [] }
                /// x · mask · scale: the gradient of dropout.
                masked_scale(x, mask; scale) Floating {
                    body: x * mask * scale,
                    reference: scale * (x * mask),
                    samples: [[-2.0, 1.0], [0.5, 0.0]],
                    numbers: [1.25],
                }
            }
        }
    };
}

/// The schema of an entry: what it says, else its name and a tensor.
macro_rules! schema {
    (operator, $name:ident, $schema:literal) => {
        Some($schema)
    };
    (operator, $name:ident) => {
        Some(concat!(stringify!($name), "(Tensor self) -> Tensor"))
    };
    (part, $name:ident) => {
        None
    };
}

macro_rules! define {
    (
        operators { $($operators:tt)* }
        parts { $($parts:tt)* }
    ) => {
        define!(operator, ELEMENTWISE, operators, $($operators)*);
        define!(part, PARTS, parts, $($parts)*);

        /// Every entry as a value, by its name.
        pub mod table {
            pub use super::operators::*;
            pub use super::parts::*;
        }
    };
    ($kind:ident, $list:ident, $module:ident, $(
        $(#[doc = $doc:literal])+
        $name:ident($($input:ident),+ $(; $($number:ident),+)?) $(: $schema:literal)? $rule:ident {
            body: $body:expr,
            $(gradient($result:ident, $gradient:ident): $slope:expr,)?
            reference: $reference:expr,
            samples: [$([$($sample:expr),+]),+],
            numbers: [$($value:expr),*] $(,)?
        }
    )*) => {
        #[allow(non_upper_case_globals, unused_imports)] // a value is named like its operator; the parts need less
        mod $module {
            use thalweg_ir::{BodyBuilder, Place, Value};

            use smallvec::SmallVec;

            use crate::definition::{DTypeRule, Examples, FromResult, LoopOp, Signature, Sizes, Space};

            $(
                $(#[doc = $doc])+
                pub static $name: LoopOp = LoopOp {
                    name: stringify!($name),
                    aten: schema!($kind, $name $(, $schema)?),
                    doc: concat!($($doc),+),
                    input_count: [$(stringify!($input)),+].len(),
                    scalars: &[$($(stringify!($number)),+)?],
                    sizes: Sizes::None,
                    rule: DTypeRule::$rule,
                    space: Space::Elementwise,
                    outputs: &[Place::Row],
                    build: {
                        fn formula<'b>($($input: Value<'b>,)+ $($($number: Value<'b>,)+)?) -> Value<'b> {
                            $body
                        }
                        fn build(builder: &BodyBuilder, signature: &Signature) {
                            let mut inputs = super::inputs(builder, signature, DTypeRule::$rule).into_iter();
                            $(let $input = inputs.next().expect("one value an input");)+
                            $($(let $number = super::number(builder, signature, DTypeRule::$rule);)+)?
                            let result = formula($($input,)+ $($($number,)+)?);
                            builder.output(result, signature.outputs[0], Place::Row);
                        }
                        build
                    },
                    from_result: [$({
                        fn from_result<'b>(
                            _: &'b BodyBuilder,
                            _: &Signature,
                            $result: Value<'b>,
                            $gradient: Value<'b>,
                        ) -> SmallVec<[Value<'b>; 2]> {
                            SmallVec::from_elem($slope, 1)
                        }
                        Some(from_result as FromResult)
                    },)? None][0],
                    examples: Some(Examples {
                        inputs: &[$(&[$($sample),+]),+],
                        scalars: &[$($value),*],
                        reference: {
                            fn reference(inputs: &[f64], numbers: &[f64]) -> f64 {
                                let _ = numbers;
                                let mut inputs = inputs.iter().copied();
                                $(let $input: f64 = inputs.next().expect("one value an input");)+
                                $(
                                    let mut numbers = numbers.iter().copied();
                                    $(let $number: f64 = numbers.next().expect("one value a number");)+
                                )?
                                $reference
                            }
                            reference
                        },
                    }),
                };
            )*
        }

        #[doc = concat!("The elementwise ", stringify!($module), ".")]
        pub static $list: &[&LoopOp] = &[$(&$module::$name),*];
    };
}

use smallvec::SmallVec;
use thalweg_ir::{BodyBuilder, DType, Value};

use crate::definition::{DTypeRule, LoopOp, Signature, scalar};

elementwise_operators!(define);

/// Loads the inputs in the dtype in which the rule computes.
fn inputs<'b>(builder: &'b BodyBuilder, signature: &Signature, rule: DTypeRule) -> SmallVec<[Value<'b>; 4]> {
    signature
        .inputs
        .iter()
        .enumerate()
        .map(|(index, &dtype)| {
            let compute = match rule {
                DTypeRule::Logical => DType::Bool,
                DTypeRule::Condition if index == 0 => DType::Bool,
                _ => signature.compute,
            };
            // What has no dimensions may be wider than the others, and is rounded to their dtype first, as in PyTorch.
            let common = signature.common;
            let is_narrower = common.is_floating_point() && common.size_bytes() < dtype.size_bytes();
            let rounded = if dtype.is_floating_point() && is_narrower { common } else { dtype };
            builder.input(dtype).to(rounded).to(compute)
        })
        .collect()
}

/// A number in the dtype in which the rule computes. One that is compared is rounded as the tensor is; others are as exact as what
/// is computed with them, as in PyTorch.
fn number<'b>(builder: &'b BodyBuilder, signature: &Signature, rule: DTypeRule) -> Value<'b> {
    let number = scalar(builder, signature.compute);
    if rule == DTypeRule::Comparison { number.to(signature.common).to(signature.compute) } else { number }
}
