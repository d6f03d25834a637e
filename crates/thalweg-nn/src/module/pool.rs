//! Pooling. Windows move over the last axes of (batch, channels, …) or (channels, …).

use std::panic::Location;
use std::sync::Arc;

use thalweg_derive::{enter, in_call};
use thalweg_runtime::{Error, Result, invalid, refuse};
use thalweg_tensor::dispatch::{Argument, Operator, as_ints};
use thalweg_tensor::random::DeviceGenerator;
use thalweg_tensor::{Tensor, Tensors};

use super::{Forward, Module};
use crate::functional::{call, call_all, of_axes, operator};

/// The greatest element of each window.
#[derive(Module, Clone, Copy, PartialEq, Eq, Debug)]
#[module(skip)]
pub struct MaxPool<const AXES: usize> {
    /// The extents of a window.
    pub kernel_size: [usize; AXES],
    /// The distance from one window to the next: by default the window's extents.
    pub stride: Option<[usize; AXES]>,
    /// The width of the padding, whose elements never count as the greatest: at most half of the extents.
    pub padding: [usize; AXES],
    /// The distance from one element of a window to the next.
    pub dilation: [usize; AXES],
    /// Whether the number of windows is rounded up.
    pub ceil_mode: bool,
}

impl<const AXES: usize> MaxPool<AXES> {
    /// Makes a pool of adjacent windows.
    pub fn new(kernel_size: [usize; AXES]) -> Self {
        Self { kernel_size, stride: None, padding: [0; AXES], dilation: [1; AXES], ceil_mode: false }
    }

    fn run(
        &self,
        operator: &'static Operator,
        input: &Tensor,
        location: &'static Location<'static>,
    ) -> Result<Tensors> {
        let stride = self.stride.unwrap_or(self.kernel_size);
        let sizes =
            [&self.kernel_size, &stride, &self.padding, &self.dilation].map(|list| as_ints(list).into());
        let [kernel, stride, padding, dilation] = sizes;
        call_all(
            operator,
            &[input.into(), kernel, stride, padding, dilation, self.ceil_mode.into()],
            location,
        )
    }

    /// Returns the greatest elements and their indices in the plane (`return_indices=True`).
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the windows do not fit the input.
    #[track_caller]
    pub fn forward_with_indices(&self, input: &Tensor) -> Result<[Tensor; 2]> {
        let names = ["max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices"];
        let results = self.run(of_axes::<AXES>(names)?, input, Location::caller())?;
        Ok(results.into_vec().try_into().expect("the operator has two results"))
    }
}

impl<const AXES: usize> Forward for MaxPool<AXES> {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let operator = of_axes::<AXES>(["max_pool1d", "max_pool2d", "max_pool3d"])?;
        Ok(self.run(operator, input, Location::caller())?.swap_remove(0))
    }
}

/// The mean of each window.
#[derive(Module, Clone, Copy, PartialEq, Eq, Debug)]
#[module(skip)]
pub struct AvgPool<const AXES: usize> {
    /// The extents of a window.
    pub kernel_size: [usize; AXES],
    /// The distance from one window to the next: by default the window's extents.
    pub stride: Option<[usize; AXES]>,
    /// The width of the zero padding: at most half of the extents.
    pub padding: [usize; AXES],
    /// Whether the number of windows is rounded up.
    pub ceil_mode: bool,
    /// Whether the padding counts in the mean.
    pub count_include_pad: bool,
    /// The divisor of sums, if it is not the number of elements. Not supported for sequences.
    pub divisor_override: Option<i64>,
}

impl<const AXES: usize> AvgPool<AXES> {
    /// Makes a pool of adjacent windows.
    pub fn new(kernel_size: [usize; AXES]) -> Self {
        Self {
            kernel_size,
            stride: None,
            padding: [0; AXES],
            ceil_mode: false,
            count_include_pad: true,
            divisor_override: None,
        }
    }
}

impl<const AXES: usize> Forward for AvgPool<AXES> {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let stride = self.stride.unwrap_or(self.kernel_size);
        let sizes = [&self.kernel_size, &stride, &self.padding].map(|list| as_ints(list).into());
        let [kernel, stride, padding] = sizes;
        let flags = [self.ceil_mode, self.count_include_pad].map(Argument::Bool);
        let divisor = self.divisor_override.into();
        let arguments = [input.into(), kernel, stride, padding, flags[0], flags[1], divisor];
        let operator = of_axes::<AXES>(["avg_pool1d", "avg_pool2d", "avg_pool3d"])?;
        let count = if AXES == 1 { 6 } else { 7 };
        call(operator, &arguments[..count], Location::caller())
    }
}

/// The power mean of each window, without the division by the number of elements: (Σ x^p)^(1/p).
#[derive(Module, Clone, Copy, PartialEq, Debug)]
#[module(skip)]
pub struct LPPool<const AXES: usize> {
    /// The power.
    pub norm_type: f64,
    /// The extents of a window.
    pub kernel_size: [usize; AXES],
    /// The distance from one window to the next: by default the window's extents.
    pub stride: Option<[usize; AXES]>,
    /// Whether the number of windows is rounded up.
    pub ceil_mode: bool,
}

