//! Group norm: `native_group_norm`, which `torch.nn.functional.group_norm` calls, and its gradient. A row is a group of channels
//! of an instance, whose points are contiguous; weight and bias have one value per channel. A short group fits in a block; longer
//! groups, and the gradient, take several kernels ([`super::stages`]).

use smallvec::{SmallVec, smallvec};
use thalweg_ir::DType;

use super::libtorch::{Stack, Tensor};
use super::operators::{Attempt, Matrix, Taken, matrix, of_words, put};
use super::original::{GroupArguments, GroupBackwardArguments, Mask};
use super::rows::{Channels, Computation};
use super::stages::{Launch, Operand, Stage, run};
use super::{Kernels, Operator};

/// The maximum number of points of a row that a block keeps in registers.
const MOST: u64 = 8192;

/// The minimum number of points of a part of a group.
const FEWEST: u64 = 256;

/// The extents of a call.
#[derive(Clone, Copy)]
struct Extents {
    batch: u64,
    groups: u64,
    /// The number of channels of a group.
    channels: u64,
    /// The number of points of a channel.
    plane: u64,
}

impl Extents {
    fn group(self) -> u64 {
        self.channels * self.plane
    }

    /// Returns the input as rows that are groups.
    fn rows_of(self, whole: Matrix) -> Matrix {
        let each = Channels { groups: self.groups, plane: self.plane };
        whole.of_channels(each, self.batch * self.groups)
    }

    /// Returns the strides of points within rows that are groups.
    fn points(self, tensor: &Tensor<'_>, dtype: DType) -> Option<Operand> {
        let rows = [self.groups * self.group(), self.group()];
        Some(Operand { dtype, address: tensor.address()?, rows, inner: [self.plane, 1] })
    }

    /// Returns the operand of one value per channel, the same for all instances.
    fn of_channels(self, tensor: &Tensor<'_>, dtype: DType) -> Option<Operand> {
        Some(Operand { dtype, address: tensor.address()?, rows: [0, self.channels], inner: [1, 0] })
    }

    /// Returns the operand of one value per group of each instance.
    fn of_groups(self, tensor: &Tensor<'_>, dtype: DType) -> Option<Operand> {
        Some(Operand { dtype, address: tensor.address()?, rows: [self.groups, 1], inner: [0, 0] })
    }

    /// Returns the operand of one value per channel of each instance.
    fn of_instances(self, tensor: &Tensor<'_>) -> Option<Operand> {
        let rows = [self.groups * self.channels, self.channels];
        Some(Operand { dtype: DType::F32, address: tensor.address()?, rows, inner: [1, 0] })
    }
}

/// Operands of rows that are channels, whose points are those of the instances.
impl Extents {
    /// Returns the operands of two values per channel of each instance, and of two per group of each instance.
    fn over_instances(self, [products, sums, mean, deviation]: [Operand; 4]) -> [Operand; 4] {
        let all = self.groups * self.channels;
        let of_channels = |operand| Operand { rows: [self.channels, 1], inner: [all, 0], ..operand };
        let of_groups = |operand| Operand { rows: [1, 0], inner: [self.groups, 0], ..operand };
        [of_channels(products), of_channels(sums), of_groups(mean), of_groups(deviation)]
    }

    /// Returns the operand of one value per channel.
    fn of_parameter(self, tensor: &Tensor<'_>, dtype: DType) -> Option<Operand> {
        Some(Operand { dtype, address: tensor.address()?, rows: [self.channels, 1], inner: [0, 0] })
    }
}

/// Returns the extents of a call whose sizes and input fit together.
fn extents(whole: &Matrix, [batch, channels, plane, groups]: [i64; 4]) -> Option<Extents> {
    let fits = groups > 0
        && whole.sizes.starts_with(&[batch, channels])
        && whole.sizes[2..].iter().product::<i64>() == plane
        && channels % groups == 0;
    let [batch, channels, plane, groups] =
        [batch, channels / groups.max(1), plane, groups].map(i64::unsigned_abs);
    fits.then_some(Extents { batch, groups, channels, plane })
}

/// Returns the size of a part of a group of `points` points: the largest divisor that fits in a block.
fn part_of(points: u64) -> Option<u64> {
    (points.div_ceil(MOST)..=points / FEWEST)
        .find(|&parts| points.is_multiple_of(parts))
        .map(|parts| points / parts)
}

