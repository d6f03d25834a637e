//! Normalization of channels: by statistics of the batch, or of groups of channels of each instance.
//!
//! [`thalweg_ops::lower::ChannelNorm`] decides the launches. The input is read in its own layout, including channels last, and the
//! result has the input's layout.

use thalweg_execute::to_runtime_error;
use thalweg_ir::{DType, Layout};
use thalweg_ops::lower::{ChannelNorm, ChannelNormGradient, Operand};
use thalweg_runtime::{Error, Label, Result, invalid, refuse_if};

use super::normalized::Normalized;
use crate::autograd::formula::{Formula, GradientCall};
use crate::autograd::{Gradients, is_grad_enabled};
use crate::dispatch::{Arguments, Call, Ints};
use crate::loops::launch_steps;
use crate::tensor::{Tensor, Tensors};

/// Returns the extents of an input with this number of groups per instance; 0 means statistics of the batch.
fn extents(shape: &[usize], groups: i64) -> Result<ChannelNorm> {
    let extents = usize::try_from(groups).ok().and_then(|groups| ChannelNorm::new(shape, groups));
    extents.ok_or_else(|| {
        invalid!(
            "an input of shape {shape:?} must be (batch, channels, …), and its channels divisible by {groups} groups"
        )
    })
}

/// Returns an input outside the graph, copied if it cannot be viewed in the shape of the extents, and the layout of that view.
fn dense_layout(x: &Tensor, norm: &ChannelNorm) -> Result<(Tensor, Layout)> {
    let x = x.detach();
    if let Some(layout) = x.layout().reshape(&norm.shape())? {
        return Ok((x, layout));
    }
    let x = x.contiguous()?.detach();
    let layout = Layout::contiguous(&norm.shape());
    Ok((x, layout))
}

/// Allocates a result in the layout of `like`, whose view in the shape of the extents is passed; returns it with its own view.
fn result_like(like: &Tensor, view: &Layout, label: Label) -> Result<(Tensor, Layout)> {
    let result = Tensor::result_on(like.shape(), like.dtype(), &like.device().current_stream(), label)?;
    let (own, seen) = match like.is_dense() {
        true => (
            Layout::new(like.shape(), like.layout().strides(), 0)?,
            Layout::new(view.shape(), view.strides(), 0)?,
        ),
        false => (Layout::contiguous(like.shape()), Layout::contiguous(view.shape())),
    };
    Ok((result.with_layout(own), seen))
}

fn operand<'a>(tensor: &Tensor, layout: &'a Layout) -> Operand<'a> {
    Operand { dtype: tensor.dtype(), layout }
}

/// Returns the normalized input times weight plus bias, and mean, inverse deviation and variance.
pub(crate) fn forward(call: &Call<'_>) -> Result<Tensors> {
    let [x, weight, bias] = [0, 1, 2].map(|at| call.tensor(at));
    let norm = extents(x.shape(), call.int(3))?;
    let channels = x.shape()[1];
    refuse_if!(
        !x.dtype().is_floating_point() || [weight, bias].iter().any(|list| list.shape() != [channels]),
        "an input of shape {:?} {} must be of floats, with a weight and a bias for each channel, not {:?} and {:?}",
        x.shape(),
        x.dtype(),
        weight.shape(),
        bias.shape()
    );
    let (x, view) = dense_layout(x, &norm)?;
    let (result, seen) = result_like(&x, &view, call.label)?;
    let operands = [operand(&x, &view), operand(weight, weight.layout()), operand(bias, bias.layout())];
    let steps = norm.forward(operands, &seen, call.float(4), None).map_err(to_runtime_error)?;
    let shape = norm.of_statistics();
    let shape = if call.int(3) == 0 { &shape[1..2] } else { &shape[..2] };
    let mut results = Tensors::from_iter([result]);
    for _ in 0..3 {
        let stream = x.device().current_stream();
        results.push(Tensor::result_on(shape, x.dtype().compute(), &stream, call.label)?);
    }
    launch_steps(&steps, &[&x, weight, bias], &results, call.label)?;
    Ok(results)
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
        wants: [0, 1, 2].map(|at| call.wants(at)),
        dtypes: [1, 2].map(|at| call.dtype_of(at)),
        label: call.label(),
    };
    asked.gradients()
}

