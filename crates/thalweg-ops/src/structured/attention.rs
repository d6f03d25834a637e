//! The softmax of attention: over scaled scores, some of which are masked, in one kernel.
//!
//! A row that is completely masked results in zeros rather than NaN, as in PyTorch's composite of `scaled_dot_product_attention`.

use smallvec::SmallVec;
use thalweg_ir::{BodyBuilder, DType, Dimension, OutputPlace, ReduceOp, Value};

use super::softmax_gradient;
use crate::definition::{Autocast, LoopOp, Signature, Sizes};

const fn attention(
    name: &'static str,
    doc: &'static str,
    input_count: usize,
    build: fn(&BodyBuilder, &Signature),
) -> LoopOp {
    LoopOp {
        name,
        doc,
        input_count,
        scalars: &["scale"],
        sizes: Sizes::Dimension,
        outputs: &[OutputPlace::Point],
        build,
        from_result: Some(from_result),
        autocast: Autocast::Full,
        ..LoopOp::BASE
    }
}

/// Returns the gradients of scores and mask. Where a score is masked the result is 0, and so is its gradient.
fn from_result<'b>(
    b: &'b BodyBuilder,
    signature: &Signature,
    y: Value<'b>,
    g: Value<'b>,
) -> SmallVec<[Value<'b>; 2]> {
    let of_mask = softmax_gradient(b, y, g);
    SmallVec::from_slice(&[of_mask * b.scalar(DType::F64).to(signature.compute), of_mask])
}

/// Returns the first input times the scale.
fn scaled<'b>(b: &'b BodyBuilder, signature: &Signature) -> Value<'b> {
    b.input(signature.inputs[0]).to(signature.compute) * b.scalar(DType::F64).to(signature.compute)
}

/// Returns the softmax of a row in which masked scores are −∞.
fn safe_softmax<'b>(b: &'b BodyBuilder, x: Value<'b>) -> Value<'b> {
    let greatest = b.reduce(ReduceOp::Max, x.detach()).detach();
    let nothing = greatest.eq(f64::NEG_INFINITY);
    let exponential = (x - nothing.select(greatest.like(0.0), greatest)).exp();
    let sum = b.reduce(ReduceOp::Sum, exponential);
    exponential / nothing.select(sum.like(1.0), sum)
}

/// softmax(scale · x).
pub static SCALED_SOFTMAX: LoopOp =
    attention("scaled_softmax", "The softmax of scaled scores.", 1, |b, signature| {
        b.output(safe_softmax(b, scaled(b, signature)), signature.outputs[0], OutputPlace::Point);
    });

/// softmax(scale · x) over the points up to the row's own index. Rows: batch, query; inner: key.
pub static CAUSAL_SOFTMAX: LoopOp = attention(
    "causal_softmax",
    "The softmax of scaled scores over the keys that do not come after the query: (batch, query, key).",
    1,
    |b, signature| {
        let x = scaled(b, signature);
        let seen = b.index(Dimension::Inner(0)).le(b.index(Dimension::Row(1)));
        let masked = seen.select(x, x.like(f64::NEG_INFINITY));
        b.output(safe_softmax(b, masked), signature.outputs[0], OutputPlace::Point);
    },
);

/// softmax(scale · x + mask). The mask is added; a mask of truth values selects the scores that take part.
pub static MASKED_SOFTMAX: LoopOp = attention(
    "masked_softmax",
    "The softmax of scaled scores with a mask: truth values of what takes part, or numbers to add.",
    2,
    |b, signature| {
        let x = scaled(b, signature);
        let mask = b.input(signature.inputs[1]);
        let masked = if mask.dtype() == DType::Bool {
            mask.select(x, x.like(f64::NEG_INFINITY))
        } else {
            x + mask.to(signature.compute)
        };
        b.output(safe_softmax(b, masked), signature.outputs[0], OutputPlace::Point);
    },
);
