//! A layer norm, a linear layer and the activation and addition after it in one kernel, for few rows and no gradient: a decoder's
//! step.

use std::panic::Location;

use thalweg_execute::products::takes_few_rows;
use thalweg_kernels::matmul::Matmul;
use thalweg_kernels::matmul::few_rows::cuda::MOST_NORM_ROWS;
use thalweg_kernels::matmul::few_rows::takes_norm;
use thalweg_ops::fused::{Extents, NORM_LINEAR, NORM_LINEAR_ADD, NORM_LINEAR_GELU, NORM_LINEAR_GELU_ADD};
use thalweg_runtime::{DevicePointer, Result};

use super::Fusion;
use crate::tensor::Tensor;

static PLAIN: Fusion = Fusion::new(&NORM_LINEAR);
static WITH_GELU: Fusion = Fusion::new(&NORM_LINEAR_GELU);
static WITH_ADDEND: Fusion = Fusion::new(&NORM_LINEAR_ADD);
static WITH_BOTH: Fusion = Fusion::new(&NORM_LINEAR_GELU_ADD);

/// The parts of `act(norm(input) · weightᵀ + bias) + addend`.
#[derive(Clone, Copy, Debug)]
pub struct NormLinear<'t> {
    /// Weight and bias of the layer norm over the input's last dimension, (in) each.
    pub norm: [&'t Tensor; 2],
    /// The number that is added to the variance.
    pub eps: f64,
    /// The weight, (out, in).
    pub weight: &'t Tensor,
    /// The bias, (out).
    pub bias: Option<&'t Tensor>,
    /// Whether GELU, by its tanh formula, is applied to the product.
    pub gelu: bool,
    /// A matrix that is added to the result, (rows, out).
    pub addend: Option<&'t Tensor>,
}

/// Returns whether an input (…, in) has few enough rows for one kernel.
#[must_use]
pub fn has_few_rows(input: &Tensor) -> bool {
    let features = input.shape().last().map_or(1, |&features| features.max(1));
    input.elements() / features <= MOST_NORM_ROWS as usize
}

/// Returns `act(norm(input) · weightᵀ + bias) + addend` of a matrix (rows, in); `None` if one kernel cannot compute it: for more
/// than four rows, if a gradient is required, for mixed dtypes, shapes that do not fit, or a small weight.
pub fn fused_norm_linear(
    input: &Tensor,
    parts: &NormLinear<'_>,
    location: &'static Location<'static>,
) -> Result<Option<Tensor>> {
    let NormLinear { norm, eps, weight, bias, gelu, addend } = *parts;
    let fusion = match (gelu, addend) {
        (false, None) => &PLAIN,
        (true, None) => &WITH_GELU,
        (false, Some(_)) => &WITH_ADDEND,
        (true, Some(_)) => &WITH_BOTH,
    };
    let inputs = [Some(input), Some(norm[0]), Some(norm[1]), Some(weight), bias, addend];
    let takes = |extents: &Extents, dtype| {
        // Tensors that are not contiguous are copied to aligned memory.
        let is_whole =
            |tensor: &Tensor| tensor.is_contiguous() && tensor.pointer().address().is_multiple_of(16);
        if ![input, norm[0], norm[1], weight].into_iter().all(is_whole) {
            return false;
        }
        let [m, n, k] = ['m', 'n', 'k'].map(|letter| extents.get(letter) as u64);
        let mut product = Matmul::contiguous(m, n, k, 1, dtype);
        (product.b.transposed, product.b.leading_dimension) = (true, k);
        takes_norm(&product)
            && takes_few_rows(&input.device().current_stream(), &product, [DevicePointer::new(0); 3])
    };
    fusion.call(&inputs, &[eps], takes, location)
}
