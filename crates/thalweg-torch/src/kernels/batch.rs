//! Batch norm in training: `native_batch_norm`, which `torch.nn.functional.batch_norm` calls if PyTorch does not use cuDNN
//! (bfloat16), and its gradient.
//!
//! ```text
//!  forward    moments of parts ─▶ of channels ─▶ running statistics     x twice, the result once
//!                                     └────────▶ points
//!  backward   sums of parts ─▶ of channels ─▶ points                    x and the gradient twice, its own once
//!                                  └────────▶ parameters
//! ```

use smallvec::{SmallVec, smallvec};
use thalweg_ir::foreach::{ForeachArguments, ForeachItem, ForeachKernel, ForeachOperand};
use thalweg_ir::{BodyBuilder, DType, OutputPlace};

use super::libtorch::{Stack, Tensor};
use super::operators::{Matrix, Taken, matrix, of_words, put};
use super::original::{BatchArguments, BatchBackwardArguments, Mask};
use super::speeds::{Class, Form};
use super::stages::{Launch, Operand, Stage, run};
use super::work::Place;
use super::{Kernels, Operator};

/// The number of rows that keeps a GPU busy.
const MANY_ROWS: u64 = 1024;

/// The minimum number of points of a part.
const PART: u64 = 1024;

/// The minimum number of points of a plane that is its own row.
const SMALL_PLANE: u64 = 64;

/// The extents of a call: instances, channels, points of a channel of an instance.
#[derive(Clone, Copy)]
struct Extents {
    batch: u64,
    channels: u64,
    plane: u64,
}

/// Rows that are parts of channels: each covers some instances and some points of a plane.
struct Parts {
    /// Instances or parts of the batch, channels, parts of a plane.
    rows: [u64; 3],
    inner: [u64; 2],
}

/// Returns the number of parts of rows of `points` points: a divisor, so that all parts have the same size.
fn parts_of(rows: u64, points: u64) -> u64 {
    let most = points / PART;
    let wanted = MANY_ROWS.div_ceil(rows).min(most);
    (wanted..=most).find(|&parts| parts > 1 && points.is_multiple_of(parts)).unwrap_or(1)
}

impl Extents {
    fn of(whole: &Matrix) -> Option<Self> {
        let [batch, channels, plane @ ..] = &whole.sizes[..] else { return None };
        let plane = plane.iter().product::<i64>().unsigned_abs();
        Some(Self { batch: batch.unsigned_abs(), channels: channels.unsigned_abs(), plane })
    }

    fn elements(self) -> u64 {
        self.batch * self.channels * self.plane
    }

    fn class(self, dtype: DType) -> Class {
        let (columns, elements) = (self.plane, self.elements());
        Class { form: Form::Planes, dtype, columns, contiguous: columns, elements }
    }

    fn parts(self) -> Parts {
        let Self { batch, channels, plane } = self;
        if plane < SMALL_PLANE {
            let wanted = parts_of(channels, batch * plane).min(batch);
            let parts = (1..=wanted).rev().find(|&parts| batch.is_multiple_of(parts)).unwrap_or(1);
            return Parts { rows: [parts, channels, 1], inner: [batch / parts, plane] };
        }
        let parts = parts_of(batch * channels, plane);
        Parts { rows: [batch, channels, parts], inner: [1, plane / parts] }
    }

    /// Returns the operand of a tensor's single points.
    fn points(self, tensor: &Tensor<'_>, dtype: DType) -> Option<Operand<3>> {
        let rows = [self.channels * self.plane, self.plane, 1];
        Some(Operand { dtype, address: tensor.address()?, rows, inner: [0; 2] })
    }

    fn shape(self) -> [u64; 3] {
        [self.batch, self.channels, self.plane]
    }
}

impl Parts {
    /// Returns a tensor's points as rows that are parts.
    fn points(&self, extents: Extents, points: Operand<3>) -> Operand<3> {
        let instance = extents.channels * extents.plane;
        let rows = [self.inner[0] * instance, extents.plane, self.inner[1]];
        Operand { rows, inner: [instance, 1], ..points }
    }

