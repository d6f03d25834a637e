//! Pools: the mean or the greatest element of each window over images of one, two or three axes.
//!
//! A pool of one axis is computed as one of images of one row.

use smallvec::SmallVec;
use thalweg_ir::{DType, Shape};
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::{self, Composite, Differentiable};
use super::index::gathered;
use super::view::{format_of, in_format};
use super::window::{extents_of, per_axis, strided};
use super::{call as call_operator, call_all, operators, single};
use crate::autograd::Gradients;
use crate::autograd::formula::{Formula, GradientCall};
use crate::dispatch::{Argument, Arguments, Call, Ints, Operator, built_in};
use crate::kernels::geometry::{Geometry, PerAxis, Placing};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the mean over each window of planes of one axis.
    "avg_pool1d(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=0, bool ceil_mode=False, bool count_include_pad=True) -> Tensor"
        fn avg_pool1d(kernel_size: ints, stride: ints, padding: ints, ceil_mode: bool, count_include_pad: bool)
        = Composite(|call| {
            let kind = Kind { axes: 1, is_adaptive: false, is_max: false };
            as_rows(call, kind, built_in!("avg_pool2d")?, &[1, 1, 0])
        }), autocast: Parts;
    /// Returns the mean over each window of images.
    "avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor"
        fn avg_pool2d(kernel_size: ints, stride: ints, padding: ints) = means::<2, false>();
    /// Returns the mean over each window of volumes.
    "avg_pool3d(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor"
        fn avg_pool3d(kernel_size: ints, stride: ints, padding: ints, ceil_mode: bool, count_include_pad: bool, divisor_override: optional_int)
        = means::<3, false>();
    /// Returns the gradient of a mean over each window of images from the gradient of the means.
    "avg_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor"
        = means_backward::<2, false>(), out_form: "avg_pool2d_backward.grad_input(grad_input)";
    /// Returns the gradient of a mean over each window of volumes from the gradient of the means.
    "avg_pool3d_backward(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] stride, int[3] padding, bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor"
        = means_backward::<3, false>();
    /// Returns the greatest element of each window of planes of one axis, and its index.
    "max_pool1d_with_indices(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=0, int[1] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)"
        fn max_pool1d_with_indices(kernel_size: ints, stride: ints, padding: ints, dilation: ints, ceil_mode: bool) -> 2
        = Composite(|call| {
            let kind = Kind { axes: 1, is_adaptive: false, is_max: true };
            as_rows(call, kind, built_in!("max_pool2d_with_indices")?, &[1, 1, 0, 1])
        }), autocast: Parts;
    /// Returns the greatest element of each window of images, and its index in the plane.
    "max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)"
        fn max_pool2d_with_indices(kernel_size: ints, stride: ints, padding: ints) -> 2 = extrema::<2, false>(), out_form: "max_pool2d_with_indices.out(out, indices)";
    /// Returns the greatest element of each window of volumes, and its index in the volume.
    "max_pool3d_with_indices(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, int[3] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)"
        fn max_pool3d_with_indices(kernel_size: ints, stride: ints, padding: ints, dilation: ints, ceil_mode: bool) -> 2
        = extrema::<3, false>(), out_form: "max_pool3d_with_indices.out(out, indices)";
    /// Returns the gradient of the greatest elements of windows of images from that of the results.
    "max_pool2d_with_indices_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool ceil_mode, Tensor indices) -> Tensor"
        = extrema_backward::<2, false>(), out_form: "max_pool2d_with_indices_backward.grad_input(grad_input)";
    /// Returns the gradient of the greatest elements of windows of volumes from that of the results.
    "max_pool3d_with_indices_backward(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] stride, int[3] padding, int[3] dilation, bool ceil_mode, Tensor indices) -> Tensor"
        = extrema_backward::<3, false>();
    /// Returns the greatest element of each window of planes of one axis.
    "max_pool1d(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=0, int[1] dilation=1, bool ceil_mode=False) -> Tensor"
        fn max_pool1d(kernel_size: ints, stride: ints, padding: ints, dilation: ints, ceil_mode: bool)
        = Composite(|call| first(call, built_in!("max_pool1d_with_indices")?)), autocast: Parts;
    /// Returns the greatest element of each window of images.
    "max_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> Tensor"
        fn max_pool2d(kernel_size: ints, stride: ints, padding: ints, dilation: ints, ceil_mode: bool)
        = Composite(|call| first(call, built_in!("max_pool2d_with_indices")?)), autocast: Parts;
    /// Returns the greatest element of each window of volumes.
    "max_pool3d(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, int[3] dilation=1, bool ceil_mode=False) -> Tensor"
        fn max_pool3d(kernel_size: ints, stride: ints, padding: ints, dilation: ints, ceil_mode: bool)
        = Composite(|call| first(call, built_in!("max_pool3d_with_indices")?)), autocast: Parts;
    /// Returns the mean over each of `output_size` windows that cover an axis.
    "adaptive_avg_pool1d(Tensor self, int[1] output_size) -> Tensor"
        fn adaptive_avg_pool1d(output_size: ints)
        = Composite(|call| adaptive_of_rows(call, false, built_in!("_adaptive_avg_pool2d")?)), autocast: Parts;
    /// Returns the mean over each of `output_size` windows that cover an image.
    "adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor"
        fn adaptive_avg_pool2d(output_size: ints) = means::<2, true>();
    /// Returns the mean over each of `output_size` windows that cover an image.
    "_adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor"
        = means::<2, true>();
    /// Returns the mean over each of `output_size` windows that cover a volume.
    "adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor"
        fn adaptive_avg_pool3d(output_size: ints)
        = means::<3, true>();
    /// Returns the mean over each of `output_size` windows that cover a volume.
    "_adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor"
        = means::<3, true>();
    /// Returns the gradient of means over windows that cover an image from the gradient of the means.
    "_adaptive_avg_pool2d_backward(Tensor grad_output, Tensor self) -> Tensor"
        = means_backward::<2, true>();
    /// Returns the gradient of means over windows that cover a volume from the gradient of the means.
    "_adaptive_avg_pool3d_backward(Tensor grad_output, Tensor self) -> Tensor"
        = means_backward::<3, true>();
    /// Returns the greatest element of each of `output_size` windows that cover an axis, and its index.
    "adaptive_max_pool1d(Tensor self, int[1] output_size) -> (Tensor, Tensor)"
        fn adaptive_max_pool1d(output_size: ints) -> 2
        = Composite(|call| adaptive_of_rows(call, true, built_in!("adaptive_max_pool2d")?)), autocast: Parts;
    /// Returns the greatest element of each of `output_size` windows that cover an image, and its index.
    "adaptive_max_pool2d(Tensor self, int[2] output_size) -> (Tensor, Tensor)"
        fn adaptive_max_pool2d(output_size: ints) -> 2
        = extrema::<2, true>();
    /// Returns the greatest element of each of `output_size` windows that cover a volume, and its index.
    "adaptive_max_pool3d(Tensor self, int[3] output_size) -> (Tensor, Tensor)"
        fn adaptive_max_pool3d(output_size: ints) -> 2
        = extrema::<3, true>();
    /// Returns the gradient of the greatest elements of windows that cover an image from that of the results.
    "adaptive_max_pool2d_backward(Tensor grad_output, Tensor self, Tensor indices) -> Tensor"
        = extrema_backward::<2, true>();
    /// Returns the gradient of the greatest elements of windows that cover a volume from that of the results.
    "adaptive_max_pool3d_backward(Tensor grad_output, Tensor self, Tensor indices) -> Tensor"
        = extrema_backward::<3, true>();
}

