//! Normalization of rows by their mean square: a kernel for the result, one for the gradient of the input, one for that of the weight.

use smallvec::SmallVec;
use thalweg_ir::{DType, Scalar};
use thalweg_ops::structured::{RMS_NORM, RMS_NORM_AFFINE};
use thalweg_runtime::{Error, Label, Result};

use super::normalized::{kept_shape, normalized_shape, over_rows, weighted};
use crate::autograd::formula::{Formula, GradientCall};
use crate::autograd::{Gradients, is_grad_enabled};
use crate::dispatch::{Arguments, Call, Ints, built_in};
use crate::loops::{self, LoopArguments, LoopCall, Points};
use crate::tensor::{Tensor, Tensors};

/// Returns the rows divided by the root of their mean square, times the weight, and 1 / √(mean square + ε) of each row.
pub(crate) fn forward(call: &Call<'_>) -> Result<Tensors> {
    let (x, weight) = (call.tensor(0), call.optional_tensor(1));
    let shape = normalized_shape(x, &call.ints(2), &[("weight", weight)])?;
    if !x.dtype().is_floating_point() {
        return Err(Error::not_implemented(format!("\"rms_norm\" not implemented for '{}'", x.dtype())));
    }
    let spread = weight.map(|weight| weight.detach().expand(x.shape())).transpose()?;
    let tensors: SmallVec<[&Tensor; 4]> = [x].into_iter().chain(&spread).collect();
    let arguments = LoopArguments {
        scalars: [count(&shape), call.float(3)].map(Scalar::F64).into_iter().collect(),
        points: Points::Reduced((x.rank() - shape.len()..x.rank()).collect()),
        ..LoopArguments::default()
    };
    let operator = if spread.is_some() { &RMS_NORM_AFFINE } else { &RMS_NORM };
    loops::run(&LoopCall::new(operator, call, &tensors, arguments), None)
}

/// Returns the number of elements of a row.
fn count(shape: &[usize]) -> f64 {
    shape.iter().product::<usize>() as f64
}

/// The gradients of input and weight.
pub(crate) static GRADIENT: Formula = Formula {
    inputs: &[0, 1],
    outputs: &[1],
    backward: |call| {
        let is_plain = call.has_gradient(0) && !call.has_gradient(1) && !is_grad_enabled();
        if is_plain { by_kernels(call) } else { by_operators(call) }
    },
};

/// Returns the number of leading dimensions, which distinguish the rows.
fn rows(call: &GradientCall<'_>) -> usize {
    call.shape(0).len() - call.ints(2).len()
}

fn by_kernels(call: &GradientCall<'_>) -> Result<Gradients> {
    let weight = match call.tensor_count() {
        1 => None,
        _ => Some(call.saved(1)?),
    };
    let rows = Rows {
        x: call.saved(0)?,
        inverse: call.result(1)?,
        gradient: call.gradient()?.clone(),
        rank: rows(call),
        label: call.label(),
    };
    call.each(|at| match at {
        1 => rows.of_weight(call.dtype_of(1)).map(Some),
        _ => rows.of_input(weight.as_ref()).map(Some),
    })
}

/// The tensors of a gradient by kernels: input, the inverse root of each row's mean square, and the result's gradient.
pub(crate) struct Rows {
    pub x: Tensor,
    /// One number per row, without the dimensions of a row.
    pub inverse: Tensor,
    pub gradient: Tensor,
    /// The number of leading dimensions, which distinguish the rows.
    pub rank: usize,
    pub label: Label,
}