    /// Returns the operand of the parts' results, one per part.
    fn results(&self, tensor: &Tensor<'_>) -> Option<Operand<3>> {
        let [_, channels, parts] = self.rows;
        let rows = [channels * parts, parts, 1];
        Some(Operand { dtype: DType::F32, address: tensor.address()?, rows, inner: [0; 2] })
    }

    /// Returns the parts' results as rows that are channels.
    fn of_channels(&self, results: Operand<3>) -> Operand<3> {
        let [_, channels, parts] = self.rows;
        Operand { rows: [parts, 0, 0], inner: [channels * parts, 1], ..results }
    }

    fn count(&self) -> u64 {
        self.rows[0] * self.rows[2]
    }

    fn size(&self) -> u64 {
        self.inner[0] * self.inner[1]
    }
}

/// Returns the operand of one value per channel, if channels are the second dimension of rows.
fn of_channels(tensor: &Tensor<'_>, dtype: DType) -> Option<Operand<3>> {
    Some(Operand { dtype, address: tensor.address()?, rows: [0, 1, 0], inner: [0; 2] })
}

/// Returns the operand of one value per channel, if channels are the first dimension of rows.
fn as_rows(operand: Operand<3>) -> Operand<3> {
    Operand { rows: [1, 0, 0], ..operand }
}

/// Returns the kernel that updates running statistics from those of a batch.
pub(super) fn update(dtype: DType) -> ForeachKernel {
    let b = BodyBuilder::new();
    let [mean, variance] = [0; 2].map(|_| b.input(dtype));
    let [batch_mean, batch_variance] = [0; 2].map(|_| b.input(DType::F32));
    let [momentum, unbiased] = [0; 2].map(|_| b.scalar(DType::F64).to(DType::F32));
    let moved = [(mean, batch_mean), (variance, batch_variance * unbiased)];
    for (running, batch) in moved {
        let value = running.to(DType::F32) * (1.0 - momentum) + batch * momentum;
        b.output(value, dtype, OutputPlace::Row);
    }
    let operands = SmallVec::from_elem(ForeachOperand::Elements, 4);
    let name = format!("batch_norm_update_{dtype}");
    ForeachKernel { name, body: b.finish(), operands, targets: smallvec![0, 1] }
}

