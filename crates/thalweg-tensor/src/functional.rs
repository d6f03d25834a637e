//! Functions of neural networks, composed of operators (`torch.nn.functional`).

use std::panic::Location;

use smallvec::SmallVec;
use thalweg_ir::{Scalar, Shape};
use thalweg_runtime::{Error, Result};

use crate::dispatch::{Arguments, find_operator};
use crate::kernels::windows::{Window, output_plane};
use crate::tensor::{Tensor, describe, label_at};

/// `input · weightᵀ + bias`: input (…, in), weight (out, in), bias (out).
#[track_caller]
pub fn linear(input: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let product = input.matmul(&weight.transpose(0, 1)?)?;
    match bias {
        Some(bias) => product.add(bias),
        None => Ok(product),
    }
}

/// How a convolution or a pooling moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowOptions {
    /// From one window to the next.
    pub stride: usize,
    /// Zeros around the image (for pooling, nothing at all).
    pub padding: usize,
    /// From one element of the kernel to the next.
    pub dilation: usize,
}

impl Default for WindowOptions {
    fn default() -> Self {
        Self { stride: 1, padding: 0, dilation: 1 }
    }
}

/// The convolution of images (images, in, height, width) with a weight (out, in, height, width), plus a bias (out).
///
/// As one matrix product over the windows as columns. The result is a view whose images and channels are swapped in memory;
/// elementwise operators take it as it is.
#[track_caller]
pub fn conv2d(
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: WindowOptions,
) -> Result<Tensor> {
    let location = Location::caller();
    let run = || {
        let &[out, channels, kernel_height, kernel_width] = weight.shape() else {
            return Err(Error::invalid(format!(
                "the weight is (out, in, height, width), not {:?}",
                weight.shape()
            )));
        };
        let WindowOptions { stride, padding, dilation } = options;
        let window = Window::new(input.shape(), [kernel_height, kernel_width], stride, padding, dilation)?;
        if window.channels != channels {
            return Err(Error::invalid(format!(
                "the images have {} channels, the weight takes {channels}",
                window.channels
            )));
        }
        let unfold = find_operator("unfold2d")?;
        let columns = unfold.call(&[input], &window.arguments(), None, label_at("unfold2d", location))?;
        let [rows, _] = window.column_shape();
        let product = weight.reshape(&[out, rows])?.matmul(&columns[0])?;
        let shape: Shape = [out].into_iter().chain(output_plane(&window)).collect();
        let result = product.reshape(&shape)?.permute(&[1, 0, 2, 3])?;
        match bias {
            Some(bias) if bias.shape() == [out] => result.add(&bias.reshape(&[out, 1, 1])?),
            Some(bias) => Err(Error::invalid(format!("the bias is {:?}, not [{out}]", bias.shape()))),
            None => Ok(result),
        }
    };
    run().map_err(|error| error.context(describe("conv2d", &[input, weight])))
}

/// The greatest element of each window of images (images, channels, height, width).
#[track_caller]
pub fn max_pool2d(input: &Tensor, kernel: [usize; 2], options: WindowOptions) -> Result<Tensor> {
    let location = Location::caller();
    let run = || {
        let WindowOptions { stride, padding, dilation } = options;
        if padding * 2 > kernel[0].min(kernel[1]) {
            return Err(Error::invalid(format!(
                "padding {padding} is more than half of the kernel {kernel:?}: some windows would lie outside"
            )));
        }
        let window = Window::new(input.shape(), kernel, stride, padding, dilation)?;
        let pool = find_operator("max_pool2d")?;
        let mut results = pool.call(&[input], &window.arguments(), None, label_at("max_pool2d", location))?;
        Ok(results.swap_remove(0))
    };
    run().map_err(|error| error.context(describe("max_pool2d", &[input])))
}

/// The mean over the rows of −log softmax(input) at the row's class: input (rows, classes), target (rows) of i64. A class out of range
/// makes the result NaN, since the device cannot raise an error.
#[track_caller]
pub fn cross_entropy(input: &Tensor, target: &Tensor) -> Result<Tensor> {
    let location = Location::caller();
    let &[rows, classes] = input.shape() else {
        return Err(Error::invalid(format!(
            "cross_entropy: the input is (rows, classes), not {:?}",
            input.shape()
        )));
    };
    if target.shape() != [rows] {
        return Err(Error::invalid(format!(
            "cross_entropy: the target is {:?}, not [{rows}]",
            target.shape()
        )));
    }
    let arguments = Arguments {
        scalars: SmallVec::from_slice(&[Scalar::I64(classes as i64)]),
        sizes: SmallVec::from_slice(&[1]),
        dtype: None,
    };
    let operator = find_operator("cross_entropy")?;
    let losses = operator.call(&[input, target], &arguments, None, label_at("cross_entropy", location))?;
    losses[0].mean(&[], false)
}