/// The requested gradients of a normalization, and the tensors that they are computed from.
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
        let norm = extents(self.x.shape(), self.groups)?;
        let (x, view) = dense_layout(self.x, &norm)?;
        let (gradient, view_of_gradient) = dense_layout(self.gradient, &norm)?;
        let [mean, inverse] = self.statistics.map(|statistic| statistic.detach().contiguous());
        let (mean, inverse) = (mean?, inverse?);
        let of_input = if self.wants[0] { Some(result_like(&x, &view, self.label)?) } else { None };
        let [of_weight, of_bias] = self.dtypes;
        let dtype = if of_weight == of_bias { of_weight } else { x.dtype().compute() };
        let of_parameters = (self.wants[1] || self.wants[2]).then_some(dtype);
        let steps = norm.backward(&ChannelNormGradient {
            x: operand(&x, &view),
            gradient: operand(&gradient, &view_of_gradient),
            weight: operand(self.weight, self.weight.layout()),
            statistics: [mean.dtype(), inverse.dtype()],
            of_input: of_input.as_ref().map(|(_, layout)| layout),
            of_parameters,
        });
        let mut results: Tensors = of_input.into_iter().map(|(result, _)| result).collect();
        if of_parameters.is_some() {
            for _ in 0..2 {
                let stream = x.device().current_stream();
                results.push(Tensor::result_on(self.weight.shape(), dtype, &stream, self.label)?);
            }
        }
        let inputs = [&x, &gradient, self.weight, &mean, &inverse];
        launch_steps(&steps.map_err(to_runtime_error)?, &inputs, &results, self.label)?;
        let mut results = results.into_iter();
        let mut gradients = Gradients::from_elem(None, 3);
        if self.wants[0] {
            gradients[0] = results.next();
        }
        for (gradient, (result, dtype)) in gradients[1..].iter_mut().zip(results.zip(self.dtypes)) {
            *gradient = Some(result.to_dtype(dtype)?);
        }
        Ok(gradients)
    }
}

/// Returns the gradients, computed by operators that record their own.
fn by_operators(call: &GradientCall<'_>) -> Result<Gradients> {
    let norm = extents(call.shape(0), call.int(3))?;
    let (x, dims) = (call.saved(0)?, norm.dims().iter().map(|&dim| dim as i64).collect::<Ints>());
    let compute = x.dtype().compute();
    let wide = x.to_dtype(compute)?.reshape(&norm.shape())?;
    let statistic = |at| call.result(at)?.reshape(&norm.of_statistics());
    let normalized = Normalized::new(&wide, &statistic(1)?, &statistic(2)?, dims.clone())?;
    let gradient = call.gradient()?.to_dtype(compute)?.reshape(&norm.shape())?;
    let channel = &call.shape(0)[1..2];
    call.each(|at| {
        if at > 0 {
            let product = if at == 1 { gradient.mul(&normalized.values)? } else { gradient.clone() };
            return product.sum(&[0, 3], false)?.reshape(channel)?.to_dtype(call.dtype_of(at)).map(Some);
        }
        let weight = call.saved(1)?.to_dtype(compute)?.reshape(&norm.of_parameters())?;
        let mut result = normalized.gradient(&gradient.mul(&weight)?)?;
        if (1..4).any(|at| call.has_gradient(at)) {
            let past = |at| call.gradient_of(at)?.to_dtype(compute)?.reshape(&norm.of_statistics());
            let [variance, mean] = wide.var_mean(&dims, 0, true)?;
            let cube = variance.add_scalar(call.float(4))?.pow_scalar(-1.5)?;
            let slope = past(3)?.mul_scalar(2.0)?.sub(&past(2)?.mul(&cube)?)?;
            let of_statistics = past(1)?.add(&wide.sub(&mean)?.mul(&slope)?)?;
            result = result.add(&of_statistics.mul_scalar(1.0 / norm.count())?)?;
        }
        result.reshape(call.shape(0))?.to_dtype(x.dtype()).map(Some)
    })
}
