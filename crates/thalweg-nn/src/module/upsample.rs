//! Images of another size.

use std::panic::Location;

use thalweg_runtime::{Error, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::in_call;
use thalweg_tensor::dispatch::Argument;

use super::{Forward, Module};
use crate::functional::{call, operator};

/// The way in which the elements of a larger or smaller image are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UpsampleMode {
    /// The nearest element in front (`nearest`).
    #[default]
    Nearest,
    /// The nearest element (`nearest-exact`).
    NearestExact,
    /// Linear along all axes (`linear`, `bilinear`, `trilinear`).
    Linear {
        /// Whether the outermost elements' centres lie upon each other.
        align_corners: bool,
    },
}

/// Images (batch, channels, …) of one to three axes in another size: `size`, or each axis times a factor.
#[derive(Module, Clone, PartialEq, Debug, Default)]
pub struct Upsample {
    /// The extents of the result.
    #[module(skip)]
    pub size: Option<Vec<usize>>,
    /// The factors, or one for all axes.
    #[module(skip)]
    pub scale_factor: Option<Vec<f64>>,
    /// The way in which elements are found.
    #[module(skip)]
    pub mode: UpsampleMode,
}

impl Forward for Upsample {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        in_call("Upsample", &[input], Location::caller(), || {
            let axes = input.rank().checked_sub(2).filter(|axes| (1..=3).contains(axes));
            let Some(axes) = axes else {
                return Err(Error::invalid(format!(
                    "It is expected input to be 3D, 4D or 5D, but got {}D",
                    input.rank()
                )));
            };
            let spread = |count: usize| if count == 1 { axes } else { 1 };
            let size: Option<Vec<i64>> = self
                .size
                .as_ref()
                .map(|list| list.repeat(spread(list.len())).iter().map(|&n| n as i64).collect());
            let scale = self.scale_factor.as_ref().map(|list| list.repeat(spread(list.len())));
            let size = size.as_deref().map_or(Argument::None, Argument::Ints);
            let scale = scale.as_deref().map_or(Argument::None, Argument::Floats);
            let (operator, corners) = match (self.mode, axes) {
                (UpsampleMode::Nearest, 1) => (operator!("upsample_nearest1d.vec"), None),
                (UpsampleMode::Nearest, 2) => (operator!("upsample_nearest2d.vec"), None),
                (UpsampleMode::Nearest, _) => (operator!("upsample_nearest3d.vec"), None),
                (UpsampleMode::NearestExact, 1) => (operator!("_upsample_nearest_exact1d.vec"), None),
                (UpsampleMode::NearestExact, 2) => (operator!("_upsample_nearest_exact2d.vec"), None),
                (UpsampleMode::NearestExact, _) => (operator!("_upsample_nearest_exact3d.vec"), None),
                (UpsampleMode::Linear { align_corners }, 1) => {
                    (operator!("upsample_linear1d.vec"), Some(align_corners))
                }
                (UpsampleMode::Linear { align_corners }, 2) => {
                    (operator!("upsample_bilinear2d.vec"), Some(align_corners))
                }
                (UpsampleMode::Linear { align_corners }, _) => {
                    (operator!("upsample_trilinear3d.vec"), Some(align_corners))
                }
            };
            match corners {
                None => call(operator, &[input.into(), size, scale], Location::caller()),
                Some(corners) => {
                    call(operator, &[input.into(), size, corners.into(), scale], Location::caller())
                }
            }
        })
    }
}

/// Channels that become places: (…, channels · r², height, width) to (…, channels, height · r, width · r).
#[derive(Module, Clone, Copy, PartialEq, Eq, Debug)]
pub struct PixelShuffle {
    /// r.
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

/// Places that become channels: the inverse of [`PixelShuffle`].
#[derive(Module, Clone, Copy, PartialEq, Eq, Debug)]
pub struct PixelUnshuffle {
    /// r.
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
