//! Normalization over features, groups, batches and instances. Statistics are kept in f32 for 16-bit floats.

use smallvec::{SmallVec, smallvec};
use thalweg_ir::{DType, Scalar, Shape};
use thalweg_ops::LoopOp;
use thalweg_ops::structured::{CHANNEL_NORM_MOVED, CHANNEL_NORM_MOVED_BOTH};
use thalweg_runtime::{Error, Label, Result, refuse, refuse_if};

use super::Body::Composite;
use super::{operators, single};
use crate::autograd::no_grad;
use crate::dispatch::{Argument, Arguments, Call, built_in};
use crate::kernels::normalized::{kept_shape, normalized_shape, sizes};
use crate::loops::{LoopArguments, Points, run_into};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns rows of the last dimensions with mean 0 and variance 1, times weight plus bias, and each row's mean and inverse
    /// deviation.
    "native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)"
        = Composite(layer_norm), autocast: Full;
    /// Returns rows of the last dimensions with mean 0 and variance 1, times weight plus bias.
    "layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-05, bool cudnn_enable=True) -> Tensor"
        fn layer_norm(normalized_shape: ints, weight: optional_tensor, bias: optional_tensor, eps: float)
        = Composite(|call| first(layer_norm(call)?)), autocast: Full;
    /// Returns the last dimensions divided by the root of their mean square, times weight; without an eps it is the machine
    /// epsilon of the compute dtype, f32 for 16-bit floats.
    "rms_norm(Tensor input, int[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor"
        fn rms_norm(normalized_shape: ints, weight: optional_tensor, eps: optional_float)
        = Composite(|call| first(rms_norm(call)?));
    /// Returns the last dimensions divided by the root of their mean square, times weight, and the inverse of each row's root.
    "_fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)"
        = Composite(fused_rms_norm);
    /// Returns groups of channels with mean 0 and variance 1, times weight plus bias, and each group's mean and inverse
    /// deviation.
    "native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group, float eps) -> (Tensor, Tensor, Tensor)"
        = Composite(native_group_norm);
    /// Returns groups of channels with mean 0 and variance 1, times weight plus bias.
    "group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-05, bool cudnn_enabled=True) -> Tensor"
        fn group_norm(num_groups: int, weight: optional_tensor, bias: optional_tensor, eps: float)
        = Composite(|call| {
            let parameters = [call.optional_tensor(2), call.optional_tensor(3)];
            first(group_norm(call, call.int(1), parameters, call.float(4))?)
        }), autocast: Full;
    /// Returns channels with mean 0 and variance 1, times weight plus bias. In training the batch's statistics are used, and the
    /// running ones move towards them; otherwise the running ones are used.
    "batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, float momentum, float eps, bool cudnn_enabled) -> Tensor"
        fn batch_norm(weight: optional_tensor, bias: optional_tensor, running_mean: optional_tensor, running_var: optional_tensor, training: bool, momentum: float, eps: float, cudnn_enabled: bool)
        = Composite(|call| match call.tensor(0).elements() {
            0 => empty_batch(call).map(single),
            _ => first(running(call)?),
        }), autocast: Parts;
    /// Returns channels with mean 0 and variance 1, times weight plus bias, and the batch's mean and inverse deviation.
    "native_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)"
        = Composite(running);
    /// Returns channels with mean 0 and variance 1, times weight plus bias, and the batch's mean and inverse deviation.
    "_native_batch_norm_legit(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!) running_mean, Tensor(b!) running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)"
        = Composite(running);
    /// Returns channels with mean 0 and variance 1, times weight plus bias, and the batch's mean and inverse deviation.
    "_native_batch_norm_legit.no_stats(Tensor input, Tensor? weight, Tensor? bias, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)"
        = Composite(|call| batch_norm(call, [None, None], true, call.float(4), call.float(5))), out_form: "_native_batch_norm_legit.no_stats_out(out, save_mean, save_invstd)";
    /// Returns channels minus the running mean, divided by the running deviation, times weight plus bias.
    "_native_batch_norm_legit_no_training(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor)"
        = Composite(|call| {
            let running = [Some(call.tensor(3)), Some(call.tensor(4))];
            batch_norm(call, running, false, call.float(5), call.float(6))
        });
    /// Returns channels with mean 0 and variance 1, times weight plus bias, the batch's mean and inverse deviation, and an empty
    /// tensor. The running statistics move towards the batch's.
    "_batch_norm_with_update(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!) running_mean, Tensor(b!) running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor)"
        = Composite(|call| {
            let statistics = [Some(call.tensor(3)), Some(call.tensor(4))];
            let mut results = batch_norm(call, statistics, true, call.float(5), call.float(6))?;
            results.push(Tensor::empty(&[0], DType::U8, call.device)?);
            Ok(results)
        });
    /// Returns channels of each instance with mean 0 and variance 1, times weight plus bias.
    "instance_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool use_input_stats, float momentum, float eps, bool cudnn_enabled) -> Tensor"
        fn instance_norm(weight: optional_tensor, bias: optional_tensor, running_mean: optional_tensor, running_var: optional_tensor, use_input_stats: bool, momentum: float, eps: float, cudnn_enabled: bool)
        = Composite(instance_norm), autocast: Parts;
}

