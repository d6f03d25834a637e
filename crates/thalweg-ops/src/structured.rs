//! Loop operators that are not elementwise: creation, conversion, reductions, losses, normalization, attention's softmax,
//! indexing, random numbers, windows.
//!
//! Each is a [`LoopOp`] whose `build` writes its body by hand. Gradients of operators without gathers and scatters are derived,
//! as for elementwise operators; an operator `x` with a gradient of its own has an entry `x_backward`.

mod attention;
mod channels;
mod distance;
mod indexing;
mod loss;
mod normalization;
mod random;
mod recurrent;
mod reductions;
mod windows;

pub use attention::{CAUSAL_SOFTMAX, MASKED_SOFTMAX, SCALED_SOFTMAX};
pub use channels::{
    CHANNEL_NORM_APPLY, CHANNEL_NORM_BACKWARD, CHANNEL_NORM_BACKWARD_OF_BATCH, CHANNEL_NORM_COMBINE,
    CHANNEL_NORM_FIXED, CHANNEL_NORM_FOLD, CHANNEL_NORM_FOLD_WEIGHTED, CHANNEL_NORM_GRADIENTS,
    CHANNEL_NORM_MOVED, CHANNEL_NORM_MOVED_BOTH, CHANNEL_NORM_PARTS, CHANNEL_NORM_STATISTICS,
    CHANNEL_NORM_SUMS,
};
pub use distance::{
    BINARY_CROSS_ENTROPY, BINARY_CROSS_ENTROPY_ELEMENTS, HUBER_LOSS, HUBER_LOSS_ELEMENTS, KL_DIV,
    KL_DIV_ELEMENTS, KL_DIV_OF_LOGARITHMS, KL_DIV_OF_LOGARITHMS_ELEMENTS, L1_LOSS, L1_LOSS_ELEMENTS,
    MSE_LOSS, MSE_LOSS_ELEMENTS, SMOOTH_L1_LOSS, SMOOTH_L1_LOSS_ELEMENTS, SOFT_MARGIN_LOSS,
    SOFT_MARGIN_LOSS_ELEMENTS, WITH_LOGITS, WITH_LOGITS_ELEMENTS,
};
pub use indexing::{CHECKED_INDEX, GATHER, GATHER_REPORTED, INDEX_CHECK, INDEX_COPY, PLACE, REVERSE, STACK3};
pub use loss::{
    CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD, CROSS_ENTROPY_SMOOTHED, CROSS_ENTROPY_SMOOTHED_BACKWARD,
    MEAN_OVER_CLASSES, NLL_LOSS, NLL_LOSS_WEIGHTED,
};
pub use normalization::{
    ADD_LAYER_NORM, ADD_LAYER_NORM_BACKWARD, LAYER_NORM, LAYER_NORM_AFFINE, LAYER_NORM_BACKWARD,
    LAYER_NORM_BACKWARD_ADD, LAYER_NORM_PARAMETERS_BACKWARD, RMS_NORM, RMS_NORM_AFFINE,
    RMS_NORM_AFFINE_BACKWARD, RMS_NORM_BACKWARD, RMS_NORM_WEIGHT_BACKWARD,
};
pub use random::{BERNOULLI, CAUCHY, EXPONENTIAL, GEOMETRIC, INTEGERS, SEQUENCE_NORMAL, SEQUENCE_UNIFORM};
pub use recurrent::{GRU_STEP, GRU_STEP_BACKWARD, LSTM_STEP, LSTM_STEP_BACKWARD};
pub use reductions::{
    ALL, ANY, ARGMIN, COUNT_NONZERO, LOGSUMEXP, NANSUM, NORM_1, NORM_2, NORM_P, PROD, STD, VAR, VAR_MEAN,
};
pub use windows::{
    AVERAGE_ADAPTIVE, AVERAGE_ADAPTIVE_BACKWARD, AVERAGE_WINDOWS, AVERAGE_WINDOWS_BACKWARD, FOLD_WINDOWS,
    GREATEST_ADAPTIVE, GREATEST_ADAPTIVE_BACKWARD, GREATEST_OF_WINDOWS, GREATEST_OF_WINDOWS_BACKWARD,
    UNFOLD_WINDOWS,
};

use smallvec::SmallVec;
use thalweg_ir::{BodyBuilder, DType, Dimension, OutputPlace, ReduceOp, Value};

use crate::definition::{DTypeRule, LoopOp, Signature, Sizes, Space, scalar};

