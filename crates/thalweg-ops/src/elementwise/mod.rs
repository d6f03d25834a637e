//! The elementwise operators: **one entry here is one operator**.
//!
//! Derived from an entry are its CUDA kernel, its host execution, its gradient, its dispatch, its method on `Tensor`, and its
//! tests (against the reference in f64, against finite differences, kernel against host function, and compilation for every
//! supported architecture). An entry has this form:
//!
//! ```text
//! /// What it computes, in a sentence: this becomes the method's documentation.
//! name(x, y; number): "name.overload(Tensor self, Tensor other, Scalar number) -> Tensor" Rule {
//!     body: a formula over the inputs, in the primitives of `thalweg_ir::Value`,
//!     gradient(y, g): optional: the input's gradient by the result y, its gradient g and numbers, so that y is kept and not x,
//!     gradients(g): optional: the inputs' gradients, […], by inputs, numbers and the result's gradient g, where the derived ones
//!         would not be PyTorch's at a pole or where they overflow,
//!     reference: the same function over f64, written independently,
//!     samples: [[x, y], …] inputs clear of kinks and poles,
//!     numbers: [values of the scalar arguments], if there are any,
//!     autocast: optional: the dtype that `torch.autocast` gives the inputs,
//!     complex: optional: the operator that takes complex numbers, where the formula has no meaning for them,
//! }
//! ```
//!
//! The schema is in the notation of `native_functions.yaml`; the default is `name(Tensor self) -> Tensor`. Entries in `parts.rs`
//! are bodies of operators whose schema has more parameters than the body takes, such as an `alpha`.
//!
//! `Rule` is a [`DTypeRule`](crate::DTypeRule). Inputs are broadcast against each other and converted to the compute dtype.

mod activations;
mod binary;
mod complex_parts;
mod complex_values;
mod functions;
mod parts;
mod series;
mod special;

/// Passes every elementwise operator's entry to a macro. This is the only list of the entries.
#[macro_export]
macro_rules! elementwise_operators {
    ($callback:ident) => {
        $crate::functions_table!($callback);
        $crate::activations_table!($callback);
        $crate::binary_functions_table!($callback);
        $crate::special_table!($callback);
    };
}

use smallvec::SmallVec;
use thalweg_ir::{BodyBuilder, DType, Value};

use crate::definition::{DTypeRule, LoopOp, Signature, scalar};
use crate::{
    activations_table, binary_functions_table, complex_parts_table, functions_table, parts_table,
    special_table,
};

