//! The gradient of a table of embeddings. PyTorch sorts the indices; here the first occurrence of an index finds the others by
//! comparison.

use smallvec::smallvec;
use thalweg_driver::{DevicePointer, Label};
use thalweg_ir::DType;
use thalweg_kernels::Placed;
use thalweg_kernels::scatter::Combine;
use thalweg_kernels::scatter::few::ScatterFew;

use super::libtorch::{Stack, Tensor};
use super::operators::{matrix, put_or};
use super::original::{EmbeddingArguments, EmbeddingBackward as Original, Exported};
use super::work::NativeLaunches;
use super::{Kernels, Operator};

/// With more indices, comparing all pairs takes longer than sorting.
const MOST_INDICES: u64 = 1 << 16;

pub(super) fn backward(
    kernels: &Kernels,
    operator: Operator,
    original: Option<Original<'_>>,
    stack: &Stack<'_>,
) {
    let arguments = EmbeddingArguments::take(stack);
    let taken = kernels.attempt(operator, || Some(smallvec![attempt(kernels, &arguments)?]));
    put_or(kernels, stack, taken, || arguments.call(original.found()));
}

fn attempt<'k>(kernels: &'k Kernels, arguments: &EmbeddingArguments<'_>) -> Option<Tensor<'k>> {
    let operator = Operator::EmbeddingBackward;
    let EmbeddingArguments { gradient, indices, embeddings, padding, by_frequency } = arguments;
    let matrix = matrix(gradient, 1)?;
    let fits = !by_frequency
        && *embeddings > 0
        && matrix.rows() <= MOST_INDICES
        && matrix.is_beside(indices, DType::I64, &matrix.sizes[..matrix.sizes.len() - 1])
        && kernels.takes(operator, &matrix.class());
    if !fits {
        return None;
    }
    let sizes = ScatterFew {
        sizes: [1, embeddings.unsigned_abs(), matrix.rows(), matrix.columns],
        index_stride: 1,
        source_strides: [matrix.rows() * matrix.columns, matrix.columns, 1],
        skipped: u64::try_from(*padding).unwrap_or(u64::MAX),
        combine: Combine::Sum,
        from_zeros: true,
        dtype: matrix.dtype,
    };
    let stream = kernels.current_stream(matrix.device)?;
    let result = kernels.torch.empty(&[*embeddings, matrix.columns as i64], matrix.dtype, matrix.device)?;
    if !kernels.torch.zero(&result) {
        return None;
    }
    let at = [indices.address()?, gradient.address()?, result.address()?].map(DevicePointer::new);
    let native = NativeLaunches { kernels, device: matrix.device, stream };
    let placed = Placed { kernel: sizes, at };
    // SAFETY: gradient and indices were checked, and the result was just made: all are contiguous, and have the sizes above.
    let outcome = unsafe { native.run(&placed, Label::here(operator.name())) };
    outcome.map_err(|error| kernels.give_up(operator, &error)).is_ok().then_some(result)
}