/// The operators that are launched as their own loop, called as parts of other operators.
pub static CALLED: &[&LoopOp] = &[
    &COPY,
    &ARANGE,
    &LINSPACE,
    &ROOTS_OF_UNITY,
    &SUM,
    &WIDE_SUM,
    &MEAN,
    &AMAX,
    &AMIN,
    &ARGMAX,
    &ARGMIN,
    &MAX_AND_PLACE,
    &MIN_AND_PLACE,
    &NANSUM,
    &ANY,
    &ALL,
    &COUNT_NONZERO,
    &VAR,
    &VAR_MEAN,
    &STD,
    &LOGSUMEXP,
    &NORM_1,
    &NORM_2,
    &NORM_P,
    &SOFTMAX,
    &LOG_SOFTMAX,
    &SCALED_SOFTMAX,
    &CAUSAL_SOFTMAX,
    &MASKED_SOFTMAX,
    &CROSS_ENTROPY_BACKWARD,
    &CROSS_ENTROPY_SMOOTHED_BACKWARD,
    &MSE_LOSS,
    &MSE_LOSS_ELEMENTS,
    &L1_LOSS,
    &L1_LOSS_ELEMENTS,
    &SMOOTH_L1_LOSS,
    &SMOOTH_L1_LOSS_ELEMENTS,
    &HUBER_LOSS,
    &HUBER_LOSS_ELEMENTS,
    &BINARY_CROSS_ENTROPY,
    &BINARY_CROSS_ENTROPY_ELEMENTS,
    &WITH_LOGITS,
    &WITH_LOGITS_ELEMENTS,
    &KL_DIV,
    &KL_DIV_ELEMENTS,
    &KL_DIV_OF_LOGARITHMS,
    &KL_DIV_OF_LOGARITHMS_ELEMENTS,
    &SOFT_MARGIN_LOSS,
    &SOFT_MARGIN_LOSS_ELEMENTS,
    &MEAN_OVER_CLASSES,
    &LAYER_NORM,
    &LAYER_NORM_BACKWARD,
    &LAYER_NORM_BACKWARD_ADD,
    &LAYER_NORM_PARAMETERS_BACKWARD,
    &ADD_LAYER_NORM_BACKWARD,
    &RMS_NORM_BACKWARD,
    &RMS_NORM_AFFINE_BACKWARD,
    &RMS_NORM_WEIGHT_BACKWARD,
    &CHANNEL_NORM_STATISTICS,
    &CHANNEL_NORM_PARTS,
    &CHANNEL_NORM_COMBINE,
    &CHANNEL_NORM_APPLY,
    &CHANNEL_NORM_FIXED,
    &CHANNEL_NORM_MOVED,
    &CHANNEL_NORM_MOVED_BOTH,
    &CHANNEL_NORM_SUMS,
    &CHANNEL_NORM_FOLD,
    &CHANNEL_NORM_FOLD_WEIGHTED,
    &CHANNEL_NORM_BACKWARD,
    &CHANNEL_NORM_BACKWARD_OF_BATCH,
    &CHANNEL_NORM_GRADIENTS,
    &PLACE,
    &CHECKED_INDEX,
    &SEQUENCE_NORMAL,
    &SEQUENCE_UNIFORM,
    &BERNOULLI,
    &EXPONENTIAL,
    &GEOMETRIC,
    &CAUCHY,
    &INTEGERS,
];

/// The operators whose loop another kernel launches.
pub static LAUNCHED: &[&LoopOp] = &[
    &SOFTMAX_BACKWARD,
    &LOG_SOFTMAX_BACKWARD,
    &FULL,
    &PROD,
    &CROSS_ENTROPY,
    &CROSS_ENTROPY_SMOOTHED,
    &NLL_LOSS,
    &NLL_LOSS_WEIGHTED,
    &LAYER_NORM_AFFINE,
    &ADD_LAYER_NORM,
    &RMS_NORM,
    &RMS_NORM_AFFINE,
    &INDEX_COPY,
    &GATHER,
    &GATHER_REPORTED,
    &REVERSE,
    &INDEX_CHECK,
    &TRIANGLE,
    &STACK3,
    &UNFOLD_WINDOWS,
    &FOLD_WINDOWS,
    &AVERAGE_WINDOWS,
    &AVERAGE_WINDOWS_BACKWARD,
    &GREATEST_OF_WINDOWS,
    &GREATEST_OF_WINDOWS_BACKWARD,
    &AVERAGE_ADAPTIVE,
    &AVERAGE_ADAPTIVE_BACKWARD,
    &GREATEST_ADAPTIVE,
    &GREATEST_ADAPTIVE_BACKWARD,
    &LSTM_STEP,
    &LSTM_STEP_BACKWARD,
    &GRU_STEP,
    &GRU_STEP_BACKWARD,
];