/// The kind of a pool: its windows, and the value that it computes of each.
#[derive(Clone, Copy)]
struct Kind {
    /// The number of axes that the windows have.
    axes: usize,
    /// Whether a given number of windows covers each axis, or the windows have one size and stride.
    is_adaptive: bool,
    /// Whether the pool computes the greatest element instead of the mean.
    is_max: bool,
}

/// Returns the body of a mean over windows.
const fn means<const AXES: usize, const IS_ADAPTIVE: bool>() -> Body {
    Differentiable(
        |call| average(call, Kind { axes: AXES, is_adaptive: IS_ADAPTIVE, is_max: false }),
        const { &Formula { inputs: &[], outputs: &[], backward: means_gradient::<AXES, IS_ADAPTIVE> } },
    )
}

/// Returns the body of the gradient of a mean over windows. It is linear in the gradient of the means: its own gradient is a mean
/// over windows.
const fn means_backward<const AXES: usize, const IS_ADAPTIVE: bool>() -> Body {
    Differentiable(
        |call| average_backward(call, Kind { axes: AXES, is_adaptive: IS_ADAPTIVE, is_max: false }),
        const { &Formula { inputs: &[], outputs: &[], backward: means_backward_gradient::<AXES, IS_ADAPTIVE> } },
    )
}

