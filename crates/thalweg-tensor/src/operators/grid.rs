//! Images sampled at the points of a grid.

use thalweg_ir::{DType, Shape};
use thalweg_runtime::{Error, Result, invalid};

use super::Body::Composite;
use super::window::is_recorded;
use super::{operators, single};
use crate::deterministic::are_deterministic_algorithms_enabled;
use crate::dispatch::{Arguments, Call};
use crate::kernels::grid_sample::grid_sample;
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns images or volumes at the points of a grid, whose coordinates are −1 to 1 along each axis: interpolated linearly
    /// (0), by the nearest element (1), or cubically (2); outside they are 0 (0), the border (1), or mirrored (2).
    "grid_sampler(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor"
        fn grid_sampler(grid: tensor, interpolation_mode: int, padding_mode: int, align_corners: bool)
        = Composite(|call| grid_sampler(call, call.tensor(0).rank().saturating_sub(2))), autocast: Widest;
    /// Returns images at the points of a grid.
    "grid_sampler_2d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor"
        fn grid_sampler_2d(grid: tensor, interpolation_mode: int, padding_mode: int, align_corners: bool)
        = Composite(|call| grid_sampler(call, 2));
    /// Returns volumes at the points of a grid.
    "grid_sampler_3d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor"
        fn grid_sampler_3d(grid: tensor, interpolation_mode: int, padding_mode: int, align_corners: bool)
        = Composite(|call| grid_sampler(call, 3));
    /// Returns images or volumes at the points of a grid, by operators of whole tensors, which record gradients of gradients.
    "thalweg::grid_sample_by_operators(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor"
        = Composite(|call| {
            check(call, call.tensor(0).rank().saturating_sub(2))?;
            sampled_by_operators(call.tensor(0), call.tensor(1), [call.int(2), call.int(3)], call.bool(4)).map(single)
        });
}

/// One axis of the images.
#[derive(Clone, Copy)]
struct Axis {
    extent: usize,
    padding: i64,
    align_corners: bool,
}

/// Returns positions clamped between 0 and the last one; NaN becomes 0. The gradient is 0 at both bounds and outside.
fn clipped(place: &Tensor, last: f64) -> Result<Tensor> {
    let known = place.detach();
    let is_inside = known.gt_scalar(0.0)?.logical_and(&known.lt_scalar(last)?)?;
    let bound = known.ge_scalar(last)?.to_dtype(place.dtype())?.mul_scalar(last)?;
    is_inside.select_where(place, &bound)
}

/// Returns positions; one that cannot be the number of an element (NaN, infinite, or large) is outside of every image and has no gradient.
fn bounded(place: &Tensor) -> Result<Tensor> {
    let known = place.detach();
    let [least, most] = [f64::from(i32::MIN), f64::from(i32::MAX) - 1.0];
    let is_number = known.ge_scalar(least)?.logical_and(&known.le_scalar(most)?)?;
    is_number.select_where(place, &known.full_like(-100.0)?)
}

impl Axis {
    /// Returns the positions of coordinates between −1 and 1.
    fn unnormalized(self, coordinate: &Tensor) -> Result<Tensor> {
        let extent = self.extent as f64;
        let from_zero = coordinate.add_scalar(1.0)?;
        match self.align_corners {
            true => from_zero.mul_scalar((extent - 1.0) / 2.0),
            false => from_zero.mul_scalar(extent)?.sub_scalar(1.0)?.div_scalar(2.0),
        }
    }

    /// Returns positions moved inside the image, according to the padding.
    fn padded(self, place: &Tensor) -> Result<Tensor> {
        let last = self.extent as f64 - 1.0;
        match self.padding {
            1 => clipped(place, last),
            2 => {
                let (low, span) = if self.align_corners { (0.0, last) } else { (-0.5, last + 1.0) };
                if span == 0.0 {
                    return place.mul_scalar(0.0);
                }
                let distance = place.sub_scalar(low)?.abs()?;
                let extra = distance.fmod_scalar(span)?;
                let is_even = distance.detach().div_scalar(span)?.floor()?.fmod_scalar(2.0)?.eq_scalar(0)?;
                let back = extra.neg()?.add_scalar(span)?;
                clipped(&is_even.select_where(&extra, &back)?.add_scalar(low)?, last)
            }
            _ => Ok(place.clone()),
        }
    }

