//! The derivative of each primitive.

use std::f64::consts::{FRAC_2_SQRT_PI, LN_2, LN_10};

use crate::{Binary, ExprId, Node, Unary, Value};

use super::algebra::{add, constant_exponent, div, masked, mul, neg, power};
use super::flow::Branch;

/// Returns whether a primitive is piecewise constant, so that no gradient flows through it.
pub(super) const fn is_flat(op: Unary) -> bool {
    matches!(op, Unary::Not | Unary::Floor | Unary::Ceil | Unary::Trunc | Unary::Round)
}

/// The part of a node's adjoint that flows to an operand.
pub(super) struct Part<'b> {
    pub(super) operand: ExprId,
    pub(super) value: Value<'b>,
    /// The branch that must be taken for this part of the gradient to flow.
    pub(super) branch: Option<Branch<'b>>,
}

/// Returns the parts of a node's adjoint that flow to its operands. `copy` returns operands, `result` is the node and `g` its
/// adjoint. Adjoints have the compute dtype. Those of complex numbers follow PyTorch: the derivative with respect to the
/// conjugate, so that a step against the gradient descends; a derivative is multiplied by its conjugate.
pub(super) fn operands<'b>(
    node: &Node,
    copy: impl Fn(ExprId) -> Value<'b>,
    result: Value<'b>,
    g: Value<'b>,
) -> Vec<Part<'b>> {
    let part = |operand, value| Part { operand, value, branch: None };
    match *node {
        Node::Constant(_)
        | Node::Load { .. }
        | Node::Place { .. }
        | Node::Gather { .. }
        | Node::Scalar { .. }
        | Node::Index(_)
        | Node::Reduced { .. }
        | Node::Random(..)
        | Node::Detach(_) => Vec::new(),
        Node::Unary(op, x) => unary(op, copy(x), result, g).map(|value| part(x, value)).into_iter().collect(),
        Node::Binary(op, a, b) => {
            let parts = binary(op, copy(a), copy(b), result, g);
            let of = |(operand, part): (_, Option<(Value<'b>, Option<Branch<'b>>)>)| {
                part.map(|(value, branch)| Part { operand, value, branch })
            };
            [a, b].into_iter().zip(parts).filter_map(of).collect()
        }
        Node::Fma(a, b, c) => vec![part(a, mul(g, copy(b))), part(b, mul(g, copy(a))), part(c, g)],
        Node::Select(condition, yes, no) => {
            let on = |operand, side| Part { operand, value: g, branch: Some((copy(condition), side)) };
            vec![on(yes, true), on(no, false)]
        }
        Node::Cast(x) => vec![part(x, g.to(copy(x).dtype().compute()))],
    }
}

fn unary<'b>(op: Unary, x: Value<'b>, y: Value<'b>, g: Value<'b>) -> Option<Value<'b>> {
    Some(match op {
        Unary::Not | Unary::Floor | Unary::Ceil | Unary::Trunc | Unary::Round => return None,
        Unary::Neg => neg(g),
        Unary::Conj => g.conj(),
        Unary::Abs => x.like(0.0).lt(x).select(g, masked(x.lt(0.0), neg(g))),
        Unary::Sqrt => div(g, y * 2.0),
        Unary::Rsqrt => mul(g, y * y * y * -0.5),
        Unary::Exp => mul(g, y),
        // Not y + 1, which loses the digits of a small eˣ.
        Unary::Expm1 => mul(g, x.exp()),
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

/// A gradient of an operand, and the branch that must be taken for it to flow.
type Bounded<'b> = Option<(Value<'b>, Option<Branch<'b>>)>;

/// Returns the gradients that flow to the first and to the second operand.
fn binary<'b>(op: Binary, a: Value<'b>, b: Value<'b>, y: Value<'b>, g: Value<'b>) -> [Bounded<'b>; 2] {
    let (of_a, of_b) = match op {
        Binary::Equal | Binary::Less | Binary::LessEqual | Binary::And | Binary::Or | Binary::Xor => {
            return [None, None];
        }
        Binary::Add => (g, g),
        Binary::Sub => (g, neg(g)),
        Binary::Mul => (mul(g, b.conj()), mul(g, a.conj())),
        Binary::Div => {
            let part = div(g, b.conj());
            (part, neg(mul(part, y.conj())))
        }
        // a − fmod(a, b) is a multiple of b, so rounding finds the exact quotient even where a / b rounds up to it.
        Binary::Rem => {
            // For a division by 0, and for an infinite a, the remainder is NaN, but the quotient is not.
            let quotient = y.eq(y).select(((a - y) / b).round(), (a / b).trunc());
            (g, neg(mul(g, quotient)))
        }
        Binary::Pow => return power_rule(a, b, y, g),
        Binary::Atan2 => {
            let square = a * a + b * b;
            let (part, elsewhere) = (div(g, square), Some((square.eq(0.0), false)));
            return [Some((mul(part, b), elsewhere)), Some((neg(mul(part, a)), elsewhere))];
        }
        Binary::Max => return share(a.lt(b), b.lt(a), a.eq(b), g),
        Binary::Min => return share(b.lt(a), a.lt(b), a.eq(b), g),
    };
    [Some((of_a, None)), Some((of_b, None))]
}

/// Returns the gradients of the operands of a maximum or minimum: nothing for the operand that was not chosen, half each if they
/// are equal.
fn share<'b>(a_lost: Value<'b>, b_lost: Value<'b>, is_tie: Value<'b>, g: Value<'b>) -> [Bounded<'b>; 2] {
    let shared = is_tie.select(mul(g, g.like(0.5)), g);
    [a_lost, b_lost].map(|lost| Some((shared, Some((lost, false)))))
}

/// Returns the gradients of a power. For the base, b · a^(b − 1), and 0 where the exponent is 0. For the exponent, y · ln a, and
/// 0 where the base is 0 and the exponent is not negative.
fn power_rule<'b>(a: Value<'b>, b: Value<'b>, y: Value<'b>, g: Value<'b>) -> [Bounded<'b>; 2] {
    if let Some(exponent) = constant_exponent(b) {
        let factor = |power| mul(mul(g, g.like(exponent)), power);
        let of_a = match exponent {
            0.0 => None,
            1.0 => Some((g, None)),
            _ => Some((factor(power(a, exponent - 1.0)), None)),
        };
        return [of_a, None];
    }
    let of_a = mul(g, b * a.pow(add(b, b.like(-1.0))));
    let no_slope = a.eq(0.0).and(b.like(0.0).le(b));
    let of_b = mul(g, y * a.log());
    [Some((of_a, Some((b.eq(0.0), false)))), Some((of_b, Some((no_slope, false))))]
}
