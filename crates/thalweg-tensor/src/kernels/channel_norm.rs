//! Normalization of channels: by statistics of the batch, or of groups of channels of each instance.
//!
//! Forward is one pass for the statistics and one over the points; backward is one pass for two sums per channel and one over the
//! points. If rows of statistics are few and long, they are divided into parts, whose number depends only on the shape and the
//! order of dimensions, and combined by a small launch: the same call sums in the same order on every device. The input is read in its own layout,
//! including channels last, and the result has the input's layout.

use smallvec::SmallVec;
use thalweg_ir::{DType, Layout, Scalar, Shape};
use thalweg_ops::LoopOp;
use thalweg_ops::structured::{
    CHANNEL_NORM_APPLY, CHANNEL_NORM_BACKWARD, CHANNEL_NORM_COMBINE, CHANNEL_NORM_FOLD,
    CHANNEL_NORM_FOLD_WEIGHTED, CHANNEL_NORM_PARTS, CHANNEL_NORM_SCALE, CHANNEL_NORM_STATISTICS,
    CHANNEL_NORM_SUMS,
};
use thalweg_runtime::{Error, Label, Result};

use super::normalized::Normalized;
use crate::autograd::formula::{Formula, GradientCall};
use crate::autograd::{Gradients, is_grad_enabled};
use crate::dispatch::{Arguments, Call, Ints};
use crate::loops::{LoopArguments, Points, run_into};
use crate::tensor::{Tensor, Tensors};

/// The number of rows that keeps a GPU busy.
const MANY_ROWS: usize = 1024;

/// The minimum number of points of a part.
const PART: usize = 1024;

/// The minimum number of points of a part for channels that are adjacent in memory, of which one block handles [`ABREAST`]: many small parts keep a GPU busy, and
/// their points are still in a cache when they are read for the second time.
const PART_ABREAST: usize = 128;
const ABREAST: usize = 128;

/// The number of points below which planes are not separate rows, for statistics of the batch: the threads of a row would be mostly
/// idle.
const SMALL_PLANE: usize = 24;

/// The extents of an input, seen as (batch, groups, channels of a group, plane). For statistics of the batch each group is one
/// channel.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    groups: usize,
    channels: usize,
    plane: usize,
    of_batch: bool,
}

impl Sizes {
    /// Returns the sizes of an input with this number of groups per instance; 0 means statistics of the batch.
    fn new(shape: &[usize], groups: i64) -> Result<Self> {
        let refused = || {
            Error::invalid(format!(
                "an input of shape {shape:?} must be (batch, channels, …), and its channels divisible by {groups} groups"
            ))
        };
        let (&[batch, all], places) = shape.split_first_chunk::<2>().ok_or_else(refused)?;
        let of_batch = groups == 0;
        let groups = if of_batch { all } else { usize::try_from(groups).map_err(|_| refused())? };
        let fits = of_batch || (groups > 0 && all.is_multiple_of(groups));
        let channels = if of_batch { 1 } else { all.checked_div(groups).unwrap_or(0) };
        let plane = places.iter().product();
        fits.then_some(Self { batch, groups, channels, plane, of_batch }).ok_or_else(refused)
    }

    fn shape(&self) -> [usize; 4] {
        [self.batch, self.groups, self.channels, self.plane]
    }

    /// Returns the shape of the statistics, so that they are broadcast over [`shape`](Self::shape).
    fn of_statistics(&self) -> [usize; 4] {
        [if self.of_batch { 1 } else { self.batch }, self.groups, 1, 1]
    }

    /// Returns the shape of weight and bias, so that they are broadcast.
    fn of_parameters(&self) -> [usize; 4] {
        [1, self.groups, self.channels, 1]
    }

    /// Returns the dimensions of [`shape`](Self::shape) that are normalized together.
    fn dims(&self) -> Ints {
        Ints::from_slice(if self.of_batch { &[0, 2, 3] } else { &[2, 3] })
    }

    /// Returns the number of points that share statistics.
    fn count(&self) -> f64 {
        (self.shape().iter().product::<usize>() as f64)
            / self.of_statistics().iter().product::<usize>() as f64
    }
}

