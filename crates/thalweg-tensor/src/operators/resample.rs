//! Resized images, and rearrangements between channels and pixels.

use std::panic::Location;

use thalweg_ir::{DType, Shape};
use thalweg_kernels::resample::ResampleBy;
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::Composite;
use super::view::{format_of, in_format};
use super::{operators, single};
use crate::dispatch::{Argument, Arguments, Call, Ints};
use crate::kernels::resample::{Resized, resample};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns sequences of another length by the nearest preceding element.
    "upsample_nearest1d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor"
        fn upsample_nearest1d(output_size: optional_ints, scale_factors: optional_floats)
        = Composite(|call| nearest(call, 1, ResampleBy::Nearest)), autocast: Full;
    /// Returns images of another size by the nearest preceding element.
    "upsample_nearest2d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor"
        fn upsample_nearest2d(output_size: optional_ints, scale_factors: optional_floats)
        = Composite(|call| nearest(call, 2, ResampleBy::Nearest)), autocast: Full;
    /// Returns volumes of another size by the nearest preceding element.
    "upsample_nearest3d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor"
        fn upsample_nearest3d(output_size: optional_ints, scale_factors: optional_floats)
        = Composite(|call| nearest(call, 3, ResampleBy::Nearest)), autocast: Full;
    /// Returns sequences of another length by the nearest element.
    "_upsample_nearest_exact1d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor"
        = Composite(|call| nearest(call, 1, ResampleBy::NearestExact)), autocast: Full;
    /// Returns images of another size by the nearest element.
    "_upsample_nearest_exact2d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor"
        = Composite(|call| nearest(call, 2, ResampleBy::NearestExact)), autocast: Full;
    /// Returns volumes of another size by the nearest element.
    "_upsample_nearest_exact3d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor"
        = Composite(|call| nearest(call, 3, ResampleBy::NearestExact)), autocast: Full;
    /// Returns sequences of another length, interpolated linearly.
    "upsample_linear1d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor"
        fn upsample_linear1d(output_size: optional_ints, align_corners: bool, scale_factors: optional_floats)
        = Composite(|call| linear(call, 1)), autocast: Full;
    /// Returns images of another size, interpolated linearly along both axes.
    "upsample_bilinear2d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor"
        fn upsample_bilinear2d(output_size: optional_ints, align_corners: bool, scale_factors: optional_floats)
        = Composite(|call| linear(call, 2)), autocast: Full;
    /// Returns volumes of another size, interpolated linearly along all axes.
    "upsample_trilinear3d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor"
        fn upsample_trilinear3d(output_size: optional_ints, align_corners: bool, scale_factors: optional_floats)
        = Composite(|call| linear(call, 3)), autocast: Full;
    /// Returns images of another size, by cubic convolution along both axes.
    "upsample_bicubic2d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor"
        fn upsample_bicubic2d(output_size: optional_ints, align_corners: bool, scale_factors: optional_floats)
        = Composite(cubic), autocast: Full;
    /// Returns images of another size, by a triangular filter along both axes, which is widened when the size shrinks.
    "_upsample_bilinear2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor"
        = Composite(|call| smoothed(call, triangle, 1.0)), autocast: Full;
    /// Returns images of another size, by a triangular filter along both axes, which is widened when the size shrinks.
    "_upsample_bilinear2d_aa.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor"
        = Composite(|call| smoothed(call, triangle, 1.0)), autocast: Full;
    /// Returns images of another size, by cubic convolution along both axes, which is widened when the size shrinks.
    "_upsample_bicubic2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor"
        = Composite(|call| smoothed(call, cubic_filter, 2.0)), autocast: Full;
    /// Returns images of another size, by cubic convolution along both axes, which is widened when the size shrinks.
    "_upsample_bicubic2d_aa.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor"
        = Composite(|call| smoothed(call, cubic_filter, 2.0)), autocast: Full;
    /// Returns images (…, channels · r², height, width) as (…, channels, height · r, width · r).
    "pixel_shuffle(Tensor self, int upscale_factor) -> Tensor"
        fn pixel_shuffle(upscale_factor: int)
        = Composite(|call| as_input(call, pixel_shuffle(call)?));
    /// Returns images (…, channels, height · r, width · r) as (…, channels · r², height, width).
    "pixel_unshuffle(Tensor self, int downscale_factor) -> Tensor"
        fn pixel_unshuffle(downscale_factor: int)
        = Composite(|call| as_input(call, pixel_unshuffle(call)?));
    /// Returns images whose channels are interleaved from `groups` groups, one channel of each group in turn.
    "channel_shuffle(Tensor self, SymInt groups) -> Tensor"
        fn channel_shuffle(groups: int)
        = Composite(|call| channel_shuffle(call).map(single));
}

