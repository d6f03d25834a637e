//! Norms over channels, lowered by [`ChannelNorm`]: `native_group_norm`, which `torch.nn.functional.group_norm` calls,
//! `native_batch_norm` in training, which `batch_norm` calls if PyTorch does not use cuDNN (bfloat16), and their gradients. A
//! group that fits in a block is a row of a single kernel ([`super::rows`]).

use smallvec::{SmallVec, smallvec};
use thalweg_ir::foreach::{ForeachArguments, ForeachItem, ForeachKernel, ForeachOperand};
use thalweg_ir::{BodyBuilder, DType, Layout, OutputPlace};
use thalweg_ops::lower::{ChannelNorm, ChannelNormGradient, Operand};

use super::libtorch::{Stack, Tensor};
use super::operators::{Attempt, Matrix, Taken, matrix, put_or};
use super::original::{
    BatchArguments, BatchBackwardArguments, BatchNorm, BatchNormBackward, Exported, GroupArguments,
    GroupBackwardArguments, GroupNorm, GroupNormBackward,
};
use super::rows::{Channels, Computation};
use super::speeds::{Class, Form};
use super::work::{Place, Work};
use super::{Kernels, Operator, foreach};

/// The maximum number of points of a row that a block keeps in registers.
const MOST: u64 = 8192;

/// The kind of work of forward launches. The constants below are the other kinds.
const FORWARD: u64 = 128;

/// The number of the launches of the gradients.
const BACKWARD: u64 = FORWARD + 1;

/// A contiguous input (batch, channels, …) of a norm.
struct Input<'k> {
    kernels: &'k Kernels,
    operator: Operator,
    whole: Matrix,
    /// The groups of an instance; 0 means statistics of the batch.
    groups: u64,
    norm: ChannelNorm,
}

impl<'k> Input<'k> {
    /// Returns an input whose channels can be divided into these groups.
    fn new(kernels: &'k Kernels, operator: Operator, whole: Matrix, groups: u64) -> Option<Self> {
        let shape: SmallVec<[usize; 6]> = whole.sizes.iter().map(|&size| size as usize).collect();
        let norm = ChannelNorm::new(&shape, groups as usize)?;
        Some(Self { kernels, operator, whole, groups, norm })
    }

    /// Returns the sizes of weight and bias.
    fn of_channels(&self) -> &[i64] {
        &self.whole.sizes[1..2]
    }

    /// Returns the sizes of the statistics.
    fn of_statistics(&self) -> SmallVec<[i64; 2]> {
        match self.groups {
            0 => self.of_channels().into(),
            groups => smallvec![self.whole.sizes[0], groups.cast_signed()],
        }
    }

    /// Returns the common dtype of parameters, which have one value per channel.
    fn parameters(&self, tensors: &[&Tensor<'_>]) -> Option<DType> {
        let dtype = tensors.first()?.dtype()?;
        let fits = (dtype == DType::F32 || dtype == self.whole.dtype)
            && tensors.iter().all(|tensor| self.whole.is_beside(tensor, dtype, self.of_channels()));
        fits.then_some(dtype)
    }

    fn empty(&self, sizes: &[i64], dtype: DType) -> Option<Tensor<'k>> {
        self.kernels.torch.empty(sizes, dtype, self.whole.device)
    }

