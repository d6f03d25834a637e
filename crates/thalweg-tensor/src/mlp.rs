//! Two linear layers with an activation between them, where cuBLASLt applies it while it stores a product: `functional::gelu_mlp`
//! and `relu_mlp` try this first.

use std::panic::Location;

use thalweg_ir::DType;
use thalweg_kernels::matmul::Matmul;
use thalweg_runtime::{Activation, Result};

use crate::autocast::dtype_in_lower;
use crate::caller::label_at;
use crate::dispatch::built_in;
use crate::tensor::Tensor;

/// Returns `act(input · weight1ᵀ + bias1) · weight2ᵀ + bias2` of matrices (rows, in), (hidden, in) and (out, hidden), where act
/// is GELU by its tanh formula or the rectified linear unit. Returns `None` if the library cannot fuse it: for dtypes other than
/// bf16 and f16, a number of hidden features that is not a multiple of 8 (GELU), only one bias, shapes that do not fit, or
/// without the library.
///
/// # Errors
/// Those of the allocation and the launch.
pub fn fused_mlp(
    input: &Tensor,
    [weight1, weight2]: [&Tensor; 2],
    [bias1, bias2]: [Option<&Tensor>; 2],
    activation: Activation,
    location: &'static Location<'static>,
) -> Result<Option<Tensor>> {
    let tensors = [Some(input), Some(weight1), Some(weight2), bias1, bias2];
    let dtype = dtype_in_lower(input);
    let is_short = matches!(dtype, DType::Bf16 | DType::F16)
        && tensors.iter().flatten().all(|tensor| dtype_in_lower(tensor) == dtype);
    let (&[rows, inputs], &[hidden, own], &[outputs, middle]) =
        (input.shape(), weight1.shape(), weight2.shape())
    else {
        return Ok(None);
    };
    let is = |bias: Option<&Tensor>, length: usize| bias.is_none_or(|bias| bias.shape() == [length]);
    let fits = own == inputs && middle == hidden && is(bias1, hidden) && is(bias2, outputs);
    if !is_short || !fits || bias1.is_some() != bias2.is_some() || [rows, outputs].contains(&0) {
        return Ok(None);
    }
    let [m, n, k] = [rows, hidden, inputs].map(|extent| extent as u64);
    if !input.device().current_stream().takes_activation(&Matmul::contiguous(m, n, k, 1, dtype), activation) {
        return Ok(None);
    }
    let is_relu = activation == Activation::Relu;
    let arguments =
        [input.into(), weight1.into(), weight2.into(), bias1.into(), bias2.into(), is_relu.into()];
    let mut results = built_in!("thalweg::mlp")?.call(&arguments, None, label_at("mlp", location))?;
    Ok(Some(results.swap_remove(0)))
}