/// Returns every operator of this module.
pub fn structured() -> impl Iterator<Item = &'static LoopOp> {
    CALLED.iter().chain(LAUNCHED).copied()
}

/// The elements, in another layout or dtype.
pub static COPY: LoopOp = LoopOp {
    name: "copy",
    doc: "The elements, in another layout or dtype.",
    rule: DTypeRule::Converted,
    space: Space::Elementwise,
    build: |b, signature| {
        let result = b.input(signature.inputs[0]);
        b.output(result, signature.outputs[0], OutputPlace::Row);
    },
    ..LoopOp::BASE
};

/// One value everywhere.
pub static FULL: LoopOp = LoopOp {
    name: "full",
    doc: "One value everywhere.",
    input_count: 0,
    scalars: &["value"],
    sizes: Sizes::Shape,
    rule: DTypeRule::Created,
    space: Space::Elementwise,
    build: |b, signature| b.output(scalar(b, signature.compute), signature.outputs[0], OutputPlace::Row),
    ..LoopOp::BASE
};

/// start, start + step, start + 2·step, …
pub static ARANGE: LoopOp = LoopOp {
    name: "arange",
    doc: "start, start + step, start + 2·step, …",
    input_count: 0,
    scalars: &["start", "step"],
    sizes: Sizes::Extents(1),
    rule: DTypeRule::Counted,
    space: Space::Coordinates,
    build: |b, signature| {
        let (start, step) = (scalar(b, signature.compute), scalar(b, signature.compute));
        let result = start + b.index(Dimension::Row(0)).to(signature.compute) * step;
        b.output(result, signature.outputs[0], OutputPlace::Row);
    },
    ..LoopOp::BASE
};

/// Evenly spaced numbers from start to end: counted from the start in the first half and from the end in the second, so that both
/// ends are exact.
pub static LINSPACE: LoopOp = LoopOp {
    name: "linspace",
    doc: "Numbers from start to end, evenly spaced.",
    scalars: &["start", "end", "step", "half", "last"],
    build: |b, signature| {
        // Integers are spaced in f32 and truncated.
        let compute = if signature.compute.is_floating_point() { signature.compute } else { DType::F32 };
        let [start, end, step] = [0; 3].map(|_| scalar(b, compute));
        let [half, last] = [0; 2].map(|_| scalar(b, DType::I64));
        let at = b.index(Dimension::Row(0));
        let first = start + at.to(compute) * step;
        let second = end - (last - at).to(compute) * step;
        b.output(
            at.lt(half).select(first, second).to(signature.compute),
            signature.outputs[0],
            OutputPlace::Row,
        );
    },
    ..ARANGE
};

/// The triangles of matrices, and 0 elsewhere. Rows: matrix, row, column. `side` is 1 for the lower triangle and −1 for the upper one:
/// a place is kept whose column is at most `diagonal` to that side of the row.
pub static TRIANGLE: LoopOp = LoopOp {
    name: "triangle",
    doc: "The lower or upper triangles of matrices, and 0 elsewhere.",
    input_count: 1,
    scalars: &["side", "diagonal"],
    rule: DTypeRule::Moved,
    space: Space::Coordinates,
    build: |b, signature| {
        let x = b.input(signature.inputs[0]);
        let [side, diagonal] = [0; 2].map(|_| scalar(b, DType::I64));
        let [row, column] = [1, 2].map(|dimension| b.index(Dimension::Row(dimension)));
        let inside = ((column - row) * side).le(diagonal);
        b.output(inside.select(x, x.like(0)), signature.outputs[0], OutputPlace::Row);
    },
    ..LoopOp::BASE
};

/// exp(sign · 2πi · row · column / period), written as the real matrix that multiplies a complex number by it: element (row,
/// part, column, of) is the contribution of part `part` of the factor to part `of` of the product. A single part is the number
/// itself. Computed in f64.
pub static ROOTS_OF_UNITY: LoopOp = LoopOp {
    name: "roots_of_unity",
    doc: "Powers of a root of unity, as the matrices with real numbers that multiply by them.",
    scalars: &["period", "sign"],
    sizes: Sizes::Extents(4),
    rule: DTypeRule::Created,
    build: |b, signature| {
        let (period, sign) = (scalar(b, DType::I64), scalar(b, DType::F64));
        let [row, part, column, of] = [0, 1, 2, 3].map(|dimension| b.index(Dimension::Row(dimension)));
        let turns = (row * column % period).to(DType::F64) / period.to(DType::F64);
        let angle = turns * std::f64::consts::TAU;
        let side = (of - part).to(DType::F64);
        let value = side.eq(0.0).select(angle.cos(), side * sign * angle.sin());
        b.output(value.to(signature.compute), signature.outputs[0], OutputPlace::Row);
    },
    ..ARANGE
};

