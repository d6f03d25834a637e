//! Group norm: `native_group_norm`, which `torch.nn.functional.group_norm` comes to. A row is a group of channels of an instance, whose points are
//! neighbours; weight and bias are those of a channel. Its gradient stays with PyTorch's kernel.

use super::libtorch::Stack;
use super::operators::{Attempt, matrix, of_words, put};
use super::original::GroupArguments;
use super::rows::{Channels, Computation};
use super::{Kernels, Operator};

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
