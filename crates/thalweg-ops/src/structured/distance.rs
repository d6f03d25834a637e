//! Losses of an element and its target. Each is one formula with two loops: one returns the loss of every element, the other sums
//! the losses over dimensions without storing them.

use thalweg_ir::{BodyBuilder, DType, OutputPlace, ReduceOp, Value};

use super::reduction;
use crate::definition::{DTypeRule, LoopOp, Signature, Sizes, Space};

/// Loads input and target.
fn pair<'b>(b: &'b BodyBuilder, signature: &Signature) -> [Value<'b>; 2] {
    [0, 1].map(|input| b.input(signature.inputs[input]).to(signature.compute))
}

/// Returns a scalar argument of the call.
fn number<'b>(b: &'b BodyBuilder, like: Value<'b>) -> Value<'b> {
    b.scalar(DType::F64).to(like.dtype())
}

/// Defines the two loops of a loss.
macro_rules! losses {
    ($($doc:literal $name:literal $sum:ident $elements:ident [$($number:literal)*] |$b:ident, $x:ident, $y:ident| $loss:expr;)*) => {$(
        #[doc = concat!($doc, ", summed over dimensions and divided by a number.")]
        pub static $sum: LoopOp = LoopOp {
            input_count: 2,
            ..reduction(
                $name,
                concat!($doc, ", summed over dimensions and divided by a number."),
                DTypeRule::FloatingPoint,
                &[$($number,)* "divisor"],
                |$b, signature| {
                    let [$x, $y] = pair($b, signature);
                    let sum = $b.reduce(ReduceOp::Sum, $loss);
                    $b.output(sum / number($b, sum), signature.outputs[0], OutputPlace::Row);
                },
            )
        };

        #[doc = concat!($doc, ", of every element.")]
        pub static $elements: LoopOp = LoopOp {
            input_count: 2,
            sizes: Sizes::None,
            space: Space::Elementwise,
            ..reduction(
                concat!($name, "_elements"),
                concat!($doc, ", of every element."),
                DTypeRule::FloatingPoint,
                &[$($number),*],
                |$b, signature| {
                    let [$x, $y] = pair($b, signature);
                    $b.output($loss, signature.outputs[0], OutputPlace::Row);
                },
            )
        };
    )*};
}

losses! {
    "(x − y)²" "mse_loss" MSE_LOSS MSE_LOSS_ELEMENTS [] |b, x, y| { let distance = x - y; distance * distance };
    "|x − y|" "l1_loss" L1_LOSS L1_LOSS_ELEMENTS [] |b, x, y| (x - y).abs();
    "(x − y)² / (2 · beta) below beta, |x − y| − beta / 2 from there on" "smooth_l1_loss" SMOOTH_L1_LOSS SMOOTH_L1_LOSS_ELEMENTS ["beta"] |b, x, y| {
        let (signed, beta) = (x - y, number(b, x));
        let distance = signed.abs();
        distance.ge(beta).select(distance - beta * 0.5, signed * signed * 0.5 / beta)
    };
    "(x − y)² / 2 up to delta, delta · (|x − y| − delta / 2) beyond" "huber_loss" HUBER_LOSS HUBER_LOSS_ELEMENTS ["delta"] |b, x, y| {
        let (signed, delta) = (x - y, number(b, x));
        let distance = signed.abs();
        distance.ge(delta).select((distance - delta * 0.5) * delta, signed * signed * 0.5)
    };
    "−y · ln x − (1 − y) · ln (1 − x), with logarithms of at least −100" "binary_cross_entropy" BINARY_CROSS_ENTROPY BINARY_CROSS_ENTROPY_ELEMENTS [] |b, x, y| {
        // The slope is (x − y) / max(x · (1 − x), 1e-12), as in PyTorch: near 0 and 1 it is that of a parabola, not that of the
        // logarithms.
        let is_at_end = (x * (1.0 - x)).lt(1e-12);
        let (rest, logarithm) = (logarithm_of_rest(x), logarithm(x));
        let [rest, logarithm] = [rest, logarithm].map(|value| is_at_end.select(value.detach(), value));
        let loss = (y - 1.0) * rest - y * logarithm;
        let step = x - x.detach();
        let parabola = step * (x.detach() - y + step * 0.5) * 1e12;
        loss + is_at_end.select(parabola, x.like(0.0))
    };
    "The binary cross entropy of sigmoid(x)" "binary_cross_entropy_with_logits" WITH_LOGITS WITH_LOGITS_ELEMENTS [] |b, x, y| {
        (1.0 - y) * x + softplus(-x)
    };
    "y · (ln y − x)" "kl_div" KL_DIV KL_DIV_ELEMENTS [] |b, x, y| {
        // 0 · ln 0 is 0.
        y * (y.eq(0.0).select(y.like(0.0), y.log()) - x)
    };
    "exp(y) · (y − x)" "kl_div_of_logarithms" KL_DIV_OF_LOGARITHMS KL_DIV_OF_LOGARITHMS_ELEMENTS [] |b, x, y| y.exp() * (y - x);
    "ln (1 + e^(−x · y))" "soft_margin_loss" SOFT_MARGIN_LOSS SOFT_MARGIN_LOSS_ELEMENTS [] |b, x, y| softplus(-(x * y));
}

/// Returns ln (1 + eˣ), without overflow at any x.
fn softplus(x: Value<'_>) -> Value<'_> {
    let is_negative = x.lt(0.0);
    is_negative.select(x.like(0.0), x) + is_negative.select(x, -x).exp().log1p()
}

/// Returns ln x, but at least −100.
fn logarithm(x: Value<'_>) -> Value<'_> {
    let is_least = x.ge(0.0).and(x.lt((-100.0_f64).exp()));
    is_least.select(x.like(-100.0), x.log())
}

/// Returns ln (1 − x), but at least −100.
fn logarithm_of_rest(x: Value<'_>) -> Value<'_> {
    x.eq(1.0).select(x.like(-100.0), (-x).log1p())
}