/// Returns the first of several results.
fn first(results: Tensors) -> Result<Tensors> {
    Ok(results.into_iter().take(1).collect())
}

/// Returns the result of layer normalization with mean and inverse deviation, which keep the reduced dimensions.
fn layer_norm(call: &Call<'_>) -> Result<Tensors> {
    let (x, weight, bias) = (call.tensor(0), call.optional_tensor(2), call.optional_tensor(3));
    let shape = normalized_shape(x, &call.ints(1), &[("weight", weight), ("bias", bias)])?;
    let default = |parameter: Option<&Tensor>, value: f64| match parameter {
        Some(parameter) => Ok(parameter.clone()),
        None => Tensor::full(&shape, value, x.dtype(), x.device()),
    };
    let (weight, bias) = (default(weight, 1.0)?, default(bias, 0.0)?);
    let rows = x.rank() - shape.len();
    let count: usize = shape.iter().product();
    let arguments = LoopArguments {
        scalars: [count as f64, call.float(4)].map(Scalar::F64).into_iter().collect(),
        points: Points::Reduced((rows..x.rank()).collect()),
        ..LoopArguments::default()
    };
    let operator = built_in!("thalweg::layer_norm_affine")?;
    let mut results = operator.call_loop(&[x, &weight, &bias], &arguments, None, call.label)?;
    let kept = kept_shape(x.shape(), rows);
    for statistic in &mut results[1..] {
        *statistic = statistic.reshape(&kept)?;
    }
    Ok(results)
}

/// Returns the machine epsilon of a dtype.
fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    }
}

/// Returns the result of [`rms_norm`], and the inverse root of each row's mean square, which keeps the reduced dimensions.
fn fused_rms_norm(call: &Call<'_>) -> Result<Tensors> {
    let mut results = rms_norm(call)?;
    let x = call.tensor(0);
    let kept = kept_shape(x.shape(), x.rank() - call.ints(1).len());
    results[1] = results[1].reshape(&kept)?;
    Ok(results)
}

/// Returns the rows divided by the root of their mean square, times a weight, and the inverse root of each row.
fn rms_norm(call: &Call<'_>) -> Result<Tensors> {
    let (x, weight) = (call.tensor(0), call.optional_tensor(2));
    normalized_shape(x, &call.ints(1), &[("weight", weight)])?;
    check_floats("rms_norm", x)?;
    let epsilon = call.optional_float(3).unwrap_or_else(|| epsilon(x.dtype().compute()));
    let weight = weight.map_or(Argument::None, Argument::Tensor);
    let arguments = [Argument::Tensor(x), weight, call.argument(1), Argument::Float(epsilon)];
    built_in!("thalweg::rms_norm")?.call(&arguments, None, call.label)
}

fn check_floats(name: &str, x: &Tensor) -> Result<()> {
    match x.dtype().is_floating_point() {
        true => Ok(()),
        false => Err(Error::not_implemented(format!("\"{name}\" not implemented for '{}'", x.dtype()))),
    }
}

/// Returns one value per channel as a view that is broadcast over a tensor (batch, channels, …) of this rank.
fn per_channel(values: &Tensor, rank: usize) -> Result<Tensor> {
    let mut shape: Shape = Shape::from_elem(1, rank);
    shape[1] = values.elements();
    values.reshape(&shape)
}

/// Returns weight and bias per channel of x: 1 and 0 if there is none.
fn weight_and_bias(x: &Tensor, [weight, bias]: [Option<&Tensor>; 2]) -> Result<[Tensor; 2]> {
    let of = |parameter: Option<&Tensor>, value: f64| match parameter {
        Some(parameter) => Ok(parameter.clone()),
        None => Tensor::full(&[x.shape()[1]], value, x.dtype().compute(), x.device()),
    };
    Ok([of(weight, 1.0)?, of(bias, 0.0)?])
}

/// Returns the first tensor of a call with channels normalized by statistics of this number of groups per instance, or, with 0,
/// of the batch, times weight plus bias; and mean, inverse deviation and variance.
fn channel_norm(
    call: &Call<'_>,
    parameters: [Option<&Tensor>; 2],
    groups: i64,
    epsilon: f64,
) -> Result<Tensors> {
    let x = call.tensor(0);
    let [weight, bias] = weight_and_bias(x, parameters)?;
    let tensors = [x, &weight, &bias].map(Argument::Tensor);
    let numbers = [Argument::Int(groups), Argument::Float(epsilon)];
    built_in!("thalweg::channel_norm")?.call(&[&tensors[..], &numbers].concat(), None, call.label)
}