/// The schema of an entry: the one it specifies, or else its name with one tensor.
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
    ($kind:ident $list:ident $module:ident $(
        $(#[doc = $doc:literal])+
        $name:ident($($input:ident),+ $(; $($number:ident),+)?) $(: $schema:literal)? $rule:ident {
            body: $body:expr,
            $(gradient($result:ident, $gradient:ident): $slope:expr,)?
            $(gradients($part:ident): [$($slope_by:expr),+],)?
            reference: $reference:expr,
            samples: [$([$($sample:expr),+]),+]
            $(, numbers: [$($value:expr),+])?
            $(, autocast: $autocast:ident)?
            $(, complex: $complex:literal)?
            $(,)?
        }
    )*) => {
        #[allow(non_upper_case_globals, unused_imports)] // a static has its operator's name; the parts need fewer imports
        mod $module {
            use smallvec::SmallVec;
            use thalweg_ir::{BodyBuilder, DType, OutputPlace, Value};

            use super::{
                between, floored_quotient, floored_remainder, halves, integer_power_of, length, shifted_left, shifted_right,
                times_logarithm,
            };
            use crate::definition::{Autocast, DTypeRule, Examples, FromInputs, FromResult, LoopOp, Signature, Sizes, Space};

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
                    outputs: &[OutputPlace::Row],
                    build: {
                        fn formula<'b>($($input: Value<'b>,)+ $($($number: Value<'b>,)+)?) -> Value<'b> {
                            $body
                        }
                        fn build(builder: &BodyBuilder, signature: &Signature) {
                            let mut inputs = super::inputs(builder, signature, DTypeRule::$rule).into_iter();
                            $(let $input = inputs.next().expect("one value an input");)+
                            $($(let $number = super::number(builder, signature, DTypeRule::$rule);)+)?
                            let result = formula($($input,)+ $($($number,)+)?);
                            builder.output(result, signature.outputs[0], OutputPlace::Row);
                        }
                        build
                    },
                    from_result: {
                        #[allow(unused_variables, unreachable_code, clippy::needless_return)] // the fields that an entry omits
                        fn by_result<'b>(
                            result: Value<'b>,
                            gradient: Value<'b>,
                            $($($number: Value<'b>,)+)?
                        ) -> SmallVec<[Value<'b>; 2]> {
                            $(
                                let ($result, $gradient) = (result, gradient);
                                return SmallVec::from_elem($slope, 1);
                            )?
                            SmallVec::new()
                        }
                        fn from_result<'b>(
                            _builder: &'b BodyBuilder,
                            _signature: &Signature,
                            result: Value<'b>,
                            gradient: Value<'b>,
                        ) -> SmallVec<[Value<'b>; 2]> {
                            $($(let $number = super::number(_builder, _signature, DTypeRule::$rule);)+)?
                            by_result(result, gradient, $($($number,)+)?)
                        }
                        let given: &[&str] = &[$(stringify!($result))?];
                        if given.is_empty() { None } else { Some(from_result as FromResult) }
                    },
                    from_inputs: {
                        #[allow(unused_variables, unreachable_code, clippy::needless_return)] // the fields that an entry omits
                        fn gradients<'b>(
                            $($input: Value<'b>,)+
                            $($($number: Value<'b>,)+)?
                            gradient: Value<'b>,
                        ) -> SmallVec<[Value<'b>; 2]> {
                            $(
                                let $part = gradient;
                                return SmallVec::from_iter([$($slope_by),+]);
                            )?
                            SmallVec::new()
                        }
                        fn from_inputs<'b>(
                            builder: &'b BodyBuilder,
                            signature: &Signature,
                        ) -> SmallVec<[Value<'b>; 2]> {
                            let mut inputs = super::inputs(builder, signature, DTypeRule::$rule).into_iter();
                            $(let $input = inputs.next().expect("one value an input");)+
                            $($(let $number = super::number(builder, signature, DTypeRule::$rule);)+)?
                            let gradient = builder.input(signature.outputs[0]).to(signature.compute);
                            gradients($($input,)+ $($($number,)+)? gradient)
                        }
                        let given: &[&str] = &[$(stringify!($part))?];
                        if given.is_empty() { None } else { Some(from_inputs as FromInputs) }
                    },
                    autocast: [$(Autocast::$autocast,)? Autocast::Unchanged][0],
                    complex: [$(Some($complex),)? None][0],
                    examples: Some(Examples {
                        inputs: &[$(&[$($sample),+]),+],
                        scalars: &[$($($value),+)?],
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

        #[doc = concat!("The entries of `", stringify!($module), "`.")]
        static $list: &[&LoopOp] = &[$(&$module::$name),*];
    };
}

functions_table!(define operator FUNCTIONS function_entries);
activations_table!(define operator ACTIVATIONS activation_entries);
binary_functions_table!(define operator BINARY_FUNCTIONS binary_entries);
special_table!(define operator SPECIAL special_entries);
parts_table!(define part PARTS part_entries);
complex_parts_table!(define part COMPLEX_PARTS complex_part_entries);

/// Every entry as a value, by its name.
pub mod table {
    pub use super::activation_entries::*;
    pub use super::binary_entries::*;
    pub use super::complex_part_entries::*;
    pub use super::function_entries::*;
    pub use super::part_entries::*;
    pub use super::special_entries::*;
}

/// Returns the elementwise operators.
pub fn elementwise() -> impl Iterator<Item = &'static LoopOp> {
    [FUNCTIONS, ACTIVATIONS, BINARY_FUNCTIONS, SPECIAL].into_iter().flatten().copied()
}

/// Returns the formulas from which operators choose by their arguments.
pub fn parts() -> impl Iterator<Item = &'static LoopOp> {
    [PARTS, COMPLEX_PARTS].into_iter().flatten().copied()
}

/// Returns x + weight · (y − x), exact at a real weight of 1.
fn between<'b>(x: Value<'b>, y: Value<'b>, weight: Value<'b>) -> Value<'b> {
    let from_x = x + weight * (y - x);
    match x.dtype().is_complex() {
        true => from_x,
        false => weight.abs().lt(0.5).select(from_x, y - (y - x) * (1.0 - weight)),
    }
}

/// Returns a number times a logarithm of y, which is that of 0 at the pole. It is 0 where the number is 0 and the logarithm is not
/// finite, except of NaN.
fn times_logarithm<'b>(number: Value<'b>, y: Value<'b>, pole: f64, logarithm: Value<'b>) -> Value<'b> {
    let is_zero = number.eq(0.0).and(y.le(pole).or(y.eq(f64::INFINITY)));
    is_zero.select(number.like(0.0), number * logarithm)
}