/// An axis: its extent, the new extent, and the distance between new points.
struct Axis {
    dimension: i64,
    extent: usize,
    size: usize,
    scale: f64,
}

/// Returns the axes of a call, if the sizes fit.
fn axes(call: &Call<'_>, axes: usize, factors: usize, align_corners: bool) -> Result<Vec<Axis>> {
    check_floats(call)?;
    places(call, axes, factors, align_corners)
}

/// Refuses elements that are not floats.
fn check_floats(call: &Call<'_>) -> Result<()> {
    let dtype = call.tensor(0).dtype();
    if dtype.is_floating_point() {
        return Ok(());
    }
    Err(Error::not_implemented(format!("\"{}\" not implemented for '{dtype}'", call.operator.base_name())))
}

/// Returns the axes of a call of any elements, if the sizes fit.
fn places(call: &Call<'_>, axes: usize, factors: usize, align_corners: bool) -> Result<Vec<Axis>> {
    let x = call.tensor(0);
    let rank = axes + 2;
    if x.rank() != rank {
        refuse!("It is expected input_size equals to {rank}, but got size {}", x.rank());
    }
    let extents = &x.shape()[2..];
    let are_apart = call.operator.schema().parameters.len() == factors + 2;
    let scales: Option<Vec<f64>> = match call.argument(factors) {
        // If sizes are also given, such scales only determine the distance between points.
        _ if are_apart => None,
        Argument::None => None,
        Argument::Floats(list) => Some(list.to_vec()),
        Argument::Float(scale) => Some(vec![scale; axes]),
        _ => None,
    };
    let sizes: Ints = match (call.optional_ints(1), &scales) {
        (Some(sizes), None) => sizes,
        (None, Some(scales)) => {
            extents.iter().zip(scales).map(|(&extent, scale)| (extent as f64 * scale) as i64).collect()
        }
        _ => {
            refuse!("Must specify exactly one of output_size and scale_factors");
        }
    };
    if sizes.len() != axes || scales.as_ref().is_some_and(|scales| scales.len() != axes) {
        refuse!("It is expected output_size equals to {axes}, but got size {}", sizes.len());
    }
    let list = (0..axes).map(|axis| {
        let (extent, size) = (extents[axis], sizes[axis]);
        let wanted = usize::try_from(size).ok().filter(|&size| size > 0 && extent > 0);
        let Some(size) = wanted else {
            refuse!(
                "Input and output sizes should be greater than 0, but got input {extents:?} output {sizes:?}"
            );
        };
        let given = match are_apart {
            true => call.optional_float(factors + axis),
            false => scales.as_ref().map(|scales| scales[axis]),
        };
        let given = given.filter(|&scale| scale > 0.0);
        let scale = match given {
            _ if align_corners && size > 1 => (extent as f64 - 1.0) / (size as f64 - 1.0),
            _ if align_corners => 0.0,
            Some(scale) => 1.0 / scale,
            None => extent as f64 / size as f64,
        };
        Ok(Axis { dimension: axis as i64 + 2, extent, size, scale })
    });
    list.collect()
}

impl Axis {
    /// Returns the new points 0, 1, 2, …, in the dtype in which positions are computed.
    fn points(&self, x: &Tensor) -> Result<Tensor> {
        let dtype = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        Tensor::arange(self.size, 0, 1, dtype, x.device())
    }
}

/// Returns the call's input, resized by a rule.
fn resized(call: &Call<'_>, by: ResampleBy, axes: &[Axis]) -> Result<Tensors> {
    let axes: Vec<Resized> =
        axes.iter().map(|axis| Resized { size: axis.size, scale: axis.scale, before: 0 }).collect();
    resample(call.tensor(0), by, &axes).map(single)
}