/// Returns the number of parts into which rows of this many points are divided: a divisor, so that all parts have equal size.
fn parts_of(rows: usize, points: usize, is_abreast: bool) -> usize {
    let (rows, least) = if is_abreast { (rows / ABREAST, PART_ABREAST) } else { (rows, PART) };
    let most = points / least;
    let wanted = MANY_ROWS.div_ceil(rows.max(1)).min(most);
    if wanted <= 1 {
        return 1;
    }
    (wanted..=most).find(|&parts| points.is_multiple_of(parts)).unwrap_or(1)
}

/// Returns an input outside the graph, copied if it cannot be viewed in the shape of [`Sizes`], and the layout of that view.
fn dense_layout(x: &Tensor, sizes: &Sizes) -> Result<(Tensor, Layout)> {
    let x = x.detach();
    if let Some(layout) = x.layout().reshape(&sizes.shape())? {
        return Ok((x, layout));
    }
    let x = x.contiguous()?.detach();
    let layout = Layout::contiguous(&sizes.shape());
    Ok((x, layout))
}

/// A layout (batch, parts, groups, channels, points) or (parts, batch, groups, channels, points), with the dimensions that belong
/// to a part.
struct Parts {
    shape: [usize; 5],
    inner: Shape,
    /// Whether the batch is divided: the results of the rows are then (parts, …) instead of (batch, …).
    splits_batch: bool,
    parts: usize,
}

impl Parts {
    /// Divides the rows of channels: those of each instance, or, for small planes, those of the batch. The layout is that of
    /// [`dense_layout`].
    fn of(sizes: &Sizes, layout: &Layout) -> Self {
        let [batch, groups, channels, plane] = sizes.shape();
        let is_abreast = plane > 1 && groups >= ABREAST / 2 && channels == 1 && layout.strides()[1] == 1;
        if sizes.of_batch && plane < SMALL_PLANE {
            let parts = parts_of(groups, batch * plane, is_abreast).min(batch.max(1));
            let parts = (1..=parts).rev().find(|&parts| batch.is_multiple_of(parts)).unwrap_or(1);
            let shape = [parts, batch / parts, groups, channels, plane];
            return Self { shape, inner: [1, 4].into_iter().collect(), splits_batch: true, parts };
        }
        let parts = parts_of(batch * groups * channels, plane, is_abreast);
        let shape = [batch, parts, groups, channels, plane / parts];
        Self { shape, inner: [4].into_iter().collect(), splits_batch: false, parts }
    }

    /// Divides groups of an instance, whose points are traversed as one dimension.
    fn of_groups(sizes: &Sizes) -> Self {
        let sizes = Sizes { channels: 1, plane: sizes.channels * sizes.plane, ..*sizes };
        Self::of(&sizes, &Layout::contiguous(&sizes.shape()))
    }

    /// Returns the layout of a tensor divided into these parts, from its layout (batch, groups, channels, plane).
    fn layout(&self, layout: &Layout) -> Result<Layout> {
        let (strides, shape) = (layout.strides(), self.shape);
        let [batch, groups, channels, plane] = [0, 1, 2, 3].map(|at| strides[at]);
        let first = if self.splits_batch { [shape[1] * batch, batch] } else { [batch, shape[4] * plane] };
        Ok(Layout::new(&shape, &[first[0], first[1], groups, channels, plane], layout.offset())?)
    }

    /// Returns a statistic broadcast over these parts.
    fn spread(&self, statistic: &Tensor, sizes: &Sizes) -> Result<Tensor> {
        let of_instance = if sizes.of_batch { 0 } else { sizes.groups };
        let layout = Layout::new(&self.shape, &[of_instance, 0, 1, 0, 0], statistic.layout().offset())?;
        Ok(statistic.with_layout(layout))
    }

    /// Returns the number of points of a part.
    fn points(&self) -> f64 {
        self.inner.iter().map(|&dimension| self.shape[dimension]).product::<usize>() as f64
    }

    /// Returns the shape of the results of the parts, (batch or parts, parts or 1, groups, channels).
    fn results(&self) -> [usize; 4] {
        let [first, second, groups, channels, _] = self.shape;
        [first, if self.splits_batch { 1 } else { second }, groups, channels]
    }

    /// Returns whether each row of the statistics is a single part.
    fn is_whole(&self, sizes: &Sizes) -> bool {
        let [first, second, _, channels] = self.results();
        self.parts == 1 && channels == 1 && second == 1 && (first == 1 || !sizes.of_batch)
    }
}

/// A call of the kernels, with its caller.
struct Kernels<'a> {
    sizes: &'a Sizes,
    compute: DType,
    label: Label,
    like: &'a Tensor,
}

