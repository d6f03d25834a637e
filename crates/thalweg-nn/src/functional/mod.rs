//! Functions of neural networks, composed of operators (`torch.nn.functional`): names, defaults and meaning are PyTorch's.

mod activations;
mod attention;
mod convolution;
mod decoder;
mod fused;
mod losses;
mod normalization;
mod resampling;

/// The operator of a literal name, looked up once.
macro_rules! operator {
    ($name:expr) => {{
        static OPERATOR: std::sync::LazyLock<&thalweg_tensor::dispatch::Operator> =
            std::sync::LazyLock::new(|| {
                thalweg_tensor::dispatch::find_operator($name).expect("it is built in")
            });
        *OPERATOR
    }};
}
pub(crate) use operator;

/// Calls an operator of several results.
pub(crate) fn call_all(
    operator: &'static Operator,
    arguments: &[Argument<'_>],
    location: &'static Location<'static>,
) -> Result<Tensors> {
    operator.call(arguments, None, label_at(operator.base_name(), location))
}

/// Calls an operator, and returns its first result.
pub(crate) fn call(
    operator: &'static Operator,
    arguments: &[Argument<'_>],
    location: &'static Location<'static>,
) -> Result<Tensor> {
    Ok(call_all(operator, arguments, location)?.swap_remove(0))
}

/// Returns the operator for a number of axes, from one name per number of axes from 1 to 3.
pub(crate) fn of_axes<const AXES: usize>(names: [&str; 3]) -> Result<&'static Operator> {
    match AXES.checked_sub(1).and_then(|axis| names.get(axis)) {
        Some(name) => find_operator(name),
        None => Err(invalid!("there are windows over 1 to 3 axes, not over {AXES}")),
    }
}

use std::panic::Location;

use smallvec::SmallVec;
use thalweg_derive::in_call;
use thalweg_ir::{Scalar, Shape};
use thalweg_runtime::{Error, Result, invalid, options, refuse, refuse_if};

pub use activations::{gumbel_softmax, softmin, tanhshrink};
pub use attention::{AttentionOptions, cached_attention, packed_attention, scaled_dot_product_attention};
pub use convolution::{
    ConvOptions, conv, conv_transpose, conv_transpose1d, conv_transpose2d, conv_transpose3d, conv1d, conv2d,
    conv3d,
};
pub(crate) use decoder::{attended, embedded, follow, gated, normed, scores};
pub use decoder::{decoder_layers, next_token_};
pub use fused::{gelu_mlp, norm_linear, relu_mlp};
pub use losses::{
    ClassLossOptions, Reduction, cross_entropy, cross_entropy_with, gaussian_nll_loss,
    multilabel_soft_margin_loss, nll_loss, triplet_margin_with_distance_loss,
};
pub use normalization::{add_layer_norm, layer_norm, layer_norm_fork, local_response_norm, normalize};
pub use resampling::{
    GridSampleMode, GridSamplePadding, InterpolateOptions, UnfoldOptions, UpsampleMode, affine_grid, fold,
    grid_sample, interpolate, unfold,
};

use thalweg_tensor::caller::{in_call, label_at};
use thalweg_tensor::dispatch::{Argument, Operator, as_ints, find_operator};
pub use thalweg_tensor::fused::NormLinear;
pub use thalweg_tensor::fused::decoder::{
    Affine, DecoderForm, DecoderHead, DecoderInput, DecoderLayer, DecoderOptions, DecoderState,
};
use thalweg_tensor::random::DeviceGenerator;
use thalweg_tensor::{Tensor, Tensors};

/// Returns `input · weightᵀ + bias`: input (…, in), weight (out, in), bias (out) (`torch.nn.functional.linear`).
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 2], &device)?;
/// let w = Tensor::from_slice(&[3.0f32, 4.0, 5.0, 6.0], &[2, 2], &device)?;
/// let b = Tensor::from_values([0.0f32, 100.0], &device)?;
/// assert_eq!(functional::linear(&x, &w, Some(&b))?.to_string(), "tensor([[ 11., 117.]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[track_caller]
pub fn linear(input: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    affine(input, weight, bias, None, Location::caller())
}

