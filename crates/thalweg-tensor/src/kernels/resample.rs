//! Images of another size, and padded by their own elements: the operator, its gradient, and the gradient of that, which is the
//! operator again.

use std::panic::Location;

use thalweg_ir::{Shape, element_count};
use thalweg_kernels::resample::{Resample, ResampleBy};
use thalweg_runtime::{Error, Result, refuse};

use crate::autograd::formula::{Formula, GradientCall};
use crate::dispatch::{self, Argument, Arguments, Call, Ints, Operator, built_in};
use crate::memory_format::{empty_in, from_last};
use crate::tensor::{Tensor, Tensors};

/// An axis of a call: the extent of the result, the distance between its points, and the number of points before the old ones.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Resized {
    pub size: usize,
    pub scale: f64,
    pub before: i64,
}

/// Returns images (batch, channels, …) of one to three axes, each resized.
pub(crate) fn resample(x: &Tensor, by: ResampleBy, axes: &[Resized]) -> Result<Tensor> {
    let size: Ints = axes.iter().map(|axis| axis.size as i64).collect();
    let scale: Vec<f64> = axes.iter().map(|axis| axis.scale).collect();
    let before: Ints = axes.iter().map(|axis| axis.before).collect();
    call(built_in!("thalweg::resample")?, x, by as i64, (&size, &scale, &before))
}

fn call(
    operator: &'static Operator,
    x: &Tensor,
    by: i64,
    (size, scale, before): (&[i64], &[f64], &[i64]),
) -> Result<Tensor> {
    let arguments =
        [x.into(), by.into(), Argument::Ints(size), Argument::Floats(scale), Argument::Ints(before)];
    dispatch::call(operator, &arguments, None, Location::caller())
}

/// Computes the operator.
pub(crate) fn forward(call: &Call<'_>) -> Result<Tensors> {
    run(call, false)
}

/// Computes the gradient; the sizes are those of the input.
pub(crate) fn backward(call: &Call<'_>) -> Result<Tensors> {
    run(call, true)
}

fn run(call: &Call<'_>, backward: bool) -> Result<Tensors> {
    let x = call.tensor(0);
    let (by, size, before) = (call.int(1), call.ints(2), call.ints(4));
    let Argument::Floats(scale) = call.argument(3) else {
        refuse!("resample: scale is a list of numbers");
    };
    let by = usize::try_from(by).ok().and_then(|by| ResampleBy::ALL.get(by).copied());
    let extents: Option<Shape> = size.iter().map(|&extent| usize::try_from(extent).ok()).collect();
    let axes = size.len();
    let fits = (1..=3).contains(&axes) && x.rank() == axes + 2 && [scale.len(), before.len()] == [axes; 2];
    let (Some(by), Some(extents), true) = (by, extents, fits) else {
        refuse!(
            "resample: images of shape {:?} do not have the axes of size {size:?}, scale {scale:?} and padding {before:?}",
            x.shape()
        );
    };
    let x = x.detach();
    let shape: Shape = x.shape()[..2].iter().copied().chain(extents.iter().copied()).collect();
    element_count(&shape)?;
    let channels_last = x.rank() > 3 && x.layout().is_like_channels_last();
    let stream = call.device.current_stream();
    let result = empty_in(&shape, x.dtype(), (channels_last, &stream), call.label)?;
    if result.elements() == 0 {
        return Ok(Tensors::from_iter([result]));
    }
    let is_complex = x.dtype().is_complex();
    let planes = if is_complex { parts_of(&x, channels_last)? } else { x.clone() };
    let planes = if is_wide(&planes) { planes.contiguous()? } else { planes };
    let of_axes = |numbers: &[usize]| {
        let mut all = [1; 3];
        all[3 - axes..].iter_mut().zip(numbers).for_each(|(to, &number)| *to = number as u64);
        all
    };
    let (read, written) = (of_axes(&x.shape()[2..]), of_axes(&extents));
    let strides = planes.layout().strides();
    let [z, y, column] = of_axes(&strides[2..]);
    let mut kernel = Resample {
        images: planes.shape()[0] as u64,
        channels: planes.shape()[1] as u64,
        source: if backward { written } else { read },
        target: if backward { read } else { written },
        scale: [1.0; 3],
        before: [0; 3],
        strides: [strides[0] as u64, strides[1] as u64, z, y, column],
        channels_last: channels_last || is_complex,
        by,
        dtype: planes.dtype(),
        backward,
    };
    kernel.scale[3 - axes..].copy_from_slice(scale);
    kernel.before[3 - axes..].copy_from_slice(&before);
    if !kernel.channels_last && kernel.strides[0] == kernel.channels * kernel.strides[1] {
        // Planes at one distance from each other are those of one image.
        (kernel.images, kernel.channels) = (1, kernel.images * kernel.channels);
    }
    call.launch(kernel, [&planes, &result])?;
    Ok(Tensors::from_iter([result]))
}

/// Returns whether positions in a plane, counted from its first element, may not fit in 32 bits.
fn is_wide(planes: &Tensor) -> bool {
    let axes = planes.shape()[2..].iter().zip(&planes.layout().strides()[2..]);
    axes.map(|(extent, stride)| extent.saturating_sub(1) * stride).sum::<usize>() >= 1 << 32
}

/// Returns complex images as real ones with twice as many channels. The elements of a resampled image are then those of the complex
/// result: real and imaginary parts are neighbours in each plane, or, with the channels last, among an image's channels.
fn parts_of(x: &Tensor, channels_last: bool) -> Result<Tensor> {
    let parts = x.view_as_real()?;
    let (rank, shape) = (parts.rank(), parts.shape());
    let axes = 2..rank - 1;
    let apart = match channels_last {
        true => {
            let order: Shape = [0].into_iter().chain(axes.clone()).chain([1, rank - 1]).collect();
            let nested: Shape =
                [shape[0]].into_iter().chain(axes.map(|dim| shape[dim])).chain([2 * shape[1]]).collect();
            parts.permute(&order)?.reshape(&nested)?
        }
        false => {
            let nested: Shape =
                [shape[0] * shape[1]].into_iter().chain(axes.map(|dim| shape[dim])).chain([2]).collect();
            parts.reshape(&nested)?
        }
    };
    from_last(&apart)
}

fn gradient(call: &GradientCall<'_>, operator: &'static Operator) -> Result<Tensor> {
    let size: Ints = call.shape(0)[2..].iter().map(|&extent| extent as i64).collect();
    let Argument::Floats(scale) = call.argument(3) else {
        refuse!("resample: scale is a list of numbers");
    };
    self::call(operator, &call.gradient()?, call.int(1), (&size, scale, &call.ints(4)))
}

/// The gradient of [`forward`].
pub(crate) static GRADIENT: Formula = Formula {
    inputs: &[],
    outputs: &[],
    backward: |call| call.one(0, || gradient(call, built_in!("thalweg::resample_backward")?)),
};

/// The gradient of [`backward`].
pub(crate) static BACKWARD_GRADIENT: Formula = Formula {
    inputs: &[],
    outputs: &[],
    backward: |call| call.one(0, || gradient(call, built_in!("thalweg::resample")?)),
};
