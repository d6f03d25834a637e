//! Normalization of channels, lowered: by statistics of the batch, or of groups of channels of each instance.
//!
//! ```text
//!  forward    statistics of parts ─▶ of rows ─▶ points              x twice, the result once
//!  backward   sums of parts ─▶ of rows ─▶ points                    x and the gradient twice, its own once
//!                   └────────▶ weight and bias
//! ```
//!
//! Channels of few points are rows of one launch for all
//! three gradients, which reads the points a second time from a cache.
//!
//! Rows of statistics that are few and long are divided into parts, whose number depends only on the shape and the order of
//! dimensions: the same call sums in the same order on every device.

use smallvec::SmallVec;
use thalweg_ir::{DType, Layout, Scalar, Shape};

use super::{LoopArguments, LoopLaunch, LowerError, Operand, Place, Points, Result, Step, Steps};
use crate::definition::{DTypeRule, LoopOp};
use crate::structured::{
    CHANNEL_NORM_APPLY, CHANNEL_NORM_BACKWARD, CHANNEL_NORM_BACKWARD_OF_BATCH, CHANNEL_NORM_COMBINE,
    CHANNEL_NORM_FOLD, CHANNEL_NORM_FOLD_WEIGHTED, CHANNEL_NORM_GRADIENTS, CHANNEL_NORM_PARTS,
    CHANNEL_NORM_STATISTICS, CHANNEL_NORM_SUMS,
};

/// The number of rows that keeps a GPU busy.
const MANY_ROWS: usize = 1024;

/// The minimum number of points of a part.
const PART: usize = 1024;

/// The minimum number of points of a part of channels that are adjacent in memory, of which one block handles [`ABREAST`]. Many small
/// parts keep a GPU busy, and their points are still in a cache when they are read for the second time.
const PART_ABREAST: usize = 128;
const ABREAST: usize = 128;

/// The number of points below which planes are not separate rows, for statistics of the batch: the threads of a row would be
/// mostly idle.
const SMALL_PLANE: usize = 24;

/// The most points of a channel whose gradients one block computes. If there are many channels whose points are adjacent, so that
/// threads keep them in registers, a block computes longer channels, too.
const SHORT_CHANNEL: usize = 1 << 12;
const LONG_ROW: usize = 1 << 15;
const MANY_CHANNELS: usize = 256;

/// The extents of an input, seen as (batch, groups, channels of a group, plane). For statistics of the batch each group is one
/// channel.
#[derive(Clone, Copy, Debug)]
pub struct ChannelNorm {
    batch: usize,
    groups: usize,
    channels: usize,
    plane: usize,
    of_batch: bool,
}

/// The operands of the gradients of a normalization.
#[derive(Clone, Copy, Debug)]
pub struct ChannelNormGradient<'a> {
    /// The input, seen in [`ChannelNorm::shape`].
    pub x: Operand<'a>,
    /// The gradient of the result, seen in the same shape.
    pub gradient: Operand<'a>,
    /// The weight, one number per channel.
    pub weight: Operand<'a>,
    /// The dtypes of the mean and the inverse deviation, which are contiguous.
    pub statistics: [DType; 2],
    /// The layout of the input's gradient in the same shape, if it is wanted.
    pub of_input: Option<&'a Layout>,
    /// The dtype of the gradients of weight and bias, if they are wanted.
    pub of_parameters: Option<DType>,
}

impl ChannelNorm {
    /// Returns the extents of an input of shape (batch, channels, …) with this number of groups per instance; 0 means statistics of
    /// the batch. `None` if the shape has fewer dimensions or its channels cannot be divided.
    pub fn new(shape: &[usize], groups: usize) -> Option<Self> {
        let (&[batch, all], places) = shape.split_first_chunk::<2>()?;
        let of_batch = groups == 0;
        let groups = if of_batch { all } else { groups };
        let channels = if of_batch { 1 } else { all / groups };
        let plane = places.iter().product();
        let fits = of_batch || all.is_multiple_of(groups);
        fits.then_some(Self { batch, groups, channels, plane, of_batch })
    }