impl Kernels<'_> {
    fn empty(&self, shape: &[usize], dtype: DType) -> Result<Tensor> {
        Tensor::result_on(shape, dtype, &self.like.device().current_stream(), self.label)
    }

    /// Runs an operator that reduces `inner` dimensions; its results have a shape and a dtype.
    fn reduce<const N: usize>(
        &self,
        operator: &'static LoopOp,
        tensors: &[&Tensor],
        (numbers, inner): (&[f64], &[usize]),
        (shape, dtype): (&[usize], DType),
    ) -> Result<[Tensor; N]> {
        let asked = (operator.rule == thalweg_ops::DTypeRule::FloatingPointAs).then_some(dtype);
        let arguments = LoopArguments {
            scalars: numbers.iter().copied().map(Scalar::F64).collect(),
            points: Points::Reduced(inner.into()),
            dtype: asked,
        };
        let rank = tensors[0].rank();
        let rows: Shape =
            (0..rank).filter(|at| !inner.contains(at)).map(|at| tensors[0].shape()[at]).collect();
        let results = (0..N).map(|_| self.empty(&rows, dtype)).collect::<Result<Tensors>>()?;
        run_into(operator, tensors, &arguments, &results, self.label)?;
        let layout = Layout::contiguous(shape);
        let results = results.iter().map(|result| result.with_layout(layout.clone()));
        Ok(results.collect::<SmallVec<[Tensor; 4]>>().to_vec().try_into().expect("so many results"))
    }

    /// Returns mean, inverse deviation and variance, from a view (batch, groups, channels, plane).
    fn statistics(&self, x: &Tensor, layout: &Layout, epsilon: f64) -> Result<[Tensor; 3]> {
        let sizes = self.sizes;
        let as_row = [sizes.batch, sizes.groups, 1, sizes.channels * sizes.plane];
        let (layout, parts) = match layout.reshape(&as_row)? {
            Some(rows) if !sizes.of_batch => (rows, Parts::of_groups(sizes)),
            _ => (layout.clone(), Parts::of(sizes, layout)),
        };
        let view = x.with_layout(parts.layout(&layout)?);
        let shape: Shape = match sizes.of_batch {
            true => [sizes.groups].into_iter().collect(),
            false => [sizes.batch, sizes.groups].into_iter().collect(),
        };
        let points = parts.points();
        if parts.is_whole(sizes) {
            let numbers = [points, epsilon];
            let to = (shape.as_slice(), self.compute);
            return self.reduce(&CHANNEL_NORM_STATISTICS, &[&view], (&numbers, &parts.inner), to);
        }
        let results = parts.results();
        let to = (results.as_slice(), self.compute);
        let [means, squares] = self.reduce(&CHANNEL_NORM_PARTS, &[&view], (&[points], &parts.inner), to)?;
        let inner: &[usize] = if sizes.of_batch { &[0, 1, 3] } else { &[1, 3] };
        let combined: usize = inner.iter().map(|&at| results[at]).product();
        let numbers = [combined as f64, points, epsilon];
        self.reduce(&CHANNEL_NORM_COMBINE, &[&means, &squares], (&numbers, inner), (&shape, self.compute))
    }

    /// Returns a statistic as a view over the points.
    fn statistic(&self, tensor: &Tensor) -> Result<Tensor> {
        tensor.detach().reshape(&self.sizes.of_statistics())?.expand(&self.sizes.shape())
    }

    /// Returns weight or bias as a view over the points.
    fn parameter(&self, tensor: &Tensor) -> Result<Tensor> {
        tensor.detach().reshape(&self.sizes.of_parameters())?.expand(&self.sizes.shape())
    }

    /// Runs an operator at each point; the result has the layout of `like`, whose view over the points is passed.
    fn points(
        &self,
        operator: &'static LoopOp,
        tensors: &[&Tensor],
        numbers: &[f64],
        layout: &Layout,
    ) -> Result<Tensor> {
        let (like, result) = (self.like, self.empty(self.like.shape(), self.like.dtype())?);
        let (lies, seen) = match like.is_dense() {
            true => (
                Layout::new(like.shape(), like.layout().strides(), 0)?,
                Layout::new(layout.shape(), layout.strides(), 0)?,
            ),
            false => (Layout::contiguous(like.shape()), Layout::contiguous(layout.shape())),
        };
        let arguments = LoopArguments {
            scalars: numbers.iter().copied().map(Scalar::F64).collect(),
            ..LoopArguments::default()
        };
        run_into(operator, tensors, &arguments, &[result.with_layout(seen)], self.label)?;
        Ok(result.with_layout(lies))
    }
}