/// Returns the body of the greatest elements of windows.
const fn extrema<const AXES: usize, const IS_ADAPTIVE: bool>() -> Body {
    Differentiable(
        |call| greatest(call, Kind { axes: AXES, is_adaptive: IS_ADAPTIVE, is_max: true }, DType::I64),
        const { &Formula { inputs: &[], outputs: &[1], backward: extrema_gradient::<AXES, IS_ADAPTIVE> } },
    )
}

/// Returns the body of the gradient of max pooling's gradient: the gradient of a window's maximum is read at the index of that
/// maximum.
const fn extrema_backward<const AXES: usize, const IS_ADAPTIVE: bool>() -> Body {
    Differentiable(
        |call| greatest_backward(call, Kind { axes: AXES, is_adaptive: IS_ADAPTIVE, is_max: true }),
        const { &Formula { inputs: &[2], outputs: &[], backward: extrema_backward_gradient::<AXES> } },
    )
}

/// Returns the results of a pool of one axis by the operator for images, as images of one row. After the input the call has lists of
/// numbers, whose numbers for the rows are given (an empty list stays empty), and then flags.
fn as_rows(call: &Call<'_>, kind: Kind, operator: &'static Operator, of_rows: &[i64]) -> Result<Tensors> {
    let x = call.tensor(0);
    kind.check_dtype(call)?;
    Pool::of(call, kind, x.shape(), 1)?;
    let rows = x.unsqueeze(x.rank() as i64 - 1)?;
    let number = |(place, &of_rows): (usize, &i64)| {
        call.ints(1 + place).last().map_or_else(Ints::new, |&number| Ints::from_slice(&[of_rows, number]))
    };
    let numbers: Vec<Ints> = of_rows.iter().enumerate().map(number).collect();
    let mut arguments = vec![Argument::Tensor(&rows)];
    arguments.extend(numbers.iter().map(|list| Argument::Ints(list)));
    arguments.extend((1 + of_rows.len()..call.arguments.len()).map(|place| call.argument(place)));
    let results = call_all(operator, &arguments, None, call.label.location)?;
    results.iter().map(|result| result.squeeze(result.rank() as i64 - 2)).collect()
}

fn adaptive_of_rows(call: &Call<'_>, is_max: bool, operator: &'static Operator) -> Result<Tensors> {
    as_rows(call, Kind { axes: 1, is_adaptive: true, is_max }, operator, &[1])
}

/// The planes and windows of a pool.
struct Pool {
    geometry: Geometry,
    planes: usize,
    output: Shape,
}

impl Pool {
    /// Returns the pool of a call over an input of this shape; `first` is the position of the first argument after the input.
    fn of(call: &impl Arguments, kind: Kind, shape: &[usize], first: usize) -> Result<Self> {
        if kind.is_adaptive {
            let windows = Self::adaptive_windows(call, kind, first)?;
            kind.check_shape(call, shape)?;
            let extents = extents_of(shape, kind.axes);
            return Ok(Self::over(shape, Geometry { extents, windows, placing: Placing::Adaptive }, kind));
        }
        let numbers = Self::numbers(call, kind, first)?;
        kind.check_shape(call, shape)?;
        Ok(Self::over(shape, Self::strided(call, kind, shape, numbers, first)?, kind))
    }

    /// Returns the number of windows along each axis, or PyTorch's message if it is not possible.
    fn adaptive_windows(call: &impl Arguments, kind: Kind, place: usize) -> Result<PerAxis> {
        let (Kind { axes, is_max, .. }, name, sizes) = (kind, &call.schema().name, call.ints(place));
        let fail = |why: String| Err(Error::invalid(why));
        if sizes.len() != axes {
            return fail(match (axes, is_max) {
                (1, _) => {
                    format!("{name}() argument 'output_size' should contain one int (got {})", sizes.len())
                }
                (_, true) => format!("{name}(): output_size must have {axes} numbers, got {}", sizes.len()),
                (_, false) => format!("{name}: output_size must be {axes}"),
            });
        }
        match sizes.iter().find(|&&size| size < 0) {
            Some(size) if is_max => {
                fail(format!("Trying to create tensor with negative dimension {size}: {sizes:?}"))
            }
            Some(_) => fail(format!(
                "{name}: elements of output_size must be greater than or equal to 0 but received {sizes:?}"
            )),
            None => per_axis("output_size", &sizes, axes, 1),
        }
    }