    /// Returns (batch, groups, channels of a group, plane).
    pub fn shape(&self) -> [usize; 4] {
        [self.batch, self.groups, self.channels, self.plane]
    }

    /// Returns the shape of the statistics, so that they are broadcast over [`shape`](Self::shape).
    pub fn of_statistics(&self) -> [usize; 4] {
        [if self.of_batch { 1 } else { self.batch }, self.groups, 1, 1]
    }

    /// Returns the shape of weight and bias, so that they are broadcast.
    pub fn of_parameters(&self) -> [usize; 4] {
        [1, self.groups, self.channels, 1]
    }

    /// Returns the dimensions of [`shape`](Self::shape) that are normalized together.
    pub fn dims(&self) -> &'static [usize] {
        if self.of_batch { &[0, 2, 3] } else { &[2, 3] }
    }

    /// Returns the dimensions of the parts' results that are combined.
    fn combined(&self) -> &'static [usize] {
        if self.of_batch { &[0, 1, 3] } else { &[1, 3] }
    }

    /// Returns the number of points that share statistics.
    pub fn count(&self) -> f64 {
        (self.shape().iter().product::<usize>() as f64)
            / self.of_statistics().iter().product::<usize>() as f64
    }

    /// Lowers the normalization of an input, seen in [`shape`](Self::shape), with weight and bias, which have one number per
    /// channel. The outputs are the result, whose layout in the same shape is given, and contiguous mean, inverse deviation and
    /// variance in the dtype of the computation; then, in the dtype `kept`, mean and inverse deviation again.
    ///
    /// # Errors
    /// Returns an error if the operands do not have these shapes.
    pub fn forward(
        &self,
        [x, weight, bias]: [Operand<'_>; 3],
        result: &Layout,
        epsilon: f64,
        kept: Option<DType>,
    ) -> Result<Steps> {
        let mut launches = Launches::new(self, x.dtype);
        let given = Value::of(Place::Input(0), x);
        let of_statistics = Layout::contiguous(&self.of_statistics());
        let statistic =
            |output, dtype| Value { place: Place::Output(output), dtype, layout: of_statistics.clone() };
        let statistics = [1, 2, 3].map(|output| statistic(output, launches.compute));
        launches.statistics(&given, epsilon, &statistics)?;
        let spread = [self.over_points(&statistics[0])?, self.over_points(&statistics[1])?];
        let [weight, bias] = [Value::of(Place::Input(1), weight), Value::of(Place::Input(2), bias)];
        let inputs = [&given, &spread[0], &spread[1], &self.parameter(&weight)?, &self.parameter(&bias)?];
        launches.points(&CHANNEL_NORM_APPLY, &inputs, &[], result, x.dtype)?;
        if let Some(kept) = kept {
            // Sums of one summand each.
            let outputs = [statistic(4, kept), statistic(5, kept)];
            launches.reduce(
                &CHANNEL_NORM_FOLD,
                &[&statistics[0], &statistics[1]],
                (&[], &[2, 3]),
                &outputs,
            )?;
        }
        Ok(launches.steps)
    }

    /// Lowers the gradients. The inputs are input, gradient, weight, mean and inverse deviation; the outputs are the gradients of
    /// the input and of weight and bias, as far as they are wanted.
    ///
    /// # Errors
    /// Returns an error if the operands do not have these shapes.
    pub fn backward(&self, call: &ChannelNormGradient<'_>) -> Result<Steps> {
        let mut launches = Launches::new(self, call.x.dtype);
        let x = Value::of(Place::Input(0), call.x);
        let gradient = Value::of(Place::Input(1), call.gradient);
        let weight = Value::of(Place::Input(2), call.weight);
        let [mean, inverse] = [0, 1].map(|at| Value {
            place: Place::Input(3 + at),
            dtype: call.statistics[at],
            layout: Layout::contiguous(&self.of_statistics()),
        });
        if let (true, Some(layout), Some(dtype)) =
            (self.has_short_channels(&x.layout), call.of_input, call.of_parameters)
        {
            launches.gradients([&x, &mean, &inverse, &gradient, &weight], (layout, dtype))?;
            return Ok(launches.steps);
        }
        if call.of_input.is_none() && call.of_parameters.is_none() {
            return Ok(launches.steps);
        }
        let parts = Parts::of(self, &x.layout);
        let of_parts = |value: &Value| -> Result<Value> { Ok(value.with(parts.layout(&value.layout)?)) };
        let spread = parts.spread(self)?;
        let results = parts.results();
        let [along, sum] = launches.temporaries(&results);
        let [mean_of, inverse_of] = [mean.with(spread.clone()), inverse.with(spread)];
        let inputs = [&of_parts(&x)?, &mean_of, &inverse_of, &of_parts(&gradient)?];
        launches.reduce(&CHANNEL_NORM_SUMS, &inputs, (&[], &parts.inner), &[along.clone(), sum.clone()])?;
        let first = usize::from(call.of_input.is_some());
        let mut of_channels = None;
        if let Some(dtype) = call.of_parameters {
            let layout = Layout::contiguous(&[self.groups * self.channels]);
            let outputs =
                [0, 1].map(|at| Value { place: Place::Output(first + at), dtype, layout: layout.clone() });
            launches.reduce(&CHANNEL_NORM_FOLD, &[&along, &sum], (&[], &[0, 1]), &outputs)?;
            of_channels = Some(outputs).filter(|_| dtype == launches.compute);
        }
        if let Some(layout) = call.of_input {
            let (operator, totals) = match of_channels.filter(|_| self.of_batch) {
                Some(sums) => {
                    let layout = Layout::contiguous(&self.of_statistics());
                    (&CHANNEL_NORM_BACKWARD_OF_BATCH, sums.map(|sum| sum.with(layout.clone())))
                }
                None => (&CHANNEL_NORM_BACKWARD, self.weighted(&mut launches, &weight, [&along, &sum])?),
            };
            let [mean, inverse] = [self.over_points(&mean)?, self.over_points(&inverse)?];
            let [along, sum] = [self.over_points(&totals[0])?, self.over_points(&totals[1])?];
            let inputs = [&x, &mean, &inverse, &gradient, &self.parameter(&weight)?, &along, &sum];
            let share = [1.0 / self.count()];
            launches.points(operator, &inputs, &share, layout, x.dtype)?;
        }
        Ok(launches.steps)
    }

    /// Adds the launch that sums parts of rows, times the weight of their channels.
    fn weighted(
        &self,
        launches: &mut Launches<'_>,
        weight: &Value,
        [along, sum]: [&Value; 2],
    ) -> Result<[Value; 2]> {
        let layout = reshaped(&weight.layout, &[1, 1, self.groups, self.channels])?;
        let spread = weight.with(layout.expand(along.layout.shape())?);
        let totals = launches.temporaries::<2>(&self.of_statistics());
        launches.reduce(
            &CHANNEL_NORM_FOLD_WEIGHTED,
            &[along, sum, &spread],
            (&[], self.combined()),
            &totals,
        )?;
        Ok(totals)
    }

    /// Returns whether a block computes the gradients of a channel in one launch.
    fn has_short_channels(&self, layout: &Layout) -> bool {
        let points = self.batch * self.plane;
        let are_abreast = self.groups > 1 && self.plane > 1 && layout.strides()[1] == 1;
        let are_rows = self.batch == 1 && self.groups >= MANY_CHANNELS && points <= LONG_ROW;
        self.of_batch && self.plane > 1 && !are_abreast && (points <= SHORT_CHANNEL || are_rows)
    }

    /// Returns a statistic as a view over the points.
    fn over_points(&self, statistic: &Value) -> Result<Value> {
        Ok(statistic.with(statistic.layout.expand(&self.shape())?))
    }

    /// Returns weight or bias as a view over the points.
    fn parameter(&self, parameter: &Value) -> Result<Value> {
        Ok(parameter.with(reshaped(&parameter.layout, &self.of_parameters())?.expand(&self.shape())?))
    }
}