/// Returns the operands of a normalization by statistics that do not depend on the input: the input, and mean, variance, weight and bias
/// as views that are broadcast over it.
pub(super) fn fixed_operands(
    x: &Tensor,
    [mean, variance]: [&Tensor; 2],
    parameters: [Option<&Tensor>; 2],
) -> Result<[Tensor; 5]> {
    let [weight, bias] = weight_and_bias(x, parameters)?;
    let over = |values: &Tensor| per_channel(values, x.rank());
    Ok([x.clone(), over(&mean.detach())?, over(&variance.detach())?, over(&weight)?, over(&bias)?])
}

/// Returns the first tensor of a call with channels normalized by this mean and variance, times weight plus bias.
fn fixed_norm(
    call: &Call<'_>,
    statistics: [&Tensor; 2],
    parameters: [Option<&Tensor>; 2],
    epsilon: f64,
) -> Result<Tensor> {
    let operands = fixed_operands(call.tensor(0), statistics, parameters)?;
    let arguments = LoopArguments { scalars: smallvec![Scalar::F64(epsilon)], ..LoopArguments::default() };
    let operator = built_in!("thalweg::channel_norm_fixed")?;
    Ok(operator.call_loop(&operands.each_ref(), &arguments, None, call.label)?.remove(0))
}

/// Refuses parameters that do not have one value per channel.
fn check_per_channel(list: &[(&str, Option<&Tensor>)], channels: usize) -> Result<()> {
    for (name, tensor) in list {
        if let Some(tensor) = tensor
            && tensor.shape() != [channels]
        {
            refuse!("{name} should contain {channels} elements not {}", tensor.elements());
        }
    }
    Ok(())
}

fn group_norm(
    call: &Call<'_>,
    groups: i64,
    parameters: [Option<&Tensor>; 2],
    epsilon: f64,
) -> Result<Tensors> {
    let x = call.tensor(0);
    check_floats("GroupNormKernelImpl", x)?;
    if x.rank() < 2 {
        refuse!("Expected at least 2 dimensions for input tensor but received {}", x.rank());
    }
    let channels = x.shape()[1];
    let Some(groups) = usize::try_from(groups).ok().filter(|&groups| groups > 0) else {
        refuse!("num groups must be greater than 0, got {groups}");
    };
    refuse_if!(
        !channels.is_multiple_of(groups),
        "Expected number of channels in input to be divisible by num_groups, but got input of shape {} and num_groups={groups}",
        sizes(x.shape())
    );
    for (name, parameter) in ["weight", "bias"].into_iter().zip(parameters) {
        if let Some(parameter) = parameter
            && parameter.shape() != [channels]
        {
            refuse!(
                "Expected {name} to be a vector of size equal to the number of channels in input, but got {name} of shape {} and \
                 input of shape {}",
                sizes(parameter.shape()),
                sizes(x.shape())
            );
        }
    }
    let mut results = channel_norm(call, parameters, groups as i64, epsilon)?;
    results.truncate(3);
    Ok(results)
}

fn native_group_norm(call: &Call<'_>) -> Result<Tensors> {
    let x = call.tensor(0);
    let [batch, channels, plane] = [3, 4, 5].map(|place| call.int(place));
    let fits = x.rank() >= 2
        && x.shape()[0] as i64 == batch
        && x.shape()[1] as i64 == channels
        && x.shape()[2..].iter().product::<usize>() as i64 == plane;
    if !fits {
        refuse!("native_group_norm: an input of shape {:?} is not ({batch}, {channels}, {plane})", x.shape());
    }
    group_norm(call, call.int(6), [call.optional_tensor(1), call.optional_tensor(2)], call.float(7))
}

/// Returns the batch normalization of a tensor without elements, of any shape.
fn empty_batch(call: &Call<'_>) -> Result<Tensor> {
    let mut result = call.tensor(0).copied(call.label.location)?;
    if let Some(weight) = call.optional_tensor(1) {
        result = result.mul(&weight.narrow(0, 0, 1)?)?;
    }
    if let Some(bias) = call.optional_tensor(2) {
        result = result.add(&bias.narrow(0, 0, 1)?)?;
    }
    Ok(result)
}

/// Normalizes a batch by running statistics.
fn running(call: &Call<'_>) -> Result<Tensors> {
    let statistics = [call.optional_tensor(3), call.optional_tensor(4)];
    batch_norm(call, statistics, call.bool(5), call.float(6), call.float(7))
}

