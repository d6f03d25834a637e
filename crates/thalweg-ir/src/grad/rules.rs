//! The derivative of each primitive.

use std::f64::consts::{FRAC_2_SQRT_PI, LN_2, LN_10};

use crate::{Binary, ExprId, Node, Unary, Value};

use super::algebra::{add, constant_exponent, div, masked, masked_out, mul, neg, power};

/// Returns whether a primitive is constant between its jumps, so that nothing flows through it.
pub(super) const fn is_flat(op: Unary) -> bool {
    matches!(op, Unary::Not | Unary::Floor | Unary::Ceil | Unary::Trunc | Unary::Round)
}

/// Adds a node's part to the adjoints of its operands. `copy` gives operands, `result` is the node and `g` its adjoint; adjoints
/// have the dtype in which there is arithmetic. Those of complex numbers are PyTorch's: the derivative with respect to the conjugate,
/// so that a step against the gradient goes down; a product with a derivative is one with its conjugate.
pub(super) fn operands<'b>(
    node: &Node,
    copy: impl Fn(ExprId) -> Value<'b>,
    result: Value<'b>,
    g: Value<'b>,
) -> Vec<(ExprId, Value<'b>)> {
    match *node {
        Node::Constant(_)
        | Node::Load { .. }
        | Node::Gather { .. }
        | Node::Scalar { .. }
        | Node::Index(_)
        | Node::Reduced { .. }
        | Node::Random(..)
        | Node::Detach(_) => Vec::new(),
        Node::Unary(op, x) => unary(op, copy(x), result, g).map(|value| (x, value)).into_iter().collect(),
        Node::Binary(op, a, b) => {
            let (of_a, of_b) = binary(op, copy(a), copy(b), result, g);
            of_a.map(|value| (a, value)).into_iter().chain(of_b.map(|value| (b, value))).collect()
        }
        Node::Fma(a, b, c) => vec![(a, mul(g, copy(b))), (b, mul(g, copy(a))), (c, g)],
        Node::Select(condition, yes, no) => {
            let condition = copy(condition);
            vec![(yes, masked(condition, g)), (no, masked_out(condition, g))]
        }
        Node::Cast(x) => vec![(x, g.to(copy(x).dtype().compute()))],
    }
}

fn unary<'b>(op: Unary, x: Value<'b>, y: Value<'b>, g: Value<'b>) -> Option<Value<'b>> {
    Some(match op {
        Unary::Not | Unary::Floor | Unary::Ceil | Unary::Trunc | Unary::Round => return None,
        Unary::Neg => neg(g),
        Unary::Conj => g.conj(),
        Unary::Abs => x.like(0.0).lt(x).select(g, masked(x.lt(0.0), neg(g))),
        Unary::Sqrt => div(g, y * 2.0),
        Unary::Exp => mul(g, y),
        Unary::Expm1 => mul(g, y + 1.0),
        Unary::Log => div(g, x),
        Unary::Log1p => div(g, x + 1.0),
        Unary::Sin => mul(g, x.cos()),
        Unary::Cos => neg(mul(g, x.sin())),
        Unary::Tanh => mul(g, 1.0 - y * y),
        Unary::Erf => mul(g, (-(x * x)).exp() * FRAC_2_SQRT_PI),
        Unary::Erfc => mul(g, (-(x * x)).exp() * -FRAC_2_SQRT_PI),
        Unary::Exp2 => mul(g, y * LN_2),
        Unary::Log2 => div(g, x * LN_2),
        Unary::Log10 => div(g, x * LN_10),
        Unary::Tan => mul(g, 1.0 + y * y),
        Unary::Asin => div(g, (1.0 - x * x).sqrt()),
        Unary::Acos => neg(div(g, (1.0 - x * x).sqrt())),
        Unary::Atan => div(g, x * x + 1.0),
        Unary::Sinh => mul(g, x.cosh()),
        Unary::Cosh => mul(g, x.sinh()),
        Unary::Asinh => div(g, (x * x + 1.0).sqrt()),
        Unary::Acosh => div(g, (x * x - 1.0).sqrt()),
        Unary::Atanh => div(g, 1.0 - x * x),
        Unary::Lgamma => mul(g, x.digamma()),
    })
}

/// Returns the gradients that flow to the first and to the second operand.
fn binary<'b>(
    op: Binary,
    a: Value<'b>,
    b: Value<'b>,
    y: Value<'b>,
    g: Value<'b>,
) -> (Option<Value<'b>>, Option<Value<'b>>) {
    let (of_a, of_b) = match op {
        Binary::Equal | Binary::Less | Binary::LessEqual | Binary::And | Binary::Or | Binary::Xor => {
            return (None, None);
        }
        Binary::Add => (g, g),
        Binary::Sub => (g, neg(g)),
        Binary::Mul => (mul(g, b.conj()), mul(g, a.conj())),
        Binary::Div => {
            let part = div(g, b.conj());
            (part, neg(mul(part, y.conj())))
        }
        // a − fmod(a, b) is a multiple of b, so the rounding finds the whole quotient even where a / b rounds up to it.
        Binary::Rem => {
            // Of a division by 0 the remainder is NaN, and the quotient is not.
            let quotient = b.eq(b.like(0.0)).select(a / b, ((a - y) / b).round());
            (g, neg(mul(g, quotient)))
        }
        Binary::Pow => return power_rule(a, b, y, g),
        Binary::Atan2 => {
            let part = div(g, a * a + b * b);
            (mul(part, b), neg(mul(part, a)))
        }
        Binary::Max => (share(a.lt(b), a, b, g), share(b.lt(a), a, b, g)),
        Binary::Min => (share(b.lt(a), a, b, g), share(a.lt(b), a, b, g)),
    };
    (Some(of_a), Some(of_b))
}

/// Returns the gradient of an operand of a maximum or minimum: nothing where it lost, half where the operands are equal.
fn share<'b>(lost: Value<'b>, a: Value<'b>, b: Value<'b>, g: Value<'b>) -> Value<'b> {
    masked_out(lost, a.eq(b).select(mul(g, g.like(0.5)), g))
}

/// Returns b · a^(b − 1) for the base, 0 where the exponent is 0; y · ln a for the exponent, 0 where the base is 0 and the
/// exponent
fn power_rule<'b>(
    a: Value<'b>,
    b: Value<'b>,
    y: Value<'b>,
    g: Value<'b>,
) -> (Option<Value<'b>>, Option<Value<'b>>) {
    if let Some(exponent) = constant_exponent(b) {
        let factor = |power| mul(mul(g, g.like(exponent)), power);
        return match exponent {
            0.0 => (None, None),
            1.0 => (Some(g), None),
            _ => (Some(factor(power(a, exponent - 1.0))), None),
        };
    }
    let no_power = b.eq(0.0);
    let lower = no_power.select(b.like(1.0), add(b, b.like(-1.0)));
    let of_a = masked_out(no_power, mul(g, b * a.pow(lower)));
    let no_slope = a.eq(0.0).and(b.like(0.0).le(b));
    let logarithm = no_slope.select(a.like(1.0), a).log();
    let of_b = masked_out(no_slope, mul(g, y * logarithm));
    (Some(of_a), Some(of_b))
}