    /// Returns the four weights of cubic convolution (Keys 1981, A = −3/4) at a distance after the second of four points.
    fn cubic(distance: &Tensor) -> Result<[Tensor; 4]> {
        super::resample::cubic_weights(distance)
    }

    /// Returns the points of the axis that contribute at positions, with their weights.
    fn taps(self, place: &Tensor, interpolation: i64) -> Result<Vec<(Tensor, Option<Tensor>)>> {
        match interpolation {
            // The weight is always 1, but it connects the position to the graph, with a gradient of 0.
            1 => {
                let weight = match place.requires_grad() {
                    true => {
                        let never = Tensor::zeros(&[], DType::Bool, place.device())?;
                        Some(never.select_where(place, &Tensor::ones(&[], place.dtype(), place.device())?)?)
                    }
                    false => None,
                };
                Ok(vec![(self.padded(place)?.detach().round()?, weight)])
            }
            2 => {
                let first = place.detach().floor()?;
                let weights = Self::cubic(&place.sub(&first)?)?;
                (weights.into_iter().enumerate())
                    .map(|(tap, weight)| {
                        let point = first.add_scalar(tap as f64 - 1.0)?;
                        Ok((self.padded(&point)?, Some(weight)))
                    })
                    .collect()
            }
            _ => {
                let place = bounded(&self.padded(place)?)?;
                let first = place.detach().floor()?;
                let weight = place.sub(&first)?;
                let rest = weight.neg()?.add_scalar(1.0)?;
                Ok(vec![(first.clone(), Some(rest)), (first.add_scalar(1.0)?, Some(weight))])
            }
        }
    }
}

fn check(call: &Call<'_>, axes: usize) -> Result<()> {
    let (x, grid) = (call.tensor(0), call.tensor(1));
    let refused = |why: String| Err(invalid!("grid_sampler(): {why}"));
    if x.rank() < 2 || grid.rank() == 0 {
        return refused(format!(
            "expected 4D or 5D input and grid, but got {:?} and {:?}",
            x.shape(),
            grid.shape()
        ));
    }
    if x.shape()[0] != grid.shape()[0] {
        return refused(format!(
            "expected grid and input to have same batch size, but got input with sizes {:?} and grid with sizes {:?}",
            x.shape(),
            grid.shape()
        ));
    }
    if grid.shape()[grid.rank() - 1] != axes {
        return refused(format!(
            "expected grid to have size {axes} in last dimension, but got grid with sizes {:?}",
            grid.shape()
        ));
    }
    if x.shape()[2..].contains(&0) {
        return refused(format!(
            "expected input to have non-empty spatial dimensions, but input has sizes {:?}",
            x.shape()
        ));
    }
    if !(2..=3).contains(&axes) || x.rank() != axes + 2 || grid.rank() != axes + 2 {
        return refused(format!(
            "expected 4D or 5D input and grid with same number of dimensions, but got input with sizes {:?} and grid with sizes {:?}",
            x.shape(),
            grid.shape()
        ));
    }
    if x.dtype() != grid.dtype() || !x.dtype().is_floating_point() {
        return refused(format!(
            "expected input and grid to have the same floating-point dtype, but got {} and {}",
            x.dtype(),
            grid.dtype()
        ));
    }
    if call.int(2) == 2 && axes == 3 {
        return refused("bicubic interpolation only supports 4D input".into());
    }
    match (call.int(2), call.int(3)) {
        (0..=2, 0..=2) => Ok(()),
        (interpolation, padding) => {
            refused(format!("there is no interpolation {interpolation} with padding {padding}"))
        }
    }
}