/// Returns a reduction of one input to one output per row.
const fn reduction(
    name: &'static str,
    doc: &'static str,
    rule: DTypeRule,
    scalars: &'static [&'static str],
    build: fn(&BodyBuilder, &Signature),
) -> LoopOp {
    LoopOp { name, doc, scalars, sizes: Sizes::Dimensions, rule, build, ..LoopOp::BASE }
}

/// The sum over dimensions.
pub static SUM: LoopOp = LoopOp {
    complex: Some("thalweg::sum_of_complex"),
    ..reduction("sum", "The sum over dimensions.", DTypeRule::Sum, &[], |b, signature| {
        let x = b.input(signature.inputs[0]).to(signature.compute);
        b.output(b.reduce(ReduceOp::Sum, x), signature.outputs[0], OutputPlace::Row);
    })
};

/// The sum over dimensions of floats, in the dtype of the computation.
pub static WIDE_SUM: LoopOp = LoopOp {
    name: "wide_sum",
    doc: "The sum over dimensions, in the dtype of the computation.",
    rule: DTypeRule::Widened,
    complex: None,
    ..SUM
};

/// The mean over dimensions; the call passes the number of elements.
pub static MEAN: LoopOp = LoopOp {
    complex: Some("thalweg::mean_of_complex"),
    ..reduction("mean", "The mean over dimensions.", DTypeRule::FloatingPoint, &["count"], |b, signature| {
        let x = b.input(signature.inputs[0]).to(signature.compute);
        let mean = b.reduce(ReduceOp::Sum, x) / scalar(b, signature.compute);
        b.output(mean, signature.outputs[0], OutputPlace::Row);
    })
};

/// The greatest element over dimensions; a gradient is split evenly among equals.
pub static AMAX: LoopOp =
    reduction("amax", "The greatest element over dimensions.", DTypeRule::Numeric, &[], |b, signature| {
        b.output(
            b.reduce(ReduceOp::Max, b.input(signature.inputs[0])),
            signature.outputs[0],
            OutputPlace::Row,
        );
    });

/// The smallest element over dimensions; a gradient is split evenly among equals.
pub static AMIN: LoopOp =
    reduction("amin", "The smallest element over dimensions.", DTypeRule::Numeric, &[], |b, signature| {
        b.output(
            b.reduce(ReduceOp::Min, b.input(signature.inputs[0])),
            signature.outputs[0],
            OutputPlace::Row,
        );
    });

/// The place of the greatest element in one dimension: the first among equals, or among NaNs.
pub static ARGMAX: LoopOp = LoopOp {
    sizes: Sizes::Dimension,
    ..reduction(
        "argmax",
        "The place of the greatest element in one dimension.",
        DTypeRule::Position,
        &[],
        |b, signature| {
            let [_, place] = chosen(b, signature, ReduceOp::Max);
            b.output(place, DType::I64, OutputPlace::Row);
        },
    )
};

/// Returns the extremum of a row and its place: the first among equals, or among NaNs.
fn chosen<'b>(b: &'b BodyBuilder, signature: &Signature, op: ReduceOp) -> [Value<'b>; 2] {
    let x = b.input(signature.inputs[0]);
    let extremum = b.reduce(op, x);
    let is_it = x.eq(extremum).or(x.eq(x).logical_not());
    let candidate = is_it.select(b.index(Dimension::Inner(0)), b.constant(i64::MAX, DType::I64));
    [extremum, b.reduce(ReduceOp::Min, candidate)]
}

/// Returns the entry of an extremum in one dimension, with its place.
const fn extremum_and_place(
    name: &'static str,
    doc: &'static str,
    build: fn(&BodyBuilder, &Signature),
) -> LoopOp {
    LoopOp {
        sizes: Sizes::Dimension,
        outputs: &[OutputPlace::Row, OutputPlace::Row],
        ..reduction(name, doc, DTypeRule::Position, &[], build)
    }
}