/// Returns the common dtype of a call's parameters, which have one value per channel.
fn parameters(whole: &Matrix, extents: Extents, tensors: &[&Tensor<'_>]) -> Option<DType> {
    let dtype = tensors.first()?.dtype()?;
    let sizes = [extents.channels.cast_signed()];
    let fits = (dtype == DType::F32 || dtype == whole.dtype)
        && tensors.iter().all(|tensor| whole.is_beside(tensor, dtype, &sizes));
    fits.then_some(dtype)
}

pub(super) fn forward(kernels: &Kernels, stack: &Stack<'_>) {
    let arguments = BatchArguments {
        input: stack.tensor(0),
        parameters: [1, 2, 3, 4].map(|place| stack.optional_tensor(place)),
        training: stack.bool(5),
        momentum: f64::from_bits(stack.word(6)),
        epsilon: f64::from_bits(stack.word(7)),
    };
    let taken = kernels.attempt(Operator::BatchNorm, || normalize(kernels, &arguments));
    let results = taken.unwrap_or_else(|| {
        let original = kernels.originals.batch_norm;
        let original = original.expect("only operators are registered whose kernel was found");
        of_words(&kernels.torch, arguments.call(original))
    });
    put(stack, results);
}

fn normalize<'k>(kernels: &'k Kernels, arguments: &BatchArguments<'_>) -> Taken<'k> {
    let BatchArguments { input, parameters: [weight, bias, mean, variance], training, .. } = arguments;
    let (weight, bias) = (weight.as_ref()?, bias.as_ref()?);
    let whole = matrix(input, 0)?;
    let extents = Extents::of(&whole)?;
    let affine = parameters(&whole, extents, &[weight, bias])?;
    let running = match (mean, variance) {
        (Some(mean), Some(variance)) => Some([mean, variance]),
        (None, None) => None,
        _ => return None,
    };
    let running_dtype = match running {
        Some([mean, variance]) => parameters(&whole, extents, &[mean, variance])?,
        None => affine,
    };
    // On the host PyTorch keeps statistics in the dtype of the parameters.
    let fits = *training && (affine == DType::F32 || matches!(kernels.place, Place::Gpu(_)));
    if !fits || !kernels.takes(Operator::BatchNorm, &extents.class(whole.dtype)) {
        return None;
    }
    let (dtype, device, parts) = (whole.dtype, whole.device, extents.parts());
    let made = |count: u64| kernels.torch.empty(&[count.cast_signed()], DType::F32, device);
    let result = kernels.torch.empty(&whole.sizes, dtype, device)?;
    let [means, squares] = [made(parts.count() * extents.channels)?, made(parts.count() * extents.channels)?];
    let [batch_mean, deviation, batch_variance] =
        [made(extents.channels)?, made(extents.channels)?, made(extents.channels)?];
    let partial = [parts.results(&means)?, parts.results(&squares)?];
    let statistics =
        [&batch_mean, &deviation, &batch_variance].map(|tensor| of_channels(tensor, DType::F32).map(as_rows));
    let x = extents.points(input, dtype)?;
    let moments = Launch {
        stage: Stage::Moments,
        rows: parts.rows,
        inner: parts.inner,
        scalars: &[parts.size() as f64],
        inputs: &[parts.points(extents, x)],
        outputs: &partial,
    };
    let of_batch = Launch {
        stage: Stage::BatchStatistics,
        rows: [extents.channels, 1, 1],
        inner: [parts.rows[0], parts.rows[2]],
        scalars: &[parts.count() as f64, parts.size() as f64, arguments.epsilon],
        inputs: &partial.map(|results| parts.of_channels(results)),
        outputs: &[statistics[0]?, statistics[1]?, statistics[2]?],
    };
    let points = Launch {
        stage: Stage::BatchPoints,
        rows: extents.shape(),
        inner: [1, 1],
        scalars: &[],
        inputs: &[
            x,
            of_channels(&batch_mean, DType::F32)?,
            of_channels(&deviation, DType::F32)?,
            of_channels(weight, affine)?,
            of_channels(bias, affine)?,
        ],
        outputs: &[extents.points(&result, dtype)?],
    };
    // SAFETY: inputs were checked against the call's sizes, and all other tensors were made for these sizes.
    unsafe { run(kernels, Operator::BatchNorm, device, &[moments, of_batch, points]) }?;
    if let Some(running) = running {
        let batch = [&batch_mean, &batch_variance];
        move_running(kernels, extents, running_dtype, device, running, batch, arguments.momentum)?;
    }
    Some(smallvec![result, batch_mean, deviation])
}

/// Updates running mean and variance from a batch's, in place.
fn move_running(
    kernels: &Kernels,
    extents: Extents,
    dtype: DType,
    device: i32,
    running: [&Tensor<'_>; 2],
    batch: [&Tensor<'_>; 2],
    momentum: f64,
) -> Option<()> {
    let count = (extents.batch * extents.plane) as f64;
    let running = running.into_iter().map(Tensor::address_to_write);
    let addresses = running.chain(batch.into_iter().map(Tensor::address)).collect::<Option<_>>()?;
    let update = ForeachArguments {
        shared: SmallVec::new(),
        scalars: [momentum, count / (count - 1.0)].map(f64::to_bits).into_iter().collect(),
        items: vec![ForeachItem { elements: extents.channels, addresses }],
    };
    let kernel = kernels.updates.get(dtype, || self::update(dtype));
    // SAFETY: each tensor has one value per channel, and nothing else uses the running statistics; it is one launch.
    unsafe { kernel.run(kernels, Operator::BatchNorm, &update, device) }?.ok()
}

pub(super) fn backward(kernels: &Kernels, stack: &Stack<'_>) {
    let mut arguments = BatchBackwardArguments {
        gradient: stack.tensor(0),
        input: stack.tensor(1),
        parameters: [2, 3, 4, 5, 6].map(|place| stack.optional_tensor(place)),
        training: stack.bool(7),
        epsilon: f64::from_bits(stack.word(8)),
        mask: Mask([false; 3]),
    };
    arguments.mask = Mask(stack.mask(9));
    let taken = kernels.attempt(Operator::BatchNormBackward, || gradients(kernels, &arguments));
    let results = taken.unwrap_or_else(|| {
        let original = kernels.originals.batch_norm_backward;
        let original = original.expect("only operators are registered whose kernel was found");
        of_words(&kernels.torch, arguments.call(original))
    });
    put(stack, results);
}

/// Computes the gradients of input, weight and bias.
fn gradients<'k>(kernels: &'k Kernels, arguments: &BatchBackwardArguments<'_>) -> Taken<'k> {
    let BatchBackwardArguments { gradient, input, parameters: [weight, _, _, mean, deviation], .. } =
        arguments;
    let (weight, mean, deviation) = (weight.as_ref()?, mean.as_ref()?, deviation.as_ref()?);
    let whole = matrix(input, 0)?;
    let extents = Extents::of(&whole)?;
    let affine = parameters(&whole, extents, &[weight])?;
    let fits = arguments.training
        && arguments.mask.0 == [true; 3]
        && parameters(&whole, extents, &[mean, deviation]) == Some(DType::F32)
        && whole.is_beside(gradient, whole.dtype, &whole.sizes);
    if !fits || !kernels.takes(Operator::BatchNormBackward, &extents.class(whole.dtype)) {
        return None;
    }
    let (dtype, device, parts) = (whole.dtype, whole.device, extents.parts());
    let made = |count: u64, dtype| kernels.torch.empty(&[count.cast_signed()], dtype, device);
    let result = kernels.torch.empty(&whole.sizes, dtype, device)?;
    let all = parts.count() * extents.channels;
    let [products, sums] = [made(all, DType::F32)?, made(all, DType::F32)?];
    let [of_weight, of_bias] = [made(extents.channels, affine)?, made(extents.channels, affine)?];
    let [along, total] = [made(extents.channels, DType::F32)?, made(extents.channels, DType::F32)?];
    let partial = [parts.results(&products)?, parts.results(&sums)?];
    let channels = partial.map(|results| parts.of_channels(results));
    let mean = of_channels(mean, DType::F32)?;
    let deviation = of_channels(deviation, DType::F32)?;
    let weight = of_channels(weight, affine)?;
    let row = |tensor, dtype| of_channels(tensor, dtype).map(as_rows);
    let totals = [of_channels(&along, DType::F32)?, of_channels(&total, DType::F32)?];
    let [x, slope] = [extents.points(input, dtype)?, extents.points(gradient, dtype)?];
    let of_parts = Launch {
        stage: Stage::BatchSums,
        rows: parts.rows,
        inner: parts.inner,
        scalars: &[],
        inputs: &[parts.points(extents, x), mean, deviation, parts.points(extents, slope)],
        outputs: &partial,
    };
    let (rows, inner) = ([extents.channels, 1, 1], [parts.rows[0], parts.rows[2]]);
    let of_parameters = Launch {
        stage: Stage::BatchTotals,
        rows,
        inner,
        scalars: &[],
        inputs: &channels,
        outputs: &[row(&of_weight, affine)?, row(&of_bias, affine)?],
    };
    let of_channels = Launch {
        stage: Stage::BatchWeightedTotals,
        rows,
        inner,
        scalars: &[],
        inputs: &[channels[0], channels[1], as_rows(weight)],
        outputs: &totals.map(as_rows),
    };
    let of_input = Launch {
        stage: Stage::BatchGradient,
        rows: extents.shape(),
        inner: [1, 1],
        scalars: &[extents.channels as f64 / extents.elements() as f64],
        inputs: &[x, mean, deviation, slope, weight, totals[0], totals[1]],
        outputs: &[extents.points(&result, dtype)?],
    };
    let launches = [of_parts, of_parameters, of_channels, of_input];
    // SAFETY: inputs were checked against the call's sizes, and all other tensors were made for these sizes.
    unsafe { run(kernels, Operator::BatchNormBackward, device, &launches) }?;
    Some(smallvec![result, of_weight, of_bias])
}