    /// Returns the pool of a call for its gradient, over an input of this shape.
    fn of_backward(call: &impl Arguments, kind: Kind, shape: &[usize], gradient: &[usize]) -> Result<Self> {
        let pool = if kind.is_adaptive {
            kind.check_shape(call, shape)?;
            let (axes, name) = (kind.axes, &call.schema().name);
            if let Some(dim) = (1..gradient.len()).find(|&dim| gradient[dim] == 0) {
                refuse!(
                    "{name}(): Expected grad_output to have non-zero size for non-batch dimensions, but grad_output has sizes \
                     {gradient:?} with dimension {dim} being empty"
                );
            }
            let windows = gradient.len().checked_sub(axes).map_or([1; 3], |_| extents_of(gradient, axes));
            let geometry = Geometry { extents: extents_of(shape, axes), windows, placing: Placing::Adaptive };
            Self::over(shape, geometry, kind)
        } else {
            Self::of(call, kind, shape, 2)?
        };
        refuse_if!(
            pool.output.as_slice() != gradient,
            "{}: Expected grad_output to have shape {:?}, but got {gradient:?}",
            call.schema().name,
            pool.output
        );
        Ok(pool)
    }

    fn over(shape: &[usize], geometry: Geometry, Kind { axes, .. }: Kind) -> Self {
        let (outer, _) = shape.split_at(shape.len() - axes);
        let output = outer.iter().copied().chain(geometry.windows[3 - axes..].iter().copied()).collect();
        Self { geometry, planes: outer.iter().product(), output }
    }

    /// Returns kernel, stride, padding and dilation of a call.
    fn numbers(call: &impl Arguments, Kind { axes, is_max, .. }: Kind, first: usize) -> Result<[PerAxis; 4]> {
        let positive = |name: &str, list: &Ints| match list.iter().find(|&&number| number <= 0) {
            Some(number) => Err(invalid!("{name} must be greater than zero, but got {number}")),
            None => per_axis(name, list, axes, 1),
        };
        let kernel = positive("kernel_size", &call.ints(first))?;
        let stride = match call.ints(first + 1) {
            list if list.is_empty() => kernel,
            list => positive("stride", &list)?,
        };
        let dilation = if is_max { positive("dilation", &call.ints(first + 3))? } else { [1; 3] };
        let padding = call.ints(first + 2);
        if let Some(negative) = padding.iter().find(|&&number| number < 0) {
            refuse!("pad must be non-negative, but got pad: {negative}");
        }
        let padding = per_axis("padding", &padding, axes, 0)?;
        for axis in 0..3 {
            let reach = dilation[axis].saturating_mul(kernel[axis] - 1).saturating_add(1);
            refuse_if!(
                padding[axis] > reach / 2,
                "pad should be at most half of effective kernel size, but got pad={}, kernel_size={} and dilation={}",
                padding[axis],
                kernel[axis],
                dilation[axis]
            );
        }
        Ok([kernel, stride, padding, dilation])
    }

    fn strided(
        call: &impl Arguments,
        Kind { axes, is_max, .. }: Kind,
        shape: &[usize],
        numbers: [PerAxis; 4],
        first: usize,
    ) -> Result<Geometry> {
        let extents = extents_of(shape, axes);
        let ceil_mode = call.bool(first + if is_max { 4 } else { 3 });
        let [kernel, stride, padding, dilation] = numbers;
        refuse_if!(
            !is_max && axes == 3 && kernel.iter().zip(extents).any(|(&kernel, extent)| kernel > extent),
            "input image (T: {} H: {} W: {}) smaller than kernel size (kT: {} kH: {} kW: {})",
            extents[0],
            extents[1],
            extents[2],
            kernel[0],
            kernel[1],
            kernel[2]
        );
        // In i128, so that no number is too large.
        let windows = [0, 1, 2].map(|axis| {
            let [kernel, stride, padding, dilation, extent] =
                [kernel, stride, padding, dilation, extents].map(|list| list[axis] as i128);
            let beyond = if ceil_mode { stride - 1 } else { 0 };
            (extent + 2 * padding - dilation * (kernel - 1) - 1 + beyond).div_euclid(stride) + 1
        });
        if windows.iter().any(|&count| count < 1) {
            // Planes of one axis are images of one row.
            let (first, channels) = (3 - axes.max(2), shape[shape.len() - axes - 1] as i128);
            let joined = |list: [i128; 3]| {
                let numbers = std::iter::once(channels).chain(list.into_iter().skip(first));
                numbers.map(|number| number.to_string()).collect::<Vec<_>>().join("x")
            };
            refuse!(
                "Given input size: ({}). Calculated output size: ({}). Output size is too small",
                joined(extents.map(|extent| extent as i128)),
                joined(windows)
            );
        }
        let mut geometry = strided(extents, numbers, axes, ceil_mode)?;
        if let (Placing::Strided { counts_padding, divisor, .. }, false) = (&mut geometry.placing, is_max) {
            *counts_padding = call.bool(first + 4);
            *divisor = if axes == 1 { 0 } else { call.optional_int(first + 5).unwrap_or(0) };
            refuse_if!(axes > 1 && call.optional_int(first + 5) == Some(0), "divisor must be not zero");
        }
        Ok(geometry)
    }
}