/// Returns the normalized input times weight plus bias, and mean, inverse deviation and variance.
pub(crate) fn forward(call: &Call<'_>) -> Result<Tensors> {
    let [x, weight, bias] = [0, 1, 2].map(|at| call.tensor(at));
    let sizes = Sizes::new(x.shape(), call.int(3))?;
    let channels = x.shape()[1];
    if !x.dtype().is_floating_point() || [weight, bias].iter().any(|list| list.shape() != [channels]) {
        return Err(Error::invalid(format!(
            "an input of shape {:?} {} must be of floats, with a weight and a bias for each channel, not {:?} and {:?}",
            x.shape(),
            x.dtype(),
            weight.shape(),
            bias.shape()
        )));
    }
    let (x, layout) = dense_layout(x, &sizes)?;
    let kernels = Kernels { sizes: &sizes, compute: x.dtype().compute(), label: call.label, like: &x };
    let [mean, inverse, variance] = kernels.statistics(&x, &layout, call.float(4))?;
    let view = x.with_layout(layout.clone());
    let spread = [kernels.statistic(&mean)?, kernels.statistic(&inverse)?];
    let parameters = [kernels.parameter(weight)?, kernels.parameter(bias)?];
    let tensors = [&view, &spread[0], &spread[1], &parameters[0], &parameters[1]];
    let result = kernels.points(&CHANNEL_NORM_APPLY, &tensors, &[], &layout)?;
    Ok(Tensors::from_iter([result, mean, inverse, variance]))
}

/// The gradients of input, weight and bias.
pub(crate) static GRADIENT: Formula = Formula {
    inputs: &[0, 1],
    outputs: &[1, 2],
    backward: |call| {
        let is_plain = call.has_gradient(0) && !(1..4).any(|at| call.has_gradient(at)) && !is_grad_enabled();
        if is_plain { by_kernels(call) } else { by_operators(call) }
    },
};

fn by_kernels(call: &GradientCall<'_>) -> Result<Gradients> {
    let asked = Asked {
        groups: call.int(3),
        x: &call.saved(0)?,
        gradient: &call.gradient()?,
        weight: &call.saved(1)?,
        statistics: [&call.result(1)?, &call.result(2)?],
        are_fixed: false,
        wants: [0, 1, 2].map(|at| call.wants(at)),
        dtypes: [1, 2].map(|at| call.dtype_of(at)),
        label: call.label(),
    };
    asked.gradients()
}

/// The gradients of a normalization that are asked for, and what they are computed from.
pub(crate) struct Asked<'a> {
    /// The groups of channels of each instance; 0 are statistics of the batch.
    pub groups: i64,
    /// The input.
    pub x: &'a Tensor,
    /// The gradient of the result.
    pub gradient: &'a Tensor,
    /// The weight, one number per channel.
    pub weight: &'a Tensor,
    /// The mean and the inverse deviation.
    pub statistics: [&'a Tensor; 2],
    /// Whether the statistics do not depend on the input, as in evaluation.
    pub are_fixed: bool,
    /// Whether the gradients of input, weight and bias are wanted.
    pub wants: [bool; 3],
    /// The dtypes of weight and bias.
    pub dtypes: [DType; 2],
    /// The call.
    pub label: Label,
}

