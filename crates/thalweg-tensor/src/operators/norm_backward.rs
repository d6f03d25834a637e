//! The gradients of normalizations, as separate operators and for gradients of gradients.

use smallvec::smallvec;
use thalweg_ir::{DType, Scalar, Shape};
use thalweg_ops::structured::CHANNEL_NORM_FIXED;
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::Composite;
use super::norm::fixed_operands;
use super::operators;
use super::window::is_recorded;
use crate::autograd::{Backward, Gradients};
use crate::dispatch::{Argument, Arguments, Call, Ints};
use crate::kernels::channel_norm::Asked;
use crate::kernels::normalized::{Normalized, kept_shape, normalized_shape, over_rows, weighted};
use crate::kernels::{normalization, rms_norm};
use crate::loops::{self, LoopArguments, LoopCall};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the gradients of layer normalization for input, weight and bias, those that the mask selects; the others are
    /// empty.
    "native_layer_norm_backward(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"
        = Composite(layer_norm_backward);
    /// Returns the gradients of normalization by the root of the mean square for input and weight, those that the mask selects;
    /// the others are empty.
    "_fused_rms_norm_backward(Tensor grad_out, Tensor input, int[] normalized_shape, Tensor rstd, Tensor? weight, bool[2] output_mask) -> (Tensor, Tensor)"
        = Composite(rms_norm_backward);
    /// Returns the gradients of group normalization for input, weight and bias, those that the mask selects; the others are
    /// empty.
    "native_group_norm_backward(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd, Tensor? weight, SymInt N, SymInt C, SymInt HxW, int group, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"
        = Composite(group_norm_backward);
    /// Returns the gradients of batch normalization for input, weight and bias, those that the mask selects; the others are empty.
    /// In training they are those by the statistics of the batch, otherwise by the running ones.
    "native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, Tensor? running_mean, Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float eps, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"
        = Composite(batch_norm_backward);
}

/// Returns whether each of the three gradients is requested.
fn mask(call: &Call<'_>, place: usize) -> Result<[bool; 3]> {
    match call.argument(place) {
        Argument::Bools(&[input, weight, bias]) => Ok([input, weight, bias]),
        _ => Err(invalid!("output_mask has three truth values: for input, weight and bias")),
    }
}

/// Returns the requested gradients, and an empty tensor for each other one.
fn masked(
    x: &Tensor,
    is_wanted: bool,
    dtype: DType,
    gradient: impl FnOnce() -> Result<Tensor>,
) -> Result<Tensor> {
    if is_wanted { gradient()?.to_dtype(dtype) } else { Tensor::empty(&[0], dtype, x.device()) }
}

fn check(call: &Call<'_>, gradient: &Tensor, x: &Tensor) -> Result<()> {
    if gradient.shape() == x.shape() && x.dtype().is_floating_point() {
        return Ok(());
    }
    Err(invalid!(
        "{}: a gradient of shape {:?} does not fit an input of floats of shape {:?}, but {}",
        call.operator.base_name(),
        gradient.shape(),
        x.shape(),
        x.dtype()
    ))
}

/// Returns whether the kernels of the nodes compute a call: gradient, input and weight have one dtype, and nothing is recorded.
fn is_of_kernels(call: &Call<'_>, weight: Option<&Tensor>) -> bool {
    let (gradient, x) = (call.tensor(0), call.tensor(1));
    let mut others = [gradient].into_iter().chain(weight);
    x.elements() > 0 && others.all(|tensor| tensor.dtype() == x.dtype()) && !is_recorded(call.tensors)
}

