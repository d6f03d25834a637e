//! Convolutions.

use std::panic::Location;

use smallvec::SmallVec;
use thalweg_runtime::{Result, options};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::in_call;
use thalweg_tensor::dispatch::as_ints;

use super::{call, int, of_axes};

options! {
    /// The options of a convolution over some axes.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct ConvOptions<const AXES: usize> {
        /// The distance from one window to the next.
        pub stride: [usize; AXES] = [1; AXES],
        /// The width of the zero padding.
        pub padding: [usize; AXES] = [0; AXES],
        /// The distance from one element of the kernel to the next.
        pub dilation: [usize; AXES] = [1; AXES],
        /// The number of groups of channels, which are convolved independently.
        pub groups: usize = 1,
    }
}

/// Returns the convolution of sequences (batch, in, length) with a weight (out, in / groups, length), plus a bias (out).
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 4], &device)?;
/// let w = Tensor::from_slice(&[1.0f32, 1.0], &[1, 1, 2], &device)?;
/// assert_eq!(functional::conv1d(&x, &w, None, Default::default())?.to_string(), "tensor([[[3., 5., 7.]]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[track_caller]
pub fn conv1d(
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: ConvOptions<1>,
) -> Result<Tensor> {
    conv(input, weight, bias, options)
}

/// Returns the convolution of images (batch, in, height, width) with a weight (out, in / groups, height, width), plus a bias (out).
///
/// This is a call of cuDNN if a GPU has it, and on the simulator; otherwise, and for dtypes other than f32, f16 and bf16, it is a
/// matrix product with the windows as columns.
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2], &device)?;
/// let w = Tensor::from_slice(&[1.0f32, 1.0, 1.0, 1.0], &[1, 1, 2, 2], &device)?;
/// assert_eq!(functional::conv2d(&x, &w, None, Default::default())?.to_string(), "tensor([[[[10.]]]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[track_caller]
pub fn conv2d(
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: ConvOptions<2>,
) -> Result<Tensor> {
    conv(input, weight, bias, options)
}

/// Returns the convolution of volumes (batch, in, depth, height, width) with a weight (out, in / groups, depth, height, width), plus
/// a bias (out).
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 1, 2, 2], &device)?;
/// let w = Tensor::from_slice(&[1.0f32, 1.0, 1.0, 1.0], &[1, 1, 1, 2, 2], &device)?;
/// assert_eq!(functional::conv3d(&x, &w, None, Default::default())?.to_string(), "tensor([[[[[10.]]]]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[track_caller]
pub fn conv3d(
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: ConvOptions<3>,
) -> Result<Tensor> {
    conv(input, weight, bias, options)
}

/// Returns the convolution over one to three axes, with or without a batch: [`conv1d`], [`conv2d`] or [`conv3d`].
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 4], &device)?;
/// let w = Tensor::from_slice(&[1.0f32, 1.0], &[1, 1, 2], &device)?;
/// assert_eq!(functional::conv::<1>(&x, &w, None, Default::default())?.to_string(), "tensor([[[3., 5., 7.]]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[track_caller]
pub fn conv<const AXES: usize>(
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: ConvOptions<AXES>,
) -> Result<Tensor> {
    let location = Location::caller();
    let name = ["conv1d", "conv2d", "conv3d"].get(AXES.wrapping_sub(1)).copied().unwrap_or("conv");
    let passed: SmallVec<[&Tensor; 3]> = [Some(input), Some(weight), bias].into_iter().flatten().collect();
    in_call(name, &passed, location, || {
        let ConvOptions { stride, padding, dilation, groups } = options;
        let [stride, padding, dilation] = [&stride, &padding, &dilation].map(|list| as_ints(list).into());
        let arguments = [input.into(), weight.into(), bias.into(), stride, padding, dilation, int(groups)?];
        call(of_axes::<AXES>(["conv1d", "conv2d", "conv3d"])?, &arguments, location)
    })
}

/// Returns the transpose of a convolution over one to three axes: input (batch, in, …) or (in, …), weight (in, out / groups, …),
/// bias (out). `output_padding` extends each axis of the result.
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 1, 2], &device)?;
/// let w = Tensor::from_slice(&[1.0f32, 10.0], &[1, 1, 2], &device)?;
/// assert_eq!(functional::conv_transpose::<1>(&x, &w, None, Default::default(), [0])?.to_string(), "tensor([[[ 1., 12., 20.]]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[track_caller]
pub fn conv_transpose<const AXES: usize>(
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: ConvOptions<AXES>,
    output_padding: [usize; AXES],
) -> Result<Tensor> {
    let names = ["conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input"];
    let ConvOptions { stride, padding, dilation, groups } = options;
    let sizes = [&stride, &padding, &output_padding, &dilation].map(|list| as_ints(list).into());
    let [stride, padding, output_padding, dilation] = sizes;
    let arguments =
        [input.into(), weight.into(), bias.into(), stride, padding, output_padding, int(groups)?, dilation];
    call(of_axes::<AXES>(names)?, &arguments, Location::caller())
}

/// Transposed convolutions, with PyTorch's names.
macro_rules! transposes {
    ($($name:ident($axes:literal, $of:literal);)*) => {$(
        #[doc = concat!("Returns the transpose of a convolution of ", $of, ": [`conv_transpose`].")]
        #[track_caller]
        pub fn $name(
            input: &Tensor,
            weight: &Tensor,
            bias: Option<&Tensor>,
            options: ConvOptions<$axes>,
            output_padding: [usize; $axes],
        ) -> Result<Tensor> {
            conv_transpose(input, weight, bias, options, output_padding)
        }
    )*};
}

transposes! {
    conv_transpose1d(1, "sequences");
    conv_transpose2d(2, "images");
    conv_transpose3d(3, "volumes");
}