/// Returns images in the memory format of the call's input.
fn as_input(call: &Call<'_>, images: Tensor) -> Result<Tensors> {
    in_format(&images, format_of(call.tensor(0))).map(single)
}

fn nearest(call: &Call<'_>, count: usize, by: ResampleBy) -> Result<Tensors> {
    // Bytes are images; other integers are refused as by PyTorch.
    if call.tensor(0).dtype() != DType::U8 {
        check_floats(call)?;
    }
    resized(call, by, &places(call, count, 2, false)?)
}

fn interpolated(call: &Call<'_>, count: usize, [edges, corners]: [ResampleBy; 2]) -> Result<Tensors> {
    let align_corners = call.bool(2);
    let by = if align_corners { corners } else { edges };
    let mut axes = axes(call, count, 3, align_corners)?;
    // As in PyTorch, linear interpolation keeps the points of an axis that keeps its extent, whatever the scale.
    let is_kept = |axis: &&mut Axis| by == ResampleBy::Linear && axis.size == axis.extent;
    axes.iter_mut().filter(is_kept).for_each(|axis| axis.scale = 1.0);
    resized(call, by, &axes)
}

fn linear(call: &Call<'_>, count: usize) -> Result<Tensors> {
    interpolated(call, count, [ResampleBy::Linear, ResampleBy::LinearCorners])
}

fn cubic(call: &Call<'_>) -> Result<Tensors> {
    interpolated(call, 2, [ResampleBy::Cubic, ResampleBy::CubicCorners])
}

/// Returns the weights of four points at a distance after the second: cubic convolution (R. Keys, *Cubic convolution
/// interpolation for digital image processing*, 1981) with A = −3/4.
pub(super) fn cubic_weights(distance: &Tensor) -> Result<[Tensor; 4]> {
    let a = -0.75;
    // For distances up to 1, and from 1 to 2.
    let near = |t: &Tensor| t.mul_scalar(a + 2.0)?.sub_scalar(a + 3.0)?.mul(t)?.mul(t)?.add_scalar(1.0);
    let far = |t: &Tensor| {
        let t = t.add_scalar(1.0)?;
        t.mul_scalar(a)?.sub_scalar(5.0 * a)?.mul(&t)?.add_scalar(8.0 * a)?.mul(&t)?.sub_scalar(4.0 * a)
    };
    let rest = distance.neg()?.add_scalar(1.0)?;
    Ok([far(distance)?, near(distance)?, near(&rest)?, far(&rest)?])
}

/// Returns 1 − |t| where that is positive.
fn triangle(t: &Tensor) -> Result<Tensor> {
    t.abs()?.neg()?.add_scalar(1.0)?.clamp_min(0.0)
}

/// Returns the cubic convolution of R. Keys with A = −1/2.
fn cubic_filter(t: &Tensor) -> Result<Tensor> {
    let (a, t) = (-0.5, t.abs()?);
    let near = t.mul_scalar(a + 2.0)?.sub_scalar(a + 3.0)?.mul(&t)?.mul(&t)?.add_scalar(1.0)?;
    let far = t.sub_scalar(5.0)?.mul(&t)?.add_scalar(8.0)?.mul(&t)?.sub_scalar(4.0)?.mul_scalar(a)?;
    let none = Tensor::zeros(&[], t.dtype(), t.device())?;
    t.lt_scalar(1.0)?.select_where(&near, &t.lt_scalar(2.0)?.select_where(&far, &none)?)
}