impl Kind {
    /// Refuses dtypes for which PyTorch has no such pool: there is none for truth values, and for integers only strided ones.
    fn check_dtype(self, call: &Call<'_>) -> Result<()> {
        let (dtype, name) = (call.tensor(0).dtype(), call.operator.base_name());
        let is_known = match (self.is_adaptive, self.is_max) {
            (true, _) => dtype.is_floating_point(),
            (false, true) => dtype != DType::Bool,
            (false, false) => dtype.is_floating_point() || dtype == DType::I64,
        };
        match is_known {
            true => Ok(()),
            false => Err(Error::not_implemented(format!("\"{name}\" not implemented for '{dtype}'"))),
        }
    }

    /// Refuses an input of another rank, or without elements that windows could contain.
    fn check_shape(self, call: &impl Arguments, shape: &[usize]) -> Result<()> {
        let (Self { axes, is_adaptive, is_max }, name) = (self, &call.schema().name);
        let is_batch = shape.len() == axes + 2;
        if is_adaptive {
            return self.check_adaptive(name, shape);
        }
        let has_channels = shape.get(usize::from(is_batch)) != Some(&0);
        let has_points = shape.len() > axes && !shape[shape.len() - axes..].contains(&0);
        if (axes + 1..=axes + 2).contains(&shape.len()) && has_channels && has_points {
            return Ok(());
        }
        let [one, batch] = [axes + 1, axes + 2];
        Err(Error::invalid(match axes {
            3 if is_max && (one..=batch).contains(&shape.len()) => {
                format!(
                    "{name}: Expected input's non-batch dimensions to have positive length, but input has a shape of {shape:?}"
                )
            }
            3 => format!(
                "{name}: non-empty {one}D or {batch}D (batch mode) tensor expected for input, but got: {shape:?}"
            ),
            _ => format!(
                "{name}: Expected {one}D or {batch}D (batch mode) tensor with optional 0 dim batch size for input, but got:{shape:?}"
            ),
        }))
    }

    /// Refuses an input of an adaptive pool that has another rank or an empty dimension; for greatest elements, any empty
    /// dimension but the first.
    fn check_adaptive(self, name: &str, shape: &[usize]) -> Result<()> {
        let Self { axes, is_max, .. } = self;
        let refused = |why: String| Err(invalid!("{name}(): {why}"));
        let [one, batch] = [axes + 1, axes + 2];
        if !(one..=batch).contains(&shape.len()) {
            return refused(format!("Expected {one}D or {batch}D tensor, but got: {shape:?}"));
        }
        let first = if is_max { 1 } else { shape.len() - axes };
        match (first..shape.len()).find(|&dim| shape[dim] == 0) {
            Some(dim) => refused(format!(
                "Expected input to have non-zero size for non-batch dimensions, but input has sizes {shape:?} with dimension {dim} being \
                 empty"
            )),
            None => Ok(()),
        }
    }
}

fn average(call: &Call<'_>, kind: Kind) -> Result<Tensors> {
    kind.check_dtype(call)?;
    let pool = Pool::of(call, kind, call.tensor(0).shape(), 1)?;
    if let Some(dims) = whole_planes(kind, &pool) {
        return call.tensor(0).detach().mean(&dims, true).map(single);
    }
    let means = pool.geometry.average(&call.tensor(0).detach(), pool.planes, &pool.output, call.label)?;
    in_format(&means, format_of(call.tensor(0))).map(single)
}