/// Returns √(x² + y²), without overflow; infinity if one is infinite and the other NaN.
fn length<'b>(x: Value<'b>, y: Value<'b>) -> Value<'b> {
    let (a, b) = (x.abs(), y.abs());
    let large = a.maximum(b);
    let scale = large.eq(0.0).select(large.like(1.0), large).detach();
    let (p, q) = (x / scale, y / scale);
    let length = (p * p + q * q).sqrt() * scale;
    a.eq(f64::INFINITY).or(b.eq(f64::INFINITY)).select(x.like(f64::INFINITY), length)
}

/// Returns x − y · ⌊x / y⌋.
fn floored_remainder<'b>(x: Value<'b>, y: Value<'b>) -> Value<'b> {
    let rest = x % y;
    let zero = rest.like(0.0);
    let is_off = rest.eq(zero).logical_not().and(rest.lt(zero).xor(y.lt(zero)));
    is_off.select(rest + y, rest)
}

/// Returns ⌊x / y⌋, as PyTorch computes it: from the exact remainder.
fn floored_quotient<'b>(x: Value<'b>, y: Value<'b>) -> Value<'b> {
    let rest = x % y;
    let zero = rest.like(0.0);
    let is_off = rest.eq(zero).logical_not().and(rest.lt(zero).xor(y.lt(zero)));
    if !x.dtype().is_differentiable() {
        return is_off.select(x / y - 1.0, x / y);
    }
    let quotient = (x - rest) / y;
    let lowered = is_off.select(quotient - 1.0, quotient);
    let rounded = lowered.floor();
    let raised = (lowered - rounded).gt(0.5).select(rounded + 1.0, rounded);
    y.eq(zero).select(x / y, lowered.eq(zero).select(zero * x / y, raised))
}

/// Returns x to the power of y for integers, by squaring.
fn integer_power_of<'b>(x: Value<'b>, y: Value<'b>) -> Value<'b> {
    let one = x.like(1.0);
    let bits = 8 * x.dtype().size_bytes() - usize::from(x.dtype().is_signed());
    let (mut result, mut square, mut rest) = (one, x, y);
    for bit in 0..bits {
        let half = rest / 2.0;
        result = (rest - half * 2.0).eq(one).select(result * square, result);
        if bit + 1 < bits {
            (square, rest) = (square * square, half);
        }
    }
    // A negative power is 1 divided by a positive one, truncated to an integer.
    let is_odd = (y % 2.0).eq(0.0).logical_not();
    let of_minus_one = is_odd.select(x.like(-1.0), one);
    let inverse = x.eq(one).select(one, x.eq(-1.0).select(of_minus_one, x.like(0.0)));
    y.lt(0.0).select(inverse, result)
}

