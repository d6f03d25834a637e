//! The gradient of a table of embeddings. PyTorch sorts the indices; here the first occurrence of an index finds the others by
//! comparison.

use smallvec::smallvec;
use thalweg_driver::{DevicePointer, Label};
use thalweg_ir::{DType, Element, bf16, f16};
use thalweg_kernels::Placed;
use thalweg_kernels::embedding::EmbeddingBackward;

use super::libtorch::{Stack, Tensor};
use super::operators::{matrix, put_or};
use super::original::{EmbeddingArguments, EmbeddingBackward as Original, Exported};
use super::work::{NativeLaunches, Place};
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
    let sizes = EmbeddingBackward {
        indices: matrix.rows(),
        embeddings: embeddings.unsigned_abs(),
        features: matrix.columns,
        padding: *padding,
        dtype: matrix.dtype,
    };
    let stream = kernels.current_stream(matrix.device)?;
    let result = kernels.torch.empty(&[*embeddings, matrix.columns as i64], matrix.dtype, matrix.device)?;
    if !kernels.torch.zero(&result) {
        return None;
    }
    let at = [gradient.address()?, indices.address()?, result.address()?];
    let outcome = match &kernels.place {
        Place::Gpu(_) => {
            let placed = Placed { kernel: sizes, at: at.map(DevicePointer::new) };
            let native = NativeLaunches { kernels, device: matrix.device, stream };
            native.run(&placed, Label::here(operator.name()))
        }
        // SAFETY: gradient and indices were checked, and the result was just made: all are contiguous, on the host, and have the
        // sizes above.
        Place::Host => unsafe {
            match matrix.dtype {
                DType::F16 => run_on_host::<f16>(&sizes, at),
                DType::Bf16 => run_on_host::<bf16>(&sizes, at),
                _ => run_on_host::<f32>(&sizes, at),
            }
            Ok(())
        },
    };
    outcome.map_err(|error| kernels.give_up(operator, &error)).is_ok().then_some(result)
}

/// Runs the call on the host.
///
/// # Safety
/// The addresses are those of gradient, indices and result on the host, of these sizes; nothing else uses the result.
unsafe fn run_on_host<T: Element>(sizes: &EmbeddingBackward, [gradient, indices, result]: [u64; 3]) {
    let [gradients, places, results] = sizes.spans().map(|span| span as usize);
    // SAFETY: the caller's promise.
    unsafe {
        sizes.run(
            std::slice::from_raw_parts(gradient as *const T, gradients),
            std::slice::from_raw_parts(indices as *const i64, places),
            std::slice::from_raw_parts_mut(result as *mut T, results),
        );
    }
}
