//! Group norm: `native_group_norm`, which `torch.nn.functional.group_norm` comes to. A row is a group of channels of an instance, whose points are
//! neighbours; weight and bias are those of a channel. Its gradient stays with PyTorch's kernel.

use thalweg_ir::{BodyBuilder, DType, OutputPlace, ReduceOp};
use thalweg_ops::structured::LAYER_NORM_AFFINE;
use thalweg_ops::{LoopOp, Signature};

use super::libtorch::Stack;
use super::operators::{Attempt, matrix, of_words, put};
use super::original::GroupArguments;
use super::rows::Computation;
use super::{Kernels, Operator};

/// Rows with mean 0 and variance 1, times a weight, plus a bias; with each row's mean and 1 / √(variance + ε) in the dtype of the result, as
/// PyTorch keeps them.
pub(super) static GROUP_NORM: LoopOp = LoopOp {
    name: "group_norm_affine",
    doc: "Rows with mean 0 and variance 1, times a weight, plus a bias; with mean and inverse deviation in the dtype of the result.",
    build: |b: &BodyBuilder, signature: &Signature| {
        let [x, weight, bias] = [0, 1, 2].map(|input| b.input(signature.inputs[input]).to(signature.compute));
        let [count, epsilon] = [0; 2].map(|_| b.scalar(DType::F64).to(signature.compute));
        let mean = b.reduce(ReduceOp::Sum, x) / count;
        let centred = x - mean;
        let variance = b.reduce(ReduceOp::Sum, centred * centred) / count;
        let inverse_deviation = 1.0 / (variance + epsilon).sqrt();
        b.output(centred * inverse_deviation * weight + bias, signature.outputs[0], OutputPlace::Point);
        b.output(mean, signature.outputs[1], OutputPlace::Row);
        b.output(inverse_deviation, signature.outputs[2], OutputPlace::Row);
    },
    ..LAYER_NORM_AFFINE
};

/// The channels of rows, which have a weight each.
#[derive(Clone, Copy)]
pub(super) struct Channels {
    /// Rows of an instance.
    pub(super) groups: u64,
    /// Points of a channel.
    pub(super) plane: u64,
}

pub(super) fn forward(kernels: &Kernels, stack: &Stack<'_>) {
    let arguments = GroupArguments {
        input: stack.tensor(0),
        weight: stack.optional_tensor(1),
        bias: stack.optional_tensor(2),
        sizes: [3, 4, 5, 6].map(|place| stack.word(place).cast_signed()),
        epsilon: f64::from_bits(stack.word(7)),
    };
    let operator = Operator::GroupNorm;
    let attempt = Attempt { kernels, operator, computation: Computation::GroupNorm };
    let taken = kernels.attempt(operator, || {
        let GroupArguments { input, weight, bias, sizes, epsilon } = &arguments;
        let (weight, bias) = (weight.as_ref()?, bias.as_ref()?);
        let [batch, channels, plane, groups] = *sizes;
        let whole = matrix(input, 0)?;
        let fits = groups > 0
            && whole.sizes.starts_with(&[batch, channels])
            && whole.sizes[2..].iter().product::<i64>() == plane
            && channels % groups == 0
            && [weight, bias].iter().all(|parameter| whole.is_beside(parameter, whole.dtype, &[channels]));
        if !fits {
            return None;
        }
        let each = Channels { groups: groups.unsigned_abs(), plane: plane.unsigned_abs() };
        let matrix = whole.of_channels(each, batch.unsigned_abs() * each.groups);
        let dtype = matrix.dtype;
        let statistics = [batch, groups];
        let results = [(&matrix.sizes[..], dtype), (&statistics[..], dtype), (&statistics[..], dtype)];
        let scalars = [matrix.columns as f64, *epsilon].map(f64::to_bits);
        attempt.launch(&matrix, [dtype; 2], &scalars, &[input, weight, bias], &results)
    });
    let results = taken.unwrap_or_else(|| {
        let original = kernels.originals.group_norm;
        let original = original.expect("only operators are registered whose kernel was found");
        of_words(&kernels.torch, arguments.call(original))
    });
    put(stack, results);
}
