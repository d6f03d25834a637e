//! Losses over classes. The row's points are the classes; one kernel computes the loss of every row.
//!
//! Each row has its class, an i64. A row of class `ignore_index` has loss 0 and does not count in a mean. Any other class that is
//! out of range makes the loss NaN, and for a cross entropy also the gradient of the entire row (the gradient of [`NLL_LOSS`] is
//! 0). The kernel of [`NLL_LOSS`] [reports](thalweg_ir::Report) it; a cross entropy does not, so that it can be fused with the scores'
//! computation, and its classes are checked before.

use thalweg_ir::{BodyBuilder, DType, Dimension, OutputPlace, ReduceOp, Scalar, Value};

use crate::definition::{DTypeRule, LoopOp, Signature, Sizes, Space, scalar};

/// Returns the entry of a loss of a floating-point tensor and classes.
const fn loss(
    name: &'static str,
    doc: &'static str,
    scalars: &'static [&'static str],
    build: fn(&BodyBuilder, &Signature),
) -> LoopOp {
    LoopOp {
        name,
        doc,
        input_count: 2,
        scalars,
        sizes: Sizes::Dimension,
        rule: DTypeRule::Classes,
        build,
        ..LoopOp::BASE
    }
}

/// The class of a row in a body.
struct Classes<'b> {
    class: Value<'b>,
    count: Value<'b>,
    ignored: Value<'b>,
}

impl<'b> Classes<'b> {
    /// Loads the classes, the number of classes and the ignored class.
    fn new(b: &'b BodyBuilder) -> Self {
        // The class is the same at every point of its row; a reduction makes that explicit in the body.
        let class = b.reduce(ReduceOp::Max, b.input(DType::I64));
        Self { class, count: scalar(b, DType::I64), ignored: scalar(b, DType::I64) }
    }