/// Interpolates by a filter that reaches this many points to both sides, and farther if the size shrinks: each axis is a product
/// with the matrix of all weights.
fn smoothed(call: &Call<'_>, filter: fn(&Tensor) -> Result<Tensor>, reach: f64) -> Result<Tensors> {
    let (dtype, align_corners) = (call.tensor(0).dtype(), call.bool(2));
    let mut x = call.tensor(0).to_dtype(dtype.compute())?;
    for axis in axes(call, 2, 3, align_corners)? {
        let wider = axis.scale.max(1.0);
        let centres = axis.points(&x)?.add_scalar(0.5)?.mul_scalar(axis.scale)?.unsqueeze(1)?;
        let places = Tensor::arange(axis.extent, 0, 1, x.dtype(), x.device())?.add_scalar(0.5)?;
        let distance = places.sub(&centres)?.mul_scalar(1.0 / wider)?.clamp(-reach, reach)?;
        let weights = filter(&distance)?;
        let weights = weights.div(&weights.sum(&[1], true)?)?;
        x = match axis.dimension {
            2 => weights.matmul(&x)?,
            _ => x.matmul(&weights.transpose(0, 1)?)?,
        };
    }
    as_input(call, x.to_dtype(dtype)?)
}

/// Returns the dimensions of images before the channels, and channels, height and width.
fn image(x: &Tensor, name: &str) -> Result<(Shape, [usize; 3])> {
    let Some(front) = x.rank().checked_sub(3) else {
        refuse!(
            "{name} expects input to have at least 3 dimensions, but got input with {} dimension(s)",
            x.rank()
        );
    };
    let last = &x.shape()[front..];
    Ok((x.shape()[..front].into(), [last[0], last[1], last[2]]))
}

fn factor(number: i64, name: &str) -> Result<usize> {
    // Its square must be representable, too.
    usize::try_from(number)
        .ok()
        .filter(|&factor| factor > 0 && factor < 1 << 31)
        .ok_or_else(|| invalid!("{name} expects a positive factor, but got {number}"))
}

/// Permutes the dimensions that follow the leading ones.
fn permuted(x: &Tensor, front: usize, order: &[usize]) -> Result<Tensor> {
    let order: Shape = (0..front).chain(order.iter().map(|place| front + place)).collect();
    x.permute(&order)
}

fn shape_of(front: &Shape, rest: &[usize]) -> Shape {
    front.iter().chain(rest).copied().collect()
}

fn pixel_shuffle(call: &Call<'_>) -> Result<Tensor> {
    let x = call.tensor(0);
    let (front, [channels, height, width]) = image(x, "pixel_shuffle")?;
    let r = factor(call.int(1), "pixel_shuffle")?;
    refuse_if!(
        channels % (r * r) != 0,
        "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor, but \
         input.size(-3)={channels} is not divisible by {}",
        r * r
    );
    let split = x.reshape(&shape_of(&front, &[channels / (r * r), r, r, height, width]))?;
    let transposed = permuted(&split, front.len(), &[0, 3, 1, 4, 2])?.copied(Location::caller())?;
    transposed.reshape(&shape_of(&front, &[channels / (r * r), height * r, width * r]))
}

fn pixel_unshuffle(call: &Call<'_>) -> Result<Tensor> {
    let x = call.tensor(0);
    let (front, [channels, height, width]) = image(x, "pixel_unshuffle")?;
    let r = factor(call.int(1), "pixel_unshuffle")?;
    refuse_if!(
        height % r != 0 || width % r != 0,
        "pixel_unshuffle expects height and width to be divisible by downscale_factor, but {height} and {width} are not \
         divisible by {r}"
    );
    let split = x.reshape(&shape_of(&front, &[channels, height / r, r, width / r, r]))?;
    let transposed = permuted(&split, front.len(), &[0, 2, 4, 1, 3])?.copied(Location::caller())?;
    transposed.reshape(&shape_of(&front, &[channels * r * r, height / r, width / r]))
}

fn channel_shuffle(call: &Call<'_>) -> Result<Tensor> {
    let x = call.tensor(0);
    if x.rank() < 3 {
        refuse!("channel_shuffle expects input with > 2 dims, but got input with sizes {:?}", x.shape());
    }
    let (channels, groups) = (x.shape()[1], factor(call.int(1), "channel_shuffle")?);
    refuse_if!(
        channels % groups != 0,
        "Number of channels must be divisible by groups. Got {channels} channels and {groups} groups."
    );
    let plane: usize = x.shape()[2..].iter().product();
    x.reshape(&[x.shape()[0], groups, channels / groups, plane])?.transpose(1, 2)?.reshape(x.shape())
}