/// The greatest element in one dimension, and its place.
pub static MAX_AND_PLACE: LoopOp = extremum_and_place(
    "max_and_place",
    "The greatest element in one dimension, and its place.",
    |b, signature| {
        let [extremum, place] = chosen(b, signature, ReduceOp::Max);
        b.output(extremum, signature.inputs[0], OutputPlace::Row);
        b.output(place, DType::I64, OutputPlace::Row);
    },
);

/// The smallest element in one dimension, and its place.
pub static MIN_AND_PLACE: LoopOp = extremum_and_place(
    "min_and_place",
    "The smallest element in one dimension, and its place.",
    |b, signature| {
        let [extremum, place] = chosen(b, signature, ReduceOp::Min);
        b.output(extremum, signature.inputs[0], OutputPlace::Row);
        b.output(place, DType::I64, OutputPlace::Row);
    },
);

/// Returns x − max, and the sum of its exponentials over the row. The shift changes no result, so no gradient flows through it.
fn shifted_exponentials<'b>(b: &'b BodyBuilder, x: Value<'b>) -> (Value<'b>, Value<'b>) {
    let shifted = x - b.reduce(ReduceOp::Max, x.detach()).detach();
    (shifted, b.reduce(ReduceOp::Sum, shifted.exp()))
}

/// Returns the gradient of a softmax: y · (g − Σ g · y).
fn softmax_gradient<'b>(b: &'b BodyBuilder, y: Value<'b>, g: Value<'b>) -> Value<'b> {
    y * (g - b.reduce(ReduceOp::Sum, g * y))
}

/// eˣ over its sum along one dimension.
pub static SOFTMAX: LoopOp = LoopOp {
    outputs: &[OutputPlace::Point],
    from_result: Some(|b, _, y, g| SmallVec::from_elem(softmax_gradient(b, y, g), 1)),
    sizes: Sizes::Dimension,
    ..reduction(
        "softmax",
        "eˣ over its sum along one dimension.",
        DTypeRule::FloatingPoint,
        &[],
        |b, signature| {
            let x = b.input(signature.inputs[0]).to(signature.compute);
            let (shifted, sum) = shifted_exponentials(b, x);
            b.output(shifted.exp() * (1.0 / sum), signature.outputs[0], OutputPlace::Point);
        },
    )
};

/// The gradient of [`SOFTMAX`] from its result. Inputs: the gradient of the result, and the result. The dtype that is requested is
/// that of softmax's input.
pub static SOFTMAX_BACKWARD: LoopOp = softmax_backward(
    "softmax_backward",
    "The gradient of softmax along one dimension from its result.",
    |b, signature| {
        let [g, y] = [0, 1].map(|input| b.input(signature.inputs[input]).to(signature.compute));
        b.output(softmax_gradient(b, y, g), signature.outputs[0], OutputPlace::Point);
    },
);

/// The gradient of [`LOG_SOFTMAX`] from its result, as [`SOFTMAX_BACKWARD`].
pub static LOG_SOFTMAX_BACKWARD: LoopOp = softmax_backward(
    "log_softmax_backward",
    "The gradient of the logarithm of softmax along one dimension from its result.",
    |b, signature| {
        let [g, y] = [0, 1].map(|input| b.input(signature.inputs[input]).to(signature.compute));
        b.output(g - y.exp() * b.reduce(ReduceOp::Sum, g), signature.outputs[0], OutputPlace::Point);
    },
);

const fn softmax_backward(
    name: &'static str,
    doc: &'static str,
    build: fn(&BodyBuilder, &Signature),
) -> LoopOp {
    LoopOp {
        name,
        doc,
        input_count: 2,
        sizes: Sizes::Dimension,
        rule: DTypeRule::FloatingPointAs,
        outputs: &[OutputPlace::Point],
        build,
        ..LoopOp::BASE
    }
}

/// The logarithm of softmax along one dimension, without overflow.
pub static LOG_SOFTMAX: LoopOp = LoopOp {
    outputs: &[OutputPlace::Point],
    from_result: Some(|b, _, y, g| SmallVec::from_elem(g - y.exp() * b.reduce(ReduceOp::Sum, g), 1)),
    sizes: Sizes::Dimension,
    ..reduction(
        "log_softmax",
        "The logarithm of softmax along one dimension.",
        DTypeRule::FloatingPoint,
        &[],
        |b, signature| {
            let x = b.input(signature.inputs[0]).to(signature.compute);
            let (shifted, sum) = shifted_exponentials(b, x);
            b.output(shifted - sum.log(), signature.outputs[0], OutputPlace::Point);
        },
    )
};