impl Rows {
    /// Returns the gradient of the input, for a weight of the shape of a row.
    pub fn of_input(&self, weight: Option<&Tensor>) -> Result<Tensor> {
        let (x, rows) = (&self.x, self.rank);
        let arguments = LoopArguments {
            scalars: SmallVec::from_elem(Scalar::F64(count(&x.shape()[rows..])), 1),
            points: Points::Reduced((rows..x.rank()).collect()),
            ..LoopArguments::default()
        };
        let spread = weight.map(|weight| weight.expand(x.shape())).transpose()?;
        let operator = match &spread {
            Some(_) => built_in!("thalweg::rms_norm_affine_backward")?,
            None => built_in!("thalweg::rms_norm_backward")?,
        };
        let tensors: SmallVec<[&Tensor; 4]> =
            [x, &self.inverse, &self.gradient].into_iter().chain(&spread).collect();
        Ok(operator.call_loop(&tensors, &arguments, None, self.label)?.remove(0))
    }

    /// Returns the gradient of the weight in a dtype.
    pub fn of_weight(&self, dtype: DType) -> Result<Tensor> {
        let kept = kept_shape(self.x.shape(), self.rank);
        let inverse = self.inverse.reshape(&kept)?.expand(self.x.shape())?;
        let arguments = LoopArguments {
            points: Points::Reduced((0..self.rank).collect()),
            dtype: Some(dtype),
            ..LoopArguments::default()
        };
        let operator = built_in!("thalweg::rms_norm_weight_backward")?;
        let tensors = [&self.x, &inverse, &self.gradient];
        Ok(operator.call_loop(&tensors, &arguments, None, self.label)?.remove(0))
    }
}

/// The terms of the gradients, computed by operators that record their own.
pub(crate) struct Terms {
    gradient: Tensor,
    normalized: Tensor,
    inverse: Tensor,
    rank: usize,
}

impl Terms {
    /// Returns the terms of an input in the dtype of the computation, whose first `rank` dimensions distinguish the rows. The inverse
    /// root of each row's mean square keeps the dimensions of a row.
    pub fn new(x: &Tensor, inverse: Tensor, gradient: &Tensor, rank: usize) -> Result<Self> {
        let (normalized, gradient) = (x.mul(&inverse)?, gradient.to_dtype(x.dtype())?);
        Ok(Self { gradient, normalized, inverse, rank })
    }

    /// Returns the gradient of the weight.
    pub fn of_weight(&self) -> Result<Tensor> {
        over_rows(&self.gradient.mul(&self.normalized)?, self.rank)
    }

    /// Returns the gradient of the input, from those of the result and of the inverse roots.
    pub fn of_input(&self, weight: Option<&Tensor>, past: Option<&Tensor>) -> Result<Tensor> {
        let Self { gradient, normalized, inverse, rank } = self;
        let shape = normalized.shape();
        let dims: Ints = (*rank as i64..shape.len() as i64).collect();
        let scaled = weighted(gradient, weight)?;
        let mut slope = scaled.mul(normalized)?.mean(&dims, true)?;
        if let Some(past) = past {
            // The derivative of the inverse root is −x · inverse³ / count.
            let past = past.to_dtype(gradient.dtype())?.reshape(&kept_shape(shape, *rank))?;
            slope = slope.add(&past.mul(inverse)?.mul_scalar(1.0 / count(&shape[*rank..]))?)?;
        }
        scaled.sub(&normalized.mul(&slope)?)?.mul(inverse)
    }
}

fn by_operators(call: &GradientCall<'_>) -> Result<Gradients> {
    let x = call.saved(0)?;
    let rows = rows(call);
    let dims: Ints = (rows as i64..x.rank() as i64).collect();
    let wide = x.to_dtype(x.dtype().compute())?;
    let inverse = wide.square()?.mean(&dims, true)?.add_scalar(call.float(3))?.rsqrt()?;
    let terms = Terms::new(&wide, inverse, &call.gradient()?, rows)?;
    call.each(|at| {
        if at == 1 {
            return terms.of_weight()?.to_dtype(call.dtype_of(1)).map(Some);
        }
        let weight = if call.tensor_count() == 1 { None } else { Some(call.saved(1)?) };
        let past = if call.has_gradient(1) { Some(call.gradient_of(1)?) } else { None };
        terms.of_input(weight.as_ref(), past.as_ref())?.to_dtype(x.dtype()).map(Some)
    })
}
