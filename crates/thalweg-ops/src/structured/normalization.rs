//! Normalization of rows, by mean and variance or by the mean square. Statistics are in the compute dtype, which is f32 for
//! 16-bit floats.
//!
//! The gradient of the form with weight and bias has two kernels of its own: one over rows for the input, one over features for
//! weight and bias. Derived kernels would write the parameters' gradients at every point, to be summed afterwards.

use thalweg_ir::{BodyBuilder, DType, OutputPlace, ReduceOp, Value};

use super::reduction;
use crate::definition::{Autocast, DTypeRule, LoopOp, Signature, Sizes};

/// Returns (x − mean) / √(variance + ε) of a row, with the mean and 1 / √(variance + ε).
fn normalized<'b>(b: &'b BodyBuilder, x: Value<'b>) -> [Value<'b>; 3] {
    let [count, epsilon] = [0; 2].map(|_| b.scalar(DType::F64).to(x.dtype()));
    let mean = b.reduce(ReduceOp::Sum, x) / count;
    let centred = x - mean;
    let variance = b.reduce(ReduceOp::Sum, centred * centred) / count;
    let inverse_deviation = 1.0 / (variance + epsilon).sqrt();
    [centred * inverse_deviation, mean, inverse_deviation]
}

pub(super) fn loaded<'b>(b: &'b BodyBuilder, signature: &Signature, input: usize) -> Value<'b> {
    b.input(signature.inputs[input]).to(signature.compute)
}

/// Rows with mean 0 and variance 1.
pub static LAYER_NORM: LoopOp = LoopOp {
    outputs: &[OutputPlace::Point],
    autocast: Autocast::Full,
    ..reduction(
        "layer_norm",
        "Rows with mean 0 and variance 1.",
        DTypeRule::FloatingPoint,
        &["count", "epsilon"],
        |b, signature| {
            let [result, ..] = normalized(b, loaded(b, signature, 0));
            b.output(result, signature.outputs[0], OutputPlace::Point);
        },
    )
};

pub(super) const fn affine(
    name: &'static str,
    doc: &'static str,
    input_count: usize,
    scalars: &'static [&'static str],
    outputs: &'static [OutputPlace],
    build: fn(&BodyBuilder, &Signature),
) -> LoopOp {
    LoopOp { name, doc, input_count, scalars, sizes: Sizes::Dimensions, outputs, build, ..LoopOp::BASE }
}

/// [`LAYER_NORM`] times a weight plus a bias; further results are each row's mean and 1 / √(variance + ε) for the gradient.
pub static LAYER_NORM_AFFINE: LoopOp = affine(
    "layer_norm_affine",
    "Rows with mean 0 and variance 1, times a weight, plus a bias; with each row's mean and inverse deviation.",
    3,
    &["count", "epsilon"],
    &[OutputPlace::Point, OutputPlace::Row, OutputPlace::Row],
    |b, signature| {
        let [x, weight, bias] = [0, 1, 2].map(|input| loaded(b, signature, input));
        let [result, mean, inverse_deviation] = normalized(b, x);
        b.output(result * weight + bias, signature.outputs[0], OutputPlace::Point);
        b.output(mean, signature.compute, OutputPlace::Row);
        b.output(inverse_deviation, signature.compute, OutputPlace::Row);
    },
);

/// Computes the gradient of the input from the first five inputs: input, weight, mean, inverse deviation and the result's
/// gradient.
fn input_gradient<'b>(b: &'b BodyBuilder, signature: &Signature) -> Value<'b> {
    let [x, weight, mean, inverse_deviation, gradient] =
        [0, 1, 2, 3, 4].map(|input| loaded(b, signature, input));
    let count = b.scalar(DType::F64).to(signature.compute);
    let normalized = (x - mean) * inverse_deviation;
    let gradient = gradient * weight;
    let mean_gradient = b.reduce(ReduceOp::Sum, gradient) / count;
    let slope = b.reduce(ReduceOp::Sum, gradient * normalized) / count;
    inverse_deviation * (gradient - mean_gradient - normalized * slope)
}