fn layer_norm_backward(call: &Call<'_>) -> Result<Tensors> {
    let (gradient, x, weight) = (call.tensor(0), call.tensor(1), call.optional_tensor(5));
    check(call, gradient, x)?;
    let shape = normalized_shape(x, &call.ints(2), &[("weight", weight)])?;
    let [of_input, of_weight, of_bias] = mask(call, 7)?;
    let rows = x.rank() - shape.len();
    let count: usize = x.shape()[..rows].iter().product();
    let statistics = [call.tensor(3), call.tensor(4)];
    let are_of_rows = statistics.iter().all(|statistic| statistic.elements() == count);
    let dtype = weight.map_or(x.dtype(), Tensor::dtype);
    if are_of_rows && rows > 0 && is_of_kernels(call, weight) {
        let wanted = [of_input, of_weight || of_bias];
        let (input, parameters) =
            normalization::gradients([x, gradient], statistics, weight, rows, wanted, call.label)?;
        let parameter = |place: usize| Ok(parameters.as_ref().expect("they are wanted")[place].clone());
        return Ok(Tensors::from_iter([
            masked(x, of_input, x.dtype(), || Ok(input.expect("it is wanted")))?,
            masked(x, of_weight, dtype, || parameter(0))?,
            masked(x, of_bias, dtype, || parameter(1))?,
        ]));
    }
    let dims: Ints = (rows as i64..x.rank() as i64).collect();
    let compute = x.dtype().compute();
    let kept = kept_shape(x.shape(), rows);
    let [mean, inverse] = [call.tensor(3), call.tensor(4)].map(|statistic| statistic.reshape(&kept));
    let normalized = Normalized::new(&x.to_dtype(compute)?, &mean?, &inverse?, dims)?;
    let gradient = gradient.to_dtype(compute)?;
    Ok(Tensors::from_iter([
        masked(x, of_input, x.dtype(), || normalized.gradient(&weighted(&gradient, weight)?))?,
        masked(x, of_weight, dtype, || over_rows(&gradient.mul(&normalized.values)?, rows))?,
        masked(x, of_bias, dtype, || over_rows(&gradient, rows))?,
    ]))
}

fn rms_norm_backward(call: &Call<'_>) -> Result<Tensors> {
    let (gradient, x, weight) = (call.tensor(0), call.tensor(1), call.optional_tensor(4));
    check(call, gradient, x)?;
    let shape = normalized_shape(x, &call.ints(2), &[("weight", weight)])?;
    let Argument::Bools(&[of_input, of_weight]) = call.argument(5) else {
        refuse!("output_mask has two truth values: for input and weight");
    };
    let (rank, inverse) = (x.rank() - shape.len(), call.tensor(3));
    let count: usize = x.shape()[..rank].iter().product();
    refuse_if!(
        inverse.elements() != count,
        "_fused_rms_norm_backward: rstd has one number for each of {count} rows, and not the shape {:?}",
        inverse.shape()
    );
    let (dtype, compute) = (weight.map_or(x.dtype(), Tensor::dtype), x.dtype().compute());
    let of_weight = of_weight && weight.is_some();
    if is_of_kernels(call, weight) {
        let rows = rms_norm::Rows {
            x: x.clone(),
            inverse: inverse.reshape(&x.shape()[..rank])?.to_dtype(compute)?,
            gradient: gradient.clone(),
            rank,
            label: call.label,
        };
        return Ok(Tensors::from_iter([
            masked(x, of_input, x.dtype(), || rows.of_input(weight))?,
            masked(x, of_weight, dtype, || rows.of_weight(dtype))?,
        ]));
    }
    let inverse = inverse.reshape(&kept_shape(x.shape(), rank))?.to_dtype(compute)?;
    let terms = rms_norm::Terms::new(&x.to_dtype(compute)?, inverse, gradient, rank)?;
    Ok(Tensors::from_iter([
        masked(x, of_input, x.dtype(), || terms.of_input(weight, None))?,
        masked(x, of_weight, dtype, || terms.of_weight())?,
    ]))
}

/// Returns the gradients of group normalization by the kernels that its node uses.
fn group_norm_by_kernels(call: &Call<'_>, groups: usize, wants: [bool; 3]) -> Result<Tensors> {
    let (gradient, x, weight) = (call.tensor(0), call.tensor(1), call.optional_tensor(4));
    let (batch, compute) = (x.shape()[0], x.dtype().compute());
    let [mean, inverse] = [2, 3].map(|place| call.tensor(place).reshape(&[batch, groups])?.to_dtype(compute));
    let ones = || Tensor::ones(&[], x.dtype(), x.device())?.expand(&x.shape()[1..2]);
    let weight = weight.map_or_else(ones, |weight| Ok(weight.clone()))?;
    let asked = Asked {
        groups: groups as i64,
        x,
        gradient,
        weight: &weight,
        statistics: [&mean?, &inverse?],
        wants,
        dtypes: [weight.dtype(); 2],
        label: call.label,
    };
    let gradients = asked.gradients()?.into_iter().zip(wants);
    gradients
        .map(|(gradient, is_wanted)| masked(x, is_wanted, x.dtype(), || Ok(gradient.expect("it is wanted"))))
        .collect()
}

