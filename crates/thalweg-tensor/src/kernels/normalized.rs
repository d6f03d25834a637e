//! Normalized rows, with gradients of gradients, and the dimensions of a row.

use thalweg_ir::Shape;
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use crate::autograd::is_grad_enabled;
use crate::dispatch::Ints;
use crate::tensor::Tensor;

/// Normalized rows, each with mean 0 and variance 1: the elements, and the inverse deviations, which have the same rank.
pub(crate) struct Normalized {
    /// The dimensions of a row.
    pub dims: Ints,
    /// The elements minus the mean, divided by the deviation.
    pub values: Tensor,
    /// The reciprocal of each row's deviation.
    pub inverse: Tensor,
}

impl Normalized {
    /// Normalizes rows with statistics that were computed from them: if gradients are recorded, they flow through the statistics.
    pub(crate) fn new(x: &Tensor, mean: &Tensor, inverse: &Tensor, dims: Ints) -> Result<Self> {
        let (mut mean, mut inverse) = (mean.to_dtype(x.dtype())?, inverse.to_dtype(x.dtype())?);
        if is_grad_enabled() && x.requires_grad() {
            // The given statistics are used, with the gradients of the recomputed ones.
            let [variance, own] = x.var_mean(&dims, 0, true)?;
            mean = mean.detach().add(&own.sub(&own.detach())?)?;
            let past = inverse.detach().square()?.reciprocal()?;
            inverse = past.add(&variance.sub(&variance.detach())?)?.rsqrt()?;
        }
        let values = x.sub(&mean)?.mul(&inverse)?;
        Ok(Self { dims, values, inverse })
    }

    /// Returns the gradient of the rows from that of the normalized ones.
    pub(crate) fn gradient(&self, gradient: &Tensor) -> Result<Tensor> {
        let along = gradient.mul(&self.values)?.mean(&self.dims, true)?;
        let rest = gradient.sub(&gradient.mean(&self.dims, true)?)?.sub(&self.values.mul(&along)?)?;
        rest.mul(&self.inverse)
    }
}

/// Returns the shape of one number per row, which keeps the dimensions within a row: all but the first `rows`.
pub(crate) fn kept_shape(shape: &[usize], rows: usize) -> Shape {
    let mut kept: Shape = shape.into();
    kept[rows..].fill(1);
    kept
}

/// Returns the sum over the first `rows` dimensions.
pub(crate) fn over_rows(tensor: &Tensor, rows: usize) -> Result<Tensor> {
    let outer: Ints = (0..rows as i64).collect();
    if rows == 0 { Ok(tensor.clone()) } else { tensor.sum(&outer, false) }
}

/// Returns a gradient times a weight, if there is one, in the dtype of the gradient.
pub(crate) fn weighted(gradient: &Tensor, weight: Option<&Tensor>) -> Result<Tensor> {
    match weight {
        Some(weight) => gradient.mul(&weight.to_dtype(gradient.dtype())?),
        None => Ok(gradient.clone()),
    }
}

/// Returns a list of extents in PyTorch's format.
pub(crate) fn sizes(list: &[usize]) -> String {
    format!("{list:?}")
}

/// Returns the extents of `normalized_shape`, if the input's shape ends with them.
pub(crate) fn normalized_shape(
    input: &Tensor,
    list: &Ints,
    parameters: &[(&str, Option<&Tensor>)],
) -> Result<Shape> {
    refuse_if!(
        list.is_empty(),
        "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got \
         normalized_shape = []"
    );
    let is = |shape: &[usize]| {
        shape.len() == list.len() && shape.iter().zip(list).all(|(&extent, &wanted)| extent as i64 == wanted)
    };
    for (name, parameter) in parameters {
        if let Some(parameter) = parameter
            && !is(parameter.shape())
        {
            refuse!(
                "Expected {name} to be of same shape as normalized_shape, but got {name} of shape {} and normalized_shape = \
                 {list:?}",
                sizes(parameter.shape())
            );
        }
    }
    let rows = input.rank().checked_sub(list.len()).filter(|&rows| is(&input.shape()[rows..]));
    rows.map(|rows| input.shape()[rows..].into()).ok_or_else(|| {
        let wanted: Vec<String> = list.iter().map(ToString::to_string).collect();
        invalid!(
            "Given normalized_shape={list:?}, expected input with shape [*, {}], but got input of size{}",
            wanted.join(", "),
            sizes(input.shape())
        )
    })
}
