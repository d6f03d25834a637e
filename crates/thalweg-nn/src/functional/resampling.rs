//! Resampled images: another size, the points of a grid, windows as columns and their sums.

use std::panic::Location;

use thalweg_derive::in_call;
use thalweg_runtime::{Error, Result, invalid, options, refuse, refuse_if};
use thalweg_tensor::autocast::{AutocastOptions, autocast_with};
use thalweg_tensor::caller::in_call;
use thalweg_tensor::dispatch::{Argument, Operator, find_operator};
use thalweg_tensor::{Sizes, Tensor};

use super::{call, operator};

/// The way in which the elements of a larger or smaller image are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UpsampleMode {
    /// The nearest preceding element (`nearest`).
    #[default]
    Nearest,
    /// The nearest element (`nearest-exact`).
    NearestExact,
    /// Linear along all axes (`linear`, `bilinear`, `trilinear`).
    Linear {
        /// Whether the centres of the outermost elements are aligned.
        align_corners: bool,
    },
    /// Cubic along both axes of an image (`bicubic`).
    Bicubic {
        /// Whether the centres of the outermost elements are aligned.
        align_corners: bool,
    },
    /// The mean of the elements that a new element covers (`area`).
    Area,
}

/// The options of [`interpolate`]: either the size or the factors are given.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct InterpolateOptions<'a> {
    /// The extents of the result.
    pub size: Option<&'a [usize]>,
    /// The factors, or one for all axes.
    pub scale_factor: Option<&'a [f64]>,
    /// The way in which elements are computed.
    pub mode: UpsampleMode,
    /// Whether all elements contribute to a smaller image by linear or cubic interpolation, instead of only the nearest ones.
    pub antialias: bool,
}

/// Returns images (batch, channels, …) of one to three axes in another size (`torch.nn.functional.interpolate`).
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 1, 2], &device)?;
/// let y = functional::interpolate(&x, InterpolateOptions { size: Some(&[4]), ..Default::default() })?;
/// assert_eq!(y.to_string(), "tensor([[[1., 1., 2., 2.]]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
///
/// # Errors
/// [`Error::is_invalid_argument`] if the number of axes is not supported, or not by the mode, or if not exactly one of size and
/// factors is given.
#[track_caller]
pub fn interpolate(input: &Tensor, options: InterpolateOptions<'_>) -> Result<Tensor> {
    let location = Location::caller();
    in_call("interpolate", &[input], location, || {
        let axes = input.rank().checked_sub(2).filter(|axes| (1..=3).contains(axes));
        let Some(axes) = axes else {
            refuse!("It is expected input to be 3D, 4D or 5D, but got {}D", input.rank());
        };
        let InterpolateOptions { size, scale_factor, mode, antialias } = options;
        let spread = |count: usize| if count == 1 { axes } else { 1 };
        let mut size: Option<Vec<i64>> =
            size.map(|list| list.repeat(spread(list.len())).iter().map(|&extent| extent as i64).collect());
        let mut scale = scale_factor.map(|list| list.repeat(spread(list.len())));
        if mode == UpsampleMode::Area
            && let Some(factors) = scale.take()
        {
            let extents = input.shape()[2..].iter().zip(factors);
            size = Some(extents.map(|(&extent, factor)| (extent as f64 * factor) as i64).collect());
        }
        let size = size.as_deref().map_or(Argument::None, Argument::Ints);
        let scale = scale.as_deref().map_or(Argument::None, Argument::Floats);
        match resizing(mode, axes, antialias)? {
            (operator, _) if mode == UpsampleMode::Area => call(operator, &[input.into(), size], location),
            (operator, None) => call(operator, &[input.into(), size, scale], location),
            (operator, Some(corners)) => {
                call(operator, &[input.into(), size, corners.into(), scale], location)
            }
        }
    })
}

/// Returns the operator of a mode for a number of axes, and whether it aligns corners, if it has that option.
fn resizing(mode: UpsampleMode, axes: usize, antialias: bool) -> Result<(&'static Operator, Option<bool>)> {
    let (names, corners) = match mode {
        UpsampleMode::Nearest => {
            (["upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec"], None)
        }
        UpsampleMode::NearestExact => (
            [
                "_upsample_nearest_exact1d.vec",
                "_upsample_nearest_exact2d.vec",
                "_upsample_nearest_exact3d.vec",
            ],
            None,
        ),
        UpsampleMode::Linear { align_corners } if antialias => {
            (["", "_upsample_bilinear2d_aa.vec", ""], Some(align_corners))
        }
        UpsampleMode::Linear { align_corners } => (
            ["upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec"],
            Some(align_corners),
        ),
        UpsampleMode::Bicubic { align_corners } if antialias => {
            (["", "_upsample_bicubic2d_aa.vec", ""], Some(align_corners))
        }
        UpsampleMode::Bicubic { align_corners } => (["", "upsample_bicubic2d.vec", ""], Some(align_corners)),
        UpsampleMode::Area => (["adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"], None),
    };
    let takes_antialias = matches!(mode, UpsampleMode::Linear { .. } | UpsampleMode::Bicubic { .. });
    match names[axes - 1] {
        name if !name.is_empty() && (takes_antialias || !antialias) => Ok((find_operator(name)?, corners)),
        _ => Err(invalid!(
            "there is no {mode:?}{} over {axes} axes",
            if antialias { " with antialias" } else { "" }
        )),
    }
}

/// The way in which [`grid_sample`] computes elements between pixels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GridSampleMode {
    /// Linear along all axes (`bilinear`).
    #[default]
    Bilinear,
    /// The nearest element (`nearest`).
    Nearest,
    /// Cubic along both axes of an image (`bicubic`).
    Bicubic,
}