fn grid_sampler(call: &Call<'_>, axes: usize) -> Result<Tensors> {
    check(call, axes)?;
    let (x, grid) = (call.tensor(0), call.tensor(1));
    let (numbers, align_corners) = ([call.int(2), call.int(3)], call.bool(4));
    // The kernel adds gradients in an order that differs from run to run.
    let is_taken = axes == 2 && !(are_deterministic_algorithms_enabled() && is_recorded(&[x]));
    match is_taken && !x.dtype().is_float8() {
        true => grid_sample(x, grid, numbers, align_corners),
        false => sampled_by_operators(x, grid, numbers, align_corners),
    }
    .map(single)
}

/// Returns images or volumes at the points of a grid, by operators of whole tensors.
fn sampled_by_operators(
    input: &Tensor,
    grid: &Tensor,
    [interpolation, padding]: [i64; 2],
    align_corners: bool,
) -> Result<Tensor> {
    let axes = input.rank() - 2;
    let x = input.to_dtype(input.dtype().compute())?;
    let grid = grid.to_dtype(x.dtype())?;
    let [batch, channels] = [x.shape()[0], x.shape()[1]];
    let extents = &x.shape()[2..];
    let shape: Shape = grid.shape()[1..=axes].into();
    let count: usize = shape.iter().product();
    let points = grid.reshape(&[batch, 1, count, axes])?;
    // The grid's coordinates start with the last axis.
    let taps: Vec<_> = (0..axes)
        .map(|axis| {
            let own = Axis { extent: extents[axis], padding, align_corners };
            let coordinate = points.select(3, axes - 1 - axis)?;
            own.taps(&own.unnormalized(&coordinate)?, interpolation)
        })
        .collect::<Result<_>>()?;
    let flat = x.reshape(&[batch, channels, extents.iter().product()])?;
    let mut sum: Option<Tensor> = None;
    for choice in 0..taps.iter().map(Vec::len).product() {
        let (mut rest, mut chosen) = (choice, Vec::new());
        for list in &taps {
            chosen.push(&list[rest % list.len()]);
            rest /= list.len();
        }
        let value = corner(&flat, extents, &chosen)?;
        sum = Some(match sum {
            Some(sum) => sum.add(&value)?,
            None => value,
        });
    }
    let shape: Shape = [batch, channels].into_iter().chain(shape).collect();
    sum.expect("there is a tap").reshape(&shape)?.to_dtype(input.dtype())
}

/// Returns the weighted elements of flat images (batch, channels, places) at points (batch, 1, count) per axis; 0 outside.
fn corner(flat: &Tensor, extents: &[usize], chosen: &[&(Tensor, Option<Tensor>)]) -> Result<Tensor> {
    let mut index = Tensor::zeros(&[], DType::I64, flat.device())?;
    let mut inside: Option<Tensor> = None;
    let mut weight: Option<Tensor> = None;
    for (&extent, (point, own)) in extents.iter().zip(chosen) {
        let point = point.detach();
        let is_inside = point.ge_scalar(0)?.logical_and(&point.le_scalar(extent as f64 - 1.0)?)?;
        let bounded = point.clamp(0.0, extent as f64 - 1.0)?.nan_to_num()?.to_dtype(DType::I64)?;
        index = index.mul_scalar(extent as i64)?.add(&bounded)?;
        inside = Some(match inside {
            Some(inside) => inside.logical_and(&is_inside)?,
            None => is_inside,
        });
        weight = match (weight, own) {
            (Some(weight), Some(own)) => Some(weight.mul(own)?),
            (weight, own) => weight.or_else(|| own.clone()),
        };
    }
    let shape = [flat.shape()[0], flat.shape()[1], index.shape()[2]];
    let values = flat.gather(2, &index.expand(&shape)?)?;
    let zero = Tensor::zeros(&[], flat.dtype(), flat.device())?;
    let values = inside.expect("there is an axis").select_where(&values, &zero)?;
    weight.map_or(Ok(values.clone()), |weight| values.mul(&weight))
}
