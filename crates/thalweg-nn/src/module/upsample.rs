//! Modules that resize images.

use std::panic::Location;

use thalweg_runtime::Result;
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::enter;

use super::{Forward, Module};
pub use crate::functional::UpsampleMode;
use crate::functional::{InterpolateOptions, call, interpolate, operator};

/// Images (batch, channels, …) of one to three axes in another size: `size`, or each axis times a factor.
#[derive(Module, Clone, PartialEq, Debug, Default)]
#[module(skip)]
pub struct Upsample {
    /// The extents of the result.
    pub size: Option<Vec<usize>>,
    /// The factors, or one for all axes.
    pub scale_factor: Option<Vec<f64>>,
    /// The way in which elements are computed.
    pub mode: UpsampleMode,
}

impl Forward for Upsample {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let (size, scale_factor) = (self.size.as_deref(), self.scale_factor.as_deref());
        let _entered = enter(Location::caller());
        interpolate(input, InterpolateOptions { size, scale_factor, mode: self.mode, antialias: false })
    }
}

/// Rearrangement of channels into pixels: (…, channels · r², height, width) to (…, channels, height · r, width · r).
#[derive(Module, Clone, Copy, PartialEq, Eq, Debug)]
pub struct PixelShuffle {
    /// The factor r.
    #[module(skip)]
    pub upscale_factor: i64,
}

impl Forward for PixelShuffle {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let arguments = [input.into(), self.upscale_factor.into()];
        call(operator!("pixel_shuffle"), &arguments, Location::caller())
    }
}

/// Rearrangement of pixels into channels: the inverse of [`PixelShuffle`].
#[derive(Module, Clone, Copy, PartialEq, Eq, Debug)]
pub struct PixelUnshuffle {
    /// The factor r.
    #[module(skip)]
    pub downscale_factor: i64,
}

impl Forward for PixelUnshuffle {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let arguments = [input.into(), self.downscale_factor.into()];
        call(operator!("pixel_unshuffle"), &arguments, Location::caller())
    }
}