/// Returns the dimensions of planes if each plane is the only window of an adaptive pool.
fn whole_planes(kind: Kind, pool: &Pool) -> Option<Ints> {
    let is_whole = pool.geometry.placing == Placing::Adaptive
        && pool.geometry.windows == [1; 3]
        && pool.geometry.extents.iter().all(|&extent| extent > 0);
    is_whole.then(|| (1..=kind.axes as i64).map(|back| -back).collect())
}

/// Refuses an integer gradient.
fn check_gradient(call: &Call<'_>) -> Result<()> {
    let gradient = call.tensor(0);
    if gradient.dtype().is_floating_point() && gradient.dtype() == call.tensor(1).dtype() {
        return Ok(());
    }
    Err(invalid!(
        "{}: the gradient is {}, and must be floating-point as the input, which is {}",
        call.operator.base_name(),
        gradient.dtype(),
        call.tensor(1).dtype()
    ))
}

fn average_backward(call: &Call<'_>, kind: Kind) -> Result<Tensors> {
    check_gradient(call)?;
    let (gradient, shape) = (call.tensor(0).detach(), call.tensor(1).shape());
    let pool = Pool::of_backward(call, kind, shape, gradient.shape())?;
    if whole_planes(kind, &pool).is_some() {
        let points: usize = pool.geometry.extents.iter().product();
        let share = gradient.to_dtype(gradient.dtype().compute())?.div_scalar(points as f64)?;
        return share.to_dtype(gradient.dtype())?.expand(shape)?.copied(call.label.location).map(single);
    }
    let spread = pool.geometry.average_backward(&gradient, pool.planes, shape, call.label)?;
    in_format(&spread, format_of(call.tensor(1))).map(single)
}

/// Returns a tensor with the shape of a tensor of the call, whose elements are never read.
fn shape_of(call: &GradientCall<'_>, tensor: usize) -> Result<Tensor> {
    Tensor::empty(&[], call.dtype_of(tensor), call.device())?.expand(call.shape(tensor))
}

/// Returns the lists of numbers and flags in a range of a call's arguments, for another operator.
fn arguments_of<'a>(call: &'a GradientCall<'_>, places: std::ops::Range<usize>) -> Vec<Argument<'a>> {
    places.map(|place| call.argument(place)).collect()
}

fn means_gradient<const AXES: usize, const IS_ADAPTIVE: bool>(call: &GradientCall<'_>) -> Result<Gradients> {
    call.one(0, || {
        let (gradient, like) = (call.gradient()?, shape_of(call, 0)?);
        let mut arguments = vec![Argument::Tensor(&gradient), Argument::Tensor(&like)];
        let operator = match (IS_ADAPTIVE, AXES) {
            (true, 2) => built_in!("_adaptive_avg_pool2d_backward")?,
            (true, _) => built_in!("_adaptive_avg_pool3d_backward")?,
            (false, 2) => built_in!("avg_pool2d_backward")?,
            (false, _) => built_in!("avg_pool3d_backward")?,
        };
        if !IS_ADAPTIVE {
            arguments.extend(arguments_of(call, 1..7));
        }
        // The input is not kept; its gradient has the format of the result's.
        in_format(&operator.call(&arguments, None, call.label())?[0], format_of(&gradient))
    })
}

fn means_backward_gradient<const AXES: usize, const IS_ADAPTIVE: bool>(
    call: &GradientCall<'_>,
) -> Result<Gradients> {
    call.one(0, || {
        let gradient = call.gradient()?;
        let mut arguments = vec![Argument::Tensor(&gradient)];
        let windows: Ints;
        let operator = if IS_ADAPTIVE {
            let shape = call.shape(0);
            windows = shape[shape.len() - AXES..].iter().map(|&extent| extent as i64).collect();
            arguments.push(Argument::Ints(&windows));
            if AXES == 2 { built_in!("_adaptive_avg_pool2d")? } else { built_in!("_adaptive_avg_pool3d")? }
        } else {
            arguments.extend(arguments_of(call, 2..8));
            if AXES == 2 { built_in!("avg_pool2d")? } else { built_in!("avg_pool3d")? }
        };
        Ok(operator.call(&arguments, None, call.label())?.swap_remove(0))
    })
}

