//! Reductions beyond sums and extrema: products, truth values, counts, variances, norms, the logarithm of a sum of exponentials.

use thalweg_ir::{BodyBuilder, DType, OutputPlace, ReduceOp, Value};

use super::{chosen, reduction};
use crate::definition::{DTypeRule, LoopOp, Signature, Sizes};

fn loaded<'b>(b: &'b BodyBuilder, signature: &Signature) -> Value<'b> {
    b.input(signature.inputs[0]).to(signature.compute)
}

fn number<'b>(b: &'b BodyBuilder, signature: &Signature) -> Value<'b> {
    b.scalar(DType::F64).to(signature.compute)
}

/// The place of the smallest element in one dimension: the first among equals, or among NaNs.
pub static ARGMIN: LoopOp = LoopOp {
    sizes: Sizes::Dimension,
    ..reduction(
        "argmin",
        "The place of the smallest element in one dimension.",
        DTypeRule::Position,
        &[],
        |b, signature| {
            let [_, place] = chosen(b, signature, ReduceOp::Min);
            b.output(place, DType::I64, OutputPlace::Row);
        },
    )
};

/// The product over dimensions.
pub static PROD: LoopOp =
    reduction("prod", "The product over dimensions.", DTypeRule::Sum, &[], |b, signature| {
        let product = b.reduce(ReduceOp::Product, loaded(b, signature));
        b.output(product, signature.outputs[0], OutputPlace::Row);
    });

/// The sum over dimensions of the elements that are not NaN.
pub static NANSUM: LoopOp =
    reduction("nansum", "The sum of what is not NaN.", DTypeRule::Sum, &[], |b, signature| {
        let x = loaded(b, signature);
        let sum = b.reduce(ReduceOp::Sum, x.eq(x).select(x, x.like(0.0)));
        b.output(sum, signature.outputs[0], OutputPlace::Row);
    });

/// Returns whether an element is not 0, as 0 or 1.
fn truth<'b>(b: &'b BodyBuilder, signature: &Signature) -> Value<'b> {
    b.input(signature.inputs[0]).to(DType::Bool).to(DType::I32)
}

/// Whether any element is not 0.
pub static ANY: LoopOp =
    reduction("any", "Whether any element is not 0.", DTypeRule::Logical, &[], |b, signature| {
        // The maximum over no elements is the dtype's lowest number.
        let found = b.reduce(ReduceOp::Max, truth(b, signature)).gt(0);
        b.output(found, DType::Bool, OutputPlace::Row);
    });

/// Whether all elements are not 0.
pub static ALL: LoopOp =
    reduction("all", "Whether no element is 0.", DTypeRule::Logical, &[], |b, signature| {
        let found = b.reduce(ReduceOp::Min, truth(b, signature)).gt(0);
        b.output(found, DType::Bool, OutputPlace::Row);
    });

/// The number of elements that are not 0.
pub static COUNT_NONZERO: LoopOp =
    reduction("count_nonzero", "How many elements are not 0.", DTypeRule::Position, &[], |b, signature| {
        let one = b.input(signature.inputs[0]).to(DType::Bool).to(DType::I64);
        b.output(b.reduce(ReduceOp::Sum, one), DType::I64, OutputPlace::Row);
    });

/// Returns the variance of a row, and its mean. The call passes the number of elements, and the divisor of the sum of squares.
fn variance<'b>(b: &'b BodyBuilder, signature: &Signature) -> [Value<'b>; 2] {
    let x = loaded(b, signature);
    let [count, divisor] = [0; 2].map(|_| number(b, signature));
    let mean = b.reduce(ReduceOp::Sum, x) / count;
    let centred = x - mean;
    [b.reduce(ReduceOp::Sum, centred * centred) / divisor, mean]
}

/// Returns √x with a gradient of 0 where x is 0, as in PyTorch's deviations and norms.
fn root(x: Value<'_>) -> Value<'_> {
    let is_zero = x.eq(0.0);
    is_zero.select(x.like(0.0), is_zero.select(x.like(1.0), x).sqrt())
}

/// The variance over dimensions.
pub static VAR: LoopOp = reduction(
    "var",
    "The variance over dimensions.",
    DTypeRule::FloatingPoint,
    &["count", "divisor"],
    |b, signature| b.output(variance(b, signature)[0], signature.outputs[0], OutputPlace::Row),
);

/// The variance and the mean over dimensions.
pub static VAR_MEAN: LoopOp = LoopOp {
    outputs: &[OutputPlace::Row, OutputPlace::Row],
    ..reduction(
        "var_mean",
        "The variance and the mean over dimensions.",
        DTypeRule::FloatingPoint,
        &["count", "divisor"],
        |b, signature| {
            let [variance, mean] = variance(b, signature);
            b.output(variance, signature.outputs[0], OutputPlace::Row);
            b.output(mean, signature.outputs[1], OutputPlace::Row);
        },
    )
};

/// The standard deviation over dimensions.
pub static STD: LoopOp = reduction(
    "std",
    "The standard deviation over dimensions.",
    DTypeRule::FloatingPoint,
    &["count", "divisor"],
    |b, signature| b.output(root(variance(b, signature)[0]), signature.outputs[0], OutputPlace::Row),
);

/// ln Σ eˣ over dimensions, without overflow. The shift changes no result, so no gradient flows through it.
pub static LOGSUMEXP: LoopOp = reduction(
    "logsumexp",
    "The logarithm of the sum of eˣ over dimensions.",
    DTypeRule::FloatingPoint,
    &[],
    |b, signature| {
        let x = loaded(b, signature);
        let greatest = b.reduce(ReduceOp::Max, x.detach()).detach();
        let is_finite = greatest.abs().lt(f64::INFINITY);
        let shift = is_finite.select(greatest, greatest.like(0.0));
        let sum = b.reduce(ReduceOp::Sum, (x - shift).exp());
        b.output(sum.log() + shift, signature.outputs[0], OutputPlace::Row);
    },
);

/// √Σ x² over dimensions.
pub static NORM_2: LoopOp = reduction(
    "norm_2",
    "The Euclidean norm over dimensions.",
    DTypeRule::FloatingPoint,
    &[],
    |b, signature| {
        let x = loaded(b, signature);
        b.output(root(b.reduce(ReduceOp::Sum, x * x)), signature.outputs[0], OutputPlace::Row);
    },
);

/// Σ |x| over dimensions.
pub static NORM_1: LoopOp =
    reduction("norm_1", "The sum of |x| over dimensions.", DTypeRule::FloatingPoint, &[], |b, signature| {
        let sum = b.reduce(ReduceOp::Sum, loaded(b, signature).abs());
        b.output(sum, signature.outputs[0], OutputPlace::Row);
    });

/// Returns xᵖ for x ≥ 0, with a gradient of 0 where x is 0.
fn power<'b>(x: Value<'b>, exponent: Value<'b>) -> Value<'b> {
    let is_zero = x.eq(0.0);
    is_zero.select(x.detach().pow(exponent).detach(), is_zero.select(x.like(1.0), x).pow(exponent))
}

/// (Σ |x|ᵖ)^(1/p) over dimensions; the call passes p and 1/p.
pub static NORM_P: LoopOp = reduction(
    "norm_p",
    "The p-norm over dimensions.",
    DTypeRule::FloatingPoint,
    &["exponent", "inverse"],
    |b, signature| {
        let x = loaded(b, signature).abs();
        let [exponent, inverse] = [0; 2].map(|_| number(b, signature));
        let sum = b.reduce(ReduceOp::Sum, power(x, exponent));
        b.output(power(sum, inverse), signature.outputs[0], OutputPlace::Row);
    },
);