/// The elements of [`grid_sample`] outside the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GridSamplePadding {
    /// Elements outside are 0 (`zeros`).
    #[default]
    Zeros,
    /// Elements outside the image repeat the nearest element at the border (`border`).
    Border,
    /// Elements outside the image are reflected at its borders (`reflection`).
    Reflection,
}

/// Returns images or volumes at the points of a grid (batch, …, axes), whose coordinates are −1 to 1 along each axis, x first
/// (`torch.nn.functional.grid_sample`).
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2], &device)?;
/// let g = Tensor::from_slice(&[0.0f32, 0.0], &[1, 1, 1, 2], &device)?;
/// let y = functional::grid_sample(&x, &g, Default::default(), Default::default(), true)?;
/// assert_eq!(y.to_string(), "tensor([[[[2.5000]]]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[track_caller]
pub fn grid_sample(
    input: &Tensor,
    grid: &Tensor,
    mode: GridSampleMode,
    padding: GridSamplePadding,
    align_corners: bool,
) -> Result<Tensor> {
    let arguments =
        [input.into(), grid.into(), (mode as i64).into(), (padding as i64).into(), align_corners.into()];
    call(operator!("grid_sampler"), &arguments, Location::caller())
}

/// Returns the grid of [`grid_sample`] that moves the positions of an image of a size (batch, channels, …) by matrices (batch, 2,
/// 3), or (batch, 3, 4) for volumes (`torch.nn.functional.affine_grid`).
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let t = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 0.0, 1.0, 0.0], &[1, 2, 3], &device)?;
/// assert_eq!(functional::affine_grid(&t, &[1, 1, 1, 2], true)?.to_string(), "\
/// tensor([[[[-1.,  0.],
///           [ 1.,  0.]]]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[in_call("affine_grid", &[theta])]
pub fn affine_grid(theta: &Tensor, size: impl Sizes, align_corners: bool) -> Result<Tensor> {
    let size = size.sizes();
    let [_, _, extents @ ..] = size.as_slice() else {
        refuse!("a size is (batch, channels, …), not {size:?}");
    };
    let axes = extents.len();
    if !(2..=3).contains(&axes) || size.iter().any(|&extent| extent <= 0) {
        refuse!("a size is (batch, channels, …) with two or three axes, none of 0, not {size:?}");
    }
    refuse_if!(
        theta.rank() != 3 || theta.shape()[1..] != [axes, axes + 1],
        "Expected a batch of {axes}D affine matrices of shape Nx{axes}x{} for size {size:?}. Got {:?}.",
        axes + 1,
        theta.shape()
    );
    let places = |&count: &i64| {
        let end = match align_corners {
            _ if count == 1 => 0.0,
            true => 1.0,
            false => (count - 1) as f64 / count as f64,
        };
        Tensor::linspace(-end, end, count as usize, theta.dtype(), theta.device())
    };
    let places: Vec<Tensor> = extents.iter().map(places).collect::<Result<_>>()?;
    let mut columns = Tensor::meshgrid(&places)?;
    columns.reverse();
    columns.push(columns[0].ones_like()?);
    let base = Tensor::stack(&columns, -1)?.reshape((1, -1, axes + 1))?;
    let without = AutocastOptions { enabled: false, ..AutocastOptions::default() };
    let moved = autocast_with(without, || base.matmul(&theta.transpose(1, 2)?))?;
    let shape: Vec<i64> =
        [theta.shape()[0] as i64].into_iter().chain(extents.iter().copied()).chain([axes as i64]).collect();
    moved.reshape(&shape)
}

options! {
    /// The windows of [`unfold`] and [`fold`], in y and in x.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct UnfoldOptions {
        /// The distance from one element of a window to the next.
        pub dilation: [usize; 2] = [1; 2],
        /// The width of the zero padding.
        pub padding: [usize; 2] = [0; 2],
        /// The distance from one window to the next.
        pub stride: [usize; 2] = [1; 2],
    }
}

impl UnfoldOptions {
    fn lists(self) -> [[i64; 2]; 3] {
        [self.dilation, self.padding, self.stride].map(|list| list.map(|number| number as i64))
    }
}

/// Returns the windows of images (batch, channels, height, width) as columns (batch, channels · elements of a window, windows)
/// (`torch.nn.functional.unfold`).
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2], &device)?;
/// assert_eq!(functional::unfold(&x, [1, 2], Default::default())?.to_string(), "\
/// tensor([[[1., 3.],
///          [2., 4.]]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[track_caller]
pub fn unfold(input: &Tensor, kernel_size: [usize; 2], options: UnfoldOptions) -> Result<Tensor> {
    let [dilation, padding, stride] = options.lists();
    input.im2col(&kernel_size.map(|extent| extent as i64), &dilation, &padding, &stride)
}

/// Returns the sum of all windows at each point of images of a size: the transpose of [`unfold`] (`torch.nn.functional.fold`).
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[1.0f32, 3.0, 2.0, 4.0], &[1, 2, 2], &device)?;
/// assert_eq!(functional::fold(&x, [2, 2], [1, 2], Default::default())?.to_string(), "\
/// tensor([[[[1., 2.],
///           [3., 4.]]]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[track_caller]
pub fn fold(
    input: &Tensor,
    output_size: [usize; 2],
    kernel_size: [usize; 2],
    options: UnfoldOptions,
) -> Result<Tensor> {
    let [dilation, padding, stride] = options.lists();
    input.col2im(&output_size, &kernel_size.map(|extent| extent as i64), &dilation, &padding, &stride)
}