/// Returns [`linear`] plus an addend of its result's shape, (…, out): a layer followed by a residual connection, in one kernel if
/// the layer is small.
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 2], &device)?;
/// let w = Tensor::from_slice(&[3.0f32, 4.0, 5.0, 6.0], &[2, 2], &device)?;
/// let y = Tensor::from_slice(&[10.0f32, 20.0], &[1, 2], &device)?;
/// assert_eq!(functional::linear_add(&x, &w, None, &y)?.to_string(), "tensor([[21., 37.]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[track_caller]
pub fn linear_add(input: &Tensor, weight: &Tensor, bias: Option<&Tensor>, addend: &Tensor) -> Result<Tensor> {
    affine(input, weight, bias, Some(addend), Location::caller())
}

/// Returns `input1ᵀ · weight · input2 + bias`, per output feature: inputs (…, in1) and (…, in2), weight (out, in1, in2), bias (out)
/// (`torch.nn.functional.bilinear`).
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 2], &device)?;
/// let y = Tensor::from_slice(&[3.0f32, 4.0], &[1, 2], &device)?;
/// let w = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 1.0], &[1, 2, 2], &device)?;
/// assert_eq!(functional::bilinear(&x, &y, &w, None)?.to_string(), "tensor([[11.]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[in_call("bilinear", &[input1, input2, weight])]
pub fn bilinear(input1: &Tensor, input2: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let rank = input1.rank();
    let leading = rank.checked_sub(1).map(|last| &input1.shape()[..last]);
    let fits = matches!((weight.shape(), input1.shape().last(), input2.shape().last()),
            (&[_, in1, in2], Some(&a), Some(&b)) if a == in1 && b == in2);
    if !fits || input2.rank() != rank || leading != Some(&input2.shape()[..rank.saturating_sub(1)]) {
        refuse!("bilinear(): the inputs are (…, in1) and (…, in2) and the weight (out, in1, in2)");
    }
    let tensors = [input1.clone(), weight.clone(), input2.clone()];
    let arguments = ["...i,oij,...j->...o".into(), tensors.as_slice().into()];
    let result = call(operator!("einsum"), &arguments, Location::caller())?;
    match bias {
        Some(bias) => result.add(bias),
        None => Ok(result),
    }
}

fn affine(
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    addend: Option<&Tensor>,
    location: &'static Location<'static>,
) -> Result<Tensor> {
    let passed: SmallVec<[&Tensor; 4]> =
        [Some(input), Some(weight), bias, addend].into_iter().flatten().collect();
    in_call(if addend.is_some() { "linear_add" } else { "linear" }, &passed, location, || {
        // One product over all rows rather than a batch of products.
        let rows = |tensor: &Tensor| match tensor.rank() {
            0 | 2 => Ok(tensor.clone()),
            1 if input.rank() == 1 => tensor.unsqueeze(0),
            1 => Ok(tensor.clone()),
            _ => tensor.flatten_to_matrix(),
        };
        let (matrix, addend) = (rows(input)?, addend.map(rows).transpose()?);
        let arguments = [(&matrix).into(), weight.into(), bias.into(), addend.as_ref().into()];
        let result =
            operator!("thalweg::linear").call(&arguments, None, label_at("linear", location))?.swap_remove(0);
        if matches!(input.rank(), 0 | 2) {
            return Ok(result);
        }
        let features = result.size(-1)?;
        let shape: Shape = input.shape()[..input.rank() - 1].iter().copied().chain([features]).collect();
        result.reshape(&shape)
    })
}

options! {
    /// The options of a pooling.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct PoolOptions {
        /// The distance from one window to the next, in y and in x: by default the extents of the kernel.
        pub stride: Option<[usize; 2]> = None,
        /// The width of the padding around the image, whose elements never count as the greatest: at most half of the kernel.
        pub padding: usize = 0,
        /// The distance from one element of the kernel to the next.
        pub dilation: usize = 1,
    }
}

