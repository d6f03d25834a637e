//! Arithmetic that omits operations without effect, so that derived bodies are as small as hand-written ones.
//!
//! Zeros are not folded: a gradient that is 0 is absent from the start, and 0 · x is not 0 where x is NaN.

use crate::{Binary, DType, Node, Scalar, Unary, Value};

/// Returns the number of a constant.
fn constant(value: Value<'_>) -> Option<f64> {
    match value.node() {
        Node::Constant(Scalar::F64(number)) if value.dtype() == DType::F32 => Some(f64::from(number as f32)),
        Node::Constant(number) => Some(number.to_f64()),
        _ => None,
    }
}

/// Returns the operand of a negation.
fn negated(value: Value<'_>) -> Option<Value<'_>> {
    match value.node() {
        Node::Unary(Unary::Neg, operand) => Some(value.builder().value(operand)),
        _ => None,
    }
}

/// Returns −a.
pub(super) fn neg(a: Value<'_>) -> Value<'_> {
    match (constant(a), negated(a)) {
        (Some(number), _) => a.like(-number),
        (_, Some(operand)) => operand,
        _ => -a,
    }
}

/// Returns a + b.
pub(super) fn add<'b>(a: Value<'b>, b: Value<'b>) -> Value<'b> {
    if a.id() == b.id() {
        return mul(a, a.like(2.0));
    }
    match (negated(a), negated(b)) {
        (_, Some(b)) => a - b,
        (Some(a), _) => b - a,
        _ => a + b,
    }
}

/// Returns a · b.
pub(super) fn mul<'b>(a: Value<'b>, b: Value<'b>) -> Value<'b> {
    match (constant(a), constant(b)) {
        // The product of two 32-bit floats is exact in 64 bits, so folding rounds once, as the kernel would.
        (Some(x), Some(y)) => a.like(x * y),
        (Some(1.0), _) => b,
        (_, Some(1.0)) => a,
        (Some(-1.0), _) => neg(b),
        (_, Some(-1.0)) => neg(a),
        _ => match (negated(a), negated(b)) {
            (Some(a), Some(b)) => mul(a, b),
            (Some(a), None) => neg(mul(a, b)),
            (None, Some(b)) => neg(mul(a, b)),
            (None, None) => a.binary(Binary::Mul, b),
        },
    }
}

/// Returns a / b.
pub(super) fn div<'b>(a: Value<'b>, b: Value<'b>) -> Value<'b> {
    match (constant(b), negated(a)) {
        (Some(1.0), _) => a,
        (Some(-1.0), _) => neg(a),
        (_, Some(a)) => neg(div(a, b)),
        _ => a / b,
    }
}

/// Returns `value` where the condition is true, else 0.
pub(super) fn masked<'b>(condition: Value<'b>, value: Value<'b>) -> Value<'b> {
    condition.select(value, value.like(0.0))
}

/// Returns 0 where the condition is true, else `value`.
pub(super) fn masked_out<'b>(condition: Value<'b>, value: Value<'b>) -> Value<'b> {
    condition.select(value.like(0.0), value)
}

/// Returns the constant power a^exponent.
pub(super) fn power<'b>(a: Value<'b>, exponent: f64) -> Value<'b> {
    if exponent == 1.0 { a } else { a.pow(exponent) }
}

/// Returns the value of an exponent that is a constant.
pub(super) fn constant_exponent(value: Value<'_>) -> Option<f64> {
    constant(value)
}