fn group_norm_backward(call: &Call<'_>) -> Result<Tensors> {
    let (gradient, x, weight) = (call.tensor(0), call.tensor(1), call.optional_tensor(4));
    check(call, gradient, x)?;
    let numbers = [5, 6, 7, 8].map(|place| usize::try_from(call.int(place)).ok());
    let [Some(batch), Some(channels), Some(plane), Some(groups)] = numbers else {
        refuse!("native_group_norm_backward: N, C, HxW and group are not negative");
    };
    let fits = x.rank() >= 2
        && x.shape()[..2] == [batch, channels]
        && x.shape()[2..].iter().product::<usize>() == plane
        && groups > 0
        && channels.is_multiple_of(groups)
        && [call.tensor(2), call.tensor(3)].iter().all(|statistic| statistic.elements() == batch * groups)
        && weight.is_none_or(|weight| weight.shape() == [channels]);
    refuse_if!(
        !fits,
        "native_group_norm_backward: an input of shape {:?} is not ({batch}, {channels}, {plane}) in {groups} groups, with \
         statistics per group and a weight per channel",
        x.shape()
    );
    let [of_input, of_weight, of_bias] = mask(call, 9)?;
    if is_of_kernels(call, weight) {
        return group_norm_by_kernels(call, groups, [of_input, of_weight, of_bias]);
    }
    let compute = x.dtype().compute();
    let grouped = |tensor: &Tensor| tensor.reshape(&[batch, groups, channels / groups * plane]);
    let [mean, inverse] = [call.tensor(2), call.tensor(3)].map(|list| list.reshape(&[batch, groups, 1]));
    let rows = grouped(&x.to_dtype(compute)?)?;
    let normalized = Normalized::new(&rows, &mean?, &inverse?, Ints::from_slice(&[2]))?;
    let planes = |tensor: &Tensor| tensor.reshape(&[batch, channels, plane]);
    let gradient = planes(&gradient.to_dtype(compute)?)?;
    let of_channels = weight.map(|weight| weight.reshape(&[channels, 1])).transpose()?;
    let scaled = weighted(&gradient, of_channels.as_ref())?;
    let dtype = weight.map_or(x.dtype(), Tensor::dtype);
    Ok(Tensors::from_iter([
        masked(x, of_input, x.dtype(), || normalized.gradient(&grouped(&scaled)?)?.reshape(x.shape()))?,
        masked(x, of_weight, dtype, || gradient.mul(&planes(&normalized.values)?)?.sum(&[0, 2], false))?,
        masked(x, of_bias, dtype, || gradient.sum(&[0, 2], false))?,
    ]))
}

/// Returns the gradients of batch normalization by statistics of the batch, by the kernels that its node uses.
fn batch_norm_by_kernels(call: &Call<'_>, statistics: [&Tensor; 2], wants: [bool; 3]) -> Result<Tensors> {
    let (gradient, x, weight) = (call.tensor(0), call.tensor(1), call.optional_tensor(2));
    let ones = || Tensor::ones(&[], x.dtype().compute(), x.device())?.expand(&x.shape()[1..2]);
    let weight = weight.map_or_else(ones, |weight| Ok(weight.clone()))?;
    let dtypes = [weight.dtype(); 2];
    let asked =
        Asked { groups: 0, x, gradient, weight: &weight, statistics, wants, dtypes, label: call.label };
    let of = [x.dtype(), dtypes[0], dtypes[1]];
    let gradients = asked.gradients()?.into_iter().zip(wants).zip(of);
    gradients
        .map(|((gradient, is_wanted), dtype)| {
            masked(x, is_wanted, dtype, || Ok(gradient.expect("it is wanted")))
        })
        .collect()
}

