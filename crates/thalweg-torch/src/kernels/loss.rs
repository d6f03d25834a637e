//! Cross entropy: this library's own operators, `thalweg::cross_entropy_rows` and its gradient, which the package's Python code
//! calls where PyTorch composes `cross_entropy_loss` from several kernels.
//!
//! A call that is not supported returns an empty tensor as its first result. The caller must then use PyTorch's operators.

use smallvec::{SmallVec, smallvec};
use thalweg_ir::DType;

use super::libtorch::{Stack, Tensor};
use super::operators::{Attempt, Matrix, matrix, put};
use super::rows::Computation;
use super::{Kernels, Operator};

/// Returns the rows of 16-bit or 32-bit scores, one row per element of `target`.
fn scores(input: &Tensor<'_>, target: &Tensor<'_>) -> Option<Matrix> {
    let matrix = matrix(input, 1)?;
    let fits = matrix.sizes.len() == 2 && matrix.is_beside(target, DType::I64, &matrix.sizes[..1]);
    fits.then_some(matrix)
}

/// Returns tensors without elements instead of results.
fn not_taken<'k>(kernels: &'k Kernels, like: &Tensor<'_>, count: usize) -> SmallVec<[Tensor<'k>; 3]> {
    let empty = || kernels.torch.empty(&[0], DType::F32, like.device().unwrap_or(0));
    let throw = || kernels.torch.throw(c"there is no memory for an empty tensor");
    (0..count).map(|_| empty().unwrap_or_else(throw)).collect()
}

/// Computes `thalweg::cross_entropy_rows(Tensor self, Tensor target, int ignore_index) -> (Tensor losses, Tensor log_sums)`
pub(super) fn forward(kernels: &Kernels, operator: Operator, stack: &Stack<'_>) {
    let (input, target, ignored) = (stack.tensor(0), stack.tensor(1), stack.word(2));
    let attempt = Attempt { kernels, operator, computation: Computation::CrossEntropy };
    let taken = kernels.attempt(operator, || {
        let matrix = scores(&input, &target)?;
        let rows = (&matrix.sizes[..1], DType::F32);
        let scalars = [matrix.columns, ignored];
        attempt.launch(&matrix, [matrix.dtype, DType::F32], &scalars, &[&input, &target], &[rows, rows])
    });
    put(stack, taken.unwrap_or_else(|| not_taken(kernels, &input, 2)));
}

/// Computes `thalweg::cross_entropy_rows_backward(Tensor grad, Tensor self, Tensor target, Tensor log_sums, int ignore_index) -> Tensor`
pub(super) fn backward(kernels: &Kernels, operator: Operator, stack: &Stack<'_>) {
    let [gradient, input, target, log_sums] = [0, 1, 2, 3].map(|place| stack.tensor(place));
    let ignored = stack.word(4);
    let attempt = Attempt { kernels, operator, computation: Computation::CrossEntropyBackward };
    let taken = kernels.attempt(operator, || {
        let matrix = scores(&input, &target)?;
        let rows = &matrix.sizes[..1];
        let fits = [&gradient, &log_sums].iter().all(|of_rows| matrix.is_beside(of_rows, DType::F32, rows));
        let inputs: SmallVec<[&Tensor<'_>; 4]> = smallvec![&input, &target, &log_sums, &gradient];
        let results = [(&matrix.sizes[..], matrix.dtype)];
        let scalars = [matrix.columns, ignored];
        fits.then(|| attempt.launch(&matrix, [matrix.dtype; 2], &scalars, &inputs, &results))?
    });
    put(stack, taken.unwrap_or_else(|| not_taken(kernels, &input, 1)));
}
