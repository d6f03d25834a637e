//! Normalization of channels by statistics of a batch, of groups or of planes: statistics are computed in parts, combined, and
//! then applied to each point. They are in the compute dtype, which is f32 for 16-bit floats.

use thalweg_ir::{BodyBuilder, DType, OutputPlace, ReduceOp, Value};

use super::normalization::{affine, loaded};
use crate::definition::{DTypeRule, LoopOp, Signature, Sizes, Space};

fn number<'b>(b: &'b BodyBuilder, signature: &Signature) -> Value<'b> {
    b.scalar(DType::F64).to(signature.compute)
}

/// Returns the mean of a row, the sum of its squared deviations from the mean, and the number of its points.
fn moments<'b>(b: &'b BodyBuilder, signature: &Signature) -> [Value<'b>; 3] {
    let x = loaded(b, signature, 0);
    let count = number(b, signature);
    let mean = b.reduce(ReduceOp::Sum, x) / count;
    let centred = x - mean;
    [mean, b.reduce(ReduceOp::Sum, centred * centred), count]
}

/// Writes mean, 1 / √(variance + ε) and variance of a row.
fn write_statistics<'b>(b: &'b BodyBuilder, signature: &Signature, mean: Value<'b>, variance: Value<'b>) {
    let inverse = 1.0 / (variance + number(b, signature)).sqrt();
    for statistic in [mean, inverse, variance] {
        b.output(statistic, signature.compute, OutputPlace::Row);
    }
}

const fn elementwise(
    name: &'static str,
    doc: &'static str,
    input_count: usize,
    scalars: &'static [&'static str],
    build: fn(&BodyBuilder, &Signature),
) -> LoopOp {
    LoopOp {
        space: Space::Elementwise,
        sizes: Sizes::None,
        ..affine(name, doc, input_count, scalars, &[OutputPlace::Row], build)
    }
}

/// Mean, 1 / √(variance + ε) and variance of rows.
pub static CHANNEL_NORM_STATISTICS: LoopOp = affine(
    "channel_norm_statistics",
    "Mean, inverse deviation and variance of rows.",
    1,
    &["count", "epsilon"],
    &[OutputPlace::Row, OutputPlace::Row, OutputPlace::Row],
    |b, signature| {
        let [mean, squares, count] = moments(b, signature);
        write_statistics(b, signature, mean, squares / count);
    },
);

/// Mean and sum of squared deviations of rows that are parts of longer rows: see [`CHANNEL_NORM_COMBINE`].
pub static CHANNEL_NORM_PARTS: LoopOp = affine(
    "channel_norm_parts",
    "Mean and sum of squared deviations of rows.",
    1,
    &["count"],
    &[OutputPlace::Row, OutputPlace::Row],
    |b, signature| {
        let [mean, squares, _] = moments(b, signature);
        b.output(mean, signature.compute, OutputPlace::Row);
        b.output(squares, signature.compute, OutputPlace::Row);
    },
);

/// Mean, 1 / √(variance + ε) and variance of rows from the statistics of their parts and each part's number of points, by Chan's
/// formula.
pub static CHANNEL_NORM_COMBINE: LoopOp = affine(
    "channel_norm_combine",
    "Mean, inverse deviation and variance of rows, from mean and sum of squared deviations of their parts.",
    2,
    &["parts", "count", "epsilon"],
    &[OutputPlace::Row, OutputPlace::Row, OutputPlace::Row],
    |b, signature| {
        let [means, squares] = [0, 1].map(|input| loaded(b, signature, input));
        let [parts, count] = [0; 2].map(|_| number(b, signature));
        let mean = b.reduce(ReduceOp::Sum, means) / parts;
        let deviation = means - mean;
        let squares = b.reduce(ReduceOp::Sum, squares + deviation * deviation * count);
        write_statistics(b, signature, mean, squares / (parts * count));
    },
);