fn greatest(call: &Call<'_>, kind: Kind, places: DType) -> Result<Tensors> {
    kind.check_dtype(call)?;
    let pool = Pool::of(call, kind, call.tensor(0).shape(), 1)?;
    let x = call.tensor(0).detach();
    let results = pool.geometry.greatest(places, &x, pool.planes, &pool.output, call.label)?;
    let format = format_of(call.tensor(0));
    results.iter().map(|result| in_format(result, format)).collect()
}

fn greatest_backward(call: &Call<'_>, kind: Kind) -> Result<Tensors> {
    check_gradient(call)?;
    let (gradient, shape) = (call.tensor(0).detach(), call.tensor(1).shape());
    let pool = Pool::of_backward(call, kind, shape, gradient.shape())?;
    let places = call.tensor(call.arguments.len() - 1).detach();
    refuse_if!(
        places.dtype() != DType::I64 || places.shape() != gradient.shape(),
        "{}: the indices must be int64 {:?} as the gradient is, not {} {:?}",
        call.operator.base_name(),
        gradient.shape(),
        places.dtype(),
        places.shape()
    );
    let result = pool.geometry.greatest_backward([&gradient, &places], pool.planes, shape, call.label)?;
    in_format(&result, format_of(call.tensor(1))).map(single)
}

/// The kind of a pool of images by their greatest elements.
const OF_IMAGES: Kind = Kind { axes: 2, is_adaptive: false, is_max: true };

/// Returns the greatest element of each window of images, and its place within the window as a byte.
pub(super) fn greatest_within(call: &Call<'_>) -> Result<Tensors> {
    greatest(call, OF_IMAGES, DType::U8)
}

/// Returns the gradient of [`greatest_within`] for images of a size.
pub(super) fn greatest_within_backward(call: &Call<'_>) -> Result<Tensors> {
    let [gradient, places] = [0, 1].map(|place| call.tensor(place).detach());
    refuse_if!(
        gradient.rank() < 2 || places.dtype() != DType::U8 || places.shape() != gradient.shape(),
        "the places must be uint8 {:?} as the gradient is, not {} {:?}",
        gradient.shape(),
        places.dtype(),
        places.shape()
    );
    let size = per_axis("size", &call.ints(7), 2, 1)?;
    let shape: Shape = gradient.shape()[..gradient.rank() - 2].iter().chain(&size[1..]).copied().collect();
    let pool = Pool::of_backward(call, OF_IMAGES, &shape, gradient.shape())?;
    let result = pool.geometry.greatest_backward([&gradient, &places], pool.planes, &shape, call.label)?;
    in_format(&result, format_of(&places)).map(single)
}

fn extrema_gradient<const AXES: usize, const IS_ADAPTIVE: bool>(
    call: &GradientCall<'_>,
) -> Result<Gradients> {
    call.one(0, || {
        let (gradient, like, places) = (call.gradient()?, shape_of(call, 0)?, call.result(1)?);
        let mut arguments = vec![Argument::Tensor(&gradient), Argument::Tensor(&like)];
        let operator = match (IS_ADAPTIVE, AXES) {
            (true, 2) => built_in!("adaptive_max_pool2d_backward")?,
            (true, _) => built_in!("adaptive_max_pool3d_backward")?,
            (false, 2) => built_in!("max_pool2d_with_indices_backward")?,
            (false, _) => built_in!("max_pool3d_with_indices_backward")?,
        };
        if !IS_ADAPTIVE {
            arguments.extend(arguments_of(call, 1..6));
        }
        arguments.push(Argument::Tensor(&places));
        // The input is not kept, and the places have its format.
        in_format(&operator.call(&arguments, None, call.label())?[0], format_of(&places))
    })
}

fn extrema_backward_gradient<const AXES: usize>(call: &GradientCall<'_>) -> Result<Gradients> {
    call.one(0, || {
        let (gradient, places) = (call.gradient()?, call.saved(2)?);
        let (outer, plane) = gradient.shape().split_at(gradient.rank() - AXES);
        let planes: usize = outer.iter().product();
        let rows = gradient.reshape(&[planes, plane.iter().product(), 1])?;
        let windows: SmallVec<[usize; 3]> = places.shape()[outer.len()..].into();
        let index = places.reshape(&[planes, windows.iter().product(), 1])?;
        gathered(&rows, &index)?.reshape(places.shape())
    })
}

/// Returns the first result of an operator with the arguments of a call.
fn first(call: &Call<'_>, operator: &'static Operator) -> Result<Tensors> {
    call_operator(operator, call.arguments, None, call.label.location).map(single)
}