pub(super) fn forward(kernels: &Kernels, stack: &Stack<'_>) {
    let arguments = GroupArguments {
        input: stack.tensor(0),
        weight: stack.optional_tensor(1),
        bias: stack.optional_tensor(2),
        sizes: [3, 4, 5, 6].map(|place| stack.word(place).cast_signed()),
        epsilon: f64::from_bits(stack.word(7)),
    };
    let operator = Operator::GroupNorm;
    let attempt = Attempt { kernels, operator, computation: Computation::GroupNorm };
    let taken = kernels.attempt(operator, || {
        let GroupArguments { input, weight, bias, sizes, epsilon } = &arguments;
        let (weight, bias) = (weight.as_ref()?, bias.as_ref()?);
        let whole = matrix(input, 0)?;
        let extents = extents(&whole, *sizes)?;
        let parameters = &[sizes[1]];
        if ![weight, bias].iter().all(|parameter| whole.is_beside(parameter, whole.dtype, parameters)) {
            return None;
        }
        let matrix = extents.rows_of(whole);
        let dtype = matrix.dtype;
        let statistics = [sizes[0], sizes[3]];
        if let Some(part) = part_of(extents.group()).filter(|_| extents.group() > MOST) {
            return attempt.takes(&matrix).then(|| {
                let operands = [input, weight, bias];
                in_stages(kernels, &matrix, (extents, part), &statistics, operands, *epsilon)
            })?;
        }
        let results = [(&matrix.sizes[..], dtype), (&statistics[..], dtype), (&statistics[..], dtype)];
        let scalars = [matrix.columns as f64, *epsilon].map(f64::to_bits);
        attempt.launch(&matrix, [dtype; 2], &scalars, &[input, weight, bias], &results)
    });
    let results = taken.unwrap_or_else(|| {
        let original = kernels.originals.group_norm;
        let original = original.expect("only operators are registered whose kernel was found");
        of_words(&kernels.torch, arguments.call(original))
    });
    put(stack, results);
}

/// Normalizes groups that do not fit in a block, from the moments of their parts.
fn in_stages<'k>(
    kernels: &'k Kernels,
    matrix: &Matrix,
    (extents, part): (Extents, u64),
    statistics: &[i64],
    [input, weight, bias]: [&Tensor<'_>; 3],
    epsilon: f64,
) -> Taken<'k> {
    let (dtype, device) = (matrix.dtype, matrix.device);
    let rows = extents.batch * extents.groups;
    let parts = extents.group() / part;
    let made = |sizes: &[i64], dtype| kernels.torch.empty(sizes, dtype, device);
    let result = made(&matrix.sizes, dtype)?;
    let [mean, deviation] = [made(statistics, dtype)?, made(statistics, dtype)?];
    let [exact_mean, exact_deviation] = [made(statistics, DType::F32)?, made(statistics, DType::F32)?];
    let all = [(rows * parts).cast_signed()];
    let [means, squares] = [made(&all, DType::F32)?, made(&all, DType::F32)?];
    // First the parts in order, and then the parts of each group together.
    let x = Operand { dtype, address: input.address()?, rows: [parts * part, part], inner: [1, 0] };
    let [means, squares] = [means.address()?, squares.address()?].map(|address| Operand {
        dtype: DType::F32,
        address,
        rows: [parts, 1],
        inner: [1, 0],
    });
    let moments = Launch {
        stage: Stage::Moments,
        rows: [rows, parts],
        inner: [part, 1],
        scalars: &[part as f64],
        inputs: &[x],
        outputs: &[means, squares],
    };
    let of_group = |operand: Operand| Operand { rows: [extents.groups * parts, parts], ..operand };
    let [exact_mean, exact_deviation] =
        [extents.of_groups(&exact_mean, DType::F32)?, extents.of_groups(&exact_deviation, DType::F32)?];
    let of_groups = Launch {
        stage: Stage::Statistics,
        rows: [extents.batch, extents.groups],
        inner: [parts, 1],
        scalars: &[parts as f64, part as f64, epsilon],
        inputs: &[of_group(means), of_group(squares)],
        outputs: &[
            extents.of_groups(&mean, dtype)?,
            extents.of_groups(&deviation, dtype)?,
            exact_mean,
            exact_deviation,
        ],
    };
    let points = Launch {
        stage: Stage::Points,
        rows: [extents.batch, extents.groups],
        inner: [extents.channels, extents.plane],
        scalars: &[],
        inputs: &[
            extents.points(input, dtype)?,
            exact_mean,
            exact_deviation,
            extents.of_channels(weight, dtype)?,
            extents.of_channels(bias, dtype)?,
        ],
        outputs: &[extents.points(&result, dtype)?],
    };
    // SAFETY: inputs were checked against the call's sizes, and all other tensors were made for these sizes.
    unsafe { run(kernels, Operator::GroupNorm, device, &[moments, of_groups, points]) }?;
    Some(smallvec![result, mean, deviation])
}