/// Points minus their mean, times an inverse deviation and a weight, plus a bias.
pub static CHANNEL_NORM_APPLY: LoopOp = elementwise(
    "channel_norm_apply",
    "Points less a mean, times an inverse deviation and a weight, plus a bias.",
    5,
    &[],
    |b, signature| {
        let [x, mean, inverse, weight, bias] = [0, 1, 2, 3, 4].map(|input| loaded(b, signature, input));
        let result = (x - mean) * inverse * weight + bias;
        b.output(result, signature.outputs[0], OutputPlace::Row);
    },
);

/// Points minus a mean, divided by the deviation of a variance, times a weight, plus a bias: a normalization by statistics that do not
/// depend on the points, as in evaluation.
pub static CHANNEL_NORM_FIXED: LoopOp = elementwise(
    "channel_norm_fixed",
    "Points less a mean, divided by √(a variance + ε), times a weight, plus a bias.",
    5,
    &["epsilon"],
    |b, signature| {
        let [x, mean, variance, weight, bias] = [0, 1, 2, 3, 4].map(|input| loaded(b, signature, input));
        let inverse = (variance + number(b, signature)).rsqrt();
        b.output((x - mean) * inverse * weight + bias, signature.outputs[0], OutputPlace::Row);
    },
);

/// Returns the entry of statistics that are moved towards those of a batch: kept · running + share · batch, each with its own share.
/// Inputs: for each statistic the batch's and the running one, whose dtype the call specifies.
const fn moved(
    name: &'static str,
    input_count: usize,
    scalars: &'static [&'static str],
    outputs: &'static [OutputPlace],
) -> LoopOp {
    LoopOp {
        rule: DTypeRule::FloatingPointAs,
        outputs,
        ..elementwise(
            name,
            "Running statistics that are moved towards those of a batch.",
            input_count,
            scalars,
            |b, signature| {
                let kept = number(b, signature);
                for statistic in 0..signature.inputs.len() / 2 {
                    let [batch, running] = [0, 1].map(|at| loaded(b, signature, 2 * statistic + at));
                    let result = running * kept + batch * number(b, signature);
                    b.output(result, signature.outputs[0], OutputPlace::Row);
                }
            },
        )
    }
}

/// One running statistic that is moved towards that of a batch.
pub static CHANNEL_NORM_MOVED: LoopOp =
    moved("channel_norm_moved", 2, &["kept", "share"], &[OutputPlace::Row]);

/// A running mean and a running variance that are moved towards those of a batch.
pub static CHANNEL_NORM_MOVED_BOTH: LoopOp = moved(
    "channel_norm_moved_both",
    4,
    &["kept", "share", "share_of_variance"],
    &[OutputPlace::Row, OutputPlace::Row],
);

/// The sums over rows of the result's gradient times the normalized points, and of the gradient. Inputs: input, mean, inverse
/// deviation and gradient.
pub static CHANNEL_NORM_SUMS: LoopOp = affine(
    "channel_norm_sums",
    "The sums of a gradient times normalized points, and of the gradient.",
    4,
    &[],
    &[OutputPlace::Row, OutputPlace::Row],
    |b, signature| {
        let [x, mean, inverse, gradient] = [0, 1, 2, 3].map(|input| loaded(b, signature, input));
        let normalized = (x - mean) * inverse;
        b.output(b.reduce(ReduceOp::Sum, gradient * normalized), signature.compute, OutputPlace::Row);
        b.output(b.reduce(ReduceOp::Sum, gradient), signature.compute, OutputPlace::Row);
    },
);