    fn is_ignored(&self) -> Value<'b> {
        self.class.eq(self.ignored)
    }

    /// Returns whether the class is out of range and not the ignored one.
    fn is_wrong(&self) -> Value<'b> {
        let in_range = self.class.ge(0).and(self.class.lt(self.count));
        in_range.or(self.is_ignored()).logical_not()
    }

    /// Returns 1, or NaN if the class is out of range: a factor for the whole row.
    fn validity(&self, like: Value<'b>) -> Value<'b> {
        self.is_wrong().select(like.like(f64::NAN), like.like(1.0))
    }

    /// Returns whether a point is the row's class.
    fn is_class(&self, b: &'b BodyBuilder) -> Value<'b> {
        b.index(Dimension::Inner(0)).eq(self.class)
    }

    /// Returns the value at the row's class; 0 if the class is out of range.
    fn pick(&self, b: &'b BodyBuilder, value: Value<'b>) -> Value<'b> {
        b.reduce(ReduceOp::Sum, self.is_class(b).select(value, value.like(0.0)))
    }

    /// Returns the loss, or 0 if the class is ignored.
    fn counted(&self, loss: Value<'b>) -> Value<'b> {
        self.is_ignored().select(loss.like(0.0), loss)
    }
}

/// −log softmax(x) at the row's class, for each row of x, in f32 if x has 16 bits. The second result is the logarithm of the sum
/// of eˣ, with which the gradient needs only one pass over x.
pub static CROSS_ENTROPY: LoopOp = LoopOp {
    rule: DTypeRule::WideClasses,
    outputs: &[OutputPlace::Row, OutputPlace::Row],
    ..loss(
        "cross_entropy",
        "−log softmax(x) at the row's class, for each row; 0 where the class is ignored, NaN where it is out of range. With the logarithm of \
         each row's sum of exponentials.",
        &["classes", "ignore_index"],
        |b, signature| {
            let x = b.input(signature.inputs[0]).to(signature.compute);
            let classes = Classes::new(b);
            let greatest = b.reduce(ReduceOp::Max, x);
            let shifted = x - greatest;
            let log_sum = b.reduce(ReduceOp::Sum, shifted.exp()).log();
            let loss = (log_sum - classes.pick(b, shifted)) * classes.validity(log_sum);
            b.output(classes.counted(loss), signature.outputs[0], OutputPlace::Row);
            b.output(greatest + log_sum, signature.compute, OutputPlace::Row);
        },
    )
};

/// The gradient of [`CROSS_ENTROPY`] with respect to x: (softmax(x) − 1 at the row's class) · g. Inputs: x, classes, the
/// logarithms of the sums and the losses' gradient. It may overwrite x.
pub static CROSS_ENTROPY_BACKWARD: LoopOp = LoopOp {
    input_count: 4,
    outputs: &[OutputPlace::Point],
    ..loss(
        "cross_entropy_backward",
        "The gradient of cross_entropy with respect to x.",
        &["classes", "ignore_index"],
        |b, signature| {
            let x = b.input(signature.inputs[0]).to(signature.compute);
            let classes = Classes::new(b);
            let [log_sum, gradient] =
                [2, 3].map(|input| b.input(signature.inputs[input]).to(signature.compute));
            let gradient = classes.counted(gradient) * classes.validity(gradient);
            let part = (x - log_sum).exp();
            let difference = classes.is_class(b).select(part - 1.0, part);
            b.output(difference * gradient, signature.outputs[0], OutputPlace::Point);
        },
    )
};

/// [`CROSS_ENTROPY`] against targets that spread `smoothing` (s) evenly over all classes: (1 − s) · loss + s · the mean over
/// classes.
pub static CROSS_ENTROPY_SMOOTHED: LoopOp = LoopOp {
    rule: DTypeRule::WideClasses,
    outputs: &[OutputPlace::Row, OutputPlace::Row],
    ..loss(
        "cross_entropy_smoothed",
        "The cross entropy against targets of which a part, label_smoothing, is spread evenly over all classes.",
        &["classes", "ignore_index", "label_smoothing"],
        |b, signature| {
            let compute = signature.compute;
            let x = b.input(signature.inputs[0]).to(compute);
            let classes = Classes::new(b);
            let smoothing = b.scalar(DType::F64).to(compute);
            let greatest = b.reduce(ReduceOp::Max, x);
            let shifted = x - greatest;
            let log_sum = b.reduce(ReduceOp::Sum, shifted.exp()).log();
            let loss = log_sum - classes.pick(b, shifted);
            let spread = log_sum - b.reduce(ReduceOp::Sum, shifted) / classes.count.to(compute);
            let smoothed = ((1.0 - smoothing) * loss + smoothing * spread) * classes.validity(loss);
            b.output(classes.counted(smoothed), signature.outputs[0], OutputPlace::Row);
            b.output(greatest + log_sum, compute, OutputPlace::Row);
        },
    )
};

/// The gradient of [`CROSS_ENTROPY_SMOOTHED`] with respect to x, as [`CROSS_ENTROPY_BACKWARD`]: (softmax(x) − the target) · g.
pub static CROSS_ENTROPY_SMOOTHED_BACKWARD: LoopOp = LoopOp {
    input_count: 4,
    outputs: &[OutputPlace::Point],
    ..loss(
        "cross_entropy_smoothed_backward",
        "The gradient of cross_entropy_smoothed with respect to x.",
        &["classes", "ignore_index", "label_smoothing"],
        |b, signature| {
            let compute = signature.compute;
            let x = b.input(signature.inputs[0]).to(compute);
            let classes = Classes::new(b);
            let smoothing = b.scalar(DType::F64).to(compute);
            let [log_sum, gradient] = [2, 3].map(|input| b.input(signature.inputs[input]).to(compute));
            let gradient = classes.counted(gradient) * classes.validity(gradient);
            let spread = smoothing / classes.count.to(compute);
            let part = (x - log_sum).exp() - spread;
            let difference = classes.is_class(b).select(part - (1.0 - smoothing), part);
            b.output(difference * gradient, signature.outputs[0], OutputPlace::Point);
        },
    )
};

/// −x at the row's class, for each row of logarithms of probabilities; the second result is 1 if the class counts, else 0. Rows:
/// the dimensions before the classes, and those after. Inputs: x (outer, classes, inner), gathered; the classes.
pub static NLL_LOSS: LoopOp = LoopOp {
    sizes: Sizes::None,
    rule: DTypeRule::WideClasses,
    space: Space::Coordinates,
    outputs: &[OutputPlace::Row, OutputPlace::Row],
    ..loss(
        "nll_loss",
        "−x at the row's class, for each row, and 1; 0 where the class is ignored, NaN where it is out of range.",
        &["classes", "ignore_index", "inner"],
        |b, signature| at_class(b, signature, false),
    )
};

/// [`NLL_LOSS`] times the weight of the class; the second result is that weight. The third input has a weight per class,
/// gathered.
pub static NLL_LOSS_WEIGHTED: LoopOp = LoopOp {
    name: "nll_loss_weighted",
    doc: "−x at the row's class times the class's weight, for each row, and that weight; 0 where the class is ignored, NaN where it is out \
          of range.",
    input_count: 3,
    build: |b, signature| at_class(b, signature, true),
    ..NLL_LOSS
};

fn at_class(b: &BodyBuilder, signature: &Signature, is_weighted: bool) {
    let (x, class) = (b.gathered_input(signature.inputs[0]), b.input(DType::I64));
    let weight = is_weighted.then(|| b.gathered_input(signature.inputs[2]));
    let [count, ignored, inner] = [0; 3].map(|_| scalar(b, DType::I64));
    let [row, column] = [0, 1].map(|dimension| b.index(Dimension::Row(dimension)));
    let (is_ignored, fits) = (class.eq(ignored), class.ge(0).and(class.lt(count)));
    b.report(fits.or(is_ignored).logical_not(), class, count);
    let counts = fits.and(is_ignored.logical_not());
    let nan = Scalar::F64(f64::NAN);
    let value = b.gather(x, (row * count + class) * inner + column, counts, nan).to(signature.compute);
    let weight = match weight {
        Some(weight) => b.gather(weight, class, counts, nan).to(signature.compute),
        None => value.like(1.0),
    };
    let zero = value.like(0.0);
    b.output(is_ignored.select(zero, -(value * weight)), signature.outputs[0], OutputPlace::Row);
    b.output(is_ignored.select(zero, weight), signature.compute, OutputPlace::Row);
}

/// The sum of losses divided by the number of classes that are not ignored; NaN if all are ignored.
pub static MEAN_OVER_CLASSES: LoopOp = LoopOp {
    sizes: Sizes::Dimensions,
    ..loss(
        "mean_over_classes",
        "The mean of losses over the rows whose class is not ignored.",
        &["ignore_index"],
        |b, signature| {
            let losses = b.input(signature.inputs[0]).to(signature.compute);
            let counts = b.input(DType::I64).eq(scalar(b, DType::I64)).logical_not();
            let count = b.reduce(ReduceOp::Sum, counts.to(signature.compute));
            b.output(b.reduce(ReduceOp::Sum, losses) / count, signature.outputs[0], OutputPlace::Row);
        },
    )
};
