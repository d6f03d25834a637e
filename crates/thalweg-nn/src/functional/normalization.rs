//! Layer normalization.

use std::panic::Location;

use smallvec::SmallVec;
use thalweg_derive::in_call;
use thalweg_ir::Scalar;
use thalweg_runtime::{Error, Result, refuse, refuse_if};
use thalweg_tensor::caller::{in_call, label_at};
use thalweg_tensor::dispatch::{Argument, Operator};
use thalweg_tensor::{Tensor, Tensors};

use super::operator;

/// Returns the result of [`layer_norm`] with weight and bias, and the input itself for the residual connection around it. The
/// kernel of the layer's gradient then adds the gradients of both results, instead of a separate addition.
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[1, 3], &device)?;
/// let w = Tensor::from_values([1.0f32, 1.0, 1.0], &device)?;
/// let b = Tensor::from_values([0.0f32, 0.0, 0.0], &device)?;
/// let [normal, same] = functional::layer_norm_fork(&x, &w, &b, 1e-5)?;
/// assert_eq!(normal.to_string(), "tensor([[-1.2247,  0.0000,  1.2247]], device='sim:0')");
/// assert_eq!(same.to_string(), "tensor([[1., 2., 3.]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[track_caller]
pub fn layer_norm_fork(input: &Tensor, weight: &Tensor, bias: &Tensor, epsilon: f64) -> Result<[Tensor; 2]> {
    let location = Location::caller();
    in_call("layer_norm_fork", &[input], location, || {
        let rows = Rows::new(input, weight.shape(), [Some(weight), Some(bias)], epsilon)?;
        let operator = operator!("thalweg::layer_norm_fork");
        let mut results = rows.call(operator, &[input, weight, bias], location)?;
        let [past, result] = [results.pop(), results.into_iter().next()];
        Ok([result, past].map(|result| result.expect("a fork has four results")))
    })
}

/// Adds a branch to an input, and normalizes the sum with weight and bias: a residual connection and the layer norm after it.
/// This takes one kernel forward, and one kernel backward plus one for the parameters. Returns the normalized rows and the sum.
/// If the input is f32, the branch may have 16 bits. In an autocast region the normalized rows then have the region's dtype, as
/// the product after them requires.
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[1.0f32, 1.0, 1.0], &[1, 3], &device)?;
/// let y = Tensor::from_slice(&[0.0f32, 1.0, 2.0], &[1, 3], &device)?;
/// let w = Tensor::from_values([1.0f32, 1.0, 1.0], &device)?;
/// let b = Tensor::from_values([0.0f32, 0.0, 0.0], &device)?;
/// let [normal, sum] = functional::add_layer_norm(&x, &y, &w, &b, 1e-5)?;
/// assert_eq!(normal.to_string(), "tensor([[-1.2247,  0.0000,  1.2247]], device='sim:0')");
/// assert_eq!(sum.to_string(), "tensor([[1., 2., 3.]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[track_caller]
pub fn add_layer_norm(
    input: &Tensor,
    branch: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    epsilon: f64,
) -> Result<[Tensor; 2]> {
    let location = Location::caller();
    in_call("add_layer_norm", &[input, branch], location, || {
        let rows = Rows::new(input, weight.shape(), [Some(weight), Some(bias)], epsilon)?;
        let operator = operator!("thalweg::add_layer_norm");
        let mut results = rows.call(operator, &[input, branch, weight, bias], location)?;
        let [sum, result] = [results.pop(), results.into_iter().next()];
        Ok([result, sum].map(|result| result.expect("there are four results")))
    })
}

/// The rows that are normalized.
struct Rows {
    /// The number of elements of a row.
    count: usize,
    epsilon: f64,
    /// The dimensions of a row.
    dimensions: SmallVec<[i64; 6]>,
}

impl Rows {
    /// Returns the rows, if the shapes fit.
    fn new(
        input: &Tensor,
        normalized_shape: &[usize],
        parameters: [Option<&Tensor>; 2],
        epsilon: f64,
    ) -> Result<Self> {
        let Some(rows) = input.rank().checked_sub(normalized_shape.len()) else {
            refuse!("normalized_shape {normalized_shape:?} has more dimensions");
        };
        if normalized_shape.is_empty() || input.shape()[rows..] != *normalized_shape {
            refuse!("normalized_shape {normalized_shape:?} is not what the input's shape ends with");
        }
        for tensor in parameters.into_iter().flatten() {
            if tensor.shape() != normalized_shape {
                refuse!("weight and bias are {normalized_shape:?}, not {:?}", tensor.shape());
            }
        }
        let dimensions = (rows as i64..input.rank() as i64).collect();
        Ok(Self { count: normalized_shape.iter().product(), epsilon, dimensions })
    }