    /// Launches work with these inputs and results. Their dtypes distinguish it from other work of the same kind.
    fn run(
        &self,
        (number, dtypes, epsilon): (u64, &[DType], f64),
        lower: &dyn Fn() -> thalweg_ops::lower::Result<thalweg_ops::lower::Steps>,
        inputs: &[&Tensor<'_>],
        results: &[Tensor<'_>],
    ) -> Option<()> {
        let [batch, groups, channels, plane] = self.norm.shape().map(|extent| extent as u64);
        let inputs: SmallVec<[u64; 5]> = inputs.iter().map(|input| input.address()).collect::<Option<_>>()?;
        let outputs: SmallVec<[u64; 6]> = results.iter().map(Tensor::address).collect::<Option<_>>()?;
        let work = Work {
            name: self.operator.name(),
            number,
            dtypes,
            extents: &[batch, groups, channels, plane, u64::from(self.groups == 0), epsilon.to_bits()],
            lower,
            scalars: &[],
            inputs: &inputs,
            outputs: &outputs,
        };
        // SAFETY: inputs were checked against the call's sizes, and the results were made for these sizes.
        unsafe { work.run(self.kernels, self.operator, self.whole.device) }
    }

    /// Returns the normalized input, mean, inverse deviation and variance; then, in the dtype `kept`, mean and inverse deviation
    /// again.
    fn normalized(
        &self,
        [input, weight, bias]: [&Tensor<'_>; 3],
        affine: DType,
        epsilon: f64,
        kept: Option<DType>,
    ) -> Option<SmallVec<[Tensor<'k>; 6]>> {
        let (dtype, statistics) = (self.whole.dtype, self.of_statistics());
        let mut results = smallvec![self.empty(&self.whole.sizes, dtype)?];
        for dtype in [DType::F32; 3].into_iter().chain(kept.into_iter().flat_map(|kept| [kept; 2])) {
            results.push(self.empty(&statistics, dtype)?);
        }
        let lower = || {
            let points = Layout::contiguous(&self.norm.shape());
            let channels = Layout::contiguous(&[self.of_channels()[0] as usize]);
            let parameter = Operand { dtype: affine, layout: &channels };
            let operands = [Operand { dtype, layout: &points }, parameter, parameter];
            self.norm.forward(operands, &points, epsilon, kept)
        };
        let dtypes = [dtype, affine, kept.unwrap_or(DType::F32)];
        self.run((FORWARD, &dtypes, epsilon), &lower, &[input, weight, bias], &results)?;
        Some(results)
    }

    /// Returns the gradients of input, weight and bias, from the gradient of the result, the input, the weight, mean and inverse
    /// deviation.
    fn gradients(
        &self,
        [gradient, input, weight, mean, deviation]: [&Tensor<'_>; 5],
        [affine, of_statistics]: [DType; 2],
    ) -> Taken<'k> {
        let dtype = self.whole.dtype;
        let results = smallvec![
            self.empty(&self.whole.sizes, dtype)?,
            self.empty(self.of_channels(), affine)?,
            self.empty(self.of_channels(), affine)?
        ];
        let lower = || {
            let points = Layout::contiguous(&self.norm.shape());
            let channels = Layout::contiguous(&[self.of_channels()[0] as usize]);
            let x = Operand { dtype, layout: &points };
            self.norm.backward(&ChannelNormGradient {
                x,
                gradient: x,
                weight: Operand { dtype: affine, layout: &channels },
                statistics: [of_statistics; 2],
                of_input: Some(&points),
                of_parameters: Some(affine),
            })
        };
        let inputs = [input, gradient, weight, mean, deviation];
        self.run((BACKWARD, &[dtype, affine, of_statistics], 0.0), &lower, &inputs, &results)?;
        Some(results)
    }
}

/// Returns the input of a call of group norm whose sizes fit together.
fn grouped<'k>(
    kernels: &'k Kernels,
    operator: Operator,
    input: &Tensor<'_>,
    [batch, channels, plane, groups]: [i64; 4],
) -> Option<Input<'k>> {
    let whole = matrix(input, 0)?;
    let fits = groups > 0
        && whole.sizes.starts_with(&[batch, channels])
        && whole.sizes[2..].iter().product::<i64>() == plane;
    fits.then(|| Input::new(kernels, operator, whole, groups.unsigned_abs()))?
}

/// Returns the attempt at a call of group norm, and the input as rows that are groups.
fn rows_of<'k>(input: &Input<'k>) -> (Attempt<'k>, Matrix) {
    let Input { kernels, operator, .. } = *input;
    let [batch, groups, _, plane] = input.norm.shape().map(|extent| extent as u64);
    let matrix = input.whole.clone().of_channels(Channels { groups, plane }, batch * groups);
    (Attempt { kernels, operator, computation: Computation::GroupNorm }, matrix)
}

pub(super) fn group_norm(
    kernels: &Kernels,
    operator: Operator,
    original: Option<GroupNorm<'_>>,
    stack: &Stack<'_>,
) {
    let arguments = GroupArguments::take(stack);
    let taken = kernels.attempt(operator, || {
        let GroupArguments { input: x, weight, bias, epsilon, .. } = &arguments;
        let GroupArguments { batch, channels, plane, groups, .. } = arguments;
        let (weight, bias) = (weight.as_ref()?, bias.as_ref()?);
        let input = grouped(kernels, operator, x, [batch, channels, plane, groups])?;
        let dtype = input.parameters(&[weight, bias]).filter(|&dtype| dtype == input.whole.dtype)?;
        let (attempt, matrix) = rows_of(&input);
        let statistics = input.of_statistics();
        if matrix.columns <= MOST {
            let results = [(&matrix.sizes[..], dtype), (&statistics[..], dtype), (&statistics[..], dtype)];
            let scalars = [matrix.columns as f64, *epsilon].map(f64::to_bits);
            return attempt.launch(&matrix, [dtype; 2], &scalars, &[x, weight, bias], &results);
        }
        let kept = (dtype != DType::F32).then_some(dtype);
        let fits = attempt.takes(&matrix);
        let mut results = fits.then(|| input.normalized([x, weight, bias], dtype, *epsilon, kept))??;
        if kept.is_some() {
            results.drain(1..4);
        }
        results.truncate(3);
        Some(results.into_iter().collect())
    });
    put_or(kernels, stack, taken, || arguments.call(original.found()));
}