/// Returns the greatest element of each window of images (images, channels, height, width).
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2], &device)?;
/// assert_eq!(functional::max_pool2d(&x, [2, 2], Default::default())?.to_string(), "tensor([[[[4.]]]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[track_caller]
pub fn max_pool2d(input: &Tensor, kernel: [usize; 2], options: PoolOptions) -> Result<Tensor> {
    let location = Location::caller();
    in_call("max_pool2d", &[input], location, || {
        let PoolOptions { stride, padding, dilation } = options;
        refuse_if!(
            padding > kernel[0].min(kernel[1]) / 2,
            "padding {padding} is more than half of the kernel {kernel:?}: some windows would lie outside"
        );
        let lists: [&[usize]; 4] = [&kernel, &stride.unwrap_or(kernel), &[padding; 2], &[dilation; 2]];
        let [kernel, stride, padding, dilation] = lists.map(|list| Argument::Ints(as_ints(list)));
        let arguments = [input.into(), kernel, stride, padding, dilation, false.into()];
        call(operator!("max_pool2d"), &arguments, location)
    })
}

/// Returns a number as an argument of an operator.
fn int(number: usize) -> Result<Argument<'static>> {
    i64::try_from(number).map(Argument::Int).map_err(|_| invalid!("{number} is not below 2⁶³"))
}

/// Returns the rows of a weight (embeddings, features) at indices of any shape, of i64 (`torch.nn.functional.embedding`). The
/// gradient of a row is the sum over the indices that read it, in order, so that its bits are reproducible; each index is
/// compared with every other. The row `padding_idx` (counted from the end if negative) has no gradient. An index out of range
/// reads NaN, or 0 from an integer weight, and the next wait for the device returns an error.
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let i = Tensor::from_values([1i64, 0], &device)?;
/// let w = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
/// assert_eq!(functional::embedding(&i, &w, None)?.to_string(), "\
/// tensor([[3., 4.],
///         [1., 2.]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[track_caller]
pub fn embedding(indices: &Tensor, weight: &Tensor, padding_idx: Option<i64>) -> Result<Tensor> {
    let location = Location::caller();
    in_call("embedding", &[indices, weight], location, || {
        let rows = weight.shape().first().copied().unwrap_or(0) as i64;
        let padding = match padding_idx {
            None => -1,
            Some(index) if (-rows..rows).contains(&index) => index.rem_euclid(rows),
            Some(index) => {
                refuse!("padding_idx {index} is out of range for {rows} embeddings");
            }
        };
        let arguments = [weight.into(), indices.into(), Scalar::I64(padding).into()];
        let label = label_at("embedding", location);
        Ok(operator!("thalweg::embedding").call(&arguments, None, label)?.swap_remove(0))
    })
}

/// Sets each element of a floating-point tensor to 0 with probability `p` and divides the others by 1 − p
/// (`torch.nn.functional.dropout`). If `training` is false, returns the input itself.
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # use thalweg_tensor::random::DeviceGenerator;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_values([1.0f32, 2.0], &device)?;
/// assert_eq!(functional::dropout(&x, 0.5, false, &DeviceGenerator::new(0, &device)?)?.to_string(), "tensor([1., 2.], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[in_call("dropout", &[input])]
pub fn dropout(input: &Tensor, p: f64, training: bool, generator: &DeviceGenerator) -> Result<Tensor> {
    refuse_if!(!(0.0..=1.0).contains(&p), "the probability {p} is not between 0 and 1");
    if training && !input.dtype().is_floating_point() {
        refuse!("it takes floating-point tensors, not {}", input.dtype());
    }
    if !training || p == 0.0 {
        return Ok(input.clone());
    }
    if p == 1.0 {
        return input.mul(&Tensor::zeros(&[], input.dtype(), input.device())?);
    }
    generator.dropout(input, 1.0 - p)
}