    fn call(
        &self,
        operator: &'static Operator,
        tensors: &[&Tensor],
        location: &'static Location<'static>,
    ) -> Result<Tensors> {
        let numbers = [self.count as f64, self.epsilon].map(|number| Scalar::F64(number).into());
        let tensors = tensors.iter().map(|&tensor| Argument::Tensor(tensor));
        let arguments: SmallVec<[Argument<'_>; 6]> =
            tensors.chain(numbers).chain([Argument::Ints(&self.dimensions)]).collect();
        operator.call(&arguments, None, label_at("layer_norm", location))
    }
}

/// Normalizes over the last dimensions, which are `normalized_shape`, to mean 0 and variance 1; then multiplies by the weight and
/// adds the bias (`torch.nn.functional.layer_norm`, whose default of `epsilon` is 1e-5). Statistics of 16-bit floats are computed
/// in f32.
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[1, 3], &device)?;
/// assert_eq!(functional::layer_norm(&x, &[3], None, None, 1e-5)?.to_string(), "tensor([[-1.2247,  0.0000,  1.2247]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
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
        let rows = Rows::new(input, normalized_shape, [weight, bias], epsilon)?;
        if let (Some(weight), Some(bias)) = (weight, bias) {
            let operator = operator!("thalweg::layer_norm_affine");
            return Ok(rows.call(operator, &[input, weight, bias], location)?.swap_remove(0));
        }
        let mut result = rows.call(operator!("thalweg::layer_norm"), &[input], location)?.swap_remove(0);
        if let Some(weight) = weight {
            result = result.mul(weight)?;
        }
        if let Some(bias) = bias {
            result = result.add(bias)?;
        }
        Ok(result)
    })
}

/// Divides each element by a power of the mean of squares of its neighbours among the channels: (k + alpha · mean)^beta over `size` channels
/// (`torch.nn.functional.local_response_norm`, whose defaults are alpha 1e-4, beta 0.75 and k 1).
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 2, 1], &device)?;
/// assert_eq!(functional::local_response_norm(&x, 2, 1.0, 1.0, 1.0)?.to_string(), "\
/// tensor([[[0.6667],
///          [0.5714]]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
///
/// # Errors
/// [`Error::is_invalid_argument`] if the input has fewer than three dimensions, or `size` is 0.
#[in_call("local_response_norm", &[input])]
pub fn local_response_norm(input: &Tensor, size: usize, alpha: f64, beta: f64, k: f64) -> Result<Tensor> {
    refuse_if!(
        input.rank() < 3 || size == 0,
        "Expected 3D or higher dimensionality input (got {} dimensions), and at least one channel",
        input.rank()
    );
    let (batch, channels) = (input.shape()[0], input.shape()[1]);
    let size = size as i64;
    let plane: usize = input.shape()[2..].iter().product();
    let planes = input.square()?.reshape(&[batch, 1, channels, plane])?;
    let padded = planes.constant_pad_nd(&[0, 0, size / 2, (size - 1) / 2], 0.0)?;
    let mean = padded.avg_pool2d(&[size, 1], &[1, 1], &[0, 0])?.reshape(input.shape())?;
    input.div(&mean.mul_scalar(alpha)?.add_scalar(k)?.pow_scalar(beta)?)
}

/// Divides by the norm along a dimension, or by `eps` if that is greater (`torch.nn.functional.normalize`, whose defaults are p
/// 2, dim 1 and eps 1e-12).
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[3.0f32, 4.0], &[1, 2], &device)?;
/// assert_eq!(functional::normalize(&x, 2.0, 1, 1e-12)?.to_string(), "tensor([[0.6000, 0.8000]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[in_call("normalize", &[input])]
pub fn normalize(input: &Tensor, p: f64, dim: i64, eps: f64) -> Result<Tensor> {
    input.div(&input.vector_norm(p, &[dim], true)?.clamp_min(eps)?)
}