/// Returns the entry of the sums of two lists, each times a weight if there is a third input, in the dtype that the call
/// specifies.
const fn fold(name: &'static str, input_count: usize) -> LoopOp {
    LoopOp {
        rule: DTypeRule::FloatingPointAs,
        ..affine(
            name,
            "The sums of the rows of two tensors, times a weight where there is one.",
            input_count,
            &[],
            &[OutputPlace::Row, OutputPlace::Row],
            |b, signature| {
                let [first, second] = [0, 1].map(|input| loaded(b, signature, input));
                let weighted = match signature.inputs.len() {
                    2 => [first, second],
                    _ => {
                        let weight = loaded(b, signature, 2);
                        [first * weight, second * weight]
                    }
                };
                for value in weighted {
                    b.output(b.reduce(ReduceOp::Sum, value), signature.outputs[0], OutputPlace::Row);
                }
            },
        )
    }
}

/// The sums of the rows of two tensors.
pub static CHANNEL_NORM_FOLD: LoopOp = fold("channel_norm_fold", 2);

/// The sums of the rows of two tensors, each times a weight.
pub static CHANNEL_NORM_FOLD_WEIGHTED: LoopOp = fold("channel_norm_fold_weighted", 3);

/// Writes the gradient of the input. `factor` is that of the sums over a row.
fn write_gradient<'b>(
    b: &'b BodyBuilder,
    signature: &Signature,
    factor: impl FnOnce(Value<'b>, Value<'b>) -> Value<'b>,
) {
    let [x, mean, inverse, gradient, weight, along, sum] =
        [0, 1, 2, 3, 4, 5, 6].map(|input| loaded(b, signature, input));
    let factor = factor(number(b, signature), weight);
    let normalized = (x - mean) * inverse;
    let result = inverse * (gradient * weight - sum * factor - normalized * (along * factor));
    b.output(result, signature.outputs[0], OutputPlace::Row);
}

/// The gradient of the input. Inputs: input, mean, inverse deviation, the result's gradient, weight, and, for each row, the
/// weighted sums of [`CHANNEL_NORM_SUMS`]. The number is 1 / (number of points of a row).
pub static CHANNEL_NORM_BACKWARD: LoopOp = elementwise(
    "channel_norm_backward",
    "The gradient of a normalization of channels with respect to its input.",
    7,
    &["share"],
    |b, signature| write_gradient(b, signature, |share, _| share),
);

/// The gradient of the input as [`CHANNEL_NORM_BACKWARD`] has it, from sums that are not weighted, for rows that are channels.
pub static CHANNEL_NORM_BACKWARD_OF_BATCH: LoopOp = elementwise(
    "channel_norm_backward_of_batch",
    "The gradient of a normalization of channels by statistics of the batch with respect to its input.",
    7,
    &["share"],
    |b, signature| write_gradient(b, signature, |share, weight| weight * share),
);

/// The gradients of input, weight and bias of a normalization by statistics of the batch in one launch, whose rows are the channels.
/// Inputs: input, mean, inverse deviation, the result's gradient and weight. The number is 1 / (number of points of a row). The gradients
/// of weight and bias have the dtype that the call specifies.
pub static CHANNEL_NORM_GRADIENTS: LoopOp = LoopOp {
    rule: DTypeRule::FloatingPointAs,
    ..affine(
        "channel_norm_gradients",
        "The gradients of a normalization of channels with respect to input, weight and bias, one row for each channel.",
        5,
        &["share"],
        &[OutputPlace::Point, OutputPlace::Row, OutputPlace::Row],
        |b, signature| {
            let [x, mean, inverse, gradient, weight] =
                [0, 1, 2, 3, 4].map(|input| loaded(b, signature, input));
            let normalized = (x - mean) * inverse;
            let sums = [gradient * normalized, gradient].map(|value| b.reduce(ReduceOp::Sum, value));
            let share = number(b, signature);
            let [along, sum] = sums.map(|total| total * weight * share);
            let result = inverse * (gradient * weight - sum - normalized * along);
            b.output(result, signature.common, OutputPlace::Point);
            for (sum, &dtype) in sums.into_iter().zip(&signature.outputs[1..]) {
                b.output(sum, dtype, OutputPlace::Row);
            }
        },
    )
};
