//! Two linear layers with an activation between them, where cuBLASLt applies it while it stores a product.

use std::panic::Location;

use thalweg_execute::products::takes_activation;
use thalweg_kernels::matmul::Matmul;
use thalweg_ops::fused::{Extents, MLP_GELU, MLP_RELU};
use thalweg_runtime::{Activation, Result};

use super::Fusion;
use crate::tensor::Tensor;

static GELU: Fusion = Fusion::new(&MLP_GELU);
static RELU: Fusion = Fusion::new(&MLP_RELU);

/// Returns `act(input · weight1ᵀ + bias1) · weight2ᵀ + bias2` of matrices (rows, in), (hidden, in) and (out, hidden), where act
/// is GELU by its tanh formula or the rectified linear unit. Returns `None` if the library cannot fuse it: for dtypes other than
/// bf16 and f16, a number of hidden features that is not a multiple of 8 (GELU), only one bias, shapes that do not fit, or
/// without the library.
pub fn fused_mlp(
    input: &Tensor,
    [weight1, weight2]: [&Tensor; 2],
    [bias1, bias2]: [Option<&Tensor>; 2],
    activation: Activation,
    location: &'static Location<'static>,
) -> Result<Option<Tensor>> {
    if bias1.is_some() != bias2.is_some() {
        return Ok(None);
    }
    let fusion = match activation {
        Activation::Gelu => &GELU,
        Activation::Relu => &RELU,
    };
    let inputs = [Some(input), Some(weight1), Some(weight2), bias1, bias2];
    let takes = |extents: &Extents, dtype| {
        let [m, n, k] = ['m', 'h', 'k'].map(|letter| extents.get(letter) as u64);
        let product = Matmul::contiguous(m, n, k, 1, dtype);
        m > 0
            && extents.get('n') > 0
            && takes_activation(&input.device().current_stream(), &product, activation)
    };
    fusion.call(&inputs, &[], takes, location)
}