/// Returns the result, and the batch's mean and inverse deviation, which are empty if they were not computed.
fn batch_norm(
    call: &Call<'_>,
    running: [Option<&Tensor>; 2],
    training: bool,
    momentum: f64,
    epsilon: f64,
) -> Result<Tensors> {
    let (x, parameters) = (call.tensor(0), [call.optional_tensor(1), call.optional_tensor(2)]);
    check_floats("batch_norm", x)?;
    if x.rank() < 2 {
        refuse!("Expected 2 or more dimensions for the input of batch_norm, but got {}", x.rank());
    }
    let channels = x.shape()[1];
    let [weight, bias] = parameters;
    check_per_channel(
        &[("running_mean", running[0]), ("running_var", running[1]), ("weight", weight), ("bias", bias)],
        channels,
    )?;
    if !training {
        let [Some(mean), Some(variance)] = running else {
            refuse!("Expected running_mean and running_var to be defined when training=False");
        };
        let compute = x.dtype().compute();
        let result = fixed_norm(call, [mean, variance], parameters, epsilon)?;
        let empty = || Tensor::empty(&[0], compute, x.device());
        return Ok(Tensors::from_iter([result, empty()?, empty()?]));
    }
    let mut results = channel_norm(call, parameters, 0, epsilon)?;
    let variance = results.remove(3);
    let count = x.elements().checked_div(channels).unwrap_or(0) as f64;
    move_towards(running, [&results[1], &variance], (momentum, count), call.label)?;
    Ok(results)
}

/// Moves running statistics towards those of a batch, in place; the running variance moves towards the unbiased one.
fn move_towards(
    running: [Option<&Tensor>; 2],
    batch: [&Tensor; 2],
    (momentum, count): (f64, f64),
    label: Label,
) -> Result<()> {
    let shares = [momentum, momentum * (count / (count - 1.0))];
    let kept = |index: usize| running[index].map(|running| (running, batch[index], shares[index]));
    match (kept(0), kept(1)) {
        (Some(mean), Some(variance)) if mean.0.dtype() == variance.0.dtype() => {
            move_together(&CHANNEL_NORM_MOVED_BOTH, &[mean, variance], momentum, label)
        }
        (mean, variance) => mean
            .into_iter()
            .chain(variance)
            .try_for_each(|one| move_together(&CHANNEL_NORM_MOVED, &[one], momentum, label)),
    }
}

/// Moves statistics of one dtype, each with the batch's and its share.
fn move_together(
    operator: &'static LoopOp,
    statistics: &[(&Tensor, &Tensor, f64)],
    momentum: f64,
    label: Label,
) -> Result<()> {
    let running: SmallVec<[Tensor; 2]> = statistics.iter().map(|(running, ..)| running.detach()).collect();
    let batch: SmallVec<[Tensor; 2]> = statistics.iter().map(|(_, batch, _)| batch.detach()).collect();
    let inputs: SmallVec<[&Tensor; 4]> = batch.iter().zip(&running).flat_map(|(a, b)| [a, b]).collect();
    let shares = statistics.iter().map(|(.., share)| *share);
    let scalars = [1.0 - momentum].into_iter().chain(shares).map(Scalar::F64).collect();
    let dtype = Some(running[0].dtype());
    no_grad(|| {
        run_into(
            operator,
            &inputs,
            &LoopArguments { scalars, dtype, ..LoopArguments::default() },
            &running,
            label,
        )
    })
}

fn instance_norm(call: &Call<'_>) -> Result<Tensors> {
    let (x, parameters) = (call.tensor(0), [call.optional_tensor(1), call.optional_tensor(2)]);
    let running = [call.optional_tensor(3), call.optional_tensor(4)];
    let (momentum, epsilon) = (call.float(6), call.float(7));
    if !call.bool(5) {
        return first(batch_norm(call, running, false, momentum, epsilon)?);
    }
    check_floats("instance_norm", x)?;
    if x.rank() < 2 {
        refuse!("Expected 2 or more dimensions for the input of instance_norm, but got {}", x.rank());
    }
    let [weight, bias] = parameters;
    check_per_channel(
        &[("running_mean", running[0]), ("running_var", running[1]), ("weight", weight), ("bias", bias)],
        x.shape()[1],
    )?;
    let planes: usize = x.shape()[2..].iter().product();
    let results = channel_norm(call, parameters, x.shape()[1] as i64, epsilon)?;
    let over_batch = |tensor: &Tensor| tensor.detach().mean(&[0], false);
    if running.iter().any(Option::is_some) {
        let batch = [&over_batch(&results[1])?, &over_batch(&results[3])?];
        move_towards(running, batch, (momentum, planes as f64), call.label)?;
    }
    first(results)
}
