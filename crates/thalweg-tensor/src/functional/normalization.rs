//! Layer normalization.

use std::panic::Location;

use smallvec::SmallVec;
use thalweg_ir::Scalar;
use thalweg_runtime::{Error, Result};

use crate::caller::{in_call, label_at};
use crate::dispatch::{built_in, internal};
use crate::kernels::loops::LoopArguments;
use crate::tensor::Tensor;

/// [`layer_norm`] with weight and bias, and the input itself for the residual connection that goes past it. The gradients of both
/// results then meet in the kernel of the layer's gradient, and not in an addition of their own.
#[track_caller]
pub fn layer_norm_fork(input: &Tensor, weight: &Tensor, bias: &Tensor, epsilon: f64) -> Result<[Tensor; 2]> {
    let location = Location::caller();
    in_call("layer_norm_fork", &[input], location, || {
        let arguments = arguments(input, weight.shape(), [Some(weight), Some(bias)], epsilon)?;
        let operator = built_in!("thalweg::layer_norm_fork")?;
        let mut results =
            operator.call_loop(&[input, weight, bias], &arguments, None, label_at("layer_norm", location))?;
        let [past, result] = [results.pop(), results.into_iter().next()];
        Ok([result, past].map(|result| result.expect("a fork has four results")))
    })
}

/// The arguments of the operators, if the shapes fit.
fn arguments(
    input: &Tensor,
    normalized_shape: &[usize],
    parameters: [Option<&Tensor>; 2],
    epsilon: f64,
) -> Result<LoopArguments> {
    let Some(rows) = input.rank().checked_sub(normalized_shape.len()) else {
        return Err(Error::invalid(format!("normalized_shape {normalized_shape:?} has more dimensions")));
    };
    if normalized_shape.is_empty() || input.shape()[rows..] != *normalized_shape {
        return Err(Error::invalid(format!(
            "normalized_shape {normalized_shape:?} is not what the input's shape ends with"
        )));
    }
    for tensor in parameters.into_iter().flatten() {
        if tensor.shape() != normalized_shape {
            return Err(Error::invalid(format!(
                "weight and bias are {normalized_shape:?}, not {:?}",
                tensor.shape()
            )));
        }
    }
    let count: usize = normalized_shape.iter().product();
    Ok(LoopArguments {
        scalars: SmallVec::from_slice(&[Scalar::F64(count as f64), Scalar::F64(epsilon)]),
        sizes: (rows..input.rank()).collect(),
        dtype: None,
    })
}

/// Normalizes over the last dimensions, which are `normalized_shape`, to mean 0 and variance 1; then multiplies by the weight and
/// adds the bias (`torch.nn.functional.layer_norm`, whose default of `epsilon` is 1e-5). Statistics of 16-bit floats are taken
/// in f32.
#[track_caller]
pub fn layer_norm(
    input: &Tensor,
    normalized_shape: &[usize],
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    epsilon: f64,
) -> Result<Tensor> {
    let location = Location::caller();
    in_call("layer_norm", &[input], location, || {
        let arguments = arguments(input, normalized_shape, [weight, bias], epsilon)?;
        let call = |name: &'static str, tensors: &[&Tensor]| -> Result<Tensor> {
            let mut results =
                internal(name)?.call_loop(tensors, &arguments, None, label_at("layer_norm", location))?;
            Ok(results.swap_remove(0))
        };
        match (weight, bias) {
            (Some(weight), Some(bias)) => call("layer_norm_affine", &[input, weight, bias]),
            (weight, bias) => {
                let mut result = call("layer_norm", &[input])?;
                if let Some(weight) = weight {
                    result = result.mul(weight)?;
                }
                if let Some(bias) = bias {
                    result = result.add(bias)?;
                }
                Ok(result)
            }
        }
    })
}