impl<const AXES: usize> Forward for LPPool<AXES> {
    #[in_call("LPPool", &[input])]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let (stride, ceil_mode) = (self.stride, self.ceil_mode);
        let pool = AvgPool { stride, ceil_mode, ..AvgPool::new(self.kernel_size) };
        let mean = pool.forward(&input.pow_scalar(self.norm_type)?)?;
        let count: usize = self.kernel_size.iter().product();
        mean.mul_scalar(count as f64)?.pow_scalar(1.0 / self.norm_type)
    }
}

/// The number of windows that a [`FractionalMaxPool`] has along each axis.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum FractionalSize<const AXES: usize> {
    /// This number of windows.
    Size([usize; AXES]),
    /// This fraction of the input's extents, between 0 and 1, rounded down.
    Ratio([f64; AXES]),
}

/// The greatest element of windows whose positions are drawn anew at each call (`torch.nn.FractionalMaxPool2d` and `3d`).
#[derive(Module, Clone, Debug)]
#[module(skip)]
pub struct FractionalMaxPool<const AXES: usize> {
    /// The extents of a window.
    pub kernel_size: [usize; AXES],
    /// The numbers of windows.
    pub output_size: FractionalSize<AXES>,
    /// The generator from which positions are drawn.
    pub generator: Arc<DeviceGenerator>,
}

impl<const AXES: usize> FractionalMaxPool<AXES> {
    /// Returns the greatest elements and their indices in the planes of the input, for windows placed by samples: numbers from 0
    /// to 1, (batch, channels, axes), of the input's dtype. Asynchronous.
    #[in_call("FractionalMaxPool", &[input, samples])]
    pub fn forward_with_samples(&self, input: &Tensor, samples: &Tensor) -> Result<[Tensor; 2]> {
        let Some(front) = input.rank().checked_sub(AXES).filter(|front| (1..=2).contains(front)) else {
            refuse!("Expected a {}D or {}D tensor, but got {:?}", AXES + 1, AXES + 2, input.shape());
        };
        let sizes: [usize; AXES] = match self.output_size {
            FractionalSize::Size(sizes) => sizes,
            FractionalSize::Ratio(ratios) => {
                if let Some(ratio) = ratios.iter().find(|&&ratio| !(ratio > 0.0 && ratio < 1.0)) {
                    refuse!("output_ratio must be between 0 and 1 (got {ratio})");
                }
                std::array::from_fn(|axis| (input.shape()[front + axis] as f64 * ratios[axis]) as usize)
            }
        };
        let [kernel, sizes] = [&self.kernel_size, &sizes].map(|list| as_ints(list).into());
        let arguments = [input.into(), kernel, sizes, samples.into()];
        let found = match AXES {
            2 => call_all(operator!("fractional_max_pool2d"), &arguments, Location::caller())?,
            3 => call_all(operator!("fractional_max_pool3d"), &arguments, Location::caller())?,
            _ => return Err(invalid!("it goes over 2 or 3 axes, not over {AXES}")),
        };
        Ok([found[0].clone(), found[1].clone()])
    }
}

impl<const AXES: usize> Forward for FractionalMaxPool<AXES> {
    #[enter]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let outer = input.rank().saturating_sub(AXES);
        let (batch, channels) = match input.shape() {
            [batch, channels, ..] if outer == 2 => (*batch, *channels),
            [channels, ..] => (1, *channels),
            [] => (1, 1),
        };
        let samples = self.generator.rand(&[batch, channels, AXES], input.dtype())?;
        let [greatest, _] = self.forward_with_samples(input, &samples)?;
        Ok(greatest)
    }
}

/// The mean of each of a given number of windows that cover the input.
#[derive(Module, Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdaptiveAvgPool<const AXES: usize> {
    /// The numbers of windows; by default the input's extents.
    #[module(skip)]
    pub output_size: [Option<usize>; AXES],
}

/// The greatest element of each of a given number of windows that cover the input.
#[derive(Module, Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdaptiveMaxPool<const AXES: usize> {
    /// The numbers of windows; by default the input's extents.
    #[module(skip)]
    pub output_size: [Option<usize>; AXES],
}

/// Returns the numbers of windows over an input.
fn windows<const AXES: usize>(input: &Tensor, output_size: [Option<usize>; AXES]) -> Result<[usize; AXES]> {
    let Some(outer) = input.rank().checked_sub(AXES) else {
        refuse!("the input has {} dimensions, fewer than {AXES}", input.rank());
    };
    let mut sizes = [0; AXES];
    for (axis, size) in sizes.iter_mut().enumerate() {
        *size = output_size[axis].unwrap_or(input.shape()[outer + axis]);
    }
    Ok(sizes)
}

impl<const AXES: usize> Forward for AdaptiveAvgPool<AXES> {
    #[enter]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let sizes = windows(input, self.output_size)?;
        let names = ["adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"];
        call(of_axes::<AXES>(names)?, &[input.into(), as_ints(&sizes).into()], Location::caller())
    }
}

impl<const AXES: usize> Forward for AdaptiveMaxPool<AXES> {
    #[enter]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let sizes = windows(input, self.output_size)?;
        let names = ["adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"];
        call(of_axes::<AXES>(names)?, &[input.into(), as_ints(&sizes).into()], Location::caller())
    }
}
