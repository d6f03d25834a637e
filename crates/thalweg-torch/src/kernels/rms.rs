//! RMS norm and the gradient of its input: `_fused_rms_norm`, which `torch.nn.functional.rms_norm` calls on a GPU.

use thalweg_ir::DType;

use super::libtorch::Stack;
use super::operators::{Attempt, matrix, of_rows, of_words, put, shape_at};
use super::original::{RmsArguments, RmsBackwardArguments};
use super::rows::Computation;
use super::{Kernels, Operator};

pub(super) fn forward(kernels: &Kernels, stack: &Stack<'_>) {
    let arguments = RmsArguments {
        input: stack.tensor(0),
        shape: shape_at(stack, 1),
        weight: stack.optional_tensor(2),
        epsilon: stack.optional_word(3).map(f64::from_bits),
    };
    let operator = Operator::RmsNorm;
    let attempt = Attempt { kernels, operator, computation: Computation::RmsNorm };
    let taken = kernels.attempt(operator, || {
        let RmsArguments { input, shape, weight, epsilon } = &arguments;
        let (weight, epsilon) = (weight.as_ref()?, (*epsilon)?);
        let matrix = matrix(input, shape.len())?;
        let dtype = matrix.dtype;
        let fits =
            !shape.is_empty() && matrix.sizes.ends_with(shape) && matrix.is_beside(weight, dtype, shape);
        let roots = of_rows(&matrix, shape.len());
        let results = [(&matrix.sizes[..], dtype), (&roots[..], DType::F32)];
        let scalars = [matrix.columns as f64, epsilon].map(f64::to_bits);
        fits.then(|| attempt.launch(&matrix, [dtype; 2], &scalars, &[input, weight], &results))?
    });
    let results = taken.unwrap_or_else(|| {
        let original = kernels.originals.rms_norm;
        let original = original.expect("only operators are registered whose kernel was found");
        of_words(&kernels.torch, arguments.call(original))
    });
    put(stack, results);
}

pub(super) fn backward(kernels: &Kernels, stack: &Stack<'_>) {
    let mut arguments = RmsBackwardArguments {
        gradient: stack.tensor(0),
        input: stack.tensor(1),
        shape: shape_at(stack, 2),
        root: stack.tensor(3),
        weight: stack.optional_tensor(4),
        mask: [false; 2],
    };
    arguments.mask = stack.mask(5);
    let operator = Operator::RmsNormBackward;
    let attempt = Attempt { kernels, operator, computation: Computation::RmsNormBackward };
    let taken = kernels.attempt(operator, || {
        let RmsBackwardArguments { gradient, input, shape, root, weight, mask } = &arguments;
        let weight = weight.as_ref()?;
        let matrix = matrix(input, shape.len())?;
        let roots = of_rows(&matrix, shape.len());
        let fits = mask[0]
            && !shape.is_empty()
            && matrix.sizes.ends_with(shape)
            && matrix.is_beside(weight, matrix.dtype, shape)
            && matrix.is_beside(gradient, matrix.dtype, &matrix.sizes)
            && matrix.is_beside(root, DType::F32, &roots);
        let inputs = [input, root, gradient, weight];
        let scalars = [(matrix.columns as f64).to_bits()];
        let dtype = matrix.dtype;
        fits.then(|| attempt.launch(&matrix, [dtype; 2], &scalars, &inputs, &[(&matrix.sizes, dtype)]))?
    });
    let original = kernels.originals.rms_norm_backward;
    let original = original.expect("only operators are registered whose kernel was found");
    // For the weight PyTorch's kernel is as fast.
    let of_input = taken.and_then(|mut taken| taken.pop());
    let [wants_input, of_weight] = arguments.mask;
    let mask = [wants_input && of_input.is_none(), of_weight];
    let mut results = of_words(&kernels.torch, arguments.call(original, mask));
    if let Some(of_input) = of_input {
        results[0] = of_input;
    }
    put(stack, results);
}