pub(super) fn group_norm_backward(
    kernels: &Kernels,
    operator: Operator,
    original: Option<GroupNormBackward<'_>>,
    stack: &Stack<'_>,
) {
    let arguments = GroupBackwardArguments::take(stack);
    let taken = kernels.attempt(operator, || {
        let GroupBackwardArguments { gradient, input: x, mean, deviation, weight, .. } = &arguments;
        let GroupBackwardArguments { batch, channels, plane, groups, mask, .. } = arguments;
        let weight = weight.as_ref()?;
        let input = grouped(kernels, operator, x, [batch, channels, plane, groups])?;
        let (whole, statistics) = (&input.whole, input.of_statistics());
        let fits = mask.0 == [true; 3]
            && whole.is_beside(weight, whole.dtype, input.of_channels())
            && whole.is_beside(gradient, whole.dtype, &whole.sizes)
            && [mean, deviation].iter().all(|statistic| whole.is_beside(statistic, whole.dtype, &statistics));
        let (attempt, matrix) = rows_of(&input);
        let tensors = [gradient, x, weight, mean, deviation];
        (fits && attempt.takes(&matrix)).then(|| input.gradients(tensors, [whole.dtype; 2]))?
    });
    put_or(kernels, stack, taken, || arguments.call(original.found()));
}

/// Returns the input of a call of batch norm that the table or the user selects.
fn batched<'k>(kernels: &'k Kernels, operator: Operator, input: &Tensor<'_>) -> Option<Input<'k>> {
    let input = Input::new(kernels, operator, matrix(input, 0)?, 0)?;
    let [batch, channels, _, plane] = input.norm.shape().map(|extent| extent as u64);
    let class = Class {
        form: Form::Planes,
        dtype: input.whole.dtype,
        columns: plane,
        contiguous: plane,
        elements: batch * channels * plane,
    };
    kernels.takes(operator, &class).then_some(input)
}

pub(super) fn batch_norm(
    kernels: &Kernels,
    operator: Operator,
    original: Option<BatchNorm<'_>>,
    stack: &Stack<'_>,
) {
    let arguments = BatchArguments::take(stack);
    let taken = kernels.attempt(operator, || normalize(kernels, &arguments));
    put_or(kernels, stack, taken, || arguments.call(original.found()));
}

fn normalize<'k>(kernels: &'k Kernels, arguments: &BatchArguments<'_>) -> Taken<'k> {
    let BatchArguments { input: x, weight, bias, running_mean, running_variance, .. } = arguments;
    let (weight, bias) = (weight.as_ref()?, bias.as_ref()?);
    let input = batched(kernels, Operator::BatchNorm, x)?;
    let affine = input.parameters(&[weight, bias])?;
    let running = match (running_mean, running_variance) {
        (Some(mean), Some(variance)) => Some(([mean, variance], input.parameters(&[mean, variance])?)),
        (None, None) => None,
        _ => return None,
    };
    // On the host PyTorch keeps statistics in the dtype of the parameters.
    if !arguments.training || (affine != DType::F32 && matches!(kernels.place, Place::Host)) {
        return None;
    }
    let mut results = input.normalized([x, weight, bias], affine, arguments.epsilon, None)?;
    let variance = results.pop()?;
    if let Some((running, dtype)) = running {
        move_running(&input, dtype, running, [&results[1], &variance], arguments.momentum)?;
    }
    Some(results.into_iter().collect())
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

/// Updates running mean and variance from a batch's, in place.
fn move_running(
    input: &Input<'_>,
    dtype: DType,
    running: [&Tensor<'_>; 2],
    batch: [&Tensor<'_>; 2],
    momentum: f64,
) -> Option<()> {
    let (kernels, count) = (input.kernels, input.norm.count());
    let running = running.into_iter().map(Tensor::address_to_write);
    let addresses = running.chain(batch.into_iter().map(Tensor::address)).collect::<Option<_>>()?;
    let elements = input.of_channels()[0].unsigned_abs();
    let update = ForeachArguments {
        shared: SmallVec::new(),
        scalars: [momentum, count / (count - 1.0)].map(f64::to_bits).into_iter().collect(),
        items: vec![ForeachItem { elements, addresses }],
    };
    let kernel = kernels.updates.get(dtype, || self::update(dtype));
    // SAFETY: each tensor has one value per channel, and nothing else uses the running statistics; it is one launch.
    unsafe { foreach::run(&kernel, kernels, Operator::BatchNorm, &update, input.whole.device) }?.ok()
}

pub(super) fn batch_norm_backward(
    kernels: &Kernels,
    operator: Operator,
    original: Option<BatchNormBackward<'_>>,
    stack: &Stack<'_>,
) {
    let arguments = BatchBackwardArguments::take(stack);
    let taken = kernels.attempt(operator, || {
        let BatchBackwardArguments { gradient, input: x, weight, mean, deviation, .. } = &arguments;
        let (weight, mean, deviation) = (weight.as_ref()?, mean.as_ref()?, deviation.as_ref()?);
        let input = batched(kernels, operator, x)?;
        let affine = input.parameters(&[weight])?;
        let fits = arguments.training
            && arguments.mask.0 == [true; 3]
            && input.parameters(&[mean, deviation]) == Some(DType::F32)
            && input.whole.is_beside(gradient, input.whole.dtype, &input.whole.sizes);
        fits.then(|| input.gradients([gradient, x, weight, mean, deviation], [affine, DType::F32]))?
    });
    put_or(kernels, stack, taken, || arguments.call(original.found()));
}