pub(super) fn backward(kernels: &Kernels, stack: &Stack<'_>) {
    let mut arguments = GroupBackwardArguments {
        gradient: stack.tensor(0),
        input: stack.tensor(1),
        mean: stack.tensor(2),
        deviation: stack.tensor(3),
        weight: stack.optional_tensor(4),
        sizes: [5, 6, 7, 8].map(|place| stack.word(place).cast_signed()),
        mask: Mask([false; 3]),
    };
    arguments.mask = Mask(stack.mask(9));
    let operator = Operator::GroupNormBackward;
    let attempt = Attempt { kernels, operator, computation: Computation::GroupNorm };
    let taken = attempt.make(|| {
        let GroupBackwardArguments { gradient, input, mean, deviation, weight, sizes, mask } = &arguments;
        let weight = weight.as_ref()?;
        let whole = matrix(input, 0)?;
        let extents = extents(&whole, *sizes)?;
        let statistics = [sizes[0], sizes[3]];
        let fits = mask.0 == [true; 3]
            && whole.is_beside(weight, whole.dtype, &[sizes[1]])
            && whole.is_beside(gradient, whole.dtype, &whole.sizes)
            && [mean, deviation].iter().all(|statistic| whole.is_beside(statistic, whole.dtype, &statistics));
        let matrix = extents.rows_of(whole);
        (fits && attempt.takes(&matrix))
            .then(|| gradients(kernels, &matrix, extents, [gradient, input, mean, deviation, weight]))?
    });
    let results = taken.unwrap_or_else(|| {
        let original = kernels.originals.group_norm_backward;
        let original = original.expect("only operators are registered whose kernel was found");
        of_words(&kernels.torch, arguments.call(original))
    });
    put(stack, results);
}

/// Computes the gradients of input, weight and bias.
fn gradients<'k>(
    kernels: &'k Kernels,
    matrix: &Matrix,
    extents: Extents,
    [gradient, input, mean, deviation, weight]: [&Tensor<'_>; 5],
) -> Taken<'k> {
    let (dtype, device) = (matrix.dtype, matrix.device);
    let Extents { batch, groups, channels, plane } = extents;
    let made = |sizes: &[u64], dtype| {
        let sizes: SmallVec<[i64; 2]> = sizes.iter().map(|size| size.cast_signed()).collect();
        kernels.torch.empty(&sizes, dtype, device)
    };
    let result = kernels.torch.empty(&matrix.sizes, dtype, device)?;
    let [of_weight, of_bias] = [made(&[groups * channels], dtype)?, made(&[groups * channels], dtype)?];
    let [products, sums, slopes, numbers] = [
        made(&[batch, groups * channels], DType::F32)?,
        made(&[batch, groups * channels], DType::F32)?,
        made(&[batch, groups], DType::F32)?,
        made(&[batch, groups], DType::F32)?,
    ];
    let of_instances = [extents.of_instances(&products)?, extents.of_instances(&sums)?];
    let [mean, deviation] = [extents.of_groups(mean, dtype)?, extents.of_groups(deviation, dtype)?];
    let coefficients = [extents.of_groups(&slopes, DType::F32)?, extents.of_groups(&numbers, DType::F32)?];
    let [gradient, input] = [extents.points(gradient, dtype)?, extents.points(input, dtype)?];
    // A row is a channel of an instance.
    let of_channel =
        |operand: Operand| Operand { rows: [groups * channels * plane, plane], inner: [1, 0], ..operand };
    let per_channel = |operand: Operand| Operand { rows: [groups * channels, 1], ..operand };
    let channel_sums = Launch {
        stage: Stage::Sums,
        rows: [batch, groups * channels],
        inner: [plane, 1],
        scalars: &[],
        inputs: &[of_channel(gradient), of_channel(input)],
        outputs: &of_instances.map(per_channel),
    };
    let weight = extents.of_channels(weight, dtype)?;
    let of_groups = Launch {
        stage: Stage::Coefficients,
        rows: [batch, groups],
        inner: [channels, 1],
        scalars: &[extents.group() as f64],
        inputs: &[of_instances[0], of_instances[1], weight, mean, deviation],
        outputs: &coefficients,
    };
    let points = Launch {
        stage: Stage::Gradient,
        rows: [batch, groups],
        inner: [channels, plane],
        scalars: &[],
        inputs: &[gradient, input, weight, deviation, coefficients[0], coefficients[1]],
        outputs: &[extents.points(&result, dtype)?],
    };
    let inputs = [of_instances[0], of_instances[1], mean, deviation];
    let parameters = Launch {
        stage: Stage::Parameters,
        rows: [groups, channels],
        inner: [batch, 1],
        scalars: &[],
        inputs: &extents.over_instances(inputs),
        outputs: &[extents.of_parameter(&of_weight, dtype)?, extents.of_parameter(&of_bias, dtype)?],
    };
    let launches = [channel_sums, of_groups, points, parameters];
    // SAFETY: as in `in_stages`.
    unsafe { run(kernels, Operator::GroupNormBackward, device, &launches) }?;
    Some(smallvec![result, of_weight, of_bias])
}