/// Returns the number of bits of an integer, and the shift distances 1, 2, 4, ….
fn shift_bits(x: Value<'_>) -> (i64, impl Iterator<Item = i64> + use<>) {
    let bits = 8 * x.dtype().size_bytes() as i64;
    (bits, (0..bits.trailing_zeros()).map(|place| 1 << place))
}

/// Returns x · 2ʸ for integers; 0 where y is out of range.
fn shifted_left<'b>(x: Value<'b>, y: Value<'b>) -> Value<'b> {
    let (bits, distances) = shift_bits(x);
    let shifted = distances.fold(x, |sum, distance| {
        y.and(y.like(distance)).eq(y.like(0)).select(sum, sum * sum.like(1i64 << distance))
    });
    y.ge(y.like(0)).and(y.lt(y.like(bits))).select(shifted, x.like(0))
}

/// Returns ⌊x / 2ʸ⌋ for integers; only the sign (0 or −1) remains where y is out of range.
fn shifted_right<'b>(x: Value<'b>, y: Value<'b>) -> Value<'b> {
    let (bits, distances) = shift_bits(x);
    let shifted = distances.fold(x, |rest, distance| {
        let quotient = floored_quotient(rest, rest.like(1i64 << distance));
        y.and(y.like(distance)).eq(y.like(0)).select(rest, quotient)
    });
    let zero = x.like(0);
    let sign = if x.dtype().is_signed() { x.lt(zero).select(x.like(-1), zero) } else { zero };
    y.ge(y.like(0)).and(y.lt(y.like(bits))).select(shifted, sign)
}

/// Returns a float as a fraction between ½ and 1 and an exponent of 2; the float itself and 0 if it is 0 or not finite. Every
/// step is exact.
fn halves(x: Value<'_>) -> (Value<'_>, Value<'_>) {
    let size = x.abs();
    let is_plain = size.gt(0.0).and(size.lt(f64::INFINITY));
    let (mut fraction, mut exponent) = (x, x.like(0.0));
    // The smallest number is scaled up from 2⁻¹⁴⁹ (2⁻¹⁰⁷⁴ for f64); each factor must itself be representable.
    let (largest, twice) = if x.dtype() == DType::F64 { (512, 512) } else { (64, 64) };
    let steps = || {
        std::iter::once(twice).chain((0..10).rev().map(|place| 1 << place).filter(|&step| step <= largest))
    };
    for step in steps() {
        let power = f64::from(step).exp2();
        let is_large = is_plain.and(fraction.abs().ge(power));
        fraction = is_large.select(fraction * power.recip(), fraction);
        exponent = is_large.select(exponent + f64::from(step), exponent);
    }
    for step in steps() {
        let power = f64::from(step).exp2();
        let is_small = is_plain.and(fraction.abs().lt(2.0 / power));
        fraction = is_small.select(fraction * power, fraction);
        exponent = is_small.select(exponent - f64::from(step), exponent);
    }
    (is_plain.select(fraction * 0.5, x), is_plain.select(exponent + 1.0, exponent))
}

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
            // An input without dimensions may be wider than the others. It is converted to their dtype first, as in PyTorch: floats are
            // rounded, and integers whose lower bits are 0 are not true.
            let common = signature.common;
            let is_float = common.is_floating_point() && dtype.is_floating_point();
            let is_narrower = common.size_bytes() < dtype.size_bytes();
            let rounded =
                if is_narrower && (is_float || rule == DTypeRule::Logical) { common } else { dtype };
            builder.input(dtype).to(rounded).to(compute)
        })
        .collect()
}

/// Returns a number in the dtype in which the rule computes. In comparisons it is rounded to the tensor's dtype; elsewhere it is
/// as exact as the computation, as in PyTorch.
fn number<'b>(builder: &'b BodyBuilder, signature: &Signature, rule: DTypeRule) -> Value<'b> {
    let number = scalar(builder, signature.compute);
    if rule == DTypeRule::Comparison { number.to(signature.common).to(signature.compute) } else { number }
}