/// The gradient of [`LAYER_NORM_AFFINE`] with respect to its input. Inputs: input, weight, mean, inverse deviation and the
/// result's gradient.
pub static LAYER_NORM_BACKWARD: LoopOp = affine(
    "layer_norm_backward",
    "The gradient of layer_norm_affine with respect to its input.",
    5,
    &["count"],
    &[OutputPlace::Point],
    |b, signature| b.output(input_gradient(b, signature), signature.outputs[0], OutputPlace::Point),
);

/// [`LAYER_NORM_BACKWARD`] plus a gradient that bypasses the layer, such as that of a residual connection.
pub static LAYER_NORM_BACKWARD_ADD: LoopOp = affine(
    "layer_norm_backward_add",
    "The gradient of layer_norm_affine with respect to its input, plus one that comes past the layer.",
    6,
    &["count"],
    &[OutputPlace::Point],
    |b, signature| {
        let gradient = input_gradient(b, signature).to(signature.outputs[0]).to(signature.compute);
        b.output(loaded(b, signature, 5) + gradient, signature.outputs[0], OutputPlace::Point);
    },
);

/// [`LAYER_NORM_AFFINE`] of a sum of two inputs: a residual connection and the layer after it. The sum is a result, too. The
/// normalized rows may have another dtype.
pub static ADD_LAYER_NORM: LoopOp = LoopOp {
    rule: DTypeRule::FloatingPointAs,
    ..affine(
        "add_layer_norm",
        "Rows of a sum with mean 0 and variance 1, times a weight, plus a bias; with each row's mean and inverse deviation, and the sum.",
        4,
        &["count", "epsilon"],
        &[OutputPlace::Point, OutputPlace::Row, OutputPlace::Row, OutputPlace::Point],
        |b, signature| {
            let [x, branch, weight, bias] = [0, 1, 2, 3].map(|input| loaded(b, signature, input));
            // Rounded as it is stored, so that the norm is that of the stored sum.
            let sum = (x + branch).to(signature.common).to(signature.compute);
            let [result, mean, inverse_deviation] = normalized(b, sum);
            b.output(result * weight + bias, signature.outputs[0], OutputPlace::Point);
            b.output(mean, signature.compute, OutputPlace::Row);
            b.output(inverse_deviation, signature.compute, OutputPlace::Row);
            b.output(sum, signature.common, OutputPlace::Point);
        },
    )
};

/// [`LAYER_NORM_BACKWARD_ADD`], written twice: in the dtype of the input, and in that of the branch that was added to it.
pub static ADD_LAYER_NORM_BACKWARD: LoopOp = LoopOp {
    rule: DTypeRule::FloatingPointAs,
    ..affine(
        "add_layer_norm_backward",
        "The gradients of add_layer_norm with respect to input and branch, which differ in their dtype.",
        6,
        &["count"],
        &[OutputPlace::Point, OutputPlace::Point],
        |b, signature| {
            let gradient = input_gradient(b, signature).to(signature.common).to(signature.compute);
            let sum = (loaded(b, signature, 5) + gradient).to(signature.common);
            b.output(sum, signature.common, OutputPlace::Point);
            b.output(sum.to(signature.compute), signature.outputs[1], OutputPlace::Point);
        },
    )
};

/// The gradients of weight and bias of [`LAYER_NORM_AFFINE`]. Inputs: input, mean, inverse deviation and the result's gradient.
/// Its rows are the features.
pub static LAYER_NORM_PARAMETERS_BACKWARD: LoopOp = affine(
    "layer_norm_parameters_backward",
    "The gradients of layer_norm_affine with respect to weight and bias.",
    4,
    &[],
    &[OutputPlace::Row, OutputPlace::Row],
    |b, signature| {
        let [x, mean, inverse_deviation, gradient] = [0, 1, 2, 3].map(|input| loaded(b, signature, input));
        let normalized = (x - mean) * inverse_deviation;
        b.output(b.reduce(ReduceOp::Sum, gradient * normalized), signature.outputs[0], OutputPlace::Row);
        b.output(b.reduce(ReduceOp::Sum, gradient), signature.outputs[1], OutputPlace::Row);
    },
);