/// Returns the gradients of batch normalization by running statistics, by the kernels that its node uses.
fn fixed_by_kernels(call: &Call<'_>, statistics: [&Tensor; 2], wants: [bool; 3]) -> Result<Tensors> {
    let (gradient, x, weight) = (call.tensor(0), call.tensor(1), call.optional_tensor(2));
    let operands = fixed_operands(x, statistics, [weight, None])?;
    let arguments =
        LoopArguments { scalars: smallvec![Scalar::F64(call.float(8))], ..LoopArguments::default() };
    let tensors = operands.each_ref();
    let lowered = LoopCall::new(&CHANNEL_NORM_FIXED, call, &tensors, arguments);
    let places = [0, 3, 4];
    let wanted = places.iter().zip(wants).filter(|&(_, is_wanted)| is_wanted);
    let wanted = wanted.fold(0, |bits, (place, _)| bits | 1 << place);
    let mut gradients = match wanted {
        0 => Gradients::from_elem(None, operands.len()),
        _ => loops::node(&lowered, &[], wanted)?.backward(&[Some(gradient.clone())])?,
    };
    let dtype = operands[3].dtype();
    (places.into_iter().zip(wants).zip([x.dtype(), dtype, dtype]))
        .map(|((place, is_wanted), dtype)| {
            let mut gradient = || gradients[place].take().expect("it is wanted");
            masked(x, is_wanted, dtype, || match place {
                0 => Ok(gradient()),
                _ => gradient().reshape(&x.shape()[1..2]),
            })
        })
        .collect()
}

fn batch_norm_backward(call: &Call<'_>) -> Result<Tensors> {
    let (gradient, x, weight) = (call.tensor(0), call.tensor(1), call.optional_tensor(2));
    check(call, gradient, x)?;
    let is_training = call.bool(7);
    let (places, compute) = (if is_training { [5, 6] } else { [3, 4] }, x.dtype().compute());
    let channels = x.shape().get(1).copied();
    let [Some(first), Some(second)] = places
        .map(|place| call.optional_tensor(place).filter(|statistic| Some(statistic.elements()) == channels))
    else {
        refuse!(
            "native_batch_norm_backward: an input of shape {:?} needs a mean and a deviation for each channel",
            x.shape()
        );
    };
    let [of_input, of_weight, of_bias] = mask(call, 9)?;
    let is_plain = x.elements() > 0 && gradient.dtype() == x.dtype() && !is_recorded(call.tensors);
    if is_plain && !is_training {
        return fixed_by_kernels(call, [first, second], [of_input, of_weight, of_bias]);
    }
    let (mean, second) = (first.to_dtype(compute)?, second.to_dtype(compute)?);
    if is_plain {
        return batch_norm_by_kernels(call, [&mean, &second], [of_input, of_weight, of_bias]);
    }
    let inverse = if is_training { second } else { second.add_scalar(call.float(8))?.rsqrt()? };
    let per_channel = |values: &Tensor| {
        let mut shape = Shape::from_elem(1, x.rank());
        shape[1] = values.elements();
        values.to_dtype(compute)?.reshape(&shape)
    };
    let dims: Ints = (0..x.rank() as i64).filter(|&dim| dim != 1).collect();
    let (mean, inverse, gradient) =
        (per_channel(&mean)?, per_channel(&inverse)?, gradient.to_dtype(compute)?);
    let wide = x.to_dtype(compute)?;
    let normalized = match is_training {
        true => Normalized::new(&wide, &mean, &inverse, dims.clone())?,
        false => {
            let values = wide.sub(&mean)?.mul(&inverse)?;
            Normalized { dims: dims.clone(), values, inverse: inverse.clone() }
        }
    };
    let of_channels = weight.map(per_channel).transpose()?;
    let scaled = weighted(&gradient, of_channels.as_ref())?;
    let dtype = weight.map_or(x.dtype(), Tensor::dtype);
    Ok(Tensors::from_iter([
        masked(x, of_input, x.dtype(), || match is_training {
            true => normalized.gradient(&scaled),
            false => scaled.mul(&inverse),
        })?,
        masked(x, of_weight, dtype, || gradient.mul(&normalized.values)?.sum(&dims, false))?,
        masked(x, of_bias, dtype, || gradient.sum(&dims, false))?,
    ]))
}
