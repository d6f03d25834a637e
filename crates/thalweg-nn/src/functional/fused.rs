//! Functions of several operators. Each tries a row of the table of patterns ([`thalweg_ops::fused`]), which computes it in fewer
//! launches, and otherwise calls the operators one by one.

use std::panic::Location;

use smallvec::SmallVec;
use thalweg_ir::Shape;
use thalweg_runtime::{Activation, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::in_call;
use thalweg_tensor::fused::{NormLinear, fused_mlp, fused_norm_linear, has_few_rows};

use super::{affine, layer_norm};

/// Returns `gelu_tanh(input · weight1ᵀ + bias1) · weight2ᵀ + bias2`: input (…, in), weights (hidden, in) and (out, hidden),
/// biases (hidden) and (out). The feed-forward part of a transformer's block, equivalent to [`linear`](super::linear),
/// `gelu(approximate='tanh')` and [`linear`](super::linear). For 16-bit floats, including those of autocast, cuBLASLt applies GELU, and
/// multiplies by its derivative, while it stores the products.
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[1.0f32], &[1, 1], &device)?;
/// let w = Tensor::from_slice(&[1.0f32, 2.0], &[2, 1], &device)?;
/// let v = Tensor::from_slice(&[1.0f32, 1.0], &[1, 2], &device)?;
/// assert_eq!(functional::gelu_mlp(&x, [&w, &v], [None, None])?.to_string(), "tensor([[2.7958]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[track_caller]
pub fn gelu_mlp(input: &Tensor, weights: [&Tensor; 2], biases: [Option<&Tensor>; 2]) -> Result<Tensor> {
    mlp("gelu_mlp", (input, weights, biases), Activation::Gelu, Location::caller())
}

/// Returns `relu(input · weight1ᵀ + bias1) · weight2ᵀ + bias2`, with the shapes and fusion of [`gelu_mlp`]: the library applies
/// ReLU, and keeps a bit per element for the gradient, while it stores the products.
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[1.0f32], &[1, 1], &device)?;
/// let w = Tensor::from_slice(&[1.0f32, -2.0], &[2, 1], &device)?;
/// let v = Tensor::from_slice(&[1.0f32, 1.0], &[1, 2], &device)?;
/// assert_eq!(functional::relu_mlp(&x, [&w, &v], [None, None])?.to_string(), "tensor([[1.]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[track_caller]
pub fn relu_mlp(input: &Tensor, weights: [&Tensor; 2], biases: [Option<&Tensor>; 2]) -> Result<Tensor> {
    mlp("relu_mlp", (input, weights, biases), Activation::Relu, Location::caller())
}

fn mlp(
    name: &'static str,
    (input, weights, biases): (&Tensor, [&Tensor; 2], [Option<&Tensor>; 2]),
    activation: Activation,
    location: &'static Location<'static>,
) -> Result<Tensor> {
    let passed: SmallVec<[&Tensor; 5]> =
        [input].into_iter().chain(weights).chain(biases.into_iter().flatten()).collect();
    in_call(name, &passed, location, || {
        if input.rank() >= 2 {
            let matrix = if input.rank() == 2 { input.clone() } else { input.flatten_to_matrix()? };
            if let Some(result) = fused_mlp(&matrix, weights, biases, activation, location)? {
                let mut shape: Shape = input.shape().into();
                shape[input.rank() - 1] = result.shape()[1];
                return result.reshape(&shape);
            }
        }
        let hidden = affine(input, weights[0], biases[0], None, location)?;
        let hidden = match activation {
            Activation::Gelu => hidden.gelu_tanh()?,
            Activation::Relu => hidden.relu()?,
        };
        affine(&hidden, weights[1], biases[1], None, location)
    })
}

/// Returns `act(layer_norm(input) · weightᵀ + bias) + addend`: input (…, in), norm and weight as documented in [`NormLinear`],
/// the result (…, out). Up to four rows without a gradient, as in a step of a decoder, take one kernel; otherwise it is
/// [`layer_norm`], [`linear`](super::linear), `gelu(approximate='tanh')` and a sum.
///
/// # Errors
/// [`Error::is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument) if the shapes or dtypes do not fit; those of the allocation and the launch.
#[track_caller]
pub fn norm_linear(input: &Tensor, parts: &NormLinear<'_>) -> Result<Tensor> {
    let location = Location::caller();
    let NormLinear { norm, eps, weight, bias, gelu, addend } = *parts;
    let passed: SmallVec<[&Tensor; 6]> =
        [Some(input), Some(norm[0]), Some(norm[1]), Some(weight), bias, addend]
            .into_iter()
            .flatten()
            .collect();
    in_call("norm_linear", &passed, location, || {
        if let Some(result) = in_rows(input, parts, location)? {
            return Ok(result);
        }
        let normal = layer_norm(input, norm[0].shape(), Some(norm[0]), Some(norm[1]), eps)?;
        match (gelu, addend) {
            (false, _) => affine(&normal, weight, bias, addend, location),
            (true, None) => affine(&normal, weight, bias, None, location)?.gelu_tanh(),
            (true, Some(addend)) => affine(&normal, weight, bias, None, location)?.gelu_tanh()?.add(addend),
        }
    })
}

/// Returns the result of [`norm_linear`] by one kernel, if one kernel can compute it.
fn in_rows(
    input: &Tensor,
    parts: &NormLinear<'_>,
    location: &'static Location<'static>,
) -> Result<Option<Tensor>> {
    let [leading @ .., _] = input.shape() else { return Ok(None) };
    if input.elements() == 0 || leading.is_empty() || !has_few_rows(input) {
        return Ok(None);
    }
    let (matrix, addend) = match leading.len() {
        1 => (input.clone(), parts.addend.cloned()),
        _ => (input.flatten_to_matrix()?, parts.addend.map(Tensor::flatten_to_matrix).transpose()?),
    };
    let parts = NormLinear { addend: addend.as_ref(), ..*parts };
    let Some(result) = fused_norm_linear(&matrix, &parts, location)? else { return Ok(None) };
    let shape: Shape = leading.iter().copied().chain([result.shape()[1]]).collect();
    result.reshape(&shape).map(Some)
}