/// Returns a layout in another shape of as many elements.
fn reshaped(layout: &Layout, shape: &[usize]) -> Result<Layout> {
    layout.reshape(shape)?.ok_or_else(|| {
        LowerError::Operands(format!("a tensor of shape {:?} cannot be seen as {shape:?}", layout.shape()))
    })
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
    /// Divides the rows of channels: those of each instance, or, for small planes, those of the batch.
    fn of(norm: &ChannelNorm, layout: &Layout) -> Self {
        let [batch, groups, channels, plane] = norm.shape();
        let is_abreast = plane > 1 && groups >= ABREAST / 2 && channels == 1 && layout.strides()[1] == 1;
        if norm.of_batch && plane < SMALL_PLANE {
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
    fn of_groups(norm: &ChannelNorm) -> Self {
        let norm = ChannelNorm { channels: 1, plane: norm.channels * norm.plane, ..*norm };
        Self::of(&norm, &Layout::contiguous(&norm.shape()))
    }

    /// Returns the layout of a tensor divided into these parts, from its layout (batch, groups, channels, plane).
    fn layout(&self, layout: &Layout) -> Result<Layout> {
        let (strides, shape) = (layout.strides(), self.shape);
        let [batch, groups, channels, plane] = [0, 1, 2, 3].map(|at| strides[at]);
        let first = if self.splits_batch { [shape[1] * batch, batch] } else { [batch, shape[4] * plane] };
        Ok(Layout::new(&shape, &[first[0], first[1], groups, channels, plane], 0)?)
    }

    /// Returns the layout of a contiguous statistic broadcast over these parts.
    fn spread(&self, norm: &ChannelNorm) -> Result<Layout> {
        let of_instance = if norm.of_batch { 0 } else { norm.groups };
        Ok(Layout::new(&self.shape, &[of_instance, 0, 1, 0, 0], 0)?)
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
    fn is_whole(&self, norm: &ChannelNorm) -> bool {
        let [first, second, _, channels] = self.results();
        self.parts == 1 && channels == 1 && second == 1 && (first == 1 || !norm.of_batch)
    }
}

/// An operand of a launch, without its address.
#[derive(Clone)]
struct Value {
    place: Place,
    dtype: DType,
    layout: Layout,
}

impl Value {
    fn of(place: Place, operand: Operand<'_>) -> Self {
        Self { place, dtype: operand.dtype, layout: operand.layout.clone() }
    }

    fn operand(&self) -> Operand<'_> {
        Operand { dtype: self.dtype, layout: &self.layout }
    }

    /// Returns the same memory in another layout.
    fn with(&self, layout: Layout) -> Self {
        Self { layout, ..*self }
    }
}

/// The launches of a normalization so far.
struct Launches<'a> {
    norm: &'a ChannelNorm,
    compute: DType,
    steps: Steps,
}

impl<'a> Launches<'a> {
    fn new(norm: &'a ChannelNorm, dtype: DType) -> Self {
        Self { norm, compute: dtype.compute(), steps: Steps::default() }
    }

    /// Returns contiguous temporaries in the dtype of the computation.
    fn temporaries<const N: usize>(&mut self, shape: &[usize]) -> [Value; N] {
        let (dtype, layout) = (self.compute, Layout::contiguous(shape));
        std::array::from_fn(|_| {
            self.steps.temporaries.push((dtype, layout.elements() as u64));
            let place = Place::Temporary(self.steps.temporaries.len() - 1);
            Value { place, dtype, layout: layout.clone() }
        })
    }

    /// Adds a launch of an operator.
    fn add(
        &mut self,
        operator: &'static LoopOp,
        inputs: &[&Value],
        outputs: &[Value],
        arguments: &LoopArguments,
    ) -> Result<()> {
        let read: SmallVec<[Operand<'_>; 8]> = inputs.iter().map(|value| value.operand()).collect();
        let written: SmallVec<[Operand<'_>; 4]> = outputs.iter().map(Value::operand).collect();
        self.steps.list.push(Step {
            launch: LoopLaunch::into_outputs(operator, &read, &written, arguments)?,
            takes_numbers: false,
            inputs: inputs.iter().map(|value| (value.place, 0)).collect(),
            outputs: outputs.iter().map(|value| (value.place, 0)).collect(),
        });
        Ok(())
    }

    /// Adds a launch that reduces `inner` dimensions of its inputs. Its outputs are contiguous.
    fn reduce(
        &mut self,
        operator: &'static LoopOp,
        inputs: &[&Value],
        (numbers, inner): (&[f64], &[usize]),
        outputs: &[Value],
    ) -> Result<()> {
        let arguments = LoopArguments {
            scalars: numbers.iter().copied().map(Scalar::F64).collect(),
            points: Points::Reduced(inner.into()),
            dtype: (operator.rule == DTypeRule::FloatingPointAs).then_some(outputs[0].dtype),
        };
        let shape = inputs[0].layout.shape();
        let rows: Shape = (0..shape.len()).filter(|at| !inner.contains(at)).map(|at| shape[at]).collect();
        let rows = Layout::contiguous(&rows);
        let outputs: SmallVec<[Value; 4]> = outputs.iter().map(|value| value.with(rows.clone())).collect();
        self.add(operator, inputs, &outputs, &arguments)
    }

    /// Adds a launch that writes the first output at each point.
    fn points(
        &mut self,
        operator: &'static LoopOp,
        inputs: &[&Value],
        numbers: &[f64],
        layout: &Layout,
        dtype: DType,
    ) -> Result<()> {
        let arguments = LoopArguments {
            scalars: numbers.iter().copied().map(Scalar::F64).collect(),
            ..LoopArguments::default()
        };
        let output = Value { place: Place::Output(0), dtype, layout: layout.clone() };
        self.add(operator, inputs, &[output], &arguments)
    }

    /// Adds the launch that writes all gradients, with a row for each channel, from input, mean, inverse deviation, the result's gradient and
    /// weight.
    fn gradients(
        &mut self,
        [x, mean, inverse, gradient, weight]: [&Value; 5],
        (layout, dtype): (&Layout, DType),
    ) -> Result<()> {
        let norm = self.norm;
        let [mean, inverse] = [norm.over_points(mean)?, norm.over_points(inverse)?];
        let inputs = [x, &mean, &inverse, gradient, &norm.parameter(weight)?];
        let of_channels = Layout::contiguous(&[norm.groups]);
        let output = |at, dtype, layout| Value { place: Place::Output(at), dtype, layout };
        let outputs = [
            output(0, x.dtype, layout.clone()),
            output(1, dtype, of_channels.clone()),
            output(2, dtype, of_channels),
        ];
        let arguments = LoopArguments {
            scalars: [Scalar::F64(1.0 / norm.count())].into_iter().collect(),
            points: Points::Reduced(norm.dims().into()),
            dtype: Some(dtype),
        };
        self.add(&CHANNEL_NORM_GRADIENTS, &inputs, &outputs, &arguments)
    }

    /// Adds the launches that write mean, inverse deviation and variance.
    fn statistics(&mut self, x: &Value, epsilon: f64, outputs: &[Value; 3]) -> Result<()> {
        let norm = self.norm;
        let as_row = [norm.batch, norm.groups, 1, norm.channels * norm.plane];
        let (layout, parts) = match x.layout.reshape(&as_row)? {
            Some(rows) if !norm.of_batch => (rows, Parts::of_groups(norm)),
            _ => (x.layout.clone(), Parts::of(norm, &x.layout)),
        };
        let view = x.with(parts.layout(&layout)?);
        let points = parts.points();
        if parts.is_whole(norm) {
            let numbers = [points, epsilon];
            return self.reduce(&CHANNEL_NORM_STATISTICS, &[&view], (&numbers, &parts.inner), outputs);
        }
        let results = parts.results();
        let partial = self.temporaries::<2>(&results);
        self.reduce(&CHANNEL_NORM_PARTS, &[&view], (&[points], &parts.inner), &partial)?;
        let combined: usize = norm.combined().iter().map(|&at| results[at]).product();
        let numbers = [combined as f64, points, epsilon];
        let [means, squares] = &partial;
        self.reduce(&CHANNEL_NORM_COMBINE, &[means, squares], (&numbers, norm.combined()), outputs)
    }
}