impl Asked<'_> {
    /// Returns the gradients, by kernels.
    pub(crate) fn gradients(&self) -> Result<Gradients> {
        let sizes = Sizes::new(self.x.shape(), self.groups)?;
        let (x, layout) = dense_layout(self.x, &sizes)?;
        let (gradient, lies) = dense_layout(self.gradient, &sizes)?;
        let [mean, inverse] = self.statistics;
        let compute = x.dtype().compute();
        let kernels = Kernels { sizes: &sizes, compute, label: self.label, like: &x };
        let mut gradients = Gradients::from_elem(None, 3);
        if self.wants[0] && self.are_fixed {
            let view = gradient.with_layout(lies.clone());
            let (inverse, weight) = (kernels.statistic(inverse)?, kernels.parameter(self.weight)?);
            let tensors = [&view, &inverse, &weight];
            gradients[0] = Some(kernels.points(&CHANNEL_NORM_SCALE, &tensors, &[], &layout)?);
        }
        if !(self.wants[1] || self.wants[2] || self.wants[0] && !self.are_fixed) {
            return Ok(gradients);
        }
        let parts = Parts::of(&sizes, &layout);
        let views = [x.with_layout(parts.layout(&layout)?), gradient.with_layout(parts.layout(&lies)?)];
        let statistics = [parts.spread(mean, &sizes)?, parts.spread(inverse, &sizes)?];
        let shape = parts.results();
        let tensors = [&views[0], &statistics[0], &statistics[1], &views[1]];
        let [along, sum] =
            kernels.reduce(&CHANNEL_NORM_SUMS, &tensors, (&[], &parts.inner), (&shape, compute))?;
        if self.wants[1] || self.wants[2] {
            let [of_weight, of_bias] = self.dtypes;
            let dtype = if of_weight == of_bias { of_weight } else { compute };
            let to = (&[sizes.groups * sizes.channels][..], dtype);
            let [first, second] = kernels.reduce(&CHANNEL_NORM_FOLD, &[&along, &sum], (&[], &[0, 1]), to)?;
            gradients[1] = Some(first.to_dtype(of_weight)?);
            gradients[2] = Some(second.to_dtype(of_bias)?);
        }
        if self.wants[0] && !self.are_fixed {
            let weight = self.weight;
            let spread = weight.reshape(&[1, 1, sizes.groups, sizes.channels])?.expand(&shape)?;
            let inner: &[usize] = if sizes.of_batch { &[0, 1, 3] } else { &[1, 3] };
            let to = (&sizes.of_statistics()[..], compute);
            let tensors = [&along, &sum, &spread];
            let [along, sum] = kernels.reduce(&CHANNEL_NORM_FOLD_WEIGHTED, &tensors, (&[], inner), to)?;
            let rows = [mean, inverse, &along, &sum].map(|tensor| kernels.statistic(tensor));
            let [mean, inverse, along, sum] = rows;
            let views = [x.with_layout(layout.clone()), gradient.with_layout(lies)];
            let (mean, inverse, along, sum, weight) =
                (mean?, inverse?, along?, sum?, kernels.parameter(weight)?);
            let tensors = [&views[0], &mean, &inverse, &views[1], &weight, &along, &sum];
            let share = [1.0 / sizes.count()];
            gradients[0] = Some(kernels.points(&CHANNEL_NORM_BACKWARD, &tensors, &share, &layout)?);
        }
        Ok(gradients)
    }
}

/// Returns the gradients, computed by operators that record their own.
fn by_operators(call: &GradientCall<'_>) -> Result<Gradients> {
    let sizes = Sizes::new(call.shape(0), call.int(3))?;
    let (x, dims) = (call.saved(0)?, sizes.dims());
    let compute = x.dtype().compute();
    let wide = x.to_dtype(compute)?.reshape(&sizes.shape())?;
    let statistic = |at| call.result(at)?.reshape(&sizes.of_statistics());
    let normalized = Normalized::new(&wide, &statistic(1)?, &statistic(2)?, dims.clone())?;
    let gradient = call.gradient()?.to_dtype(compute)?.reshape(&sizes.shape())?;
    let channel = [sizes.groups * sizes.channels];
    call.each(|at| {
        if at > 0 {
            let product = if at == 1 { gradient.mul(&normalized.values)? } else { gradient.clone() };
            return product.sum(&[0, 3], false)?.reshape(&channel)?.to_dtype(call.dtype_of(at)).map(Some);
        }
        let weight = call.saved(1)?.to_dtype(compute)?.reshape(&sizes.of_parameters())?;
        let mut result = normalized.gradient(&gradient.mul(&weight)?)?;
        if (1..4).any(|at| call.has_gradient(at)) {
            let past = |at| call.gradient_of(at)?.to_dtype(compute)?.reshape(&sizes.of_statistics());
            let [variance, mean] = wide.var_mean(&dims, 0, true)?;
            let cube = variance.add_scalar(call.float(4))?.pow_scalar(-1.5)?;
            let slope = past(3)?.mul_scalar(2.0)?.sub(&past(2)?.mul(&cube)?)?;
            let of_statistics = past(1)?.add(&wide.sub(&mean)?.mul(&slope)?)?;
            result = result.add(&of_statistics.mul_scalar(1.0 / sizes.count())?)?;
        }
        result.reshape(call.shape(0))?.to_dtype(x.dtype()).map(Some)
    })
}