/// Returns the entry of rows divided by the root of their mean square, times a weight if there is a second input. The second
/// result is 1 / √(mean square + ε) of each row.
const fn root_mean_square(name: &'static str, input_count: usize) -> LoopOp {
    affine(
        name,
        "Rows over the root of their mean square, times a weight where there is one; with each row's inverse root.",
        input_count,
        &["count", "epsilon"],
        &[OutputPlace::Point, OutputPlace::Row],
        |b, signature| {
            let x = loaded(b, signature, 0);
            let [count, epsilon] = [0; 2].map(|_| b.scalar(DType::F64).to(signature.compute));
            let inverse = 1.0 / (b.reduce(ReduceOp::Sum, x * x) / count + epsilon).sqrt();
            let result = x * inverse;
            let result = if signature.inputs.len() > 1 { result * loaded(b, signature, 1) } else { result };
            b.output(result, signature.outputs[0], OutputPlace::Point);
            b.output(inverse, signature.compute, OutputPlace::Row);
        },
    )
}

/// Rows divided by the root of their mean square; the second result is 1 / √(mean square + ε) of each row, for the gradient.
pub static RMS_NORM: LoopOp = root_mean_square("rms_norm_rows", 1);

/// [`RMS_NORM`] times a weight.
pub static RMS_NORM_AFFINE: LoopOp = root_mean_square("rms_norm_affine", 2);

/// Returns the entry of the gradient of RMS normalization with respect to its input. Inputs: input, inverse root and the result's
/// gradient, and optionally a weight.
const fn root_mean_square_gradient(name: &'static str, input_count: usize) -> LoopOp {
    affine(
        name,
        "The gradient of RMS normalization with respect to its input.",
        input_count,
        &["count"],
        &[OutputPlace::Point],
        |b, signature| {
            let [x, inverse, gradient] = [0, 1, 2].map(|input| loaded(b, signature, input));
            let count = b.scalar(DType::F64).to(signature.compute);
            let gradient =
                if signature.inputs.len() > 3 { gradient * loaded(b, signature, 3) } else { gradient };
            let normalized = x * inverse;
            let slope = b.reduce(ReduceOp::Sum, gradient * normalized) / count;
            b.output(inverse * (gradient - normalized * slope), signature.outputs[0], OutputPlace::Point);
        },
    )
}

/// The gradient of [`RMS_NORM`] with respect to its input. Inputs: input, inverse root and the result's gradient.
pub static RMS_NORM_BACKWARD: LoopOp = root_mean_square_gradient("rms_norm_backward", 3);

/// The gradient of [`RMS_NORM_AFFINE`] with respect to its input. Inputs: input, inverse root, the result's gradient and the
/// weight.
pub static RMS_NORM_AFFINE_BACKWARD: LoopOp = root_mean_square_gradient("rms_norm_affine_backward", 4);

/// The gradient of the weight of [`RMS_NORM_AFFINE`]. Inputs: input, inverse root and the result's gradient. Its rows are the
/// features.
pub static RMS_NORM_WEIGHT_BACKWARD: LoopOp = LoopOp {
    rule: DTypeRule::FloatingPointAs,
    ..affine(
        "rms_norm_weight_backward",
        "The gradient of rms_norm_affine with respect to its weight.",
        3,
        &[],
        &[OutputPlace::Row],
        |b, signature| {
            let [x, inverse, gradient] = [0, 1, 2].map(|input| loaded(b, signature, input));
            let sum = b.reduce(ReduceOp::Sum, gradient * (x * inverse));
            b.output(sum, signature.outputs[0], OutputPlace::Row);
        },
    )
};
