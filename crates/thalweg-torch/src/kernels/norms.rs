//! Norms of rows, layer norm and RMS norm, and the gradients of their inputs.

use smallvec::SmallVec;
use thalweg_ir::DType;

use super::libtorch::{Stack, Tensor};
use super::operators::{Attempt, Matrix, Taken, matrix, of_words, put, put_or};
use super::original::{
    Exported, Mask, Norm, NormArguments, NormBackward, NormBackwardArguments, Rms, RmsArguments, RmsBackward,
    RmsBackwardArguments,
};
use super::rows::Computation;
use super::work::Place;
use super::{Kernels, Operator};

/// Returns the input as rows of this shape, and the sizes of the statistics that a norm keeps per row; `None` if a parameter does
/// not have the shape.
fn rows(
    input: &Tensor<'_>,
    shape: &[i64],
    parameters: &[&Tensor<'_>],
) -> Option<(Matrix, SmallVec<[i64; 6]>)> {
    let matrix = matrix(input, shape.len())?;
    let fits = !shape.is_empty()
        && matrix.sizes.ends_with(shape)
        && parameters.iter().all(|parameter| matrix.is_beside(parameter, matrix.dtype, shape));
    let mut statistics = matrix.sizes.clone();
    let of_rows = statistics.len() - shape.len();
    statistics[of_rows..].fill(1);
    fits.then_some((matrix, statistics))
}

/// Normalizes the rows of an input; the results are the normalized rows and a number of statistics.
fn normalized<'k>(
    attempt: &Attempt<'k>,
    (input, shape): (&Tensor<'_>, &[i64]),
    parameters: &[&Tensor<'_>],
    epsilon: f64,
    count: usize,
) -> Taken<'k> {
    let (matrix, statistics) = rows(input, shape, parameters)?;
    let dtype = matrix.dtype;
    let mut results: SmallVec<[(&[i64], DType); 3]> =
        SmallVec::from_elem((&statistics[..], DType::F32), count);
    results.insert(0, (&matrix.sizes, dtype));
    let scalars = [matrix.columns as f64, epsilon].map(f64::to_bits);
    let inputs: SmallVec<[&Tensor<'_>; 3]> = [input].into_iter().chain(parameters.iter().copied()).collect();
    attempt.launch(&matrix, [dtype; 2], &scalars, &inputs, &results)
}

/// Computes the gradient of an input from the operands of the kernel, which contain the gradient of the result and statistics.
fn gradient<'k>(
    attempt: &Attempt<'k>,
    (input, shape): (&Tensor<'_>, &[i64]),
    [weight, gradient]: [&Tensor<'_>; 2],
    statistics: &[&Tensor<'_>],
    operands: &[&Tensor<'_>],
) -> Option<Tensor<'k>> {
    let (matrix, of_rows) = rows(input, shape, &[weight])?;
    let dtype = matrix.dtype;
    let fits = matrix.is_beside(gradient, dtype, &matrix.sizes)
        && statistics.iter().all(|statistic| matrix.is_beside(statistic, DType::F32, &of_rows));
    let scalars = [(matrix.columns as f64).to_bits()];
    let results = [(&matrix.sizes[..], dtype)];
    fits.then(|| attempt.launch(&matrix, [dtype; 2], &scalars, operands, &results))??.pop()
}

/// Puts our gradient of the input, if the call was taken, and PyTorch's other gradients of the mask: for parameters its kernels are
/// as fast.
fn put_gradients<const N: usize>(
    kernels: &Kernels,
    stack: &Stack<'_>,
    of_input: Option<Tensor<'_>>,
    mut mask: Mask<N>,
    original: impl FnOnce(Mask<N>) -> [u64; N],
) {
    mask.0[0] &= of_input.is_none();
    let mut results = of_words(&kernels.torch, original(mask));
    if let Some(of_input) = of_input {
        results[0] = of_input;
    }
    put(stack, results);
}

pub(super) fn layer_norm(
    kernels: &Kernels,
    operator: Operator,
    original: Option<Norm<'_>>,
    stack: &Stack<'_>,
) {
    let arguments = NormArguments::take(stack);
    let attempt = Attempt { kernels, operator, computation: Computation::LayerNorm };
    let taken = attempt.make(|| {
        let NormArguments { input, shape, weight, bias, epsilon } = &arguments;
        // On the host PyTorch keeps statistics in the input's dtype.
        let fits = matches!(kernels.place, Place::Gpu(_)) || input.dtype() == Some(DType::F32);
        let parameters = [weight.as_ref()?, bias.as_ref()?];
        fits.then(|| normalized(&attempt, (input, shape), &parameters, *epsilon, 2))?
    });
    put_or(kernels, stack, taken, || arguments.call(original.found()));
}

pub(super) fn rms_norm(kernels: &Kernels, operator: Operator, original: Option<Rms<'_>>, stack: &Stack<'_>) {
    let arguments = RmsArguments::take(stack);
    let attempt = Attempt { kernels, operator, computation: Computation::RmsNorm };
    let taken = attempt.make(|| {
        let RmsArguments { input, shape, weight, epsilon } = &arguments;
        normalized(&attempt, (input, shape), &[weight.as_ref()?], (*epsilon)?, 1)
    });
    put_or(kernels, stack, taken, || arguments.call(original.found()));
}

pub(super) fn layer_norm_backward(
    kernels: &Kernels,
    operator: Operator,
    original: Option<NormBackward<'_>>,
    stack: &Stack<'_>,
) {
    let mut arguments = NormBackwardArguments::take(stack);
    let attempt = Attempt { kernels, operator, computation: Computation::LayerNormBackward };
    let of_input = kernels.attempt(operator, || {
        let NormBackwardArguments { gradient: slope, input, shape, mean, deviation, weight, mask, .. } =
            &arguments;
        let weight = weight.as_ref()?;
        let operands = [input, weight, mean, deviation, slope];
        let statistics = [mean, deviation];
        mask.0[0].then(|| gradient(&attempt, (input, shape), [weight, slope], &statistics, &operands))?
    });
    put_gradients(kernels, stack, of_input, arguments.mask, |mask| {
        arguments.mask = mask;
        arguments.call(original.found())
    });
}

pub(super) fn rms_norm_backward(
    kernels: &Kernels,
    operator: Operator,
    original: Option<RmsBackward<'_>>,
    stack: &Stack<'_>,
) {
    let mut arguments = RmsBackwardArguments::take(stack);
    let attempt = Attempt { kernels, operator, computation: Computation::RmsNormBackward };
    let of_input = kernels.attempt(operator, || {
        let RmsBackwardArguments { gradient: slope, input, shape, root, weight, mask } = &arguments;
        let weight = weight.as_ref()?;
        let operands = [input, root, slope, weight];
        mask.0[0].then(|| gradient(&attempt, (input, shape), [weight, slope], &[root], &operands))?
    });
    put_gradients(kernels, stack, of_input, arguments.mask, |mask| {
        arguments.mask = mask;
        arguments.call(original.found())
    });
}
